"""Reads all rows of a table once, and gathers facts of each column and a random sample of rows.

table = inspection.inspect_table(dialect, marks=("-999",))
table.rows, table.facts["age"].missing, table.sample["age"]
"""

import dataclasses
import types
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl import checks
from mtl.data import columns as data_columns
from mtl.data import written_numbers
from mtl.tools.drafting import columns, lines, readings, tables

# The largest number of rows and of cells in the sample. All analyses that need several columns of
# the same row use the sample.
_MOST_ROWS, _MOST_CELLS = 200_000, 20_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """The facts of the columns of a table, with a random sample of its rows.

    Attributes:
      dialect: the format of the table's files.
      rows_of: {file: number of rows}, including the files of a test table.
      marks: the texts that mean a missing value in any column.
      marks_in: {column: further texts that mean a missing value in this column}.
      facts: {column: the facts of the column}.
      sample: random rows as texts, in the order of the table; all rows if there are at most 200,000
        rows and 20 million cells.
      places: the positions of the sampled rows in the table, from 0.
    """

    dialect: lines.Dialect
    rows_of: Mapping[str, int]
    marks: tuple[str, ...]
    marks_in: Mapping[str, tuple[str, ...]]
    facts: Mapping[str, columns.Facts]
    sample: pa.Table
    places: np.ndarray

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(self.rows_of.values())

    @property
    def is_whole(self) -> bool:
        """True if the sample contains all rows of the table."""
        return len(self.places) == self.rows

    def texts(self, name: str) -> pa.ChunkedArray:
        """Return the values of a column in the sample as texts.

        Args:
          name: the name of the column.

        Returns:
          The text of each row in the sample, [N]; numbers are plain, and missing values are null.
        """
        marks = pa.array([*self.marks, *self.marks_in.get(name, ())])
        missing = pc.is_in(self.sample[name], value_set=marks)
        texts = pc.if_else(missing, pa.scalar(None, pa.string()), self.sample[name])
        example = self.facts[name].form
        if not example:
            return texts
        form = written_numbers.read_form(name, example)
        return pa.chunked_array([data_columns.to_plain(part, form) for part in texts.chunks])

    def numbers(self, name: str) -> np.ndarray:
        """Return the numbers of a column in the sample.

        Args:
          name: the name of a column of numbers.

        Returns:
          The number in each row of the sample, float64 [N]; NaN for missing values.
        """
        return columns.to_floats(self.texts(name)).to_numpy()


class _Sample:
    """A random sample: every row gets a random key, and the rows with the smallest keys stay."""

    def __init__(self, num_columns: int):
        self._most = max(min(_MOST_ROWS, _MOST_CELLS // num_columns), 1)
        self._draw = np.random.default_rng(0)
        self._rows: list[pa.Table] = []
        self._keys, self._places = np.zeros(0), np.zeros(0, np.int64)
        self._below, self._num_rows = 1.0, 0

    def add(self, block: pa.Table) -> None:
        keys = self._draw.random(len(block))
        places = np.flatnonzero(keys < self._below)
        self._rows.append(block.take(places))
        self._keys = np.concatenate([self._keys, keys[places]])
        self._places = np.concatenate([self._places, places + self._num_rows])
        self._num_rows += len(block)
        # `_cut` copies the whole sample, so call it only after the sample has doubled.
        if len(self._keys) > 2 * self._most:
            self._cut()

    def _cut(self) -> None:
        if len(self._keys) > self._most:
            self._below = np.partition(self._keys, self._most)[self._most]
            places = np.flatnonzero(self._keys < self._below)
            self._rows = [pa.concat_tables(self._rows).take(places)]
            self._keys, self._places = self._keys[places], self._places[places]

    def finish(self) -> tuple[pa.Table, np.ndarray]:
        self._cut()
        return pa.concat_tables(self._rows), self._places


def inspect_table(
    dialect: lines.Dialect,
    marks: Sequence[str] = (),
    labels: Collection[str] = (),
    number_forms: Mapping[str, str] = types.MappingProxyType({}),
    values: Collection[str] = (),
) -> Inspection:
    """Read all rows of a table, and return the facts of the table.

    Args:
      dialect: the format of the table.
      marks: further texts that mean a missing value.
      labels: columns in which a text such as "NA" means a missing label, not a class.
      number_forms: {column: how the column writes the number 1.5 or 1234.5, such as "$1,234.5"}.
      values: texts that count as values in this table, although such texts often mean a missing
        value.

    Raises:
      UserError: a line is malformed, the table is empty, or a column does not write its numbers as
        `number_forms` says.
    """
    if dialect.is_json:  # JSON has null for missing values, so a text in JSON is always a value.
        values = {*columns.MARKS_OF_NUMBERS} - {""}
    gathered = {name: columns.Column(name, marks, values) for name in dialect.columns}
    sample = _Sample(len(dialect.columns))
    rows_of = dict.fromkeys(dialect.paths, 0)
    for path, block in tables.read_blocks(dialect):
        for name, column in gathered.items():
            column.add(block[name])
        sample.add(block)
        rows_of[path] += len(block)
    rows = sum(rows_of.values())
    checks.require(rows > 0, dialect.paths[0], "hold a row", rows)
    table, places = sample.finish()
    _require_one_header(dialect, gathered, table)
    facts = {}
    for name, column in gathered.items():
        column_marks = column.find_label_marks() if name in labels else column.find_marks()
        facts[name] = column.summarize({"", *marks, *column_marks}, table[name])
    commas = dialect.delimiter == ";"
    facts = readings.read_numbers(facts, gathered, table, labels, number_forms, commas)
    # Prefer a setting for the whole table, because it is shorter than a setting for each column.
    table_marks = tuple(dict.fromkeys(("", *marks, *_list_common(facts, gathered))))
    return Inspection(
        dialect=dialect,
        rows_of=rows_of,
        marks=table_marks,
        marks_in=_list_others(facts, table_marks),
        facts=facts,
        sample=table,
        places=places,
    )


def _require_one_header(
    dialect: lines.Dialect, gathered: Mapping[str, columns.Column], sample: pa.Table
) -> None:
    """Fail if a row repeats the names of the columns, as in joined files with headers."""
    alike = [
        pc.equal(sample[name], name)
        for name, column in gathered.items()
        if name and column.holds(name)
    ]
    # If the name of some column never occurs in the column, no row repeats the header.
    if len(alike) < max(2, len([name for name in gathered if name])):
        return
    is_header = alike[0]
    for is_name in alike[1:]:
        is_header = pc.and_(is_header, is_name)
    rows = pc.sum(is_header).as_py() or 0
    fix = "Were files with headers joined? Name the files by a glob, such as --data 'part-*.csv'."
    rule, got = "hold its header once", f"{rows} rows like it"
    checks.require(rows == 0, dialect.paths[0], rule, got, fix)


def _list_others(
    facts: Mapping[str, columns.Facts], table_marks: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return {column: texts that mean a missing value in this column, but not everywhere}."""
    others = {
        name: tuple(mark for mark in column.marks if mark not in table_marks)
        for name, column in facts.items()
    }
    return {name: marks for name, marks in others.items() if marks}


def _list_common(
    facts: Mapping[str, columns.Facts], gathered: Mapping[str, columns.Column]
) -> Iterator[str]:
    """Yield the texts that mean a missing value in a column, and that no column has as a value."""
    for mark in dict.fromkeys(mark for column in facts.values() for mark in column.marks):
        others = (name for name, column in facts.items() if mark not in column.marks)
        if not any(mark in facts[n].values or gathered[n].counts_mark(mark) for n in others):
            yield mark
