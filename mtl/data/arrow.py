"""Parquet, ORC, Feather and Arrow IPC files, read into memory.

arrow.Arrow.files = {"train": "data/train-*.parquet", "test": "data/test.parquet"}

Only the columns of the Spec are read. Values mean the same as in a DataFrame: nulls are absent, a
text may hold a number or a list such as a|b, and lists may be lists. Decimals are numbers; dates
and times are texts, such as "2024-05-31".
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import columns, csv, files, frames, memory_rows, packed, source, tfrecord
from mtl.deferred import tf
from mtl.distribution import memory

ENDINGS = (".parquet", ".pq", ".orc", ".feather", ".arrow", ".ipc")
_SHARD = re.compile(r"-\d+-of-\d+$")
# A pass that only reads takes so many rows at once.
_BLOCK = 4096


class Part(NamedTuple):
    """A part of a file that is read at once.

    Attributes:
      name: its place in the file, such as " row group 7"; "" for the whole file.
      num_rows: the number of rows.
      read: returns some columns of it, given their names.
    """

    name: str
    num_rows: int
    read: Callable[[Sequence[str]], pa.Table]


@checks.dataclass
class Arrow(types.Source):
    """A source that reads files of the columnar formats of Apache Arrow.

    The rows of a split lie in memory. Training mixes all of them in every epoch, and it can go on
    with another number of workers: the batches of all workers together stay the same. Checksums of
    Parquet pages are verified if the writer wrote them.

    Attributes:
      files: {split: path or paths}, each a file or a glob. The ending of a file tells its format:
        .parquet, .pq, .orc, .feather, .arrow or .ipc.
      data_dir: where relative paths start; "" is the current directory.
      rename: {field: its column}, if the column has another name than the field.
      cells: settings for texts, as in `frames.Frames`.
    """

    files: files.Files
    data_dir: str = ""
    rename: Annotated[Mapping[str, str], checks.Map("map our names to theirs")] = dataclasses.field(
        default_factory=dict
    )
    cells: Annotated[csv.Csv, checks.Is(csv.Csv, "be built, such as @csv.Csv()")] = frames.PLAIN_CSV

    def list_rows(self, split: str) -> np.ndarray:
        """Return the numbers of the rows of a split, int64 [N], from the files' metadata."""
        if split not in self._counts:  # A compressed Feather file is read whole to count its rows.
            self._counts[split] = sum(map(_count, self._find(split)))
        return np.arange(self._counts[split])

    @functools.cached_property
    def _counts(self) -> dict[str, int]:
        """The numbers of rows that are known, by split."""
        return {}

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split as {"split": number of the split, "row": its number}."""
        rows = tf.data.Dataset.range(len(self.list_rows(split)))
        splits = source.repeat_value(np.int64(self._number(split)))
        return tf.data.Dataset.zip({"split": splits, "row": rows})

    def blocks(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split in blocks."""
        rows = tf.data.Dataset.range(len(self.list_rows(split))).batch(_BLOCK)
        return rows.map(functools.partial(self.take_rows, split))

    def take_rows(self, split: str, rows: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Return the raw records of rows with these numbers, int64 [B]."""
        number = tf.constant(self._number(split), tf.int64)
        return {"split": tf.fill(tf.shape(rows), number), "row": rows}

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, Any]:
        """Turn numbers of rows [B] into {name: [B, ...]}."""
        fields = spec.fields if with_labels else spec.feature_fields
        layout = memory_rows.Layout(fields)
        names = list(self.files)

        def load(number: int) -> memory_rows.Rows:
            return self._load(names[number], fields, layout)

        return memory_rows.take(layout, load, batch["split"], batch["row"])

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Read the split row by row, a part of a file at a time."""
        theirs = find_columns(spec.fields, self.rename)
        for place, table in self._read(split, spec.fields):
            blocks = to_table(place, table, theirs, spec.fields, self.cells).serialize()
            for number, row in enumerate(row for block in blocks for row in block):
                yield f"{place} row {number}", tfrecord.scan_record(row, spec)

    def _number(self, split: str) -> int:
        checks.one_of("Arrow.files split", split, self.files)
        return list(self.files).index(split)

    def _find(self, split: str) -> list[str]:
        return files.find("Arrow.files", self.files, split, self.data_dir)

    @functools.cached_property
    def _kept(self) -> tuple[threading.Lock, dict[Any, memory_rows.Rows]]:
        """The rows that are in memory, by split and fields, and a lock for threads of tf.data."""
        return threading.Lock(), {}

    def _load(
        self, split: str, fields: Mapping[str, spec_lib.Field], layout: memory_rows.Layout
    ) -> memory_rows.Rows:
        """Return the rows of a split; read the files at the first call."""
        lock, kept = self._kept
        key = split, repr(fields)
        with lock:
            if key not in kept:
                parts = [self._pack(*part, fields) for part in self._read(split, fields)]
                values = {
                    name: packed.join([part[name] for part in parts], field)
                    for name, field in fields.items()
                }
                kept[key] = memory_rows.Rows(layout, values)
            return kept[key]

    def _read(
        self, split: str, fields: Mapping[str, spec_lib.Field]
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield the parts of the files of a split: the place of a part, and its columns.

        Raises:
          UserError: a file is damaged, lacks a column, or has it in another type than the first
            file; or the rows do not fit into memory.
        """
        theirs, first, size = find_columns(fields, self.rename), None, 0
        for path in self._find(split):
            schema, parts = open_file(path)
            check_columns(path, theirs, schema)
            own = {column: schema.field(column).type for column in theirs.values()}
            first = first or (path, own)
            _check_types(path, own, *first)
            for part in parts:
                table = read_part(path, part, list(dict.fromkeys(theirs.values())))
                size += table.nbytes
                memory.require_memory(f"split {split!r}", path, size, "Its columns take")
                yield f"{path}{part.name}", table

    def _pack(
        self, place: str, table: pa.Table, fields: Mapping[str, spec_lib.Field]
    ) -> dict[str, packed.Values]:
        """Return the values of a part of a file.

        Raises:
          UserError: a value does not suit its field; names the row.
        """
        theirs, values = find_columns(fields, self.rename), dict[str, packed.Values]()
        for name, column in theirs.items():
            read = columns.read_column(fields[name], table[column], self.cells)
            if read is not None:
                values[name] = read
        others = {name: column for name, column in theirs.items() if name not in values}
        if others:
            names = (*others, *map(spec_lib.counts_name, others))
            slow = {name: fields[name] for name in names if name in fields}
            rows = to_table(place, table, others, slow, self.cells).read(0, len(table))
            values |= {name: packed.pack_field(rows[name], field) for name, field in slow.items()}
        return values


def find_columns(fields: Mapping[str, spec_lib.Field], rename: Mapping[str, str]) -> dict[str, str]:
    """Return {field: its column}; lists of lists bring their counts."""
    counted = {spec_lib.counts_name(name) for name, own in fields.items() if own.is_nested}
    return {name: rename.get(name, name) for name in fields if name not in counted}


def to_table(
    place: str,
    table: pa.Table,
    theirs: Mapping[str, str],
    fields: Mapping[str, spec_lib.Field],
    cells: csv.Csv,
    first_row: int = 0,
) -> frames.Table:
    """Return rows with the meaning of a DataFrame.

    Args:
      place: the file, and the part of it, for errors.
      table: the rows.
      theirs: {field: its column}.
      fields: {name: field}.
      cells: settings for texts.
      first_row: the number of the first row.

    Raises:
      UserError: a column has a type that no field can hold.
    """

    def name_row(row: int) -> str:
        return f"{place} row {first_row + row}"

    values = {}
    for name, column in theirs.items():
        where = f"{place}: column {column!r}"
        read = functools.partial(columns.to_python, where, table[column])
        values[name] = _call(where, read)  # For example, Arrow may not know a time zone.
    return frames.Table(values, fields, place, cells, name_row)


def _call(where: str, read: Callable[[], Any]) -> Any:
    """Return the result of a function of Arrow; its errors are one line."""
    try:
        return read()
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise checks.UserError(f"{where} cannot be read: {reason}") from error


def find_ending(path: str) -> str:
    """Return the ending of a name without the number of a shard, such as ".parquet"."""
    return os.path.splitext(_SHARD.sub("", path))[1].lower()


def open_file(path: str, kind: str | None = None) -> tuple[pa.Schema, list[Part]]:
    """Return the schema of a file, and its parts in order.

    Args:
      path: a file; its name may have the number of a shard, as in.parquet-00000-of-00010.
      kind: the format, such as ".parquet"; by default, the ending of the name tells it.

    Raises:
      UserError: the file is of another format, or damaged.
    """
    ending = kind or find_ending(path)
    rule = f"end in one of {', '.join(ENDINGS)}"
    checks.require(ending in ENDINGS, "a file of Arrow.files", rule, path)
    opener = {".parquet": _open_parquet, ".pq": _open_parquet, ".orc": _open_orc}
    return _call(path, functools.partial(opener.get(ending, _open_ipc), path))


def _open_parquet(path: str) -> tuple[pa.Schema, list[Part]]:
    from pyarrow import parquet

    file = parquet.ParquetFile(path, memory_map=True, page_checksum_verification=True)

    def read(group: int, columns: Sequence[str]) -> pa.Table:
        return file.read_row_group(group, columns=columns)

    empty = Part("", 0, lambda columns: file.schema_arrow.empty_table().select(columns))
    parts = [
        Part(
            f" row group {group}",
            file.metadata.row_group(group).num_rows,
            functools.partial(read, group),
        )
        for group in range(file.num_row_groups)
    ]
    return file.schema_arrow, parts or [empty]


def _open_orc(path: str) -> tuple[pa.Schema, list[Part]]:
    from pyarrow import orc

    file = orc.ORCFile(path)
    return file.schema, [Part("", file.nrows, lambda columns: file.read(columns=list(columns)))]


def _open_ipc(path: str) -> tuple[pa.Schema, list[Part]]:
    from pyarrow import feather

    table = feather.read_table(path, memory_map=True)
    return table.schema, [Part("", len(table), table.select)]


def _count(path: str) -> int:
    """Return the number of rows of a file."""
    _, parts = open_file(path)
    return sum(part.num_rows for part in parts)


def read_part(path: str, part: Part, columns: Sequence[str]) -> pa.Table:
    """Return some columns of a part of a file.

    Raises:
      UserError: it cannot be read; names the file and the part.
    """
    return _call(f"{path}{part.name}", functools.partial(part.read, columns))


def check_columns(path: str, theirs: Mapping[str, str], schema: pa.Schema) -> None:
    """Fail unless a file has a column for each field, {field: its column}."""
    for field, column in theirs.items():
        checks.one_of(f"{path}: the column of field {field!r}", column, schema.names)
        count = schema.names.count(column)
        checks.require(count == 1, path, f"hold one column {column!r}", count)


def _check_types(
    path: str, types_here: Mapping[str, Any], first: str, types_first: Mapping[str, Any]
) -> None:
    """Fail unless the columns of a file have the types of the first file."""
    for name, kind in types_here.items():
        rule = f"be {types_first[name]}, as in {first}"
        checks.require(kind == types_first[name], f"{path}: column {name!r}", rule, str(kind))
