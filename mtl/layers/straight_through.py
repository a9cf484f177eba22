"""Straight-through gradients: the values of a function with the gradient of another function.

levels = straight_through.round_to_integers(7 * x)                       # rounds, gradient 1
y = straight_through.replace_gradient(tf.sign, lambda x: tf.clip_by_value(x, -1, 1))(x)
w = straight_through.let_through(w, mask)                          # gradient only if the mask is 1

Y. Bengio, N. Leonard, A. Courville, "Estimating or Propagating Gradients Through Stochastic Neurons
for Conditional Computation", 2013, arXiv:1308.3432. The usual form for the values of f with the
gradient of g is `g(x) + stop(f(x) - g(x))`, which equals f(x) except for rounding errors. The form
of this module, `stop(f(x)) + (g(x) - stop(g(x)))`, equals f(x) exactly.
"""

from __future__ import annotations

from collections.abc import Callable

from mtl.deferred import tf

Function = Callable[["tf.Tensor"], "tf.Tensor"]


def replace_gradient(forward: Function, backward: Function) -> Function:
    """Combine the values of a function with the gradient of another function.

    Args:
      forward: the function that computes the values.
      backward: the function whose gradient is used; both functions must return the same shape.

    Returns:
      A function of a tensor, with the value of `forward` and the gradient of `backward`.
    """

    def function(x: tf.Tensor) -> tf.Tensor:
        surrogate = backward(x)
        return tf.stop_gradient(forward(x)) + (surrogate - tf.stop_gradient(surrogate))

    return function


def _clip_to_one(x: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(x, -1.0, 1.0)


def round_to_integers(x: tf.Tensor) -> tf.Tensor:
    """Round to the nearest integers, halves to even, with a gradient of 1."""
    return replace_gradient(tf.round, tf.identity)(x)


def sign(x: tf.Tensor) -> tf.Tensor:
    """Return the sign of numbers, with a gradient of 1 if |x| <= 1, else 0.

    Args:
      x: the numbers, of any shape.

    Returns:
      1 if x >= 0, else -1, in the shape of x.
    """
    return replace_gradient(
        lambda x: tf.where(x >= 0, tf.ones_like(x), -tf.ones_like(x)), _clip_to_one
    )(x)


def ternary(x: tf.Tensor, threshold: tf.Tensor | float) -> tf.Tensor:
    """Return the sign of numbers, or 0 for small numbers, with a gradient of 1.

    Args:
      x: the numbers, of any shape.
      threshold: the largest |x| with the result 0; a shape that broadcasts to x.

    Returns:
      The signs -1, 0 or 1, in the shape of x.
    """
    return replace_gradient(
        lambda x: tf.where(tf.abs(x) > threshold, tf.sign(x), tf.zeros_like(x)), tf.identity
    )(x)


def round_uniformly(x: tf.Tensor, bits: int, bound: tf.Tensor | float) -> tf.Tensor:
    """Round numbers to the nearest of `2^bits - 1` evenly spaced values, including 0.

    The derivative of the result with respect to x is 1 if |x| is at most the bound, and 0
    otherwise. The argument `bound` gets no gradient.

    Args:
      x: the numbers, of any shape.
      bits: the number of bits, at least 2.
      bound: the largest value after rounding; the smallest value is -bound.

    Returns:
      The rounded numbers, in the shape of x.
    """
    levels = float(2 ** (bits - 1) - 1)
    bound = tf.stop_gradient(tf.maximum(tf.convert_to_tensor(bound, x.dtype), 1e-12))
    clipped = tf.clip_by_value(x, -bound, bound)
    return round_to_integers(clipped * (levels / bound)) * (bound / levels)


def let_through(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return x, with a gradient only for the entries of a mask.

    An optimizer with state, or with weight decay, may still change entries without a gradient. To
    train only some entries of a variable, use `freezing.Freezing.entries`.

    Args:
      x: the numbers, of any shape.
      mask: True or 1 for the entries of x that get a gradient; the shape of the mask broadcasts to
        x.

    Returns:
      The numbers x, in the same shape.
    """
    return tf.where(tf.cast(mask, tf.bool), x, tf.stop_gradient(x))
