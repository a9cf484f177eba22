"""Writes settings as text, so that settings with the same meaning have the same text.

settings.canonical_text({"b": 1.0, "a": [2]}) == settings.canonical_text({"a": (2,), "b": 1})
"""

import dataclasses
import re
import zlib
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from mtl import checks

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def canonical_text(value: Any) -> str:
    """Return a text that is the same for all settings with the same meaning.

    The order of keys in a map and of values in a set does not change the text. Lists and tuples
    with the same items have the same text; 1 and 1.0 have the same text, too. True and 1 have
    different texts; a text and its bytes have different texts, too. An object that is not a
    dataclass gives its `repr` without the address in memory.
    """
    match value:
        case np.generic() if not isinstance(value.item(), np.generic):
            return canonical_text(value.item())
        case np.ndarray():
            return _write_array(value)
        # Match bools before numbers: a bool is an int in Python, but True must differ from 1.
        case bool() | None | str() | bytes():
            return repr(value)
        case float() if value.is_integer():
            return repr(int(value))
        case Mapping():
            return _join_parts(
                "{}",
                sorted(f"{canonical_text(key)}: {canonical_text(value[key])}" for key in value),
            )
        case list() | tuple():
            return _join_parts("[]", map(canonical_text, value))
        case Set():
            return _join_parts("<>", sorted(map(canonical_text, value)))
    if checks.is_part(value):
        return _write_part(value)
    # Leave out the address of an object, which differs between processes.
    return _ADDRESS.sub("", repr(value))


def _write_part(part: Any) -> str:
    values = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.repr}
    for field in dataclasses.fields(part):
        # Records of old versions lack a setting that was added later, so leave it out if it has its
        # earlier default. "written" marks a setting that records of old versions contain. Compare
        # only fields with an earlier default, because comparing arrays gives no bool.
        is_lacking = "earlier" in field.metadata and "written" not in field.metadata
        if is_lacking and values.get(field.name) == field.metadata["earlier"]:
            del values[field.name]
    parts = [f"{name}={canonical_text(value)}" for name, value in values.items()]
    return type(part).__qualname__ + _join_parts("()", parts)


def compute_digest(value: Any) -> str:
    """Return eight hexadecimal digits that differ for settings with different meanings."""
    return _sum_text(canonical_text(value))


def digest_of_repr(value: Any) -> str:
    """Return the digest that old versions computed, from the `repr` of the settings."""
    return _sum_text(_ADDRESS.sub("", repr(value)))


def _sum_text(content: str) -> str:
    """Return the CRC-32 checksum of a text as eight hexadecimal digits."""
    return f"{zlib.crc32(content.encode()):08x}"


def _join_parts(brackets: str, parts: Iterable[str]) -> str:
    return f"{brackets[0]}{', '.join(parts)}{brackets[1]}"


def _write_array(array: np.ndarray) -> str:
    """Return a text with a checksum of all values of an array; `repr` shows only some values."""
    if array.dtype.hasobject:
        return canonical_text(array.tolist())
    content = zlib.crc32(np.ascontiguousarray(array).tobytes())
    return f"array({array.dtype}, {array.shape}, {content:08x})"
