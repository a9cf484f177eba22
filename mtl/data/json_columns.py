"""A fast reader of JSON lines, based on Arrow, that reads values like `json_lines.JsonLines`.

for block in json_columns.read_files(paths, spec.fields):          # {field: packed values}

`JsonLines.decode` takes several times as long as this reader. If Arrow might read a file
differently from `JsonLines.decode`, `read_files` raises an error. The caller of `read_files`
catches the error, and reads the file with `JsonLines.decode`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl import spec as spec_lib
from mtl import types
from mtl.data import csv_columns, files, filled_fields, packed
from mtl.spec import literals

# Arrow and Python read Inf, NaN and -0 differently. The pattern also matches texts such as ": NaN".
_ODD = re.compile(rb"[:\[,]\s*-?(?:Inf|NaN)|[:\[,]\s*-0[\s,}\]]")
# Python limits the depth of nested lists. A line with at most `_MOST_BRACKETS` brackets cannot
# exceed Python's limit.
_MOST_BRACKETS = 500
_BLOCK = 1 << 22
# Floats are parsed as float64 and then rounded to float32, like in `JsonLines.decode`.
_KINDS = {
    "float32": pa.float64(),
    "int64": pa.int64(),
    "uint8": pa.int64(),
    "bool": pa.bool_(),
    "string": pa.string(),
}


class _UnsuitedError(Exception):
    """A value does not suit its field, or only Python can read the value."""


def read_files(
    paths: Sequence[str], fields: Mapping[str, spec_lib.Field]
) -> Iterator[dict[str, packed.Values]]:
    """Yield {field: values} of all rows of some files, one chunk of a file at a time.

    Args:
      paths: the paths of the files, in the order of reading.
      fields: {name: field}.

    Raises:
      DecodeOnlyError: Arrow might read some rows differently from `JsonLines.decode`.
    """
    if any(len(field.shape) > 1 or field.part_of for field in fields.values()):
        raise types.DecodeOnlyError
    try:
        for path in paths:
            for chunk in csv_columns.read_chunks(path, skip=0):
                yield _read_chunk(chunk, fields)
    # Text that is not JSON, and bytes that are not UTF-8, raise a ValueError.
    except (_UnsuitedError, ValueError, pa.ArrowException, *files.list_read_errors()) as error:
        raise types.DecodeOnlyError from error


def _read_chunk(chunk: bytes, fields: Mapping[str, spec_lib.Field]) -> dict[str, packed.Values]:
    from pyarrow import json as arrow_json

    text = re.sub(rb"\n\n+", b"\n", chunk.replace(b"\r\n", b"\n")).strip(b"\n")
    _require(b"\0" not in text and not _ODD.search(text))
    text.decode()  # `decode` fails if the bytes are not UTF-8.
    lines = _count_lines(text)
    schema = pa.schema([(name, _find_kind(field)) for name, field in fields.items()])
    if not lines:
        return {
            name: _convert(field, pa.array([], schema.field(name).type))
            for name, field in fields.items()
        }
    table = arrow_json.read_json(
        pa.BufferReader(text),
        arrow_json.ReadOptions(block_size=_BLOCK),
        arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    # If the counts differ, a line holds several objects, or an object spans several lines.
    _require(len(table) == lines)
    return {
        name: _convert(field, pa.concat_arrays(table[name].chunks))
        for name, field in fields.items()
    }


def _require(is_suited: Any) -> None:
    if not is_suited:
        raise _UnsuitedError


def _find_kind(field: spec_lib.Field) -> pa.DataType:
    kind = _KINDS[field.dtype]
    return pa.list_(kind) if field.shape else kind


def _count_lines(text: bytes) -> int:
    """Return the number of lines; fail unless each line has outer braces and few brackets.

    Arrow would also read several objects in a line, and an object that spans several lines. If each
    line begins and ends with a brace, no object continues in the next line.
    """
    if not text:
        return 0
    content = np.frombuffer(b"\n%b\n" % text, np.uint8)
    breaks = np.flatnonzero(content == ord("\n"))
    _require((content[breaks[:-1] + 1] == ord("{")).all())
    _require((content[breaks[1:] - 1] == ord("}")).all())
    brackets = (content == ord("{")) | (content == ord("["))
    _require(np.add.reduceat(brackets, breaks, dtype=np.int64).max() < _MOST_BRACKETS)
    return len(breaks) - 1


def _convert(field: spec_lib.Field, column: pa.Array) -> packed.Values:
    """Convert an Arrow column to the values of a field."""
    if not field.shape:
        if field.dtype == "string":
            column = pc.utf8_trim(column, characters=literals.SPACES)
            if not field.is_required:
                column = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
        if column.null_count:
            _require(not field.is_required)
            column = pc.fill_null(column, pa.scalar(field.default, column.type))
        return _convert_items(field, column)
    if field.is_ragged:
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        lists = packed.Lists(_convert_items(field, column.flatten()), packed.count_splits(lengths))
        is_absent = column.is_null().to_numpy(zero_copy_only=False)
        return filled_fields.fill_lists(lists, is_absent, field)
    _require(not column.null_count)
    _require(pc.all(pc.equal(pc.list_value_length(column), field.size), min_count=0).as_py())
    items = _convert_items(field, column.flatten())
    shape = cast(tuple[int, ...], field.shape)
    return items if isinstance(items, packed.Texts) else items.reshape(len(column), *shape)


def _convert_items(field: spec_lib.Field, items: pa.Array) -> Any:
    """Convert items to an array, or to texts; fail if an item is null."""
    _require(not items.null_count)
    if field.dtype == "string":
        return packed.encode_texts(items)
    values = items.to_numpy(zero_copy_only=False)
    if field.dtype in ("int64", "uint8"):
        low, high = literals.RANGES[field.dtype]
        _require(((values >= low) & (values <= high)).all())
    with np.errstate(over="ignore"):
        values = values.astype(packed.DTYPES[field.dtype])
    # NaN may be a default, but infinity is the result of a number that is too large.
    _require(field.dtype != "float32" or not np.isinf(values).any())
    return values
