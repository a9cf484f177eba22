"""Sums over the whole batch of a step, on several replicas and in slices that go one by one.

batch = whole_batch.WholeBatch(whole_batch.ForwardPass(losses))
gradients = batch.sum(lambda forward: tf.gradients(forward.losses["income"], variables))

A slice needs only its own activations, so a batch of any size trains in the memory of one slice.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import tensorflow as tf

from mtl import types
from mtl.step import draws, monitors, replicas
from mtl.step import penalties as penalties_lib

tf1 = tf.compat.v1


class Examples(NamedTuple):
    """How a part came about, for what needs the gradient of each of its rows.

    Attributes:
      given: the tensors that its rows came in, in any nesting.
      count: how many rows.
      are_independent: whether no row has a share in the loss of another one, as in batch norm.
      row: n -> the part of its n-th row alone, built anew.
    """

    given: Any
    count: int  # type: ignore[assignment]  # Nobody counts the entries of this tuple.
    are_independent: bool
    row: Callable[[tf.Tensor | int], "ForwardPass"]

    def separate_rows(self) -> "WholeBatch":
        """Return the rows as parts of one each; their UPDATE_OPS are left out."""
        # The whole part has its UPDATE_OPS already: those of rows would move averages once more.
        with withhold_collections():
            first = self.row(0)
        # This sum stands within the one over the parts, which adds up the replicas.
        return WholeBatch(first, self.row, self.count, ignores_replicas=True)


class ForwardPass(NamedTuple):
    """What went through the network at once.

    Attributes:
      losses: {task: scalar}; [P] of P parts whose rows weigh on their own, before `add_parts`.
      shared: `Towers.shared`, the outputs that tasks share.
      samples: S -> the losses of every S-th row, from the first to the S-th on.
      unweighted: the losses before the tasks were weighted; None if they were not.
      examples: of the rows; None where they are not known.
      watched: tensors in any nesting that add up over the parts beside the gradients: see
        `WholeBatch.sum_watched`.
      penalties: the REGULARIZATION_LOSSES of its rows, where the batch has several parts.
    """

    losses: types.Tensors
    shared: Sequence[tf.Tensor] = ()
    samples: types.Samples | None = None
    unweighted: types.Tensors | None = None
    examples: Examples | None = None
    watched: Mapping[str, Any] = MappingProxyType({})
    penalties: Sequence[penalties_lib.Penalty] = ()

    def scale_losses(
        self, weights: types.Tensors, of_samples: types.Samples | None = None
    ) -> "ForwardPass":
        """Multiply every task's loss by a weight, the losses of S samples by `of_samples(S)`."""

        def scale(losses: types.Tensors, weights: types.Tensors) -> types.Tensors:
            return {task: weights[task] * loss for task, loss in losses.items()}

        def samples(given: types.Samples, count: int) -> list[types.Tensors]:
            factors = of_samples(count) if of_samples else [weights] * count
            return list(map(scale, given(count), factors))

        def row(given: Examples, index: tf.Tensor | int) -> ForwardPass:
            return given.row(index).scale_losses(weights)

        examples = self.examples and self.examples._replace(
            row=functools.partial(row, self.examples)
        )
        return self._replace(
            losses=scale(self.losses, weights),
            samples=self.samples and functools.partial(samples, self.samples),
            examples=examples,
        )

    def add_parts(self) -> "ForwardPass":
        """Add up the parts of each loss: scalars remain."""

        def add(losses: types.Tensors) -> types.Tensors:
            return {
                task: tf.reduce_sum(loss) if loss.shape.rank else loss
                for task, loss in losses.items()
            }

        def samples(given: types.Samples, count: int) -> list[types.Tensors]:
            return list(map(add, given(count)))

        return self._replace(
            losses=add(self.losses),
            samples=self.samples and functools.partial(samples, self.samples),
        )


