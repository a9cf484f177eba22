"""A Keras model as the trunk of `gin_configs/experiments/digits_keras.gin`.

from examples import keras_trunks
networks.KerasModel.build = @keras_trunks.separable
keras_trunks.separable.shape = (8, 8, 1)
"""

from collections.abc import Sequence

import tensorflow as tf


def separable(
    shape: Sequence[int], filters: Sequence[int] = (32, 64), units: int = 64, penalty: float = 1e-4
) -> tf.keras.Model:
    """Build separable convolutions with residuals and batch norm: [B, *shape] -> [B, units].

    Args:
      shape: the shape (H, W, C) of an image.
      filters: the number of filters of each block; each block halves height and width.
      units: the width of the output.
      penalty: the factor of the L2 penalty on the pointwise kernels.
    """
    keras = tf.keras
    inputs = keras.Input(shape)
    hidden = keras.layers.Conv2D(filters[0], 3, padding="same", name="stem")(inputs)
    for index, size in enumerate(filters):
        block = keras.layers.SeparableConv2D(
            size,
            3,
            strides=2,
            padding="same",
            use_bias=False,
            pointwise_regularizer=keras.regularizers.L2(penalty),
            name=f"block_{index}",
        )(hidden)
        block = keras.layers.BatchNormalization(momentum=0.9, name=f"norm_{index}")(block)
        skip = keras.layers.Conv2D(size, 1, strides=2, name=f"skip_{index}")(hidden)
        hidden = keras.layers.ReLU()(keras.layers.Add()([skip, block]))
    hidden = keras.layers.Flatten()(hidden)
    return keras.Model(inputs, keras.layers.Dense(units, activation="relu", name="out")(hidden))
