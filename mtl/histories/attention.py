"""Attention of a target to events: DIN, and SDIM for long histories."""

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
    """The target attention of DIN: a weighted sum of events, with weights from an MLP.

    The output is `sum_t w(e[t], q) e[t]`, [B, D], for the events e[t] of a row and its target q. An
    MLP computes the weight w from e, q, q - e and q * e. The encoder is from Zhou et al., "Deep
    Interest Network for Click-Through Rate Prediction", KDD 2018, arXiv:1706.06978. As in the
    paper, the weights of events are not normalised, so the output grows with the number of relevant
    events. If the target has another width than an event, a dense layer projects it to the width D.
    The output for a row without events is 0.

    Attributes:
      layers: the number of units of each hidden layer of the MLP. The variables of hidden layer i
        are in `hidden_<i>`, and those of the output layer in `weight`.
      activation: the activation of the hidden layers, a name in `layers.ACTIVATIONS`; the code of
        the paper's authors uses sigmoid.
      normalization: how the weights of the events of a row are normalised: "none", or "softmax"
        over these events.
    """

    layers: Annotated[Sequence[checks.Count], checks.Filled("hold a layer")] = (64, 32)
    activation: Annotated[str, checks.OneOf(layers.ACTIVATIONS)] = "sigmoid"
    normalization: Annotated[str, checks.OneOf(_NORMALIZATIONS)] = "none"

    needs_target = True
    weighs_events = True

    def __call__(self, events: tf.RaggedTensor, target: tf.Tensor | None) -> tf.Tensor:
        """Return the weighted sum of the events of each row: [B, (L), D], [B, T] -> [B, D]."""
        values, rows = events.flat_values, events.value_rowids()
        weights = self._weigh_events(values, rows, padded.fit_target(events, target))
        if self.normalization == "softmax":
            # Compute the softmax of each row on the flat weights of all events, [N, 1], without
            # padding.
            greatest = tf.math.unsorted_segment_max(weights, rows, events.nrows())
            exponentials = tf.exp(weights - tf.stop_gradient(tf.gather(greatest, rows)))
            weights = exponentials / tf.gather(padded.sum_rows(exponentials, events), rows)
        by_row = tf.RaggedTensor.from_row_splits(weights[:, 0], events.row_splits, validate=False)
        outlets.add_prediction("attention", by_row.to_tensor())
        return padded.sum_rows(weights * values, events)

    def _weigh_events(self, values: tf.Tensor, rows: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """Compute weights [N, 1] of events [N, D], given the row index of each and targets [B, D].

        The first layer of the MLP, whose input is [e, q, q - e, q * e], is split into three matrix
        products, so the product with the target q is computed once for each row, not once for each
        event.
        """
        activation = layers.ACTIVATIONS[self.activation]
        size, units = values.shape[1], self.layers[0]
        with tf1.variable_scope("hidden_0"):
            kernel = tf1.get_variable("kernel", [4 * size, units], values.dtype)
            bias = tf1.get_variable("bias", [units], values.dtype, tf1.zeros_initializer())
            # The kernel [4 D, units] acts on the concatenation [e, q, q - e, q * e]. The term q - e
            # needs no separate product: its kernel is added to the kernel of q, and subtracted from
            # the kernel of e.
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
    """The hashed attention of SDIM: averages events with the same hashes as the target.

    This encoder is from Cao et al., "Sampling Is All You Need on Modeling Long-Term User Behaviors
    for CTR Prediction" (SDIM), CIKM 2022, arXiv:2205.10249. Hashes are the signs of random
    projections. For each group of `width` hashes, the events with the same hashes as the target are
    summed, and the sum is scaled to length 1; the output is the mean over groups, [B, D]. So the
    attention to a long history costs a matrix product with `num_hashes` columns, but no MLP. Hashes
    have no gradients, so the target gets no gradient; the events get gradients through their sums.

    The target must have as many numbers as an event. The output for a row without events is 0.

    Attributes:
      num_hashes: the number of hashes, a multiple of `width`.
      width: the number of hashes in a group. With more hashes in a group, fewer events have the
        same hashes as the target.
      seed: the seed of the random projections.
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
        """Average the events that share hashes with the target: [B, (L), D], [B, D] -> [B, D]."""
        values, is_event = padded.pad_events(events)
        size, width = values.shape[2], None if target is None else target.shape[1]
        rule = f"be as wide as an event, {size}, for HashedAttention"
        checks.require(width == size, "History.target", rule, width)
        # The projections are constants, as training and serving must use the same hashes.
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
        """Hash each vector to a number for each group of hashes, [..., D] -> [..., groups]."""
        signs = tf.cast(tf.tensordot(values, projections, 1) > 0, tf.int64)
        shape = tf.concat([tf.shape(signs)[:-1], [self.num_hashes // self.width, self.width]], 0)
        # Combine the signs of a group as bits of a number, to compare all signs at once.
        return tf.reduce_sum(tf.reshape(signs, shape) * (1 << np.arange(self.width)), axis=-1)
