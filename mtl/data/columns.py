"""Converts Arrow columns into the values of fields, a whole column at a time.

values = columns.read_column(spec.fields["age"], table["AGE"], frames.PLAIN_CSV)

Values are interpreted as in `frames.Table`, which reads values one by one. In a text column, each
distinct text is parsed once.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl import checks
from mtl import spec as spec_lib
from mtl.data import filled_fields, number_arrays, packed, weighted_lists, written_numbers
from mtl.spec import literals

# Float64 is exact for whole numbers up to 2^53. Arrow turns a column with nulls into floats.
_EXACT = 2**53
# Tables with fewer values than `_CELLS_OF_THREADS` are converted without threads, because the start
# of threads would take longer than they save.
_CELLS_OF_THREADS = 1 << 16
_NOT_FINITE = rf"^(?:{literals.INFINITE}|[+-]?[nN][aA][nN])$"


class Cells(Protocol):
    """The settings of `csv.Csv` that define how texts encode values."""

    @property
    def list_delimiter(self) -> str:
        """The character between the values of a list."""

    def list_marks(self, field: spec_lib.Field) -> list[str]:
        """Return the texts that mark an absent value of a field."""

    def find_form(self, field: spec_lib.Field) -> written_numbers.Form | None:
        """Return the form in which numbers of a field are written; None for plain numbers."""


class _UnsuitedError(Exception):
    """A column does not suit its field, or only `frames.Table` can read the column."""


def read_column(
    field: spec_lib.Field, column: pa.ChunkedArray, cells: Cells, fills_texts: bool = True
) -> packed.Values | None:
    """Convert a column to the values of a field.

    Args:
      field: the field that gets the values.
      column: the column, with N values.
      cells: the settings that say how texts are parsed.
      fills_texts: True reads an absent text of a required field as an empty text, as in a
        DataFrame. With `fills_texts = False`, the function returns None for a column with an absent
        text of a required field, because an absent text is an error in a CSV file.

    Returns:
      The values of N rows. None if a value does not suit the field, or if only a slower reader,
      such as `frames.Table`, can read the column; the slower reader then names a bad row.
    """
    try:
        return _read_column(field, column, cells, fills_texts)
    # Arrow raises a ValueError for a value that it cannot convert, such as bytes that are not
    # UTF-8.
    except (_UnsuitedError, ValueError, pa.ArrowException):
        return None


def read_columns(
    table: pa.Table,
    column_names: Mapping[str, str],
    fields: Mapping[str, spec_lib.Field],
    cells: Cells,
    fills_texts: bool = True,
) -> dict[str, packed.Values]:
    """Convert columns with `read_column`; threads convert the columns of a large table in parallel.

    Args:
      table: the columns, with N rows each.
      column_names: {field: column}.
      fields: {name: field}.
      cells: the settings that say how texts are parsed.
      fills_texts: True reads absent texts as empty texts, as in `read_column`.

    Returns:
      {field: the values of N rows}, without the fields for which `read_column` returns None.
    """

    def read(name: str) -> packed.Values | None:
        return read_column(fields[name], table[column_names[name]], cells, fills_texts)

    if table.num_rows * len(column_names) < _CELLS_OF_THREADS:
        columns = list(map(read, column_names))
    else:
        with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            columns = list(pool.map(read, column_names))
    pairs = zip(column_names, columns, strict=True)
    return {name: column for name, column in pairs if column is not None}


def to_python(where: str, column: pa.ChunkedArray) -> Any:
    """Convert a column to values that `frames.Table` reads; nulls become None or NaN.

    Raises:
      UserError: no field can hold the type of the column.
    """
    column = _simplify(column)
    kind = column.type
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind) and not column.null_count:
        return column.to_numpy()
    if pa.types.is_integer(kind):
        return _to_integers(column)
    if is_text(kind):
        return _to_objects(column)
    is_known = _is_list(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    is_known = is_known or pa.types.is_map(kind)
    checks.require(is_known, where, "hold numbers, texts, times or lists", str(kind))
    return column.to_pylist()


def guard(where: str, read: Callable[[], Any]) -> Any:
    """Call a function of Arrow; if the call fails, raise an error whose message is one line.

    Args:
      where: the file and the column, with which the message begins.
      read: the function, which is called without arguments.

    Raises:
      UserError: Arrow or Python cannot read a value, such as a text that is not UTF-8, a time in an
        unknown zone, or a type of an extension.
    """
    try:
        return read()
    except checks.UserError:
        raise
    except (pa.ArrowException, OSError, OverflowError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise checks.UserError(f"{where} cannot be read: {reason}") from error


def _simplify(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode the dictionary of a column; turn decimals into floats, and times into texts."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _simplify(column.cast(kind.value_type))
    if pa.types.is_decimal(kind):
        return column.cast(pa.float64())
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        return column.cast(pa.string())
    return column


def _to_integers(column: pa.ChunkedArray) -> Any:
    if not column.null_count:
        return column.to_numpy()
    values = column.to_numpy()  # Arrow gives floats here, with NaN for nulls.
    return values if np.nanmax(np.abs(values), initial=0) < _EXACT else column.to_pylist()


def _to_objects(column: pa.ChunkedArray) -> np.ndarray:
    """Return texts as Python objects; equal texts share one object."""
    encoding = column.combine_chunks().dictionary_encode()
    try:
        texts = encoding.dictionary.to_pylist()
    except UnicodeDecodeError:  # `frames.Table` reports the row.
        texts = encoding.dictionary.cast(pa.large_binary()).to_pylist()
    distinct = np.array([*texts, None], object)
    return distinct[encoding.indices.fill_null(len(distinct) - 1).to_numpy(zero_copy_only=False)]


def is_text(kind: pa.DataType) -> bool:
    """Return True for Arrow's types of texts and bytes of any length."""
    is_small = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return is_small or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)


