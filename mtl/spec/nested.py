"""Values of one field as Python and JSON hold them: alone, in a list, or in lists as its shape is.

nested.flatten(field, [[1, 2], [3, 4]])           # [1, 2, 3, 4] of a field of shape (2, 2)
"""

import itertools
import re
import reprlib
from collections.abc import Sequence
from typing import Any

from mtl.spec import fields

# What separates the values of a list in a CSV file.
_DELIMITER = "|"
_AS_PYTHON = re.compile(r"""\s*\[\s*(?:(['"]).*\1\s*,?\s*)?\]\s*""", re.DOTALL)


def is_written_list(text: str) -> bool:
    """Return whether a text looks like a list as Python or JSON write it, such as ['a', 'b']."""
    return _AS_PYTHON.fullmatch(text) is not None


def require_no_list(field: fields.Field, value: Any) -> None:
    """Fail if one text stands in the place of a list of texts, and looks like several.

    Raises:
      ValueError: what is wrong, to follow the field's name.
    """
    if not (field.is_ragged and field.dtype == "string" and isinstance(value, str)):
        return
    if _DELIMITER in value or is_written_list(value):
        fix = '["a", "b"]'
        raise ValueError(
            f"must be a list of texts, such as {fix}, got {reprlib.repr(value)}, one text"
        )


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
        value = list(itertools.chain.from_iterable(value))
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
