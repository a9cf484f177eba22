"""Masks choose the entries of a variable that train; see `freezing.Freezing.entries`.

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
    """Trains all entries except those that are exactly 0: a pruned network stays as sparse."""

    def __call__(self, weights: tf.Tensor, name: str) -> tf.Tensor:
        """Return a bool mask, in a shape that broadcasts to the shape of the weights."""
        del name
        return tf.not_equal(weights, 0)


@checks.dataclass
class Rows:
    """Trains some rows, or columns along another axis, such as the rows of new classes or tokens.

    Attributes:
      rows: the numbers of the rows, from 0.
      axis: the axis of the rows; -1, the last, holds the classes of a head.
    """

    rows: Annotated[Sequence[checks.Natural], checks.Filled("hold a row")]
    axis: int = 0

    def __call__(self, weights: tf.Tensor, name: str) -> tf.Tensor:
        """Return a bool mask, in a shape that broadcasts to the shape of the weights.

        Raises:
          UserError: the variable lacks the axis or a row.
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
    """A mask of zeros and ones from a file that `numpy.save` wrote.

    Attributes:
      path: the file; the array's shape broadcasts to the variable's. Entries other than 0 train.
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
        # `numpy.savez` writes several arrays, which `numpy.load` returns in another class.
        is_array = isinstance(array, np.ndarray) and array.dtype.kind in "biuf"
        rule = "hold one array of numbers, as numpy.save writes it"
        checks.require(is_array, "FromFile.path", rule, self.path)
        return array != 0

    def __call__(self, weights: tf.Tensor, name: str) -> tf.Tensor:
        """Return a bool mask, in a shape that broadcasts to the shape of the weights.

        Raises:
          UserError: the shapes do not fit.
        """
        shape = tuple(weights.shape)
        try:
            fits = np.broadcast_shapes(self._mask.shape, shape) == shape
        except ValueError:
            fits = False
        rule = f"broadcast to the shape of {name!r}, {shape}"
        checks.require(fits, f"the mask in {self.path}", rule, self._mask.shape)
        return tf.constant(self._mask)
