"""Weigh events by their relation to a target: DIN, and SDIM for long histories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.histories import padded
from mtl.step import outlets

_NORMALIZATIONS = ("none", "softmax")


@checks.dataclass
class TargetAttention(types.HistoryEncoder):
    """h = sum_t w(e[t], q) e[t], with w from an MLP of e, q, q - e and q * e: -> [B, D].

    G. Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018,
    arXiv:1706.06978. As in the paper, weights are not normalised: many events of an interest count
    more than few events. If a target q is not D wide, a layer projects it to D. Without events h is
    zeros.

    Attributes:
      layers: the hidden units of the MLP, in `hidden_<i>`; `weight` is its last layer.
      activation: one of `layers.ACTIVATIONS` for hidden layers; the authors' code has sigmoid.
      normalization: "none", or "softmax" over the events of a row.
    """

    layers: Annotated[Sequence[checks.Count], checks.Filled("hold a layer")] = (64, 32)
    activation: Annotated[str, checks.OneOf(layers.ACTIVATIONS)] = "sigmoid"
    normalization: Annotated[str, checks.OneOf(_NORMALIZATIONS)] = "none"

    needs_target = True
    weighs_events = True

    def __call__(self, events: tf.RaggedTensor, target: tf.Tensor | None) -> tf.Tensor:
        """Weigh events, [B, (L), D] and [B, T] -> [B, D]."""
        values, rows = events.flat_values, events.value_rowids()
        weights = self._weigh_events(values, rows, padded.fit_target(events, target))
        if self.normalization == "softmax":
            # A softmax by row over the weights of all events, [N, 1], needs no padding.
            greatest = tf.math.unsorted_segment_max(weights, rows, events.nrows())
            shifted = tf.exp(weights - tf.stop_gradient(tf.gather(greatest, rows)))
            weights = shifted / tf.gather(padded.sum_rows(shifted, events), rows)
        by_row = tf.RaggedTensor.from_row_splits(weights[:, 0], events.row_splits, validate=False)
        outlets.add_prediction("attention", by_row.to_tensor())
        return padded.sum_rows(weights * values, events)

    def _weigh_events(self, values: tf.Tensor, rows: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """Return the weights [N, 1] of events [N, D] in these rows, [N], for a target [B, D].

        The first layer, on [e, q, q - e, q * e], is three products: the product with q is computed
        once for each row, and not for each event.
        """
        activation = layers.ACTIVATIONS[self.activation]
        size, units = values.shape[1], self.layers[0]
        with tf1.variable_scope("hidden_0"):
            kernel = tf1.get_variable("kernel", [4 * size, units], values.dtype)
            bias = tf1.get_variable("bias", [units], values.dtype, tf1.zeros_initializer())
            # One kernel [4 D, units], as if [e, q, q - e, q * e] were joined: K_d (q - e) is a part
            # of the products with q and with e.
            of_values, of_target, difference, product = tf.split(kernel, 4)
            by_row = tf.linalg.matmul(target, of_target + difference) + bias
            hidden = tf.linalg.matmul(values, of_values - difference)
            hidden += tf.linalg.matmul(tf.gather(target, rows) * values, product)
            hidden = activation(hidden + tf.gather(by_row, rows))
        for index, units in enumerate(self.layers[1:], 1):
            hidden = layers.dense(hidden, units, f"hidden_{index}", activation)
        return layers.dense(hidden, 1, "weight")


@checks.dataclass
class HashedAttention(types.HistoryEncoder):
    """h = the mean over groups of hashes of the events with the target's hashes: -> [B, D].

    Y. Cao et al., "Sampling Is All You Need on Modeling Long-Term User Behaviors for CTR
    Prediction" (SDIM), CIKM 2022, arXiv:2205.10249. Hashes are the signs of random projections. In
    each group of `width` hashes, the events whose hashes all equal the target's are added up, and
    the sum is scaled to length 1. A long history costs a product with `num_hashes` columns, but no
    MLP. Hashes pass no gradients, so the target gets none; events get gradients from their sums.

    The target must be as wide as an event. Without events h is zeros.

    Attributes:
      num_hashes: the number of hashes, a multiple of width.
      width: the number of hashes in a group; with more hashes, fewer events match.
      seed: the seed of the projections.
    """

    num_hashes: checks.Count = 48
    width: checks.Count = 3
    seed: checks.Natural = 0

    needs_target = True
    weighs_events = True

    def __post_init__(self):
        rule = f"be a multiple of {self.width}, the width"
        fits = self.num_hashes % self.width == 0
        checks.require(fits, "HashedAttention.num_hashes", rule, self.num_hashes)

    def __call__(self, events: tf.RaggedTensor, target: tf.Tensor | None) -> tf.Tensor:
        """Average events that share hashes, [B, (L), D] and [B, D] -> [B, D]."""
        values, is_event = padded.pad_events(events)
        size, width = values.shape[2], None if target is None else target.shape[1]
        rule = f"be as wide as an event, {size}, for HashedAttention"
        checks.require(width == size, "History.target", rule, width)
        # The projections are constants of the graph, as a server must hash as training did.
        directions = np.random.default_rng(self.seed).normal(size=[size, self.num_hashes])
        projections = tf.constant(directions, values.dtype)
        matches = tf.equal(
            self._hash_groups(values, projections),
            self._hash_groups(target, projections)[:, tf.newaxis],
        )
        shares = tf.cast(matches & is_event[:, :, tf.newaxis], values.dtype)
        outlets.add_prediction("attention", tf.reduce_mean(shares, axis=2))
        sums = tf.linalg.matmul(shares, values, transpose_a=True)  # [B, groups, D]
        return tf.reduce_mean(tf.math.l2_normalize(sums, axis=2), axis=1)

    def _hash_groups(self, values: tf.Tensor, projections: tf.Tensor) -> tf.Tensor:
        """Return the hash of each group, [..., D] -> int64 [..., groups]."""
        signs = tf.cast(tf.tensordot(values, projections, 1) > 0, tf.int64)
        shape = tf.concat([tf.shape(signs)[:-1], [self.num_hashes // self.width, self.width]], 0)
        # The signs of a group become the bits of a number, so that equal numbers mean equal signs.
        return tf.reduce_sum(tf.reshape(signs, shape) * (1 << np.arange(self.width)), axis=-1)
