"""Last layers of a `MultiClass` head, which compute logits from the tower.

from mtl.heads import classifiers
digit/heads.MultiClass.classifier = @classifiers.Cosine()
classifiers.Cosine.scale = 30.0
"""

from __future__ import annotations

import dataclasses
from typing import Any

from mtl import checks, layers
from mtl.deferred import tf, tf1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """A linear layer, `z = h W + b`, with variables `logits/kernel` and `logits/bias`."""

    has_bias = True

    def __call__(self, tower: tf.Tensor, size: int, initial_bias: Any) -> tf.Tensor:
        """Compute logits: [B, H] -> [B, size]."""
        initializer = tf1.constant_initializer(initial_bias)
        return layers.dense(tower, size, "logits", bias_initializer=initializer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaled(Linear):
    """A linear layer with a learnt scale of each class: `z_c = (1 + a_c) (h W + b)_c`.

    Learnable weight scaling of Kang et al., "Decoupling Representation and Classifier for
    Long-Tailed Recognition", 2020, arXiv:1910.09217. In the paper, the weights W and the bias b
    come from an earlier training and are frozen. As in the code of the paper's authors, the scale
    of a class also multiplies its bias. The variable `logits/scale_offset` holds the offsets a_c,
    which are 0 at first, so a penalty on the variable pulls all scales to 1.
    """

    def __call__(self, tower: tf.Tensor, size: int, initial_bias: Any) -> tf.Tensor:
        """Compute logits: [B, H] -> [B, size]."""
        logits = super().__call__(tower, size, initial_bias)
        with tf1.variable_scope("logits"):
            offset = tf1.get_variable("scale_offset", [size], initializer=tf1.zeros_initializer())
        return (1 + offset) * logits


@checks.dataclass
class Cosine:
    """A cosine classifier, `z_c = scale cos(h, W_c)`, with the variable `logits/kernel`.

    In a linear layer, frequent classes tend to get long weight vectors. The cosine ignores the
    length of weight vectors.

    Attributes:
      scale: the factor of the cosine, above 0; 30 is the choice of Cao et al., 2019,
        arXiv:1906.07413.
    """

    scale: checks.Positive = 30.0

    has_bias = False

    def __call__(self, tower: tf.Tensor, size: int, initial_bias: Any) -> tf.Tensor:
        """Compute logits: [B, H] -> [B, size]."""
        del initial_bias
        with tf1.variable_scope("logits"):
            kernel = tf1.get_variable("kernel", [tower.shape[-1], size], tower.dtype)
        directions = tf.math.l2_normalize(kernel, axis=0)
        return self.scale * tf.linalg.matmul(tf.math.l2_normalize(tower, axis=-1), directions)
