"""Layouts, which say which entries of a tensor belong to which example of the batch.

layout = layouts.along("", batch_size, axis=1, dims=[steps, batch_size, units])
layout.reshaped([None, units])                # [T B, D]: T times all B examples

A reshape keeps the order of entries, so the numbers of entries before and after the axis of the
examples determine the layout of the reshaped tensor. An axis whose size is the number of examples
need not be the axis of the examples, because another axis may have the same size by chance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mtl.deferred import tf
from mtl.example_gradients import sizes


@dataclasses.dataclass(frozen=True)
class Layout:
    """A layout in which entry `(o * count + b) * inner + i` of an axis belongs to example b.

    Attributes:
      owner: "" if b counts examples; if b counts the values of a ragged tensor, the name of its row
        splits.
      count: the number of examples, or of values of the ragged tensor.
      axis: the axis of the examples or values.
      outer: the number of values of the index o, which counts repetitions of the whole batch.
      inner: the number of values of the index i, which counts the entries of one example.
      dims: the sizes of all axes.
    """

    owner: str
    count: sizes.Size
    axis: int
    outer: sizes.Size
    inner: sizes.Size
    dims: tuple[sizes.Size, ...]

    @property
    def before(self) -> sizes.Size:
        """The number of times that the tensor repeats the whole batch, such as T for [T, B, D]."""
        return sizes.product([*self.dims[: self.axis], self.outer])

    @property
    def after(self) -> sizes.Size:
        """The number of consecutive entries that belong to one example, such as D for [T, B, D]."""
        return sizes.product([self.inner, *self.dims[self.axis + 1 :]])

    @property
    def key(self) -> tuple:
        """The fields of the layout that must be the same for all inputs of an elementwise op."""
        return self.owner, self.outer, self.inner

    def at(
        self,
        axis: int,
        dims: Sequence[sizes.Size],
        outer: sizes.Size | None = None,
        inner: sizes.Size | None = None,
    ) -> Layout:
        """Return the layout of another tensor that has the same examples along a given axis.

        Args:
          axis: the axis of the examples.
          dims: the sizes of all axes; the size at `axis` is ignored.
          outer: the new `Layout.outer`; by default, it does not change.
          inner: the new `Layout.inner`; by default, it does not change.
        """
        layout = dataclasses.replace(
            self, axis=axis, outer=outer or self.outer, inner=inner or self.inner
        )
        # The size of the axis follows from the layout, not from `dims`.
        size = layout.outer * layout.count * layout.inner
        return dataclasses.replace(layout, dims=(*dims[:axis], size, *dims[axis + 1 :]))

    def reshaped(self, dims: sizes.Known) -> Layout | None:
        """Return the layout after a reshape.

        Args:
          dims: the sizes of all axes after the reshape, with None for unknown sizes.

        Returns:
          The layout of the reshaped tensor; None if the sizes do not prove that the examples are
          along a single axis.
        """
        for axis in range(len(dims)):
            first, last = sizes.all_known(dims[:axis]), sizes.all_known(dims[axis + 1 :])
            if first is not None and last is not None:
                # Axes before the axis of examples count some of the repetitions of the batch; the
                # other repetitions are within the axis of examples.
                outer = self.before.divide_by(sizes.product(first))
                inner = self.after.divide_by(sizes.product(last))
                if outer and inner:
                    axis_sizes = [*first, sizes.ONE, *last]  # `at` computes the size at `axis`.
                    return self.at(axis, axis_sizes, outer=outer, inner=inner)
        return None


TOTAL = "a sum over examples"
"""The state of a tensor that is a sum over examples, of values that depend on variables."""
EVEN = "draws or equal entries, alike wherever examples lie"
DATA = "data of any examples"
"""A `State`: the tensor does not depend on variables; products with a `TOTAL` are allowed."""
UNKNOWN = "not known"

State = Layout | str | None
"""The state of a tensor; None if the tensor does not depend on the batch."""


def unknown(tensor: tf.Tensor, axis: int) -> sizes.Size:
    """Return a symbol for the unknown size of an axis."""
    return sizes.Size(1, (f"{tensor.name}[{axis}]",))


def own_dims(tensor: tf.Tensor) -> list[sizes.Size]:
    """Return the static sizes of all axes, with symbols for unknown sizes."""
    return [unknown(tensor, n) if d is None else sizes.Size(d) for n, d in enumerate(tensor.shape)]


def along(owner: str, count: sizes.Size, axis: int, dims: Sequence[sizes.Size]) -> Layout:
    """Return the layout of a tensor with one entry of each example along an axis.

    Args:
      owner: "" if the entries belong to examples; the name of the row splits if they are values of
        a ragged tensor.
      count: the number of examples, or of values of the ragged tensor.
      axis: the axis of the examples.
      dims: the sizes of all axes; the size at `axis` is ignored.
    """
    return Layout(owner, count, axis, sizes.ONE, sizes.ONE, ()).at(axis, dims)
