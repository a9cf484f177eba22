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

    The order of a map's keys or of a set does not matter. A list equals a tuple, and an integer
    equals the same float. True is not 1, and text is not bytes. For an object that is not a
    dataclass, the text is its `repr` without its address in memory.
    """
    match value:
        case np.generic() if not isinstance(value.item(), np.generic):
            return canonical_text(value.item())
        case np.ndarray():
            return _write_array(value)
        # This case comes before numbers, because a bool is an int, but True must not equal 1.
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
    # The address of an object differs from process to process.
    return _ADDRESS.sub("", repr(value))


def _write_part(part: Any) -> str:
    values = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.repr}
    for field in dataclasses.fields(part):
        # A field with its earlier default is left out, because old records lack it. Other fields
        # are not compared: an array has no truth value.
        if "earlier" in field.metadata and values.get(field.name) == field.metadata["earlier"]:
            del values[field.name]
    parts = [f"{name}={canonical_text(value)}" for name, value in values.items()]
    return type(part).__qualname__ + _join_parts("()", parts)


def compute_digest(value: Any) -> str:
    """Return eight hexadecimal digits that differ for settings with different meanings."""
    return _sum_text(canonical_text(value))


def digest_of_repr(value: Any) -> str:
    """Return the digest of old versions, which depends on the `repr` of the settings."""
    return _sum_text(_ADDRESS.sub("", repr(value)))


def _sum_text(content: str) -> str:
    """Return eight hexadecimal digits for a text."""
    return f"{zlib.crc32(content.encode()):08x}"


def _join_parts(brackets: str, parts: Iterable[str]) -> str:
    return f"{brackets[0]}{', '.join(parts)}{brackets[1]}"


def _write_array(array: np.ndarray) -> str:
    """Return a text that depends on all values of an array; `repr` shows only the ends."""
    if array.dtype.hasobject:
        return canonical_text(array.tolist())
    content = zlib.crc32(np.ascontiguousarray(array).tobytes())
    return f"array({array.dtype}, {array.shape}, {content:08x})"
