"""Gathers facts of a column from all its values: kind, missing values and distinct values.

column = columns.Column("age")
column.add(block["age"]); ...
facts = column.summarize(marks={"", "NA"}, sample=...)
facts.kind, facts.missing, facts.distinct                # "int", 120, 71
"""

import collections
import dataclasses
import re
from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl.tools.drafting import forms

# Regular expressions for numbers as `mtl.spec.literals` reads them, for both RE2 and Python.
INT = r"[+-]?[0-9]+(?:\.0*)?"
FLOAT = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
# Texts such as postal codes, which would lose their leading zero if they were read as numbers.
_CODE = r"0[0-9]+"
ISO_TIME = (
    r"[0-9]{4}[-/][0-9]{1,2}[-/][0-9]{1,2}"
    r"(?:[T ][0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_MONTH = r"(?:[Jj]an|[Ff]eb|[Mm]ar|[Aa]pr|[Mm]ay|[Jj]un|[Jj]ul|[Aa]ug|[Ss]ep|[Oo]ct|[Nn]ov|[Dd]ec)"
_MONTH += r"[a-z]*\.?"
_OTHER_DATE = (
    # 31.05.2024 13:45; 31 May 2024, 31-May-24; May 31, 2024; Fri May 31 13:45:00 2024
    r"(?:[0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{2,4}(?:[ T].*)?"
    rf"|(?:[A-Z][a-z]+,? )?[0-9]{{1,2}}[ -]{_MONTH}[ -][0-9]{{2,4}}(?:[ T].*)?"
    rf"|(?:[A-Z][a-z]+,? )?{_MONTH} [0-9]{{1,2}}(?:st|nd|rd|th)?,? "
    r"(?:[0-9:]{5,8} )?[0-9]{4}(?: .*)?"
    # 20240531T134500; months, weeks and quarters: 2024-05, 2024-W22, 2024Q2
    r"|[0-9]{8}T[0-9]{4,6}Z?|(?:19|20)[0-9]{2}(?:-(?:0[1-9]|1[0-2])|-?W[0-9]{2}|-?Q[1-4]))"
)
# Sure marks mean a missing value in any column; other marks mean it only in columns of numbers.
SURE_MARKS = ("", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "null", "NULL", "\\N")
MARKS_OF_NUMBERS = (
    *SURE_MARKS,
    *("-", "--", ".", "na", "None", "none", "NONE", "Null", "(null)", "missing", "unknown"),
    *("inf", "-inf", "Inf", "-Inf", "Infinity", "-Infinity"),
)
# Whole numbers may be classes if a column has at most this many distinct numbers; otherwise, the
# numbers are quantities.
FEW_CLASSES = 20
# The largest number of distinct values to count in all rows; if a column has more, its values are
# counted in the sample only.
MOST_VALUES = 100_000
# In a column of numbers, up to 3 distinct words may mean a missing value, if at most 0.1 times as
# many rows contain a word as contain a number. A column with more than 3 such words is not a column
# of numbers.
_FEW_WORDS, _SHARE_OF_WORDS = 3, 0.1
_FLOAT32 = 3.4e38


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of a column.

    Attributes:
      name: the name of the column.
      kind: "int", "float", "time" (in ISO form), "date" (in another form), "text" or "empty".
      rows: the number of rows.
      missing: the number of rows with a missing value.
      marks: {text that means a missing value: number of rows}.
      distinct: the number of distinct values, without missing values. If `is_counted` is False,
        `distinct` is the number of distinct values in the sample, which can be far too low.
      is_counted: True if the values of all rows were counted; False for more than 100,000 distinct
        values.
      values: {text: number of rows} without missing values, from all rows or else from the sample.
      least, greatest: the range of the numbers in the column, also if the kind is "text"; NaN
        without numbers.
      words: {text: number of rows} for some texts that are not numbers, in a column with at least
        90% numbers; {} otherwise.
      is_code: True if a value has digits after a leading zero, like some postal codes.
      form: the number 1.5 or 1234.5 as the file writes it, such as "$1,234.5"; "" if the file
        writes plain numbers. `values` always contains plain numbers.
      twin: another form that also fits all texts, but means other numbers; "" if there is none.
      written: a text of the file that has the form `form`, such as "$12.50".
      limits: the number of rows with a limit such as <0.5, which counts as 0.5.
    """

    name: str
    kind: str
    rows: int
    missing: int
    marks: Mapping[str, int]
    distinct: int
    is_counted: bool
    values: Mapping[str, int]
    least: float
    greatest: float
    words: Mapping[str, int]
    is_code: bool = False
    form: str = ""
    twin: str = ""
    written: str = ""
    limits: int = 0

    @property
    def present(self) -> int:
        """The number of rows that have a value."""
        return self.rows - self.missing

    @property
    def is_number(self) -> bool:
        """True if all values are numbers within the range of int64 or float32."""
        return self.kind in ("int", "float")

    @property
    def is_quantity(self) -> bool:
        """True if all values are numbers, and none of them is a code with a leading zero."""
        return self.is_number and not self.is_code


class Column:
    """Gathers the facts of a column, block by block, with a limited amount of memory."""

    def __init__(self, name: str, marks: Collection[str] = (), values: Collection[str] = ()):
        self.name = name
        self.values = frozenset(values)
        self.known_marks = {*MARKS_OF_NUMBERS, *marks} - self.values
        self._mark_texts = pa.array(sorted(self.known_marks))
        self._rows = self._numbers = self._fractions = self._codes = 0
        self._times = self._dates = self._words = 0
        self._least, self._greatest = np.inf, -np.inf
        self._marks: collections.Counter[str] = collections.Counter()
        self._few_words: collections.Counter[str] = collections.Counter()
        # The counts become None if there are too many distinct values.
        self._counts: pa.Table | None = _counted([], [])

    def add(self, values: pa.ChunkedArray) -> None:
        """Add the texts of a block to the facts.

        Args:
          values: the text of each row, [N], without nulls, and without white space at its ends.
        """
        self._rows += len(values)
        # Match each distinct text of a block only once, because texts may repeat often.
        value_counts = pc.value_counts(values.combine_chunks())
        texts, counts = value_counts.field("values"), value_counts.field("counts")
        self._count(texts, counts)
        is_mark = pc.is_in(texts, value_set=self._mark_texts)
        if pc.any(is_mark).as_py():
            marks = zip(
                texts.filter(is_mark).to_pylist(), counts.filter(is_mark).to_pylist(), strict=True
            )
            self._marks.update(dict(marks))
            texts, counts = (part.filter(pc.invert(is_mark)) for part in (texts, counts))
        is_number = _matches(texts, FLOAT)
        numbers = texts.filter(is_number)
        if len(numbers):
            self._numbers += _total(counts, is_number)
            whole = _matches(numbers, INT)
            self._fractions += len(numbers) - pc.sum(whole).as_py()
            self._codes += pc.sum(_matches(numbers, _CODE)).as_py()
            bounds = pc.min_max(to_floats(numbers)).as_py()
            self._least = min(self._least, bounds["min"])
            self._greatest = max(self._greatest, bounds["max"])
        if len(numbers) < len(texts):
            others, counts = (part.filter(pc.invert(is_number)) for part in (texts, counts))
            self._add_words(others, counts)

    def _add_words(self, texts: pa.Array, counts: pa.Array) -> None:
        self._words += pc.sum(counts).as_py()
        self._times += _total(counts, _matches(texts, ISO_TIME))
        self._dates += _total(counts, _matches(texts, _OTHER_DATE))
        if len(self._few_words) <= _FEW_WORDS:
            first = _FEW_WORDS + 1
            self._few_words.update(
                dict(zip(texts[:first].to_pylist(), counts[:first].to_pylist(), strict=True))
            )

    def _count(self, texts: pa.Array, counts: pa.Array) -> None:
        if self._counts is None:
            return
        joined = pa.concat_tables([self._counts, _counted(texts, counts)])
        summed = joined.group_by("text").aggregate([("count", "sum")])
        self._counts = _counted(summed["text"], summed["count_sum"])
        if len(self._counts) > MOST_VALUES:
            self._counts = None

    def find_marks(self) -> list[str]:
        """Return the texts that mean a missing value in a column of numbers or times; else []."""
        if not self._numbers:
            # In a column of texts, a mark such as "-" may be a class.
            return list(self._marks) if 0 < self._times == self._words else []
        words = dict(self._few_words)
        few = len(words) <= _FEW_WORDS and self._words <= _SHARE_OF_WORDS * self._numbers
        # Texts such as 1,200 or <0.5 are numbers, not marks of missing values: see `forms`.
        few = few and not any(map(forms.looks_like_number, words))
        few = few and self.values.isdisjoint(words)
        return [*self._marks, *words] if few else []

    def find_label_marks(self) -> list[str]:
        """Return texts that mean a missing label; for classes, only those of `SURE_MARKS`."""
        if self._counts is None:
            return self.find_marks() or self.sure_marks
        numbers = pc.sum(_matches(self._counts["text"], FLOAT)).as_py() or 0
        return (numbers > FEW_CLASSES and self.find_marks()) or self.sure_marks

    @property
    def sure_marks(self) -> list[str]:
        """The texts in this column that always mean a missing value, such as "NA"."""
        return [mark for mark in self._marks if mark in SURE_MARKS]

    def holds(self, text: str) -> bool:
        """Say whether a text occurs in the column.

        Args:
          text: the text to look for.

        Returns:
          True if the text occurs in the column, or if this is unknown, because the column has more
          than 100,000 distinct values.
        """
        return self._counts is None or pc.any(pc.equal(self._counts["text"], text)).as_py()

    def counts_mark(self, mark: str) -> bool:
        """Return True if a mark of missing values, in `MARKS_OF_NUMBERS`, occurs in the column."""
        return mark in self._marks

    def summarize(self, marks: Collection[str], sample: pa.ChunkedArray) -> Facts:
        """Return the facts of the column.

        Args:
          marks: texts that mean a missing value.
          sample: the column's values in a random sample of rows; used only if the column has more
            than 100,000 distinct values.
        """
        table = _count_sample(sample) if self._counts is None else self._counts
        values = dict(zip(table["text"].to_pylist(), table["count"].to_pylist(), strict=True))
        all_counts = {**self._marks, **self._few_words, **values}
        missing = {mark: all_counts[mark] for mark in marks if mark in all_counts}
        values = {text: count for text, count in values.items() if text not in missing}
        words = {text: n for text, n in self._few_words.items() if text not in missing}
        odd = self._count_odd(missing)
        least, greatest = (self._least, self._greatest) if self._numbers else (np.nan, np.nan)
        return Facts(
            name=self.name,
            kind=self._kind(odd),
            rows=self._rows,
            missing=sum(missing.values()),
            marks=missing,
            distinct=len(values),
            is_counted=self._counts is not None,
            values=values,
            least=least,
            greatest=greatest,
            # Keep words among numbers only if at least 90% of the present values are numbers.
            words=words if 0 < 9 * odd <= self._numbers else {},
            is_code=bool(self._codes),
        )

    def _count_odd(self, missing: Mapping[str, int]) -> int:
        """Return the number of values that are neither missing nor numbers."""
        words = self._words - sum(n for mark, n in missing.items() if mark in self._few_words)
        return words + sum(n for mark, n in self._marks.items() if mark not in missing)

    def _kind(self, odd: int) -> str:
        """Return the kind of a column; `odd` values are neither missing nor numbers."""
        if not odd:
            return self._kind_of_numbers() if self._numbers else "empty"
        if self._numbers:
            return "text"
        if self._times == odd:
            return "time"
        return "date" if self._times + self._dates == odd else "text"

    def _kind_of_numbers(self) -> str:
        largest = max(-self._least, self._greatest)
        if not self._fractions:  # Integers beyond int64 would lose digits as floats.
            return "int" if largest < 2**63 else "text"
        return "float" if largest < _FLOAT32 else "text"


def to_floats(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert texts of numbers to float64; a null stays null."""
    return pc.cast(pc.utf8_ltrim(texts, "+"), pa.float64())


def _matches(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.match_substring_regex(texts, f"^(?:{pattern})$")


def _total(counts: pa.Array, mask: pa.Array) -> int:
    return pc.sum(counts.filter(mask)).as_py() or 0


def _count_sample(sample: pa.ChunkedArray) -> pa.Table:
    value_counts = pc.value_counts(sample.combine_chunks())
    return _counted(value_counts.field("values"), value_counts.field("counts"))


def _counted(texts, counts) -> pa.Table:
    kind = pa.schema([("text", pa.string()), ("count", pa.int64())])
    return pa.Table.from_arrays(
        [_array(texts, pa.string()), _array(counts, pa.int64())], schema=kind
    )


def _array(values, kind):
    return pa.array(values, kind) if isinstance(values, list) else values


def is_infinite(text: str) -> bool:
    """Return True if a text is an infinite number."""
    return text.lower().lstrip("+-") in ("inf", "infinity")


def match_time(text: str) -> bool:
    """Return True if a text is an ISO date or time."""
    return re.fullmatch(ISO_TIME, text) is not None
