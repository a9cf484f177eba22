"""Turns JSON values into arrays with the types of a signature, and arrays into JSON.

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
# For fewer values than `_FEW`, NumPy is faster at writing text, and for more values, Arrow.
_FEW = 64
_TEXT = 'a text or {"b64": ...}'
# {type of floats: the largest n such that the type represents all integers from -n to n}.
_EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "float64": 2**53}


class Tensor(NamedTuple):
    """An input or output of a signature.

    Attributes:
      dtype: the type of the values.
      shape: the length of each axis, where None stands for any length; None instead of a tuple if
        the number of axes is unknown.
    """

    dtype: tf.DType
    shape: tuple[int | None, ...] | None


def describe_shape(shape: Sequence[int | None] | None) -> str:
    """Return a shape as text.

    Args:
      shape: the length of each axis, with None for any length; None if the number of axes is
        unknown.

    Returns:
      A text such as "[rows, 3]", or "any shape".
    """
    if shape is None:
        return "any shape"
    axes = ["rows" if axis is None else str(axis) for axis in shape[:1]]
    return f"[{', '.join([*axes, *('any' if n is None else str(n) for n in shape[1:])])}]"


def check_array(where: str, array: np.ndarray, tensor: Tensor) -> None:
    """Fail unless an array has the type and shape of a tensor.

    Args:
      where: the name of the array in error messages.
      array: the array to check.
      tensor: the type and the shape of the input that the array is meant for.

    Raises:
      UserError: the array has another type or shape than the tensor.
    """
    # Build messages only for errors, because `check_array` runs for each input of each request.
    if find_enum(array.dtype) != find_enum(tensor.dtype):
        dtype = tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype)
        checks.fail(where, f"be {tensor.dtype.name}", dtype.name)
    shape = tensor.shape
    if shape is None or array.shape == shape:
        return
    axes = zip(array.shape, shape, strict=False)
    if array.ndim != len(shape) or any(
        expected_size not in (None, size) for size, expected_size in axes
    ):
        checks.fail(where, f"have the shape {describe_shape(shape)}", list(array.shape))


@functools.cache
def find_enum(dtype: Any) -> int:
    """Return the number of a NumPy or TensorFlow type in TensorFlow's protocol buffers."""
    is_text = isinstance(dtype, np.dtype) and dtype.kind in "OSU"
    return int((tf.string if is_text else tf.as_dtype(dtype)).as_datatype_enum)


def read_tensor(where: str, value: Any, tensor: Tensor) -> np.ndarray:
    """Turn nested JSON lists into an array with the type of a tensor. Any shape is allowed.

    Args:
      where: the name of the value in error messages.
      value: a value, or nested lists of values.
      tensor: the type and the shape of the input that the array is meant for.

    Raises:
      UserError: lists at the same depth differ in length, or a value does not fit the type.
    """
    flat, shape = flatten(where, value)
    return make_array(where, flat, tensor.dtype, shape).reshape(shape)


def flatten(where: str, value: Any) -> tuple[list[Any], list[int]]:
    """Return the values in nested lists, and the shape of the lists.

    Args:
      where: the name of the value in error messages.
      value: a value, or nested lists of values.

    Returns:
      The N values, and the length of the lists at each depth, from the outermost; [] for a single
      value.

    Raises:
      UserError: lists at the same depth differ in length, or a list holds lists beside values.
    """
    level: list[Any] = [value]
    shape: list[int] = []
    while any(isinstance(item, list) for item in level):
        # The number -1 stands for a value that is not a list.
        lengths = {len(item) if isinstance(item, list) else -1 for item in level}
        if len(lengths) > 1:
            sizes = [f"{n} values" if n >= 0 else "a value" for n in sorted(lengths)[:5]]
            checks.fail(where, "hold lists of the same length at each depth", ", ".join(sizes))
        shape.append(lengths.pop())
        level = list(itertools.chain.from_iterable(level))
    return level, shape


def make_array(
    where: str, flat: Sequence[Any], dtype: tf.DType, shape: Sequence[int] = ()
) -> np.ndarray:
    """Turn JSON values into an array of a type.

    Args:
      where: the name of the value in error messages.
      flat: N values, as `flatten` returns them.
      dtype: the type that the signature requires.
      shape: the shape of the nested lists that had the values, for error messages that name the
        place of a wrong value.

    Returns:
      The values, [N].

    Raises:
      UserError: a value is, for example, a text instead of a number, or the type cannot represent
        the value.
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
    where: str, flat: Sequence[Any], kinds: set[type], name: str, shape: Sequence[int]
) -> None:
    if set(map(type, flat)) <= kinds:
        return
    index = next(i for i, value in enumerate(flat) if type(value) not in kinds)
    place = list(map(int, np.unravel_index(index, shape))) if shape else [index]
    checks.fail(f"{where} at {place}", f"be {name}", flat[index])


def _make_texts(where: str, flat: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(flat), object)
    # Use an array of objects, because NumPy's type for bytes drops zero bytes at the end.
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
    # Clients may send infinity, but a finite number must not become infinity by rounding.
    is_lost = np.isinf(array.astype(np.float64)) & np.isfinite(wide)
    if is_lost.any():
        checks.fail(where, rule, float(wide[is_lost.argmax()]))
    exact = _EXACT[dtype.name]
    for value in flat:
        # Refuse an integer, such as a long id, that floats would round. TensorFlow Serving refuses
        # such integers, too.
        if type(value) is int and abs(value) > exact:
            stored = int(float(np.array(value, np.float64).astype(dtype.as_numpy_dtype)))
            checks.require(stored == value, where, f"{rule} without loss", value)
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
    """Return each row of an array as JSON.

    As in TensorFlow Serving, a number has as few digits as possible without losing precision, and
    whole floats end in `.0`. NaN, Infinity and -Infinity are written without quotes, which is not
    standard JSON.

    Args:
      array: B rows, [B, ...].
      is_bytes: True to write all texts as {"b64": ...}; False to write {"b64": ...} only for texts
        that are not UTF-8.

    Returns:
      B texts.
    """
    texts = write_values(array.ravel(), is_bytes)
    # Join texts into lists, from the innermost axis to the outermost. Joining an axis divides the
    # number of texts by the length of the axis, until B texts remain.
    for axis in range(array.ndim - 1, 0, -1):
        size = array.shape[axis]
        count = math.prod(array.shape[:axis])
        texts = [f"[{', '.join(texts[i * size : (i + 1) * size])}]" for i in range(count)]
    return texts


def write_values(flat: np.ndarray, is_bytes: bool = False) -> list[str]:
    """Return N values as N JSON texts.

    Args:
      flat: numbers, booleans or texts, [N].
      is_bytes: True to write all texts as {"b64": ...}; False to write {"b64": ...} only for texts
        that are not UTF-8.
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
    """Parse the JSON object of a request. NaN, Infinity and -Infinity are accepted as numbers.

    Raises:
      UserError: the body is not UTF-8, not JSON, or not an object.
    """
    rule = "be a JSON object"
    try:
        document = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        place = f"Byte {error.start} is {body[error.start : error.start + 1]!r}."
        checks.fail("the request", "be UTF-8", body[max(0, error.start - 20) :][:40], place)
    except json.JSONDecodeError as error:
        text = error.doc[max(0, error.pos - 20) : error.pos + 20]
        checks.fail("the request", rule, text, f"{error.msg} at character {error.pos}.")
    except (ValueError, RecursionError) as error:  # A number is too long, or lists too nested.
        reason = "lists are nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise checks.UserError(f"the request must {rule}: {reason}.") from error
    checks.require(isinstance(document, dict), "the request", rule, document)
    return document
