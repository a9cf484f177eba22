"""Slices of the rows: rows with a value of a field, or with a number in a range.

given = {"country": ["DE", "US"], "age": [(None, 30), (30, None)]}
[one.name for one in slices.list_slices(given)]        # ["country=DE", ..., "age=30.."]
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
    """The rows with a value of a field, or with a number in a range (from, to)."""

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
        low, high = ("" if end is None else f"{end:g}" for end in self.value)
        return f"{self.field}={low}..{high}"


def list_slices(given: Mapping[str, Sequence[Any]]) -> list[Slice]:
    """Return the slices of {field: values}, in their order."""
    return [Slice(field, value) for field, own in given.items() for value in own]


def check(where: str, given: Mapping[str, Sequence[Any]]) -> None:
    """Fail unless the slices are {field: values}."""
    checks.mapping(where, given, _RULE)
    for field, own in given.items():
        here = f"{where}[{field!r}]"
        checks.is_a(here, own, (list, tuple), "be a list of values")
        for value in own:
            checks.is_a(here, value, (str, int, float, list, tuple), _PAIR)
            if isinstance(value, (list, tuple)):
                checks.require(len(value) == 2, here, _PAIR, value)
                ends = [end for end in value if end is not None]
                checks.require(bool(ends), here, _PAIR, value)
                for end in ends:
                    checks.is_a(here, end, (int, float), _PAIR)
                checks.require(ends == sorted(set(ends)), here, "hold ascending pairs", value)
        checks.unique(here, [Slice(field, value).name for value in own])


def find_first(given: Mapping[str, Sequence[Any]], fields: types.Tensors, where: str) -> tf.Tensor:
    """Return the index of the first of S slices with each row, or S for none: int32 [B].

    Raises:
      UserError: as in `find_rows`.
    """
    rows = [find_rows(fields, one, where) for one in list_slices(given)]
    # All ranks differ, as argmax may choose any of equal ones.
    ranks = tf.range(len(rows) + 1, 0, -1)
    are_in = tf.stack([*rows, tf.ones_like(rows[0])], axis=-1)
    return tf.argmax(tf.where(are_in, ranks, 0), axis=-1, output_type=tf.int32)


def find_rows(fields: types.Tensors, one: Slice, where: str) -> tf.Tensor:
    """Return True for each row in a slice, {field: [B]} -> bool [B].

    Raises:
      UserError: the field has several values, or values of another type. The error names `where`,
        the setting with the slice.
    """
    field, value, given = one.field, one.value, fields[one.field]
    where = f"{where}[{field!r}]"
    is_single = isinstance(given, tf.Tensor) and given.shape.rank == 1
    checks.require(is_single, where, "be a field with one value per example", given.shape)
    if not one.is_range:
        held = values.as_held(given, [value], where, f"field {field!r}")
        return values.is_any(given, held)
    is_number = given.dtype.is_floating or given.dtype.is_integer
    checks.require(is_number, where, "be a field of numbers", given.dtype.name)
    low, high = value
    # Ends take the type of the field: 0.7 as float32 and 0.7 as float64 are different numbers.
    kind = given.dtype if given.dtype.is_floating else tf.float64
    numbers = tf.cast(given, kind)
    from_low = numbers >= tf.constant(-math.inf if low is None else low, kind)  # False for NaN.
    return from_low & (numbers < tf.constant(math.inf if high is None else high, kind))