def _is_encoded_text(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) and is_text(kind.value_type)


def is_text_list(kind: pa.DataType) -> bool:
    """Return True for Arrow's type of lists of texts or bytes."""
    return pa.types.is_list(kind) and is_text(kind.value_type)


def _is_list(kind: pa.DataType) -> bool:
    is_sized = pa.types.is_fixed_size_list(kind)
    return is_sized or pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _read_column(
    field: spec_lib.Field, column: pa.ChunkedArray, cells: Cells, fills_texts: bool
) -> packed.Values:
    if field.part_of:
        column = weighted_lists.take_column(field, _simplify(column))
    elif not _is_encoded_text(column.type):
        column = _simplify(column)
    kind = column.type
    _require(not field.is_nested)
    if _is_list(kind):
        return _read_lists(field, _join_chunks(column))
    if is_text(kind) or _is_encoded_text(kind) or pa.types.is_null(kind):
        return _read_texts(field, column, cells, fills_texts)
    if pa.types.is_boolean(kind) and column.null_count:
        column = column.cast(pa.int8())
    _require(not field.is_ragged and field.size == 1 and field.dtype != "string")
    if pa.types.is_integer(kind) and field.dtype != "float32" and field.default is not None:
        # Fill nulls in integers, because floats would round numbers beyond 2^53.
        column = column.cast(pa.int64()).fill_null(int(field.default))
    values = to_python("", column)
    _require(isinstance(values, np.ndarray) and values.dtype.kind in "biuf")
    return packed.pack(number_arrays.read_numbers(field, values), field.dtype)


def _require(is_suited: Any) -> None:
    if not is_suited:
        raise _UnsuitedError


