"""Stores the values of many rows in memory, so that a graph can gather batches of rows fast.

layout = memory_rows.Layout(spec.fields)
rows = memory_rows.Rows(layout, {"age": [N], "words": N lists})
values = memory_rows.take(layout, lambda split: rows, splits, numbers)   # {field: [B, ...]}

All fields of a type share one matrix: a row of a matrix takes one memory access, but a row of 40
separate arrays takes 40 accesses. A matrix of texts holds indices into the distinct texts. Copying
a text from Python to TensorFlow is slow, so a batch copies each distinct text once, and TensorFlow
repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from mtl import spec as spec_lib
from mtl.data import packed
from mtl.deferred import tf

_KINDS = {**packed.DTYPES, "string": np.int32}


class _Place(NamedTuple):
    """The columns of a field in the matrix that stores all fields of the same type."""

    start: int
    stop: int
    shape: tuple[int, ...]


class Layout:
    """The position of each field in memory: one matrix for each type, and arrays for each list.

    Args:
      fields: {name: field}.
    """

    def __init__(self, fields: Mapping[str, spec_lib.Field]):
        self.dtypes = {name: field.dtype for name, field in fields.items()}
        self.lists = {name: field.dtype for name, field in fields.items() if field.is_ragged}
        self.places: dict[str, dict[str, _Place]] = {}
        for name, field in fields.items():
            if not field.is_ragged:
                dtype_places = self.places.setdefault(field.dtype, {})
                # The next field of a type begins behind the last column of the matrix so far.
                start = next(reversed(dtype_places.values())).stop if dtype_places else 0
                shape = cast(tuple[int, ...], field.shape)
                dtype_places[name] = _Place(start, start + math.prod(shape), shape)

    @property
    def has_texts(self) -> bool:
        """True if any field holds texts."""
        return "string" in self.places or "string" in self.lists.values()

    @property
    def row_bytes(self) -> int:
        """The number of bytes of a row whose lists are all empty."""
        widths = {dtype: np.dtype(kind).itemsize for dtype, kind in _KINDS.items()}
        sizes = {
            dtype: next(reversed(places.values())).stop for dtype, places in self.places.items()
        }
        return sum(widths[dtype] * size for dtype, size in sizes.items()) + 8 * len(self.lists)

    @property
    def are_texts(self) -> list[bool]:
        """For each array of `Rows.take`: True if the array holds indices of texts."""
        # A list field has two arrays: the values and the row splits.
        lists = [flag for dtype in self.lists.values() for flag in (dtype == "string", False)]
        return [dtype == "string" for dtype in self.places] + lists

    @property
    def kinds(self) -> list[str]:
        """The types of the arrays that `Rows.take` returns."""
        lists = [kind for dtype in self.lists.values() for kind in (dtype, "int64")]
        arrays = ["int32" if kind == "string" else kind for kind in [*self.places, *lists]]
        return arrays + ["string"] * self.has_texts

    def unpack(self, arrays: Sequence[tf.Tensor], size: int | None) -> dict[str, Any]:
        """Turn the arrays of `Rows.take` into the values of fields, in graph code.

        Args:
          arrays: the arrays as tensors, of the types `kinds`.
          size: the static number of rows, B; None if the number is unknown.

        Returns:
          {field: [B, ...]}; ragged for lists.
        """
        fields: dict[str, Any] = {}
        parts = iter(arrays)
        texts = arrays[-1]
        if self.has_texts:
            texts.set_shape([None])
        for dtype, places in self.places.items():
            matrix = next(parts)
            matrix.set_shape([size, next(reversed(places.values())).stop])
            for name, place in places.items():
                values = matrix[:, place.start : place.stop]
                values = tf.reshape(values, [-1 if size is None else size, *place.shape])
                # A TensorFlow op turns indices into texts.
                fields[name] = tf.gather(texts, values) if dtype == "string" else values
        for name, dtype in self.lists.items():
            values, splits = next(parts), next(parts)
            values.set_shape([None])
            # The result of a Python function has no static shape, but layers need a static shape.
            splits.set_shape([None if size is None else size + 1])
            values = tf.gather(texts, values) if dtype == "string" else values
            fields[name] = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        return fields


class Taker(Protocol):
    """Rows in memory that a graph can gather by number."""

    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the values of all fields in the rows with the given numbers.

        Args:
          rows: the row numbers, int64 [B].

        Returns:
          The values in the form of `Rows.take`.
        """


