"""A compact form of the values of a field in many rows, made of a few arrays.

packed.pack(np.array(["a", "b", "a"], object))     # Texts(numbers=[0, 1, 0], distinct=["a", "b"])
packed.pack([[1, 2], [], [3]])                            # Lists([1, 2, 3], [0, 2, 2, 3])

Numbers are stored as an array [N, ...]. Texts are stored as indices into the distinct texts, which
saves memory. Lists are stored as an array of all values, and an array of row splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, Union, cast

import numpy as np
import pyarrow as pa

from mtl import spec as spec_lib

DTYPES = {
    "float32": np.float32,
    "int64": np.int64,
    "int32": np.int32,
    "uint8": np.uint8,
    "bool": np.bool_,
}

Values: TypeAlias = Union[np.ndarray, "Texts", "Lists"]


class Texts(NamedTuple):
    """Texts, stored as indices into the distinct texts.

    Attributes:
      numbers: the indices, int32 [M]; an array of texts [N, ...] is flattened row by row.
      distinct: the texts as bytes.
    """

    numbers: np.ndarray
    distinct: pa.LargeBinaryArray

    @property
    def nbytes(self) -> int:
        """The total size of the arrays in bytes."""
        return self.numbers.nbytes + self.distinct.nbytes


class Lists(NamedTuple):
    """N lists, stored as an array of all values, and as row splits.

    Attributes:
      values: the values of all lists, an array [M], or `Texts`.
      splits: int64 [N + 1]; list i has the values from splits[i] up to splits[i + 1].
    """

    values: Any
    splits: np.ndarray

    @property
    def nbytes(self) -> int:
        """The total size of the arrays in bytes."""
        return self.values.nbytes + self.splits.nbytes


def pack(values: Any, dtype: str | None = None) -> Values:
    """Convert values of rows to the compact form.

    Args:
      values: an array [N, ...], N lists, or a ragged value of TensorFlow.
      dtype: the type of the field; None keeps the type of an array.
    """
    if isinstance(values, (Texts, Lists)):
        return values
    if isinstance(values, np.ndarray):
        if dtype == "string" or dtype is None and values.dtype.kind in "OSU":
            return encode_texts(_to_binary(values))
        return values if dtype is None else values.astype(DTYPES[dtype], copy=False)
    if hasattr(values, "row_splits"):
        return Lists(pack(values.values, dtype), np.asarray(values.row_splits, np.int64))
    kind: Any = object if dtype == "string" else DTYPES.get(dtype or "")
    # The empty array sets the type if there are no rows.
    flat = np.concatenate([np.zeros([0], kind), *(np.asarray(row, kind) for row in values)])
    return Lists(pack(flat, dtype), count_splits([len(row) for row in values]))


def pack_field(values: Any, field: spec_lib.Field) -> Values:
    """Convert the values of a field, an array [N, *shape] or N lists, to the compact form.

    Args:
      values: N rows in any form that `pack` takes.
      field: the field that has the values.
    """
    packed_values = pack(values, field.dtype)
    if isinstance(packed_values, np.ndarray):
        return packed_values.reshape(-1, *cast(tuple[int, ...], field.shape))
    return packed_values


def encode_texts(texts: Any) -> Texts:
    """Convert an Arrow array of texts to `Texts`.

    Args:
      texts: an array of text or bytes without nulls; not a `ChunkedArray`.
    """
    encoding = texts.dictionary_encode()
    # "Large" Arrow arrays have 64-bit offsets, so the texts may exceed 2 GiB.
    distinct = encoding.dictionary.cast(pa.large_binary())
    return Texts(encoding.indices.to_numpy(zero_copy_only=False), distinct)


def count_splits(lengths: Any) -> np.ndarray:
    """Convert the lengths of N lists to row splits, int64 [N + 1]."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def join_fields(
    parts: Sequence[Mapping[str, Values]], fields: Mapping[str, spec_lib.Field]
) -> dict[str, Values]:
    """Join the values of all fields from several parts of the rows.

    Args:
      parts: {field: values} for each part of the rows, in order.
      fields: {name: field}.
    """
    return {name: join([part[name] for part in parts], field) for name, field in fields.items()}


def join(parts: Sequence[Values], field: spec_lib.Field) -> Values:
    """Join the values of a field from several parts of the rows.

    Args:
      parts: the values in each part of the rows, in order.
      field: the field that has the values.

    Returns:
      The values of the field in all rows, in the compact form.
    """
    if field.is_ragged:
        flat = join_flat([cast(Lists, part).values for part in parts], field.dtype, ())
        lengths = [np.diff(cast(Lists, part).splits) for part in parts]
        return Lists(flat, count_splits(np.concatenate([*lengths, np.zeros([0], np.int64)])))
    return join_flat(parts, field.dtype, cast(tuple[int, ...], field.shape))


def join_flat(parts: Sequence[Any], dtype: str, shape: tuple[int, ...]) -> Values:
    """Concatenate arrays or texts.

    Args:
      parts: arrays [n, *shape], or `Texts`; the list may be empty.
      dtype: the type of the field.
      shape: the shape of each value, () for the values of lists.
    """
    if dtype == "string":
        numbers, distinct = unify(parts)
        return Texts(np.concatenate([np.zeros([0], np.int32), *numbers]), distinct)
    return np.concatenate([np.zeros((0, *shape), DTYPES[dtype]), *parts])


