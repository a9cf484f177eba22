"""Converts arrays of numbers to the values of a field.

number_arrays.read_numbers(field, np.array([1.0, 2.0]))         # int64 of a field of integers
"""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np

from mtl import spec as spec_lib
from mtl.spec import literals

_DEFAULTS = "Set Spec.defaults, or Spec.type_defaults for all of a type"


class BadValueError(ValueError):
    """An error about a value that does not suit its field, with the row number."""

    def __init__(self, row: int, problem: str):
        super().__init__(problem)
        self.row = row


def read_numbers(field: spec_lib.Field, values: np.ndarray) -> np.ndarray:
    """Convert numbers to the values of a field; in a field of one value, NaN means no value.

    Args:
      field: a field of fixed length.
      values: [N] for a field of one value, else [N, D] or [N, *shape].

    Returns:
      An array [N, D] of the field's type; [N] for a field of one value.

    Raises:
      ValueError: a number does not suit the field.
    """
    flat = values.reshape(len(values), field.size)
    may_lack = values.dtype.kind == "f" and values.ndim == 1
    absent = np.isnan(values) if may_lack else np.zeros(len(values), bool)
    fits, numbers = convert(field.dtype, flat)
    is_bad = ~(fits.all(axis=1) | absent)
    if is_bad.any():
        row = int(is_bad.argmax())
        raise BadValueError(row, describe_problem(field, values[row].tolist()))
    if absent.any():
        numbers[absent] = find_default(field, int(absent.argmax()))
    return numbers if field.shape else numbers[:, 0]


def convert(dtype: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Convert numbers to the type of a field.

    Args:
      dtype: the type of the field.
      values: a NumPy array of numbers, of any shape.

    Returns:
      A mask of the numbers that the type can hold, and the converted numbers, both in the shape of
      `values`.
    """
    if dtype == "string":
        return np.zeros(values.shape, bool), np.full(values.shape, "", object)
    if dtype == "float32":
        with np.errstate(over="ignore"):
            numbers = values.astype(np.float32)
        return np.isinf(numbers) <= np.isinf(values), numbers
    low, high = literals.RANGES[dtype]
    if values.dtype.kind == "f":
        # The check uses high + 1, because float(high) of int64 rounds up to a number out of range.
        values = values.astype(np.float64)  # float16 cannot hold `low` and `high`.
        fits = (values == np.floor(values)) & (values >= low) & (values < float(high + 1))
        return fits, np.where(fits, values, 0).astype(np.int64)
    fits = (values <= high) & (True if values.dtype.kind in "bu" else values >= low)
    return fits, values.astype(np.int64)


def find_default(field: spec_lib.Field, row: int) -> Any:
    """Return the default that replaces an absent value.

    Args:
      field: the field that lacks a value.
      row: the number of the row, which the error contains.

    Returns:
      The default of the field; "" for a field of a single text without a default.

    Raises:
      BadValueError: the field has no default.
    """
    if field.default is not None:
        return field.default
    if field.dtype == "string" and not field.shape:
        return ""  # An empty cell of a CSV file is also read as an empty text.
    raise BadValueError(row, f"{spec_lib.AbsentError()}. {_DEFAULTS}")


def describe_problem(field: spec_lib.Field, value: Any) -> str:
    """Return the rest of an error message that starts with the name of the field.

    Args:
      field: the field that has the bad value.
      value: the value that does not suit the type of the field.

    Returns:
      Text such as "must be int64, got 1.5", without a full stop.
    """
    fix = ""
    if field.dtype == "string":
        fix = ". Read the column as text: 7 may have been 07 or 7.0"
    return f"must be {field.dtype}, got {reprlib.repr(value)}{fix}"
