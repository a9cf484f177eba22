"""Parquet, ORC, Feather, Arrow IPC files and spreadsheets, read into memory or in windows of rows.

arrow.Arrow.files = {"train": "data/train-*.parquet", "test": "data/test.parquet"}

`Arrow` reads only the columns that the Spec names. Values are interpreted as in a DataFrame: a null
is an absent value, and a text may hold a number or a list such as a|b. A field of lists may also be
a column of lists. Decimals are numbers; dates and times are texts, such as "2024-05-31".
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa

from mtl import checks, deferred, types
from mtl import spec as spec_lib
from mtl.data import (
    block_rows,
    columns,
    csv,
    files,
    frames,
    memory_rows,
    packed,
    partitions,
    plain_types,
    sheets,
    source,
    tfrecord,
    weighted_lists,
)
from mtl.deferred import tf
from mtl.distribution import memory

with deferred.imports():
    from mtl.files import remote

ENDINGS = (*partitions.ENDINGS, *sheets.ENDINGS)
_SHARD = re.compile(r"-\d+-of-\d+$")
# Evaluation and statistics read a split in batches of `_BLOCK` rows.
_BLOCK = 4096
# `scan` turns `_SCANNED` rows into Python objects at once.
_SCANNED = 1000
# A split that takes more than `_MEMORY_SHARE` of the memory is read in windows of `_WINDOW` rows.
_MEMORY_SHARE, _WINDOW = 0.5, 500_000


class Part(NamedTuple):
    """A part of a file, such as a row group, that one call reads.

    Attributes:
      name: the position of the part in the file, such as " row group 7"; "" for the whole file.
      num_rows: the number of rows.
      read: a function from the names of columns to a table of these columns.
      num_bytes: the uncompressed size of all columns in bytes; 0 if unknown.
    """

    name: str
    num_rows: int
    read: Callable[[Sequence[str]], pa.Table]
    num_bytes: int = 0


@checks.dataclass
class Arrow(types.Source):
    """A source that reads files of the columnar formats of Apache Arrow.

    Checksums of Parquet pages are verified if the file has checksums. If a split fits into half of
    the memory, its rows stay in memory, and training shuffles all rows in every epoch. For a larger
    split, training reads blocks of rows, such as row groups of Parquet, in random order, and
    shuffles the rows of one window at a time. With all rows in memory and with windows, a run can
    continue with another number of workers, because the batches of all workers together do not
    change.

    Attributes:
      files: {split: path or paths}, each a file, a glob or a folder. The extension of a file gives
        its format: .parquet, .pq, .orc, .feather, .arrow or .ipc. Files in a folder named year=2024
        get a text column `year`.
      data_dir: the folder in which relative paths start; "" is the current folder.
      rename: {field: column}, if the column has another name than the field.
      cells: the settings that say how texts are parsed, such as the texts that mark absent values;
        see `frames.Table`.
      window: the number of rows that all workers together keep in memory and shuffle at a time. A
        split with at most this number of rows is kept in memory as a whole. A sorted table is
        shuffled well only if a window holds many blocks. With `window = None`, a split that fits
        into half of the memory is kept as a whole, and for a larger split, the window has 500,000
        rows. Set the window if the memory of the workers differs, because all workers need the same
        window.
      sheet: the sheet of a spreadsheet; "" is the first sheet that is not hidden. The first row of
        the sheet names the columns.
    """

    files: files.Files
    data_dir: str = ""
    rename: Annotated[Mapping[str, str], checks.Map("map fields to columns")] = dataclasses.field(
        default_factory=dict
    )
    cells: Annotated[csv.Csv, checks.Is(csv.Csv, "be built, such as @csv.Csv()")] = frames.PLAIN_CSV
    # The repr leaves out `window` and `sheet`, because a resumed run compares the repr with the
    # saved repr, which lacks these settings if an older version saved it.
    window: Annotated[int, checks.positive] | None = dataclasses.field(default=None, repr=False)
    sheet: Annotated[str, checks.Is(str, "name a sheet")] = dataclasses.field(
        default="", repr=False
    )

    @property
    def column_names(self) -> list[str]:
        """The column names of the first file, after `rename`."""
        schema, _ = self._open(self._find(next(iter(self.files)))[0])
        return source.name_columns(schema.names, self.rename)

    def find_key_type(self, name: str) -> str:
        """Return "int64" if the first file holds numbers in a column, and otherwise "string"."""
        schema, _ = self._open(self._find(next(iter(self.files)))[0])
        column = self.rename.get(name, name)
        kind = schema.field(column).type if column in schema.names else pa.string()
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        # pandas stores a column of whole numbers with missing values as floats.
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        return "int64" if is_number else "string"

    def list_rows(self, split: str) -> np.ndarray | None:
        """Return the row numbers of a split, int64 [N], counted from the metadata of its files.

        Return None if training reads the split in windows of rows.
        """
        return None if self._find_window(split) else np.arange(self._count_rows(split))

    def list_blocks(self, split: str, spec: spec_lib.Spec) -> types.Blocks | None:
        """Return the blocks of a split; None if all rows of the split are in memory."""
        window = self._find_window(split)
        return self._list_blocks(split, self._mark_parts(spec.fields), window) if window else None

    def _list_blocks(
        self, split: str, fields: Mapping[str, spec_lib.Field], window: int
    ) -> types.Blocks:
        opened_files = self._open_files(split, fields)
        parts = [
            (path, part)
            for path, file_parts in opened_files
            for part in file_parts
            if part.num_rows
        ]

        def read(block: int, names: Mapping[str, spec_lib.Field]) -> dict[str, packed.Values]:
            path, part = parts[block]
            marked = self._mark_parts(names)
            table = read_part(path, part, self._list_columns(marked))
            return self._pack(f"{path}{part.name}", table, marked)

        return types.Blocks(tuple(part.num_rows for _, part in parts), window, read)

    def _count_rows(self, split: str) -> int:
        return self._measure(split)[0]

    def _find_window(self, split: str) -> int | None:
        """Return the number of rows in a window; None if all rows fit into memory."""
        if self.window is not None:
            return self.window if self._count_rows(split) > self.window else None
        _, size = self._measure(split)
        return _WINDOW if size > _MEMORY_SHARE * memory.find_limit() else None

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split as {"split": split number, "row": row number}."""
        rows = tf.data.Dataset.range(self._count_rows(split))
        splits = source.repeat_value(np.int64(self._number(split)))
        return tf.data.Dataset.zip({"split": splits, "row": rows})

    def blocks(self, split: str) -> tf.data.Dataset:
        """Return the records of a split in batches."""
        rows = tf.data.Dataset.range(self._count_rows(split)).batch(_BLOCK)
        return rows.map(functools.partial(self.take_rows, split))

    def take_rows(self, split: str, rows: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Return the raw records for row numbers, int64 [B]."""
        number = tf.constant(self._number(split), tf.int64)
        return {"split": tf.fill(tf.shape(rows), number), "row": rows}

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, Any]:
        """Turn row numbers [B] into the values of fields, {name: [B, ...]}."""
        fields = self._mark_parts(spec.fields if with_labels else spec.feature_fields)
        layout = memory_rows.Layout(fields)
        names = list(self.files)

        def load(number: int) -> memory_rows.Taker:
            return self._load(names[number], fields, layout)

        return memory_rows.take(layout, load, batch["split"], batch["row"])

    def read_values(self, split: str, spec: spec_lib.Spec) -> Iterator[dict[str, packed.Values]]:
        """Return an iterator of {field: values} for each part of the files of a split.

        The caller keeps the values in memory, so this method first frees the copy of the split that
        `decode` may have cached.

        Raises:
          UserError: a file is damaged, lacks a column, or has a column of another type than the
            first file; or a value does not suit its field.
        """
        fields = self._mark_parts(spec.fields)
        lock, cache = self._row_cache
        with lock:
            for key in [key for key in cache if key[0] == split]:
                del cache[key]
        # Open the files now, so that this call, not the returned iterator, raises the error for a
        # missing column.
        parts = self._read_parts(list(self._open_files(split, fields)), fields)
        return (self._pack(place, table, fields) for place, table in parts)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each row of a split."""
        fields = self._mark_parts(spec.fields)
        column_names = find_columns(fields, self.rename)
        for place, table in self._read(split, fields):
            for start in range(0, len(table), _SCANNED):
                piece = table.slice(start, _SCANNED)
                rows = to_table(place, piece, column_names, fields, self.cells, start)
                examples = (row for block in rows.serialize() for row in block)
                for number, row in enumerate(examples, start):
                    yield f"{place} row {number}", tfrecord.scan_record(row, spec)

    @functools.cached_property
    def _first_columns(self) -> list[str]:
        return self.column_names

    def _mark_parts(self, fields: Mapping[str, spec_lib.Field]) -> Mapping[str, spec_lib.Field]:
        """Return the fields, with `part_of` set for lists whose weights are in the same column."""
        if not spec_lib.find_weighted(fields):
            return fields
        return weighted_lists.mark_parts(fields, [*self._first_columns, *self.rename])

    def _number(self, split: str) -> int:
        checks.one_of("Arrow.files split", split, self.files)
        return list(self.files).index(split)

    def _find(self, split: str) -> list[str]:
        return files.find("Arrow.files", self.files, split, self.data_dir, folders=True)

    @functools.cached_property
    def _row_cache(self) -> tuple[threading.Lock, dict[Any, memory_rows.Taker]]:
        """A lock for the threads of tf.data, and the cache {(split, fields): rows}."""
        return threading.Lock(), {}

    def _load(
        self, split: str, fields: Mapping[str, spec_lib.Field], layout: memory_rows.Layout
    ) -> memory_rows.Taker:
        """Return the rows of a split; the first call reads the files."""
        lock, cache = self._row_cache
        key = split, repr(fields)
        with lock:
            if key not in cache:
                window = self._find_window(split)
                if window:
                    blocks = self._list_blocks(split, fields, window)
                    cache[key] = block_rows.BlockRows(fields, blocks)
                else:
                    cache[key] = self._read_rows(split, fields, layout)
            return cache[key]

    def _read_rows(
        self, split: str, fields: Mapping[str, spec_lib.Field], layout: memory_rows.Layout
    ) -> memory_rows.Rows:
        parts, size = [], 0
        for place, table in self._read(split, fields):
            size += table.nbytes
            memory.require_memory(f"split {split!r}", place, size, "Its columns take")
            parts.append(self._pack(place, table, fields))
        return memory_rows.Rows(layout, packed.join_fields(parts, fields))

    @functools.cached_property
    def _sizes(self) -> dict[str, tuple[int, int]]:
        """The cache of `_measure`: {split: (number of rows, number of bytes)}."""
        return {}

    def _measure(self, split: str) -> tuple[int, int]:
        """Return the number of rows of a split, and its uncompressed size in bytes."""
        # Cache the result, because a compressed Feather file has to be read as a whole.
        if split not in self._sizes:
            parts = [part for path in self._find(split) for part in self._open(path)[1]]
            rows, size = sum(part.num_rows for part in parts), sum(part.num_bytes for part in parts)
            self._sizes[split] = rows, size
        return self._sizes[split]

    def _open(self, path: str) -> tuple[pa.Schema, list[Part]]:
        return open_file(path, sheet=self.sheet, encodes_texts=True)

    def _list_columns(self, fields: Mapping[str, spec_lib.Field]) -> list[str]:
        return list(dict.fromkeys(find_columns(fields, self.rename).values()))

    def _open_files(
        self, split: str, fields: Mapping[str, spec_lib.Field]
    ) -> Iterator[tuple[str, list[Part]]]:
        """Yield the files of a split and their parts.

        Raises:
          UserError: a file is damaged, lacks a column, or has a column of another type than the
            first file.
        """
        column_names, first_file = find_columns(fields, self.rename), None
        for path in self._find(split):
            schema, parts = self._open(path)
            check_columns(path, column_names, schema)
            column_types = {column: schema.field(column).type for column in column_names.values()}
            first_file = first_file or (path, column_types)
            _check_types(path, column_types, *first_file)
            yield path, parts

    def _read(
        self, split: str, fields: Mapping[str, spec_lib.Field]
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield (location, table of columns) for each part of the files of a split."""
        yield from self._read_parts(self._open_files(split, fields), fields)

    def _read_parts(
        self,
        opened_files: Iterable[tuple[str, list[Part]]],
        fields: Mapping[str, spec_lib.Field],
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield (location, table of columns) for each part of opened files."""
        for path, parts in opened_files:
            for part in parts:
                yield f"{path}{part.name}", read_part(path, part, self._list_columns(fields))

    def _pack(
        self, place: str, table: pa.Table, fields: Mapping[str, spec_lib.Field]
    ) -> dict[str, packed.Values]:
        """Return the values of a part of a file.

        Raises:
          UserError: a value does not suit its field; the error names the row.
        """
        column_names = find_columns(fields, self.rename)
        values = columns.read_columns(table, column_names, fields, self.cells)
        others = {name: column for name, column in column_names.items() if name not in values}
        rows = _read_rows(place, table, others, fields, self.cells)
        return values | {name: packed.pack_field(v, fields[name]) for name, v in rows.items()}


def find_columns(fields: Mapping[str, spec_lib.Field], rename: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each field, without the fields that count the items of nested lists.

    Args:
      fields: {name: field}.
      rename: {field: column}, if the column has another name than the field.

    Returns:
      {field: column}; a list and its weights may have the same column.
    """
    count_names = {spec_lib.counts_name(name) for name, field in fields.items() if field.is_nested}
    names = {name: field.column for name, field in fields.items() if name not in count_names}
    return {name: rename.get(column, column) for name, column in names.items()}


def to_table(
    place: str,
    table: pa.Table,
    column_names: Mapping[str, str],
    fields: Mapping[str, spec_lib.Field],
    cells: csv.Csv,
    first_row: int = 0,
) -> frames.Table:
    """Convert an Arrow table so that its values mean the same as in a DataFrame.

    Args:
      place: the names of the file and of its part, with which error messages begin.
      table: the rows, as a table of Arrow.
      column_names: {field: column}.
      fields: {name: field}.
      cells: the settings for parsing texts; see `Arrow.cells`.
      first_row: the number of the first row of `table` in its part of the file.

    Raises:
      UserError: a column has a type that no field can hold.
    """

    def name_row(row: int) -> str:
        return f"{place} row {first_row + row}"

    values = {}
    for name, column in column_names.items():
        where = f"{place}: column {column!r}"
        read = functools.partial(columns.to_python, where, table[column])
        # Arrow cannot convert some values, such as times in an unknown time zone.
        values[fields[name].column] = columns.guard(where, read)
    return frames.Table(values, fields, place, cells, name_row)


def read_fields(
    place: str,
    table: pa.Table,
    column_names: Mapping[str, str],
    fields: Mapping[str, spec_lib.Field],
    cells: csv.Csv,
    first_row: int = 0,
) -> dict[str, Any]:
    """Return {field: B values}, as `frames.Table.read` does, but read whole columns if possible.

    Args:
      place: the names of the file and of its part, with which error messages begin.
      table: the rows, as a table of Arrow.
      column_names: {field: column}.
      fields: {name: field}.
      cells: the settings for parsing texts; see `Arrow.cells`.
      first_row: the number of the first row of `table` in its part of the file.

    Raises:
      UserError: a value does not suit its field; the error names the row.
    """
    plain = {name: column for name, column in column_names.items() if not fields[name].is_ragged}
    values = columns.read_columns(table, plain, fields, cells)
    others = {name: column for name, column in column_names.items() if name not in values}
    rows = _read_rows(place, table, others, fields, cells, first_row)
    return rows | {name: packed.unpack(v, fields[name]) for name, v in values.items()}


def _read_rows(
    place: str,
    table: pa.Table,
    column_names: Mapping[str, str],
    fields: Mapping[str, spec_lib.Field],
    cells: csv.Csv,
    first_row: int = 0,
) -> dict[str, Any]:
    """Read fields row by row, with the counts of the items of nested lists: {field: B values}."""
    if not column_names:
        return {}
    names = (*column_names, *map(spec_lib.counts_name, column_names))
    own_fields = {name: fields[name] for name in names if name in fields}
    rows = to_table(place, table, column_names, own_fields, cells, first_row)
    return rows.read(0, len(table))


def find_ending(path: str) -> str:
    """Return the extension of a file name, such as ".parquet", without a shard number."""
    return os.path.splitext(_SHARD.sub("", path))[1].lower()


def open_file(
    path: str, kind: str | None = None, sheet: str = "", encodes_texts: bool = False
) -> tuple[pa.Schema, list[Part]]:
    """Return the schema of a file, and its parts in order.

    Args:
      path: a file; its name may end with a shard number, such as "in.parquet-00000-of-00010".
      kind: the format, such as ".parquet"; by default, the extension of the file.
      sheet: the sheet of a spreadsheet; "" is the first sheet that is not hidden.
      encodes_texts: True reads texts of Parquet as dictionaries: distinct texts, and the number of
        the text in each row. Parquet stores texts as dictionaries, so reading takes a fifth of the
        time. In the returned schema, columns of texts have the type of plain texts, not of
        dictionaries.

    Raises:
      UserError: the file has another format, or is damaged.
    """
    ending = kind or find_ending(path)
    rule = f"end in one of {', '.join(ENDINGS)}"
    checks.require(ending in ENDINGS, "a file of Arrow.files", rule, path)
    parquet = functools.partial(_open_parquet, encodes_texts=encodes_texts)
    opener: Mapping[str, Callable] = {".parquet": parquet, ".pq": parquet, ".orc": _open_orc}
    copy = remote.copy_here(path)
    if ending in sheets.ENDINGS:
        name, table = sheets.read_sheet(path, copy, sheet)
        return table.schema, [Part(f" sheet {name!r} data", len(table), table.select, table.nbytes)]
    schema, parts = columns.guard(path, functools.partial(opener.get(ending, _open_ipc), copy))
    schema, parts = plain_types.replace(schema, parts)
    return partitions.add_columns(path, schema, parts)


def _open_parquet(path: str, encodes_texts: bool) -> tuple[pa.Schema, list[Part]]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
    texts = _find_texts(metadata, schema) if encodes_texts else []

    def read(group: int, names: Sequence[str]) -> pa.Table:
        # Each read opens the file anew, because a process cannot keep all files of a large split
        # open.
        with parquet.ParquetFile(
            path,
            metadata=metadata,
            memory_map=True,
            page_checksum_verification=True,
            read_dictionary=texts,
        ) as file:
            return file.read_row_group(group, columns=names)

    empty = Part("", 0, lambda names: schema.empty_table().select(names))
    parts = [
        Part(
            f" row group {group}",
            metadata.row_group(group).num_rows,
            functools.partial(read, group),
            metadata.row_group(group).total_byte_size,
        )
        for group in range(metadata.num_row_groups)
    ]
    return schema, parts or [empty]


def _find_texts(metadata: Any, schema: pa.Schema) -> list[str]:
    """Return the paths of the columns of a Parquet file that contain texts or lists of texts."""
    names = [field.name for field in schema if columns.is_text(field.type)]
    lists = tuple(f"{field.name}." for field in schema if columns.is_text_list(field.type))
    paths = (metadata.schema.column(index).path for index in range(metadata.num_columns))
    return [*names, *(path for path in paths if path.startswith(lists))]


def _open_orc(path: str) -> tuple[pa.Schema, list[Part]]:
    from pyarrow import orc

    file = orc.ORCFile(path)
    # A single stripe has all rows of the file, and the metadata hold the number of these rows.
    if file.nstripes < 2:
        return file.schema, [Part("", file.nrows, lambda names: file.read(columns=list(names)))]

    def read(stripe: int, names: Sequence[str]) -> pa.Table:
        return pa.Table.from_batches([file.read_stripe(stripe, columns=list(names))])

    # ORC metadata lack the number of rows of each stripe, so one column is read to count the rows.
    first_column = file.schema.names[:1]
    stripes = [functools.partial(read, stripe) for stripe in range(file.nstripes)]
    parts = [Part(f" stripe {n}", len(load(first_column)), load) for n, load in enumerate(stripes)]
    return file.schema, parts


def _open_ipc(path: str) -> tuple[pa.Schema, list[Part]]:
    from pyarrow import feather

    # With a memory map, an uncompressed file takes memory only for the parts in use.
    table = feather.read_table(path, memory_map=True)
    if table.num_columns == 0 or table.column(0).num_chunks < 2:
        return table.schema, [Part("", len(table), table.select, table.nbytes)]
    parts, start = [], 0
    for number, chunk in enumerate(table.column(0).chunks):
        batch = table.slice(start, len(chunk))
        parts.append(Part(f" batch {number}", len(batch), batch.select, batch.nbytes))
        start += len(chunk)
    return table.schema, parts


def read_part(path: str, part: Part, names: Sequence[str]) -> pa.Table:
    """Read some columns of a part of a file.

    Args:
      path: the path of the file, which the error message names.
      part: the part of the file to read.
      names: the names of the columns to read.

    Raises:
      UserError: the part cannot be read; the error names the file and the part.
    """
    return columns.guard(f"{path}{part.name}", functools.partial(part.read, names))


def check_columns(path: str, column_names: Mapping[str, str], schema: pa.Schema) -> None:
    """Fail unless a file has exactly one column of each name in `column_names`.

    Args:
      path: the path of the file, which error messages name.
      column_names: {field: column}.
      schema: the schema of the file.

    Raises:
      UserError: the file lacks a column, or has several columns of the same name.
    """
    for field, column in column_names.items():
        checks.one_of(f"{path}: the column of field {field!r}", column, schema.names)
        count = schema.names.count(column)
        checks.require(count == 1, path, f"hold one column {column!r}", count)


def _check_types(
    path: str, types_here: Mapping[str, Any], first: str, types_first: Mapping[str, Any]
) -> None:
    """Fail unless the columns of a file have the same types as in the first file."""
    for name, kind in types_here.items():
        rule = f"be {types_first[name]}, as in {first}"
        checks.require(kind == types_first[name], f"{path}: column {name!r}", rule, str(kind))
