"""Reads a table as columns of text, from delimited files, JSON lines or files of Arrow.

dialect = tables.read_dialect(lines.find_files("TABLE", "train.parquet"))
for path, table in tables.read_blocks(dialect): ...          # a pa.Table of strings

A draft works on texts. So a number in a Parquet file is converted to its text, a boolean to "1" or
"0", a missing value to "", and a list to its values, joined by "|".
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from mtl import checks
from mtl.data import arrow, columns, sheets, weighted_lists
from mtl.tools.drafting import lines, objects

_LISTED: Mapping[str, Callable[[pa.DataType], bool]] = {
    "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    "int64": pa.types.is_integer,
}


def is_arrow(path: str) -> bool:
    """Return True if the ending of a path means that `arrow.Arrow` reads the file."""
    return arrow.find_ending(path) in arrow.ENDINGS


def read_dialect(
    paths: Sequence[str],
    delimiter: str | None = None,
    columns: Sequence[str] = (),
    comment: str = "",
    sheet: str = "",
) -> lines.Dialect:
    """Find the format of the files, as `lines.read_dialect` does.

    Args:
      paths: the paths of the files.
      delimiter: as in `lines.read_dialect`.
      columns: as in `lines.read_dialect`.
      comment: as in `lines.read_dialect`.
      sheet: the sheet of a spreadsheet; "" for the first sheet that is not hidden.

    Raises:
      UserError: the files cannot be read, or a setting of delimited files does not apply to them.
    """
    is_book = arrow.find_ending(paths[0]) in sheets.ENDINGS
    checks.require(is_book or not sheet, "--sheet", f"be left out: {paths[0]} has no sheets", sheet)
    is_json = objects.are_json_lines(paths[0])
    if not (is_json or is_arrow(paths[0])):
        return lines.read_dialect(paths, delimiter, columns, comment)
    flags = {"--delimiter": delimiter, "--columns": columns, "--comment": comment}
    for flag, value in flags.items():
        rule = f"be left out: {paths[0]} has columns with names"
        checks.require(not value, flag, rule, value)
    return objects.read_dialect(paths) if is_json else _read_schema(paths, sheet)


def _read_schema(paths: Sequence[str], sheet: str) -> lines.Dialect:
    """Return the format of files of Arrow, or of spreadsheets."""
    schema, _ = arrow.open_file(paths[0], sheet=sheet)
    checks.unique(f"{paths[0]}: its columns", schema.names)
    kinds = {field.name: _read_kind(field.type) for field in schema}
    return lines.Dialect(
        paths=tuple(paths),
        delimiter="",
        columns=tuple(name for name, kind in kinds.items() if kind is not None),
        sheet=sheet,
        is_arrow=True,
        numbers=[field.name for field in schema if _is_number(field.type)],
        floats=[field.name for field in schema if _has_fractions(field.type)],
        lists={name: kind for name, kind in kinds.items() if kind},
        unreadable={n: str(schema.field(n).type) for n, kind in kinds.items() if kind is None},
    )


def _read_weighted_kind(kind: pa.DataType) -> str | None:
    """Return the kind of a map, or of a list of structs with a value and its weight."""
    key = kind.key_type if pa.types.is_map(kind) else kind.value_type.field(0).type
    return next((f"{name} with weights" for name, fits in _LISTED.items() if fits(key)), None)


def _read_kind(kind: pa.DataType) -> str | None:
    """Return "" for single values, "string" or "int64" for lists, None for types without a use."""
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if _has_weights(kind):
        return _read_weighted_kind(kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return next((name for name, fits in _LISTED.items() if fits(kind.value_type)), None)
    unreadable = types.is_nested, types.is_duration, types.is_binary, types.is_large_binary
    if isinstance(kind, pa.BaseExtensionType):
        return None
    return None if any(is_kind(kind) for is_kind in unreadable) else ""


def _has_weights(kind: pa.DataType) -> bool:
    """Return True for lists with weights: maps to numbers, or lists of structs (key, number)."""
    if pa.types.is_map(kind):
        return _is_number(kind.item_type)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    pair = kind.value_type
    return pa.types.is_struct(pair) and pair.num_fields == 2 and _is_number(pair.field(1).type)


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return _is_number(kind.value_type)
    return types.is_integer(kind) or types.is_boolean(kind) or _has_fractions(kind)


def _has_fractions(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return _has_fractions(kind.value_type)
    return types.is_floating(kind) or (types.is_decimal(kind) and kind.scale > 0)


def read_blocks(dialect: lines.Dialect) -> Iterator[tuple[str, pa.Table]]:
    """Yield (path, table) for each block, as `lines.read_blocks` does.

    Raises:
      UserError: a file is damaged or lacks a column, or a line of a delimited file is malformed.
    """
    if not dialect.is_arrow:
        read = objects.read_blocks if dialect.is_json else lines.read_blocks
        yield from read(dialect)
        return
    own_columns = {name: name for name in dialect.columns}
    for path in dialect.paths:
        schema, parts = arrow.open_file(path, sheet=dialect.sheet)
        arrow.check_columns(path, own_columns, schema)
        for part in parts:
            read = arrow.read_part(path, part, list(dialect.columns))
            texts = {
                name: columns.guard(
                    f"{path}: column {name!r}", functools.partial(_to_texts, read[name])
                )
                for name in dialect.columns
            }
            yield path, pa.table(texts)


def _join(lists: pa.ListArray) -> pa.Array:
    """Return the values of each list, joined by "|"; a null in a list becomes ""."""
    texts = lists.cast(pa.list_(pa.string()))
    # Without this replacement, a single null in a list would make the whole text null.
    filled = pc.fill_null(texts.values, "")
    return pc.binary_join(pa.ListArray.from_arrays(texts.offsets, filled), "|")


def _cast(column: pa.ChunkedArray) -> pa.ChunkedArray:
    types, kind = pa.types, column.type
    if types.is_boolean(kind):
        return column.cast(pa.int8())
    if types.is_decimal(kind):
        return column.cast(pa.float64())
    if types.is_string(kind) or types.is_large_string(kind):
        return column.cast(pa.large_binary())  # A later cast to text checks for UTF-8.
    return column


def _to_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return trimmed texts; a null becomes ""."""
    types, kind = pa.types, column.type
    if types.is_dictionary(kind):
        return _to_texts(column.cast(kind.value_type))
    if _has_weights(kind):
        texts = list(map(weighted_lists.format_list, column.to_pylist()))
        return pa.chunked_array([texts], pa.string())
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.chunked_array([_join(chunk) for chunk in column.chunks], pa.string())
    column = _cast(column)
    if types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return pc.fill_null(pc.utf8_trim_whitespace(column.cast(pa.large_string())), "").cast(
        pa.string()
    )
