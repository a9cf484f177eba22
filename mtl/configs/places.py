"""Lists the settings of `mtl` that name a file, a folder or a server, with their effects.

for place in places.find(experiment): ...     # settings of a run with effects besides reading
places.TABLE["Distillation.teacher"].effects   # ("run code", "write", "connect")
places.write_table()                           # the table in docs/security.md

`--trusted_packages` refuses each setting that does more than read; `--trusted_settings` allows
some of them by name. A test fails if a setting can hold a path and is missing here.
"""

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mtl import deferred

with deferred.imports():
    from mtl import types

RUNS, WRITES, CONNECTS = "run code", "write", "connect"
_EFFECTS = (RUNS, WRITES, CONNECTS)
_OWN = "mtl."
# The URL of a server; file:// and ram:// name places on this machine.
_URL = re.compile(r"(?!file:|ram:)[A-Za-z][A-Za-z0-9+.\-]*://")


@dataclasses.dataclass(frozen=True)
class Place:
    """The kind of place that a setting names, and its effects besides reading.

    Attributes:
      names: the kind of place, as text.
      effects: some of `RUNS`, `WRITES` and `CONNECTS`; () if files are only read.
      by_itself: True if the default of the setting has these effects as well.
      by_package: True if --trusted_packages decides by the package of the named object.
    """

    names: str
    effects: tuple[str, ...] = ()
    by_itself: bool = False
    by_package: bool = False


class Found(NamedTuple):
    """A setting of a run: its name, its value, and its effects."""

    setting: str
    value: Any
    effects: tuple[str, ...]


_DATA = Place("files of rows")
_FOLDER = Place("the folder in which relative paths start")
_VOCABULARY = Place("a file of words")
_VECTORS = Place("a file of vectors")
_CHECKPOINT = Place("a checkpoint or its folder")
_BASELINES = Place("the folders of runs, whose evaluations are read")
_TEACHER = Place("a SavedModel, whose graph may hold any op", _EFFECTS)
_CODE = Place("a function or a class", (RUNS,), by_package=True)

TABLE: Mapping[str, Place] = {
    "Categorical.vocabulary": _VOCABULARY,
    "Categorical.word_vectors": _VECTORS,
    "Arrow.data_dir": _FOLDER,
    "Arrow.files": _DATA,
    "Csv.data_dir": _FOLDER,
    "Csv.files": _DATA,
    "Distillation.teacher": _TEACHER,
    "EstimatorHead.head": _CODE,
    "FeatureDistillation.teacher": _TEACHER,
    "FromFile.path": Place("a file with an array"),
    "Idx.data_dir": _FOLDER,
    "Idx.files": _DATA,
    "ImageFiles.folder": Place("the folder of the images that rows name"),
    "Isotonic.source": _CHECKPOINT,
    "KerasModel.build": _CODE,
    "LogitAdjusted.source": _CHECKPOINT,
    "MLflow.tracking_uri": Place("a server, a database or a folder", (WRITES, CONNECTS), True),
    "MeanGain.baselines": _BASELINES,
    "NearestMean.source": _CHECKPOINT,
    "JsonLines.data_dir": _FOLDER,
    "JsonLines.files": _DATA,
    "Npy.data_dir": _FOLDER,
    "Npy.folders": _DATA,
    "Npy.rename": Place("the folders of fields"),
    "Platt.source": _CHECKPOINT,
    "SvmLight.data_dir": _FOLDER,
    "SvmLight.files": _DATA,
    "TauNormalized.source": _CHECKPOINT,
    "Temperature.source": _CHECKPOINT,
    "Text.word_vectors": _VECTORS,
    "TfRecord.data_dir": _FOLDER,
    "TfRecord.files": _DATA,
    "Tfds.data_dir": Place("a folder of data sets, whose files name classes", (RUNS, WRITES)),
    "Tfds.manual_dir": Place("a folder of files that a builder unpacks", (RUNS,)),
    "Tfds.name": Place("a builder, or a data set of a catalogue", _EFFECTS, by_package=True),
    "WandB.entity": Place("an account of Weights & Biases", (CONNECTS,)),
    "WandB.project": Place("a project of an account", (CONNECTS,), by_itself=True),
    "WarmStart.row_names": Place("a file of names"),
    "WarmStart.source": _CHECKPOINT,
    "WordPiece.vocabulary": _VOCABULARY,
    "Words.vocabulary": _VOCABULARY,
}

# For the other settings, `Trusted.check_module` decides by the package that they name.
REFUSED = tuple(setting for setting, place in TABLE.items() if not place.by_package)


def find(part: Any) -> Iterator[Found]:
    """Yield the settings in `part`, and in all parts within it, that do more than read.

    A class of another package has the effects of the class of `mtl` from which it derives.
    """
    for inner in types.walk_parts(part):
        for setting in dataclasses.fields(inner):
            # A subclass inherits the setting, and with it the effects.
            for kind in type(inner).__mro__:
                place = TABLE.get(f"{kind.__name__}.{setting.name}")
                if place is None or not f"{kind.__module__}.".startswith(_OWN):
                    continue
                value = getattr(inner, setting.name, None)
                effects = _find_effects(place, value)
                if effects:
                    yield Found(f"{kind.__name__}.{setting.name}", value, effects)


def _find_effects(place: Place, value: Any) -> tuple[str, ...]:
    if place.by_package or (value is None and not place.by_itself):
        return ()
    return place.effects or (CONNECTS,) * any(map(_URL.match, _list_texts(value)))


def _list_texts(value: Any) -> Iterator[str]:
    """Yield all texts in a list or in the values of a map."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _list_texts(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _list_texts(item)


def write_table() -> str:
    """Return the table as Markdown, with a line for all settings of the same kind."""
    kinds = collections.defaultdict(list)
    for setting, place in sorted(TABLE.items()):
        effects = (_tell_effect(place, effect) for effect in _EFFECTS)
        kinds[" | ".join([place.names, *effects])].append(f"`{setting}`")
    lines = ["| settings | what they name | may run code | may write | may connect |"]
    lines.append("| -- | -- | -- | -- | -- |")
    lines += [f"| {', '.join(settings)} | {kind} |" for kind, settings in kinds.items()]
    return "\n".join(lines) + "\n"


def _tell_effect(place: Place, effect: str) -> str:
    if effect in place.effects:
        return "by package" if place.by_package else "yes"
    return "a URL" if effect == CONNECTS and not place.effects else "no"
