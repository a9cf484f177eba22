"""A mixture of several sources, in which each source may have labels for only some of the tasks.

from mtl.data import mixture
pipeline.Pipeline.source = @mixture.Mixture()
mixture.Mixture.sources = {"clicks": @clicks/csv.Csv(), "ratings": @ratings/csv.Csv()}
mixture.Mixture.labels = {"clicks": ["clicked"], "ratings": ["stars"]}
mixture.Mixture.rates = {"clicks": 3, "ratings": 1}

In the rows of a source, the labels of other sources are missing, and have no weight in the loss.
The rows of all sources are in memory. Each source has an endless stream of shuffled epochs, and
`mtl.data.shares` assigns the rows of each batch to the sources. So the batch of a step depends on
nothing but the settings and the step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import (
    filled_fields,
    in_memory,
    memory_rows,
    mixed_order,
    moved_rates,
    order,
    packed,
    pipeline,
    shares,
)
from mtl.data import source as source_lib
from mtl.deferred import tf
from mtl.distribution import memory

MIXED, ALTERNATING = "mixed", "alternating"
# Evaluation and statistics read a split in batches of `_BLOCK` rows.
_BLOCK = 4096
# Alternating sources come in a random order within a block of steps, in which the rarest source has
# about `_TURNS` turns. A block has at most `_LONGEST_BLOCK` steps.
_TURNS, _LONGEST_BLOCK = 4, 10_000
# Hints for an error about a field or split that a source lacks: {word in the error: hint}.
_FIXES = {
    "split": " Mixture.splits says which sources have a split.",
    "field": " Mixture.absent_features and Mixture.labels say which fields a source lacks.",
}

_Rate = float | types.Schedule


class Part(NamedTuple):
    """A source whose rows are in a split of the mixture.

    Attributes:
      name: the name of the source in the mixture.
      source: the source that reads the rows.
      split: the name of the split in the source.
    """

    name: str
    source: types.Source
    split: str


def _check_rates(where: str, value: Any) -> None:
    if isinstance(value, moved_rates.ByLosses) or value is None:
        return
    checks.mapping(where, value, "map sources to rates, or be @moved_rates.ByLosses()")
    check = checks.Scheduled(checks.AtLeast(0), "schedules.Polynomial")
    for name, rate in value.items():
        check(f"{where}[{name!r}]", rate)


@checks.dataclass
class Mixture(types.Source):
    """A source that mixes the rows of several sources for training.

    Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer", 2020, arXiv:1910.10683, section 3.5.2, compare examples-proportional,
    temperature-scaled and equal mixing.

    A split of the mixture concatenates the rows of the splits with this name in all sources. The
    split "ratings/test" is the split "test" of only the source "ratings".

    Every process keeps the rows of all sources in memory.

    Attributes:
      sources: {name: source}.
      rates: {name of the source: rate} for all sources. Batches contain rows of the sources in
        proportion to the rates. A rate is a number, or a schedule over the steps.
        `moved_rates.ByLosses` adapts the rates to the losses. With `rates = None`, the rates follow
        from the numbers of rows and `temperature`.
      temperature: T; without `rates`, a source of n rows has the rate n^(1 / T). T = 1 draws all
        rows equally often, and a large T draws all sources equally often.
      batches: "mixed" puts rows of all sources into each batch; "alternating" takes all rows of a
        batch from a single source.
      labels: {name: labels of the source}; all other labels are missing in the rows of the source.
        A source that `labels` does not name has all labels.
      absent_features: {name: features that the source lacks}; an absent feature gets its default,
        and an absent list is empty.
      splits: {split: names of the sources that have the split}. A split that is not in `splits`
        must be in all sources.
      name_field: a "string" field that holds the name of the source of each row. If `name_field` is
        in `Spec.labels`, `MultiTaskModel.slices` can use this field, and requests to a server need
        not contain it. With `name_field = None`, no field is added.
    """

    sources: Annotated[
        Mapping[str, Annotated[types.Source, source_lib.check]],
        checks.Map("map names to sources"),
        checks.Filled("name a source"),
    ]
    rates: Annotated[Mapping[str, _Rate] | moved_rates.ByLosses | None, _check_rates] = None
    temperature: checks.Positive = 1.0
    batches: Annotated[str, checks.OneOf((MIXED, ALTERNATING))] = MIXED
    labels: Annotated[Mapping[str, Sequence[str]], checks.Map("map sources to labels")] = (
        dataclasses.field(default_factory=dict)
    )
    absent_features: Annotated[
        Mapping[str, Sequence[str]], checks.Map("map sources to features")
    ] = dataclasses.field(default_factory=dict)
    splits: Annotated[Mapping[str, Sequence[str]], checks.Map("map splits to sources")] = (
        dataclasses.field(default_factory=dict)
    )
    name_field: Annotated[str, checks.Is(str, "name a field")] | None = None

    def __post_init__(self):
        for name, source in self.sources.items():
            where = f"Mixture.sources[{name!r}]"
            checks.require(bool(name) and "/" not in name, where, "have a name without a /", name)
            source_lib.check_order(source, None)
            is_plain = not types.read_member(source, types.Source, "orders_rows")
            rule = "not be a mixture: name its sources here"
            checks.require(is_plain, where, rule, type(source).__name__)
        for setting in ("labels", "absent_features"):
            self._check_lists(setting, getattr(self, setting), self.sources)
        self._check_lists("splits", self.splits, None)
        for split, names in self.splits.items():
            where = f"Mixture.splits[{split!r}]"
            checks.require(bool(names), where, "name a source", list(names))
            for name in names:
                checks.one_of(where, name, self.sources)
        if self.rates is not None:
            rule = "be left out beside Mixture.rates"
            checks.require(self.temperature == 1, "Mixture.temperature", rule, self.temperature)
        if isinstance(self.rates, Mapping):
            self._check_rates(self.rates)

    def _check_lists(
        self, setting: str, lists: Mapping[str, Any], names: Mapping[str, Any] | None
    ) -> None:
        for name, values in lists.items():
            if names is not None:
                checks.one_of(f"Mixture.{setting}", name, names)
            where = f"Mixture.{setting}[{name!r}]"
            checks.texts(where, values, "be a list of names")
            checks.unique(where, values)

    def _check_rates(self, rates: Mapping[str, Any]) -> None:
        for name in rates:
            checks.one_of("Mixture.rates", name, self.sources)
        for name in self.sources:
            rule = f"have a rate for each source; {name!r} lacks one (0 leaves it out)"
            checks.require(name in rates, "Mixture.rates", rule, list(rates))
        has_rate = any(callable(rate) or rate > 0 for rate in rates.values())
        checks.require(has_rate, "Mixture.rates", "hold one above 0", dict(rates))

    @property
    def names(self) -> list[str]:
        """The columns that all sources have."""
        lists = [getattr(source, "names", ()) for source in self.sources.values()]
        return [name for name in lists[0] if all(name in names for names in lists)]

    @property
    def names_files(self) -> bool:
        """True if the rows of a source name files, such as images."""
        return any(map(source_lib.names_files, self.sources.values()))

    @property
    def orders_rows(self) -> bool:
        """True, because the rates decide how often rows are drawn."""
        return True

    def order_rows(
        self, split: str, spec: spec_lib.Spec, *, batch_size: int, seed: int, is_shuffled: bool
    ) -> types.RowOrder:
        """Return the order in which training takes the rows of a split.

        Raises:
          UserError: a source lacks a feature or has no rows, or the rows do not fit into memory.
        """
        self._check_fields(spec)
        counts = self._count_sources(split, spec)
        for name, count in counts.items():
            where = f"split {split!r} of Mixture.sources[{name!r}]"
            checks.require(count > 0, where, "hold a record", count)
        size = 1 if self.batches == ALTERNATING else batch_size
        streams, first = [], 0
        for name, count in counts.items():
            rows = np.arange(first, first + count)
            # The name gives each source another order, even if two sources have the same number of
            # rows.
            stream_seed = seed + zlib.crc32(name.encode())
            streams.append(order.Epochs(rows, stream_seed, batch_size, is_shuffled))
            first += count

        def make_order(dealt: shares.Shares, block_size: int = 1) -> mixed_order.MixedOrder:
            is_alternating = self.batches == ALTERNATING
            return mixed_order.MixedOrder(
                streams, counts, dealt, batch_size, is_alternating, block_size
            )

        if isinstance(self.rates, moved_rates.ByLosses):
            base = _weigh_counts(counts, self.rates.temperature)
            moved = make_order(self.rates.make_shares(base, size))
            still = make_order(mixed_order.make_shares(base, size))
            return mixed_order.MovedOrder(moved, still, self.rates.every)
        rates = (
            _weigh_counts(counts, self.temperature)
            if self.rates is None
            else [self.rates[name] for name in counts]
        )
        return make_order(mixed_order.make_shares(rates, size), _find_block(rates))

    @property
    def known_steps(self) -> int | None:
        """The number of steps for which the row order is known in advance; None without a limit."""
        if not isinstance(self.rates, moved_rates.ByLosses):
            return None
        # Subtract a few steps, because `shares` looks ahead for rows that are due early.
        return self.rates.every - len(self.sources) - 2

    def list_tasks(
        self, split: str, heads: Sequence[types.Head], spec: spec_lib.Spec
    ) -> dict[str, list[str]]:
        """Return the tasks that have labels in the rows of each source of a split.

        Args:
          split: the name of a split of the mixture, such as "train".
          heads: the heads, one for each task.
          spec: the fields; a source that `labels` does not name has all labels of `spec`.

        Returns:
          {source: names of tasks}, in the order of the sources in `order_rows`.
        """
        names = [part.name for part in self.list_parts(split)]
        source_labels = {name: self.labels.get(name, spec.labels) for name in names}
        return {
            name: [head.name for head in heads if head.field in labels]
            for name, labels in source_labels.items()
        }

    def _check_fields(self, spec: spec_lib.Spec) -> None:
        """Fail if the settings name fields that the specification lacks."""
        for name, labels in self.labels.items():
            for label in labels:
                checks.one_of(f"Mixture.labels[{name!r}]", label, spec.labels)
        for name, features in self.absent_features.items():
            for feature in features:
                checks.one_of(f"Mixture.absent_features[{name!r}]", feature, spec.features)
        if self.name_field is not None:
            checks.one_of("Mixture.name_field", self.name_field, spec.fields)
        for label in spec.labels:
            rule = f"name the label {label!r} for a source, or the Spec must lack it"
            has_label = any(label in self.labels.get(name, spec.labels) for name in self.sources)
            has_label = has_label or label == self.name_field
            checks.require(has_label, "Mixture.labels", rule, dict(self.labels))

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split in order, as {split: row number}."""
        return self._number_rows(split).map(functools.partial(self.take_rows, split))

    def blocks(self, split: str) -> tf.data.Dataset:
        """Return the records of a split in batches."""
        rows = self._number_rows(split).batch(_BLOCK)
        return rows.map(functools.partial(self.take_rows, split))

    def _number_rows(self, split: str) -> tf.data.Dataset:
        self.list_parts(split)  # This call fails for an unknown split.

        # AutoGraph is off, because it would change the errors that sources raise.
        @tf.autograph.experimental.do_not_convert
        def number(_: tf.Tensor) -> tf.data.Dataset:
            # The graph calls this function when it runs, after `decode` has loaded the rows while
            # the graph was built.
            count = tf.numpy_function(lambda: np.int64(self._count(split)), [], tf.int64)
            return tf.data.Dataset.range(tf.ensure_shape(count, []))

        return tf.data.Dataset.range(1).flat_map(number)

    def take_rows(self, split: str, rows: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Return the raw records for row numbers, int64 [B]."""
        return {split: rows}

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, Any]:
        """Turn row numbers [B] into the values of fields; the first call reads all rows.

        Raises:
          UserError: when the graph is built, if a source lacks a field, a record is malformed, or
            the rows do not fit into memory.
        """
        ((split, rows),) = batch.items()
        fields = spec.fields if with_labels else spec.feature_fields
        split_rows = self._load(split, fields, spec)
        layout = memory_rows.Layout(fields)
        return memory_rows.take(layout, lambda _: split_rows, tf.zeros_like(rows), rows)

    def read_values(self, split: str, spec: spec_lib.Spec) -> Iterator[dict[str, packed.Values]]:
        """Yield {field: its values in the rows of a source} for each source of a split.

        The caller keeps the values in memory, so this method first frees the copy of the split that
        `decode` may have cached.

        Raises:
          UserError: a source lacks a field, a record is malformed, or the rows do not fit into
            memory.
        """
        lock, cache = self._row_cache
        with lock:
            for key in [key for key in cache if key[0] == split]:
                del cache[key]
        return self._read_parts(split, spec.fields, spec)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each row of a split, one source after the other."""
        for part in self.list_parts(split):
            part_spec, absent = self._divide(part.name, spec.fields, spec)
            with _name_source(part):
                for location, values in self._scan_part(part, part_spec):
                    if isinstance(values, str):
                        yield location, values
                    else:
                        default_values = {name: fill.make_value() for name, fill in absent.items()}
                        row_values = {**values, **default_values}
                        yield location, {name: row_values[name] for name in spec.fields}

    def change_sources(
        self, spec: spec_lib.Spec, change: Callable[[types.Source, spec_lib.Spec], types.Source]
    ) -> Mixture:
        """Return a copy with other sources.

        Args:
          spec: the fields to read from the mixture.
          change: a function from a source, and from a specification of its fields, to the source
            that replaces it.
        """
        specs = {name: self._divide(name, spec.fields, spec)[0] for name in self.sources}
        sources = {n: change(source, specs[n] or spec) for n, source in self.sources.items()}
        return dataclasses.replace(self, sources=sources)

    def list_parts(self, split: str) -> list[Part]:
        """Return the sources whose rows form a split of the mixture.

        Args:
          split: a split that all or some sources have, such as "test"; or a split of a single
            source, such as "ratings/test".

        Returns:
          The sources in the order of the settings. A source is listed even if it lacks the split.
        """
        name, _, source_split = split.partition("/")
        # "ratings/test" names a split of one source, but other split names may also have a slash.
        if source_split and name in self.sources:
            return [Part(name, self.sources[name], source_split)]
        names = self.splits.get(split, self.sources)
        return [Part(name, self.sources[name], split) for name in names]

    def _divide(
        self, name: str, fields: Mapping[str, spec_lib.Field], spec: spec_lib.Spec
    ) -> tuple[spec_lib.Spec | None, dict[str, filled_fields.Filled]]:
        """Return a specification of the fields of a source, and {absent field: constant value}.

        Args:
          name: the name of the source in the setting `sources`.
          fields: the fields to read.
          spec: the specification of all fields.

        Returns:
          The specification and the constant values. The specification is None if the source lacks
          all fields in `fields`.

        Raises:
          UserError: the source lacks a feature without a default.
        """
        absent_names = self.absent_features.get(name, ())
        lacks = {self.name_field, *absent_names}
        lacks |= {*map(spec_lib.counts_name, absent_names)}
        lacks |= {*map(spec_lib.weights_name, absent_names)}
        lacks |= set(spec.labels).difference(self.labels.get(name, spec.labels))
        own_names = [field_name for field_name in fields if field_name not in lacks]
        absent = {
            field_name: self._find_default(name, field, field_name in spec.labels)
            for field_name, field in fields.items()
            if field_name in lacks
        }
        return filled_fields.narrow_spec(spec, own_names), absent

    def _find_default(
        self, name: str, field: spec_lib.Field, is_label: bool
    ) -> filled_fields.Filled:
        """Return the constant value of a field that a source lacks."""
        if field.name == self.name_field:
            is_text = field.dtype == "string" and not field.shape
            rule = "be a text in each row, of type 'string'"
            checks.require(is_text, f"Mixture.name_field {field.name!r}", rule, field.dtype)
            return filled_fields.Filled(field, name)
        if is_label:
            return filled_fields.Filled(field, field.missing)
        rule = f"be set, as Mixture.absent_features lists it for source {name!r}"
        checks.require(not field.is_required, f"Spec.defaults[{field.name!r}]", rule, None)
        return filled_fields.Filled(field, field.default)

    @functools.cached_property
    def _row_cache(self) -> tuple[threading.Lock, dict[Any, memory_rows.Rows]]:
        """A lock for threads of tf.data, and {(split, fields): the rows in memory}."""
        return threading.Lock(), {}

    @functools.cached_property
    def _counts(self) -> dict[str, dict[str, int]]:
        """{split: {source: its number of rows}} of all splits that were read."""
        return {}

    def _count_sources(self, split: str, spec: spec_lib.Spec) -> dict[str, int]:
        """Return {source: its number of rows} of a split, which is read at the first call."""
        if split not in self._counts:
            self._load(split, spec.fields, spec)
        return self._counts[split]

    def _load(
        self, split: str, fields: Mapping[str, spec_lib.Field], spec: spec_lib.Spec
    ) -> memory_rows.Rows:
        """Return the rows of a split; read the sources at the first call."""
        lock, cache = self._row_cache
        # The key of the cache includes the fields, because fields of the same name may differ in
        # type and default.
        key = split, repr(fields)
        with lock:
            if key not in cache:
                blocks = self._read_parts(split, fields, spec)
                setting = "Mixture.sources", list(self.sources)
                values = in_memory.join_blocks(split, fields, blocks, setting)
                cache[key] = memory_rows.Rows(memory_rows.Layout(fields), values)
            return cache[key]

    def _read_parts(
        self, split: str, fields: Mapping[str, spec_lib.Field], spec: spec_lib.Spec
    ) -> Iterator[dict[str, packed.Values]]:
        """Yield {field: its values in the rows of a source}, and count the rows of each source."""
        counts: dict[str, int] = {}
        size = 0
        for part in self.list_parts(split):
            part_spec, absent = self._divide(part.name, fields, spec)
            if part_spec is None:
                values, count = dict[str, packed.Values](), _count_records(part)
            else:
                values = _read_part(part, part_spec)
                count = _count_values(values, part_spec)
            # Absent fields get a value for each row, so that all sources have the same columns.
            values |= {name: fill.repeat(count) for name, fill in absent.items()}
            counts[part.name] = count
            size += sum(values[name].nbytes for name in fields)
            # Check after each source, so that a mixture fails as soon as it exceeds the memory.
            memory.require_memory("Mixture.sources", list(counts), size, f"Split {split!r} takes")
            yield values
        self._counts[split] = counts

    def _scan_part(
        self, part: Part, part_spec: spec_lib.Spec | None
    ) -> Iterator[tuple[str, dict[str, Any] | str]]:
        if part_spec is not None:
            return part.source.scan(part.split, part_spec)
        rows = range(_count_records(part))
        return ((f"Mixture.sources[{part.name!r}] row {row}", {}) for row in rows)

    def _count(self, split: str) -> int:
        """Return the number of rows of a split."""
        if split in self._counts:
            return sum(self._counts[split].values())
        return sum(map(_count_records, self.list_parts(split)))


@contextlib.contextmanager
def _name_source(part: Part) -> Iterator[None]:
    """Add the name of the source, and a hint, to an error that the source raises."""
    try:
        yield
    except checks.UserError as error:
        text = str(error)
        word = next((word for word in _FIXES if word in text and "must be one of" in text), None)
        fix = _FIXES[word] if word else ""
        raise checks.UserError(f"Mixture.sources[{part.name!r}]: {text}{fix}") from error


def _find_block(rates: Sequence[Any]) -> int:
    """Return the number of steps of a block, in which each source fills several batches."""
    turns = float(len(rates))
    if not any(map(callable, rates)):
        turns = max(turns, sum(rates) / min(filter(None, rates)))
    return min(math.ceil(_TURNS * turns), _LONGEST_BLOCK)


def _weigh_counts(counts: Mapping[str, int], temperature: float) -> list[float]:
    """Return the rate of each source, computed from the number of rows."""
    # Divide by the largest count first, because a power of a count may overflow.
    largest = max(counts.values())
    return [(count / largest) ** (1 / temperature) for count in counts.values()]


def _read_part(part: Part, spec: spec_lib.Spec) -> dict[str, packed.Values]:
    """Read the values of all rows of a source.

    Raises:
      UserError: the source lacks a field, a record is malformed, or the split is too large for
        memory. The error names the source.
    """
    with _name_source(part):
        blocks = types.read_shortcut(part.source, "list_blocks")(part.split, spec)
        rule = "have all rows in memory, as a mixture keeps them there"
        if blocks is not None:
            window_text = f"a window of {blocks.window:,} rows"
            fix = f"Leave out {blocks.setting}, or take a part of the rows by subset.Subset."
            checks.fail(f"split {part.split!r}", rule, window_text, fix)
        setting = f"Mixture.sources[{part.name!r}]", part.split
        return pipeline.read_split(part.source, part.split, spec, setting)


def _count_values(values: Mapping[str, packed.Values], spec: spec_lib.Spec) -> int:
    """Return the number of rows in {field: values}."""
    name, first_values = next(iter(values.items()))
    if isinstance(first_values, packed.Lists):
        return len(first_values.splits) - 1
    if isinstance(first_values, packed.Texts):  # Each row has `size` texts, stored as numbers.
        return len(first_values.numbers) // spec.fields[name].size
    return len(first_values)


def _count_records(part: Part) -> int:
    """Return the number of raw records of a source."""
    with _name_source(part):
        rows = types.read_shortcut(part.source, "list_rows")(part.split)
    if rows is not None:
        return len(rows)

    def count() -> tf.data.Dataset:
        batches = source_lib.read_batches(part.source, part.split, _BLOCK)
        return batches.map(lambda *batch: types.count_rows({"": tf.nest.flatten(batch)[0]}))

    counts = list(source_lib.iterate(count))
    for error in filter(lambda count: isinstance(count, Exception), counts):
        raise error
    return int(sum(counts))
