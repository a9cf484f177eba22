"""Functions by which networks and heads report scalars, losses, predictions and summaries.

A network or a head calls functions of `outlets` while it is built. Losses, predictions and
serialized summaries are dropped, unless the code that builds the model collects them.

outlets.add_scalar("gate/income/entropy", entropy)             # a scalar to monitor in training
outlets.add_scalars_where_due(["mean", "deviation"], compute)  # slow scalars: only at some steps
outlets.add_loss("commitment", lambda: compute(hidden))        # [B]; see `emitted_losses`
outlets.add_prediction("attention", weights)                   # [B, ...], beside predictions
outlets.add_summary(summary)                                   # serialized, for TensorBoard

with outlets.collect_losses() as losses, outlets.compute_where(is_due):
    ...                                                        # build the network
scalars, predictions = outlets.take_scalars(), outlets.take_predictions()

If a batch is cut into slices, only the values of the first slice are reported. Each replica reports
separate scalars.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from mtl import ambient
from mtl.deferred import tf, tf1
from mtl.step import replicas
from mtl.tf_internals import functions

_log = logging.getLogger(__name__)

_SCALARS = "mtl_scalars"
_PREDICTIONS = "mtl_predictions"

_SUMMARY_OPS = (
    "AudioSummary",
    "HistogramSummary",
    "ImageSummary",
    "ScalarSummary",
    "TensorSummary",
    "TensorSummaryV2",
)


class _Requests(NamedTuple):
    """The values that the caller of a network collects from its layers, such as summaries.

    Attributes:
      losses: a dict that receives losses of rows, {name: [B]}; None if no code collects losses.
      predictions: True if values of `add_prediction` appear beside the predictions.
      summaries: a list that receives serialized summaries, string scalars; None if no code collects
        summaries.
      is_due: a bool scalar, true in the steps that compute slow scalars; None for all steps.
    """

    losses: dict[str, tf.Tensor] | None = None
    predictions: bool = False
    summaries: list[tf.Tensor] | None = None
    is_due: tf.Tensor | None = None


_REQUESTS: ambient.Ambient[_Requests] = ambient.Ambient("outlets", default=_Requests())


def add_scalar(name: str, value: tf.Tensor) -> None:
    """Add a scalar to the monitors of the training step that is being built.

    Args:
      name: the name, such as "gate/income/entropy"; a later scalar of the same name replaces this
        one.
      value: a number, cast to float32.
    """
    _list_scalars().append((name, value))


def add_scalars_where_due(names: Sequence[str], compute: Callable[[], tf.Tensor]) -> None:
    """Add scalars that a step computes only if they are written.

    Args:
      names: the names of the N scalars.
      compute: a function that returns the scalars, float32 [N]. In steps that do not write the
        scalars, the scalars are NaN.
    """
    _list_scalars().append((tuple(names), compute))


def compute_where(is_due: tf.Tensor) -> contextlib.AbstractContextManager[_Requests]:
    """Let `take_scalars` compute slow scalars only in some steps.

    Args:
      is_due: bool scalar, True in the steps that compute the scalars of `add_scalars_where_due`. In
        steps in which `is_due` is False, the scalars of `add_scalars_where_due` are NaN.
    """
    return _REQUESTS.set(_REQUESTS.get()._replace(is_due=is_due))


def take_scalars() -> dict[str, tf.Tensor]:
    """Return and forget all scalars that were added since the last call, {name: scalar}."""
    collection = _list_scalars()
    scalars = {name: value for name, value in collection if isinstance(name, str)}
    slow_groups = [(names, compute) for names, compute in collection if not isinstance(names, str)]
    collection.clear()
    names = [name for group_names, _ in slow_groups for name in group_names]
    if names:
        scalars |= dict(zip(names, tf.unstack(_compute(slow_groups), len(names)), strict=True))
    return scalars


def list_keys() -> list[str]:
    """Return the keys of the collections of scalars, one for each replica."""
    return [f"{_SCALARS}_{replica}" for replica in range(replicas.count())]


def _list_scalars() -> list[Any]:
    """Return the collection of this replica's scalars; all replicas build one graph."""
    is_single = replicas.count() == 1 or tf.distribute.in_cross_replica_context()
    index = 0 if is_single else replicas.replica_index()
    return tf1.get_collection_ref(f"{_SCALARS}_{tf.get_static_value(index)}")


def _compute(slow_groups: Sequence[tuple[Sequence[str], Callable[[], tf.Tensor]]]) -> tf.Tensor:
    """Compute all slow scalars in one `tf.cond`; a `tf.cond` for each function would be slower."""

    def compute() -> tf.Tensor:
        return tf.concat([compute_group() for _, compute_group in slow_groups], axis=0)

    count = sum(len(names) for names, _ in slow_groups)
    is_due = _REQUESTS.get().is_due
    if is_due is None:
        return compute()
    return tf.cond(is_due, compute, lambda: tf.fill([count], float("nan")))


