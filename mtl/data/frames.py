"""A source of rows in memory: DataFrames, dicts of arrays, lists of rows.

from mtl.data import frames
data = pipeline.Pipeline(source=frames.Frames(splits={"train": train, "test": test}), spec=spec)
columns = frames.Table(frame, spec.feature_fields).read(0, 512)     # {field: 512 values}

Values in memory are interpreted like values in a CSV file. None, NaN, NA and an empty text mark an
absent value. The default of the field replaces an absent value, and an absent label becomes a
missing label. Spaces around a text are dropped. A number may be a text, and a list may be a text
such as a|b. Dates and times are texts, such as "2024-05-31".
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mtl import checks, deferred, types
from mtl import spec as spec_lib
from mtl.data import (
    chosen_rows,
    csv,
    examples,
    number_arrays,
    stored_rows,
    tfrecord,
    weighted_lists,
)
from mtl.data import source as source_lib
from mtl.deferred import tf
from mtl.files import atomic, checksums, in_work, storage
from mtl.spec import nested

with deferred.imports():
    import pyarrow as pa

    from mtl.data import columns as columns_lib
    from mtl.data import plain_types

Values: TypeAlias = Sequence[Any] | np.ndarray

# NumPy's kinds of numbers, texts and objects; other kinds, such as durations, are errors.
_KINDS = "biufOUS"
_TIMES = (datetime.date, datetime.time, np.datetime64)  # `datetime.datetime` is a `datetime.date`.
_ABSENT = ("NAType", "NaTType")  # Types of absent values in pandas.
_ARRAYS = {"float32": np.float32, "string": object}
_ROWS_AT_ONCE = 10_000
PLAIN_CSV = csv.Csv(files={"input": ""})
_FORMS = "be a DataFrame, an Arrow table, a dict of arrays or a list of dicts"


class Table:
    """Reads fields from rows in memory.

    Args:
      data: a DataFrame, an Arrow table, {name: [N, ...]}, or a list of {name: value}; other columns
        are ignored.
      fields: the fields to read.
      where: the name of the data in error messages.
      cells: the settings that say how texts are parsed: the texts that mark absent values, and the
        characters between the values of a list.
      name_row: a function from a row number to the location of the row, for errors.

    Raises:
      UserError: `data` has another type, lacks a field, or has columns of different lengths.
    """

    def __init__(
        self,
        data: Any,
        fields: Mapping[str, spec_lib.Field],
        where: str = "the data",
        cells: csv.Csv = PLAIN_CSV,
        name_row: Callable[[int], str] | None = None,
    ):
        self._where, self._cells, self._name_row = where, cells, name_row or self._count_row
        self._weighted = spec_lib.find_weighted(fields)
        if self._weighted:
            fields = weighted_lists.mark_parts(fields, _list_columns(where, data))
        count_names = {
            spec_lib.counts_name(name) for name, field in fields.items() if field.is_nested
        }
        self._read = [field for name, field in fields.items() if name not in count_names]
        names = list(dict.fromkeys(field.column for field in self._read))
        columns, self._index = _select_columns(where, data, names)
        self._columns = {
            name: _to_array(f"{where}: {name!r}", values) for name, values in columns.items()
        }
        self._rows = self._require_one_length()

    def _require_one_length(self) -> int:
        """Return the number of rows; fail if columns differ in length."""
        lengths = {name: len(values) for name, values in self._columns.items()}
        first, count = next(iter(lengths.items()))
        for name, length in lengths.items():
            rule = f"hold {count} values, as {first!r} does"
            checks.require(length == count, f"{self._where}: {name!r}", rule, length)
        return count

    def __len__(self) -> int:
        return self._rows

    def read(self, start: int, stop: int) -> dict[str, Values]:
        """Return {field: B values} of the rows from `start` up to `stop`.

        Raises:
          UserError: a value does not suit its field; the error names the row and the field.
        """
        columns: dict[str, Values] = {}
        for field in self._read:
            values = self._columns[field.column][start:stop]
            try:
                columns[field.name] = _read_column(field, self._cells, values)
            except number_arrays.BadValueError as error:
                row = start + error.row
                problem = f"field {field.name!r} {error}"
                raise checks.UserError(f"{self._name_row(row)}: {problem}.") from error
            if field.is_nested:
                counts = [
                    [len(item) for item in _read_parts(field, self._cells, value) or ()]
                    for value in values
                ]
                name = spec_lib.counts_name(field.name)
                columns[name] = [np.array(row_counts, np.int64) for row_counts in counts]
        self._check_weights(columns, start)
        return columns

    def _check_weights(self, columns: Mapping[str, Values], start: int) -> None:
        """Fail if a list has more or fewer weights than values; `start` is the first row."""
        for weights, name in self._weighted.items():
            pairs = zip(columns[name], columns[weights], strict=True)
            for row, sizes in enumerate([len(part) for part in pair] for pair in pairs):
                rule = f"hold a weight for each value of {name!r}, {sizes[0]}"
                where = f"{self._name_row(start + row)}: field {weights!r}"
                checks.require(sizes[0] == sizes[1], where, rule, sizes[1])

    def serialize(self) -> Iterator[np.ndarray]:
        """Yield all rows as serialized tf.Examples [B], in batches of up to 10,000."""
        for start in range(0, len(self), _ROWS_AT_ONCE):
            yield examples.serialize_examples(self.read(start, start + _ROWS_AT_ONCE))

    def holds_whole_numbers(self, name: str) -> bool:
        """Return True if a column holds whole numbers, such as 7 or 7.0.

        Args:
          name: the column. Absent values of the column are ignored; if all values are absent, the
            result is False.
        """
        values = [value for value in self._columns[name].tolist() if not _is_absent(value)]
        kinds = set(map(type, values))
        return bool(kinds) and kinds <= {int, float} and all(value % 1 == 0 for value in values)

    def _count_row(self, row: int) -> str:
        label = None if self._index is None else self._index[row]
        is_same = self._index is None or label == row
        return f"{self._where} row {row}" + ("" if is_same else f", index {label!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Frames(types.Source):
    """A source of rows in memory.

    `mtl.train` calls `store`, which writes the rows into the folder of the run, so that commands
    can read the rows.

    Attributes:
      splits: {split: a DataFrame, an Arrow table, a dict of arrays or a list of dicts}.
      cells: the settings that say how texts are parsed; see `Table`.
    """

    splits: Mapping[str, Any]
    cells: csv.Csv = PLAIN_CSV

    def __post_init__(self):
        rule = "map splits to DataFrames, dicts of arrays or lists of dicts"
        checks.mapping("Frames.splits", self.splits, rule)
        checks.require(bool(self.splits), "Frames.splits", "name a split", dict(self.splits))

    def table(self, split: str, fields: Mapping[str, spec_lib.Field]) -> Table:
        """Return a table that reads fields of a split.

        Args:
          split: the name of the split, such as "train".
          fields: {name: field} of the fields to read.

        Raises:
          UserError: the split does not exist, or `Table` refuses its rows.
        """
        checks.one_of("Frames.splits", split, self.splits)
        return Table(self.splits[split], fields, f"split {split!r}", self.cells)

    def find_key_type(self, name: str) -> str:
        """Return "int64" if the first split has whole numbers in a column, else "string"."""
        split = next(iter(self.splits))
        table = self.table(split, {name: spec_lib.Field(name=name, dtype="int64")})
        return "int64" if table.holds_whole_numbers(name) else "string"

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split as {"split": split number, "row": row number}."""
        checks.one_of("Frames.splits", split, self.splits)
        number, rows = list(self.splits).index(split), _count_rows(self.splits[split])
        splits = source_lib.repeat_value(np.int64(number))
        return tf.data.Dataset.zip({"split": splits, "row": tf.data.Dataset.range(rows)})

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, Any]:
        """Turn row numbers [B] into the values of fields, {name: [B, ...]}."""
        fields = spec.fields if with_labels else spec.feature_fields
        serialize = functools.cache(functools.partial(self._serialize, fields))

        def take(splits: np.ndarray, rows: np.ndarray) -> np.ndarray:
            numbers = zip(splits, rows, strict=True)
            return np.array([serialize(split)[row] for split, row in numbers], object)

        examples = tf.numpy_function(
            take, [batch["split"], batch["row"]], tf.string, stateful=False
        )
        examples.set_shape([batch["row"].shape[0]])
        return spec.parse(examples, with_labels)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each row of a split."""
        rows = (row for block in self.table(split, spec.fields).serialize() for row in block)
        for number, row in enumerate(rows):
            yield f"split {split!r} row {number}", tfrecord.scan_record(row, spec)

    def _serialize(self, fields: Mapping[str, spec_lib.Field], split: int) -> np.ndarray:
        table = self.table(list(self.splits)[split], fields)
        return np.concatenate(list(table.serialize()))


def store(source: types.Source, spec: spec_lib.Spec, folder: str) -> types.Source:
    """Write rows in memory to files, and return a source that reads the files.

    `source` may be `Frames`, or contain `Frames`; any other source is returned unchanged. A file
    name, `<split>-<checksum>.tfrecord`, contains a checksum of the rows. So a file is overwritten
    only by the same rows, never by different rows.

    Args:
      source: the source of the rows.
      spec: the fields to write, including labels.
      folder: the folder of the files, which is created if necessary.

    Raises:
      UserError: a row is malformed, or `folder` cannot be written.
    """
    return _store(source, spec, folder, _Cuts(frozenset(), frozenset()))


class _Cuts(NamedTuple):
    """The splits that a source around `Frames` divides, and the keys that decide the division.

    Attributes:
      splits: the names of the splits that the source divides.
      keys: the fields that decide the split of a row; undivided splits may lack these fields.
    """

    splits: frozenset[str]
    keys: frozenset[str]


def _store(source: types.Source, spec: spec_lib.Spec, folder: str, cuts: _Cuts) -> types.Source:
    if isinstance(source, Frames):
        tables = {split: _read_split(source, split, spec, cuts) for split in source.splits}
        folder = storage.make_absolute(folder)
        tf.io.gfile.makedirs(folder)
        names = {split: _store_split(table, split, folder) for split, table in tables.items()}
        if source.cells == PLAIN_CSV:
            return tfrecord.TfRecord(files=names, data_dir=folder)
        return stored_rows.StoredRows(files=names, data_dir=folder, cells=source.cells)
    change_sources = getattr(source, "change_sources", None)
    if change_sources is not None:  # Inner sources have only some of the fields.
        return change_sources(spec, lambda part, fields: _store(part, fields, folder, cuts))
    if isinstance(source, chosen_rows.ChosenRows):
        # Write the keys, too, because without keys, rows of one key would get into different
        # splits.
        wide_spec = source.add_keys(spec)
        keys = cuts.keys.union(set(wide_spec.features).difference(spec.features))
        cuts, spec = _Cuts(cuts.splits | {source.split}, keys), wide_spec
    inner = getattr(source, "source", None)
    files = None if inner is None else _store(inner, spec, folder, cuts)
    return source if files is inner else dataclasses.replace(source, source=files)  # type: ignore


def _read_split(source: Frames, split: str, spec: spec_lib.Spec, cuts: _Cuts) -> Table:
    lacking: frozenset[str] = frozenset()
    if cuts.keys and split not in cuts.splits:
        lacking = cuts.keys.difference(_name_columns(source.splits[split]))
    table = source.table(split, {n: f for n, f in spec.fields.items() if n not in lacking})
    checks.scope_name("Frames.splits", split)  # The split is part of a file name.
    checks.require(len(table) > 0, f"split {split!r}", "hold a row", 0)
    return table


def _name_columns(data: Any) -> list[Any]:
    """Return the column names of a table in memory."""
    if isinstance(data, (list, tuple)):
        return [key for row in data if isinstance(row, Mapping) for key in row]
    if isinstance(data, Mapping):
        return list(data)
    # An Arrow table has `columns`, too, which are not names. `mtl.fit` stores the column 0 of a
    # DataFrame as "0".
    return list(map(str, getattr(data, "column_names", getattr(data, "columns", ()))))


def _store_split(table: Table, split: str, folder: str) -> str:
    """Write the rows of a split to a file, and return the file name."""
    # The final name contains a checksum, which is known only after the last row.
    draft_path = os.path.join(folder, f".{split}-{in_work.make_token()}.rows")
    with atomic.replacing(draft_path) as partial:
        with tf.io.TFRecordWriter(partial) as writer:
            for block in table.serialize():
                for row in block:
                    writer.write(row)
        name = f"{split}-{checksums.of_file(partial).removeprefix('crc32:')}.tfrecord"
    tf.io.gfile.rename(draft_path, os.path.join(folder, name), overwrite=True)
    return name


def _list_columns(where: str, data: Any) -> Collection[str]:
    """Return the column names of a table in memory, and check the type of each row."""
    if isinstance(data, (list, tuple)):
        for row in data:
            checks.is_a(where, row, Mapping, _FORMS)
    return set(_name_columns(data))


def _select_columns(where: str, data: Any, names: Sequence[str]) -> tuple[dict[str, Any], Any]:
    """Return {column: values}, and the index of a DataFrame or None."""
    if isinstance(data, Mapping):
        _require_columns(where, names, list(data))
        return {name: data[name] for name in names}, None
    if isinstance(data, (list, tuple)):
        return _columns_of_rows(where, data, names), None
    is_frame = hasattr(data, "columns") and hasattr(data, "__len__")  # Lazy frames have no length.
    fix = "One row is [{'age': 39}], or frame.iloc[[0]]."
    checks.require(is_frame, where, _FORMS, type(data).__name__, fix)
    columns = _name_columns(data)
    _require_columns(where, names, columns)
    for name in names:
        checks.require(columns.count(name) == 1, where, f"hold one column {name!r}", columns)
    if hasattr(data, "column_names"):
        return {name: _read_arrow(f"{where}: {name!r}", data.column(name)) for name in names}, None
    keys = dict(zip(columns, data.columns, strict=True))
    return {name: data[keys[name]] for name in names}, getattr(data, "index", None)


def _read_arrow(where: str, column: pa.ChunkedArray | pa.Array) -> Any:
    """Return the values of a column of an Arrow table, or of a record batch."""
    column = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    column = plain_types.convert(column)
    return columns_lib.guard(where, lambda: columns_lib.to_python(where, column))


def _columns_of_rows(
    where: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, list[Any]]:
    for row in rows:
        checks.is_a(where, row, Mapping, _FORMS)
    # A list without rows has no keys, so all columns count as present.
    keys = dict.fromkeys(key for row in rows for key in row) if rows else names
    _require_columns(where, names, list(keys))
    return {name: [row.get(name) for row in rows] for name in names}


def _require_columns(where: str, names: Sequence[str], columns: Sequence[Any]) -> None:
    for name in names:
        if name not in columns:
            checks.fail(where, f"have the column {name!r}", columns, checks.nearest(name, columns))


def _count_rows(data: Any) -> int:
    return len(next(iter(data.values()), ())) if isinstance(data, Mapping) else len(data)


def _to_array(where: str, values: Any) -> np.ndarray:
    """Convert a column to an array, of objects unless all values are numbers."""
    column = _find_arrow(values)
    if column is not None:
        values = _read_arrow(where, column)
    elif hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()
    if isinstance(values, (list, tuple)):
        values = _list_to_array(values)
    elif not isinstance(values, np.ndarray) and hasattr(values, "__array__"):
        values = np.asarray(values)
    rule, fix = "hold a value for each row", "One row is [{'age': 39}]."
    is_array = isinstance(values, np.ndarray) and values.ndim > 0
    checks.require(is_array, where, rule, values, fix)
    fix = "Turn the column into text or numbers."
    checks.require(values.dtype.kind in _KINDS, where, "hold text or numbers", values.dtype, fix)
    return values


def write_mixed_times(values: Any) -> Any:
    """Return a column; if its times differ in type or time zone, the times become texts.

    Arrow would give all times the type and the zone of the first time, so that the value of a row
    would depend on other rows.

    Args:
      values: a column of any kind. If all its times have the same type and zone, the function
        returns the column itself.
    """
    # Only lists and arrays of objects can mix times; columns with a type of pandas or Arrow cannot.
    is_of_objects = isinstance(values, list | tuple) or getattr(values, "dtype", None) == np.object_
    if not is_of_objects or not _holds_times(values):
        return values
    items = list(values)
    groups = _group_times(items)
    if len(groups) < 2:
        return values
    for rows in groups:
        try:
            texts = pa.array([items[row] for row in rows]).cast(pa.string()).to_pylist()
        except pa.ArrowException:  # Arrow lacks some units of NumPy, such as minutes.
            texts = [str(items[row]) for row in rows]
        for row, text in zip(rows, texts, strict=True):
            items[row] = text
    return items


def _group_times(items: Sequence[Any]) -> list[list[int]]:
    """Return a list of row numbers for each type and time zone of the times."""
    rows_by_kind: dict[tuple[type, str], list[int]] = {}
    for row, value in enumerate(items):
        if isinstance(value, _TIMES) and not _is_absent(value):
            kind = type(value), str(getattr(value, "tzinfo", None))
            rows_by_kind.setdefault(kind, []).append(row)
    return list(rows_by_kind.values())


def _find_arrow(values: Any) -> pa.ChunkedArray | None:
    """Return a column of Arrow, of polars, or of a type that NumPy lacks; None for other columns.

    `mtl.fit` stores columns of Arrow, of polars, or of such a type in Arrow files, so their values
    in memory must equal the values in a file. NumPy would turn an integer column with an absent
    value into floats, which round large ids.
    """
    if hasattr(values, "to_arrow"):  # polars
        values = values.to_arrow()
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, pa.Array):
        return pa.chunked_array([values])
    kind = getattr(values, "dtype", None)
    if kind is not None and not isinstance(kind, np.dtype):
        return _make_arrow(values)
    if not _holds_times(values):
        return None
    written = write_mixed_times(values)
    column = _make_arrow(written)
    is_of_times = column is not None and pa.types.is_temporal(column.type)
    return column if is_of_times or written is not values else None


def _make_arrow(values: Any) -> pa.ChunkedArray | None:
    try:
        return pa.chunked_array([pa.array(values, from_pandas=True)])
    except (pa.ArrowException, TypeError, ValueError):  # Arrow refuses times among numbers.
        return None


def _holds_times(values: Any) -> bool:
    # Times with a zone have the kind "M" in pandas, too.
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    if kind != "O" or not hasattr(values, "__iter__") or getattr(values, "ndim", 1) == 0:
        return kind == "M"
    return any(isinstance(value, _TIMES) for value in values)


def _list_to_array(values: Sequence[Any]) -> np.ndarray:
    kinds = set(map(type, values))
    if kinds in ({int}, {float}, {bool}):  # NumPy would turn mixed types into floats.
        array = np.array(values)
        # NumPy turns integers beyond 64 bits into floats.
        if kinds == {float} or array.dtype.kind != "f":
            return array
    array = np.empty(len(values), object)
    for row, value in enumerate(values):  # `np.array` would turn lists into a matrix.
        array[row] = value
    return array


def _read_column(field: spec_lib.Field, cells: csv.Csv, values: np.ndarray) -> Values:
    """Convert a column to the values of a field: an array [B, ...], or a list of B arrays.

    Raises:
      number_arrays.BadValueError: a value does not suit the field.
    """
    # Arrays of numbers are converted at once, and all other values one by one.
    is_one = values.ndim == 1 and not field.is_ragged and field.size == 1
    fits = not field.is_ragged and values.shape[1:] in (field.shape, (field.size,))
    if values.dtype.kind in "biuf" and (is_one or fits):
        return number_arrays.read_numbers(field, values)
    items = _read_each(field, cells, values)
    kind = _ARRAYS.get(field.dtype, np.int64)
    if field.is_ragged:
        return [np.array(item, kind) for item in items]
    array = np.array(items, kind)
    return array.reshape(len(items), field.size) if field.shape else array


def _read_each(field: spec_lib.Field, cells: csv.Csv, values: np.ndarray) -> list[Any]:
    """Convert values to the type of a field one by one; equal texts are parsed only once."""
    items: list[Any] = []
    texts: dict[str, Any] = {}
    for row, value in enumerate(values):
        if type(value) is not str:
            # Only texts are cached: other values may lack a hash, and 1 == True although they
            # differ.
            items.append(_read_one(field, cells, row, value))
            continue
        if value not in texts:
            texts[value] = _read_one(field, cells, row, value)
        items.append(texts[value])
    return items


def _read_one(field: spec_lib.Field, cells: csv.Csv, row: int, value: Any) -> Any:
    try:
        parts = _read_parts(field, cells, value)
        if parts is None and field.is_required:
            return number_arrays.find_default(field, row)
        if parts is not None and field.is_nested:
            parts = nested.flatten(field, parts)
        return field.value(parts)
    except number_arrays.BadValueError:
        raise
    except (TypeError, ValueError) as error:
        names_value = isinstance(error, ValueError) and not isinstance(value, (int, float))
        problem = str(error) if names_value else number_arrays.describe_problem(field, value)
        raise number_arrays.BadValueError(row, problem) from error


def _read_parts(field: spec_lib.Field, cells: csv.Csv, value: Any) -> list[Any] | None:
    """Return the values in a cell; nested lists give a list for each item. None if absent.

    Raises:
      ValueError: the value has a wrong type or form.
    """
    value = _to_plain(field, value)
    if _is_absent(value):
        return None
    if isinstance(value, str):
        if field.is_ragged and nested.is_written_list(value):
            raise ValueError(f"must be a list or a text such as 'a|b', got {reprlib.repr(value)}")
        return cells.read_cell(value, field)
    if field.part_of:
        return weighted_lists.take_part(field, value)
    if isinstance(value, list):
        return value if field.is_nested else nested.flatten(field, value)
    return [value]


def _is_absent(value: Any) -> bool:
    is_nan = isinstance(value, float) and value != value
    return value is None or is_nan or type(value).__name__ in _ABSENT


def _to_plain(field: spec_lib.Field, value: Any) -> Any:
    """Convert a value to plain Python: arrays and tuples to lists, bytes to text."""
    if isinstance(value, (np.datetime64, np.timedelta64)):  # `tolist` may turn times into integers.
        raise ValueError(number_arrays.describe_problem(field, value))
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError("must be text in UTF-8") from None
    if isinstance(value, (list, tuple)):
        return [_to_plain(field, part) for part in value]
    return value