def _join_chunks(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # Arrow keeps chunks if offsets would overflow.
        return pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array


def _read_texts(
    field: spec_lib.Field, column: pa.ChunkedArray, cells: Cells, fills_texts: bool
) -> packed.Values:
    """Parse each distinct text once, and return the values of all rows."""
    encoding = _encode_texts(column)
    distinct = pc.utf8_trim(encoding.dictionary, characters=literals.SPACES)
    # A null gets the index behind all distinct texts; the code below appends a null there.
    numbers = encoding.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)
    if encoding.null_count:
        distinct = pa.concat_arrays([distinct, pa.nulls(1, pa.large_string())])
    marks = pa.array(cells.list_marks(field), pa.large_string())
    absent = pc.or_(pc.is_null(distinct), pc.fill_null(pc.is_in(distinct, marks), False))
    is_absent = absent.to_numpy(zero_copy_only=False)
    form = cells.find_form(field)
    distinct = to_plain(distinct, form) if form else distinct
    values: packed.Values
    if field.is_ragged:
        lists = _split_lists(field, _fill(distinct, is_absent, ""), cells.list_delimiter)
        values = filled_fields.fill_lists(lists, is_absent, field)
    elif field.shape:
        values = _split_array(field, distinct, is_absent, cells.list_delimiter)
    elif field.dtype == "string":
        _require(fills_texts or field.default is not None or not is_absent.any())
        values = packed.encode_texts(_fill(distinct, is_absent, field.default or ""))
    else:
        values = _read_scalars(field, distinct, is_absent)
    return packed.take(values, numbers)


