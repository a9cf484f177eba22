"""FiBiNET: weights for columns, and bilinear products of all pairs of columns.

networks.SharedBottom.trunk = @networks.Stacked()
networks.Stacked.trunks = [@networks.FiBiNET(), @networks.MLP()]
"""

from __future__ import annotations

from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.networks import fields
from mtl.variables import freezing

_BILINEAR = ("all", "each", "interaction")


@checks.dataclass
class FiBiNET:
    """Bilinear products of all pairs of columns, and of all pairs of weighted columns.

    `h = [(v[i] W) * v[j], (u[i] W) * u[j] for all pairs i < j]` with `u[i] = w[i] v[i]`. T. Huang,
    Z. Zhang, J. Zhang, "FiBiNET: Combining Feature Importance and Bilinear feature Interaction for
    Click-Through Rate Prediction", RecSys 2019, arXiv:1905.09433. v are the columns as vectors of
    equal width. A squeeze-and-excitation network computes the weights w of columns from the mean of
    each vector: `relu(B relu(A mean(v)))`.

    Attributes:
      dimension: the width of the vectors v; a matrix projects columns of other widths (see
        `fields.stack_fields`). Without a dimension (None), all columns must have equal width.
      reduction: the number of columns divided by the hidden units of the squeeze-and-excitation
        network.
      bilinear: how many matrices W the bilinear products have. Under "all", there is a single
        matrix W, under "each" a matrix for each column i, and under "interaction" a matrix for each
        pair.
      trainable: False freezes all variables of the trunk.
    """

    dimension: Annotated[int | None, fields.check_dimension] = 8
    reduction: checks.Count = 3
    bilinear: Annotated[str, checks.OneOf(_BILINEAR)] = "interaction"
    trainable: bool = True

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, D]} of F columns -> [B, F (F - 1) dimension]."""
        with freezing.hold_part(self.trainable):
            field_vectors = fields.stack_fields("FiBiNET", inputs, self.dimension, training)
            weighed_vectors = self._weigh_fields(field_vectors)
            pairs = [
                self._multiply_pairs(field_vectors, "plain"),
                self._multiply_pairs(weighed_vectors, "weighed"),
            ]
        products = tf.concat(pairs, axis=1)
        return tf.reshape(products, [-1, products.shape[1] * products.shape[2]])

    def _weigh_fields(self, field_vectors: tf.Tensor) -> tf.Tensor:
        count = field_vectors.shape[1]
        units = max(1, count // self.reduction)
        with tf1.variable_scope("weights"):
            hidden = tf.reduce_mean(field_vectors, axis=2)
            hidden = layers.dense(hidden, units, "squeeze", tf.nn.relu, use_bias=False)
            weights = layers.dense(hidden, count, "excite", tf.nn.relu, use_bias=False)
        return field_vectors * weights[..., tf.newaxis]

    def _multiply_pairs(self, field_vectors: tf.Tensor, name: str) -> tf.Tensor:
        """Compute (v[i] W) * v[j] for all pairs of vectors, [B, F, D] -> [B, F (F - 1) / 2, D]."""
        count, width = field_vectors.shape[1:]
        pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
        left, right = (
            tf.gather(field_vectors, list(side), axis=1) for side in zip(*pairs, strict=True)
        )
        shapes = {
            "all": [width, width],
            "each": [count, width, width],
            "interaction": [len(pairs), width, width],
        }
        with tf1.variable_scope(name):
            kernel = tf1.get_variable("kernel", shapes[self.bilinear], field_vectors.dtype)
        if self.bilinear == "interaction":
            return tf.einsum("bpd,pde->bpe", left, kernel) * right
        equation = "bfd,de->bfe" if self.bilinear == "all" else "bfd,fde->bfe"
        # Multiply each field by W once, not once for each pair with this field.
        maps = tf.einsum(equation, field_vectors, kernel)
        return tf.gather(maps, [i for i, _ in pairs], axis=1) * right