@dataclasses.dataclass(frozen=True)
class WholeBatch:
    """The parts whose losses add up to those of the batch.

    Attributes:
      first: the first slice on this replica; the whole batch where there is no other.
      others: slice -> its part, built anew in every pass over the slices.
      slices: into how many the batch of a replica is cut.
      updates: the UPDATE_OPS of the first slice, which come before those of the others.
      ignores_replicas: whether this replica leaves the others out of its sums.
      of_slices: what the slices of this replica watched, once a pass has added it up.
    """

    first: ForwardPass
    others: Callable[[tf.Tensor], ForwardPass] | None = None
    slices: int = 1
    updates: Sequence[tf.Operation] = ()
    ignores_replicas: bool = False
    of_slices: dict[str, Any] = dataclasses.field(default_factory=dict)

    def scale_losses(self, weights: types.Tensors | None) -> "WholeBatch":
        """Multiply every task's loss by a weight, which is constant to gradients; None is 1."""
        weights = weights and {task: tf.stop_gradient(weight) for task, weight in weights.items()}

        def weighted(forward: ForwardPass) -> ForwardPass:
            scaled = forward.scale_losses(weights) if weights else forward
            return scaled._replace(unweighted=forward.losses)

        def other(given: Callable[[tf.Tensor], ForwardPass], slice_: tf.Tensor) -> ForwardPass:
            return weighted(given(slice_))

        others = self.others and functools.partial(other, self.others)
        return dataclasses.replace(self, first=weighted(self.first), others=others)

    def sum(self, function: Callable[[ForwardPass], Any], update: bool = False) -> Any:
        """Return the sum over all parts of what `function(part)` gives.

        Args:
          function: gives tensors, IndexedSlices and None, in any nesting.
          update: whether UPDATE_OPS of the slices run in this pass; one pass of a step has to.
        """
        total = function(self.first)
        if self.slices > 1 and update:
            # What slices watch is added up here, or it would take a pass of its own.
            total, watched = self._add_slices(
                (total, dict(self.first.watched)),
                lambda part: (function(part), dict(part.watched)),
                update,
            )
            self.of_slices.update(watched)
        elif self.slices > 1:
            total = self._add_slices(total, function, update)
        return total if self.ignores_replicas else replicas.sum_over_replicas(total)

    def sum_watched(self) -> dict[str, Any]:
        """Return the sums over all parts, and replicas, of `ForwardPass.watched`.

        Call it once the gradients are there: the pass that runs UPDATE_OPS adds it up beside them.
        """
        of_first = dict(self.first.watched)
        if self.slices == 1:
            return replicas.sum_over_replicas(of_first)
        if of_first and not self.of_slices:
            return self.sum(lambda part: dict(part.watched))
        return replicas.sum_over_replicas(self.of_slices)

    def without_replicas(self) -> "WholeBatch":
        """Return the parts of this replica alone."""
        return dataclasses.replace(self, ignores_replicas=True)

    # The first slice is built outside the loop: it creates the variables, and shows which results
    # are sparse. The others run one by one in a `tf.while_loop`, so that a slice's activations are
    # freed before the next one needs the memory.
    def _add_slices(self, first: Any, function: Callable[[ForwardPass], Any], update: bool) -> Any:
        flat = tf.nest.flatten(first)
        # The counter waits for the UPDATE_OPS of the first slice: averages move slice by slice.
        with tf.control_dependencies(self.updates if update else []):
            # Control dependencies reach into a loop by its inputs alone.
            one = tf.identity(tf.constant(1))
        start = [tensor for value in flat for tensor in _list_tensors(value)]

        others = cast(Callable[[tf.Tensor], ForwardPass], self.others)  # There are several slices.

        def body(slice_: tf.Tensor, *totals: tf.Tensor) -> list[tf.Tensor]:
            # Variables are read after the slice before has updated them.
            # Ops of this body cannot be run from outside of the loop, where collections are read.
            with withhold_collections() as updates, tf.control_dependencies([slice_]):
                values = tf.nest.flatten(function(others(slice_)))
            tensors = [tensor for value in values for tensor in _list_tensors(value)]
            are_rows = [is_rows for value in values for is_rows in _are_rows(value)]
            with tf.control_dependencies(updates if update else []):
                return [slice_ + 1, *map(_accumulate, are_rows, totals, tensors)]

        are_rows = [is_rows for value in flat for is_rows in _are_rows(value)]
        # Rows of looked-up tables are concatenated: their number grows with every slice.
        shapes = [
            tf.TensorShape([None, *tensor.shape[1:]]) if is_rows else tensor.shape
            for is_rows, tensor in zip(are_rows, start, strict=True)
        ]
        _, *totals = tf.while_loop(
            lambda slice_, *_: slice_ < self.slices,
            body,
            [one, *start],
            shape_invariants=[tf.TensorShape([]), *shapes],
            # The activations of two slices at once would take twice the memory.
            parallel_iterations=1,
        )
        left = iter(totals)
        return tf.nest.pack_sequence_as(first, [_rebuild(value, left) for value in flat])


