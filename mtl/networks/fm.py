"""Factorisation machines: products of all pairs of columns.

networks.SharedBottom.trunk = @networks.Parallel()
networks.Parallel.trunks = [@networks.FM(), @deep/networks.MLP()]        # DeepFM
"""

from __future__ import annotations

from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf
from mtl.networks import fields, trunk
from mtl.variables import freezing


@checks.dataclass
class FM:
    """A factorisation machine: the columns, and the sum of products of all pairs of columns.

    `h = [x, ((sum_i v[i])^2 - sum_i v[i]^2) / 2]` for the columns x, which are also stacked as
    vectors v of equal width. S. Rendle, "Factorization Machines", ICDM 2010,
    https://doi.org/10.1109/ICDM.2010.127. With a linear head, the trunk is a factorisation machine:
    the weights of the head for the columns x are its linear terms. In the paper, each element of
    the sum of products has weight 1; here the head learns a weight for each element.

    Attributes:
      dimension: the width of the vectors v; a matrix projects columns of other widths (see
        `fields.stack_fields`). Without a dimension (None), all columns must have equal width.
      linear: True puts the columns x before the products in the output; False returns only the
        products.
      trainable: False freezes all variables of the trunk.
    """

    dimension: Annotated[int | None, fields.check_dimension] = 8
    linear: bool = True
    trainable: bool = True

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, D]} -> [B, sum of all D + dimension], or [B, dimension]."""
        with freezing.hold_part(self.trainable):
            field_vectors = fields.stack_fields("FM", inputs, self.dimension, training)
        # Rendle, lemma 3.1: this sum over all pairs takes linear time in the number of fields.
        pairs = (
            tf.reduce_sum(field_vectors, axis=1) ** 2 - tf.reduce_sum(field_vectors**2, axis=1)
        ) / 2
        if not self.linear:
            return pairs
        return tf.concat([trunk.join_columns("FM", inputs), pairs], axis=1)