def unify(parts: Sequence[Texts]) -> tuple[list[np.ndarray], pa.LargeBinaryArray]:
    """Convert several arrays of texts to indices into one array of distinct texts.

    Args:
      parts: the arrays of texts, each with separate distinct texts; the list may be empty.

    Returns:
      The new indices of the texts in each of `parts`, int32, and the distinct texts of all `parts`.
    """
    all_texts = pa.concat_arrays(
        [pa.array([], pa.large_binary()), *(part.distinct for part in parts)]
    )
    encoding = all_texts.dictionary_encode()
    places = encoding.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    # `places` holds the new indices of the distinct texts of parts[0], followed by those of
    # parts[1], and so on.
    numbers, start = [], 0
    for part in parts:
        stop = start + len(part.distinct)
        numbers.append(places[start:stop][part.numbers])
        start = stop
    return numbers, encoding.dictionary


def take(values: Values, rows: np.ndarray) -> Values:
    """Gather the values of some rows, with all distinct texts.

    Args:
      values: the values of all rows; texts must be scalars.
      rows: the row numbers, int64 [B].

    Returns:
      The values of B rows. Distinct texts that the rows do not use remain; `choose` drops such
      texts.
    """
    if isinstance(values, Texts):
        return Texts(values.numbers[rows], values.distinct)
    if not isinstance(values, Lists):
        return values[rows]
    places, splits = place_lists(values.splits, rows)
    return Lists(take(values.values, places), splits)


def cut(values: Values, start: int, stop: int, field: spec_lib.Field) -> Values:
    """Slice the values of a field in consecutive rows.

    Args:
      values: the values of all rows.
      start: the index of the first row of the slice.
      stop: the row behind the last row.
      field: the field that has the values.
    """
    if isinstance(values, Lists):
        # Row splits have to start at 0.
        splits = values.splits[start : stop + 1]
        inner = slice(splits[0], splits[-1])
        flat = values.values
        flat = (
            flat._replace(numbers=flat.numbers[inner]) if field.dtype == "string" else flat[inner]
        )
        return Lists(flat, splits - splits[0])
    if isinstance(values, Texts):  # An array of texts has `field.size` indices for each row.
        return values._replace(numbers=values.numbers[start * field.size : stop * field.size])
    return values[start:stop]


def choose(values: Values, rows: np.ndarray, field: spec_lib.Field) -> Values:
    """Gather the values of a field in some rows, without unused distinct texts.

    Args:
      values: the values of all rows.
      rows: the row numbers, int64 [B], possibly repeated.
      field: the field that has the values.
    """
    if isinstance(values, Lists):
        places, splits = place_lists(values.splits, rows)
        flat = take(values.values, places)
        return Lists(_drop_texts(flat) if isinstance(flat, Texts) else flat, splits)
    if isinstance(values, Texts):  # An array of texts has `field.size` indices for each row.
        numbers = values.numbers.reshape(-1, field.size)[rows].ravel()
        return _drop_texts(values._replace(numbers=numbers))
    return values[rows]


def _drop_texts(values: Texts) -> Texts:
    """Drop the distinct texts that do not occur."""
    places, numbers = np.unique(values.numbers, return_inverse=True)
    return Texts(numbers.astype(np.int32), values.distinct.take(pa.array(places)))


def count_rows(values: Values, field: spec_lib.Field) -> int:
    """Return the number of rows.

    Args:
      values: an array [N, ...], `Texts` with `field.size` indices for each row, or `Lists`.
      field: the field that has the values.
    """
    if isinstance(values, Lists):
        return len(values.splits) - 1
    return len(values.numbers) // field.size if isinstance(values, Texts) else len(values)


def unpack(values: Any, field: spec_lib.Field) -> np.ndarray:
    """Convert the values of a field that is not ragged to an array [N, ...], texts to bytes.

    Args:
      values: an array, or `Texts`.
      field: the field that has the values.
    """
    array = unpack_texts(values) if isinstance(values, Texts) else values
    return array.reshape(-1, *cast(tuple[int, ...], field.shape))


def unpack_texts(values: Any) -> np.ndarray:
    """Convert scalar texts to an array of bytes objects.

    Args:
      values: `Texts` with one text in each row.

    Returns:
      Bytes, an array of objects [N].
    """
    return np.array(values.distinct.to_pylist(), object)[values.numbers]


def place_lists(splits: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the positions of some lists in the flat array of all values.

    Args:
      splits: the row splits of all lists, int64 [N + 1].
      rows: the indices of the lists to find, int64 [B].

    Returns:
      The positions of all values of the chosen lists in the flat array, and the row splits of the
      chosen lists, int64 [B + 1].
    """
    starts, lengths = splits[rows], splits[rows + 1] - splits[rows]
    ends = count_splits(lengths)
    # The index of each value in its list.
    inner = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    return np.repeat(starts, lengths) + inner, ends


def _to_binary(texts: np.ndarray) -> pa.LargeBinaryArray:
    """Flatten texts of any shape to an Arrow array of bytes."""
    return pa.array(texts.ravel().tolist(), pa.large_binary())  # Arrow encodes str as UTF-8.
