"""Changes the keys of growing tables after a training step: adds new keys and evicts old keys.

moved = growth.grow_tables(columns, features, moved)     # after the weights' update

A training step first looks up only the keys that already have rows. After the update of the
weights, keys of the batch that have no row may get a row. Every replica processes the keys of all
replicas in ascending order, so the table does not depend on how a batch is split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mtl import checks, deferred, types
from mtl.deferred import tf, tf1
from mtl.features import key_table
from mtl.step import draws, outlets, replicas
from mtl.tf_internals import reduced, shards
from mtl.variables import averaging, freezing, patterns, pruned, slots

with deferred.imports():
    from mtl.features import growth_writes

if TYPE_CHECKING:
    from mtl import features as features_lib


_NEVER = float("inf")
# The score of free rows, which is below the scores of all occupied rows, because these are at least
# 0.
_FREE = -1.0
# The number of the sketch's counters for each row of the table. With more counters, fewer keys
# share a counter.
_SKETCH_FACTOR = 4


class Growth(types.StepExtension):
    """A step extension that gives rows to new keys of a batch, after the update of the weights.

    Args:
      model: an object with the attribute `columns`.
      features: {field: [B, ...]} of this replica, before the batch is cut into micro-batches.
    """

    def __init__(self, model: Any, features: types.Tensors, labels: types.Tensors):
        del labels
        self._columns, self._features = model.columns, features

    def after_update(self, moved: tf.Operation) -> tf.Operation:
        """Return an op that adds and evicts keys after the update of the weights, `moved`."""
        return grow_tables(self._columns, self._features, moved)


def join_keys(parts: Iterable[Mapping[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
    """Concatenate the keys that several columns look up in the same table, for each table.

    Args:
      parts: the keys of each column by table, {table: int64 [N]}.

    Returns:
      {table: int64 [M]}, the keys of all columns that use the table; keys may repeat.
    """
    keys_by_table: dict[str, list[tf.Tensor]] = {}
    for part in parts:
        for table, keys in part.items():
            keys_by_table.setdefault(table, []).append(keys)
    return {
        table: keys[0] if len(keys) == 1 else tf.concat(keys, 0)
        for table, keys in keys_by_table.items()
    }


def grow_tables(
    columns: Sequence[types.Column], features: types.Tensors, update: tf.Operation
) -> tf.Operation:
    """Return an op that updates the weights, and then gives rows to keys of the batch.

    Args:
      columns: the columns of the model.
      features: {field: [B, ...]} of this replica, before the batch is cut into micro-batches.
      update: the op that updates the weights.
    """
    tables = list_growing_tables(columns)
    if not tables:
        return update
    keys_by_column = (
        types.read_member(column, types.Column, "keys")(features) for column in columns
    )
    for table, keys in join_keys(keys_by_column).items():
        with tf1.variable_scope(f"features/{table}", reuse=tf1.AUTO_REUSE) as scope:
            update = _Table(tables[table], scope.name).grow(keys, update)
    return update


def list_growing_tables(columns: Sequence[types.Column]) -> dict[str, features_lib.Growing]:
    """List all growing tables of a model.

    Args:
      columns: the columns of the model; columns nested in them, as in a `History`, count, too.

    Returns:
      {table, or column without a shared table: the `Growing` column with its settings}.
    """
    tables: dict[str, features_lib.Growing] = {}
    for column in columns:
        for part in (column, *types.read_member(column, types.Column, "parts")):
            if getattr(part, "step_extension", None) is Growth:
                tables |= part.tables
    return tables


class _BatchKeys(NamedTuple):
    """The distinct keys of a batch over all replicas.

    Attributes:
      keys: the distinct keys, int64 [N].
      counts: the number of occurrences of each key, int64 [N].
      rows: the index of the row of each key, [N]; 0 for unknown keys.
      is_known: True for keys that have a row, bool [N].
    """

    keys: tf.Tensor
    counts: tf.Tensor
    rows: tf.Tensor
    is_known: tf.Tensor

    def select(self, mask: tf.Tensor) -> _BatchKeys:
        """Return the keys for which a mask, bool [N], is True."""
        return _BatchKeys(*(tf.boolean_mask(values, mask) for values in self))

    def sort(self) -> _BatchKeys:
        """Return the keys in ascending order."""
        order = tf.argsort(self.keys)
        return _BatchKeys(*(tf.gather(values, order) for values in self))


class _Write(NamedTuple):
    """New values for some rows of a variable, or for the whole variable if `rows` is None.

    If `is_greatest` is True, a new value is written only if it exceeds the old value.
    """

    variable: tf.Variable
    values: tf.Tensor
    rows: tf.Tensor | None
    is_greatest: bool = False


@dataclasses.dataclass(frozen=True)
class _Table:
    """Builds the ops that change the keys of a growing table in a training step.

    Attributes:
      part: the `Growing` column with the settings of the table.
      scope: the name of the variable scope.
    """

    part: features_lib.Growing
    scope: str

    def grow(self, keys: tf.Tensor, moved: tf.Operation) -> tf.Operation:
        """Return an op that adds and evicts keys after the update of the weights, `moved`."""
        # Change keys after the update of the weights: then all lookups of the step are done, and
        # "norm" compares the new weights.
        with tf.control_dependencies([moved]):
            return self._change_after(_count_keys(self.part.create_keys(), keys), moved)

    def _change_after(self, keys: _BatchKeys, update: tf.Operation) -> tf.Operation:
        num_known = tf.reduce_sum(tf.where(keys.is_known, keys.counts, tf.zeros_like(keys.counts)))
        num_keys = tf.maximum(tf.reduce_sum(keys.counts), 1)
        self._watch_value("unknown_share", 1 - num_known / num_keys)
        first = freezing.first_step(f"{self.scope}/embedding")
        if first == _NEVER:  # A frozen table keeps its rows and keys.
            return update
        self._require_free_rows()
        writes, evicted_rows = self._change_rows(keys, freezing.is_reached(first))
        with tf.control_dependencies([write.values for write in writes]):  # Read before writing.
            if evicted_rows is not None:
                writes += self._reset_rows(evicted_rows)
            return _apply_writes(writes)

    def _change_rows(
        self, keys: _BatchKeys, is_growing: bool | tf.Tensor
    ) -> tuple[list[_Write], tf.Tensor | None]:
        """Return the new values of all variables but the weights, and the evicted rows or None."""
        known_keys, eviction = keys.select(keys.is_known), self.part.eviction
        new_keys, writes = self._admit_keys(keys.select(~keys.is_known).sort(), is_growing)
        last_seen = self._create_variable("last_seen") if eviction == "age" else None
        comings = self._create_variable("comings") if eviction == "count" else None
        rows, is_placed, evicted_rows = self._place(new_keys, known_keys.rows, last_seen, comings)
        placed_keys = new_keys.select(is_placed)
        size = self._create_variable("size", shape=[])
        num_added, num_evicted = (tf.shape(values, tf.int64)[0] for values in (rows, evicted_rows))
        # `num_added` also counts the new keys that take evicted rows, so the number of evicted rows
        # is subtracted from the size of the table.
        new_size = size.read_value() + num_added - num_evicted
        writes += [
            _Write(size, new_size, None),
            _Write(self.part.create_keys(), placed_keys.keys, rows),
        ]
        of_batch = tf.concat([known_keys.rows, rows], 0)
        if last_seen is not None:
            step = tf1.train.get_or_create_global_step().read_value()
            writes.append(_Write(last_seen, tf.fill(tf.shape(of_batch), step), of_batch))
        if comings is not None:
            known_counts = tf.gather(comings, known_keys.rows) + known_keys.counts
            counts = tf.concat([known_counts, placed_keys.counts], 0)
            writes.append(_Write(comings, counts, of_batch))
        num_unplaced = tf.shape(new_keys.keys, tf.int64)[0] - num_added
        scalars = {
            "size": new_size,
            "new": num_added,
            "evicted": num_evicted,
            "without_place": num_unplaced,
        }
        for kind, value in scalars.items():
            self._watch_value(kind, value)
        return writes, evicted_rows if eviction else None

    def _require_free_rows(self) -> None:
        """Fail if pruning or freezing fixes entries of the table, whose rows can change keys."""
        name = f"{self.scope}/embedding"
        rule = "choose no growing table"
        checks.require(not pruned.is_cut(name), "Pruning.patterns", rule, name)
        for table in _find_table(self.scope) if self.part.eviction else ():
            rule = "choose no table that evicts rows"
            fits = freezing.find_mask(table) is None
            checks.require(fits, "Freezing.entries", rule, name)

    def _watch_value(self, kind: str, value: tf.Tensor) -> None:
        name = self.scope.removeprefix("features/")
        outlets.add_scalar(f"table/{name}/{kind}", tf.cast(value, tf.float32))

    def _create_variable(
        self, name: str, shape: Sequence[int] | None = None, dtype: tf.DType | None = None
    ) -> tf.Variable:
        """Create a variable of zeros with `shape`, or with one number for each row."""
        return tf1.get_variable(
            name,
            [self.part.num_rows] if shape is None else shape,
            dtype or tf.int64,
            tf1.zeros_initializer(),
            trainable=False,
            partitioner=None,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def _admit_keys(
        self, keys: _BatchKeys, is_growing: bool | tf.Tensor
    ) -> tuple[_BatchKeys, list[_Write]]:
        """Return the keys that may get a row, with counts, and writes to the counters of keys."""
        is_admitted, counts, writes = tf.fill(tf.shape(keys.keys), is_growing), keys.counts, []
        if self.part.admission_rate < 1:
            seed = draws.make_step_seed("admission")
            uniform = tf.random.stateless_uniform(tf.shape(keys.keys), seed, dtype=tf.float64)
            rejection = tf.constant(1 - self.part.admission_rate, tf.float64)
            is_admitted &= uniform >= rejection ** tf.cast(counts, tf.float64)
        if self.part.min_count > 1:
            size = _SKETCH_FACTOR * self.part.num_rows
            sketch = self._create_variable("sketch", [size], tf.int32)
            # A key has two counters; the smaller counter is closer to the true count, and estimates
            # it. Both counters of a key are raised only to its new estimate, which has the smallest
            # error (Estan and Varghese, 2002).
            places = key_table.list_buckets(keys.keys, size)
            estimates = tf.minimum(*(tf.gather(sketch, buckets) for buckets in places))
            new_counts = estimates + tf.cast(counts, tf.int32)
            counts = tf.cast(new_counts, tf.int64)
            is_admitted &= new_counts >= self.part.min_count
            writes.append(_Write(sketch, tf.tile(new_counts, [2]), tf.concat(places, 0), True))
        return keys._replace(counts=counts).select(is_admitted), writes

    def _place(
        self,
        keys: _BatchKeys,
        in_use: tf.Tensor,
        last_seen: tf.Variable | None,
        comings: tf.Variable | None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Assign rows to M keys; return the rows, a mask of placed keys, and evicted rows."""
        buckets = tf.stack(key_table.list_buckets(keys.keys, self.part.num_buckets), 1)  # [M, 2]
        places = tf.range(key_table.PLACES, dtype=tf.int64)
        rows = buckets[:, :, tf.newaxis] * key_table.PLACES + places  # [M, 2, 8]
        is_free = tf.equal(tf.gather(self.part.create_keys(), buckets), key_table.NO_KEY)
        # A key may go to any row of its two buckets. A free row is best, then the row with the
        # lowest score.
        scores = self._score_rows(rows, keys.counts, last_seen, comings)
        # Rows of the batch are not evicted, because the update has just changed their weights.
        scores = tf.where(_is_among(in_use, rows), tf.constant(_NEVER, scores.dtype), scores)
        scores = tf.where(is_free, tf.constant(_FREE, scores.dtype), scores)
        # Choose the bucket with more free rows; in a tie, the bucket with the lowest score.
        free = tf.reduce_sum(tf.cast(is_free, tf.int32), 2)
        lowest = tf.reduce_min(scores, 2)
        is_even = tf.equal(free[:, 0], free[:, 1])
        is_second = (free[:, 1] > free[:, 0]) | (is_even & (lowest[:, 1] < lowest[:, 0]))
        choice = tf.cast(is_second, tf.int32)[:, tf.newaxis]
        rows, scores, bucket = (
            tf.gather(values, choice, batch_dims=1)[:, 0] for values in (rows, scores, buckets)
        )
        # The n-th new key of a bucket gets the row with the n-th smallest score.
        rank = _count_before(bucket)
        nth = tf.minimum(rank, key_table.PLACES - 1)[:, tf.newaxis]
        place = tf.gather(tf.argsort(scores, axis=1), nth, batch_dims=1)
        row, score = (tf.gather(values, place, batch_dims=1)[:, 0] for values in (rows, scores))
        is_placed = (rank < key_table.PLACES) & tf.math.is_finite(score)
        return (
            tf.boolean_mask(row, is_placed),
            is_placed,
            tf.boolean_mask(row, is_placed & (score > _FREE)),
        )

    def _score_rows(
        self,
        rows: tf.Tensor,
        counts: tf.Tensor,
        last_seen: tf.Variable | None,
        comings: tf.Variable | None,
    ) -> tf.Tensor:
        """Return scores of rows [M, 2, 8]; low scores are evicted first, infinite scores never."""
        never = tf.fill(tf.shape(rows), tf.constant(_NEVER, tf.float64))
        if last_seen is not None:
            return tf.cast(tf.gather(last_seen, rows), tf.float64)
        if comings is not None:
            row_counts = tf.gather(comings, rows)
            # A new key replaces a stored key only if the new key has at least as many occurrences.
            is_evictable = row_counts <= counts[:, tf.newaxis, tf.newaxis]
            return tf.where(is_evictable, tf.cast(row_counts, tf.float64), never)
        if self.part.eviction == "norm":
            vectors = tf.nn.embedding_lookup(_find_table(self.scope), rows)
            return tf.cast(tf.norm(tf.cast(vectors, tf.float32), axis=-1), tf.float64)
        return never

    def _reset_rows(self, rows: tf.Tensor) -> list[_Write]:
        """Return writes that reset rows, and their optimizer slots, to initial values."""
        dimension = cast(int, self.part.dimension)
        stddev = self.part.initial_stddev or dimension**-0.5
        shape = tf.stack([tf.shape(rows)[0], dimension])
        seed = draws.make_step_seed("evicted")
        first_values = tf.random.stateless_truncated_normal(shape, seed, stddev=stddev)
        writes = []
        for table in _find_table(self.scope):
            shard_rows, values, shard = rows, first_values, shards.find_shard(table)
            if shard:
                shard_rows = rows - shard.first
                is_here = (shard_rows >= 0) & (shard_rows < table.shape[0])
                shard_rows, values = (
                    tf.boolean_mask(shard_rows, is_here),
                    tf.boolean_mask(values, is_here),
                )
            writes.append(_Write(table, tf.cast(values, table.dtype), shard_rows))
            writes += [
                _Write(slot, _start_slot(slot, values), shard_rows)
                for slot in slots.list_slots(table)
                if slot.shape.rank and slot.shape[0] == table.shape[0]
            ]
        return writes


