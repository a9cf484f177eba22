"""A column that encodes a history of events, such as earlier clicks, as one vector.

clicks/features.History.name = "clicks"
clicks/features.History.events = [@clicked/features.Hashed(), @features.Numeric()]
clicks/features.History.encoder = @histories.TargetAttention()
clicks/features.History.target = ["hashed_item"]         # a column of the item that is scored
clicked/features.Hashed.names = ["clicked_items"]
clicked/features.Hashed.table = "item"                   # also the table of the column above
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, cast

from mtl import checks, layers, types
from mtl import spec as spec_lib
from mtl.deferred import tf, tf1
from mtl.features import accumulators, column, growth
from mtl.step import outlets
from mtl.variables import freezing
from mtl.variables import row_names as row_names_lib

# The number of buckets for the time between an event and `now`. Boundaries are powers of two; the
# last bucket holds everything from 2^63 - 1 on.
_GAPS = 64


@checks.dataclass
class History(types.Column):
    """Encodes aligned lists, whose i-th entries form event i: fields [B, (L)] or [B, L] -> [B, H].

    Columns encode each event like a row, and the vectors of the columns are concatenated. The lists
    of events in a row must have equal length. The columns that encode events are fitted to the
    entries of all lists.

    In a list of lists, whose shape in the Spec is (None, None), an entry holds several values, such
    as the categories of an item. In a history, a column combines the values of each entry by its
    `pooling`, as it combines the values of a row elsewhere. An empty entry, without any value,
    becomes a vector of zeros, and still counts as an event.

    Attributes:
      name: the name of the column.
      events: the columns that encode an event; their fields must be lists. The columns that encode
        events may share tables with other columns, and have their variables in
        `features/<name of the column>`.
      encoder: turns the events of a row into one vector, such as `histories.TargetAttention`. The
        variables of the encoder are in `features/<name>`.
      target: names of other columns, for example of the item to score; the encoder compares each
        event with the concatenated vectors of these columns.
      last: the number of events to read from the end of each list; None reads all events.
      place_dimension: the length of an embedding of the position of an event, counted from the end,
        which is appended to the vector of the event. `place_dimension` requires `last`. With
        `place_dimension = None`, no embedding is added.
      times: the field with the list of the times of events, as numbers in any unit. `times`
        requires `now`.
      now: the field that holds the time of the row.
      gap_dimension: the length of an embedding of the time from an event to `now`, in buckets by
        powers of two, which is appended to the vector of the event. A negative time counts as 0.
      shows_weights: True adds the attention weights of the events to predictions, as
        `<name>/attention`, [B, L], with zeros behind the events of a row. `shows_weights` requires
        an encoder that weighs events.
      trainable: False freezes the variables of the history.
    """

    name: checks.Name
    events: Annotated[
        Sequence[Annotated[types.Column, checks.Part("features.Hashed", arguments=2)]],
        checks.Filled("hold a column"),
    ]
    encoder: Annotated[types.HistoryEncoder, checks.Part("histories.TargetAttention", arguments=2)]
    target: Sequence[str] = ()
    last: checks.Count | None = None
    place_dimension: int | None = None
    times: str | None = None
    now: str | None = None
    gap_dimension: checks.Count = 8
    shows_weights: bool = False
    trainable: bool = True

    def __post_init__(self):
        needs = types.read_member(self.encoder, types.HistoryEncoder, "needs_target")
        rule = f"name the columns that {type(self.encoder).__name__} compares events with"
        checks.require(bool(self.target) or not needs, "History.target", rule, list(self.target))
        for part in self.events:
            rule = "be empty in the events of a history, whose images are not one a row"
            changes = list(getattr(part, "augmentations", ()))
            checks.require(not changes, f"{type(part).__name__}.augmentations", rule, changes)
        if self.place_dimension is not None:
            checks.whole("History.place_dimension", self.place_dimension, 1)
            rule = "be set if History.place_dimension is set"
            checks.require(self.last is not None, "History.last", rule, self.last)
        for setting, partner in (("times", "now"), ("now", "times")):
            has_both = getattr(self, setting) is None or getattr(self, partner) is not None
            checks.require(has_both, f"History.{partner}", f"be set if {setting} is set", None)
        where, shows_weights = "History.shows_weights", self.shows_weights
        weighs = types.read_member(self.encoder, types.HistoryEncoder, "weighs_events")
        rule = f"be False, because {type(self.encoder).__name__} does not weigh events"
        checks.require(weighs or not shows_weights, where, rule, shows_weights)

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """{name: fields of the history}."""
        time_fields = () if self.now is None else (self.now,)
        return {self.name: (*self._fields_with_lists, *time_fields)}

    @property
    def parts(self) -> Sequence[types.Column]:
        """The columns that encode an event."""
        return self.events

    @property
    def emitted_losses(self) -> dict[str, float]:
        """{name: weight} of the losses that the encoder emits."""
        return types.read_member(self.encoder, types.HistoryEncoder, "name_losses")(self.name)

    @property
    def are_emitted_rows_apart(self) -> bool:
        """True if the losses that the encoder emits for a row depend only on that row."""
        member = "are_emitted_rows_apart"
        return types.read_member(self.encoder, types.HistoryEncoder, member)

    @property
    def reads_columns(self) -> Sequence[str]:
        """The columns of `target`."""
        return self.target

    @property
    def _fields_with_lists(self) -> list[str]:
        """The fields of the history that are lists."""
        column_fields = (fields for part in self.events for fields in part.columns.values())
        times = () if self.times is None else (self.times,)
        return list(dict.fromkeys([*itertools.chain.from_iterable(column_fields), *times]))

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return {column or table: accumulator} for the columns that encode events."""
        return {
            name: part_accumulator
            # A `Vocabulary` can read lists. It is not wrapped in `OfEvents`, so that the
            # vocabularies of columns that share a table can be joined.
            if isinstance(part_accumulator, accumulators.Vocabulary)
            # An event may have an empty list of items, so other fields of the batch may be empty.
            else accumulators.OfEvents(part_accumulator, _list_fields(part, name, part_accumulator))
            for part in self.events
            for name, part_accumulator in types.read_member(
                part, types.Column, "accumulators"
            )().items()
        }

    def row_names(self, fitted: types.Statistics) -> dict[str, types.RowNames]:
        """Return {column or table: names of the table's rows} for columns that encode events."""
        row_names: dict[str, types.RowNames] = {}
        for part in self.events:
            part_names = types.read_member(part, types.Column, "row_names")(fitted)
            row_names = row_names_lib.join(row_names, part_names)
        return row_names

    @property
    def files(self) -> dict[str, str]:
        """{column: path of a file in its settings}, for the columns that encode events."""
        files: dict[str, str] = {}
        for part in self.events:
            files |= types.read_member(part, types.Column, "files")
        return files

    def keys(self, features: types.Tensors) -> dict[str, tf.Tensor]:
        """Return the keys of all events in growing tables, {table: keys [N]}."""
        entries = _list_entries(self._read_lists(features))
        parts = (types.read_member(part, types.Column, "keys")(entries) for part in self.events)
        return growth.join_keys(parts)

    def check(self, features: Mapping[str, types.PythonValue]) -> str | None:
        """Return an error message if lists of a record differ in length; otherwise None."""
        lengths = {}
        for field in self._fields_with_lists:
            counts = spec_lib.counts_name(field)
            entries = features.get(counts, features.get(field))
            lengths[field] = len(cast(Sequence[Any], entries))
        if len(set(lengths.values())) < 2:
            return None
        sizes = ", ".join(f"{field} of {length}" for field, length in lengths.items())
        return f"features.{self.name} must read lists of equal length in a row, got {sizes}."

    def __call__(
        self,
        features: types.Tensors,
        fitted: types.Statistics,
        columns: Mapping[str, tf.Tensor] = MappingProxyType({}),
    ) -> types.Tensors:
        """Encode lists {field: [B, (L)] or [B, L]} and targets {column: [B, D]} as [B, H]."""
        lists = self._read_lists(features)
        row_splits, entries = lists[self._fields_with_lists[0]].row_splits, _list_entries(lists)
        vectors: list[tf.Tensor] = []
        for part in self.events:
            with freezing.hold_part(types.read_member(part, types.Column, "trainable")):
                vectors += part(entries, fitted).values()
        with tf1.variable_scope(self.name):
            vectors += self._embed_places(lists) + self._embed_gaps(lists, features)
            entry_vectors = tf.concat([tf.cast(vector, tf.float32) for vector in vectors], axis=1)
            events = tf.RaggedTensor.from_row_splits(entry_vectors, row_splits, validate=False)
            target = tf.concat([columns[name] for name in self.target], 1) if self.target else None
            with outlets.show_predictions(self.shows_weights):
                return {self.name: self.encoder(events, target)}

    def _read_lists(self, features: types.Tensors) -> dict[str, tf.RaggedTensor]:
        """Return the last `last` entries of each list."""
        return self._take_last(
            {field: self._as_list(features, field) for field in self._fields_with_lists}
        )

    def _as_list(self, features: types.Tensors, field: str) -> tf.RaggedTensor:
        values, counts = features[field], spec_lib.counts_name(field)
        if counts in features:
            rule = "hold one time for each event"
            checks.require(field != self.times, "History.times", rule, field)
            row_counts = tf.cast(self._as_list(features, counts), tf.int64)
            return self._nest_values(field, values, row_counts)
        if isinstance(values, tf.RaggedTensor):
            return values
        fix = f"Its batches have shape {values.shape}; in Spec.features, (None,) is a list."
        where = f"features.{self.name}"
        checks.require(values.shape.rank == 2, where, "read fields that are lists", field, fix)
        return tf.RaggedTensor.from_tensor(values)

    def _nest_values(
        self, field: str, values: tf.RaggedTensor, counts: tf.RaggedTensor
    ) -> tf.RaggedTensor:
        """Split values [B, (N)] by counts [B, (L)] into entries, [B, (L), (n)].

        Raises:
          InvalidArgumentError: when the graph runs, if the counts of a row do not sum to its number
            of values.
        """
        rule = f"must read as many values of {field} as {spec_lib.counts_name(field)} counts"
        fits = spec_lib.require_counts(values, counts, f"features.{self.name} {rule}")
        with tf.control_dependencies([fits]):
            lengths = tf.identity(counts.flat_values)
        entries = tf.RaggedTensor.from_row_lengths(values.flat_values, lengths, validate=False)
        return counts.with_values(entries)

    def _take_last(self, lists: Mapping[str, tf.RaggedTensor]) -> dict[str, tf.RaggedTensor]:
        """Return the last `last` entries of lists, which must have equal lengths in each row.

        Raises:
          InvalidArgumentError: when the graph runs, if lists of a row differ in length.
        """
        (first, values), *other_lists = lists.items()
        lengths, assertions = values.row_lengths(), []
        for field, other in other_lists:
            where = f"features.{self.name}"
            message = f"{where} must read lists of equal length in a row, {first} and {field}"
            assertions.append(tf1.assert_equal(other.row_lengths(), lengths, message=message))
        with tf.control_dependencies(assertions):
            splits = tf.identity(values.row_splits)
        equal = {
            field: tf.RaggedTensor.from_row_splits(values_of_field.values, splits, validate=False)
            for field, values_of_field in lists.items()
        }
        if self.last is None:
            return equal
        is_last = _count_from_end(equal[first]) < self.last
        return {
            field: tf.RaggedTensor.from_row_lengths(
                _mask_entries(values_of_field.values, is_last),
                tf.minimum(lengths, self.last),
                validate=False,
            )
            for field, values_of_field in equal.items()
        }

    def _embed_places(self, lists: Mapping[str, tf.RaggedTensor]) -> list[tf.Tensor]:
        """Return embeddings of the positions of N events, [N, D], in a list; [] if disabled."""
        if self.place_dimension is None or self.last is None:
            return []
        places = _count_from_end(lists[self._fields_with_lists[0]])
        return [layers.embedding(places, self.last, self.place_dimension, "place")]

    def _embed_gaps(
        self, lists: Mapping[str, tf.RaggedTensor], features: types.Tensors
    ) -> list[tf.Tensor]:
        """Return embeddings of the time from events to `now`, [N, D], in a list; [] if disabled."""
        if self.times is None or self.now is None:
            return []
        times = tf.cast(lists[self.times].flat_values, tf.float64)
        now = tf.cast(column.numbers("History", features, self.now), tf.float64)
        # Repeat `now` for each event of a row, from [B] to [N].
        gaps = tf.maximum(tf.gather(now, lists[self.times].value_rowids()) - times, 0)
        # The last bucket holds the largest gaps, and infinite gaps.
        last = tf.constant(_GAPS - 1, gaps.dtype)
        # Add slightly more than 1, so that a power of two does not round down into a lower bucket.
        powers = tf.math.log(gaps + (1 + 1e-9)) * (1 / math.log(2))
        powers = tf.where(tf.math.is_finite(powers), powers, tf.fill(tf.shape(powers), last))
        buckets = tf.cast(tf.minimum(tf.floor(powers), last), tf.int64)
        return [layers.embedding(buckets, _GAPS, self.gap_dimension, "gap")]