class Rows:
    """The values of N rows in memory.

    Args:
      layout: the positions of the fields in memory.
      values: {field: values in all rows}, in any form that `packed.pack` takes or returns, and in
        the type of the field.
    """

    def __init__(self, layout: Layout, values: Mapping[str, Any]):
        values = {name: packed.pack(values[name], dtype) for name, dtype in layout.dtypes.items()}
        numbers, self._texts = _number_texts(layout, values)
        self._matrices = []
        self._are_texts = layout.are_texts
        for dtype, places in layout.places.items():
            columns = numbers if dtype == "string" else values
            parts = [_flatten(columns[name], dtype, place) for name, place in places.items()]
            # In contiguous arrays, the values of a row are next to each other.
            self._matrices.append(np.ascontiguousarray(np.concatenate(parts, axis=1)))
        self._lists = []
        for name, dtype in layout.lists.items():
            flat = numbers[name] if dtype == "string" else values[name].values
            self._lists.append((flat, values[name].splits))

    def __len__(self) -> int:
        return len(self._matrices[0]) if self._matrices else len(self._lists[0][1]) - 1

    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the values of all fields in the rows with the given numbers.

        Args:
          rows: the row numbers, int64 [B].

        Returns:
          First, one matrix for each type of the fields that are not lists, [B, columns]. After the
          matrices, two arrays for each field of lists: its values, and its row splits, int64 [B +
          1]. If a field holds texts, the last array holds the distinct texts of these rows, and
          matrices and lists of texts hold int32 indices into these distinct texts.
        """
        arrays = [matrix[rows] for matrix in self._matrices]
        for values, splits in self._lists:
            inner, ends = packed.place_lists(splits, rows)
            arrays += [values[inner], ends]
        if not any(self._are_texts):
            return arrays
        numbers = [array for array, is_text in zip(arrays, self._are_texts, strict=True) if is_text]
        used_texts, places = _renumber(numbers, len(self._texts))
        new_numbers = iter(places)
        arrays = [
            next(new_numbers) if is_text else array
            for array, is_text in zip(arrays, self._are_texts, strict=True)
        ]
        return [*arrays, self._texts[used_texts]]


def take_by_group(
    layout: Layout, groups: np.ndarray, take: Callable[[int, np.ndarray], list[np.ndarray]]
) -> list[np.ndarray]:
    """Gather rows from several groups, such as blocks, in the form of `Rows.take`.

    Args:
      layout: the fields.
      groups: the group of each row, int64 [B].
      take: a function from a group, and from the positions of the rows of this group in `groups`,
        to these rows in the form of `Rows.take`. `take` is called once for each group that occurs
        in `groups`, in ascending order; without rows (B = 0), `take` is called only for group 0.
    """
    places, parts = [], []
    for group in np.unique(groups).tolist() or [0]:
        places.append(np.flatnonzero(groups == group))
        parts.append(take(group, places[-1]))
    if len(parts) == 1:
        return parts[0]
    # The joined parts are sorted by group; `argsort` restores the order of the rows.
    return _merge(layout, parts, np.argsort(np.concatenate(places)))


def _merge(layout: Layout, parts: Sequence[Sequence[np.ndarray]], rows: np.ndarray) -> list[Any]:
    """Join several results of `Rows.take`, and reorder the joined rows by `rows`, int64 [B]."""
    counts = [len(part[-1]) for part in parts] if layout.has_texts else []
    firsts = np.cumsum([0, *counts])
    columns = []
    for index, is_text in enumerate(layout.are_texts):
        arrays = [part[index] for part in parts]
        if is_text:  # The texts of each part are numbered from 0.
            arrays = [array + np.int32(n) for array, n in zip(arrays, firsts, strict=False)]
        columns.append(arrays)
    matrices = [np.concatenate(arrays)[rows] for arrays in columns[: len(layout.places)]]
    lists = columns[len(layout.places) :]
    for values, splits in zip(lists[::2], lists[1::2], strict=True):
        lengths = np.concatenate([np.diff(part_splits) for part_splits in splits])
        inner, ends = packed.place_lists(packed.count_splits(lengths), rows)
        matrices += [np.concatenate(values)[inner], ends]
    texts = [np.concatenate([part[-1] for part in parts])] if layout.has_texts else []
    return matrices + texts


def _renumber(numbers: Sequence[np.ndarray], count: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the distinct numbers, all below `count`, and the index of each number among them."""
    size = sum(array.size for array in numbers)
    if count <= 4 * size:
        # For a large batch, a mask over all texts takes less time than sorting.
        occurs = np.zeros(count, np.bool_)
        for array in numbers:
            occurs[array] = True
        places = (np.cumsum(occurs) - 1).astype(np.int32)
        return np.flatnonzero(occurs), [places[array] for array in numbers]
    # For a small batch, sorting takes less time than a mask over a large vocabulary.
    flat = np.concatenate([array.ravel() for array in numbers])
    used_numbers, inverse = np.unique(flat, return_inverse=True)
    ends = np.cumsum([array.size for array in numbers])[:-1]
    parts = np.split(inverse.astype(np.int32), ends)
    return used_numbers, [
        part.reshape(array.shape) for part, array in zip(parts, numbers, strict=True)
    ]


def _number_texts(
    layout: Layout, values: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return {field: indices of the texts in all rows}, and the distinct texts as bytes."""
    flat = {name: values[name] for name in layout.places.get("string", {})}
    lists = (name for name, dtype in layout.lists.items() if dtype == "string")
    flat |= {name: values[name].values for name in lists}
    numbers, distinct = packed.unify(list(flat.values()))
    return dict(zip(flat, numbers, strict=True)), distinct.to_numpy(zero_copy_only=False)


def take(
    layout: Layout, load: Callable[[Any], Taker], split: tf.Tensor, rows: tf.Tensor
) -> dict[str, Any]:
    """Return {field: [B, ...]} for row numbers of a split, in graph code.

    Args:
      layout: the fields.
      load: a function from a split number to the rows of the split; any thread may call it.
      split: the split number of each row, int64 [B], the same number for all rows.
      rows: the row numbers, int64 [B].
    """

    def read(splits: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
        # An empty batch has no split number, so any split will do.
        return load(int(splits[0]) if len(splits) else 0).take(numbers)

    arrays = tf.numpy_function(read, [split, rows], layout.kinds, stateful=False)
    return layout.unpack(arrays, rows.shape[0])


def _flatten(values: Any, dtype: str, place: _Place) -> np.ndarray:
    """Reshape the values of a field to a matrix [N, size]."""
    size = place.stop - place.start
    return np.asarray(values, _KINDS[dtype]).reshape(-1, size)
