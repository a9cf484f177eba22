"""Flattens values of fields in Python or JSON: scalars, lists, and lists of lists.

nested.flatten(field, [[1, 2], [3, 4]])           # [1, 2, 3, 4] of a field of shape (2, 2)
"""

import itertools
import re
import reprlib
from collections.abc import Sequence
from typing import Any

from mtl.spec import fields

# The character between the values of a list in a CSV file.
_DELIMITER = "|"
_AS_PYTHON = re.compile(r"""\s*\[\s*(?:(['"]).*\1\s*,?\s*)?\]\s*""", re.DOTALL)


def is_written_list(text: str) -> bool:
    """Return True if a text looks like a list in Python or JSON, such as ['a', 'b']."""
    return _AS_PYTHON.fullmatch(text) is not None


def require_no_list(field: fields.Field, value: Any, delimiter: str = _DELIMITER) -> None:
    """Fail if a field for a list of texts gets a single text that looks like a list.

    Args:
      field: the field that gets the value.
      value: the value of the field.
      delimiter: the character between the values of a list in a CSV file.

    Raises:
      ValueError: the text looks like a list. The caller puts the name of the field in front of the
        message.
    """
    if not (field.is_ragged and field.dtype == "string" and isinstance(value, str)):
        return
    if delimiter in value or is_written_list(value):
        fix = '["a", "b"]'
        raise ValueError(
            f"must be a list of texts, such as {fix}, got {reprlib.repr(value)}, one text"
        )


def flatten(field: fields.Field, value: Any) -> list[Any]:
    """Flatten the value of a field to a list.

    Args:
      field: the field that has the value.
      value: a scalar, a list, or nested lists with the shape of the field.

    Raises:
      ValueError: the nested lists have another shape.
    """
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
    """Concatenate the values of all items of a list of lists."""
    is_nested = isinstance(value, list) and all(isinstance(item, list) for item in value)
    values = [part for item in value for part in item] if is_nested else []
    if not is_nested or any(isinstance(part, list) for part in values):
        raise ValueError(f"must be a list of lists, one for each item, got {reprlib.repr(value)}")
    return values


def _has_shape(value: Any, shape: Sequence[int | None]) -> bool:
    if not shape:
        return not isinstance(value, list)
    fits = isinstance(value, list) and len(value) == shape[0]
    return fits and all(_has_shape(item, shape[1:]) for item in value)
