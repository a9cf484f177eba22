"""Where the examples of a batch lie in a tensor.

layout = layouts.along("", batch_size, axis=1, dims=[steps, batch_size, units])
layout.reshaped([None, units])                # [T B, D]: all examples, T times one after the other

A reshape leaves the entries in order. So the number of entries before and after the examples
decides where they lie, never the sizes of single axes, of which one may equal B by chance.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from mtl.example_gradients import sizes


@dataclasses.dataclass(frozen=True)
class Layout:
    """Entry `(o * count + b) * inner + i` of an axis belongs to b.

    Attributes:
      owner: what b counts: "" of examples, else the values of a list, by the name of its splits.
      count: how many there are.
      axis: along which they lie.
      outer: how many o there are.
      inner: how many i.
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
        """How many times all examples come one after the other."""
        return sizes.product([*self.dims[: self.axis], self.outer])

    @property
    def after(self) -> sizes.Size:
        """How many entries an example has at once."""
        return sizes.product([self.inner, *self.dims[self.axis + 1 :]])

    @property
    def key(self) -> tuple:
        """What two tensors share whose entries can be combined one by one."""
        return self.owner, self.outer, self.inner

    def at(
        self,
        axis: int,
        dims: Sequence[sizes.Size],
        outer: sizes.Size | None = None,
        inner: sizes.Size | None = None,
    ) -> "Layout":
        """Return the same examples along another axis, of a tensor of these sizes."""
        moved = dataclasses.replace(
            self, axis=axis, outer=outer or self.outer, inner=inner or self.inner
        )
        own = moved.outer * moved.count * moved.inner
        return dataclasses.replace(moved, dims=(*dims[:axis], own, *dims[axis + 1 :]))

    def reshaped(self, dims: sizes.Known) -> "Layout | None":
        """Return the same entries in the same order; None unless examples lie along one axis."""
        for axis in range(len(dims)):
            first, last = sizes.all_known(dims[:axis]), sizes.all_known(dims[axis + 1 :])
            if first is not None and last is not None:
                outer = self.before.divide_by(sizes.product(first))
                inner = self.after.divide_by(sizes.product(last))
                if outer and inner:
                    own = [*first, sizes.ONE, *last]  # `at` knows the one along which they lie.
                    return self.at(axis, own, outer=outer, inner=inner)
        return None


TOTAL = "a sum over examples"
"""Of what each of them made with variables."""
EVEN = "draws or equal entries, alike wherever examples lie"
DATA = "data of any examples"
"""Nothing that comes of variables; as a factor of a TOTAL it is a constant."""
UNKNOWN = "not known"

State = Layout | str | None
"""Of a tensor; None if it is the same whatever the batch is."""


def unknown(tensor: tf.Tensor, axis: int) -> sizes.Size:
    """Return the size of an axis of which nothing is known."""
    return sizes.Size(1, (f"{tensor.name}[{axis}]",))


def own_dims(tensor: tf.Tensor) -> list[sizes.Size]:
    """Return static sizes, and unknown ones for the others."""
    return [unknown(tensor, n) if d is None else sizes.Size(d) for n, d in enumerate(tensor.shape)]


def along(owner: str, count: sizes.Size, axis: int, dims: Sequence[sizes.Size]) -> Layout:
    """Return the layout of a tensor with one entry of each example, or value, along an axis."""
    return Layout(owner, count, axis, sizes.ONE, sizes.ONE, ()).at(axis, dims)
