"""A pass over all rows of a table: facts of each column, and a sample that tells the rest.

found = inspection.inspect_table(dialect, marks=("-999",))
found.rows, found.facts["age"].missing, found.sample["age"]
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl import checks
from mtl.tools.drafting import columns, lines

# Rows and cells of the sample at most: what takes all columns of a row is told of these.
_MOST_ROWS, _MOST_CELLS = 200_000, 20_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """What is known of a table.

    Attributes:
      dialect: how it is written.
      rows_of: {file: how many it holds}, those of a table to test on too.
      size: of how many bytes.
      marks: what stands for a missing value, somewhere at least.
      facts: {column: what is known of it}.
      sample: rows drawn at random, in order, as texts; all of them where they are few.
      places: the numbers of these rows, from 0 on.
    """

    dialect: lines.Dialect
    rows_of: Mapping[str, int]
    size: int
    marks: tuple[str, ...]
    facts: Mapping[str, columns.Facts]
    sample: pa.Table
    places: np.ndarray

    @property
    def rows(self) -> int:
        """How many there are in all."""
        return sum(self.rows_of.values())

    @property
    def is_whole(self) -> bool:
        """Whether the sample holds all rows."""
        return len(self.places) == self.rows

    def texts(self, name: str) -> pa.ChunkedArray:
        """Return the values of a column in the sample; null where they are missing."""
        missing = pc.is_in(self.sample[name], value_set=pa.array(self.marks))
        return pc.if_else(missing, pa.scalar(None, pa.string()), self.sample[name])

    def numbers(self, name: str) -> np.ndarray:
        """Return the values of a column of numbers in the sample; NaN where they are missing."""
        return columns.to_floats(self.texts(name)).to_numpy()


class _Sample:
    """Rows drawn at random: those with the least keys, of which each row draws one."""

    def __init__(self, num_columns: int):
        self._most = max(min(_MOST_ROWS, _MOST_CELLS // num_columns), 1)
        self._draw = np.random.default_rng(0)
        self._rows: list[pa.Table] = []
        self._keys, self._places = np.zeros(0), np.zeros(0, np.int64)
        self._below, self._seen = 1.0, 0

    def add(self, block: pa.Table) -> None:
        keys = self._draw.random(len(block))
        kept = np.flatnonzero(keys < self._below)
        self._rows.append(block.take(kept))
        self._keys = np.concatenate([self._keys, keys[kept]])
        self._places = np.concatenate([self._places, kept + self._seen])
        self._seen += len(block)
        if len(self._keys) > 2 * self._most:
            self._cut()

    def _cut(self) -> None:
        if len(self._keys) > self._most:
            self._below = np.partition(self._keys, self._most)[self._most]
            kept = np.flatnonzero(self._keys < self._below)
            self._rows = [pa.concat_tables(self._rows).take(kept)]
            self._keys, self._places = self._keys[kept], self._places[kept]

    def finish(self) -> tuple[pa.Table, np.ndarray]:
        self._cut()
        return pa.concat_tables(self._rows), self._places


def inspect_table(
    dialect: lines.Dialect, marks: Sequence[str] = (), labels: Collection[str] = ()
) -> Inspection:
    """Read all rows of a table.

    Args:
      dialect: how it is written.
      marks: what stands for a missing value, beside the usual.
      labels: the columns in which "NA" and its like are no class.

    Raises:
      UserError: a line is malformed, or there is no row.
    """
    gathered = {name: columns.Column(name, marks) for name in dialect.columns}
    sample, size = _Sample(len(dialect.columns)), 0
    rows_of = dict.fromkeys(dialect.paths, 0)
    for path, block, num_bytes in lines.read_blocks(dialect):
        for name, column in gathered.items():
            column.add(block[name])
        sample.add(block)
        rows_of[path] += len(block)
        size += num_bytes
    rows = sum(rows_of.values())
    checks.require(rows > 0, dialect.paths[0], "hold a row", rows)
    known = _find_marks(gathered.values(), labels)
    all_marks = tuple(dict.fromkeys(["", *marks, *known]))
    table, places = sample.finish()
    return Inspection(
        dialect=dialect,
        rows_of=rows_of,
        size=size,
        marks=all_marks,
        facts={n: column.summarize(all_marks, table[n]) for n, column in gathered.items()},
        sample=table,
        places=places,
    )


def _find_marks(gathered: Iterable[columns.Column], labels: Collection[str]) -> list[str]:
    """Return what stands for missing values: among numbers, or in a label."""
    found: list[str] = []
    for column in gathered:
        found += column.sure_marks if column.name in labels else column.find_marks()
    return found
