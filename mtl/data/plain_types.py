"""Replaces newer types of Arrow, such as string_view, by the plain types for the same values.

schema, parts = plain_types.replace(schema, parts)

Polars and other libraries write such types, which most functions of pyarrow do not accept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

_PLAIN = (
    (pa.types.is_string_view, pa.large_string()),
    (pa.types.is_binary_view, pa.large_binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
)
# Types that contain values of another type: for each, a function that recognises the type, and a
# function that makes the type from the plain type of its values.
_CONTAINERS: tuple[tuple[Callable[..., bool], Callable[..., pa.DataType]], ...] = (
    (pa.types.is_list, lambda _, inner: pa.list_(inner)),
    (pa.types.is_large_list, lambda _, inner: pa.large_list(inner)),
    (pa.types.is_fixed_size_list, lambda kind, inner: pa.list_(inner, kind.list_size)),
    (
        pa.types.is_dictionary,
        lambda kind, inner: pa.dictionary(kind.index_type, inner, kind.ordered),
    ),
)


def replace(schema: pa.Schema, parts: Sequence[Any]) -> tuple[pa.Schema, list[Any]]:
    """Give the columns of a file plain types.

    Args:
      schema: the schema of the file.
      parts: the parts of the file, each an `arrow.Part`.

    Returns:
      The schema and the parts of the file with plain types; unchanged if all columns already have
      plain types.
    """
    plain = pa.schema([pa.field(field.name, find_type(field.type)) for field in schema])
    if plain.types == schema.types:
        return schema, list(parts)
    return plain, [part._replace(read=functools.partial(_read, part)) for part in parts]


def find_type(kind: pa.DataType) -> pa.DataType:
    """Return the plain type with the same values; other types are returned unchanged."""
    for has_type, plain in _PLAIN:
        if has_type(kind):
            return plain
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(find_type(kind.value_type))
    for has_type, make in _CONTAINERS:
        if has_type(kind) and find_type(kind.value_type) != kind.value_type:
            return make(kind, find_type(kind.value_type))
    return kind


def convert(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column with their plain type."""
    kind = find_type(column.type)
    if kind == column.type:
        return column
    if pa.types.is_dictionary(kind):
        return pa.chunked_array([_convert_dictionary(part) for part in column.chunks], kind)
    if pa.types.is_nested(column.type):  # Arrow cannot cast nested types, or casts them wrongly.
        return pa.chunked_array([pa.array(column.to_pylist(), kind)])
    return column.cast(kind)


def _convert_dictionary(part: pa.DictionaryArray) -> pa.DictionaryArray:
    texts = convert(pa.chunked_array([part.dictionary])).combine_chunks()
    return pa.DictionaryArray.from_arrays(part.indices, texts, ordered=part.type.ordered)


def _read(part: Any, names: Sequence[str]) -> pa.Table:
    table = part.read(names)
    return pa.table(dict(zip(table.column_names, map(convert, table.columns), strict=True)))
