"""Transforms of the gradient, between clipping and the optimizer.

from mtl.optimization import transforms
update.Update.transforms = [@transforms.Centralization(), @transforms.Noise()]     # in this order

Parts of `mtl.optimization.clipping` may stand among them: all have one protocol, `types.Clipping`.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from mtl import checks, layers, patterns, types
from mtl.optimization import gradients as gradients_lib

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Centralization:
    """`g <- g - mean(g)` for the gradient of each unit, the mean over all axes but the last.

    H. Yong et al., "Gradient Centralization: A New Optimization Technique for Deep Neural
    Networks", 2020, arXiv:2004.01461. The sum of the weights of a unit stays what it was. Biases,
    scales and looked-up tables, which have no such units, are left alone.
    """

    def __call__(
        self,
        gradients: Sequence[types.Gradient],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> list[types.Gradient]:
        """N gradients (rows merged), N variables, their global norm -> N gradients."""
        del variables, norm
        return list(map(_centered, gradients))


def _centered(gradient: types.Gradient) -> types.Gradient:
    if isinstance(gradient, tf.IndexedSlices) or gradient.shape.rank < 2:
        return gradient
    axes = list(range(gradient.shape.rank - 1))
    return gradient - tf.reduce_mean(gradient, axes, keepdims=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """Adds normal noise that fades: `g <- g + N(0, scale / (1 + t) ^ decay)`, t the global step.

    A. Neelakantan et al., "Adding Gradient Noise Improves Learning for Very Deep Networks", 2015,
    arXiv:1511.06807. Rows of looked-up tables that are not in the batch get none. A draw depends on
    the run's seed, the variable and the step alone, so a resumed run draws what it would have.

    Attributes:
      scale: the variance at step 0, above 0; the paper tries 0.01, 0.3 and 1.
      decay: above 0, as the paper's gamma.
    """

    scale: float = 0.01
    decay: float = 0.55

    def __post_init__(self):
        checks.positive("Noise.scale", self.scale)
        checks.positive("Noise.decay", self.decay)

    def __call__(
        self,
        gradients: Sequence[types.Gradient],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> list[types.Gradient]:
        """N gradients (rows merged), N variables, their global norm -> N gradients."""
        del norm
        step = tf.cast(tf1.train.get_global_step(), tf.float32)
        deviation = tf.sqrt(self.scale / tf.pow(1 + step, self.decay))

        def noisy(values: tf.Tensor, name: str) -> tf.Tensor:
            seed = layers.step_seed(f"noise/{name}")
            draw = tf.random.stateless_normal(tf.shape(values), seed, dtype=values.dtype)
            return values + tf.cast(deviation, values.dtype) * draw

        return [
            gradients_lib.transform(gradient, lambda values, name=name: noisy(values, name))
            for gradient, name in zip(gradients, map(patterns.part_name, variables), strict=True)
        ]
