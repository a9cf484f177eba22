"""Layers as functions, with support for quantisation and 16-bit numbers.

from mtl import layers
hidden = layers.dense(inputs, 64, "hidden_0", activation=tf.nn.relu)      # [B, D] -> [B, 64]
"""

from mtl.layers.functions import (
    ACTIVATIONS,
    batch_norm,
    conv,
    dense,
    dropout,
    embedding,
    enlarge,
    gumbel_softmax,
    layer_norm,
    max_pool,
    replace_kernel,
)

__all__ = [
    "ACTIVATIONS",
    "batch_norm",
    "conv",
    "dense",
    "dropout",
    "embedding",
    "enlarge",
    "gumbel_softmax",
    "layer_norm",
    "max_pool",
    "replace_kernel",
]
