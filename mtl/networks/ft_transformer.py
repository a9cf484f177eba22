"""FT-Transformer: a transformer whose tokens are columns, as a trunk.

networks.SharedBottom.trunk = @networks.FTTransformer()
networks.FTTransformer.dimension = 64
networks.FTTransformer.num_blocks = 3
"""

from __future__ import annotations

import math
from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.networks import fields
from mtl.variables import freezing

_GATES = {"reglu": "relu", "swiglu": "swish"}


@checks.dataclass
class FTTransformer:
    """A transformer whose tokens are the columns of a row, with a learned `cls` token.

    `z = z + attention(norm(z))`, `z = z + feed_forward(norm(z))`, ..., `h = relu(norm(z[cls]))`. Y.
    Gorishniy, I. Rubachev, V. Khrulkov, A. Babenko, "Revisiting Deep Learning Models for Tabular
    Data", NeurIPS 2021, arXiv:2106.11959. The token of a column is its value, projected to
    `dimension`, plus a bias for this column. A learned token, `cls`, is added to each row; the
    output is computed from the token's last state. As in the paper, the first block does not
    normalise the inputs of its attention. The feed-forward layer is `W2 (a * gate(b))` with
    `[a, b] = W1 z`.

    The order of the columns does not matter. Attention takes quadratic time in the number of
    columns.

    Unlike in the paper, initial kernels are Glorot-uniform. The last block computes only the
    learned token, because the output does not depend on other tokens.

    Attributes:
      dimension: the width of a token, a multiple of `num_heads`. The paper uses 192.
      num_blocks: the number of blocks, at least 1; variables in `block_<i>`.
      num_heads: the number of attention heads in each block, at least 1.
      feed_forward_factor: the number of hidden units of the feed-forward layer, divided by
        `dimension`.
      activation: the gate of the feed-forward layer, "reglu" as in the paper, or "swiglu".
      attention_dropout: the share of attention weights that are zeroed in training, in [0, 1).
      feed_forward_dropout: the share of hidden units that are zeroed in training, in [0, 1).
      residual_dropout: the share of zeroed outputs of attention and feed-forward layers, in [0, 1).
      trainable: False freezes all variables of the trunk (see `mtl.variables.freezing`).

    Biases of columns are in `field_<column>/bias`, and the learned token is in `cls`.
    """

    dimension: checks.Count = 64
    num_blocks: checks.Count = 3
    num_heads: checks.Count = 8
    feed_forward_factor: checks.Positive = 4 / 3
    activation: Annotated[str, checks.OneOf(_GATES)] = "reglu"
    attention_dropout: float = 0.2
    feed_forward_dropout: float = 0.1
    residual_dropout: float = 0.0
    trainable: bool = True

    def __post_init__(self):
        rule = f"be a multiple of num_heads, {self.num_heads}"
        fits = self.dimension % self.num_heads == 0
        checks.require(fits, "FTTransformer.dimension", rule, self.dimension)
        where, factor = "FTTransformer.feed_forward_factor", self.feed_forward_factor
        fix = f"{factor} * {self.dimension} is below 1."
        checks.require(self._hidden_units > 0, where, "give at least one hidden unit", factor, fix)
        for setting in ("attention", "feed_forward", "residual"):
            where = f"{setting}_dropout"
            checks.rate(f"FTTransformer.{where}", getattr(self, where))

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, D]} -> [B, dimension]."""
        with freezing.hold_part(self.trainable):
            tokens = self._build_tokens(inputs, training)
            count = tokens.shape[1]
            # Flatten to [B T, D], as products of [B, T, D] take memory for a kernel gradient of
            # each example.
            rows = tf.reshape(tokens, [-1, self.dimension])
            for index in range(self.num_blocks):
                with tf1.variable_scope(f"block_{index}"):
                    is_last = index == self.num_blocks - 1
                    rows = self._add_attention(rows, count, index > 0, is_last, training)
                    rows = self._feed_forward(rows, training)
            return tf.nn.relu(layers.layer_norm(rows, "norm"))

    def _build_tokens(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Build the tokens, {column: [B, D]} -> [B, 1 + F, dimension], the learned token first."""
        tokens = fields.stack_fields("FTTransformer", inputs, self.dimension, training)
        # Initial biases are random, as in the authors' code, so that tokens differ.
        bound = self.dimension**-0.5
        uniform = tf1.random_uniform_initializer(-bound, bound)
        biases = []
        for column in inputs:
            with tf1.variable_scope(f"field_{column}"):
                shape = [self.dimension]
                biases.append(tf1.get_variable("bias", shape, tokens.dtype, uniform))
        class_token = tf1.get_variable("cls", [self.dimension], tokens.dtype, uniform)
        class_token = tf.tile(class_token[tf.newaxis, tf.newaxis], [tf.shape(tokens)[0], 1, 1])
        return tf.concat([class_token, tokens + tf.stack(biases)], axis=1)

    def _add_attention(
        self, rows: tf.Tensor, count: int, has_norm: bool, is_last: bool, training: bool
    ) -> tf.Tensor:
        """Apply an attention layer with a residual connection to T tokens of each example.

        Args:
          rows: the tokens of all examples, [B T, dimension].
          count: T, the number of tokens of an example.
          has_norm: True applies layer norm to the tokens first.
          is_last: True in the last block, in which only the first token attends.
          training: True in a training step.

        Returns:
          The new tokens, [B T, dimension], or only the first token of each example, [B, dimension],
          if `is_last`.
        """
        normal_rows = layers.layer_norm(rows, "attention_norm") if has_norm else rows
        projections = layers.dense(normal_rows, 3 * self.dimension, "attention/query_key_value")
        width = self.dimension // self.num_heads
        projections = tf.reshape(projections, [-1, count, 3, self.num_heads, width])
        queries, keys, values = tf.unstack(
            tf.transpose(projections, [2, 0, 3, 1, 4])
        )  # [B, heads, T, w]
        if is_last:
            # The output uses only the first token, so no other token needs to attend.
            queries = queries[:, :, :1]
            rows = tf.reshape(rows, [-1, count, self.dimension])[:, 0]
        scores = tf.linalg.matmul(queries * (1 / math.sqrt(width)), keys, transpose_b=True)
        weights = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), scores.dtype)
        weights = layers.dropout(weights, self.attention_dropout, "attention_dropout", training)
        heads = tf.transpose(tf.linalg.matmul(weights, values), [0, 2, 1, 3])
        mixtures = tf.reshape(heads, [-1, self.dimension])
        outputs = layers.dense(mixtures, self.dimension, "attention/output")
        return rows + layers.dropout(outputs, self.residual_dropout, "attention_residual", training)

    def _feed_forward(self, rows: tf.Tensor, training: bool) -> tf.Tensor:
        """Apply a feed-forward layer with a residual connection to N tokens, [N, dimension]."""
        normal_rows = layers.layer_norm(rows, "feed_forward_norm")
        # A single matrix product computes values and gates.
        hidden = layers.dense(normal_rows, 2 * self._hidden_units, "feed_forward/hidden")
        values, gates = tf.split(hidden, 2, axis=1)
        hidden = values * getattr(tf.nn, _GATES[self.activation])(gates)
        hidden = layers.dropout(hidden, self.feed_forward_dropout, "feed_forward_dropout", training)
        outputs = layers.dense(hidden, self.dimension, "feed_forward/output")
        return rows + layers.dropout(
            outputs, self.residual_dropout, "feed_forward_residual", training
        )

    @property
    def _hidden_units(self) -> int:
        return int(self.dimension * self.feed_forward_factor)
