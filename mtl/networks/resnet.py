"""Residual networks for small images, as a trunk.

networks.SharedBottom.trunk = @networks.ResNet()
networks.ResNet.depth = 20                               # 6 n + 2
networks.ResNet.shortcut = "projection"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf
from mtl.networks import trunk
from mtl.variables import freezing


@checks.dataclass
class ResNet:
    """A residual network for small images: n blocks at each of three sizes.

    A block is `h <- relu(shortcut(h) + norm(conv(relu(norm(conv(h))))))`. K. He, X. Zhang, S. Ren,
    J. Sun, "Deep Residual Learning for Image Recognition", 2015, arXiv:1512.03385, section 4.2: a
    convolution, 3 n blocks of two 3x3 convolutions, and global average pooling. The first blocks of
    the second and the third size have stride 2, so 32x32 images are halved to 16x16 and 8x8, and
    28x28 images to 14x14 and 7x7. All images must have the same height and width, and are stacked
    along their channels; other columns are concatenated with the pooled output.

    Attributes:
      depth: the number of layers with weights, including the head: 6 n + 2. A network of depth 20
        has 0.27 million weights, of depth 32 0.46 million, and of depth 56 0.85 million.
      filters: three numbers of filters, one for each size, not decreasing.
      shortcut: how a block adds its input to an output of another size. "pad" takes every second
        pixel of the input and adds channels of zeros (option A, as in the paper's results).
        "projection" is a 1x1 convolution of the input (option B of the paper).
      trainable: False freezes all variables of the trunk (see `mtl.variables.freezing`).
    """

    depth: Annotated[
        int,
        checks.Is(int, "be a number of layers"),
        checks.Rule(
            "be 6 n + 2: 8, 14, 20, 26, 32, ...", lambda value: value >= 8 and value % 6 == 2
        ),
    ] = 20
    filters: Annotated[
        Sequence[int],
        trunk.check_sizes,
        checks.Rule("hold 3 numbers", lambda value: len(value) == 3),
        checks.Rule("not decrease", lambda value: list(value) == sorted(value)),
    ] = (16, 32, 64)
    shortcut: Annotated[str, checks.OneOf(("pad", "projection"))] = "pad"
    trainable: bool = True

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, H, W, C] or [B, D]} -> [B, filters[-1] + D]."""
        images, vectors = trunk.join_images("ResNet", inputs)
        with freezing.hold_part(self.trainable):
            hidden = self._apply_blocks(images, training)
        return trunk.join_columns("ResNet", {"images": hidden, **vectors})

    def _apply_blocks(self, images: tf.Tensor, training: bool) -> tf.Tensor:
        """Apply all blocks and global average pooling: [B, H, W, C] -> [B, filters[-1]]."""
        hidden = tf.nn.relu(self._convolve_inputs(images, self.filters[0], "stem", 1, training))
        for size, filters in enumerate(self.filters):
            # 6 n + 2 layers: three sizes of n blocks with two convolutions, the stem, and the head.
            for index in range((self.depth - 2) // 6):
                stride = 2 if size and not index else 1
                with tf.compat.v1.variable_scope(f"block_{size}_{index}"):
                    hidden = self._build_block(hidden, filters, stride, training)
        return tf.reduce_mean(hidden, [1, 2])

    def _build_block(
        self, inputs: tf.Tensor, filters: int, stride: int, training: bool
    ) -> tf.Tensor:
        hidden = tf.nn.relu(self._convolve_inputs(inputs, filters, "conv_0", stride, training))
        hidden = self._convolve_inputs(hidden, filters, "conv_1", 1, training)
        return tf.nn.relu(self._build_shortcut(inputs, filters, stride, training) + hidden)

    def _convolve_inputs(
        self, inputs: tf.Tensor, filters: int, name: str, stride: int, training: bool, size: int = 3
    ) -> tf.Tensor:
        hidden = layers.conv(inputs, filters, name, size, stride, use_bias=False)
        return layers.batch_norm(hidden, f"{name}_norm", training)

    def _build_shortcut(
        self, inputs: tf.Tensor, filters: int, stride: int, training: bool
    ) -> tf.Tensor:
        num_added = filters - inputs.shape[-1]
        if stride == 1 and not num_added:
            return inputs
        if self.shortcut == "projection":
            return self._convolve_inputs(inputs, filters, "shortcut", stride, training, size=1)
        # Put half of the channels of zeros before the other channels, and half of them after.
        sides = [[0, 0]] * 3 + [[num_added // 2, num_added - num_added // 2]]
        return tf.pad(inputs[:, ::stride, ::stride], sides)
