"""Predictions as JSON lines, CSV, Parquet or TFRecords: files that appear when they are complete.

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
# Also of shards: predictions.jsonl-00000-of-00010.
_IN_NAME = re.compile(r"\.(csv|jsonl|parquet|tfrecord)s?(?=[-.]|$)")
_TEXTS = ("csv", "jsonl")
# A row group is what a reader of Parquet takes at a time; of few rows it wastes space and time,
# but of rows that hold maps it would not fit into memory.
_ROWS_IN_GROUP, _BYTES_IN_GROUP = 1 << 16, 1 << 27


def format_in(path: str) -> str | None:
    """Return the format of a file by the ending of its name; None if it is unknown."""
    found = _IN_NAME.search(path.rpartition("/")[2])
    return found.group(1) if found else None


def check_name(path: str, format_name: str) -> None:
    """Fail if the ending of a file's name contradicts its format; "auto" goes by the name.

    A name without an ending fits every format.
    """
    name = path.rpartition("/")[2]
    checks.require(not name.endswith(".gz"), "--output", "be uncompressed, without .gz", path)
    _, ending = os.path.splitext(name)
    fits = format_name != "auto" or not ending or format_in(path) is not None
    listed = ", ".join(f".{known}" for known in FORMATS)
    fix = f"Or set --output_format. {checks.nearest(ending, [f'.{k}' for k in FORMATS])}".rstrip()
    checks.require(fits, "--output", f"end in one of {listed}", path, fix)


def rename_output(name: str, format_name: str) -> str:
    """Return the name of a file of another format: in-0.csv.gz -> in-0.jsonl."""
    name = name.removesuffix(".gz")
    if _IN_NAME.search(name):
        return _IN_NAME.sub(f".{format_name}", name, count=1)
    return f"{name}.{format_name}"


@contextlib.contextmanager
def open_writer(path: str | None, format_name: str) -> Iterator[Write]:
    """Open a function that writes blocks of the format; None writes to standard output.

    A file appears under its name only when it is complete; a pipe or a device is written through.

    Args:
      path: the file, here or in another place.
      format_name: csv, jsonl, parquet or tfrecord; the last two need a file.

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
    """A file for Arrow on any filesystem that TensorFlow knows."""

    def __init__(self, file: tf.io.gfile.GFile):
        self._file = file

    def writable(self):
        return True

    def write(self, data):
        # GFile takes bytes alone, and Arrow gives buffers.
        self._file.write(bytes(data))
        return len(data)


class _Tables:
    """A Parquet file that grows by tables, all with the types of the first."""

    def __init__(self, file: Any):
        self._file = _ForArrow(file)
        self._writer: Any = None  # Of pyarrow, once the types are known.
        self._waiting: list[pa.Table] = []

    def add(self, block: blocks.Block) -> None:
        """Take a table, and write once there are enough rows."""
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
        """Write the rest and the footer of the Parquet file."""
        self._write()
        self._writer.close()

    def _write(self) -> None:
        whole = pa.concat_tables(self._waiting) if self._waiting else pa.table({})
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, whole.schema)
        if len(whole):
            self._writer.write_table(whole)
        # Without rows, to know the types.
        self._waiting = [whole.slice(0, 0)]


def _cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [_cast_column(field, table.column(field.name)) for field in schema]
    return pa.table(columns, schema=schema)


def _cast_column(field: pa.Field, values: pa.ChunkedArray) -> pa.ChunkedArray:
    kept = None
    # Arrow itself refuses a number that the type does not hold.
    with contextlib.suppress(pa.ArrowException):
        kept = values.cast(field.type) if _keeps_meaning(values, field.type) else None
    rule = f"hold {field.type} in every row for Parquet, as in the first rows"
    fix = "Write .jsonl, which needs no types."
    checks.require(kept is not None, f"column {field.name!r}", rule, str(values.type), fix)
    return kept


def _keeps_meaning(values: pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Return True if a type keeps the meaning of values: wider numbers, JSON text or nulls.

    Arrow itself also casts "007" to 7 and 2 to True.
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
    """Write text, with the header of the first block that holds rows."""
    is_begun = False

    def text(block: blocks.Block) -> None:
        nonlocal is_begun
        if block.rows:
            rows = cast(bytes, block.rows)  # Other functions write the binary formats.
            write(rows if is_begun else block.header + rows)
            is_begun = True

    return text
