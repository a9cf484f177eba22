"""Reads CSV, JSON lines, Parquet and other files of Arrow in blocks of rows, without TensorFlow.

table = tables.open_table("FILE", ["train-*.csv.gz"])
for block in tables.read_blocks(table):
    block.path, block.rows, block.columns["age"]                    # a pa.Array
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import itertools
import json
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from mtl import checks
from mtl.data import arrow, csv, json_lines, partitions, sheets
from mtl.tools.drafting import lines

CSV, JSON, ARROW, SHEET = "CSV", "JSON lines", "Arrow", "spreadsheet"
_JSON_ENDINGS = (".jsonl", ".json", ".ndjson")
_ROWS = 1 << 17
# Blocks of JSON have fewer rows, because Python objects take more memory than Arrow columns.
_ROWS_OF_JSON = 1 << 13
_READ_ERRORS = (OSError, EOFError, zlib.error)


class Block(NamedTuple):
    """A block of rows of a file.

    Attributes:
      path: the path of the file.
      rows: the number of rows.
      columns: {name: values, [rows]}. A block of JSON lines may lack a column.
    """

    path: str
    rows: int
    columns: Mapping[str, pa.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Files that have the same format and the same columns.

    Attributes:
      paths: the paths of the files, in the order of reading.
      format: "CSV", "JSON lines", "Arrow" or "spreadsheet".
      columns: the names of the columns; () for JSON lines, whose keys are only known after a pass.
      dialect: the dialect of CSV; None for other formats.
      schema: the Arrow schema of the first file; None for CSV and JSON lines.
    """

    paths: tuple[str, ...]
    format: str
    columns: tuple[str, ...] = ()
    dialect: lines.Dialect | None = None
    schema: pa.Schema | None = None

    @property
    def has_cells(self) -> bool:
        """True if files store all values as texts, whose content decides the type of a column."""
        return self.format in (CSV, SHEET)

    def holds_cells(self, name: str) -> bool:
        """Return True if files store a column as texts, whose content decides the column's type.

        Columns from names of folders, such as year=2024, are texts whose content decides the type.
        """
        return self.has_cells or name in self._of_folders

    @functools.cached_property
    def _of_folders(self) -> Collection[str]:
        if self.schema is None:
            return ()
        keys = partitions.read_keys(self.paths[0])
        # A column of the file takes precedence over a folder name.
        return [name for name in keys if pa.types.is_dictionary(self.schema.field(name).type)]


def find_format(where: str, path: str) -> str:
    """Return the format of a file from the extension of its name.

    Args:
      where: the name of the setting in error messages.
      path: the path of the file.

    Raises:
      UserError: the extension is unknown.
    """
    ending = arrow.find_ending(path.removesuffix(".gz"))
    if ending in arrow.ENDINGS and not path.endswith(".gz"):
        return SHEET if ending in sheets.ENDINGS else ARROW
    if ending in _JSON_ENDINGS:
        return JSON
    is_records = "tfrecord" in path.lower()
    fix = "Give --gin_file or --model_dir: a run knows its fields." if is_records else ""
    rule = f"end in one of {', '.join((*csv.ENDINGS, *_JSON_ENDINGS, *arrow.ENDINGS))}"
    checks.require(ending in csv.ENDINGS, where, rule, path, fix)
    return CSV


def open_table(
    where: str,
    patterns: Sequence[str],
    delimiter: str | None = None,
    columns: Sequence[str] = (),
    comment: str = "",
) -> Table:
    """Return a table of the files that match patterns.

    Args:
      where: the name of the setting in error messages.
      patterns: paths or globs of files.
      delimiter: the character between values in CSV; None to detect the delimiter.
      columns: the names of the columns in CSV files without a header.
      comment: a text such as "#"; lines of CSV that begin with this text are dropped; "" to keep
        all lines.

    Raises:
      UserError: no file matches, the formats differ, or the first file is malformed.
    """
    paths = dict.fromkeys(path for p in patterns for path in lines.find_files(where, p))
    formats = {find_format(where, path): path for path in paths}
    checks.require(len(formats) == 1, where, "name files of one format", list(formats.values()))
    kind, names = next(iter(formats)), tuple(paths)
    settings = {"--delimiter": delimiter, "--columns": columns, "--comment": comment}
    for flag, value in settings.items() if kind != CSV else ():
        checks.require(not value, flag, f"be left out: {names[0]} names its columns", value)
    if kind == CSV:
        dialect = lines.read_dialect(names, delimiter, columns, comment)
        return Table(paths=names, format=kind, columns=dialect.columns, dialect=dialect)
    if kind == JSON:
        return Table(paths=names, format=kind)
    schema, _ = arrow.open_file(names[0])
    checks.unique(f"{names[0]}: its columns", schema.names)
    return Table(paths=names, format=kind, columns=tuple(schema.names), schema=schema)


