"""The values of a field in many rows, in a few arrays.

packed.pack(np.array(["a", "b", "a"], object))     # Texts(numbers=[0, 1, 0], distinct=["a", "b"])
packed.pack([[1, 2], [], [3]])                            # Lists([1, 2, 3], [0, 2, 2, 3])

Numbers are an array [N, ...]. Texts are numbers of distinct texts, which take a fraction of the
memory. Lists are an array of the values of all lists, and an array of where each list begins.
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
    """Texts as numbers of distinct texts.

    Attributes:
      numbers: int32 [M]; an array of texts [N, ...] has its rows one after the other.
      distinct: the texts as bytes.
    """

    numbers: np.ndarray
    distinct: pa.LargeBinaryArray

    @property
    def nbytes(self) -> int:
        """The number of bytes of both arrays."""
        return self.numbers.nbytes + self.distinct.nbytes


class Lists(NamedTuple):
    """N lists as an array of all values, and where each list begins and ends, int64 [N + 1]."""

    values: Any
    splits: np.ndarray

    @property
    def nbytes(self) -> int:
        """The number of bytes of both arrays."""
        return self.values.nbytes + self.splits.nbytes


def pack(values: Any, dtype: str | None = None) -> Values:
    """Return the values of some rows in a few arrays.

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
    # The empty array gives the type if there are no rows.
    flat = np.concatenate([np.zeros([0], kind), *(np.asarray(row, kind) for row in values)])
    return Lists(pack(flat, dtype), count_splits([len(row) for row in values]))


def pack_field(values: Any, field: spec_lib.Field) -> Values:
    """Return the values of a field in N rows, an array [N, *shape] or N lists, in a few arrays.

    Args:
      values: N rows in any form that `pack` takes.
      field: the field.
    """
    packed_values = pack(values, field.dtype)
    if isinstance(packed_values, np.ndarray):
        return packed_values.reshape(-1, *cast(tuple[int, ...], field.shape))
    return packed_values


def encode_texts(texts: Any) -> Texts:
    """Return texts of Arrow, without nulls, as numbers of distinct texts."""
    encoding = texts.dictionary_encode()
    # Large arrays have offsets of 64 bits, so that texts may take more than 2 GiB.
    distinct = encoding.dictionary.cast(pa.large_binary())
    return Texts(encoding.indices.to_numpy(zero_copy_only=False), distinct)


