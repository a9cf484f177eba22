"""Lists the settings of `mtl` that name files, folders, servers or code, with possible effects.

for place in places.find(experiment): ...     # settings of a run with effects besides reading
places.TABLE["Distillation.teacher"].effects   # ("run code", "write", "connect")
places.write_table()                           # the table in docs/security.md

`--trusted_packages` refuses settings that can do more than read; `--trusted_settings` allows single
settings by name. A test fails if a setting can hold a path and is missing in this table.
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
# Matches the URL of a server, but not file:// and ram://, which are on this machine.
_URL = re.compile(r"(?!file:|ram:)[A-Za-z][A-Za-z0-9+.\-]*://")


@dataclasses.dataclass(frozen=True)
class Place:
    """The object that a setting names, and the effects that the value can have besides reading.

    Attributes:
      names: a text for the object that the setting names, such as "a file of words".
      effects: some of `RUNS`, `WRITES` and `CONNECTS`; () if the setting only reads files.
      by_itself: True if the default value of the setting also has these effects.
      by_package: True if --trusted_packages allows or refuses the value by its package.
    """

    names: str
    effects: tuple[str, ...] = ()
    by_itself: bool = False
    by_package: bool = False


class Found(NamedTuple):
    """A setting of a run that can do more than read, with its value and its effects.

    Attributes:
      setting: the name of the setting, such as "Distillation.teacher".
      value: the value of the setting in the run.
      effects: one or more of `RUNS`, `WRITES` and `CONNECTS`.
    """

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
    "ExampleLists.data_dir": _FOLDER,
    "ExampleLists.files": _DATA,
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
    "StoredRows.data_dir": _FOLDER,
    "StoredRows.files": _DATA,
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

# Settings with `by_package` are left out, because `Trusted.check_module` checks their packages.
REFUSED = tuple(setting for setting, place in TABLE.items() if not place.by_package)


def find(part: Any) -> Iterator[Found]:
    """Yield the settings of a part, and of parts inside it, that can do more than read files.

    A user's class inherits settings, with their effects, from the class of `mtl` that it derives
    from.
    """
    for inner in types.walk_parts(part):
        for setting in dataclasses.fields(inner):
            # A subclass inherits settings of its base classes, with effects such as writing files.
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
    """Yield all texts in a value, in a list, or in the values of a map."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _list_texts(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _list_texts(item)


def write_table() -> str:
    """Return the table as Markdown; settings of the same kind share a line."""
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