def _list_fields(part: types.Column, name: str, accumulator: types.Accumulator) -> Sequence[str]:
    """Return the fields that an accumulator reads; those of the whole part if it does not say."""
    fields = part.columns.get(name) or list(itertools.chain.from_iterable(part.columns.values()))
    # The boundaries of a field in a Crossed have the name of no column, but the field as source.
    source = getattr(accumulator, "source", "")
    return [source] if source in fields else fields


def _list_entries(lists: Mapping[str, tf.RaggedTensor]) -> dict[str, column.Values]:
    """Return the entries of all rows of each list, [N], or [N, (n)] for lists of lists."""
    return {field: values.values for field, values in lists.items()}


def _mask_entries(entries: column.Values, mask: tf.Tensor) -> column.Values:
    """Select the entries [N] or [N, (n)] for which a mask [N] is True."""
    is_nested = isinstance(entries, tf.RaggedTensor)
    return (tf.ragged if is_nested else tf).boolean_mask(entries, mask)


def _count_from_end(lists: tf.RaggedTensor) -> tf.Tensor:
    """Return the number of later entries in the same list for each entry, [N]."""
    # The end index of the list of each entry, [N].
    ends = tf.gather(lists.row_splits[1:], lists.value_rowids())
    return ends - 1 - tf.range(tf.size(lists.value_rowids(), ends.dtype))
