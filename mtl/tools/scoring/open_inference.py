"""Converts types and binary tensors of the Open Inference Protocol (KServe v2).

open_inference.name_type(tf.float32)                               # "FP32"
data = open_inference.write_binary(array)
open_inference.read_binary("input 'x'", data, tf.float32, [2, 3])
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np

from mtl import checks
from mtl.deferred import tf

SIZE_HEADER = "Inference-Header-Content-Length"
"""The HTTP header with the size of the JSON, if binary tensors follow the JSON in a body."""

BYTES = "BYTES"
# {name of a type in TensorFlow: its name in the protocol}.
_TYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    "string": BYTES,
}
# A binary tensor has the length of each text, as 4 bytes, before the text.
_LENGTH = struct.Struct("<I")


def name_type(dtype: tf.DType) -> str:
    """Return the name that the Open Inference Protocol has for a TensorFlow type.

    Raises:
      UserError: the protocol has no name for the type.
    """
    checks.one_of("a type of the Open Inference Protocol", dtype.name, _TYPES)
    return _TYPES[dtype.name]


def find_type(datatype: object) -> tf.DType:
    """Return the TensorFlow type for a name of the Open Inference Protocol.

    Raises:
      ValueError: the protocol has no type with this name.
    """
    names = {name: dtype for dtype, name in _TYPES.items()}
    if datatype not in names:
        raise ValueError(f"unknown datatype {datatype!r}")
    return tf.as_dtype(names[str(datatype)])


def write_binary(array: np.ndarray) -> bytes:
    """Return an array as a binary tensor: little-endian values, or texts with their lengths.

    Args:
      array: numbers, truth values or texts of any shape.
    """
    if array.dtype.kind not in "OSU":
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    texts = [tf.compat.as_bytes(value) for value in array.ravel().tolist()]
    return b"".join(part for text in texts for part in (_LENGTH.pack(len(text)), text))


def read_binary(
    where: str, data: bytes | memoryview, dtype: tf.DType, shape: Sequence[int]
) -> np.ndarray:
    """Turn a binary tensor into an array.

    Args:
      where: the name of the tensor in error messages.
      data: the bytes of the tensor.
      dtype: the type of the values.
      shape: the shape of the tensor; all sizes are known.

    Raises:
      UserError: the number of bytes or texts does not fit the shape.
    """
    count = math.prod(shape)
    if dtype == tf.string:
        return _read_texts(where, memoryview(data), count).reshape(shape)
    kind = np.dtype(dtype.as_numpy_dtype)
    rule = f"have {count * kind.itemsize} bytes, as its shape {list(shape)} says"
    checks.require(len(data) == count * kind.itemsize, where, rule, len(data))
    if dtype == tf.bool:
        # Bytes above 1 mean True. NumPy's bool would be undefined for raw bytes above 1.
        return np.frombuffer(data, np.uint8).astype(bool).reshape(shape)
    values = np.frombuffer(data, kind.newbyteorder("<")).astype(kind)
    return values.reshape(shape)


def _read_texts(where: str, data: memoryview, count: int) -> np.ndarray:
    texts: list[bytes] = []
    offset = 0
    rule = f"hold {count} texts, each after its length in 4 bytes"
    while offset < len(data):
        start = offset + _LENGTH.size
        fits = start <= len(data) and len(texts) < count
        size = _LENGTH.unpack_from(data, offset)[0] if fits else 0
        checks.require(fits and start + size <= len(data), where, rule, f"{len(data)} bytes")
        texts.append(bytes(data[start : start + size]))
        offset = start + size
    checks.require(len(texts) == count, where, rule, f"{len(texts)} texts")
    array = np.empty(count, object)
    array[:] = texts
    return array