def read_blocks(table: Table, names: Collection[str] | None = None) -> Iterator[Block]:
    """Yield all rows of a table in blocks.

    Args:
      table: the table whose files are read.
      names: the names of the columns to yield; None for all columns.

    Raises:
      UserError: a file is damaged, or differs from the first file.
    """
    if table.dialect is not None:
        blocks = _read_csv(table.dialect, names)
    else:
        blocks = _read_json(table.paths) if table.schema is None else _read_arrow(table, names)
    for block in blocks:
        if names is not None:
            columns = {name: values for name, values in block.columns.items() if name in names}
            block = block._replace(columns=columns)
        yield block


def _read_csv(dialect: lines.Dialect, names: Collection[str] | None) -> Iterator[Block]:
    for path, rows in lines.read_blocks(dialect):
        # The CSV reader parses whole lines, so unused columns can only be dropped afterwards.
        column_names = [name for name in rows.column_names if names is None or name in names]
        yield Block(path, len(rows), {name: _join_chunks(rows[name]) for name in column_names})


def _join_chunks(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _read_arrow(table: Table, names: Collection[str] | None) -> Iterator[Block]:
    assert table.schema is not None
    column_names = [name for name in table.columns if names is None or name in names]
    for path in table.paths:
        schema, parts = arrow.open_file(path)
        _check_schema(path, schema, table)
        for part in parts:
            rows = arrow.read_part(path, part, column_names)
            for start in range(0, part.num_rows, _ROWS):
                part_rows = rows.slice(start, _ROWS)
                columns = {name: _join_chunks(part_rows[name]) for name in column_names}
                yield Block(path, len(part_rows), _decode_folders(table, columns))


def _decode_folders(table: Table, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Turn columns from folder names, which have dictionary types, into columns of plain texts."""
    return {
        name: values.dictionary_decode()
        if table.holds_cells(name) and pa.types.is_dictionary(values.type)
        else values
        for name, values in columns.items()
    }


def _check_schema(path: str, schema: pa.Schema, table: Table) -> None:
    """Fail unless a file has the same columns as the first file, with the same types."""
    assert table.schema is not None
    checks.unique(f"{path}: its columns", schema.names)
    rule = f"hold the columns of {table.paths[0]}"
    for name in table.columns:
        fix = checks.nearest(name, schema.names)
        checks.require(name in schema.names, path, f"{rule}, with {name!r}", schema.names, fix)
        kind, first = schema.field(name).type, table.schema.field(name).type
        type_rule = f"be {first}, as in {table.paths[0]}"
        checks.require(kind == first, f"{path}: column {name!r}", type_rule, str(kind))
    for name in schema.names:
        checks.require(name in table.columns, path, rule, name)


def _read_json(paths: Sequence[str]) -> Iterator[Block]:
    for path in paths:
        rows = _read_objects(path)
        while part_rows := list(itertools.islice(rows, _ROWS_OF_JSON)):
            keys = dict.fromkeys(key for _, row in part_rows for key in row)
            columns = {key: _to_array(path, key, part_rows) for key in keys}
            yield Block(path, len(part_rows), columns)


def _read_objects(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number of the line, object) for each line of JSON."""
    number = 0
    try:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, json_lines.parse_object(line.rstrip(b"\r\n"))
    except ValueError as error:
        raise checks.UserError(f"{path} line {number}: {error}.") from error
    except _READ_ERRORS as error:
        checks.fail(path, "be readable", str(error))


def _to_array(path: str, key: str, rows: Sequence[tuple[int, dict[str, Any]]]) -> pa.Array:
    """Return the values of a key in rows of JSON as texts or lists of texts; null if absent."""
    values = [row.get(key) for _, row in rows]
    kinds = set(map(type, values)) - {type(None)}
    if list in kinds and kinds != {list}:
        number, got = next((n, row[key]) for n, row in rows if not _may_be_list(row.get(key)))
        rule = "be a list, as in other lines"
        checks.fail(f"{path} line {number}: field {key!r}", rule, got)
    try:
        if kinds == {list}:
            return pa.array(list(map(_to_list, values)), pa.list_(pa.string()))
        return pa.array(list(map(_to_text, values)), pa.string())
    except RecursionError:
        # From Python 3.12 on, `json` also parses lists that are too deep for recursive functions.
        where = f"{path} lines {rows[0][0]} to {rows[-1][0]}: field {key!r}"
        checks.fail(where, f"hold lists at most {json_lines.MOST_LEVELS} deep", "deeper lists")
    except UnicodeEncodeError:
        number = next(n for n, row in rows if not _is_utf8(_dump_value(row.get(key))))
        where, got = f"{path} line {number}: field {key!r}", "half a pair of surrogates"
        checks.fail(where, "be UTF-8", got)


def _may_be_list(value: Any) -> bool:
    return value is None or isinstance(value, list)


def _to_list(value: Sequence[Any] | None) -> list[str | None] | None:
    return None if value is None else list(_flatten_values(value))


def _dump_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_utf8(text: str) -> bool:
    return re.search(r"[\ud800-\udfff]", text) is None


def _flatten_values(values: Sequence[Any]) -> Iterator[str | None]:
    for value in values:
        if isinstance(value, list):
            yield from _flatten_values(value)
        else:
            yield _to_text(value)


def _to_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)
