"""U-Net: an encoder and a decoder with skip connections, for tasks whose labels are maps.

networks.SharedBottom.trunk = @networks.UNet()
networks.SharedBottom.tower = @tower/networks.UNet()
networks.UNet.filters = [16, 32, 64]             # for 3 sizes; the first is the image's size
tower/networks.UNet.filters = [16]               # one size: two convolutions without pooling
"""

from __future__ import annotations

from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.networks import trunk
from mtl.variables import freezing


@checks.dataclass
class UNet:
    """A U-Net: an encoder and a decoder of convolutions, with skip connections.

    The output is the map d[0] of the decoder `d[l] = f(g([enlarge(d[l+1]); e[l]]))` and the encoder
    `e[l] = f(g(pool(e[l-1])))`. O. Ronneberger, P. Fischer, T. Brox, "U-Net: Convolutional Networks
    for Biomedical Image Segmentation", MICCAI 2015, arXiv:1505.04597. f and g are 3x3 convolutions,
    each with norm and activation. As in the paper, the channels of the encoder are concatenated
    with the enlarged channels of the decoder. Unlike in the paper, there is batch norm, padding
    keeps the map as large as the image, and `enlarge` repeats pixels, without a convolution.

    All columns must be images of the same height and width, and are stacked along their channels.
    Variables are in `encoder_<l>` and `decoder_<l>`.

    Attributes:
      filters: the number of filters at each size, from the image's size to the smallest size. The
        output has `filters[0]` channels.
      pool: the factor by which pooling divides height and width, rounding up.
      activation: a name in `mtl.layers.ACTIVATIONS`.
      batch_norm: True applies batch norm before each activation, in place of the bias.
      trainable: False freezes all variables of the trunk (see `mtl.variables.freezing`).
    """

    filters: trunk.SomeSizes = (
        16,
        32,
        64,
    )
    pool: Annotated[int, checks.AtLeast(2)] = 2
    activation: trunk.Activation = "relu"
    batch_norm: bool = True
    trainable: bool = True

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, H, W, C]} -> a map [B, H, W, filters[0]]."""
        hidden = trunk.join_maps("UNet", inputs)
        skips: list[tf.Tensor] = []
        with freezing.hold_part(self.trainable):
            for level, filters in enumerate(self.filters):
                if level > 0:
                    hidden = layers.max_pool(hidden, self.pool)
                hidden = self._convolve_twice(hidden, filters, f"encoder_{level}", training)
                skips.append(hidden)
            for level in reversed(range(len(self.filters) - 1)):
                skip = skips[level]
                # Cut off surplus pixels: pooling rounds up, so the enlarged map may be too large.
                hidden = layers.enlarge(hidden, self.pool, *skip.shape[1:3])
                hidden = tf.concat([hidden, skip], -1)
                hidden = self._convolve_twice(
                    hidden, self.filters[level], f"decoder_{level}", training
                )
        return hidden

    def _convolve_twice(
        self, hidden: tf.Tensor, filters: int, scope: str, training: bool
    ) -> tf.Tensor:
        """Apply two convolutions, [B, H, W, C] -> [B, H, W, filters]."""
        with tf1.variable_scope(scope):
            for name in ("first", "second"):
                hidden = layers.conv(hidden, filters, name, use_bias=not self.batch_norm)
                norm = self.batch_norm
                hidden = trunk.finish_layer(hidden, name, self.activation, 0.0, norm, training)
        return hidden
