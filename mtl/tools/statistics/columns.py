"""Collects statistics of a table column, block by block, with a class for each kind of column.

column = columns.Guessed("age", columns.Limits())
column.add(pa.array(["39", "", "51"]))
column.finish().kind                                     # "int"
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl.tools.drafting import columns as drafting_columns
from mtl.tools.drafting import inputs
from mtl.tools.statistics import cells, facts, numbers, texts

# A column of numbers may hold a few words that mean a missing value, besides usual marks such as
# "NA": at most 3 different words, in at most 0.1 times as many rows as hold a number.
# `mtl.tools.drafting` uses the same limits for words among numbers.
_FEW_WORDS, _SHARE_OF_WORDS = 3, 0.1
_SURE_MARKS = frozenset(drafting_columns.SURE_MARKS)
_MARKS_OF_NUMBERS = frozenset(drafting_columns.MARKS_OF_NUMBERS)
_LIST_DELIMITER = "|"
# The number of truth values that are added at a time, so that a long column takes little memory.
_ROWS = 1 << 17
# The number of values that usually decide the kind of a column.
_LOOKED_AT = 1000
_INT64_END = 2**63
# The largest number of distinct values, and of bytes, in the tables of all columns together.
_ALL_VALUES = 1 << 22
_ALL_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of the memory for the statistics of a column.

    Attributes:
      numbers: the largest number of distinct numbers that are counted exactly.
      texts: the largest number of distinct texts that are counted exactly.
      bytes: the largest number of bytes that the distinct texts may have together.
    """

    numbers: int = numbers.MOST_VALUES
    texts: int = texts.MOST_VALUES
    bytes: int = 1 << 26

    @classmethod
    def share(cls, num_columns: int) -> Limits:
        """Return the limits of each column if all columns share the memory.

        Args:
          num_columns: the number of columns that share the memory.
        """
        values = _ALL_VALUES // max(num_columns, 1)
        return cls(
            # A column may have at least 8,192 distinct values, however many columns share the
            # memory.
            numbers=min(max(values, 1 << 13), cls.numbers),
            texts=min(max(values, 1 << 13), cls.texts),
            bytes=min(max(_ALL_BYTES // max(num_columns, 1), 1 << 20), cls.bytes),
        )


class Base:
    """Counts the rows and missing values of a column, without reading its values.

    Attributes:
      rows: the number of added rows.
      missing: the number of rows without a value.
      broken: "text" or "list" if another pass over the data must read the column as texts or lists;
        "" if no other pass is needed.
      reason: a text that says why another pass over the data is needed; "" if none is needed.
    """

    def __init__(self) -> None:
        self.rows = self.missing = 0
        self.broken = self.reason = ""

    def add(self, values: pa.Array) -> None:
        """Add the values of rows.

        Args:
          values: a value for each row, [N]. A null is a missing value.
        """
        self.rows += len(values)
        if values.null_count:
            self.missing += values.null_count
            values = values.drop_null()
        if len(values):
            self._add_values(values)

    def _add_values(self, values: pa.Array) -> None:
        """Add values, none of which is null."""

    def finish(self, name: str) -> facts.Column:
        """Return the statistics of a column whose values are not read."""
        kind = facts.OTHER if self.rows > self.missing else facts.EMPTY
        return facts.Column(name=name, kind=kind, rows=self.rows, missing=self.missing)


class Numeric(Base):
    """Collects statistics of numbers, truth values or times.

    Args:
      kind: "int", "float", "bool" or "time".
      limits: the limits of memory.
    """

    def __init__(self, kind: str, limits: Limits):
        super().__init__()
        self._kind, self._numbers = kind, numbers.Numbers(limits.numbers)

    def _add_values(self, values: pa.Array) -> None:
        self._numbers.add(_to_numbers(values))

    def finish(self, name: str) -> facts.Column:
        missing = self.missing + self._numbers.nans
        is_empty = missing == self.rows
        return facts.Column(
            name=name,
            kind=facts.EMPTY if is_empty else self._kind,
            rows=self.rows,
            missing=missing,
            numbers=None if is_empty else self._numbers,
        )


def _to_numbers(values: pa.Array) -> np.ndarray:
    """Return an Arrow array of numbers, truth values or times as int64 or float64, [N]."""
    kind = values.type
    if pa.types.is_temporal(kind):
        return cells.to_microseconds(values)
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_decimal(kind):
        values = values.cast(pa.float64())
    array = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind == "f":
        return array.astype(np.float64, copy=False)
    # Unsigned numbers from 2^63 on would become negative as int64.
    is_large = array.dtype == np.uint64 and array.max() >= _INT64_END
    return array.astype(np.float64 if is_large else np.int64, copy=False)


class Text(Base):
    """Collects statistics of texts or bytes.

    Args:
      limits: the limits of memory.
      marks: texts that mean a missing value.
      may_be_list: True to treat the column as a column of lists if many rows hold texts such as
        a|b.
    """

    def __init__(self, limits: Limits, marks: Collection[str] = (), may_be_list: bool = False):
        super().__init__()
        self._texts = texts.Texts(limits.texts, limits.bytes)
        self._marks, self._may_be_list = marks, may_be_list
        self._is_text = True

    def add(self, values: pa.Array) -> None:
        super().add(drop_marks(values, self._marks))

    def _add_values(self, values: pa.Array) -> None:
        is_bytes = pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
        if is_bytes and self._is_text:
            self._is_text = _is_utf8(values)
        self._texts.add(values)

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Add texts whose occurrences are already counted.

        Args:
          counts: {text: number of rows with the text}.
        """
        if counts:
            # `Guessed` adds words that it has kept until the kind of the column was known.
            self.rows += sum(counts.values())
            self._texts.add_counts(pa.array(list(counts)), np.array(list(counts.values())))

    def finish(self, name: str) -> facts.Column:
        is_empty = self.missing == self.rows
        if self._may_be_list and not is_empty and self._looks_like_lists():
            self.broken, self.reason = "list", "its values are lists such as a|b"
        kind = facts.TEXT if self._is_text else facts.BYTES
        return facts.Column(
            name=name,
            kind=facts.EMPTY if is_empty else kind,
            rows=self.rows,
            missing=self.missing,
            texts=None if is_empty else self._texts,
        )

    def _looks_like_lists(self) -> bool:
        frequent_texts = self._texts.list_frequent(_LOOKED_AT)
        return inputs.are_lists(
            [facts.show_text(value) for value, _ in frequent_texts], _LIST_DELIMITER
        )


def drop_marks(values: pa.Array, marks: Collection[str]) -> pa.Array:
    """Replace texts that mark a missing value by nulls.

    Args:
      values: texts [N]. A null is a missing value.
      marks: texts that mean a missing value.
    """
    if not marks or len(values) == values.null_count:
        return values
    # Usually "" is the only text that means a missing value. The length of the shortest text
    # quickly shows whether "" occurs.
    if not any(marks) and pc.min(pc.binary_length(values)).as_py() > 0:
        return values
    is_mark = pc.is_in(values, value_set=pa.array(marks, values.type))
    if not pc.any(is_mark).as_py():
        return values
    return pc.if_else(is_mark, pa.scalar(None, values.type), values)


def _is_utf8(values: pa.Array) -> bool:
    try:
        values.cast(pa.large_string() if pa.types.is_large_binary(values.type) else pa.string())
    except pa.ArrowInvalid:
        return False
    return True


class Guessed(Base):
    """Guesses whether texts, as in CSV, are numbers, truth values, times or just texts.

    The rules for guessing are the same as in `mtl.tools.drafting`. The first block of rows that
    shows the kind of the values decides the kind of the column. If a later block contradicts the
    kind of the column, `broken` becomes "text", which asks for another pass that reads the column
    as texts.

    Args:
      limits: the limits of memory.
      marks: texts that mean a missing value.
      may_be_list: True to treat the column as a column of lists if many rows hold texts such as
        a|b.
    """

    def __init__(self, limits: Limits, marks: Collection[str] = (), may_be_list: bool = False):
        super().__init__()
        self._limits, self._marks, self._may_be_list = limits, marks, may_be_list
        self._kind = ""
        self._words: collections.Counter[str] = collections.Counter()
        self._inner: Numeric | Text | None = None

    def add(self, values: pa.Array) -> None:
        if not self.broken:
            super().add(drop_marks(values, self._marks))

    def _add_values(self, values: pa.Array) -> None:
        if not self._kind:
            values = self._choose_kind(values)
        if not len(values):
            return
        if self._kind == facts.TEXT and self._inner is not None:
            self._inner.add(values)
        elif self._kind:
            self._add_typed(values)

    def _choose_kind(self, values: pa.Array) -> pa.Array:
        """Choose the kind of the column if the values show it; return values yet to count."""
        # Try a few values first, which usually decide, because trying all distinct values takes
        # longer.
        if self._has_number(values[:_LOOKED_AT]):
            return values
        value_counts = pc.value_counts(values)
        distinct, counts = value_counts.field("values"), value_counts.field("counts")
        if self._has_number(distinct):
            return values
        times, others = cells.split_times(distinct)
        if len(times) and _SURE_MARKS.issuperset([*self._words, *others.to_pylist()]):
            self._start_kind(facts.TIME, Numeric(facts.TIME, self._limits))
            return values
        if len(distinct) <= _LOOKED_AT:
            words = self._words + collections.Counter(_to_dict(distinct, counts))
            if _are_few(words):
                self._words = words
                # Keep the words for later, because a later block may hold numbers, among which the
                # words mean missing values.
                return values[:0]
        self._start_kind(facts.TEXT, Text(self._limits, (), self._may_be_list))
        # The words that `Guessed` has kept from earlier blocks are ordinary texts.
        assert isinstance(self._inner, Text)
        self._inner.add_counts(self._words)
        return values

    def _has_number(self, values: pa.Array) -> bool:
        """Return True, and choose the kind "float", if a text is a number."""
        has_number = len(cells.split_numbers(values)[0]) > 0
        if has_number:
            self._start_kind(facts.FLOAT, Numeric(facts.FLOAT, self._limits))
        return has_number

    def _start_kind(self, kind: str, inner: Numeric | Text) -> None:
        self._kind, self._inner = kind, inner

    def _add_typed(self, values: pa.Array) -> None:
        """Add numbers or times to the statistics; a few other texts count as missing values."""
        is_time = self._kind == facts.TIME
        split = cells.split_times if is_time else cells.split_numbers
        typed, others = split(values)
        # A text such as 007 may be a code only if all numbers are whole, which the type int64
        # shows. Among fractions, 007 counts as a number.
        if not is_time and typed.dtype.kind == "i" and cells.has_codes(values):
            self._break_off("it holds digits behind a leading zero, as codes do")
            return
        assert self._inner is not None
        if len(typed):
            self._inner.add(pa.array(typed))
        if len(others):
            frequent_texts = pc.value_counts(others)[:_LOOKED_AT]
            self._words.update(
                _to_dict(frequent_texts.field("values"), frequent_texts.field("counts"))
            )
            self._check_words()

    def _check_words(self) -> None:
        """Ask for another pass over the data if too many different words would count as missing."""
        if self._kind == facts.TIME:
            marks, limit, kind = _SURE_MARKS, 0, "times"
        else:
            marks, limit, kind = _MARKS_OF_NUMBERS, _FEW_WORDS, "numbers"
        words = [word for word in self._words if word not in marks]
        if len(words) > limit:
            self._break_off(f"it holds {kind} and texts, such as {words[-1][:40]!r}")

    def _break_off(self, reason: str) -> None:
        self.broken, self.reason, self._inner = "text", reason, None

    def finish(self, name: str) -> facts.Column:
        if not self._kind and self._words and not self.broken:
            return self._finish_words(name)
        if self._inner is None or self.broken:
            return Base.finish(self, name)
        column = self._inner.finish(name)
        self.broken, self.reason = self._inner.broken, self._inner.reason
        # In a column of texts, words already count as values.
        words = {} if self._kind == facts.TEXT else self._words
        kind = column.kind
        if self._kind == facts.FLOAT:
            self._check_shares(column)
            # If all numbers are whole, such as 5.0, the kind is int, as in `mtl.tools.drafting`.
            kind = facts.INT if _is_int(column) else kind
        return dataclasses.replace(
            column,
            kind=kind,
            rows=self.rows,
            missing=self.missing + column.missing + sum(words.values()),
            marks=dict(words),
        )

    def _check_shares(self, column: facts.Column) -> None:
        """Ask for another pass over the data if words occur too often to mark missing values."""
        odd_words = {word: n for word, n in self._words.items() if word not in _MARKS_OF_NUMBERS}
        total = sum(odd_words.values())
        if total > _SHARE_OF_WORDS * column.count:
            self._break_off(
                f"in {total:,} rows it holds texts, such as {next(iter(odd_words))[:40]!r}"
            )

    def _finish_words(self, name: str) -> facts.Column:
        """Return the statistics of a column with few different texts."""
        if cells.are_truth(pa.array(list(self._words))):
            truth = Numeric(facts.BOOL, self._limits)
            for word, count in self._words.items():
                value = cells.to_truth(pa.array([word]))
                for start in range(0, count, _ROWS):
                    truth.add(pa.array(np.repeat(value, min(_ROWS, count - start))))
            column = truth.finish(name)
        else:
            text = Text(self._limits, (), self._may_be_list)
            text.add_counts(self._words)
            column = text.finish(name)
            self.broken, self.reason = text.broken, text.reason
        return dataclasses.replace(column, rows=self.rows, missing=self.missing)


def _to_dict(values: pa.Array, counts: pa.Array) -> dict[str, int]:
    return dict(zip(values.to_pylist(), counts.to_pylist(), strict=True))


def _are_few(words: Collection[str]) -> bool:
    """Return True if a column with the given first words may hold numbers or truth values."""
    odd_words = [word for word in words if word not in _MARKS_OF_NUMBERS]
    return len(odd_words) <= _FEW_WORDS or cells.are_truth(pa.array(list(words)))


def _is_int(column: facts.Column) -> bool:
    """Return True if all numbers of a column are whole and fit into int64."""
    numeric = column.numbers
    if numeric is None or not numeric.is_whole or numeric.infinite:
        return False
    return numeric.least >= -_INT64_END and numeric.greatest < _INT64_END


class Listed(Base):
    """Collects statistics of lists; in lists of lists, the innermost values count.

    Args:
      inner: the object that collects statistics of the values in the lists.
      marks: if `is_split` is True, the texts that stand for an empty list.
      is_split: True if lists are texts such as a|b, as in CSV.
    """

    def __init__(self, inner: Base, marks: Collection[str] = (), is_split: bool = False):
        super().__init__()
        self._inner, self._marks, self._lengths = inner, marks, numbers.Numbers()
        self._is_split = is_split

    def add(self, values: pa.Array) -> None:
        if self._is_split:
            values = pc.split_pattern(drop_marks(values, self._marks), _LIST_DELIMITER)
            trimmed = pc.ascii_trim_whitespace(values.values)
            values = _drop_empty(values, trimmed)
        elif values.null_count == len(values):
            # A block without values does not have a list type.
            values = pa.nulls(len(values), pa.list_(pa.string()))
        elif pa.types.is_string(values.type):
            text = values.drop_null()[0].as_py()
            raise ValueError(f"must hold lists, as in other rows, got {text[:40]!r}")
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        self.rows += len(values)
        self.missing += int((lengths == 0).sum())
        self._lengths.add(lengths[lengths > 0].astype(np.int64))
        single_values = pc.list_flatten(values, recursive=True)
        if len(single_values):
            self._inner.add(single_values)

    def finish(self, name: str) -> facts.Column:
        column = self._inner.finish(name)
        self.broken, self.reason = self._inner.broken, self._inner.reason
        return dataclasses.replace(
            column, rows=self.rows, missing=self.missing, is_list=True, lengths=self._lengths
        )


def _drop_empty(lists: pa.ListArray, parts: pa.Array) -> pa.Array:
    """Return lists with the values `parts`, from which empty texts are dropped as in training."""
    # For lists of 2 and 1 values, offsets are [0, 2, 3]. The new offset of a list counts only the
    # nonempty texts of earlier lists.
    offsets = lists.offsets.to_numpy()
    is_filled = pc.not_equal(parts, "").to_numpy(zero_copy_only=False)
    new_offsets = np.concatenate([[0], np.cumsum(is_filled)])[offsets]
    return pa.ListArray.from_arrays(
        pa.array(new_offsets, pa.int32()), parts.filter(pa.array(is_filled))
    )