def count_splits(lengths: Any) -> np.ndarray:
    """Return where lists of these lengths begin and end, int64 [N + 1]."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def join_fields(
    parts: Sequence[Mapping[str, Values]], fields: Mapping[str, spec_lib.Field]
) -> dict[str, Values]:
    """Return {field: its values in all rows}, given its values in some rows each.

    Args:
      parts: {field: its values} of some rows each, in the order of the rows.
      fields: {name: field}.
    """
    return {name: join([part[name] for part in parts], field) for name, field in fields.items()}


def join(parts: Sequence[Values], field: spec_lib.Field) -> Values:
    """Join the values of a field.

    Args:
      parts: the values in some rows each, in the order of the rows.
      field: the field.

    Returns:
      The values in all rows.
    """
    if field.is_ragged:
        flat = join_flat([cast(Lists, part).values for part in parts], field.dtype, ())
        lengths = [np.diff(cast(Lists, part).splits) for part in parts]
        return Lists(flat, count_splits(np.concatenate([*lengths, np.zeros([0], np.int64)])))
    return join_flat(parts, field.dtype, cast(tuple[int, ...], field.shape))


def join_flat(parts: Sequence[Any], dtype: str, shape: tuple[int, ...]) -> Values:
    """Join arrays, or texts, one after the other.

    Args:
      parts: arrays [n, *shape], or `Texts`; may be empty.
      dtype: the type of the field.
      shape: the shape of a value.
    """
    if dtype == "string":
        numbers, distinct = unify(parts)
        return Texts(np.concatenate([np.zeros([0], np.int32), *numbers]), distinct)
    return np.concatenate([np.zeros((0, *shape), DTYPES[dtype]), *parts])


def unify(parts: Sequence[Texts]) -> tuple[list[np.ndarray], pa.LargeBinaryArray]:
    """Return the numbers of all parts among the distinct texts of all parts, and these texts."""
    all_texts = pa.concat_arrays(
        [pa.array([], pa.large_binary()), *(part.distinct for part in parts)]
    )
    encoding = all_texts.dictionary_encode()
    places = encoding.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    # `places` holds the numbers of the first part's texts, then of the second part's, and so on.
    numbers, start = [], 0
    for part in parts:
        stop = start + len(part.distinct)
        numbers.append(places[start:stop][part.numbers])
        start = stop
    return numbers, encoding.dictionary


def take(values: Values, rows: np.ndarray) -> Values:
    """Return the values of some rows.

    Args:
      values: the values of all rows; texts must be scalars.
      rows: the numbers of the rows, int64 [B].

    Returns:
      The values, with all distinct texts: `choose` drops texts that do not occur.
    """
    if isinstance(values, Texts):
        return Texts(values.numbers[rows], values.distinct)
    if not isinstance(values, Lists):
        return values[rows]
    places, splits = place_lists(values.splits, rows)
    return Lists(take(values.values, places), splits)


def cut(values: Values, start: int, stop: int, field: spec_lib.Field) -> Values:
    """Return the values of a field in consecutive rows.

    Args:
      values: the values of all rows.
      start: the first row.
      stop: the row behind the last one.
      field: the field.
    """
    if isinstance(values, Lists):
        # The splits of the returned rows begin at 0 again.
        splits = values.splits[start : stop + 1]
        inner = slice(splits[0], splits[-1])
        flat = values.values
        flat = (
            flat._replace(numbers=flat.numbers[inner]) if field.dtype == "string" else flat[inner]
        )
        return Lists(flat, splits - splits[0])
    if isinstance(values, Texts):  # An array of texts has several numbers in each row.
        return values._replace(numbers=values.numbers[start * field.size : stop * field.size])
    return values[start:stop]


def choose(values: Values, rows: np.ndarray, field: spec_lib.Field) -> Values:
    """Return the values of a field in some rows, with only the distinct texts of these rows.

    Args:
      values: the values of all rows.
      rows: the numbers of the rows, int64 [B]; a row may come several times.
      field: the field.
    """
    if isinstance(values, Lists):
        places, splits = place_lists(values.splits, rows)
        flat = take(values.values, places)
        return Lists(_drop_texts(flat) if isinstance(flat, Texts) else flat, splits)
    if isinstance(values, Texts):  # An array of texts has several numbers in each row.
        numbers = values.numbers.reshape(-1, field.size)[rows].ravel()
        return _drop_texts(values._replace(numbers=numbers))
    return values[rows]


def _drop_texts(values: Texts) -> Texts:
    """Return the same texts, without distinct texts that do not occur."""
    places, numbers = np.unique(values.numbers, return_inverse=True)
    return Texts(numbers.astype(np.int32), values.distinct.take(pa.array(places)))


def count_rows(values: Values, field: spec_lib.Field) -> int:
    """Return the number of rows.

    Args:
      values: an array [N, ...], `Texts` with `field.size` numbers for each row, or `Lists`.
      field: the field.
    """
    if isinstance(values, Lists):
        return len(values.splits) - 1
    return len(values.numbers) // field.size if isinstance(values, Texts) else len(values)


def unpack_texts(values: Any) -> np.ndarray:
    """Return scalar texts as bytes, objects [N]."""
    return np.array(values.distinct.to_pylist(), object)[values.numbers]


def place_lists(splits: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the values of some lists in a flat array.

    Args:
      splits: where each list begins and ends, int64 [N + 1].
      rows: the numbers of the lists, int64 [B].

    Returns:
      The places of the values of these lists, and where each list begins among them, int64 [B + 1].
    """
    starts, lengths = splits[rows], splits[rows + 1] - splits[rows]
    ends = count_splits(lengths)
    # The place of each value within its list.
    inner = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    return np.repeat(starts, lengths) + inner, ends


def _to_binary(texts: np.ndarray) -> pa.LargeBinaryArray:
    """Return texts of any shape as a flat array of bytes."""
    flat = texts.ravel().astype(object)
    encoded_texts = [text.encode() if isinstance(text, str) else text for text in flat]
    return pa.array(encoded_texts, pa.large_binary())
