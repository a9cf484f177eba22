"""Turns values of JSON into arrays of a signature's types, and arrays into JSON.

tensor = tensors.Tensor(tf.float32, (None, 3))
array = tensors.read_tensor("input 'x'", [[1, 2, 3]], tensor)      # float32 [1, 3]
tensors.write_rows(array, is_bytes=False)                            # ["[1.0, 2.0, 3.0]"]
"""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl import checks
from mtl.deferred import tf

B64 = "b64"
# Arrow writes more values faster, and NumPy fewer.
_FEW = 64
_TEXT = 'a text or {"b64": ...}'
# A float32 holds every integer up to this one.
_EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "float64": 2**53}


class Tensor(NamedTuple):
    """An input or output of a signature.

    Attributes:
      dtype: its type.
      shape: its shape, None for an axis of any length; None if its rank is not known.
    """

    dtype: tf.DType
    shape: tuple[int | None, ...] | None


def describe_shape(shape: Sequence[int | None] | None) -> str:
    """Return a shape as text, such as `[rows, 3]`."""
    if shape is None:
        return "any shape"
    first = ["rows" if axis is None else str(axis) for axis in shape[:1]]
    return f"[{', '.join([*first, *('any' if n is None else str(n) for n in shape[1:])])}]"


def check_array(where: str, array: np.ndarray, tensor: Tensor) -> None:
    """Fail unless an array has the type and shape of a tensor.

    Raises:
      UserError: it does not.
    """
    # Each request of one row comes here for each input: messages are made only for a mistake.
    if find_enum(array.dtype) != find_enum(tensor.dtype):
        dtype = tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype)
        checks.fail(where, f"be {tensor.dtype.name}", dtype.name)
    wanted = tensor.shape
    if wanted is None or array.shape == wanted:
        return
    axes = zip(array.shape, wanted, strict=False)
    if array.ndim != len(wanted) or any(want not in (None, size) for size, want in axes):
        checks.fail(where, f"have the shape {describe_shape(wanted)}", list(array.shape))


@functools.cache
def find_enum(dtype: Any) -> int:
    """Return the number of a type of NumPy or TensorFlow in TensorFlow's messages."""
    is_text = isinstance(dtype, np.dtype) and dtype.kind in "OSU"
    return int((tf.string if is_text else tf.as_dtype(dtype)).as_datatype_enum)


def read_tensor(where: str, value: Any, tensor: Tensor) -> np.ndarray:
    """Turn nested lists of JSON into an array of a tensor's type; its shape is not checked.

    Raises:
      UserError: lists differ in length, or a value does not fit the type.
    """
    flat, shape = flatten(where, value)
    return make_array(where, flat, tensor.dtype, shape).reshape(shape)


def flatten(where: str, value: Any) -> tuple[list[Any], list[int]]:
    """Return the values in nested lists, and their shape.

    Args:
      where: the name of the value, for errors.
      value: a value, or lists of lists of values.

    Returns:
      N values, and the lengths of the lists from the outermost one on; [] for a single value.

    Raises:
      UserError: lists at the same depth differ in length, or stand beside values.
    """
    level: list[Any] = [value]
    shape: list[int] = []
    while any(isinstance(item, list) for item in level):
        # -1 for a value beside lists.
        lengths = {len(item) if isinstance(item, list) else -1 for item in level}
        if len(lengths) > 1:
            got = [f"{n} values" if n >= 0 else "a value" for n in sorted(lengths)[:5]]
            checks.fail(where, "hold lists of the same length at each depth", ", ".join(got))
        shape.append(lengths.pop())
        level = list(itertools.chain.from_iterable(level))
    return level, shape


def make_array(
    where: str, flat: Sequence[Any], dtype: tf.DType, shape: Sequence[int] = ()
) -> np.ndarray:
    """Turn values of JSON [N] into an array [N] of a type; errors name places in `shape`.

    Args:
      where: the name of the value, for errors.
      flat: N values, as `flatten` returns them.
      dtype: the type of the signature.
      shape: their shape before they were flattened.

    Raises:
      UserError: a value is of another kind, or the type cannot hold it.
    """
    if dtype == tf.string:
        _require_kinds(where, flat, {str, dict}, _TEXT, shape)
        return _make_texts(where, flat)
    _require_kinds(where, flat, _list_kinds(dtype), dtype.name, shape)
    if dtype == tf.bool:
        return np.array(flat, bool)
    return _make_floats(where, flat, dtype) if dtype.is_floating else _make_ints(where, flat, dtype)


def _list_kinds(dtype: tf.DType) -> set[type]:
    if dtype == tf.bool:
        return {bool}
    return {int, float} if dtype.is_floating else {int}


def _require_kinds(
    where: str, flat: Sequence[Any], allowed: set[type], name: str, shape: Sequence[int]
) -> None:
    if set(map(type, flat)) <= allowed:
        return
    index = next(i for i, value in enumerate(flat) if type(value) not in allowed)
    place = list(map(int, np.unravel_index(index, shape))) if shape else [index]
    checks.fail(f"{where} at {place}", f"be {name}", flat[index])


