"""Masks, which choose the trained entries of a variable; see `freezing.Freezing.entries`.

freezing.Freezing.entries = {"^head/digit/": @masks.Rows(), "^network/.*/kernel$": @masks.Nonzero()}
masks.Rows.rows = [3, 7]
masks.Rows.axis = -1
"""

from __future__ import annotations

import dataclasses
import functools
import zipfile
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from mtl import checks
from mtl.deferred import tf
from mtl.files import storage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nonzero:
    """Trains all entries that are not exactly 0, so that a pruned network remains sparse."""

    def __call__(self, weights: tf.Tensor, name: str) -> tf.Tensor:
        """Return a bool mask, in a shape that broadcasts to the shape of the weights."""
        del name
        return tf.not_equal(weights, 0)


@checks.dataclass
class Rows:
    """Trains only some rows (or columns, by `axis`), such as the rows of new classes or tokens.

    Attributes:
      rows: the indices of the trained rows, from 0.
      axis: the axis of the rows. -1 is the last axis, which has the classes of a head.
    """

    rows: Annotated[Sequence[checks.Natural], checks.Filled("hold a row")]
    axis: int = 0

    def __call__(self, weights: tf.Tensor, name: str) -> tf.Tensor:
        """Return a bool mask, in a shape that broadcasts to the shape of the weights.

        Raises:
          UserError: the variable has no axis `axis`, or has fewer rows than `rows` needs.
        """
        shape = weights.shape
        fits = -shape.rank <= self.axis < shape.rank
        checks.require(fits, "Rows.axis", f"be an axis of {name!r} {shape}", self.axis)
        size = shape[self.axis]
        rule = f"be below {size}, the rows of {name!r}"
        checks.require(max(self.rows) < size, "Rows.rows", rule, max(self.rows))
        mask = np.isin(np.arange(size), self.rows)
        sizes = [1] * shape.rank
        sizes[self.axis] = size
        return tf.constant(mask.reshape(sizes))


@checks.dataclass
class FromFile:
    """Reads a mask from a file of `numpy.save`.

    Attributes:
      path: the path of the file. The array in the file must broadcast to the shape of the variable.
        Entries of the variable are trained where the array is not 0.
    """

    path: Annotated[
        str, checks.Rule("be a file of numpy.save", lambda value: storage.may_exist(value))
    ]

    @functools.cached_property
    def _mask(self) -> np.ndarray:
        try:
            with tf.io.gfile.GFile(self.path, "rb") as file:
                array = np.load(file, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile, tf.errors.OpError) as error:
            rule = f"FromFile.path must be a file of numpy.save, got {self.path!r}."
            raise checks.UserError(rule) from error
        # From a file of `numpy.savez`, which holds several arrays, `numpy.load` returns an
        # `NpzFile`, not an array.
        is_array = isinstance(array, np.ndarray) and array.dtype.kind in "biuf"
        rule = "hold one array of numbers, as numpy.save writes it"
        checks.require(is_array, "FromFile.path", rule, self.path)
        return array != 0

    def __call__(self, weights: tf.Tensor, name: str) -> tf.Tensor:
        """Return a bool mask, in a shape that broadcasts to the shape of the weights.

        Raises:
          UserError: the array does not broadcast to the shape of the variable.
        """
        shape = tuple(weights.shape)
        try:
            fits = np.broadcast_shapes(self._mask.shape, shape) == shape
        except ValueError:
            fits = False
        rule = f"broadcast to the shape of {name!r}, {shape}"
        checks.require(fits, f"the mask in {self.path}", rule, self._mask.shape)
        return tf.constant(self._mask)
