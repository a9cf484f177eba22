"""A transformer over events, and optionally a target (BST)."""

from __future__ import annotations

import math

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.histories import padded
from mtl.step import outlets


@checks.dataclass
class Transformer(types.HistoryEncoder):
    """A transformer over the events of a row: [B, (L), D] -> [B, H].

    Each event is projected to a token z of width H = `dimension`. A block computes
    `z = z + attention(norm(z))` and then `z = z + feed_forward(norm(z))`. The output is the mean of
    norm(z) over all events, and 0 for a row without events.

    With `joins_target`, the target is the last token, and the output is the last state of this
    token, similar to BST: Chen et al., "Behavior Sequence Transformer for E-commerce Recommendation
    in Alibaba", 2019, arXiv:1905.06874. In the paper, the output has the states of all tokens, and
    layer norms follow the attention and feed-forward layers instead of preceding them. The order of
    events has an effect only if `History.place_dimension` or `History.times` is set.

    Attributes:
      dimension: the length of a token, a multiple of `num_heads`.
      num_blocks: the number of blocks, at least 1; the variables of block i are in `block_<i>`.
      num_heads: the number of attention heads.
      feed_forward_factor: the number of hidden units of the feed-forward layer, divided by
        `dimension`.
      joins_target: True adds the target as a token after the events.
    """

    dimension: checks.Count = 32
    num_blocks: checks.Count = 1
    num_heads: checks.Count = 4
    feed_forward_factor: checks.Count = 4
    joins_target: bool = False

    def __post_init__(self):
        rule = f"be a multiple of num_heads, {self.num_heads}"
        fits = self.dimension % self.num_heads == 0
        checks.require(fits, "Transformer.dimension", rule, self.dimension)

    @property
    def needs_target(self) -> bool:
        """True if the target is one of the tokens."""
        return self.joins_target

    @property
    def weighs_events(self) -> bool:
        """True if the target is one of the tokens; its attention then weighs the events."""
        return self.joins_target

    def __call__(self, events: tf.RaggedTensor, target: tf.Tensor | None) -> tf.Tensor:
        """Run all blocks on events [B, (L), D], and on a target [B, T]: -> [B, dimension]."""
        values, is_token = padded.pad_events(events)
        tokens = layers.dense(values, self.dimension, "event")
        if self.joins_target:
            # Tokens do not attend to the padding between the events and the target.
            last = layers.dense(target, self.dimension, "target")[:, tf.newaxis]
            tokens = tf.concat([tokens, last], axis=1)
            is_token = tf.pad(is_token, [[0, 0], [0, 1]], constant_values=True)
        for index in range(self.num_blocks):
            with tf1.variable_scope(f"block_{index}"):
                normal_tokens = layers.layer_norm(tokens, "attention_norm")
                outputs, weights = self._attend_among(normal_tokens, is_token)
                tokens += outputs
                normal_tokens = layers.layer_norm(tokens, "feed_forward_norm")
                units = self.feed_forward_factor * self.dimension
                hidden = layers.dense(normal_tokens, units, "feed_forward/hidden", tf.nn.relu)
                tokens += layers.dense(hidden, self.dimension, "feed_forward/output")
        tokens = layers.layer_norm(tokens, "norm")
        if self.joins_target:
            # Predict the attention of the target to events in the last block, without its attention
            # to itself.
            outlets.add_prediction("attention", tf.reduce_mean(weights[:, :, -1, :-1], axis=1))
            return tokens[:, -1]
        shares = tf.cast(is_token, tokens.dtype)[:, :, tf.newaxis]
        count = tf.maximum(tf.reduce_sum(shares, axis=1), 1)
        return tf.reduce_sum(tokens * shares, axis=1) / count

    def _attend_among(self, tokens: tf.Tensor, is_token: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Apply self-attention to tokens [B, L, H]; return outputs and attention weights."""
        projections = layers.dense(tokens, 3 * self.dimension, "attention/query_key_value")
        width = self.dimension // self.num_heads
        shape = tf.concat([tf.shape(tokens)[:2], [3, self.num_heads, width]], 0)
        # The split tensor is [3, B, heads, L, width].
        queries, keys, values = tf.unstack(
            tf.transpose(tf.reshape(projections, shape), [2, 0, 3, 1, 4]), num=3
        )
        scores = tf.linalg.matmul(queries * (1 / math.sqrt(width)), keys, transpose_b=True)
        is_key = is_token[:, tf.newaxis, tf.newaxis, :]
        # Use the lowest number instead of -inf, which would give NaN for a row without tokens.
        scores = tf.where(is_key, scores, tf.constant(scores.dtype.min, scores.dtype))
        weights = tf.nn.softmax(scores)
        mixtures = tf.transpose(tf.linalg.matmul(weights, values), [0, 2, 1, 3])
        mixtures = tf.reshape(mixtures, tf.shape(tokens))
        mixtures.set_shape(tokens.shape)
        return layers.dense(mixtures, self.dimension, "attention/output"), weights
