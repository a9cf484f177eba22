"""Sums values over the whole batch of a step, in replicas and slices (micro-batches).

batch = whole_batch.WholeBatch(whole_batch.ForwardPass(losses))
gradients = batch.sum(lambda forward: tf.gradients(forward.losses["income"], variables))

Slices run one after another, and only the activations of one slice are in memory, so the memory for
activations does not limit the size of a batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from mtl import types
from mtl.deferred import tf, tf1
from mtl.step import draws, outlets, replicas
from mtl.step import penalties as penalties_lib


class Examples(NamedTuple):
    """The rows of a part of the batch, for code that needs the gradient of each row.

    Attributes:
      given: the tensors that hold the rows, in any nesting.
      count: the number of rows.
      are_independent: True if no row affects the loss of another row. Batch norm, for example,
        mixes rows.
      row: a function from n to a new forward pass over the n-th row alone.
    """

    given: Any
    count: int  # type: ignore[assignment]  # Hides tuple.count, which no code calls.
    are_independent: bool
    row: Callable[[tf.Tensor | int], ForwardPass]

    def separate_rows(self) -> WholeBatch:
        """Return a batch in which each row is a part; the passes of the rows add no UPDATE_OPS."""
        # The forward pass of all rows updates the moving averages, so passes of single rows must
        # not.
        with withhold_collections():
            first = self.row(0)
        # The code that calls `separate_rows` sums the results over the replicas.
        return WholeBatch(first, self.row, self.count, ignores_replicas=True)


class ForwardPass(NamedTuple):
    """The results of a forward pass through the network.

    Attributes:
      losses: {task: scalar}. Before `add_parts` is called, an auxiliary loss may also be a vector
        of P terms, each a mean over the rows with separate weights of the rows.
      shared: `Towers.shared`, the outputs of the network that tasks share.
      samples: a function from S to S dicts of losses; the s-th dict covers every S-th row, from row
        s on.
      unweighted: the losses before weighting; None without weighting.
      examples: the rows of the pass; None if their losses cannot be separated.
      watched: {name: tensors in any nesting}, which are summed over the parts together with the
        gradients; see `WholeBatch.sum_watched`.
      penalties: the terms of REGULARIZATION_LOSSES that depend on the rows, if the batch has
        several parts.
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
    ) -> ForwardPass:
        """Multiply the loss of each task by a weight.

        Args:
          weights: {task: scalar}.
          of_samples: a function from the number S of samples to a list with the weights for each
            sample, {task: scalar}; None applies `weights` to all samples.
        """

        def scale(losses: types.Tensors, weights: types.Tensors) -> types.Tensors:
            return {task: weights[task] * loss for task, loss in losses.items()}

        def scale_samples(take_samples: types.Samples, count: int) -> list[types.Tensors]:
            factors = of_samples(count) if of_samples else [weights] * count
            return list(map(scale, take_samples(count), factors))

        def scale_row(examples: Examples, index: tf.Tensor | int) -> ForwardPass:
            return examples.row(index).scale_losses(weights)

        examples = self.examples and self.examples._replace(
            row=functools.partial(scale_row, self.examples)
        )
        return self._replace(
            losses=scale(self.losses, weights),
            samples=self.samples and functools.partial(scale_samples, self.samples),
            examples=examples,
        )

    def add_parts(self) -> ForwardPass:
        """Add up the P terms of each loss to a scalar."""

        def add(losses: types.Tensors) -> types.Tensors:
            return {
                task: tf.reduce_sum(loss) if loss.shape.rank else loss
                for task, loss in losses.items()
            }

        def add_samples(take_samples: types.Samples, count: int) -> list[types.Tensors]:
            return list(map(add, take_samples(count)))

        return self._replace(
            losses=add(self.losses),
            samples=self.samples and functools.partial(add_samples, self.samples),
        )