def or_losses(batch: types.Batch | None, losses: types.Tensors) -> WholeBatch:
    """Return the batch of a step; where there is none, one of these losses alone."""
    return WholeBatch(ForwardPass(losses)) if batch is None else cast(WholeBatch, batch)


def build_batch(
    forward: Callable[[Any, Any], ForwardPass],
    label_weights: Callable[[Any], types.Tensors],
    features: Any,
    labels: Any,
    slices: int,
    are_rows_apart: bool = True,
) -> WholeBatch:
    """Build the batch of this replica in slices, together with those of all other replicas.

    A loss is a mean over the labelled rows of a batch. Here every part's mean counts by its share
    of the labels of the whole batch, so that parts add up to the mean over the batch.

    Args:
      forward: features and labels -> the part of these rows; creates the variables.
      label_weights: labels -> {task: what they weigh}.
      features: [B, ...] each, of this replica.
      labels: the same.
      slices: divides B.
      are_rows_apart: whether a row goes through alone as it does among others. Without, parts do
        not know their examples.
    """
    builder = _Builder(forward, label_weights, (features, labels), slices, are_rows_apart)
    before = _num_updates()
    first = builder.build_pass(0, slices, reuse=False)
    updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)[before:]
    return WholeBatch(first, functools.partial(builder.build_pass, count=slices), slices, updates)


class _Builder:
    """Builds the passes of a batch; see `build_batch`."""

    def __init__(
        self,
        forward: Callable[[Any, Any], ForwardPass],
        label_weights: Callable[[Any], types.Tensors],
        rows: tuple[Any, Any],
        slices: int,
        are_rows_apart: bool,
    ):
        self._forward, self._label_weights, self._rows = forward, label_weights, rows
        self._slices, self._are_rows_apart = slices, are_rows_apart
        self._scope = tf1.get_variable_scope()
        self._totals: dict[int, list[types.Tensors]] = {}

    def build_pass(self, index: tf.Tensor | int, count: int, reuse: bool = True) -> ForwardPass:
        """Build the pass of one of `count` slices of the batch of this replica."""
        own = take_slice(self._rows, index, count)
        num_terms = len(tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES))
        # Replicas cannot meet in the loop over slices: there batch norm sees its own rows alone.
        # The first slice creates the variables, and whatever is built later reuses them.
        with (
            replicas.separate_replicas(when=count > 1),
            tf1.variable_scope(self._scope, reuse=reuse or self._scope.reuse),
            draws.draw_for_slice(_draw_index(index, count), count * replicas.count()),
        ):
            built = self._build(own, index, count)
        if count * replicas.count() == 1:  # Bit-equal to a model without slices: no factor of 1.
            return built.add_parts()
        built = built._replace(penalties=penalties_lib.take(num_terms, own))
        shares = functools.partial(self._share_labels, own)
        # A row is built with a share of its own.
        scaled = built.scale_losses(shares(1)[0], shares)._replace(examples=built.examples)
        return scaled.add_parts()

    def _build(self, own: tuple[Any, Any], index: tf.Tensor | int, count: int) -> ForwardPass:
        """Build the pass of these rows; a row of them is a slice of one row."""
        if not self._are_rows_apart:
            return self._forward(*own)

        # It is numbered through all slices of this replica.
        def build_row(size: int, row: tf.Tensor | int) -> ForwardPass:
            return self.build_pass(index * size + row, count * size)

        return _attach_examples(self._forward, own, build_row)

    def _share_labels(self, own: tuple[Any, Any], count: int) -> list[types.Tensors]:
        """Return the shares of the labels of the batch that samples of a pass have.

        A loss is a mean over labelled rows, and the mean of means is not the mean: with a label in
        every row of one slice and in few of another, each slice has to count by its labels.
        """
        pairs = zip(self._sum_labels(*own, count), self._sum_all_labels(count), strict=True)
        return [
            # A task without any label in the whole batch weighs 0 in every part.
            {task: tf.math.divide_no_nan(part[task], total[task]) for task in part}
            for part, total in pairs
        ]

    def _sum_labels(self, features: Any, labels: Any, count: int) -> list[types.Tensors]:
        rows = labels or features  # Without a label in the data, a row counts as a row.
        return [self._label_weights(take_every(rows, first, count)) for first in range(count)]

    def _sum_all_labels(self, count: int) -> list[types.Tensors]:
        """Return the sums of samples over all replicas."""
        # Replicas meet once, outside of any loop: the first slice comes first.
        if count not in self._totals:
            if count == 1 and self._slices > 1 and not self._are_rows_apart:
                sums = [self._sum_slices()]
            else:
                sums = self._sum_labels(*self._rows, count)
            self._totals[count] = replicas.sum_over_replicas(sums)
        return self._totals[count]

    def _sum_slices(self) -> types.Tensors:
        # Rows of two slices are not compared, even where they are of one group.
        features, labels = self._rows
        parts = [
            self._label_weights(take_slice(labels or features, index, self._slices))
            for index in range(self._slices)
        ]
        return {task: tf.add_n([part[task] for part in parts]) for task in parts[0]}


