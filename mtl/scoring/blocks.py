"""Columns of predictions as what is written for them: text or records, without a loop over rows.

block = blocks.MAKERS["csv"]({"id": ["a", "b"], "income/probability": np.array([0.1, 0.9])})
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from mtl.scoring import examples

Columns = Mapping[str, Sequence[Any]]


class Block(NamedTuple):
    """What stands before the first rows of a file; and rows, as one text or as records."""

    header: bytes
    rows: bytes | Sequence[bytes]


EMPTY = Block(b"", b"")


def _json_lines(columns: Columns) -> Block:
    parts: list[Any] = []
    for name, values in columns.items():
        parts += [("" if parts else "{") + json.dumps(name) + ": ", _json(_array(values)), ", "]
    return Block(b"", _text(pc.binary_join_element_wise(*parts[:-1], "}\n", "")))


def _csv(columns: Columns) -> Block:
    cells = [_quoted(_cells(_array(values))) for values in columns.values()]
    header = _quoted(pa.array(columns, pa.string())).to_pylist()
    rows = pc.binary_join_element_wise(pc.binary_join_element_wise(*cells, ","), "\n", "")
    return Block((",".join(header) + "\n").encode(), _text(rows))


def _records(columns: Columns) -> Block:
    return Block(b"", examples.serialize({k: _array(v) for k, v in columns.items()}))


MAKERS: Mapping[str, Callable[[Columns], Block]] = {
    "csv": _csv,
    "jsonl": _json_lines,
    "tfrecord": _records,
}


def _array(values: Sequence[Any]) -> Sequence[Any]:
    """Python values of one type as an array, others as they are."""
    types = set() if isinstance(values, np.ndarray) else set(map(type, values))
    if types in ({str}, {bytes}):
        return np.array([tf.compat.as_bytes(value) for value in values], object)
    if len(types) == 1 and types < {int, float, bool}:
        return np.array(values)
    return values


def _json(values: Sequence[Any]) -> pa.Array:
    """[B, ...] -> JSON [B]."""
    if not isinstance(values, np.ndarray):
        return pa.array([json.dumps(_plain(value)) for value in values], pa.string())
    texts = _scalars(values.ravel(), json.dumps)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        # As Python reads and writes them; JSON itself knows none.
        texts = pc.replace_substring(texts, "nan", "NaN")
        texts = pc.replace_substring(texts, "inf", "Infinity")
    for axis in range(values.ndim - 1, 0, -1):
        texts = pc.binary_join(_lists(texts, values.shape[: axis + 1]), ", ")
        texts = pc.binary_join_element_wise("[", texts, "]", "")
    return texts


def _cells(values: Sequence[Any]) -> pa.Array:
    """[B, ...] -> text [B]; the parts of a list are separated by "|", row by row."""
    if not isinstance(values, np.ndarray):
        return pa.array([_cell(_plain(value)) for value in values], pa.string())
    flat = values.reshape(len(values), -1)
    texts = _scalars(flat.ravel().astype(int) if flat.dtype.kind == "b" else flat.ravel(), str)
    return texts if values.ndim == 1 else pc.binary_join(_lists(texts, flat.shape), "|")


def _quoted(cells: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(cells, '[",\r\n]')
    if not pc.any(special).as_py():
        return cells
    doubled = pc.replace_substring(cells, '"', '""')
    return pc.if_else(special, pc.binary_join_element_wise('"', doubled, '"', ""), cells)


def _scalars(values: np.ndarray, write: Callable[[str], str]) -> pa.Array:
    """[N] -> texts [N]: numbers in the fewest digits that read back the same, bytes by `write`."""
    if values.dtype.kind in "OSU":
        # Names of classes and the like: few that differ.
        encoded = pa.array(values.astype(object), pa.binary()).dictionary_encode()
        distinct = [write(_plain(value)) for value in encoded.dictionary.to_pylist()]
        return pa.array(distinct, pa.string()).take(encoded.indices)
    is_known = values.dtype.kind != "f" or values.dtype.itemsize >= 4
    return pc.cast(pa.array(values if is_known else values.astype(np.float32)), pa.string())


def _lists(texts: pa.Array, shape: Sequence[int]) -> pa.ListArray:
    """Texts [N] -> lists of as many as the last axis of `shape` holds."""
    offsets = np.arange(np.prod(shape[:-1]) + 1, dtype=np.int32) * shape[-1]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts)


def _text(rows: pa.Array) -> bytes:
    everything = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    return pc.binary_join(everything, "")[0].as_buffer().to_pybytes()


def _plain(value: Any) -> Any:
    """Bytes as text, in base64 where they are none."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "|".join(map(_cell, value))
    return "" if value is None else str(int(value) if isinstance(value, bool) else value)