@dataclasses.dataclass(frozen=True)
class WholeBatch:
    """A batch in parts; the losses of the parts add up to the losses of the batch.

    Attributes:
      first: the forward pass of this replica's first slice, or of all rows of this replica if the
        batch is not divided into slices.
      others: a function that takes the index of a slice, and builds the forward pass of the slice.
        Each call of `sum` builds the forward passes of all slices but the first again.
      slices: the number of slices of a replica's batch.
      updates: the UPDATE_OPS of the first slice, which run before the UPDATE_OPS of later slices.
      ignores_replicas: True if sums cover only this replica.
      of_slices: the sums of `ForwardPass.watched` over the slices of this replica; empty until they
        are computed.
    """

    first: ForwardPass
    others: Callable[[tf.Tensor], ForwardPass] | None = None
    slices: int = 1
    updates: Sequence[tf.Operation] = ()
    ignores_replicas: bool = False
    of_slices: dict[str, Any] = dataclasses.field(default_factory=dict)

    def scale_losses(self, weights: types.Tensors | None) -> WholeBatch:
        """Multiply the loss of each task by its weight.

        Args:
          weights: {task: scalar}, which gradients treat as constants; None stands for 1.

        Returns:
          The batch with weighted losses; each part has its unweighted losses as `unweighted`.
        """
        weights = weights and {task: tf.stop_gradient(weight) for task, weight in weights.items()}

        def scale_pass(forward: ForwardPass) -> ForwardPass:
            scaled = forward.scale_losses(weights) if weights else forward
            return scaled._replace(unweighted=forward.losses)

        def build_other(
            build: Callable[[tf.Tensor], ForwardPass], slice_: tf.Tensor
        ) -> ForwardPass:
            return scale_pass(build(slice_))

        # Within a lambda, mypy could not see that `self.others` is not None.
        others = self.others and functools.partial(build_other, self.others)
        return dataclasses.replace(self, first=scale_pass(self.first), others=others)

    def sum(self, function: Callable[[ForwardPass], Any], update: bool = False) -> Any:
        """Sum the results of a function over all parts.

        Args:
          function: a function from the forward pass of a part of the batch to tensors,
            IndexedSlices and None, in any nesting.
          update: True if this call of `sum` also runs the UPDATE_OPS of the slices. Exactly one sum
            of each step must run the UPDATE_OPS.

        Returns:
          The sums over the slices of all replicas, nested like the results of `function`.
        """
        # The forward pass of the first slice exists already, so its result costs no further pass.
        total = function(self.first)
        if self.slices > 1 and update:
            # If this loop also sums the watched tensors, they need no other pass over the slices.
            total, watched_tensors = self._add_slices(
                (total, dict(self.first.watched)),
                lambda part: (function(part), dict(part.watched)),
                update,
            )
            self.of_slices.update(watched_tensors)
        elif self.slices > 1:
            total = self._add_slices(total, function, update)
        return total if self.ignores_replicas else replicas.sum_over_replicas(total)

    def sum_watched(self) -> dict[str, Any]:
        """Return the sums of `ForwardPass.watched` over all parts and replicas.

        Call this method after the gradients are built: the call of `sum` that runs the UPDATE_OPS
        also adds up the watched tensors.
        """
        of_first = dict(self.first.watched)
        if self.slices == 1:
            return replicas.sum_over_replicas(of_first)
        if of_first and not self.of_slices:
            return self.sum(lambda part: dict(part.watched))
        return replicas.sum_over_replicas(self.of_slices)

    def without_replicas(self) -> WholeBatch:
        """Return a copy of this batch that sums only over the parts of this replica."""
        return dataclasses.replace(self, ignores_replicas=True)

    # The first slice of the batch is built outside the loop: it creates the variables, and shows
    # which results are sparse. The loop runs the second and later slices of the batch one by one,
    # and frees the activations of a slice before the next slice.
    def _add_slices(self, first: Any, function: Callable[[ForwardPass], Any], update: bool) -> Any:
        flat = tf.nest.flatten(first)
        # The loop counter waits for the UPDATE_OPS of the first slice, so that the slices of the
        # batch update moving averages in order.
        with tf.control_dependencies(self.updates if update else []):
            # Control dependencies reach a loop only through its inputs.
            start_index = tf.identity(tf.constant(1))
        start = [tensor for value in flat for tensor in _list_tensors(value)]

        # `others` is not None if there are several slices.
        build_part = cast(Callable[[tf.Tensor], ForwardPass], self.others)

        def body(slice_: tf.Tensor, *totals: tf.Tensor) -> list[tf.Tensor]:
            # Each slice reads the variables after the updates of the slice before. Ops of this body
            # must not stay in the collections, because code outside the loop cannot run them.
            with withhold_collections() as updates, tf.control_dependencies([slice_]):
                values = tf.nest.flatten(function(build_part(slice_)))
            tensors = [tensor for value in values for tensor in _list_tensors(value)]
            are_rows = [is_rows for value in values for is_rows in _are_rows(value)]
            with tf.control_dependencies(updates if update else []):
                return [slice_ + 1, *map(_accumulate, are_rows, totals, tensors)]

        are_rows = [is_rows for value in flat for is_rows in _are_rows(value)]
        # The gradient of an embedding table has only the rows that were looked up. Each slice of
        # the batch appends the gradients of its looked-up rows.
        shapes = [
            tf.TensorShape([None, *tensor.shape[1:]]) if is_rows else tensor.shape
            for is_rows, tensor in zip(are_rows, start, strict=True)
        ]
        _, *totals = tf.while_loop(
            lambda slice_, *_: slice_ < self.slices,
            body,
            [start_index, *start],
            shape_invariants=[tf.TensorShape([]), *shapes],
            # Two slices at once would need twice the memory for activations.
            parallel_iterations=1,
        )
        remaining_totals = iter(totals)
        return tf.nest.pack_sequence_as(
            first, [_rebuild(value, remaining_totals) for value in flat]
        )


