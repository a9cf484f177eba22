"""Slices: subsets of rows in which a field has a certain value, or is in a range.

given = {"country": ["DE", "US"], "age": [(None, 30), (30, None)]}
[part.name for part in slices.list_slices(given)]        # ["country=DE", ..., "age=30.."]
slices.find_first(given, features, "Binary.calibration_slices")     # [B], slice of each row
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mtl import checks, types
from mtl.deferred import tf
from mtl.heads import values

_RULE = "map fields to lists of their values"
_PAIR = "hold values, and pairs (from, to) of numbers or None"


class Slice(NamedTuple):
    """The rows in which a field has a certain value, or is a number in a range.

    Attributes:
      field: the name of the feature or label that selects the rows.
      value: the value, or a range (from, to), which includes `from` but not `to`. None is an open
        end of a range.
    """

    field: str
    value: Any

    @property
    def is_range(self) -> bool:
        """True if the slice is a range, with a lower end, an upper end or both."""
        return isinstance(self.value, (list, tuple))

    @property
    def name(self) -> str:
        """The name of the slice, such as `age=30..40`."""
        if not self.is_range:
            return f"{self.field}={self.value}"
        low, high = ("" if end is None else _show_end(end) for end in self.value)
        return f"{self.field}={low}..{high}"


def _show_end(end: float) -> str:
    """Format a number, with six digits if they are exact."""
    text = f"{end:g}"
    # Ranges of large numbers, such as seconds since 1970, need all digits for different names.
    return text if float(text) == end else repr(end)


def list_slices(given: Mapping[str, Sequence[Any]]) -> list[Slice]:
    """Return the slices of {field: values}, in the same order."""
    return [Slice(field, value) for field, field_values in given.items() for value in field_values]


def check(where: str, given: Mapping[str, Sequence[Any]]) -> None:
    """Check the slices of a setting.

    Args:
      where: the name of the setting, for error messages.
      given: {field: values or ranges (from, to)}; None is an open end of a range.

    Raises:
      UserError: a value is not a text, a number or a range, a range is not ascending, or two slices
        are equal.
    """
    checks.mapping(where, given, _RULE)
    for field, field_values in given.items():
        setting = f"{where}[{field!r}]"
        checks.is_a(setting, field_values, (list, tuple), "be a list of values")
        for value in field_values:
            checks.is_a(setting, value, (str, int, float, list, tuple), _PAIR)
            if isinstance(value, (list, tuple)):
                checks.require(len(value) == 2, setting, _PAIR, value)
                ends = [end for end in value if end is not None]
                checks.require(bool(ends), setting, _PAIR, value)
                for end in ends:
                    checks.is_a(setting, end, (int, float), _PAIR)
                checks.require(ends == sorted(set(ends)), setting, "hold ascending pairs", value)
        checks.unique(setting, [Slice(field, value).name for value in field_values])


def find_first(given: Mapping[str, Sequence[Any]], fields: types.Tensors, where: str) -> tf.Tensor:
    """Find the first slice that contains each row.

    Args:
      given: {field: values}, not empty.
      fields: {field: [B]}.
      where: the name of the setting with the slices, for error messages.

    Returns:
      int32 [B]: the index of the slice of each row, or the number of slices for rows in no slice.

    Raises:
      UserError: a slice does not suit its field, as in `find_rows`.
    """
    rows = [find_rows(fields, part, where) for part in list_slices(given)]
    # Ranks must differ, as argmax may return the index of any of several equal numbers.
    ranks = tf.range(len(rows) + 1, 0, -1)
    are_in = tf.stack([*rows, tf.ones_like(rows[0])], axis=-1)
    return tf.argmax(tf.where(are_in, ranks, 0), axis=-1, output_type=tf.int32)


def find_rows(fields: types.Tensors, one: Slice, where: str) -> tf.Tensor:
    """Find the rows that belong to a slice.

    Args:
      fields: {field: [B]}.
      one: the slice whose rows are found.
      where: the name of the setting with the slice, for error messages.

    Returns:
      A mask, True for rows of the slice, bool [B].

    Raises:
      UserError: the field has several values in a row, or has another type than the value of the
        slice.
    """
    field, value, tensor = one.field, one.value, fields[one.field]
    where = f"{where}[{field!r}]"
    is_single = isinstance(tensor, tf.Tensor) and tensor.shape.rank == 1
    checks.require(is_single, where, "be a field with one value per example", tensor.shape)
    if not one.is_range:
        converted = values.as_held(tensor, [value], where, f"field {field!r}")
        return values.is_any(tensor, converted)
    is_number = tensor.dtype.is_floating or tensor.dtype.is_integer
    checks.require(is_number, where, "be a field of numbers", tensor.dtype.name)
    low, high = value
    # Cast ends to the type of the field, as 0.7 differs between float32 and float64.
    kind = tensor.dtype if tensor.dtype.is_floating else tf.float64
    numbers = tf.cast(tensor, kind)
    from_low = numbers >= tf.constant(-math.inf if low is None else low, kind)  # NaN gives False.
    return from_low & (numbers < tf.constant(math.inf if high is None else high, kind))
