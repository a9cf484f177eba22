"""Lists all settings of an experiment, and compares the settings of several runs.

for setting in flat_settings.flatten(experiment):
    setting.part, setting.kind, setting.name, setting.value, setting.default
flat_settings.compare({"a": first, "b": second})          # {"run.seed": {"a": "1", "b": "2"}}
"""

import dataclasses
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mtl import checks
from mtl.checkpoints import settings as canonical

# The largest number of characters of a value in a table of settings.
_LONGEST = 160
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# The text for a setting whose part is missing in a run.
ABSENT = "(none)"
# Runs that differ only in the seed, `Run.seed`, are repetitions.
SEED = "run.seed"


class Setting(NamedTuple):
    """One setting of a part.

    Attributes:
      part: the place of the part, such as "model.network.trunk" or "model.heads[digit]".
      kind: the name of the part's class.
      name: the name of the setting.
      value: the value as Python writes it, in full.
      default: the default as Python writes it; None if the setting is required.
      meaning: a text that is the same for values with the same meaning, such as 1 and 1.0.
      default_meaning: the `meaning` of the default; None if the setting is required.
    """

    part: str
    kind: str
    name: str
    value: str
    default: str | None
    meaning: str
    default_meaning: str | None

    @property
    def is_default(self) -> bool:
        """True if the value of the setting has the same meaning as its default."""
        return self.meaning == self.default_meaning

    @property
    def path(self) -> str:
        """The path of the setting: the place of its part and its name, such as "run.seed"."""
        return f"{self.part}.{self.name}" if self.part else self.name


def flatten(part: Any, path: str = "") -> Iterator[Setting]:
    """Yield every setting of a part, and of the parts inside it.

    Args:
      part: an instance of a dataclass, such as an experiment.
      path: the place of the part, such as "model.network"; "" for a whole experiment.
    """
    for field in dataclasses.fields(part):
        if not field.init:
            continue
        value, name = getattr(part, field.name), field.name
        plain_value, default = _replace_parts(value), _replace_parts(_find_default(field))
        is_required = default is dataclasses.MISSING
        yield Setting(
            path,
            type(part).__name__,
            name,
            _write_value(plain_value),
            None if is_required else _write_value(default),
            canonical.canonical_text(plain_value),
            None if is_required else canonical.canonical_text(default),
        )
        inner = f"{path}.{name}" if path else name
        for place, inner_part in _walk_parts(value, inner):
            yield from flatten(inner_part, place)


def compare(experiments: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return {setting: {run: value}} for the settings in which runs differ.

    If some runs lack a part, only the part's settings with values other than the defaults are
    returned. Different values have different texts. The texts of values may be long; `cut_apart`
    shortens long texts.

    Args:
      experiments: {run: its experiment}.
    """
    settings_by_run = {run: {s.path: s for s in flatten(part)} for run, part in experiments.items()}
    rows = {}
    for path in dict.fromkeys(path for by_run in settings_by_run.values() for path in by_run):
        by_run = {
            run: settings[path] for run, settings in settings_by_run.items() if path in settings
        }
        if _is_difference(by_run, len(settings_by_run)):
            rows[path] = _write_apart(by_run, list(settings_by_run))
    return rows


def _is_difference(by_run: Mapping[str, Setting], num_runs: int) -> bool:
    """Return True if runs differ in a setting; some runs may lack the setting."""
    if len(by_run) < num_runs:
        return not all(setting.is_default for setting in by_run.values())
    return len({setting.meaning for setting in by_run.values()}) > 1


def _write_apart(by_run: Mapping[str, Setting], runs: Sequence[str]) -> dict[str, str]:
    """Write the value of a setting in each run, with different texts for different values.

    The text of a value is its `repr` in the first run that has this value, so equal values get
    equal texts. If different values have the same `repr`, such as long arrays, the text of each
    value is its `Setting.meaning`.
    """
    meanings = {run: by_run[run].meaning if run in by_run else None for run in runs}
    texts: dict[str | None, str] = {None: ABSENT}
    for setting in by_run.values():
        texts.setdefault(setting.meaning, setting.value)
    if len(set(texts.values())) < len(texts):
        texts = {meaning: ABSENT if meaning is None else meaning for meaning in texts}
    return {run: checks.mask(texts[meaning]) for run, meaning in meanings.items()}


def cut(text: str, most: int = _LONGEST) -> str:
    """Shorten a text to at most `most` characters, with three dots in place of its middle."""
    if len(text) <= most:
        return text
    end = most // 6
    return f"{text[: most - end - 5]} ... {text[-end:]}"


def cut_apart(values: Mapping[str, str], most: int = _LONGEST) -> dict[str, str]:
    """Shorten the values of a setting, so that different values still have different texts.

    Args:
      values: {run: value}.
      most: the largest number of characters of a shortened text.

    Returns:
      {run: text}. If the texts of different values would be equal, each text ends with a checksum
      of its value, such as " #0a1b2c3d".
    """
    cuts = {text: cut(text, most) for text in values.values()}
    texts = list(cuts.values())
    return {
        run: cuts[text] if texts.count(cuts[text]) == 1 else _mark_text(text, most)
        for run, text in values.items()
    }


def _mark_text(text: str, max_length: int) -> str:
    # The appended checksum takes ten characters: a space, the # and eight digits.
    return f"{cut(text, max_length - 10)} #{zlib.crc32(text.encode(errors='replace')):08x}"


def group_by_seed(experiments: Mapping[str, Any]) -> list[list[str]]:
    """Group the names of runs that differ only in `Run.seed`.

    Args:
      experiments: {run: its experiment}.

    Returns:
      A list of names for each group; groups and names have the order of `experiments`.
    """
    groups: dict[tuple, list[str]] = {}
    for run, part in experiments.items():
        key = tuple((s.path, s.meaning) for s in flatten(part) if s.path != SEED)
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _walk_parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, part) for a value that is a part, or for all parts in a list or map."""
    if checks.is_part(value):
        yield path, value
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _walk_parts(item, f"{path}[{getattr(item, 'name', None) or number}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk_parts(item, f"{path}[{key}]")


def _find_default(field: Any) -> Any:
    """Return the default of a field; MISSING if the field is required."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


class _Kind:
    """Stands for a part in the value of a setting; the part's settings are listed separately."""

    def __init__(self, part: Any):
        self._text = f"{type(part).__name__}()"

    def __repr__(self) -> str:
        return self._text


def _replace_parts(value: Any) -> Any:
    """Replace each part in a value, such as a network or a head, by its class name."""
    if checks.is_part(value):
        return _Kind(value)
    if isinstance(value, list | tuple) and any(map(checks.is_part, value)):
        return [_replace_parts(item) for item in value]
    if isinstance(value, Mapping) and any(map(checks.is_part, value.values())):
        return {key: _replace_parts(item) for key, item in value.items()}
    return value


def _write_value(value: Any) -> str:
    """Return the `repr` of a value, without addresses of objects and without passwords."""
    return checks.mask(_ADDRESS.sub("", repr(value)))
