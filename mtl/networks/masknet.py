"""MaskNet: multiplies features by masks that are computed from the same example.

networks.SharedBottom.trunk = @networks.MaskNet()
networks.MaskNet.blocks = [64, 64]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.networks import trunk
from mtl.variables import freezing


@checks.dataclass
class MaskNet:
    """Blocks that multiply features by masks, which are computed from the same example.

    `block(x, h) = relu(layer_norm(W (mask(x) * h)))`, `mask(x) = W2 relu(W1 x + b1) + b2`. Z. Wang,
    Q. She, J. Zhang, "MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models by
    Instance-Guided Mask", DLP-KDD 2021, arXiv:2102.07619. x are all columns, concatenated. The
    first block reads the columns after a separate layer norm for each column.

    Attributes:
      blocks: the number of units of each block; at least one block. Variables in `block_<i>`, and
        in `norm_<column>`.
      reduction: the hidden units of a mask divided by the number of inputs, above 0.
      parallel: True concatenates the outputs of blocks that all read the normalised columns. With
        `parallel = False`, the blocks are stacked: each block reads the output of the previous
        block.
      trainable: False freezes all variables of the trunk.
    """

    blocks: Annotated[Sequence[int], trunk.check_sizes, checks.Filled("hold a block")] = (64, 64)
    reduction: checks.Positive = 2.0
    parallel: bool = True
    trainable: bool = True

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, ...]} -> [B, units of the last block, or of all]."""
        vectors = trunk.join_columns("MaskNet", inputs)
        with freezing.hold_part(self.trainable):
            normal_columns = {
                column: layers.layer_norm(
                    trunk.join_columns("MaskNet", {column: value}), f"norm_{column}"
                )
                for column, value in inputs.items()
            }
            hidden, outputs = trunk.join_columns("MaskNet", normal_columns), []
            for index, size in enumerate(self.blocks):
                with tf1.variable_scope(f"block_{index}"):
                    output = self._build_block(vectors, hidden, size)
                # Parallel blocks read the normalised columns; stacked blocks read the previous
                # output.
                hidden = hidden if self.parallel else output
                outputs.append(output)
        return tf.concat(outputs, axis=1) if self.parallel else hidden

    def _build_block(self, vectors: tf.Tensor, hidden: tf.Tensor, size: int) -> tf.Tensor:
        units = max(1, round(self.reduction * vectors.shape[-1]))
        mask = layers.dense(vectors, units, "aggregation", tf.nn.relu)
        mask = layers.dense(mask, hidden.shape[-1], "projection")
        outputs = layers.dense(mask * hidden, size, "hidden", use_bias=False)
        return tf.nn.relu(layers.layer_norm(outputs, "norm"))