def or_losses(batch: types.Batch | None, losses: types.Tensors) -> WholeBatch:
    """Return `batch`; if it is None, return a batch of a single part with the given losses.

    Args:
      batch: a `WholeBatch`, or None.
      losses: {task: scalar}, read only if `batch` is None.
    """
    return WholeBatch(ForwardPass(losses)) if batch is None else cast(WholeBatch, batch)


def build_batch(
    forward: Callable[[Any, Any], ForwardPass],
    label_weights: Callable[[Any], types.Tensors],
    features: Any,
    labels: Any,
    slices: int,
    are_rows_apart: bool = True,
) -> WholeBatch:
    """Build this replica's part of the batch, in slices.

    A loss is a mean over the labelled rows of a batch. The mean of each slice is multiplied by the
    slice's share of the labels in the whole batch, so the sum over all slices and replicas is the
    mean over the batch.

    Args:
      forward: a function from features and labels to the forward pass of their rows; the first call
        creates the variables.
      label_weights: a function from labels to {task: the sum of the labels' weights}.
      features: tensors [B, ...] in any nesting, the features of this replica.
      labels: tensors [B, ...] in any nesting, the labels of this replica.
      slices: the number of slices, which divides B.
      are_rows_apart: True if the losses of a row do not depend on other rows. With False, the
        forward passes have no `ForwardPass.examples`.
    """
    builder = _Builder(forward, label_weights, (features, labels), slices, are_rows_apart)
    before = _num_updates()
    first = builder.build_pass(0, slices, reuse=False)
    updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)[before:]
    return WholeBatch(first, functools.partial(builder.build_pass, count=slices), slices, updates)


class _Builder:
    """Builds the forward passes of a batch; see `build_batch`."""

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
        """Build the forward pass of slice `index` of `count` slices of this replica."""
        rows = take_slice(self._rows, index, count)
        # The first slice creates the variables; later slices reuse them.
        scope = tf1.variable_scope(self._scope, reuse=reuse or self._scope.reuse)
        # If neither slices nor replicas divide the batch, losses are not multiplied by shares of
        # labels.
        if count * replicas.count() == 1:
            with scope:
                return self._build(rows, index, count).add_parts()
        terms = tf1.get_collection_ref(tf1.GraphKeys.REGULARIZATION_LOSSES)
        # All replicas count the terms of REGULARIZATION_LOSSES at the same time, before they build
        # this pass. If a replica counted its terms later, it would also count the terms that the
        # first replica has added in the meantime.
        num_terms = replicas.call_together(lambda: len(terms))
        # Replicas cannot communicate in the loop over slices. So batch norm in the loop uses only
        # the rows of its replica.
        with (
            replicas.separate_replicas(when=count > 1),
            scope,
            draws.draw_for_slice(_draw_index(index, count), count * replicas.count()),
        ):
            forward_pass = self._build(rows, index, count)
        forward_pass = forward_pass._replace(penalties=penalties_lib.take(num_terms, rows))
        shares = functools.partial(self._share_labels, rows)
        # The losses of single rows are already multiplied by the rows' shares of the labels.
        scaled = forward_pass.scale_losses(shares(1)[0], shares)._replace(
            examples=forward_pass.examples
        )
        return scaled.add_parts()

    def _build(self, rows: tuple[Any, Any], index: tf.Tensor | int, count: int) -> ForwardPass:
        """Build a forward pass of some rows; if rows are independent, also of single `examples`."""
        if not self._are_rows_apart:
            return self._forward(*rows)

        # The forward pass of a single row is built as a slice with one row. So the index of a row
        # counts the rows in all slices of this replica.
        def build_row(size: int, row: tf.Tensor | int) -> ForwardPass:
            return self.build_pass(index * size + row, count * size)

        return _attach_examples(self._forward, rows, build_row)

    def _share_labels(self, rows: tuple[Any, Any], count: int) -> list[types.Tensors]:
        """Return the share of each sample of `rows` in all labels of the batch, {task: share}.

        A loss is a mean over labelled rows. If slices have different numbers of labels, the
        unweighted mean of the slices' losses differs from the loss of the whole batch. So each
        slice is weighted by its share of the labels in the whole batch.
        """
        pairs = zip(self._sum_labels(*rows, count), self._sum_all_labels(count), strict=True)
        return [
            # If the whole batch has no label of a task, the task has weight 0 in every part.
            {task: tf.math.divide_no_nan(part[task], total[task]) for task in part}
            for part, total in pairs
        ]

    def _sum_labels(self, features: Any, labels: Any, count: int) -> list[types.Tensors]:
        rows = labels or features  # Without labels in the data, each row counts as a label.
        return [self._label_weights(take_every(rows, first, count)) for first in range(count)]

    def _sum_all_labels(self, count: int) -> list[types.Tensors]:
        """Return the sum of label weights of each sample, over all replicas, {task: sum}."""
        # Replicas can communicate only outside of loops. So the sums of label weights are computed
        # when the first slice is built, outside of the loop over slices.
        if count not in self._totals:
            if count == 1 and self._slices > 1 and not self._are_rows_apart:
                sums = [self._sum_slices()]
            else:
                sums = self._sum_labels(*self._rows, count)
            self._totals[count] = replicas.sum_over_replicas(sums)
        return self._totals[count]

    def _sum_slices(self) -> types.Tensors:
        # If a loss compares rows, it compares only rows of the same slice, even if a group of rows
        # spans two slices. So the label weights of each slice are computed separately.
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
    """Build the forward pass of a batch; its `examples` build passes of single rows with `row`."""
    before = _num_updates()
    forward_pass = forward(*batch)
    features, labels = batch
    size = tf.nest.flatten([labels, features])[0].shape[0]  # The data may have no labels.
    examples = Examples(
        given=batch,
        count=size,
        # Layers that add UPDATE_OPS, such as batch norm in training, mix rows.
        are_independent=_num_updates() == before,
        row=functools.partial(row, size),
    )
    return forward_pass._replace(examples=examples)


