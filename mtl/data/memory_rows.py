"""The values of many rows in memory, from which a graph takes any rows fast.

layout = memory_rows.Layout(spec.fields)
rows = memory_rows.Rows(layout, {"age": [N], "words": N lists})
values = memory_rows.take(layout, lambda split: rows, splits, numbers)   # {field: [B, ...]}

A row of a matrix costs one access to memory, and a row of 40 arrays costs 40. So all fields of a
type lie in one matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from mtl import spec as spec_lib
from mtl.deferred import tf

_KINDS = {
    "float32": np.float32,
    "int64": np.int64,
    "uint8": np.uint8,
    "bool": np.bool_,
    "string": object,
}


class _Place(NamedTuple):
    """The columns of a field in the matrix of its type."""

    start: int
    stop: int
    shape: tuple[int, ...]


class Layout:
    """The places of fields: a matrix for each type, and an array of values for each list.

    Args:
      fields: {name: field}.
    """

    def __init__(self, fields: Mapping[str, spec_lib.Field]):
        self.lists = {name: field.dtype for name, field in fields.items() if field.is_ragged}
        self.places: dict[str, dict[str, _Place]] = {}
        for name, field in fields.items():
            if not field.is_ragged:
                own = self.places.setdefault(field.dtype, {})
                start = next(reversed(own.values())).stop if own else 0
                shape = cast(tuple[int, ...], field.shape)
                own[name] = _Place(start, start + math.prod(shape), shape)

    @property
    def kinds(self) -> list[str]:
        """The types of the arrays that `Rows.take` returns."""
        lists = [kind for dtype in self.lists.values() for kind in (dtype, "int64")]
        return [*self.places, *lists]

    def unpack(self, arrays: Sequence[tf.Tensor], size: int | None) -> dict[str, Any]:
        """Return {field: [B, ...]} of the arrays of `Rows.take`."""
        found: dict[str, Any] = {}
        parts = iter(arrays)
        for places in self.places.values():
            matrix = next(parts)
            matrix.set_shape([size, next(reversed(places.values())).stop])
            for name, place in places.items():
                values = matrix[:, place.start : place.stop]
                found[name] = tf.reshape(values, [-1 if size is None else size, *place.shape])
        for name in self.lists:
            values, splits = next(parts), next(parts)
            values.set_shape([None])
            splits.set_shape([None if size is None else size + 1])
            found[name] = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        return found


class Rows:
    """The values of N rows.

    Args:
      layout: of the fields.
      values: {field: [N, ...], or N lists}, of the types of the fields.
    """

    def __init__(self, layout: Layout, values: Mapping[str, Any]):
        self._matrices = []
        for dtype, places in layout.places.items():
            own = [_flatten(values[name], dtype, place) for name, place in places.items()]
            self._matrices.append(np.ascontiguousarray(np.concatenate(own, axis=1)))
        self._lists = [_join(values[name], dtype) for name, dtype in layout.lists.items()]

    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the values of some rows: a matrix for each type, values and splits of lists."""
        found = [matrix[rows] for matrix in self._matrices]
        for values, splits in self._lists:
            starts, lengths = splits[rows], splits[rows + 1] - splits[rows]
            ends = np.concatenate([[0], np.cumsum(lengths)])
            inner = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
            found += [values[np.repeat(starts, lengths) + inner], ends]
        return found


def take(
    layout: Layout, load: Callable[[Any], Rows], split: tf.Tensor, rows: tf.Tensor
) -> dict[str, Any]:
    """Return {field: [B, ...]} of rows, int64 [B], of the split with a number, int64 [B].

    Args:
      layout: the fields.
      load: returns the rows of a split, given its number; it may be called by any thread.
      split: the number of the split, the same for all rows of a batch.
      rows: the numbers of the rows.
    """

    def read(splits: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
        return load(int(splits[0]) if len(splits) else 0).take(numbers)

    taken = tf.numpy_function(read, [split, rows], layout.kinds, stateful=False)
    return layout.unpack(taken, rows.shape[0])


def _flatten(values: Any, dtype: str, place: _Place) -> np.ndarray:
    """Return the values of a field as a matrix [N, size]."""
    if dtype == "string":
        values = _encode(np.asarray(values, object))
    return np.asarray(values, _KINDS[dtype]).reshape(len(values), place.stop - place.start)


def _join(values: Sequence[Any], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of all lists in one array, and where each list begins and ends."""
    splits = np.concatenate([[0], np.cumsum([len(own) for own in values], dtype=np.int64)])
    if not splits[-1]:
        return np.zeros([0], _KINDS[dtype]), splits
    flat = np.concatenate([np.asarray(own, _KINDS[dtype]) for own in values if len(own)])
    return (_encode(flat) if dtype == "string" else flat), splits


def _encode(texts: np.ndarray) -> np.ndarray:
    """Return texts as bytes; TensorFlow would encode them anew for every batch."""
    encoded = np.empty(texts.shape, object)
    encoded.ravel()[:] = [t.encode() if isinstance(t, str) else t for t in texts.ravel()]
    return encoded
