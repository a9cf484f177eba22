"""Computes the sizes of axes while a graph is built, as products of numbers and symbols.

batch, steps = sizes.Size(1, ("batch",)), sizes.Size(1, ("steps",))
(batch * steps * sizes.Size(3)).divide_by(steps)     # 3 batch
sizes.infer_sizes(shape, dims_of)                    # the entries of a shape: [3 batch, None]
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from mtl.deferred import tf


@dataclasses.dataclass(frozen=True)
class Size:
    """A size of an axis: a number times symbols that stand for unknown sizes.

    Attributes:
      number: the number, at least 0.
      unknown: the sorted names of the symbols; a name may occur several times.
    """

    number: int = 1
    unknown: tuple[str, ...] = ()

    def __mul__(self, other: Size) -> Size:
        return Size(self.number * other.number, tuple(sorted(self.unknown + other.unknown)))

    def divide_by(self, other: Size) -> Size | None:
        """Return the quotient of two sizes; None if the quotient may not be an integer.

        Args:
          other: the divisor. The quotient is None unless the dividend contains each symbol of the
            divisor.
        """
        remaining = list(self.unknown)
        # If one of the two sizes is 0, their quotient is not unique, or does not exist.
        if 0 in (self.number, other.number) or self.number % other.number:
            return None
        for name in other.unknown:
            if name not in remaining:
                return None
            remaining.remove(name)
        return Size(self.number // other.number, tuple(remaining))


ONE = Size()

Known = list[Size | None]
"""The entries of a tensor of sizes, with None for unknown sizes."""

DimsOf = Callable[["tf.Tensor"], Sequence[Size | None] | None]
"""A function from a tensor to the sizes of its axes; None if the rank is unknown."""


_T = TypeVar("_T")


def all_known(values: Iterable[_T | None]) -> list[_T] | None:
    """Return the values as a list; None if any of the values is None."""
    present: list[_T] = []
    for value in values:
        if value is None:
            return None
        present.append(value)
    return present


def product(sizes: Iterable[Size]) -> Size:
    """Return the product of all sizes."""
    return functools.reduce(operator.mul, sizes, ONE)


def infer_sizes(
    tensor: tf.Tensor, dims_of: DimsOf, static: Callable[[tf.Tensor], Any] | None = None
) -> Known | None:
    """Infer the entries of a scalar or a vector of sizes.

    Args:
      tensor: a tensor of sizes.
      dims_of: a function that returns the sizes of the axes of a tensor.
      static: a function that returns the value of a constant tensor, else None; by default
        `tf.get_static_value`.

    Returns:
      The entries of the tensor as sizes; None if they cannot be inferred. An entry below 0, such as
      the -1 in the shape of a reshape, becomes None.
    """
    value = (static or tf.get_static_value)(tensor)
    if value is not None:
        if value.ndim > 1 or value.dtype.kind not in "iu":
            return None
        return [Size(int(n)) if n >= 0 else None for n in value.reshape(-1)]
    make = _MAKERS.get(tensor.op.type)
    return (
        make(tensor.op, lambda part: infer_sizes(part, dims_of, static), dims_of) if make else None
    )


def is_made(op: tf.Operation) -> bool:
    """Return True if `infer_sizes` has a rule for the type of an op."""
    return op.type in _MAKERS


_Of = Callable[["tf.Tensor"], Known | None]


def _read_shape(op: tf.Operation, _: _Of, dims_of: DimsOf) -> Known | None:
    dims = dims_of(op.inputs[0])
    return None if dims is None else list(dims)


def _pass_entries(op: tf.Operation, entries: _Of, _: DimsOf) -> Known | None:
    is_flat = op.outputs[0].shape.rank in (0, 1)
    return entries(op.inputs[0]) if is_flat and op.outputs[0].dtype.is_integer else None


def _join_entries(op: tf.Operation, entries: _Of, _: DimsOf) -> Known | None:
    values = op.inputs if op.type == "Pack" else op.inputs[:-1]
    is_flat = all(value.shape.rank == (0 if op.type == "Pack" else 1) for value in values)
    parts = all_known(entries(value) for value in values) if is_flat else None
    return None if parts is None else [size for part in parts for size in part]


def _slice_entries(op: tf.Operation, entries: _Of, _: DimsOf) -> Known | None:
    values, bounds = entries(op.inputs[0]), _read_bounds(op)
    if values is None or bounds is None:
        return None
    begin, end, stride = bounds
    if op.get_attr("shrink_axis_mask"):
        return [values[begin]] if -len(values) <= begin < len(values) else None
    first = None if op.get_attr("begin_mask") else begin
    return values[first : None if op.get_attr("end_mask") else end : stride]


def _read_bounds(op: tf.Operation) -> list[int] | None:
    """Return begin, end and stride of a slice along a single axis; None if unknown."""
    bounds = [tf.get_static_value(operand) for operand in op.inputs[1:]]
    is_known = all(bound is not None and bound.size == 1 for bound in bounds)
    if not is_known or op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask"):
        return None
    return [int(bound[0]) for bound in bounds]


def _gather_entries(op: tf.Operation, entries: _Of, _: DimsOf) -> Known | None:
    values, places = entries(op.inputs[0]), tf.get_static_value(op.inputs[1])
    if values is None or places is None or places.ndim > 1 or op.get_attr("batch_dims"):
        return None
    return [values[place] for place in places.reshape(-1)]


def _multiply_entries(op: tf.Operation, entries: _Of, _: DimsOf) -> Known | None:
    """Multiply the entries of a vector, or two scalars."""
    values = op.inputs[:1] if op.type == "Prod" else op.inputs
    factors = all_known(entries(value) for value in values)
    if factors is None or op.outputs[0].shape.rank != 0:
        return None
    flat = all_known(size for part in factors for size in part)
    return [None if flat is None else product(flat)]


_MAKERS: dict[str, Callable[[tf.Operation, _Of, DimsOf], Known | None]] = {
    "Shape": _read_shape,
    "Identity": _pass_entries,
    "Cast": _pass_entries,
    "ExpandDims": _pass_entries,
    "Reshape": _pass_entries,
    "Squeeze": _pass_entries,
    "Pack": _join_entries,
    "ConcatV2": _join_entries,
    "StridedSlice": _slice_entries,
    "GatherV2": _gather_entries,
    "Prod": _multiply_entries,
    "Mul": _multiply_entries,
}
