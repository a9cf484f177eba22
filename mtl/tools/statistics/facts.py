"""The facts of a data set and its columns, which a pass over the rows collects.

dataset.rows, dataset.columns["age"].missing, dataset.columns["age"].numbers.mean
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence

from mtl.tools.statistics import numbers as numbers_lib
from mtl.tools.statistics import texts as texts_lib

INT, FLOAT, BOOL, TIME = "int", "float", "bool", "time"
TEXT, BYTES, EMPTY, OTHER = "text", "bytes", "empty", "other"
NUMBERS = (INT, FLOAT, BOOL)
# The number of values that tables list and that a page draws.
_MOST_FREQUENT = 50
_FIRST_TIME = datetime.datetime(1970, 1, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """The facts of a column.

    Attributes:
      name: the column.
      kind: "int", "float", "bool", "time", "text", "bytes", "empty" (no value), or "other" (a type
        whose values are not read, such as a struct).
      rows: the number of rows.
      missing: rows without a value; NaN and empty lists are missing, too.
      is_list: True if a row may hold several values. All facts below are about single values.
      numbers: the distribution of numbers, and of times as microseconds since 1970; else None.
      texts: the counts of texts or bytes; else None.
      lengths: the distribution of the number of values in a row with values, for lists; else None.
      marks: {text: rows} of texts among numbers or times that count as missing.
      unknown: the share of values that a trained model does not know; None without a model.
    """

    name: str
    kind: str
    rows: int
    missing: int
    is_list: bool = False
    numbers: numbers_lib.Numbers | None = None
    texts: texts_lib.Texts | None = None
    lengths: numbers_lib.Numbers | None = None
    marks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unknown: float | None = None

    @property
    def type_name(self) -> str:
        """The kind, such as "list of int"."""
        return f"list of {self.kind}" if self.is_list else self.kind

    @property
    def present(self) -> int:
        """The number of rows with a value."""
        return self.rows - self.missing

    @property
    def gaps(self) -> float:
        """The share of rows without a value; NaN without a row."""
        return self.missing / self.rows if self.rows else math.nan

    @property
    def count(self) -> int:
        """The number of single values, with infinite numbers."""
        if self.texts is not None:
            return self.texts.count
        return self.numbers.count + self.numbers.infinite if self.numbers is not None else 0

    @property
    def counted(self) -> numbers_lib.Numbers | texts_lib.Texts | None:
        """The distribution of the values; None if they are not read."""
        return self.texts if self.texts is not None else self.numbers

    @property
    def distinct(self) -> int:
        """The number of distinct values; an estimate unless `is_exact`."""
        return self.counted.count_distinct() if self.counted is not None else 0

    @property
    def is_exact(self) -> bool:
        """True if the distinct values and their counts are exact."""
        return self.counted is None or self.counted.is_exact

    def list_frequent(self, most: int = _MOST_FREQUENT) -> list[tuple[str, int]]:
        """Return the most frequent values as texts, with their counts."""
        if self.texts is not None:
            return [(show_text(value), n) for value, n in self.texts.list_frequent(most)]
        if self.numbers is not None:
            return [(self.show(value), n) for value, n in self.numbers.list_frequent(most)]
        return []

    def show(self, value: int | float) -> str:
        """Return a number of this column as a text: a time as ISO writes it."""
        if value != value:
            return ""
        if self.kind == TIME:
            return show_time(value)
        return str(value) if isinstance(value, int) else f"{value:.6g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """The facts of a data set.

    Attributes:
      name: the file, or the split.
      files: {file: rows}; empty for a split.
      rows: the number of rows.
      columns: {name: facts}, in the order of the data.
      notes: lines about the data that a user should know.
      tasks: {task: its labels}, for a split of a run.
    """

    name: str
    rows: int
    columns: Mapping[str, Column]
    files: Mapping[str, int] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    tasks: Mapping[str, Task] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """The labels of a task in a split.

    Attributes:
      rows: the number of rows.
      labelled: rows with a label whose weight is above 0.
      counts: {class: rows}, if the task has at most 1000 classes.
      mean: the mean of numbers, or None for classes.
      deviation: the standard deviation of numbers, or None for classes.
    """

    rows: int
    labelled: int
    counts: Mapping[str, int]
    mean: float | None = None
    deviation: float | None = None


def show_text(value: bytes) -> str:
    """Return bytes as text; bytes that are not UTF-8 are written as codes."""
    return value.decode("utf-8", errors="backslashreplace")


def show_time(microseconds: int | float) -> str:
    """Return a time as ISO writes it, without its time of day at midnight."""
    try:
        time = _FIRST_TIME + datetime.timedelta(microseconds=int(microseconds))
    except OverflowError:
        return f"{microseconds:.6g} us"
    # A date in a table has no time of day, so midnight is not shown.
    is_day = time.time() == datetime.time()
    return time.date().isoformat() if is_day else time.isoformat(sep=" ", timespec="auto")
