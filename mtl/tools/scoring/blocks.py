"""Turns columns of predictions into blocks that a writer appends to a file.

block = blocks.MAKERS["csv"]({"id": ["a", "b"], "income/probability": np.array([0.1, 0.9])})
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl.data import examples
from mtl.deferred import tf
from mtl.files import csv_text
from mtl.tools.scoring.batches import Values

Columns = Mapping[str, Values]


class Block(NamedTuple):
    """Some rows of a file, in the format of the file.

    Attributes:
      header: the line of column names in CSV, as bytes; b"" in other formats.
      rows: lines as bytes for CSV and JSON lines, serialized tf.Examples for TFRecords, or an Arrow
        table for Parquet.
    """

    header: bytes
    rows: bytes | Sequence[bytes] | np.ndarray | pa.Table


EMPTY = Block(b"", b"")


def _json_lines(columns: Columns) -> Block:
    parts: list[Any] = []
    for name, values in columns.items():
        # `parts` holds the parts of a line {"name": value, "name": value}. Arrow joins the parts of
        # lines for all rows at once.
        parts += [
            ("" if parts else "{") + json.dumps(name) + ": ",
            _write_json(_make_array(values)),
            ", ",
        ]
    # `[:-1]` drops the comma after the last column.
    return Block(b"", _join_rows(pc.binary_join_element_wise(*parts[:-1], "}\n", "")))


def _make_csv(columns: Columns) -> Block:
    cells = [_quote_cells(_write_cells(_make_array(values))) for values in columns.values()]
    header = _quote_cells(pa.array(columns, pa.string())).to_pylist()
    rows = pc.binary_join_element_wise(pc.binary_join_element_wise(*cells, ","), "\n", "")
    return Block((",".join(header) + "\n").encode(), _join_rows(rows))


def _make_spreadsheet(columns: Columns) -> Block:
    """Return CSV whose texts a spreadsheet cannot run as formulas."""
    escape = csv_text.escape_formula
    return _make_csv(
        {escape(name): _without_formulas(_make_array(v)) for name, v in columns.items()}
    )


def _without_formulas(values: Values) -> Values:
    """Put an apostrophe before texts that look like formulas; leave numbers unchanged."""
    if isinstance(values, np.ndarray) and values.dtype.kind not in "OSU":
        return values
    texts = _write_cells(values)
    if isinstance(values, np.ndarray):
        return np.array([csv_text.escape_formula(text) for text in texts.to_pylist()], object)
    # Numbers need no apostrophe, although negative numbers begin with "-", like some formulas.
    is_number = [isinstance(_plain(value), (bool, int, float)) for value in values]
    cells = zip(texts.to_pylist(), is_number, strict=True)
    return [text if number else csv_text.escape_formula(text) for text, number in cells]


def _make_records(columns: Columns) -> Block:
    return Block(b"", examples.serialize_examples({k: _make_array(v) for k, v in columns.items()}))


def _make_table(columns: Columns) -> Block:
    return Block(
        b"", pa.table({name: _convert_values(_make_array(v)) for name, v in columns.items()})
    )


MAKERS: Mapping[str, Callable[[Columns], Block]] = {
    "csv": _make_csv,
    "jsonl": _json_lines,
    "parquet": _make_table,
    "tfrecord": _make_records,
}


def find_maker(format_name: str, escape_formulas: bool = False) -> Callable[[Columns], Block]:
    """Return the function that turns columns into a block of a format.

    Args:
      format_name: csv, jsonl, parquet or tfrecord.
      escape_formulas: True to escape text in CSV that a spreadsheet would run as a formula.
    """
    return _make_spreadsheet if escape_formulas and format_name == "csv" else MAKERS[format_name]


def _make_array(values: Values) -> Values:
    """Turn Python values into an array if all have the same type; else return them unchanged."""
    if isinstance(values, np.ndarray):
        # NumPy's kind "V" is bfloat16, which Arrow does not know.
        return values.astype(np.float32) if values.dtype.kind == "V" else values
    types = set(map(type, values))
    if types in ({str}, {bytes}):
        return np.array([tf.compat.as_bytes(value) for value in values], object)
    if len(types) == 1 and types < {int, float, bool}:
        array = np.array(values)
        # If integers do not fit into int64, NumPy makes objects or floats, so return the Python
        # values.
        return array if array.dtype == np.array(types.pop()(0)).dtype else values
    return values


def _write_json(values: Values) -> pa.Array:
    """Turn values [B, ...] into B JSON texts."""
    if not isinstance(values, np.ndarray):
        # JSON has neither dates nor decimals, so `default=str` writes such values as texts, as in
        # CSV.
        texts = [json.dumps(_plain(value), default=str) for value in values]
        return pa.array(texts, pa.string())
    texts = _write_scalars(values.ravel(), json.dumps)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        # Write NaN and Infinity as Python does, although the JSON standard has neither.
        texts = pc.replace_substring(texts, "nan", "NaN")
        texts = pc.replace_substring(texts, "inf", "Infinity")
    for axis in range(values.ndim - 1, 0, -1):
        texts = pc.binary_join(_split_lists(texts, values.shape[: axis + 1]), ", ")
        texts = pc.binary_join_element_wise("[", texts, "]", "")
    return texts


def _write_cells(values: Values) -> pa.Array:
    """Turn values [B, ...] into B cells of CSV, with "|" between the values of a list."""
    if not isinstance(values, np.ndarray):
        return pa.array([_write_cell(_plain(value)) for value in values], pa.string())
    flat = values.reshape(len(values), -1)
    texts = _write_scalars(
        flat.ravel().astype(int) if flat.dtype.kind == "b" else flat.ravel(), str
    )
    return texts if values.ndim == 1 else pc.binary_join(_split_lists(texts, flat.shape), "|")


def _convert_values(values: Values) -> pa.Array:
    """Turn values [B, ...] into an Arrow array of B numbers, texts or lists.

    The Arrow type of an array does not depend on the number of its rows, which may be 0.
    """
    if not isinstance(values, np.ndarray):
        return _type_lists(values) if _is_ragged(values) else _infer_type(list(map(_plain, values)))
    arrays = _type_values(values.ravel())
    for axis in range(values.ndim - 1, 0, -1):
        arrays = _split_lists(arrays, values.shape[: axis + 1])
    return arrays


def _type_values(values: np.ndarray) -> pa.Array:
    if values.dtype.kind in "OSU":
        return _write_scalars(values, str)
    is_known = values.dtype.kind != "f" or values.dtype.itemsize >= 4
    return pa.array(values if is_known else values.astype(np.float32))


def _is_ragged(values: Values) -> bool:
    arrays = all(isinstance(value, np.ndarray) and value.ndim == 1 for value in values)
    return arrays and len({value.dtype for value in values}) == 1


def _type_lists(values: Sequence[np.ndarray]) -> pa.Array:
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), _type_values(np.concatenate(values)))


def _infer_type(values: list[Any]) -> pa.Array:
    """Turn JSON values into an Arrow array.

    Values of mixed types become JSON texts. If all values are null, the array has the type string.
    """
    try:
        array = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        # An Arrow array cannot mix types. The type struct makes the code below write JSON texts.
        array = pa.array([], pa.struct([]))
    inner = array.type
    while pa.types.is_list(inner):
        inner = inner.value_type
    # Arrow would turn True into 1.0 if other values are floats.
    if pa.types.is_struct(inner) or (pa.types.is_floating(inner) and _holds_bool(values)):
        texts = [v if isinstance(v, str | None) else json.dumps(v, default=str) for v in values]
        return pa.array(texts, pa.string())
    return pa.array(values, _as_text(array.type)) if pa.types.is_null(inner) else array


def _holds_bool(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list) and any(map(_holds_bool, value)))


def _as_text(kind: pa.DataType) -> pa.DataType:
    return pa.list_(_as_text(kind.value_type)) if pa.types.is_list(kind) else pa.string()


def _quote_cells(cells: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(cells, '[",\r\n]')
    if not pc.any(special).as_py():
        return cells
    doubled = pc.replace_substring(cells, '"', '""')
    return pc.if_else(special, pc.binary_join_element_wise('"', doubled, '"', ""), cells)


def _write_scalars(values: np.ndarray, write: Callable[[str], str]) -> pa.Array:
    """Turn N values into N texts; write numbers with the fewest digits that lose no precision.

    Args:
      values: numbers or texts, [N].
      write: a function that formats a text, such as `json.dumps`; numbers are written without it.
    """
    if values.dtype.kind in "OSU":
        # Format each distinct text only once, because texts such as names of classes repeat often.
        encoded = pa.array(values.astype(object), pa.binary()).dictionary_encode()
        distinct = [write(_plain(value)) for value in encoded.dictionary.to_pylist()]
        return pa.array(distinct, pa.string()).take(encoded.indices)
    return pc.cast(_type_values(values), pa.string())


def _split_lists(parts: pa.Array, shape: Sequence[int]) -> pa.ListArray:
    """Split a flat array into lists of equal length; the length is the last size in `shape`."""
    offsets = np.arange(np.prod(shape[:-1]) + 1, dtype=np.int32) * shape[-1]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), parts)


def _join_rows(rows: pa.Array) -> bytes:
    # Put all rows into a single list, which Arrow joins without making a Python text for each row.
    list_of_rows = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    return pc.binary_join(list_of_rows, "")[0].as_buffer().to_pybytes()


def _plain(value: Any) -> Any:
    """Return bytes as text, or as base64 if they are not UTF-8, and arrays as lists.

    Numbers of arrays have the fewest digits that lose no precision.
    """
    if isinstance(value, np.ndarray):
        is_short = value.dtype in (np.float16, np.float32)
        value = (value.astype(str).astype(float) if is_short else value).tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _write_cell(value: Any) -> str:
    if isinstance(value, list):
        # As in training files, ";" stands between the values of an item in a list of lists. An item
        # without values is ";" if it stands alone, because an empty cell is a list without items.
        if value == [[]]:
            return ";"
        is_nested = all(isinstance(item, list) for item in value)
        items = [";".join(map(_write_cell, item)) for item in value] if is_nested else value
        return "|".join(map(_write_cell, items))
    return "" if value is None else str(int(value) if isinstance(value, bool) else value)