def _num_updates() -> int:
    return len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))


@contextlib.contextmanager
def withhold_collections() -> Iterator[list[tf.Operation]]:
    """Remove entries that the context adds to graph collections; yield a list of its UPDATE_OPS.

    All replicas share the collections of the graph, so all replicas enter and leave the context
    together. Entries that are added before or after the context stay in the collections.
    """
    names = tf1.GraphKeys
    keys = (names.UPDATE_OPS, names.REGULARIZATION_LOSSES, names.SUMMARIES, *outlets.list_keys())
    collections = [tf1.get_collection_ref(key) for key in keys]
    before = replicas.call_together(lambda: [len(collection) for collection in collections])
    updates: list[tf.Operation] = []
    yield updates

    def remove() -> None:
        # Code outside of a loop cannot read tensors of its body. So only the first slice, which is
        # built outside, keeps the entries that it added to graph collections.
        for collection, length in zip(collections, before, strict=True):
            del collection[length:]

    updates += collections[0][before[0] :]
    replicas.call_together(remove)


def take_every(fields: types.Tensors, first: int, count: int) -> types.Tensors:
    """Return every `count`-th row of each field, from row `first` on.

    Args:
      fields: {field: [B, ...]}.
      first: the index of the first row, in [0, count).
      count: the distance between two rows, at least 1.

    Returns:
      The chosen rows of each field, {field: [about B / count, ...]}.
    """
    return {name: values[first::count] for name, values in fields.items()} if count > 1 else fields


def _draw_index(slice_: tf.Tensor | int, slices: int) -> tf.Tensor | int:
    """Return the index of a slice among the slices of all replicas."""
    return replicas.replica_index() * slices + slice_


def take_slice(batch: Any, slice_: tf.Tensor | int, slices: int) -> Any:
    """Return the rows of one of several equal slices.

    Args:
      batch: tensors or lists [B, ...], in any nesting.
      slice_: the index of the slice, from 0; an int or a scalar tensor.
      slices: the number of slices, which divides B.

    Returns:
      The rows of the slice, nested like `batch`, [B / slices, ...] each.
    """
    if slices == 1:
        return batch

    def take_rows(values: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
        size = values.shape[0] // slices
        part = values[slice_ * size : (slice_ + 1) * size]
        # If the index is a tensor, TensorFlow does not know the number of rows of the slice. Layers
        # and heads read the number of rows from the static shape.
        if isinstance(part, tf.RaggedTensor):
            part.row_splits.set_shape([size + 1])
            return part
        return tf.ensure_shape(part, [size, *values.shape[1:]])

    return tf.nest.map_structure(take_rows, batch)


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
