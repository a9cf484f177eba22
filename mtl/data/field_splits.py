"""Sources that split rows by a field, such as by user, or by day to hold out the last days.

pipeline.Pipeline.source = @field_splits.ByKey()
field_splits.ByKey.source = @csv.Csv()
field_splits.ByKey.field = "user"
field_splits.ByKey.held_out = {"test": 0.1}

field_splits.ByTime.field = "day"
field_splits.ByTime.starts = {"test": "2024-05-01"}
field_splits.ByTime.form = "%d.%m.%Y"                    # if times are written as 31.05.2024

The source must have named columns, and the field must contain texts or whole numbers.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Annotated, Any

from mtl import checks, times, types
from mtl.data import chosen_rows, splits
from mtl.data import source as source_lib
from mtl.deferred import tf
from mtl.spec import literals, time_texts

_ROWS_AT_ONCE = 1024


@checks.dataclass
class ByField(chosen_rows.ChosenRows):
    """The base class of splits by a field.

    Attributes:
      source: the source of the rows.
      field: the column whose value decides the split of a row, a text or a number.
      split: the split that is divided; other splits of the source are unchanged.
    """

    source: Annotated[types.Source, source_lib.check]
    field: Annotated[str, checks.Is(str, "name a field")]
    split: Annotated[str, checks.Is(str, "name a split")] = "train"

    @property
    @abc.abstractmethod
    def new_splits(self) -> list[str]:
        """The names of the held-out splits."""

    @property
    def key_types(self) -> dict[str, str]:
        """{name of the field: type}."""
        return {self.field: self.find_key_type(self.field)}

    @abc.abstractmethod
    def takes(self, split: str, texts: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """Return a mask of the rows that belong to a split.

        Args:
          split: the divided split, or one of `new_splits`.
          texts: the value of the field in each row, string [B]; an absent value is an empty text.
          numbers: the row numbers, int64 [B].

        Returns:
          A mask, True for rows of the split, bool [B].
        """

    def find_choice(self, split: str) -> chosen_rows.Choice | None:
        """Return the rule that selects the rows of a split; None if the split is unchanged."""
        if split not in (self.split, *self.new_splits):
            return None
        return chosen_rows.Choice(
            lambda numbers, texts: self.takes(split, texts[self.field], numbers), (self.field,)
        )


@checks.dataclass
class ByKey(ByField):
    """A source that keeps all rows of a key in one split, which a hash of the key selects.

    A held-out split gets about its share of the keys. The keys 7 and 7.0 are equal. For a row
    without a key, a hash of the row number draws the split.

    Attributes:
      held_out: {new split: share of the keys}.
      seed: the seed of the hash by which a split is drawn.
    """

    held_out: splits.Shares
    seed: int = 1

    def __post_init__(self):
        super().__post_init__()
        for split, share in self.held_out.items():
            checks.positive(f"ByKey.held_out[{split!r}]", share)
            checks.require(split != self.split, "ByKey.held_out", "name new splits", split)
        total = sum(self.held_out.values())
        checks.require(0 < total < 1, "ByKey.held_out", "hold shares below 1 in all", total)

    @property
    def new_splits(self) -> list[str]:
        """The names of the splits in `held_out`."""
        return list(self.held_out)

    def takes(self, split: str, texts: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """Return the mask of the rows whose keys belong to a split, bool [B]."""
        return self._arcs[split].holds(splits.hash_keys([texts], numbers, self.seed))

    @property
    def _arcs(self) -> dict[str, splits.Arc]:
        """{split: its range of hash values}; the ranges of held-out splits come first."""
        ends = dict(zip(self.held_out, itertools.accumulate(self.held_out.values()), strict=True))
        bounds = {split: (end - self.held_out[split], end) for split, end in ends.items()}
        # The original split gets all hash values that no held-out split has.
        bounds[self.split] = max(ends.values()), 1.0
        # Neighbouring splits round their common bound in the same way, so splits never overlap.
        places = {s: [math.ceil(end * splits.PLACES) for end in b] for s, b in bounds.items()}
        return {split: splits.Arc(first, end - first) for split, (first, end) in places.items()}


@checks.dataclass
class ByTime(ByField):
    """A source that holds out splits whose times are later than all times of the training split.

    Times are numbers, or texts such as 2024-05-31, 2024/5/31 9:05 or 2024-05-31 12:30:00 PM, in UTC
    unless they have an offset such as +02:00. Names of time zones and fractions of a second are
    ignored. Rows without a time are in no split; a new run logs the number of such rows.

    Attributes:
      starts: {new split: first time}, in ascending order; a split ends when the next split starts.
      form: the format of the times in the field, in directives of Python's strptime, such as
        "%d.%m.%Y %H:%M". "" means formats such as 2024-05-31 and 2024/5/31 9:05. The format does
        not apply to the times in `starts`, which always have formats such as 2024-05-31 and
        2024/5/31 9:05.
    """

    starts: Annotated[
        Mapping[str, str | float], checks.Map("map splits to times"), checks.Filled("name a split")
    ]
    # The repr leaves out this setting, because a resumed run compares the repr with the saved
    # repr, which lacks the setting if an older version saved it.
    form: Annotated[str, checks.Is(str, "be a form such as '%d.%m.%Y'")] = dataclasses.field(
        default="", repr=False
    )

    def __post_init__(self):
        super().__post_init__()
        times.read_form("ByTime.form", self.form)
        for split, start in self.starts.items():
            where, rule = f"ByTime.starts[{split!r}]", "be a number or like 2024-05-31"
            checks.is_a(where, start, (str, int, float), rule)
            is_time = not isinstance(start, str) or math.isfinite(times.read_time(start))
            checks.require(is_time, where, rule, start)
            checks.require(split != self.split, "ByTime.starts", "name new splits", split)
        kinds = {isinstance(start, str) for start in self.starts.values()}
        checks.require(len(kinds) == 1, "ByTime.starts", "not mix types", dict(self.starts))
        # Two splits with the same first time are an error, because one of them would have no rows:
        # `set` drops repeated times, so the comparison fails.
        is_sorted = self._numbers == sorted(set(self._numbers))
        checks.require(is_sorted, "ByTime.starts", "be in ascending order", dict(self.starts))

    @property
    def new_splits(self) -> list[str]:
        """The names of the splits in `starts`."""
        return list(self.starts)

    @property
    def _numbers(self) -> list[float]:
        """The start of each split as a number, to compare times."""
        starts = self.starts.values()
        return [
            times.read_time(start) if isinstance(start, str) else float(start) for start in starts
        ]

    def takes(self, split: str, texts: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """Return the mask of the rows whose times belong to a split, bool [B]."""
        del numbers
        starts, row_times = self._numbers, self._read(texts)
        place = 0 if split == self.split else self.new_splits.index(split) + 1
        is_known = tf.math.is_finite(row_times)
        # The times of the training split have an upper bound, but no lower bound.
        if place:
            is_known &= row_times >= starts[place - 1]
        return is_known & (row_times < starts[place]) if place < len(self.starts) else is_known

    def _read(self, texts: tf.Tensor) -> tf.Tensor:
        is_text = isinstance(next(iter(self.starts.values())), str)
        form = times.read_form("ByTime.form", self.form)
        return _to_digits(texts, form) if is_text else _to_numbers(texts)

    def describe_left_out(self) -> list[str]:
        """Return a warning if some rows have no time."""
        missing, rows, example = self._count_left_out()
        ending = f", for example {example!r}" if example else ""
        line = (
            f"{missing:,} of {rows:,} rows ({missing / max(rows, 1):.1%}) are in no split: their "
            f"ByTime.field {self.field!r} holds no time{ending}."
        )
        return [line] * (missing > 0)

    def _count_left_out(self) -> tuple[int, int, str]:
        """Return the number of rows without a time, the number of all rows, and a text without a
        time.
        """
        choice = chosen_rows.Choice(lambda *_: None, (self.field,))

        @tf.autograph.experimental.do_not_convert
        def find(batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
            texts = self.read_keys(choice, batch)[self.field]
            return texts, tf.math.is_finite(self._read(texts))

        missing, rows, example = 0, 0, ""
        batches = source_lib.iterate(
            lambda: source_lib.read_batches(self.source, self.split, _ROWS_AT_ONCE).map(find)
        )
        for element in batches:
            if isinstance(element, Exception):
                break  # The next reader of the split reports a bad record.
            texts, is_known = element
            rows, missing = rows + len(texts), missing + int((~is_known).sum())
            others = [text for text in texts[~is_known] if text.strip()]
            example = example or (others[0].decode(errors="replace") if others else "")
        return missing, rows, example


def _to_numbers(texts: tf.Tensor) -> tf.Tensor:
    is_number = tf.strings.regex_full_match(texts, literals.FINITE)
    return tf.strings.to_number(tf.where(is_number, texts, "nan"), tf.float64)


def _to_digits(texts: tf.Tensor, form: times.Form) -> tf.Tensor:
    """Turn texts [B] into times, float64 [B], like `times.read_time`; NaN for other texts."""
    parts, is_time = time_texts.read_digits(texts, form, in_utc=True)
    # The digits of a time form one number, such as 20240531123000, which sorts like the time.
    total = functools.reduce(lambda number, part: 100 * number + part, parts.values())
    return tf.where(is_time, tf.cast(total, tf.float64), math.nan)