def _make_texts(where: str, flat: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(flat), object)
    # By itself, NumPy chooses a type for bytes that drops zeros at their end.
    array[:] = [_read_text(where, value) for value in flat]
    return array


def _read_text(where: str, value: str | dict[str, Any]) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            checks.fail(where, "be text, without half of a surrogate pair", value)
    encoded = value.get(B64)
    is_encoded = isinstance(encoded, str) and len(value) == 1
    checks.require(is_encoded, where, f"be {_TEXT}", value)
    try:
        return base64.b64decode(str(encoded).encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        checks.fail(where, "be base64", encoded, f"{error}.")


def _make_floats(where: str, flat: Sequence[Any], dtype: tf.DType) -> np.ndarray:
    rule = f"fit into {dtype.name}"
    try:
        wide = np.array(flat, np.float64)
    except OverflowError:
        largest = max((value for value in flat if isinstance(value, int)), key=abs)
        checks.fail(where, rule, largest)
    with np.errstate(over="ignore"):
        array = wide.astype(dtype.as_numpy_dtype)
    # An infinity that the client wrote is a value; one that rounding made is a mistake.
    lost = np.isinf(array.astype(np.float64)) & np.isfinite(wide)
    checks.require(not lost.any(), where, rule, wide[lost.argmax()] if lost.any() else None)
    exact = _EXACT[dtype.name]
    for value in flat:
        # TensorFlow Serving refuses such integers too: an id would change silently.
        if type(value) is int and abs(value) > exact:
            kept = int(float(np.array(value, np.float64).astype(dtype.as_numpy_dtype)))
            checks.require(kept == value, where, f"{rule} without loss", value)
    return array


def _make_ints(where: str, flat: Sequence[Any], dtype: tf.DType) -> np.ndarray:
    least, most = _find_limits(dtype)
    for value in (min(flat, default=0), max(flat, default=0)):
        checks.require(least <= value <= most, where, f"fit into {dtype.name}", value)
    return np.array(flat, dtype.as_numpy_dtype)


@functools.cache
def _find_limits(dtype: tf.DType) -> tuple[int, int]:
    return dtype.min, dtype.max


def write_rows(array: np.ndarray, is_bytes: bool) -> list[str]:
    """Return the JSON of each row of an array [B, ...].

    Numbers have the fewest digits that read back the same, as in TensorFlow Serving, and floats
    that are whole end in `.0`. NaN, Infinity and -Infinity stand as they are, beyond the standard.

    Args:
      array: the values.
      is_bytes: True to write all texts as {"b64": ...}; otherwise only those that are not UTF-8.
    """
    texts = write_values(array.ravel(), is_bytes)
    # From the innermost axis outwards: N texts become N / size lists, until B are left.
    for axis in range(array.ndim - 1, 0, -1):
        size = array.shape[axis]
        count = math.prod(array.shape[:axis])
        texts = [f"[{', '.join(texts[i * size : (i + 1) * size])}]" for i in range(count)]
    return texts


def write_values(flat: np.ndarray, is_bytes: bool = False) -> list[str]:
    """Return the JSON of each value [N].

    Args:
      flat: numbers, truth values or texts [N].
      is_bytes: True to write all texts as {"b64": ...}; otherwise only those that are not UTF-8.
    """
    if flat.dtype.kind in "OSU":
        return [_write_text(value, is_bytes) for value in flat.tolist()]
    if flat.dtype.kind == "b":
        return ["true" if value else "false" for value in flat.tolist()]
    if flat.dtype.kind in "iu":
        return list(map(str, flat.tolist()))
    narrow = flat if flat.dtype in (np.float32, np.float64) else flat.astype(np.float32)
    if len(narrow) < _FEW:
        texts = [str(value) for value in narrow]
    else:
        texts = pc.cast(pa.array(narrow), pa.string()).to_pylist()
    return [text if "." in text or "e" in text else _write_whole(text) for text in texts]


_SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _write_whole(text: str) -> str:
    return _SPECIAL.get(text) or f"{text}.0"


def _write_text(value: bytes | str, is_bytes: bool) -> str:
    data = value.encode() if isinstance(value, str) else value
    if not is_bytes:
        try:
            return json.dumps(data.decode(), ensure_ascii=False)
        except UnicodeDecodeError:
            pass
    return json.dumps({B64: base64.b64encode(data).decode()})


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the object of a request; NaN, Infinity and -Infinity are numbers.

    Raises:
      UserError: it is not UTF-8, not JSON, or another value.
    """
    rule = "be a JSON object"
    try:
        found = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        place = f"Byte {error.start} is {body[error.start : error.start + 1]!r}."
        checks.fail("the request", "be UTF-8", body[max(0, error.start - 20) :][:40], place)
    except json.JSONDecodeError as error:
        text = error.doc[max(0, error.pos - 20) : error.pos + 20]
        checks.fail("the request", rule, text, f"{error.msg} at character {error.pos}.")
    except (ValueError, RecursionError) as error:  # An integer of many digits; many brackets.
        reason = "lists are nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise checks.UserError(f"the request must {rule}: {reason}.") from error
    checks.require(isinstance(found, dict), "the request", rule, found)
    return found
