"""Models of Keras 2, made in every way that Keras has."""

import tensorflow as tf


def _layers(dropout=0.1):
    keras = tf.keras
    # Keras draws without the seed of the graph.
    draw = keras.initializers.GlorotUniform(seed=3)
    penalty = keras.regularizers.L2(0.1)
    return [
        keras.layers.Conv2D(4, 3, name="conv", kernel_initializer=draw, kernel_regularizer=penalty),
        keras.layers.BatchNormalization(name="norm", momentum=0.8),
        keras.layers.Dropout(dropout),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(5, activation="relu", name="out", kernel_initializer=draw),
    ]


def functional(trainable: bool = True, dropout: float = 0.1):
    """Return a functional model of images [8, 8, 3]."""
    inputs = hidden = tf.keras.Input([8, 8, 3])
    for layer in _layers(dropout):
        hidden = layer(hidden)
    model = tf.keras.Model(inputs, hidden)
    model.trainable = trainable
    return model


def sequential():
    """Return a sequential model that does not know the shape of its inputs."""
    return tf.keras.Sequential(_layers())


class _Subclass(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = _layers()

    def call(self, inputs, training=None):
        for part in self.parts:
            inputs = part(inputs, training=training) if "norm" in part.name else part(inputs)
        return inputs


def subclass():
    """Return a model that defines `call`."""
    return _Subclass()
