"""Serializes rows as tf.Examples, column by column, which is faster than row by row.

examples.serialize_examples({"age": np.array([39, 50]), "word": np.array([b"a", b"b"])})  # [B]

Protocol buffers can be merged by joining their bytes. So the example of a row consists of the
joined bytes of one small example for each column.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl.deferred import tf
from mtl.spec import literals

_LOW, _HIGH = literals.RANGES["int64"]
# A varint holds 64 bits in up to ten groups of 7 bits.
_SHIFTS = np.arange(0, 64, 7, dtype=np.uint64)


def serialize_examples(columns: Mapping[str, Sequence[Any] | np.ndarray]) -> np.ndarray:
    """Serialize columns as tf.Examples.

    Args:
      columns: {field: B values}, each an array [B, ...] or a list. None in a list is an absent
        value. Objects, nested lists and integers beyond 64 bits are written as JSON texts.

    Returns:
      Bytes, an array of objects [B].
    """
    parts = [part for name, values in columns.items() for part in _serialize_column(name, values)]
    rows = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    return rows.to_numpy(zero_copy_only=False)


def _serialize_column(name: str, values: Sequence[Any] | np.ndarray) -> list[Any]:
    """Return arrays of bytes; row n of all arrays, joined, is the column's part of example n.

    An Arrow scalar in place of an array holds the bytes that all rows share.
    """
    if not isinstance(values, np.ndarray):
        return [pa.array([_serialize_example(name, value) for value in values], pa.binary())]
    if values.dtype.kind == "f":
        return _serialize_floats(name, values)
    if values.ndim > 1:
        return [pa.array([_serialize_example(name, value) for value in values], pa.binary())]
    # Many columns have few distinct values, so each distinct value is serialized once.
    encoding = pa.array(values).dictionary_encode()
    kind = encoding.dictionary.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        distinct = _serialize_texts(name, encoding.dictionary.cast(pa.binary()))
    elif pa.types.is_signed_integer(kind):
        numbers = encoding.dictionary.to_numpy(zero_copy_only=False)
        distinct = _serialize_integers(name, numbers.astype(np.int64))
    else:
        parts = [_serialize_example(name, value) for value in encoding.dictionary.to_pylist()]
        distinct = pa.array(parts, pa.binary())
    return [distinct.take(encoding.indices)]


def _serialize_texts(name: str, texts: pa.BinaryArray) -> pa.BinaryArray:
    """Serialize texts [D] without nulls; the bytes before a text depend only on its length."""
    lengths, places = np.unique(pc.binary_length(texts).to_numpy(), return_inverse=True)
    heads = [_cut_end(_serialize_example(name, bytes(n)), n) for n in lengths.tolist()]
    starts = pa.array(heads, pa.binary()).take(pa.array(places))
    return pc.binary_join_element_wise(starts, texts, pa.scalar(b"", pa.binary()))


def _serialize_integers(name: str, numbers: np.ndarray) -> pa.BinaryArray:
    """Serialize int64 numbers [D]; each example ends with a varint, 7 bits in each byte."""
    groups = np.ascontiguousarray(numbers).view(np.uint64)[:, None] >> _SHIFTS
    # The number of bytes of each varint: up to the last group of bits that is not 0.
    lengths = np.maximum((groups > 0).sum(1), 1)
    more = np.arange(len(_SHIFTS)) < lengths[:, None] - 1
    varints = ((groups & 0x7F) | (more * np.uint64(0x80))).astype(np.uint8)
    parts, rows = [pa.array([], pa.binary())], [np.zeros([0], np.int64)]
    for length in np.unique(lengths).tolist():
        rows.append(np.flatnonzero(lengths == length))
        ends = np.ascontiguousarray(varints[rows[-1], :length])
        buffers = [None, pa.py_buffer(ends)]
        fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(length), len(ends), buffers)
        # All varints of the same length have the same bytes in front of them.
        least = _serialize_example(name, 1 << 7 * (length - 1) if length < 10 else -1)
        head = pa.scalar(_cut_end(least, length), pa.binary())
        end = pa.scalar(b"", pa.binary())
        parts.append(pc.binary_join_element_wise(head, fixed.cast(pa.binary()), end))
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(rows))))


def _cut_end(example: bytes, length: int) -> bytes:
    """Return a serialized example without its last `length` bytes."""
    return example[: len(example) - length]


def _serialize_floats(name: str, values: np.ndarray) -> list[Any]:
    """Return the bytes of an example in front of its floats, and the floats of each row."""
    flat = np.ascontiguousarray(values, "<f4").reshape(len(values), math.prod(values.shape[1:]))
    width = flat.shape[1] * flat.itemsize
    zeros = _serialize_example(name, np.zeros(flat.shape[1], np.float32))
    buffers = [None, pa.py_buffer(flat)]
    payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(flat), buffers)
    return [pa.scalar(zeros[: len(zeros) - width], pa.binary()), payload.cast(pa.binary())]


def _serialize_example(name: str, value: Any) -> bytes:
    feature = {name: _make_feature(value)}
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def _make_feature(value: Any) -> tf.train.Feature:
    if isinstance(value, np.ndarray):
        values, types = value.ravel().tolist(), {value.dtype.type}
    else:
        if value is None:
            return tf.train.Feature()
        # Use a list, because NumPy arrays drop zero bytes at the end of a text.
        values = value if isinstance(value, list) else [value]
        if not _is_wire(values):
            # Write JSON, because a tf.Example cannot hold objects, nested lists or integers beyond
            # 64 bits. `default=str` writes dates and decimals as texts, as in CSV.
            return tf.train.Feature(bytes_list={"value": [json.dumps(value, default=str).encode()]})
        types = set(map(type, values))
    if all(issubclass(kind, (int, np.integer, np.bool_)) for kind in types) and types:
        return tf.train.Feature(int64_list={"value": map(int, values)})
    if all(issubclass(kind, (float, np.floating, int)) for kind in types):
        return tf.train.Feature(float_list={"value": values})
    return tf.train.Feature(bytes_list={"value": map(tf.compat.as_bytes, values)})


def _is_wire(values: Sequence[Any]) -> bool:
    """Return True if a tf.Example can hold the values: all texts, or floats and 64-bit integers."""
    if all(isinstance(value, (str, bytes)) for value in values):
        return True
    numbers = all(isinstance(value, (bool, int, float, np.generic)) for value in values)
    integers = [value for value in values if isinstance(value, int)] if numbers else []
    return numbers and all(_LOW <= value <= _HIGH for value in integers)