def _encode_texts(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return the distinct texts that occur in a column, and the number of the text in each row."""
    if pa.types.is_dictionary(column.type):
        encoding = _join_chunks(column.unify_dictionaries())
        numbers = encoding.indices.drop_null().to_numpy(zero_copy_only=False)
        is_used = np.zeros([len(encoding.dictionary)], bool)
        is_used[numbers] = True
        # Categories of pandas may be unused, and a dictionary may hold a null.
        if is_used.all() and not encoding.dictionary.null_count:
            return pa.DictionaryArray.from_arrays(encoding.indices, _to_text(encoding.dictionary))
        column = column.cast(column.type.value_type)
    return _join_chunks(_to_text(column)).dictionary_encode()


def _to_text(texts: Any) -> Any:
    """Convert texts or bytes, an array or chunks, to text; fail if they are not UTF-8."""
    return texts.cast(pa.large_binary()).cast(pa.large_string())


def to_plain(texts: pa.Array, form: written_numbers.Form) -> pa.Array:
    """Rewrite numbers in the format `form` as plain numbers; append `form.mark` to all other texts.

    Args:
      texts: an Arrow array of texts [N]; nulls remain nulls.
      form: the format of the numbers.

    Returns:
      An Arrow array of texts [N].
    """
    plain = texts
    for pattern, replacement in form.rewrites:
        plain = pc.replace_substring_regex(plain, pattern, replacement)
    mark = pa.scalar(form.mark, texts.type)
    marked_texts = pc.binary_join_element_wise(texts, mark, pa.scalar("", texts.type))
    return pc.if_else(pc.match_substring_regex(texts, form.pattern), plain, marked_texts)


def _fill(texts: pa.Array, is_absent: np.ndarray, default: str) -> pa.Array:
    return pc.if_else(pa.array(is_absent), pa.scalar(default, pa.large_string()), texts)


def _read_scalars(field: spec_lib.Field, texts: pa.Array, is_absent: np.ndarray) -> np.ndarray:
    """Parse numbers from texts [D]; absent numbers get the default."""
    values: np.ndarray = np.zeros([len(texts)], packed.DTYPES[field.dtype])
    values[~is_absent] = _parse(field.dtype, texts.filter(pa.array(~is_absent)))
    if is_absent.any():
        _require(field.default is not None)
        values[is_absent] = field.default
    return values


def _parse(dtype: str, texts: pa.Array) -> np.ndarray:
    """Parse numbers from texts without outer spaces; `literals` defines the valid numbers."""
    parse_all = _parse_floats if dtype == "float32" else functools.partial(_parse_integers, dtype)
    try:
        return parse_all(texts)
    except pa.ArrowInvalid:  # Arrow refuses some valid texts, such as +5 and True.
        values = [literals.parse_literal(dtype, text) for text in texts.to_pylist()]
        return np.array(values, packed.DTYPES[dtype])


def _parse_floats(texts: pa.Array) -> np.ndarray:
    numbers = texts.cast(pa.float32())
    values = numbers.to_numpy(zero_copy_only=False)
    not_finite = texts.filter(pa.array(~np.isfinite(values)))
    # Arrow also reads nan(1) as NaN, and 1e39 as infinity.
    _require(pc.all(pc.match_substring_regex(not_finite, _NOT_FINITE), min_count=0).as_py())
    return values


def _parse_integers(dtype: str, texts: pa.Array) -> np.ndarray:
    is_plain = pc.invert(pc.match_substring(texts, "x", ignore_case=True))
    _require(pc.all(is_plain, min_count=0).as_py())  # Refuse 0x10, which Arrow would read as 16.
    numbers = texts.cast(pa.int64()).to_numpy(zero_copy_only=False)
    low, high = literals.RANGES[dtype]
    _require(((numbers >= low) & (numbers <= high)).all())
    return numbers.astype(packed.DTYPES[dtype])


def _split_lists(field: spec_lib.Field, texts: pa.Array, delimiter: str) -> packed.Lists:
    """Split texts such as a|b into lists, and drop empty parts."""
    # Refuse a text such as ['a', 'b'], which is a mistake.
    _require(not pc.any(pc.starts_with(texts, "["), min_count=0).as_py())
    parts = pc.split_pattern(texts, delimiter)
    flat = pc.utf8_trim(parts.flatten(), characters=literals.SPACES)
    rows = pc.list_parent_indices(parts).to_numpy()
    is_part = pc.not_equal(flat, "").to_numpy(zero_copy_only=False)
    flat, lengths = flat.filter(pa.array(is_part)), np.bincount(rows[is_part], minlength=len(texts))
    return packed.Lists(_read_parts(field.dtype, flat), packed.count_splits(lengths))


def _split_array(
    field: spec_lib.Field, texts: pa.Array, is_absent: np.ndarray, delimiter: str
) -> np.ndarray:
    """Split texts such as 1|2|3 into arrays, [D, ...]."""
    _require(field.dtype != "string")
    parts = pc.split_pattern(texts.filter(pa.array(~is_absent)), delimiter)
    _require(pc.all(pc.equal(pc.list_value_length(parts), field.size), min_count=0).as_py())
    shape = cast(tuple[int, ...], field.shape)
    values: np.ndarray = np.zeros([len(texts), *shape], packed.DTYPES[field.dtype])
    flat = pc.utf8_trim(parts.flatten(), characters=literals.SPACES)
    values[~is_absent] = _read_parts(field.dtype, flat).reshape(-1, *shape)
    if is_absent.any():
        _require(field.default is not None)
        values[is_absent] = field.default
    return values


def _read_parts(dtype: str, texts: pa.Array) -> Any:
    """Convert the texts of list items to texts or numbers."""
    if dtype == "string":
        return packed.encode_texts(texts)
    return _parse(dtype, texts)


def _read_lists(field: spec_lib.Field, column: pa.Array) -> packed.Values:
    """Convert a column of lists to the values of a field."""
    _require(field.shape)
    if field.is_ragged:
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        lists = packed.Lists(_read_items(field, column.flatten()), packed.count_splits(lengths))
        is_absent = column.is_null().to_numpy(zero_copy_only=False)
        return filled_fields.fill_lists(lists, is_absent, field)
    _require(not column.null_count)
    values, sizes = column, cast(tuple[int, ...], field.shape)
    if len(sizes) > 1 and not _is_list(column.type.value_type):
        sizes = (field.size,)
    for size in sizes:
        _require(_is_list(values.type))
        _require(pc.all(pc.equal(pc.list_value_length(values), size), min_count=0).as_py())
        values = values.flatten()
    items = _read_items(field, values)
    return items if isinstance(items, packed.Texts) else items.reshape(len(column), *field.shape)


def _read_items(field: spec_lib.Field, values: pa.Array) -> Any:
    """Convert the items of all lists to an array, or to texts."""
    _require(not values.null_count)
    kind = values.type
    if pa.types.is_null(kind):  # The lists of all rows are empty.
        values = values.cast(pa.string() if field.dtype == "string" else pa.float64())
        kind = values.type
    if field.dtype == "string":
        _require(is_text(kind) or _is_encoded_text(kind))
        return packed.encode_texts(_encode_texts(pa.chunked_array([values])))
    _require(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))
    are_good, numbers = number_arrays.convert(field.dtype, values.to_numpy(zero_copy_only=False))
    _require(are_good.all())
    return numbers.astype(packed.DTYPES[field.dtype], copy=False)
