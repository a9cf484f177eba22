"""A sampler that keeps the rows of each query, user or session together in a batch.

from mtl.data import whole_groups
pipeline.Pipeline.sampler = @whole_groups.WholeGroups()
whole_groups.WholeGroups.group = "query"         # a label, or a feature that Spec.keys names
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import filled_fields, group_order
from mtl.data import source as source_lib
from mtl.deferred import tf, tf1

# Keys are decoded for this number of records at once.
_RECORDS = 128


@checks.dataclass
class WholeGroups:
    """Draws whole groups: consecutive rows of the source with the same key.

    Every pass over the split contains each group once, and keeps the order of the rows in a group.
    A batch takes groups until the next group does not fit. Copies of the last row fill the rest of
    the batch. Copies that fill a batch have missing labels, and therefore no weight in losses, but
    batch norm uses the copies. If micro-batches (`Run.micro_batches`) or replicas divide a batch,
    each of its parts takes whole groups and is filled with copies in the same way. Evaluation reads
    all rows in order, without padding.

    | the source | mixes | a batch also ends |
    | -- | -- | -- |
    | has its rows in memory | all groups | at the end of a pass |
    | is read in order | `Pipeline.shuffle_buffer` groups | before a group that it already contains
    |

    With rows in memory, the batch of a step depends on the total number of micro-batches over the
    replicas of all workers.

    Attributes:
      group: the field that contains the key of a row's group, int64 or string: a label, or a
        feature in `Spec.keys`.
    """

    group: Annotated[str, checks.Is(str, "name a label field")]

    @property
    def balances(self) -> None:
        """The label whose classes the sampler balances: None, because it balances no classes."""
        return None

    def check(self, spec: spec_lib.Spec) -> None:
        """Fail unless the specification has the field `group` with one key in each row.

        Raises:
          UserError: `group` is neither a label nor in `Spec.keys`, or is not a single int64 or
            string.
        """
        checks.one_of("WholeGroups.group", self.group, [*spec.labels, *spec.keys])
        field = spec.fields[self.group]
        fits = field.dtype in ("int64", "string") and field.shape == ()
        kind = (field.dtype, field.shape)
        checks.require(fits, f"WholeGroups.group {self.group!r}", "be one int64 or string", kind)

    def accumulators(self) -> dict[str, Any]:
        """Return {name in the statistics: accumulator that counts and checks groups}."""
        return {_name_statistics(self.group): Groups(group=self.group)}

    def require_room(self, statistics: types.Statistics, rows: int) -> None:
        """Fail if the largest group of the training split has more than `rows` rows."""
        self._require_room(statistics.for_column(_name_statistics(self.group))["largest"], rows)

    def _require_room(self, largest: int, rows: int) -> None:
        rule = f"have room for the largest group of {self.group!r}, {largest} rows"
        fix = "Raise Pipeline.batch_size, or lower Run.micro_batches."
        where = "each micro-batch of a replica"
        checks.require(largest <= rows, where, rule, rows, fix)

    @property
    def order_field(self) -> str | None:
        """The field that contains the key of a row's group; None if `form_batches` is replaced."""
        is_plain = type(self).form_batches is WholeGroups.form_batches
        return self.group if is_plain else None

    def order_by_field(
        self,
        rows: np.ndarray,
        values: np.ndarray,
        *,
        batch_size: int,
        parts: int,
        seed: int,
        is_shuffled: bool,
    ) -> group_order.GroupOrder:
        """Return the order of training rows, given row numbers [N] and group keys [N].

        Raises:
          UserError: the largest group does not fit into a part of a batch.
        """
        starts = np.append(_find_starts(values), len(values))
        self._require_room(int(np.diff(starts).max()), batch_size // parts)
        return group_order.GroupOrder(
            rows,
            starts,
            batch_size=batch_size,
            parts=parts,
            seed=seed,
            is_shuffled=is_shuffled,
        )

    def form_batches(
        self,
        records: tf.data.Dataset,
        source: types.Source,
        spec: spec_lib.Spec,
        shuffle_buffer: int,
        seed: int,
        rows: int,
        parts: int,
    ) -> tf.data.Dataset:
        """Return endless batches of raw records with a mask that is False for copies, bool [B]."""
        field = spec.fields[self.group]

        def one_pass(epoch: tf.Tensor) -> tf.data.Dataset:
            groups = _split_groups(records, source, field)
            # With the sum of `seed` and `epoch` as a seed, two runs with different seeds would have
            # the same orders, some epochs apart.
            pass_seed = tf.random.stateless_uniform(
                [], [seed, epoch], maxval=tf.int64.max, dtype=tf.int64
            )
            return groups.shuffle(shuffle_buffer, pass_seed)

        groups = tf.data.Dataset.range(tf.int64.max).flat_map(one_pass)
        batches = _fill(groups, records, rows)
        if parts == 1:
            return batches
        return batches.batch(parts, drop_remainder=True).map(_join_parts)


@dataclasses.dataclass(kw_only=True)
class Groups:
    """An accumulator that counts the groups of a split, and the rows of the largest group.

    Attributes:
      group: the field that contains the key of a row's group.
    """

    group: str

    def __post_init__(self):
        self._rows, self._last = 0, None
        self._starts: list[np.ndarray] = []
        self._prints: list[np.ndarray] = []

    def update(self, fields: types.Tensors) -> None:
        """Add the keys of a batch; the last group may continue in the next batch.

        Raises:
          UserError: a row has no group.
        """
        keys = fields[self.group].numpy()
        if not len(keys):
            return
        is_text = keys.dtype == object
        absent = b"" if is_text else spec_lib.MISSING["int64"]
        is_absent = (keys == absent) | (keys == spec_lib.NO_ID)
        row = self._rows + int(np.argmax(is_absent)) + 1
        where = f"label {self.group!r} of row {row} of the training split"
        rule = "name the row's group for WholeGroups.group"
        checks.require(not is_absent.any(), where, rule, "" if is_text else spec_lib.NO_ID)
        before = [self._last, *keys[:-1]]
        starts = np.flatnonzero([key != other for key, other in zip(keys, before, strict=True)])
        self._starts.append(starts + self._rows)
        self._prints.append(_compute_fingerprints(keys[starts]))
        self._rows, self._last = self._rows + len(keys), keys[-1]

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Return the number of groups, and the number of rows in the largest group.

        Raises:
          UserError: the rows of a group are not consecutive.
        """
        del directory, column
        starts = np.concatenate(self._starts)
        prints = np.concatenate(self._prints)
        order = np.argsort(prints, kind="stable")
        # A group begins where the key changes, so a group that begins twice is not consecutive.
        repeats = np.flatnonzero(prints[order][1:] == prints[order][:-1])
        if len(repeats):
            pair = min(order[repeats + 1])  # The first group with rows at two places.
            first_row = starts[np.flatnonzero(prints == prints[pair])[0]]
            where = f"the training split, for WholeGroups.group {self.group!r},"
            rule = "have the rows of a group one after the other"
            fix = f"Sort the rows by {self.group!r}."
            problem = f"other rows between rows {first_row + 1} and {starts[pair] + 1} of one group"
            checks.fail(where, rule, problem, fix)
        sizes = np.diff(np.append(starts, self._rows))
        return {"groups": len(starts), "largest": int(sizes.max())}


def _compute_fingerprints(keys: np.ndarray) -> np.ndarray:
    if keys.dtype != object:
        return keys
    # Fingerprints of 64 bits save memory, because memory holds the keys of all groups.
    prints = tf.raw_ops.Fingerprint(data=tf.constant(keys), method="farmhash64")
    return prints.numpy().view(np.int64)[:, 0]


def _find_starts(keys: np.ndarray) -> np.ndarray:
    """Return the indices of rows whose key differs from the key of the previous row, int64 [G]."""
    differ = np.asarray(keys[1:] != keys[:-1], bool)
    return np.flatnonzero(np.concatenate([[True], differ]))


def _name_statistics(group: str) -> str:
    return f"group/{group}"


def _split_groups(
    records: tf.data.Dataset, source: types.Source, field: spec_lib.Field
) -> tf.data.Dataset:
    """Return one pass over the groups as (raw records [n, ...], key)."""
    spec = filled_fields.specify_field(field)

    @tf.autograph.experimental.do_not_convert
    def read(rows: Any) -> tuple[Any, tf.Tensor, tf.Tensor]:
        return rows, source.decode(rows, spec, False)[field.name], tf.constant(False)

    # An empty chunk marks the end of the pass, and completes the last group.
    def close(rows: Any, keys: tf.Tensor, ends: tf.Tensor) -> tuple[Any, tf.Tensor, tf.Tensor]:
        return _slice(rows, 0, 0), keys[:0], ~ends

    chunks = source_lib.batch(records, _RECORDS).map(read)
    # The empty chunk at the end of the pass is the first chunk, from which `close` drops all rows.
    chunks = chunks.concatenate(chunks.take(1).map(close))

    @tf.autograph.experimental.do_not_convert
    def cut(open_group: Any, chunk: Any) -> tuple[Any, Any]:
        *flat, keys = open_group
        rows, keys = _concat(_pack(records, flat), chunk[0]), tf.concat([keys, chunk[1]], 0)
        differ = tf.not_equal(keys[1:], keys[:-1])
        is_first = tf.concat([tf.ones_like(keys[:1], tf.bool), differ], 0)
        starts = tf.where(is_first)[:, 0]
        count = tf.size(keys, tf.int64)
        # The last group of a chunk may continue in the next chunk, unless the pass ends.
        last = tf.fill([tf.cast(chunk[2], tf.int64)], count)
        bounds = tf.concat([starts, last], 0)
        end = bounds[-1]
        return (*_flatten(_slice(rows, end, count)), keys[end:]), (rows, keys, bounds)

    start = (*_flatten(_empty_rows(records)), _make_empty(tf.TensorSpec([None], field.dtype)))

    @tf.autograph.experimental.do_not_convert
    def deal(rows: Any, keys: tf.Tensor, bounds: tf.Tensor) -> tf.data.Dataset:
        ends = tf.data.Dataset.from_tensor_slices((bounds[:-1], bounds[1:]))
        return ends.map(lambda first, last: (_slice(rows, first, last), keys[first]))

    return chunks.scan(start, cut).flat_map(deal)


def _fill(groups: tf.data.Dataset, records: tf.data.Dataset, rows: int) -> tf.data.Dataset:
    """Return full parts of batches as (raw records [rows, ...], mask [rows], False for padding)."""

    @tf.autograph.experimental.do_not_convert
    def add(buffer: Any, addition: Any) -> tuple[Any, Any]:
        (*flat, keys), (group, key) = buffer, addition
        buffer = _pack(records, flat)
        num_held, size = _count(buffer), _count(group)
        # A part of a batch may span two epochs, but must not contain a group twice, because the two
        # copies would have the same key.
        fits = (num_held + size <= rows) & ~tf.reduce_any(tf.equal(keys, key))
        message = f"A group has more than the {rows} rows of a micro-batch"
        with tf.control_dependencies([tf.debugging.Assert(size <= rows, [message, size])]):
            first = tf.where(fits, tf.zeros_like(num_held), num_held)
        next_buffer = _slice(_concat(buffer, group), first, num_held + size)
        keys = tf.concat([keys[: tf.where(fits, tf.size(keys), 0)], [key]], 0)
        return (*_flatten(next_buffer), keys), (buffer, ~fits)

    @tf.autograph.experimental.do_not_convert
    def pad(buffer: Any, is_full: tf.Tensor) -> tuple[Any, tf.Tensor]:
        del is_full
        count, places = _count(buffer), tf.range(rows, dtype=tf.int64)
        # Copies of the last row fill the rest of a part of a batch, with False in the mask.
        indices = tf.minimum(places, count - 1)
        return tf.nest.map_structure(lambda part: tf.gather(part, indices), buffer), places < count

    no_keys = _make_empty(tf.TensorSpec([None], groups.element_spec[1].dtype))
    buffers = groups.scan((*_flatten(_empty_rows(records)), no_keys), add)
    return buffers.filter(lambda buffer, is_full: is_full).map(pad)


def _join_parts(rows: Any, is_row: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Join the P parts of a batch, each with n rows, from shape [P, n, ...] to [P n, ...]."""

    def join(part: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
        if isinstance(part, tf.RaggedTensor):
            return part.merge_dims(0, 1)
        return tf.reshape(part, [part.shape[0] * part.shape[1], *part.shape[2:]])

    return tf.nest.map_structure(join, rows), join(is_row)


def _empty_rows(records: tf.data.Dataset) -> Any:
    """Return a batch of 0 raw records."""
    return tf.nest.map_structure(_make_empty, source_lib.batch(records, 1).element_spec)


def _make_empty(spec: Any) -> Any:
    """Return a tensor of 0 rows whose static shape allows any number of rows."""
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = spec.shape[spec.ragged_rank + 1 :]
        values = _make_empty(tf.TensorSpec([None, *inner], spec.dtype))
        splits = tf.zeros([1], spec.row_splits_dtype)
        for _ in range(spec.ragged_rank):
            row_splits = tf1.placeholder_with_default(splits, [None])
            values = tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)
        return values
    inner = spec.shape[1:]
    zeros = tf.zeros([0, *(size or 0 for size in inner)], spec.dtype)
    return tf1.placeholder_with_default(zeros, [None, *inner])


# The state of `Dataset.scan` cannot be ragged, so `_flatten` converts rows to plain tensors, and
# `_pack` converts them back.


def _flatten(rows: Any) -> tuple[tf.Tensor, ...]:
    return tuple(tf.nest.flatten(rows, expand_composites=True))


def _pack(records: tf.data.Dataset, tensors: Sequence[tf.Tensor]) -> Any:
    """Rebuild a batch of raw records from the tensors of `_flatten`."""
    spec = source_lib.batch(records, 1).element_spec
    return tf.nest.pack_sequence_as(spec, list(tensors), expand_composites=True)


def _slice(rows: Any, first: Any, last: Any) -> Any:
    return tf.nest.map_structure(lambda part: part[first:last], rows)


def _concat(rows: Any, more_rows: Any) -> Any:
    return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), rows, more_rows)


def _count(rows: Any) -> tf.Tensor:
    """Return the number of records in a batch, an int64 scalar."""
    part = tf.nest.flatten(rows)[0]
    is_list = isinstance(part, tf.RaggedTensor)
    return tf.cast(part.nrows(), tf.int64) if is_list else tf.shape(part, tf.int64)[0]
