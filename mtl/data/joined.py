"""A source that joins tables, such as of users and items, to the rows of another source by key.

from mtl.data import joined
pipeline.Pipeline.source = @joined.Joined()
joined.Joined.source = @clicks/csv.Csv()
joined.Joined.tables = {"user": @users/arrow.Arrow(), "item": @items/csv.Csv()}
joined.Joined.fields = {"user": ["age", "country"], "item": ["price"]}

The tables are in memory as packed values. When a row of the source is decoded, the row of each
table is found by the key. The joined fields are features or labels of the Spec like all other
fields.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, cast

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import chosen_rows, filled_fields, memory_rows, packed, pipeline
from mtl.data import source as source_lib
from mtl.deferred import tf

# A whole number that is written as a float, such as 7.0.
_WHOLE = re.compile(rb"([+-]?[0-9]+)\.0*")
_KEY_TYPES = ("int64", "string")
# `take_rows` returns a dict: `_RECORD` holds the records of the inner source, and `_NUMBERS` holds
# the row numbers.
_RECORD, _NUMBERS = "record", "row of the join"


class AbsentKeyError(ValueError):
    """The table lacks the key of a row, and a field of the table has no default."""


class _Table(NamedTuple):
    """Fields of a table in memory.

    Attributes:
      where: the name of the table in error messages.
      places: {text of a key: row number}.
      num_rows: the number of rows.
      fields: {name: field}.
      values: {name: values of all rows}; an additional last row holds the defaults.
      rows: `values` in a form from which batches of rows are gathered fast; None without fields.
      required: the name of a field without a default; "" if all fields have a default.
    """

    where: str
    places: Mapping[bytes, int]
    num_rows: int
    fields: Mapping[str, spec_lib.Field]
    values: Mapping[str, packed.Values]
    rows: memory_rows.Rows | None
    required: str

    def find_rows(self, keys: Any) -> np.ndarray:
        """Return the row numbers of keys, int64 [B]; -1 if the table lacks a key.

        Args:
          keys: the keys of B rows: packed texts, or an array of int64 or bytes.
        """
        if isinstance(keys, packed.Texts):
            return self._look_up(keys.distinct.to_pylist())[keys.numbers]
        if keys.dtype.kind != "i":
            return self._look_up(keys.tolist())
        # Many rows have the same key, so each distinct key is looked up once.
        distinct, places = np.unique(keys, return_inverse=True)
        return self._look_up([_spell_key(key) for key in distinct.tolist()])[places]

    def _look_up(self, texts: Sequence[bytes]) -> np.ndarray:
        row_numbers = map(self.places.get, texts, itertools.repeat(-1))
        rows = np.fromiter(row_numbers, np.int64, len(texts))
        # The table may have an unmatched key in another spelling, such as 7 for 7.0.
        for place in np.flatnonzero(rows < 0).tolist():
            rows[place] = self.places.get(_spell_key(texts[place]), -1)
        return rows

    def choose_rows(self, keys: Any) -> np.ndarray:
        """Return the row numbers of keys; a key that the table lacks gets the row of defaults.

        Raises:
          AbsentKeyError: the table lacks a key, and a field of the table has no default.
        """
        return self.fill_rows(self.find_rows(keys))

    def fill_rows(self, rows: np.ndarray) -> np.ndarray:
        """Replace -1 in row numbers by the number of the row that holds the defaults.

        Raises:
          AbsentKeyError: the table lacks a key, and a field of the table has no default.
        """
        is_absent = rows < 0
        if self.required and is_absent.any():
            raise AbsentKeyError(self.explain())
        # The defaults are in the additional row behind the rows of the table.
        rows[is_absent] = self.num_rows
        return rows

    def take(self, find: Callable[[np.ndarray], np.ndarray], keys: tf.Tensor) -> dict[str, Any]:
        """Return {name: [B, ...]}; `find` turns `keys` into row numbers of the table, [B]."""
        rows = tf.numpy_function(find, [keys], tf.int64, stateful=False)
        # The result of a Python function has no static shape.
        rows.set_shape(keys.shape)
        load = functools.partial(_return_first, self.rows)
        return memory_rows.take(memory_rows.Layout(self.fields), load, tf.zeros_like(rows), rows)

    def explain(self) -> str:
        """Return the error message for a key that the table lacks."""
        return f"{self.where} lacks the key, and field {self.required!r} has no default"


@checks.dataclass
class Joined(types.Source):
    """A source that adds fields of tables to its rows, by key.

    A key is a column of both the source and the table, and holds texts or whole numbers; 7 and 7.0
    are equal keys. The Spec need not name the key. If a row has no key, or a key that the table
    lacks, the joined fields get their defaults; a new run logs the number of such rows. If a joined
    field has no default, a row without its key in the table is an error. A table without any key of
    the training split is also an error.

    Every process keeps the tables in memory. Requests to an exported model must contain the joined
    fields, like all other features; the input of `launch.predict --input` needs a column for each
    joined field.

    Attributes:
      source: the source of the rows.
      tables: {key: source of the table}; the table has at most one row for each key.
      fields: {key: names of the fields that the table with this key adds}. The source must not have
        columns with the names of the added fields.
      table_split: the split of each table that is read.
    """

    source: Annotated[types.Source, source_lib.check]
    tables: Annotated[
        Mapping[str, Annotated[types.Source, source_lib.check]],
        checks.Map("map keys to sources of tables"),
        checks.Filled("name a key"),
    ]
    fields: Annotated[Mapping[str, Sequence[str]], checks.Map("map keys to fields of their table")]
    table_split: Annotated[str, checks.Is(str, "name a split")] = "train"

    def __post_init__(self):
        for key, names in self.fields.items():
            checks.one_of("Joined.fields", key, self.tables)
            checks.texts(f"Joined.fields[{key!r}]", names, "be a list of names")
            for name in names:
                rule = "leave out keys; put another Joined around this one to join by its fields"
                checks.require(name not in self.tables, f"Joined.fields[{key!r}]", rule, name)
        checks.unique("Joined.fields", [name for names in self.fields.values() for name in names])
        for key, table in self.tables.items():
            rule = f"name the fields of the table by {key!r}"
            checks.require(bool(self.fields.get(key)), "Joined.fields", rule, dict(self.fields))
            is_plain = not types.read_member(table, types.Source, "orders_rows")
            is_plain = is_plain and not source_lib.names_files(table)
            rule = "be a table, neither a mixture nor with paths of images"
            name = type(table).__name__
            checks.require(is_plain, f"Joined.tables[{key!r}]", rule, name)

    @property
    def names(self) -> list[str]:
        """The columns of the source and the joined fields; [] if the source has no column names."""
        names = list(getattr(self.source, "names", ()))
        return [*names, *itertools.chain(*self.fields.values())] if names else []

    def find_key_type(self, name: str) -> str:
        """Return the type of a key, "int64" or "string", as splits and joins read the field."""
        for key, names in self.fields.items():
            if name in names:
                return types.read_member(self.tables[key], types.Source, "find_key_type")(name)
        return types.read_member(self.source, types.Source, "find_key_type")(name)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the raw records of the inner source."""
        return self.source.records(split)

    def blocks(self, split: str) -> tf.data.Dataset | None:
        """Return the raw records of the inner source in batches; None if it has no `blocks`."""
        return types.read_shortcut(self.source, "blocks")(split)

    def shard(self, split: str, num_shards: int, shard: int) -> Joined | None:
        """Return a source for a shard of the files; None if the inner source cannot be divided."""
        part = types.read_member(self.source, types.Source, "shard")(split, num_shards, shard)
        return part and dataclasses.replace(self, source=part)

    def estimate_bytes(self, split: str) -> int | None:
        """Estimate the memory of all rows, as if a joined field took as much as another column."""
        size = types.read_shortcut(self.source, "estimate_bytes")(split)
        columns = len(getattr(self.source, "names", ()))
        joined = sum(map(len, self.fields.values()))
        return size and size * (columns + joined) // max(columns, 1)

    def list_rows(self, split: str) -> np.ndarray | None:
        """Return the row numbers of a split; None if the inner source does not list row numbers."""
        return types.read_shortcut(self.source, "list_rows")(split)

    def take_rows(self, split: str, rows: tf.Tensor) -> Mapping[str, Any]:
        """Return the raw records for row numbers, int64 [B], together with the row numbers.

        With row numbers, the key of each row is looked up only once, not again in every epoch.
        """
        return {_RECORD: self.source.take_rows(split, rows), _NUMBERS: {split: rows}}

    def decode(self, batch: Any, spec: spec_lib.Spec, with_labels: bool) -> dict[str, Any]:
        """Decode a batch with the inner source, and add the fields of the tables.

        Raises:
          UserError: when the graph is built, if a table has a bad row, or two rows with one key.
          InvalidArgumentError: when the graph runs, if a table lacks a key, and a field of the
            table has no default.
        """
        fields = spec.fields if with_labels else spec.feature_fields
        is_numbered = isinstance(batch, Mapping) and _NUMBERS in batch
        source_spec, parts = self._divide(fields, spec, with_keys=not is_numbered)
        tables = self._load_all(parts, spec)
        values: dict[str, Any] = {}
        if source_spec is not None:
            with self._suggest_fields():
                record = batch[_RECORD] if is_numbered else batch
                values |= self.source.decode(record, source_spec, True)
        for key, table in tables.items():
            find: Callable[[np.ndarray], np.ndarray] = table.choose_rows
            keys = values.get(key)
            if is_numbered:
                ((split, keys),) = batch[_NUMBERS].items()
                narrow = filled_fields.narrow_spec(spec, [key])
                key_spec = _specify_key(self.source, narrow, key)
                find = functools.partial(self._find_rows, split, key_spec, table)
            values |= table.take(find, keys)
        return {name: values[name] for name in fields}

    def _find_rows(
        self, split: str, key_spec: spec_lib.Spec, table: _Table, numbers: np.ndarray
    ) -> np.ndarray:
        """Return the table row of each row number of a split, int64 [B]."""
        lock, cache = self._place_cache
        # The cache depends on the key's field, because its default in the Spec may be a key of the
        # table.
        cache_key = split, repr(key_spec.fields)
        # Several threads of tf.data call this method; the first thread reads all keys of the split.
        with lock:
            if cache_key not in cache:
                all_numbers = cast(np.ndarray, self.list_rows(split))
                # The cache holds all rows of the split, and int32 takes half the memory of int64.
                rows = self._read_rows(split, key_spec, table, all_numbers).astype(np.int32)
                cache[cache_key] = all_numbers, rows
            all_numbers, rows = cache[cache_key]
        # Without gaps in the row numbers, a row number is also an index.
        is_whole = len(all_numbers) == all_numbers[-1] + 1
        places = numbers if is_whole else np.searchsorted(all_numbers, numbers)
        return table.fill_rows(rows[places].astype(np.int64))

    def _read_rows(
        self, split: str, key_spec: spec_lib.Spec, table: _Table, all_numbers: np.ndarray
    ) -> np.ndarray:
        """Return the table row of each row of a split, int64 [N]."""
        (key,) = key_spec.fields
        blocks = types.read_shortcut(self.source, "read_values")(split, key_spec)
        if blocks is not None:
            # If `read_values` cannot read the rows, `read_field` decodes them below.
            with contextlib.suppress(types.DecodeOnlyError):
                return np.concatenate([table.find_rows(block[key]) for block in blocks])
        return table.find_rows(source_lib.read_field(self.source, split, all_numbers, key_spec))

    @functools.cached_property
    def _place_cache(self) -> tuple[threading.Lock, dict[tuple[str, str], Any]]:
        """A lock, and the cache {(split, key): (row numbers, the table's row for each row)}."""
        return threading.Lock(), {}

    def read_values(
        self, split: str, spec: spec_lib.Spec
    ) -> Iterable[Mapping[str, packed.Values]] | None:
        """Return the values of a split in blocks; None if only `decode` can read the values.

        Raises:
          UserError: a table has a bad row, or two rows with one key.
        """
        source_spec, parts = self._divide(spec.fields, spec)
        with self._suggest_fields():
            blocks = types.read_shortcut(self.source, "read_values")(split, source_spec)
        if blocks is None:
            return None
        return self._join_blocks(blocks, self._load_all(parts, spec), spec.fields)

    def _join_blocks(
        self,
        blocks: Iterable[Mapping[str, packed.Values]],
        tables: Mapping[str, _Table],
        fields: Mapping[str, spec_lib.Field],
    ) -> Iterator[dict[str, packed.Values]]:
        for block in blocks:
            try:
                values = _join_block(block, tables, fields)
            except AbsentKeyError as error:
                raise types.DecodeOnlyError from error  # `decode` names the bad row.
            yield values

    def list_blocks(self, split: str, spec: spec_lib.Spec) -> types.Blocks | None:
        """Return blocks of a split with the joined fields; None if the source has no blocks."""
        source_spec, _ = self._divide(spec.fields, spec)
        with self._suggest_fields():
            blocks = types.read_shortcut(self.source, "list_blocks")(split, source_spec)
        if blocks is None:
            return None

        @functools.cache
        def divide(names: Sequence[str]) -> Any:
            return self._divide({name: spec.fields[name] for name in names}, spec)

        def read(block: int, fields: Mapping[str, spec_lib.Field]) -> Mapping[str, packed.Values]:
            block_spec, parts = divide(tuple(fields))
            values = blocks.read(block, block_spec.fields)
            return _join_block(values, self._load_all(parts, spec), fields)

        return blocks._replace(read=read)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each record of a split.

        Raises:
          UserError: a table has a bad row, or two rows with one key.
        """
        source_spec, parts = self._divide(spec.fields, spec)
        tables = self._load_all(parts, spec)
        with self._suggest_fields():
            for location, values in self.source.scan(split, source_spec):
                if not isinstance(values, str):
                    yield location, _join_row(values, tables, spec)
                else:
                    yield location, values

    def change_sources(
        self, spec: spec_lib.Spec, change: Callable[[types.Source, spec_lib.Spec], types.Source]
    ) -> Joined:
        """Return a copy with other inner sources.

        Args:
          spec: the fields to read from the joined rows.
          change: a function from an inner source, and from a specification of its fields, to the
            source that replaces it.

        Returns:
          The copy. Tables without a field in `spec` are unchanged.
        """
        source_spec, parts = self._divide(spec.fields, spec)
        tables = dict(self.tables)
        for key, fields in parts.items():
            tables[key] = change(tables[key], self._specify_table(key, fields, spec))
        return dataclasses.replace(self, source=change(self.source, source_spec), tables=tables)

    def describe_absent_keys(self, split: str) -> list[str]:
        """Return a warning for each table that lacks some keys of a split.

        Raises:
          UserError: a table lacks all keys of the split.
        """
        lines = []
        for key in self.tables:
            where = self._name_table(key)
            key_spec = _specify_key(self.source, None, key)
            table = self._load(key, {}, key_spec)
            rows, absent, example = 0, 0, b""
            for block in chosen_rows.read_fields(self.source, split, key_spec):
                is_absent = table.find_rows(block[key]) < 0
                rows, absent = rows + len(is_absent), absent + int(is_absent.sum())
                example = example or next(iter(block[key][is_absent].tolist()), b"")
            rule = f"hold keys of the split {split!r}"
            fix = f"None of {rows:,} rows has its {key!r} there."
            checks.require(absent < rows or not rows, where, rule, example, fix)
            share = f"{absent:,} of {rows:,} rows ({absent / max(rows, 1):.1%})"
            line = f"{where} lacks the {key!r} of {share}: they have the defaults of its fields."
            lines += [line] * bool(absent)
        return lines

    def _divide(
        self, fields: Mapping[str, spec_lib.Field], spec: spec_lib.Spec, with_keys: bool = True
    ) -> tuple[Any, dict[str, dict[str, spec_lib.Field]]]:
        """Divide fields into a specification for the source, and {key: fields of the table}.

        The specification includes the keys of the tables. If `with_keys` is False, the
        specification lacks the keys, and is None if tables hold all fields.
        """
        parts: dict[str, dict[str, spec_lib.Field]] = {}
        for key, names in self.fields.items():
            all_names = {*names, *map(spec_lib.counts_name, names)}
            all_names |= set(map(spec_lib.weights_name, names))
            table_fields = {name: field for name, field in fields.items() if name in all_names}
            if table_fields:
                parts[key] = table_fields
        joined_names = set(itertools.chain(*parts.values()))
        source_spec = filled_fields.narrow_spec(
            spec, [name for name in fields if name not in joined_names]
        )
        for key in parts if with_keys else ():
            source_spec = _specify_key(self.source, source_spec, key)
        return source_spec, parts

    def _specify_table(
        self, key: str, fields: Mapping[str, spec_lib.Field], spec: spec_lib.Spec
    ) -> spec_lib.Spec:
        """Return a specification of some fields of a table, and of the key."""
        narrow = filled_fields.narrow_spec(spec, list(fields))
        return _specify_key(self.tables[key], narrow, key)

    def _load_all(
        self, parts: Mapping[str, Mapping[str, spec_lib.Field]], spec: spec_lib.Spec
    ) -> dict[str, _Table]:
        return {key: self._load(key, fields, spec) for key, fields in parts.items()}

    @functools.cached_property
    def _table_cache(self) -> tuple[threading.Lock, dict[Any, _Table]]:
        """A lock for the threads of tf.data, and the cache {(key, fields): table}."""
        return threading.Lock(), {}

    def _load(self, key: str, fields: Mapping[str, spec_lib.Field], spec: spec_lib.Spec) -> _Table:
        """Return some fields of a table; the first call reads the table."""
        lock, cache = self._table_cache
        cache_key = key, repr(fields)
        with lock:
            if cache_key not in cache:
                cache[cache_key] = self._read_table(key, fields, spec)
            return cache[cache_key]

    def _read_table(
        self, key: str, fields: Mapping[str, spec_lib.Field], spec: spec_lib.Spec
    ) -> _Table:
        where = self._name_table(key)
        columns = source_lib.list_columns(self.source)
        for name in fields:
            rule = "name fields that the source lacks"
            fix = "Leave the field out to read it from the source, or rename one column."
            checks.require(name not in columns, f"Joined.fields[{key!r}]", rule, name, fix)
        table_spec = self._specify_table(key, fields, spec)
        with self._suggest_fields(f"{where}: "):
            setting = where, self.table_split
            values = pipeline.read_split(self.tables[key], self.table_split, table_spec, setting)
        places, count = _place_keys(where, key, values[key])
        fills = {name: filled_fields.Filled(field, field.default) for name, field in fields.items()}
        # An additional last row holds the defaults, for keys that the table lacks.
        padded_values = {
            name: packed.join([values[name], fills[name].repeat(1)], field)
            for name, field in fields.items()
        }
        rows = memory_rows.Rows(memory_rows.Layout(fields), padded_values) if fields else None
        required_field = next((name for name, field in fields.items() if field.is_required), "")
        return _Table(where, places, count, fields, padded_values, rows, required_field)

    def _name_table(self, key: str) -> str:
        return f"Joined.tables[{key!r}]"

    @contextlib.contextmanager
    def _suggest_fields(self, where: str = "") -> Iterator[None]:
        """Add a hint about `Joined.fields` to an error about an unknown column."""
        try:
            yield
        except checks.UserError as error:
            text = str(error)
            fix = " Joined.fields says which fields lie in a table."
            is_field = "must be one of" in text and "field" in text
            raise checks.UserError(f"{where}{text}{fix if is_field else ''}") from error


def _return_first(first: Any, *others: Any) -> Any:
    del others
    return first


def _specify_key(source: types.Source, spec: spec_lib.Spec | None, key: str) -> spec_lib.Spec:
    """Return a specification with the fields of `spec` and a key of a table.

    Raises:
      UserError: the key is neither a text nor a whole number in the specification.
    """
    if spec is not None and key in spec.fields:
        field = spec.fields[key]
        fits = field.dtype in _KEY_TYPES and not field.shape
        rule = "be a text or a whole number in each row, as a table has this key"
        checks.require(fits, f"Spec field {key!r}", rule, (field.dtype, field.shape))
        return spec
    kind = types.read_member(source, types.Source, "find_key_type")(key)
    absent = {key: "" if kind == "string" else spec_lib.MISSING[kind]}
    if spec is None:
        return spec_lib.Spec(features={key: kind}, labels={}, defaults=absent)
    features, defaults = {**spec.features, key: kind}, {**spec.defaults, **absent}
    return dataclasses.replace(spec, features=features, defaults=defaults)


def _spell_key(key: Any) -> bytes:
    """Convert a key to text; equal keys, such as 7 and 7.0, get equal texts."""
    if isinstance(key, int):
        return b"" if key == spec_lib.MISSING["int64"] else b"%d" % key
    text = (key.encode() if isinstance(key, str) else key).strip()
    match = _WHOLE.fullmatch(text) if b"." in text else None
    return match[1] if match else text


def _place_keys(where: str, key: str, keys: Any) -> tuple[dict[bytes, int], int]:
    """Return {text of a key: row number}, and the number of all rows, with or without a key.

    Raises:
      UserError: two rows have the same key.
    """
    if isinstance(keys, packed.Texts):
        distinct = keys.distinct.to_pylist()
        # A key such as "7.0" may have several spellings, but only if it has signs such as "." or
        # spaces.
        distinct = [text if text.isalnum() else _spell_key(text) for text in distinct]
        texts = [distinct[number] for number in keys.numbers.tolist()]
    else:
        texts = list(map(_spell_key, keys.tolist()))
    # If a key is repeated, the map has fewer entries than rows, and the loop finds the rows.
    places = dict(zip(texts, range(len(texts)), strict=True))
    if len(places) < len(texts):
        first_rows: dict[bytes, int] = {}
        for row, text in enumerate(texts):
            pair = f"rows {first_rows.setdefault(text, row)} and {row} of {_show_key(text)}"
            is_new = first_rows[text] == row or not text
            checks.require(is_new, where, f"have one row for each {key!r}", pair)
    places.pop(b"", None)
    return places, len(texts)


def _show_key(text: bytes) -> str:
    return repr(text.decode(errors="replace"))


def _join_block(
    block: Mapping[str, packed.Values],
    tables: Mapping[str, _Table],
    fields: Mapping[str, spec_lib.Field],
) -> dict[str, packed.Values]:
    """Add the fields of the tables to a block of rows."""
    values = dict(block)
    for key, table in tables.items():
        rows = table.choose_rows(block[key])
        for name, field in table.fields.items():
            values[name] = packed.choose(table.values[name], rows, field)
    return {name: values[name] for name in fields}


def _join_row(
    row: Mapping[str, Any], tables: Mapping[str, _Table], spec: spec_lib.Spec
) -> dict[str, Any] | str:
    """Add the fields of the tables to a row in plain Python, or return an error message."""
    values = dict(row)
    for key, table in tables.items():
        number = table.places.get(_spell_key(row[key]), -1)
        if number < 0 and table.required:
            return f"field {key!r}: {table.explain()}, got {row[key]!r}."
        for name, field in table.fields.items():
            values[name] = _read_value(table.values[name], number, field)
    return {name: values[name] for name in spec.fields}


def _read_value(values: packed.Values, row: int, field: spec_lib.Field) -> Any:
    """Return the value of a field in one row, as plain Python; row -1 is the last row."""
    count = packed.count_rows(values, field)
    row_values = packed.choose(values, np.array([row % count]), field)
    flat = row_values.values if isinstance(row_values, packed.Lists) else row_values
    if isinstance(flat, packed.Texts):
        texts = [text.decode(errors="replace") for text in flat.distinct.to_pylist()]
        return field.value([texts[number] for number in flat.numbers.tolist()])
    return field.value(np.ravel(flat).tolist())