def add_loss(name: str, compute: Callable[[], tf.Tensor]) -> None:
    """Add losses of rows to the training loss of the step that is being built.

    The network or column declares the losses in an attribute, `emitted_losses = {name: weight}`.
    Training adds the declared losses as auxiliary losses. Evaluations, and second passes of a step
    over the same rows, do not compute the losses of `add_loss`.

    Args:
      name: the name in `emitted_losses`; losses with the same name add up.
      compute: a function that returns the losses, float32 [B], with 0 for rows without a loss.
    """
    total_losses = _REQUESTS.get().losses
    if total_losses is not None:
        losses = compute()
        total_losses[name] = total_losses[name] + losses if name in total_losses else losses


@contextlib.contextmanager
def change_losses(change: Callable[[tf.Tensor], tf.Tensor]) -> Iterator[None]:
    """Let a function change the losses that `add_loss` adds within the context."""
    if _REQUESTS.get().losses is None:
        yield
        return
    with collect_losses() as losses:
        yield
    for name, added in losses.items():
        add_loss(name, functools.partial(change, added))


@contextlib.contextmanager
def collect_losses() -> Iterator[dict[str, tf.Tensor]]:
    """Collect the losses that `add_loss` adds within the context, {name: [B]}."""
    losses: dict[str, tf.Tensor] = {}
    with _REQUESTS.set(_REQUESTS.get()._replace(losses=losses)):
        yield losses


def show_predictions(is_asked: bool = True) -> contextlib.AbstractContextManager[_Requests]:
    """Let values that `add_prediction` adds within the context appear beside the predictions.

    Args:
      is_asked: False drops the values, even if an outer `show_predictions` context shows the
        values.
    """
    return _REQUESTS.set(_REQUESTS.get()._replace(predictions=is_asked))


def add_prediction(name: str, values: tf.Tensor) -> None:
    """Show values beside the predictions, if the code around the network collects them.

    Args:
      name: the last part of the prediction's name, `<scope>/<name>`. If a column adds the
        prediction, the prefix `features/` of the scope is left out.
      values: [B, ...].
    """
    if _REQUESTS.get().predictions:
        scope = tf1.get_variable_scope().name.removeprefix("features/")
        tf1.add_to_collection(_PREDICTIONS, (f"{scope}/{name}", values))


def take_predictions() -> dict[str, tf.Tensor]:
    """Return and forget all values that `add_prediction` has added, {name: [B, ...]}."""
    collection = tf1.get_collection_ref(_PREDICTIONS)
    predictions = dict(collection)
    collection.clear()
    return predictions


def add_summary(summary: tf.Tensor) -> None:
    """Add a serialized summary to the step that is being built.

    Args:
      summary: string scalar; "" in steps that do not write the summary.
    """
    summaries = _REQUESTS.get().summaries
    if summaries is not None:
        summaries.append(summary)


@contextlib.contextmanager
def collect_summaries() -> Iterator[list[tf.Tensor]]:
    """Yield a list of the string scalars that `add_summary` adds within the context."""
    summaries: list[tf.Tensor] = []
    with _REQUESTS.set(_REQUESTS.get()._replace(summaries=summaries)):
        yield summaries


def take_summaries() -> tf.Tensor | None:
    """Merge the graph's `tf1.summary` ops, and empty their collection.

    TensorFlow would merge the summaries outside of the loop over steps, where ops of the loop
    cannot be read. A session call of several steps makes the summaries in every step, even in steps
    that do not write them, so large images slow down each step. Summaries in a branch, a loop or a
    `tf.function` of the step cannot be read: a warning names them.

    Returns:
      A serialized summary, a string scalar; None if the step makes none.
    """
    collection = tf1.get_collection_ref(tf1.GraphKeys.SUMMARIES)
    tensors, graph = list(collection), tf1.get_default_graph()
    collection.clear()
    readable = [tensor for tensor in tensors if tensor.graph is graph]
    hidden_names = [tensor.op.name for tensor in tensors if tensor.graph is not graph]
    operations = functions.called_operations(graph)
    hidden_names += [operation.name for operation in operations if operation.type in _SUMMARY_OPS]
    if hidden_names:
        places, names = "a branch, a loop or a tf.function", ", ".join(dict.fromkeys(hidden_names))
        _log.warning("Summaries within %s are not written: %s", places, names)
    return tf1.summary.merge(readable, collections=[]) if readable else None


@contextlib.contextmanager
def drop_summaries() -> Iterator[None]:
    """Drop the `tf1.summary` ops that are built within the context, such as in a second pass."""
    collection = tf1.get_collection_ref(tf1.GraphKeys.SUMMARIES)
    before = list(collection)
    try:
        yield
    finally:
        # The list of the collection is changed in place, because TensorFlow keeps a reference to
        # the list.
        collection[:] = before
