"""Sums over the whole batch of a step, on several replicas and in slices that go one by one.

batch = whole_batch.WholeBatch(whole_batch.Part(losses))
gradients = batch.sum(lambda part: tf.gradients(part.losses["income"], variables))

A slice needs only its own activations, so a batch of any size trains in the memory of one slice.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import tensorflow as tf

from mtl import types
from mtl.step import draws, replicas

tf1 = tf.compat.v1

Samples = Callable[[int], Sequence[types.Tensors]]
"""S -> the losses {task: scalar} of S samples of the rows, which have no row in common."""


class Examples(NamedTuple):
    """How a part came about, for what needs the gradient of each of its rows.

    Attributes:
      given: the tensors that its rows came in, in any nesting.
      count: how many rows.
      are_apart: whether no row has a share in the loss of another one, as in batch norm.
      row: n -> the part of its n-th row alone, built anew.
    """

    given: Any
    count: int  # type: ignore[assignment]  # Nobody counts the entries of this tuple.
    are_apart: bool
    row: Callable[[tf.Tensor | int], "Part"]

    def apart(self) -> "WholeBatch":
        """Return the rows as parts of one each; their UPDATE_OPS are left out."""
        with _collected():
            first = self.row(0)
        return WholeBatch(first, self.row, self.count, alone=True)


class Part(NamedTuple):
    """What went through the network at once.

    Attributes:
      losses: {task: scalar}.
      shared: `Towers.shared`, the outputs that tasks share.
      samples: S -> the losses of every S-th row, from the first to the S-th on.
      unweighted: the losses before the tasks were weighted; None if they were not.
      examples: of the rows; None where they are not known.
    """

    losses: types.Tensors
    shared: Sequence[tf.Tensor] = ()
    samples: Samples | None = None
    unweighted: types.Tensors | None = None
    examples: Examples | None = None

    def scaled(self, weights: types.Tensors, of_samples: Samples | None = None) -> "Part":
        """With every task's loss multiplied by a weight, those of S samples by `of_samples(S)`."""

        def scale(losses: types.Tensors, weights: types.Tensors) -> types.Tensors:
            return {task: weights[task] * loss for task, loss in losses.items()}

        def samples(given: Samples, count: int) -> list[types.Tensors]:
            factors = of_samples(count) if of_samples else [weights] * count
            return list(map(scale, given(count), factors))

        def row(given: Examples, index: tf.Tensor | int) -> Part:
            return given.row(index).scaled(weights)

        examples = self.examples and self.examples._replace(
            row=functools.partial(row, self.examples)
        )
        return self._replace(
            losses=scale(self.losses, weights),
            samples=self.samples and functools.partial(samples, self.samples),
            examples=examples,
        )


@dataclasses.dataclass(frozen=True)
class WholeBatch:
    """The parts whose losses add up to those of the batch.

    Attributes:
      first: the first slice on this replica; the whole batch where there is no other.
      others: slice -> its part, built anew in every pass over the slices.
      slices: into how many the batch of a replica is cut.
      updates: the UPDATE_OPS of the first slice, which come before those of the others.
      alone: whether this replica leaves the others out of its sums.
    """

    first: Part
    others: Callable[[tf.Tensor], Part] | None = None
    slices: int = 1
    updates: Sequence[tf.Operation] = ()
    alone: bool = False

    def scaled(self, weights: types.Tensors) -> "WholeBatch":
        """Return the same with every task's loss multiplied by a weight, constant to gradients."""
        weights = {task: tf.stop_gradient(weight) for task, weight in weights.items()}

        def weighted(part: Part) -> Part:
            return part.scaled(weights)._replace(unweighted=part.losses)

        def other(given: Callable[[tf.Tensor], Part], slice_: tf.Tensor) -> Part:
            return weighted(given(slice_))

        others = self.others and functools.partial(other, self.others)
        return dataclasses.replace(self, first=weighted(self.first), others=others)

    def sum(self, function: Callable[[Part], Any], update: bool = False) -> Any:
        """Return the sum over all parts of what `function(part)` gives.

        Args:
          function: gives tensors, IndexedSlices and None, in any nesting.
          update: whether UPDATE_OPS of the slices run in this pass; one pass of a step has to.
        """
        total = function(self.first)
        if self.slices > 1:
            total = self._with_others(total, function, update)
        return total if self.alone else replicas.total(total)

    def own(self) -> "WholeBatch":
        """Return the parts of this replica alone."""
        return dataclasses.replace(self, alone=True)

    def _with_others(self, first: Any, function: Callable[[Part], Any], update: bool) -> Any:
        flat = tf.nest.flatten(first)
        with tf.control_dependencies(self.updates if update else []):
            one = tf.identity(tf.constant(1))
        start = [tensor for value in flat for tensor in _tensors(value)]

        others = cast(Callable[[tf.Tensor], Part], self.others)  # There are several slices.

        def body(slice_: tf.Tensor, *totals: tf.Tensor) -> list[tf.Tensor]:
            # Variables are read after the slice before has updated them.
            with _collected() as updates, tf.control_dependencies([slice_]):
                values = tf.nest.flatten(function(others(slice_)))
            tensors = [tensor for value in values for tensor in _tensors(value)]
            are_rows = [is_rows for value in values for is_rows in _are_rows(value)]
            with tf.control_dependencies(updates if update else []):
                return [slice_ + 1, *map(_add, are_rows, totals, tensors)]

        are_rows = [is_rows for value in flat for is_rows in _are_rows(value)]
        shapes = [
            tf.TensorShape([None, *tensor.shape[1:]]) if is_rows else tensor.shape
            for is_rows, tensor in zip(are_rows, start, strict=True)
        ]
        _, *totals = tf.while_loop(
            lambda slice_, *_: slice_ < self.slices,
            body,
            [one, *start],
            shape_invariants=[tf.TensorShape([]), *shapes],
            parallel_iterations=1,
        )
        left = iter(totals)
        return tf.nest.pack_sequence_as(first, [_rebuilt(value, left) for value in flat])