def _attach_examples(
    forward: Callable[[Any, Any], ForwardPass],
    batch: Any,
    row: Callable[[int, tf.Tensor | int], ForwardPass],
) -> ForwardPass:
    """Return the part of these features and labels; `row` gives one of its rows alone."""
    before = _num_updates()
    built = forward(*batch)
    features, labels = batch
    size = tf.nest.flatten([labels, features])[0].shape[0]  # There may be no label.
    examples = Examples(
        given=batch,
        count=size,
        # What adds UPDATE_OPS, such as batch norm in training, sees rows together.
        are_independent=_num_updates() == before,
        row=functools.partial(row, size),
    )
    return built._replace(examples=examples)


def _num_updates() -> int:
    return len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))


@contextlib.contextmanager
def withhold_collections() -> Iterator[list[tf.Operation]]:
    """Take what belongs to a slice out of the graph's collections; yield its UPDATE_OPS."""
    names = tf1.GraphKeys
    keys = (names.UPDATE_OPS, names.REGULARIZATION_LOSSES, names.SUMMARIES, monitors.COLLECTION)
    collections = [tf1.get_collection_ref(key) for key in keys]
    before = [len(collection) for collection in collections]
    updates: list[tf.Operation] = []
    yield updates
    # Tensors of a loop's body cannot be read outside of it, and the first slice has left its own.
    updates += collections[0][before[0] :]
    for collection, length in zip(collections, before, strict=True):
        del collection[length:]


def take_every(fields: types.Tensors, first: int, count: int) -> types.Tensors:
    """Return every `count`-th row, from the `first` on."""
    return {name: values[first::count] for name, values in fields.items()} if count > 1 else fields


def _draw_index(slice_: tf.Tensor | int, slices: int) -> tf.Tensor | int:
    """Return the number of a slice among those of all replicas."""
    return replicas.replica_index() * slices + slice_


def take_slice(batch: Any, slice_: tf.Tensor | int, slices: int) -> Any:
    """Return the rows of one of so many equal slices of a batch, in any nesting."""
    if slices == 1:
        return batch

    def rows(values: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
        size = values.shape[0] // slices
        own = values[slice_ * size : (slice_ + 1) * size]
        # A slice at an index in the graph forgets how many rows it has; layers and heads read it.
        if isinstance(own, tf.RaggedTensor):
            own.row_splits.set_shape([size + 1])
            return own
        return tf.ensure_shape(own, [size, *values.shape[1:]])

    return tf.nest.map_structure(rows, batch)


def _list_tensors(value: types.Gradient) -> list[tf.Tensor]:
    if isinstance(value, tf.IndexedSlices):
        return [value.values, value.indices]
    return [] if value is None else [value]


def _are_rows(value: types.Gradient) -> list[bool]:
    return [True, True] if isinstance(value, tf.IndexedSlices) else [False] * (value is not None)


def _accumulate(is_rows: bool, total: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    return tf.concat([total, value], 0) if is_rows else total + value


def _rebuild(value: types.Gradient, totals: Any) -> types.Gradient:
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(next(totals), next(totals), value.dense_shape)
    return None if value is None else next(totals)
