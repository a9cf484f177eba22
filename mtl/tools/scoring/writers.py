"""Writes predictions as JSON lines, CSV, Parquet or TFRecords. Only complete files appear.

with writers.open_writer("out.csv", "csv") as write:
    write(blocks.MAKERS["csv"]({"id": ["a", "b"], "income/probability": np.array([0.1, 0.9])}))
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from mtl import checks
from mtl.deferred import tf
from mtl.files import atomic, remote, storage
from mtl.tools.scoring import blocks

Write = Callable[[blocks.Block], None]

FORMATS = tuple(blocks.MAKERS)
# The pattern finds the last format in a name, also in names of shards, such as
# predictions.jsonl-00000-of-00010.
_IN_NAME = re.compile(r"(.*)\.(csv|jsonl|parquet|tfrecord)s?(?=[-.]|$)", re.DOTALL)
_TEXTS = ("csv", "jsonl")
# The largest number of rows and bytes in a row group of Parquet. Small row groups waste space and
# time, but readers load a whole row group into memory, where many large rows, such as images, do
# not fit.
_ROWS_IN_GROUP, _BYTES_IN_GROUP = 1 << 16, 1 << 27


def format_in(path: str) -> str | None:
    """Return the format of a file from the extension of its name; None if it is unknown."""
    match = _IN_NAME.match(path.rpartition("/")[2])
    return match.group(2) if match else None


def check_name(path: str, format_name: str) -> None:
    """Fail if the name of an output does not fit its format.

    Args:
      path: the path of the output. A name without an extension fits every format.
      format_name: the format; "auto" to derive it from the name.

    Raises:
      UserError: the name ends in .gz, or the format is "auto" and the extension is unknown.
    """
    name = path.rpartition("/")[2]
    checks.require(not name.endswith(".gz"), "--output", "be uncompressed, without .gz", path)
    _, ending = os.path.splitext(name)
    fits = format_name != "auto" or not ending or format_in(path) is not None
    endings = ", ".join(f".{known}" for known in FORMATS)
    fix = f"Or set --output_format. {checks.nearest(ending, [f'.{k}' for k in FORMATS])}".rstrip()
    checks.require(fits, "--output", f"end in one of {endings}", path, fix)


def rename_output(name: str, format_name: str) -> str:
    """Return the name of a file with the extension of another format: in-0.csv.gz -> in-0.jsonl."""
    name = name.removesuffix(".gz")
    if _IN_NAME.match(name):
        return _IN_NAME.sub(rf"\g<1>.{format_name}", name, count=1)
    return f"{name}.{format_name}"


@contextlib.contextmanager
def open_writer(path: str | None, format_name: str) -> Iterator[Write]:
    """Yield a function that writes blocks to a file.

    A file gets its name only when it is complete. If the path is a pipe or a device, each block is
    written immediately.

    Args:
      path: the path or the URL of the file; None for standard output.
      format_name: csv, jsonl, parquet or tfrecord. Standard output can only be csv or jsonl.

    Raises:
      UserError: the file cannot be written.
    """
    if path is None:
        rule = f"be a file if --output_format is {format_name}"
        checks.require(format_name in _TEXTS, "--output", rule, None)
        rule = "be a file if standard output is closed"
        checks.require(sys.stdout is not None, "--output", rule, None)
        yield _write_header_once(lambda text: sys.stdout.write(text.decode()))
        return
    with contextlib.ExitStack() as stack:
        with storage.writing("--output", "a file", path):
            replacing = remote.replacing if remote.is_remote(path) else atomic.replacing
            partial = stack.enter_context(replacing(path))
        yield from _write_file(partial, format_name)


def _write_file(path: str, format_name: str) -> Iterator[Write]:
    if format_name == "tfrecord":
        with tf.io.TFRecordWriter(path) as records:
            yield lambda block: _write_records(records, block)
    elif format_name == "parquet":
        with tf.io.gfile.GFile(path, "wb") as file:
            tables = _Tables(file)
            yield tables.add
            tables.close()
    else:
        with tf.io.gfile.GFile(path, "wb") as file:
            yield _write_header_once(file.write)


def _write_records(records: tf.io.TFRecordWriter, block: blocks.Block) -> None:
    for record in block.rows:
        records.write(record)


class _ForArrow(io.RawIOBase):
    """Lets Arrow write to a file on any filesystem that TensorFlow supports."""

    def __init__(self, file: tf.io.gfile.GFile):
        self._file = file

    def writable(self):
        return True

    def write(self, data):
        # Arrow passes buffers, but GFile only accepts bytes.
        self._file.write(bytes(data))
        return len(data)


class _Tables:
    """Writes tables to a Parquet file; the first table sets the types of all columns."""

    def __init__(self, file: Any):
        self._file = _ForArrow(file)
        self._writer: Any = None  # The writer is made for the first rows.
        self._waiting: list[pa.Table] = []

    def add(self, block: blocks.Block) -> None:
        """Add the table of a block, and write a row group if enough rows wait."""
        if not block.rows:
            return
        table = block.rows
        self._waiting.append(
            _cast_table(table, self._waiting[0].schema) if self._waiting else table
        )
        rows, size = sum(map(len, self._waiting)), sum(table.nbytes for table in self._waiting)
        if rows >= _ROWS_IN_GROUP or size >= _BYTES_IN_GROUP:
            self._write()

    def close(self) -> None:
        """Write the remaining rows and the footer of the Parquet file."""
        self._write()
        self._writer.close()

    def _write(self) -> None:
        table_of_group = pa.concat_tables(self._waiting) if self._waiting else pa.table({})
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, table_of_group.schema)
        if len(table_of_group):
            self._writer.write_table(table_of_group)
        # Keep a table without rows, because its schema sets the types of later tables. Do not take
        # a slice of the group, because a slice without rows would keep the whole group in memory.
        self._waiting = [table_of_group.schema.empty_table()]


def _cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [_cast_column(field, table.column(field.name)) for field in schema]
    return pa.table(columns, schema=schema)


def _cast_column(field: pa.Field, values: pa.ChunkedArray) -> pa.ChunkedArray:
    cast_values = None
    # Arrow raises an exception if the type cannot represent a number.
    with contextlib.suppress(pa.ArrowException):
        cast_values = values.cast(field.type) if _keeps_meaning(values, field.type) else None
    rule = f"hold {field.type} in every row for Parquet, as in the first rows"
    fix = "Write .jsonl, which needs no types."
    checks.require(cast_values is not None, f"column {field.name!r}", rule, str(values.type), fix)
    return cast_values


def _keeps_meaning(values: pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Return True if a cast keeps the meaning of values, such as a cast to wider numbers or text.

    Without `_keeps_meaning`, Arrow would also cast "007" to 7 and 2 to True.
    """
    current = values.type
    if current == kind or values.null_count == len(values) or pa.types.is_string(kind):
        return True
    if pa.types.is_list(current) and pa.types.is_list(kind):
        return _keeps_meaning(pc.list_flatten(values), kind.value_type)
    if pa.types.is_floating(current):
        return pa.types.is_floating(kind) and current.bit_width < kind.bit_width
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return pa.types.is_integer(current) and is_number


def _write_header_once(write: Callable[[bytes], Any]) -> Write:
    """Return a function that writes blocks of text, with a header before the first rows."""
    is_begun = False

    def text(block: blocks.Block) -> None:
        nonlocal is_begun
        if block.rows:
            rows = cast(bytes, block.rows)  # Blocks of CSV and JSON lines hold bytes.
            write(rows if is_begun else block.header + rows)
            is_begun = True

    return text
