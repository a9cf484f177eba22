"""The CIN of xDeepFM: elementwise products of columns, with one more factor in each layer.

networks.SharedBottom.trunk = @networks.Parallel()
networks.Parallel.trunks = [@networks.CIN(), @deep/networks.MLP()]       # xDeepFM
networks.CIN.layers = [64, 64]
"""

from __future__ import annotations

from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.networks import fields, trunk
from mtl.variables import freezing


@checks.dataclass
class CIN:
    """The compressed interaction network of xDeepFM: products of up to l + 1 columns.

    `x[l][h] = activation(sum_(i, j) W[l][h, i, j] x[l-1][i] * x[0][j])`, summed over the width of
    vectors. J. Lian et al., "xDeepFM: Combining Explicit and Implicit Feature Interactions for
    Recommender Systems", KDD 2018, arXiv:1803.05170. x[0] holds the columns as vectors of equal
    width. The products of each layer have one factor more than the products of the previous layer.

    Attributes:
      layers: the number of feature maps in each layer, at least one; variables in `hidden_<l>`.
      dimension: the width of the vectors in x[0]; a matrix projects columns of other widths (see
        `fields.stack_fields`). Without a dimension (None), all columns must have equal width.
      activation: a name in `mtl.layers.ACTIVATIONS`; the paper found "linear" to be best.
      split_half: True sends half of a layer's maps to the next layer and half to the output, as in
        the authors' code. The last layer always outputs all of its maps.
      trainable: False freezes all variables of the trunk.
    """

    layers: trunk.SomeSizes = (64, 64)
    dimension: Annotated[int | None, fields.check_dimension] = 8
    activation: trunk.Activation = "linear"
    split_half: bool = False
    trainable: bool = True

    def __post_init__(self):
        are_even = not self.split_half or all(size % 2 == 0 for size in self.layers[:-1])
        checks.require(
            are_even,
            "CIN.layers",
            "be even, except for the last, if CIN.split_half is True",
            self.layers,
        )

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, D]} -> [B, maps of all layers]."""
        with freezing.hold_part(self.trainable):
            first = fields.stack_fields("CIN", inputs, self.dimension, training)
            # Put the width before the fields, so a layer is a single matrix product for all rows.
            first = tf.transpose(first, [0, 2, 1])  # [B, width, F]
            hidden, outputs = first, []
            for index, size in enumerate(self.layers):
                # [B, width, H, F]: the products of each feature map with each field.
                products = hidden[..., :, tf.newaxis] * first[..., tf.newaxis, :]
                count = hidden.shape[-1] * first.shape[-1]
                with tf1.variable_scope(f"hidden_{index}"):
                    kernel = tf1.get_variable("kernel", [count, size], first.dtype)
                products = tf.reshape(products, [-1, first.shape[1], count])
                maps = layers.ACTIVATIONS[self.activation](tf.linalg.matmul(products, kernel))
                is_cut = self.split_half and index < len(self.layers) - 1
                hidden, output = tf.split(maps, 2, axis=-1) if is_cut else (maps, maps)
                outputs.append(tf.reduce_sum(output, axis=1))
        return tf.concat(outputs, axis=1)