def _count_keys(table: tf.Variable, keys: tf.Tensor) -> _BatchKeys:
    """Return the distinct keys of a batch over all replicas, with counts and rows."""
    keys = tf.boolean_mask(keys, tf.not_equal(keys, key_table.NO_KEY))
    keys, _, counts = tf.unique_with_counts(keys, tf.int64)
    if replicas.count() > 1:
        # Replicas can only add up sparse rows of a table, so keys serve as row numbers.
        rows = tf.IndexedSlices(
            tf.cast(counts, tf.float32)[:, tf.newaxis], keys, tf.constant([2**62, 1])
        )
        of_all = replicas.sum_over_replicas(rows)
        keys, places = tf.unique(of_all.indices, tf.int64)
        counts = tf.cast(of_all.values[:, 0], tf.int64)
        counts = tf.math.unsorted_segment_sum(counts, places, tf.size(keys, tf.int64))
    return _BatchKeys(keys, counts, *key_table.find_rows(table, keys))


def _is_among(members: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return a mask of the values [...] that are in `members` [N]; all numbers are at least 0."""
    ascending = tf.sort(members)
    indices = tf.searchsorted(ascending, tf.reshape(values, [-1]))
    neighbours = tf.gather(tf.concat([ascending, [-1]], 0), indices)
    return tf.equal(tf.reshape(neighbours, tf.shape(values)), values)


def _count_before(values: tf.Tensor) -> tf.Tensor:
    """Return the number of equal values before each value in `values` [M], int32 [M]."""
    order = tf.argsort(values, stable=True)
    ascending = tf.gather(values, order)
    ranks = tf.range(tf.size(values)) - tf.searchsorted(ascending, ascending)
    return tf.scatter_nd(order[:, tf.newaxis], ranks, tf.shape(values))


def _find_table(scope: str) -> list[tf.Variable]:
    """Return the table in a scope, or the shards of the table in order."""
    name = f"{scope}/embedding"
    tables = [v for v in tf1.global_variables() if patterns.variable_name(v) == name]
    return sorted(tables, key=lambda v: getattr(shards.find_shard(v), "first", 0))


def _start_slot(slot: tf.Variable, weights: tf.Tensor) -> tf.Tensor:
    """Return initial values of an optimizer slot for M rows, given the new weights [M, D]."""
    name = patterns.variable_name(slot)
    shape = tf.concat([tf.shape(weights)[:1], slot.shape[1:]], 0)
    if averaging.is_decay(name):
        total = next(v for v in tf1.global_variables() if averaging.is_total(v))
        return tf.fill(shape, total.read_value())  # Averages of new rows start now.
    if averaging.is_state(name):
        return tf.cast(weights, slot.dtype)
    return tf.fill(shape, tf.constant(slots.find_first_value(slot), slot.dtype.base_dtype))


def _apply_writes(writes: Sequence[_Write]) -> tf.Operation:
    """Return an op that applies writes on all replicas."""
    groups: dict[bool, list[tuple[Any, tf.Variable]]] = {}
    for write in writes:
        rows = write.rows
        if rows is not None:
            # `IndexedSlices` of a gradient need a dense shape, although no op reads the shape.
            slices = tf.IndexedSlices(write.values, rows, write.variable.shape)
        groups.setdefault(write.is_greatest, []).append(
            (write.values if rows is None else slices, write.variable)
        )
    return tf.group(
        *(
            reduced.apply_reduced(growth_writes.Writing(kind), pairs)
            for kind, pairs in groups.items()
        )
    )
