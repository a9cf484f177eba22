"""AutoInt: self-attention between columns, as a trunk.

networks.SharedBottom.trunk = @networks.AutoInt()
networks.AutoInt.num_layers = 2
"""

from __future__ import annotations

from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.networks import fields
from mtl.variables import freezing


@checks.dataclass
class AutoInt:
    """Self-attention between columns, whose outputs are concatenated at the end.

    `e[l] = relu(attention(e[l-1]) + W[l] e[l-1])` for the columns e[0] of equal width. W. Song et
    al., "AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks", CIKM
    2019, arXiv:1810.11921. As in the paper, each attention head weighs the fields by a softmax of
    `<query, key>`, without a scale.

    Attributes:
      num_layers: the number of attention layers, at least 1; variables in `layer_<l>`.
      num_heads: the number of attention heads in each layer, at least 1.
      units: the width of each head.
      dimension: the width of a column before the first layer. A matrix projects columns of other
        widths to `dimension` (see `fields.stack_fields`). Without a dimension (None), all columns
        must have equal width.
      dropout: the share of attention weights that are zeroed in training, in [0, 1).
      residual: True adds the residual term W[l] e[l-1] to the output of the attention.
      trainable: False freezes all variables of the trunk.
    """

    num_layers: checks.Count = 2
    num_heads: checks.Count = 2
    units: checks.Count = 16
    dimension: Annotated[int | None, fields.check_dimension] = 8
    dropout: checks.Rate = 0.0
    residual: bool = True
    trainable: bool = True

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, D]} of F columns -> [B, F * num_heads * units]."""
        with freezing.hold_part(self.trainable):
            hidden = fields.stack_fields("AutoInt", inputs, self.dimension, training)
            for index in range(self.num_layers):
                with tf1.variable_scope(f"layer_{index}"):
                    hidden = self._build_layer(hidden, training)
        return tf.reshape(hidden, [-1, hidden.shape[1] * hidden.shape[2]])

    def _build_layer(self, hidden: tf.Tensor, training: bool) -> tf.Tensor:
        """Apply self-attention between fields, [B, F, D] -> [B, F, heads * units]."""
        count, width = hidden.shape[1], self.num_heads * self.units
        # Flatten to [B F, D], for a single matrix product.
        rows = tf.reshape(hidden, [-1, hidden.shape[2]])
        names = ["query", "key", "value"] + ["residual"] * self.residual
        projections = [layers.dense(rows, width, name, use_bias=False) for name in names]
        query, key, value = (
            tf.transpose(
                tf.reshape(projection, [-1, count, self.num_heads, self.units]), [0, 2, 1, 3]
            )
            for projection in projections[:3]
        )
        # Use 32 bits: in a softmax of 16 bits, exponentials overflow or lose precision.
        products = tf.cast(tf.linalg.matmul(query, key, transpose_b=True), tf.float32)
        weights = tf.cast(tf.nn.softmax(products), value.dtype)
        weights = layers.dropout(weights, self.dropout, "attention_dropout", training)
        mixtures = tf.transpose(tf.linalg.matmul(weights, value), [0, 2, 1, 3])
        outputs = tf.reshape(mixtures, [-1, count, width])
        if self.residual:
            outputs += tf.reshape(projections[3], [-1, count, width])
        return tf.nn.relu(outputs)
