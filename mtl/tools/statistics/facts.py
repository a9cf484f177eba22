"""Statistics of a data set and its columns, which a pass over the rows collects.

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
# The number of frequent values in tables and pictures.
_MOST_FREQUENT = 50
_FIRST_TIME = datetime.datetime(1970, 1, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """Statistics of a column.

    Attributes:
      name: the name of the column.
      kind: "int", "float", "bool", "time", "text", "bytes", "empty" (no value), or "other" (a type
        whose values are not read, such as a struct).
      rows: the number of rows.
      missing: the number of rows without a value. NaN and empty lists count as missing.
      is_list: True if a row may hold several values. For lists, the attributes `numbers` and
        `texts` describe the values in the lists.
      numbers: the distribution of numbers, or of times in microseconds since 1970; None for other
        kinds.
      texts: the counts of texts or bytes; None for other kinds.
      lengths: the distribution of the lengths of lists, without empty lists; None if rows hold
        single values.
      marks: {text: number of rows} for the texts that count as missing values in a column of
        numbers or times.
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
        """The type of the column as text, such as "list of int"."""
        return f"list of {self.kind}" if self.is_list else self.kind

    @property
    def present(self) -> int:
        """The number of rows with a value."""
        return self.rows - self.missing

    @property
    def gaps(self) -> float:
        """The share of rows without a value; NaN if there are no rows."""
        return self.missing / self.rows if self.rows else math.nan

    @property
    def count(self) -> int:
        """The number of values, including infinite numbers; all values of a list count."""
        if self.texts is not None:
            return self.texts.count
        return self.numbers.count + self.numbers.infinite if self.numbers is not None else 0

    @property
    def counted(self) -> numbers_lib.Numbers | texts_lib.Texts | None:
        """The distribution of the values; None if the values are not read."""
        return self.texts if self.texts is not None else self.numbers

    @property
    def distinct(self) -> int:
        """The number of distinct values, which is an estimate if `is_exact` is False."""
        return self.counted.count_distinct() if self.counted is not None else 0

    @property
    def is_exact(self) -> bool:
        """True if all distinct values are counted exactly."""
        return self.counted is None or self.counted.is_exact

    def list_frequent(self, most: int = _MOST_FREQUENT) -> list[tuple[str, int]]:
        """Return the most frequent values with their counts.

        Args:
          most: the largest number of values to return.

        Returns:
          [(value as text, count)], the most frequent value first; [] if the values are not read.
        """
        if self.texts is not None:
            return [(show_text(value), n) for value, n in self.texts.list_frequent(most)]
        if self.numbers is not None:
            return [(self.show(value), n) for value, n in self.numbers.list_frequent(most)]
        return []

    def show(self, value: int | float) -> str:
        """Return a number of this column as text.

        Args:
          value: the number; for the kind "time", microseconds since 1970.

        Returns:
          All digits of an integer, six significant digits of a float, a time in ISO format, or ""
          for NaN.
        """
        if value != value:
            return ""
        if self.kind == TIME:
            return show_time(value)
        return str(value) if isinstance(value, int) else f"{value:.6g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """Statistics of a data set.

    Attributes:
      name: the name of the file or split.
      files: {file: number of rows}; {} for a split.
      rows: the number of rows.
      columns: {name: statistics}, in the order of the data.
      notes: lines about the data that a user should know.
      tasks: {task: statistics of its labels}, for a split of a run.
    """

    name: str
    rows: int
    columns: Mapping[str, Column]
    files: Mapping[str, int] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    tasks: Mapping[str, Task] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Statistics of the labels of a task in a split.

    Attributes:
      rows: the number of rows.
      labelled: the number of rows with a label whose weight is above 0.
      counts: {class: number of rows}; only the most frequent class if the task has more than 1000
        classes, and {} if labels are numbers.
      mean: the mean of the labels; None if labels are classes.
      deviation: the standard deviation of the labels; None if labels are classes.
    """

    rows: int
    labelled: int
    counts: Mapping[str, int]
    mean: float | None = None
    deviation: float | None = None


def show_text(value: bytes) -> str:
    """Return bytes as text. Escape codes stand for bytes that are not UTF-8."""
    return value.decode("utf-8", errors="backslashreplace")


def show_time(microseconds: int | float) -> str:
    """Return a time in ISO format; at midnight, return only the date.

    Args:
      microseconds: the microseconds since 1970.

    Returns:
      The time, or a text such as "1e+20 us" for a time that is not in the years 1 to 9999.
    """
    try:
        time = _FIRST_TIME + datetime.timedelta(microseconds=int(microseconds))
    except OverflowError:
        return f"{microseconds:.6g} us"
    # Dates are stored as midnight, so do not show midnight as a time of day.
    is_day = time.time() == datetime.time()
    return time.date().isoformat() if is_day else time.isoformat(sep=" ", timespec="auto")