def of(
    forward: Callable[[Any, Any], Part],
    label_weights: Callable[[Any], types.Tensors],
    features: Any,
    labels: Any,
    slices: int,
) -> WholeBatch:
    """Return the batch of this replica in slices, together with those of all others.

    A loss is a mean over the labelled rows of a batch. Here every part's mean counts by its share
    of the labels of the whole batch, so that parts add up to the mean over the batch.

    Args:
      forward: features and labels -> the part of these rows; creates the variables.
      label_weights: labels -> {task: what they weigh}.
      features: [B, ...] each, of this replica.
      labels: the same.
      slices: divides B.
    """
    scope = tf1.get_variable_scope()

    def weights_of(count: int, labels: Any) -> list[types.Tensors]:
        return [label_weights(every(labels, first, count)) for first in range(count)]

    @functools.cache  # Replicas meet once, outside of any loop: the first slice comes first.
    def totals(count: int) -> list[types.Tensors]:
        return replicas.total(weights_of(count, labels))

    def part(index: tf.Tensor | int, count: int = slices, reuse: bool = True) -> Part:
        own = slice_of((features, labels), index, count)
        with (
            replicas.apart(when=count > 1),
            tf1.variable_scope(scope, reuse=reuse or scope.reuse),
            draws.draws_of(_draw(index, count)),
        ):
            built = _built(forward, own, lambda size, row: part(index * size + row, count * size))
        if count * replicas.count() == 1:
            return built

        def shares(count: int) -> list[types.Tensors]:
            pairs = zip(weights_of(count, own[1]), totals(count), strict=True)
            return [
                {task: tf.math.divide_no_nan(own[task], total[task]) for task in own}
                for own, total in pairs
            ]

        # A row is built with a share of its own.
        return built.scaled(shares(1)[0], shares)._replace(examples=built.examples)

    before = _num_updates()
    first = part(0, reuse=False)
    updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)[before:]
    return WholeBatch(first, part, slices, updates)


def _built(
    forward: Callable[[Any, Any], Part], batch: Any, row: Callable[[int, tf.Tensor | int], Part]
) -> Part:
    """Return the part of these features and labels; `row` gives one of its rows alone."""
    before = _num_updates()
    built = forward(*batch)
    size = tf.nest.flatten(batch[1])[0].shape[0]
    examples = Examples(
        given=batch,
        count=size,
        are_apart=_num_updates() == before,
        row=functools.partial(row, size),
    )
    return built._replace(examples=examples)


def _num_updates() -> int:
    return len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))


@contextlib.contextmanager
def _collected() -> Iterator[list[tf.Operation]]:
    """Take out of the graph's collections what belongs to a slice; give its UPDATE_OPS."""
    names = tf1.GraphKeys
    keys = (names.UPDATE_OPS, names.REGULARIZATION_LOSSES, names.SUMMARIES)
    collections = [tf1.get_collection_ref(key) for key in keys]
    before = [len(collection) for collection in collections]
    updates: list[tf.Operation] = []
    yield updates
    updates += collections[0][before[0] :]
    for collection, length in zip(collections, before, strict=True):
        del collection[length:]


def every(fields: types.Tensors, first: int, count: int) -> types.Tensors:
    """Return every `count`-th row, from the `first` on."""
    return {name: values[first::count] for name, values in fields.items()} if count > 1 else fields


def _draw(slice_: tf.Tensor | int, slices: int) -> tf.Tensor | int:
    """Return the number of a slice among those of all replicas."""
    return replicas.index() * slices + slice_


def slice_of(batch: Any, slice_: tf.Tensor | int, slices: int) -> Any:
    """Return the rows of one of so many equal slices of a batch, in any nesting."""
    if slices == 1:
        return batch

    def rows(values: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
        size = values.shape[0] // slices
        own = values[slice_ * size : (slice_ + 1) * size]
        if isinstance(own, tf.RaggedTensor):
            own.row_splits.set_shape([size + 1])
            return own
        return tf.ensure_shape(own, [size, *values.shape[1:]])

    return tf.nest.map_structure(rows, batch)


def _tensors(value: types.Gradient) -> list[tf.Tensor]:
    if isinstance(value, tf.IndexedSlices):
        return [value.values, value.indices]
    return [] if value is None else [value]


def _are_rows(value: types.Gradient) -> list[bool]:
    return [True, True] if isinstance(value, tf.IndexedSlices) else [False] * (value is not None)


def _add(is_rows: bool, total: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    return tf.concat([total, value], 0) if is_rows else total + value


def _rebuilt(value: types.Gradient, totals: Any) -> types.Gradient:
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(next(totals), next(totals), value.dense_shape)
    return None if value is None else next(totals)
