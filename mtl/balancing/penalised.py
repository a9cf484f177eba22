"""Adds the gradients of penalties that depend on rows, over all parts of a batch.

watched = penalised.watch_penalties(batch, variables)
gradients, value = penalised.add_penalties(gradients, watched)     # call it after the gradients

Networks add penalties that depend on rows to REGULARIZATION_LOSSES; see `mtl.step.penalties`.
Weighting and surgery do not change the gradients of penalties.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mtl import types
from mtl.deferred import tf
from mtl.step import gradients as gradients_lib
from mtl.step import penalties, replicas, whole_batch


def watch_penalties(
    batch: whole_batch.WholeBatch, variables: Sequence[tf.Variable]
) -> whole_batch.WholeBatch:
    """Return a copy of a batch whose passes also compute the penalties and their gradients.

    Args:
      batch: the batch, divided into parts; each part has `penalties`.
      variables: the N variables by which gradients are taken.
    """
    share = 1 / (batch.slices * replicas.count())
    tangents = _find_tangents(batch, share)

    def watch(part: whole_batch.ForwardPass) -> whole_batch.ForwardPass:
        pairs = zip(part.penalties, tangents, strict=True)
        value = share * tf.add_n(
            [_follow_tangent(penalty.means, tangent) for penalty, tangent in pairs]
        )
        pair = value, tf.gradients(value, list(variables))
        return part._replace(watched={**part.watched, _NAME: pair})

    others = batch.others
    return dataclasses.replace(
        batch,
        first=watch(batch.first),
        others=others and (lambda slice_: watch(others(slice_))),
    )


def add_penalties(
    gradients: Sequence[types.Gradient], batch: whole_batch.WholeBatch
) -> tuple[list[types.Gradient], tf.Tensor]:
    """Add the gradients of penalties to N gradients; also return the value of the penalties.

    Args:
      gradients: N gradients of the losses, after surgery; None for a variable without a gradient.
      batch: the batch that `watch_penalties` has returned for the same N variables.
    """
    value, terms = batch.sum_watched()[_NAME]
    return list(map(gradients_lib.add_gradients, gradients, terms)), value


def _find_tangents(
    batch: whole_batch.WholeBatch, share: float
) -> list[tuple[tf.Tensor, list[tf.Tensor]] | None]:
    """Linearise each penalty at the means of the whole batch; None if the penalty is a mean itself.

    A part has only some of the rows, so it cannot compute a function f of the whole batch's means
    m. The tangent `f(m) + f'(m) (x - m)` of f at m is linear: its sum over all parts has the value
    and the gradient of f. The means m of the whole batch take one more pass over the slices of the
    batch.
    """

    def scale(penalty: penalties.Penalty) -> Any:
        if penalty.compute is None:
            return None
        return tf.nest.map_structure(lambda mean: tf.cast(share, mean.dtype) * mean, penalty.means)

    terms = batch.first.penalties
    if all(penalty.compute is None for penalty in terms):
        return [None] * len(terms)
    totals = batch.sum(lambda part: [scale(penalty) for penalty in part.penalties])
    return [_take_tangent(*pair) for pair in zip(terms, totals, strict=True)]


def _take_tangent(
    penalty: penalties.Penalty, means: Any
) -> tuple[tf.Tensor, list[tf.Tensor]] | None:
    """Return the tangent of a penalty at `means`: its value at means of 0, and its slopes."""
    if penalty.compute is None:
        return None
    means = tf.nest.map_structure(tf.stop_gradient, means)
    flat = tf.nest.flatten(means)
    value = penalty.compute(means)
    slopes = tf.gradients(value, flat, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return value - _multiply_slopes(slopes, flat), slopes


def _follow_tangent(means: Any, tangent: tuple[tf.Tensor, list[tf.Tensor]] | None) -> tf.Tensor:
    """Return the value of a penalty's tangent at the means of one part of the batch."""
    if tangent is None:
        return tf.cast(means, tf.float32)
    start, slopes = tangent
    return start + _multiply_slopes(slopes, tf.nest.flatten(means))


def _multiply_slopes(slopes: Sequence[tf.Tensor], means: Sequence[tf.Tensor]) -> tf.Tensor:
    products = [tf.reduce_sum(a * b) for a, b in zip(slopes, means, strict=True)]
    return tf.add_n([tf.cast(product, tf.float32) for product in products])


_NAME = "penalties"
