"""The settings of an experiment as a flat list, and how those of several runs differ.

for setting in settings.flatten(experiment):
    setting.part, setting.kind, setting.name, setting.value, setting.default
settings.compare({"a": first, "b": second})          # {"run.seed": {"a": "1", "b": "2"}}
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_LONGEST = 160
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# The value of a setting whose part a run lacks.
ABSENT = "(none)"
# Of runs that are the same but for the chance in them.
SEED = "run.seed"


class Setting(NamedTuple):
    """One setting of a part.

    Attributes:
      part: where the part stands, such as "model.network.trunk" or "model.heads[digit]".
      kind: the class of the part.
      name: of the setting.
      value: as Python writes it.
      default: the same of what holds where it is not set; None where it has to be.
    """

    part: str
    kind: str
    name: str
    value: str
    default: str | None

    @property
    def is_default(self) -> bool:
        """Whether nobody had to set it."""
        return self.value == self.default

    @property
    def path(self) -> str:
        """The part and the name."""
        return f"{self.part}.{self.name}" if self.part else self.name


def flatten(part: Any, path: str = "") -> Iterator[Setting]:
    """Yield every setting of a part, and of the parts within it."""
    for field in dataclasses.fields(part):
        if not field.init:
            continue
        value, name = getattr(part, field.name), field.name
        yield Setting(path, type(part).__name__, name, _shown(value), _default(field))
        inner = f"{path}.{name}" if path else name
        for own, found in _parts(value, inner):
            yield from flatten(found, own)


def compare(experiments: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return {setting: {run: value}} of the settings in which the runs differ.

    Of a part that some runs lack only those are told that are not at their defaults.
    """
    known = {run: {s.path: s for s in flatten(part)} for run, part in experiments.items()}
    rows = {}
    for path in dict.fromkeys(path for found in known.values() for path in found):
        found = {run: one[path] for run, one in known.items() if path in one}
        values = {run: found[run].value if run in found else ABSENT for run in known}
        is_told = len(found) == len(known) or not all(one.is_default for one in found.values())
        if is_told and len(set(values.values())) > 1:
            rows[path] = values
    return rows


def group_by_seed(experiments: Mapping[str, Any]) -> list[list[str]]:
    """Return the names of the runs, those together that differ by `Run.seed` alone."""
    groups: dict[tuple, list[str]] = {}
    for run, part in experiments.items():
        key = tuple((s.path, s.value) for s in flatten(part) if s.path != SEED)
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts that a value is or holds, each with where it stands."""
    if _is_part(value):
        yield path, value
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from _parts(one, f"{path}[{getattr(one, 'name', None) or number}]")
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _parts(one, f"{path}[{key}]")


def _is_part(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _default(field: Any) -> str | None:
    if field.default is not dataclasses.MISSING:
        return _shown(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return _shown(field.default_factory())
    return None


def _shown(value: Any) -> str:
    """Return a value as text; of a part only its class, whose settings follow."""
    if _is_part(value):
        return f"{type(value).__name__}()"
    if isinstance(value, list | tuple) and any(map(_is_part, value)):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, Mapping) and any(map(_is_part, value.values())):
        return "{" + ", ".join(f"{key!r}: {_shown(one)}" for key, one in value.items()) + "}"
    text = _ADDRESS.sub("", repr(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 30]} ... {text[-25:]}"
