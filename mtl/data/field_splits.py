"""Splits by a field: rows of one user stay together, or the last days are held out.

pipeline.Pipeline.source = @field_splits.ByKey()
field_splits.ByKey.source = @csv.Csv()
field_splits.ByKey.field = "user"
field_splits.ByKey.held_out = {"test": 0.1}

field_splits.ByTime.field = "day"
field_splits.ByTime.starts = {"test": "2024-05-01"}

The source needs named columns of text, as `csv.Csv` has.
"""

import abc
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import source as source_lib
from mtl.spec import literals

_ROWS_AT_ONCE = 1024
# As many as a hash tells apart.
_BUCKETS = 1 << 31
# A time is compared as a number of its digits: year, month, day, hour, minute, second.
_DIGITS = 14
_TIME = r"[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}([T ].*)?"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByField(source_lib.ChosenRows):
    """What splits by a field share.

    Attributes:
      source: of the rows.
      field: the column that decides, text or a number.
      split: the split that is cut; others are passed on.
    """

    source: types.Source
    field: str
    split: str = "train"

    def __post_init__(self):
        kind = type(self).__name__
        source_lib.check(f"{kind}.source", self.source)
        checks.is_a(f"{kind}.field", self.field, str, "name a field")
        checks.is_a(f"{kind}.split", self.split, str, "name a split")

    @property
    @abc.abstractmethod
    def new_splits(self) -> list[str]:
        """The splits that are held out."""

    @abc.abstractmethod
    def takes(self, split: str, texts: tf.Tensor) -> tf.Tensor:
        """Return which rows a split holds: texts of the field [B] -> bool [B]."""

    @property
    def names(self) -> list[str]:
        """The columns of the source."""
        return list(getattr(self.source, "names", ()))

    @property
    def _own(self) -> spec_lib.Spec:
        return spec_lib.Spec(features={self.field: "string"}, labels={}, defaults={self.field: ""})

    def chooser(self, split: str) -> source_lib.Chooser | None:
        """Return what chooses the rows of a split; None for one of the source's own."""
        if split not in (self.split, *self.new_splits):
            return None

        def choose(numbers: tf.Tensor, batch: Any) -> tf.Tensor:
            del numbers
            texts = self.source.decode(batch, self._own, False)[self.field]
            return self.takes(split, texts)

        return choose

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Read the split record by record."""
        if split not in (self.split, *self.new_splits):
            yield from self.source.scan(split, spec)
            return
        own = self.source.scan(self.split, self._own)
        pairs = zip(own, self.source.scan(self.split, spec), strict=True)
        while some := list(itertools.islice(pairs, _ROWS_AT_ONCE)):
            # A record that cannot be read is told, whatever its split.
            texts = [v[self.field] if isinstance(v, dict) else "" for (_, v), _ in some]
            kept = self._decide(split, texts)
            for (_, row), is_kept in zip(some, kept, strict=True):
                if is_kept or isinstance(row[1], str):
                    yield row

    def _decide(self, split: str, texts: list[Any]) -> Any:
        """Return which rows a split holds, also where a graph is being built."""
        made = source_lib.iterate(
            lambda: tf.data.Dataset.from_tensors(texts).map(lambda some: self.takes(split, some))
        )
        (kept,) = made
        return kept


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByKey(ByField):
    """A source whose rows with the same key lie in one split, drawn by a hash of the key.

    A held-out split has about its share of the keys. Rows without a key count as one key.

    Attributes:
      held_out: {new split: its share of the keys}.
      seed: decides which keys are taken.
    """

    held_out: Mapping[str, float]
    seed: int = 1

    def __post_init__(self):
        super().__post_init__()
        checks.mapping("ByKey.held_out", self.held_out, "map splits to shares")
        for split, share in self.held_out.items():
            checks.positive(f"ByKey.held_out[{split!r}]", share)
            checks.require(split != self.split, "ByKey.held_out", "name new splits", split)
        total = sum(self.held_out.values())
        checks.require(0 < total < 1, "ByKey.held_out", "hold shares below 1 in all", total)
        checks.is_a("ByKey.seed", self.seed, int, "be an integer")

    @property
    def new_splits(self) -> list[str]:
        """Those of `held_out`."""
        return list(self.held_out)

    def takes(self, split: str, texts: tf.Tensor) -> tf.Tensor:
        """Return which keys [B] a split holds."""
        seeded = tf.strings.join([f"{self.seed}:", texts])
        place = tf.cast(tf.strings.to_hash_bucket_fast(seeded, _BUCKETS), tf.float64) / _BUCKETS
        ends = list(itertools.accumulate(self.held_out.values()))
        if split == self.split:
            return place >= ends[-1]
        end = ends[self.new_splits.index(split)]
        return (place >= end - self.held_out[split]) & (place < end)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByTime(ByField):
    """A source whose held-out splits are later than its training split.

    Times are numbers, or texts such as 2024-05-31 or 2024-05-31 12:30:00, of which time zones and
    fractions of a second do not count. A row without a time lies in no split.

    Attributes:
      starts: {new split: its first time}, in ascending order; each ends where the next one starts.
    """

    starts: Mapping[str, str | float]

    def __post_init__(self):
        super().__post_init__()
        checks.mapping("ByTime.starts", self.starts, "map splits to times")
        checks.require(bool(self.starts), "ByTime.starts", "name a split", dict(self.starts))
        for split, start in self.starts.items():
            where, rule = f"ByTime.starts[{split!r}]", "be a number, or as 2024-05-31"
            checks.is_a(where, start, (str, int, float), rule)
            is_time = not isinstance(start, str) or re.fullmatch(_TIME, start)
            checks.require(bool(is_time), where, rule, start)
            checks.require(split != self.split, "ByTime.starts", "name new splits", split)
        kinds = {isinstance(start, str) for start in self.starts.values()}
        checks.require(len(kinds) == 1, "ByTime.starts", "be of one kind", dict(self.starts))
        ordered = sorted(set(self.starts.values()))
        is_sorted = list(self.starts.values()) == ordered
        checks.require(is_sorted, "ByTime.starts", "be in ascending order", dict(self.starts))

    @property
    def new_splits(self) -> list[str]:
        """Those of `starts`."""
        return list(self.starts)

    def takes(self, split: str, texts: tf.Tensor) -> tf.Tensor:
        """Return which times [B] a split holds."""
        is_text = isinstance(next(iter(self.starts.values())), str)
        starts = tf.constant(list(self.starts.values()), tf.string if is_text else tf.float64)
        starts = _to_digits(starts) if is_text else starts
        times = _to_digits(texts) if is_text else _to_numbers(texts)
        place = 0 if split == self.split else self.new_splits.index(split) + 1
        is_known = tf.math.is_finite(times)
        if place:
            is_known &= times >= starts[place - 1]
        return is_known & (times < starts[place]) if place < len(self.starts) else is_known


def _to_numbers(texts: tf.Tensor) -> tf.Tensor:
    is_number = tf.strings.regex_full_match(texts, literals.FINITE)
    return tf.strings.to_number(tf.where(is_number, texts, "nan"), tf.float64)


def _to_digits(texts: tf.Tensor) -> tf.Tensor:
    """Texts of times [B] -> float64 [B], NaN where there is none."""
    is_time = tf.strings.regex_full_match(texts, _TIME)
    # Up to the seconds: a zone behind the minutes would be taken for some.
    known = tf.strings.regex_replace(texts, r"^(.{10}(?:[T ][0-9:]*)?).*", r"\1")
    digits = tf.strings.regex_replace(known, "[^0-9]", "")
    padded = tf.strings.substr(tf.strings.join([digits, "0" * _DIGITS]), 0, _DIGITS)
    return tf.strings.to_number(tf.where(is_time, padded, "nan"), tf.float64)
