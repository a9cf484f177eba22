"""Values of one field as Python and JSON hold them: alone, in a list, or in lists as its shape is.

nested.flatten(field, [[1, 2], [3, 4]])           # [1, 2, 3, 4] of a field of shape (2, 2)
"""

import reprlib
from collections.abc import Sequence
from typing import Any

from mtl.spec import fields


def flatten(field: fields.Field, value: Any) -> list[Any]:
    """Return the values of a field, which come alone, in a list, or in lists as its shape says."""
    if field.is_nested:
        return _join_items(value)
    if not isinstance(value, list):
        return [value]
    if not any(isinstance(item, list) for item in value):
        return value
    if len(field.shape) < 2 or not _has_shape(value, field.shape):
        shape = f", or lists as in its shape {field.shape}" if len(field.shape) > 1 else ""
        raise ValueError(f"must be a list without lists{shape}, got {reprlib.repr(value)}")
    for _ in field.shape[1:]:
        value = [item for part in value for item in part]
    return value


def _join_items(value: Any) -> list[Any]:
    """Return the values of all items of a list of lists."""
    good = isinstance(value, list) and all(isinstance(item, list) for item in value)
    values = [part for item in value for part in item] if good else []
    if not good or any(isinstance(part, list) for part in values):
        raise ValueError(f"must be a list of lists, one for each item, got {reprlib.repr(value)}")
    return values


def _has_shape(value: Any, shape: Sequence[int | None]) -> bool:
    if not shape:
        return not isinstance(value, list)
    fits = isinstance(value, list) and len(value) == shape[0]
    return fits and all(_has_shape(item, shape[1:]) for item in value)
