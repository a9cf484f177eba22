"""A convolutional network for images, as a trunk.

networks.SharedBottom.trunk = @networks.Convnet()
networks.Convnet.filters = [32, 64]
networks.Convnet.layers = [128]
"""

from __future__ import annotations

from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf
from mtl.networks import trunk
from mtl.variables import freezing


@checks.dataclass
class Convnet:
    """A convolutional network: blocks of convolutions, then fully connected layers.

    A block is a convolution, a norm, an activation and max-pooling. All images must have the same
    height and width, and are stacked along their channels. Other columns are concatenated with the
    flattened output of the blocks, as inputs of the fully connected layers.

    Attributes:
      filters: the number of filters of each block; at least one block.
      size: height and width of the kernels, in pixels.
      padding: "same" keeps height and width; "valid" reduces both by `size - 1`, because the kernel
        stays inside the image.
      pool: the factor by which each block's max-pooling divides height and width, rounding up. With
        `pool = 1`, there is no pooling.
      layers: the number of units of each fully connected layer; [] for none.
      activation: a name in `mtl.layers.ACTIVATIONS`.
      dropout: the share of units of dense layers that are zeroed in training, in [0, 1).
      batch_norm: True applies batch norm before each activation, in place of the bias.
      trainable: False freezes all variables of the trunk (see `mtl.variables.freezing`).
    """

    filters: trunk.SomeSizes = (32, 64)
    size: checks.Count = 3
    padding: Annotated[str, checks.OneOf(("same", "valid"))] = "same"
    pool: checks.Count = 2
    layers: trunk.Sizes = (128,)
    activation: trunk.Activation = "relu"
    dropout: checks.Rate = 0.0
    batch_norm: bool = True
    trainable: bool = True

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, H, W, C] or [B, D]} -> [B, layers[-1]]."""
        hidden, vectors = trunk.join_images("Convnet", inputs)
        with freezing.hold_part(self.trainable):
            for index, filters in enumerate(self.filters):
                hidden = self._build_block(hidden, filters, f"block_{index}", training)
            hidden = trunk.join_columns("Convnet", {"images": hidden, **vectors})
            return trunk.dense_layers(
                hidden, self.layers, self.activation, self.dropout, self.batch_norm, training
            )

    def _build_block(self, hidden: tf.Tensor, filters: int, name: str, training: bool) -> tf.Tensor:
        hidden = layers.conv(
            hidden, filters, name, self.size, use_bias=not self.batch_norm, padding=self.padding
        )
        if self.batch_norm:
            hidden = layers.batch_norm(hidden, f"{name}_norm", training)
        hidden = layers.ACTIVATIONS[self.activation](hidden)
        return layers.max_pool(hidden, self.pool)
