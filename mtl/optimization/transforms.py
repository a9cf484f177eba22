"""Transforms of the gradient, which are applied between clipping and the optimizer.

from mtl.optimization import transforms
update.Update.transforms = [@transforms.Centralization(), @transforms.Noise()]     # in this order

The list may also contain clippings, because transforms and clippings follow the same protocol,
`types.Clipping`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.step import draws
from mtl.step import gradients as gradients_lib
from mtl.tf_internals import shards
from mtl.variables import freezing, patterns, pruned


@dataclasses.dataclass(frozen=True, kw_only=True)
class Centralization:
    """`g <- g - mean(g)` for each unit of a layer; the mean is over all axes except the last.

    H. Yong et al., "Gradient Centralization: A New Optimization Technique for Deep Neural
    Networks", 2020, arXiv:2004.01461. With an optimizer whose step is proportional to the gradient,
    the sum of a unit's weights does not change. If only some entries are trained
    (`Freezing.entries`, `Pruning`), the mean of the gradient covers only these entries. Gradients
    with a single axis, such as those of biases and scales, and gradients of embedding tables do not
    change.
    """

    def __call__(
        self,
        gradients: Sequence[types.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> list[types.Connected]:
        """Transform the gradients of N variables; see `types.Clipping`."""
        del norm
        return list(map(_center_gradient, gradients, variables))


def _center_gradient(gradient: types.Connected, variable: tf.Variable) -> types.Connected:
    if isinstance(gradient, tf.IndexedSlices) or gradient.shape.rank < 2:
        return gradient
    axes = list(range(gradient.shape.rank - 1))
    entries, mask = freezing.moving_entries(variable), pruned.kept_entries(variable)
    if mask is not None:
        uncut_entries = tf.broadcast_to(mask > 0, gradient.shape)
        entries = uncut_entries if entries is None else entries & uncut_entries
    if entries is None:
        return gradient - tf.reduce_mean(gradient, axes, keepdims=True)
    count = tf.reduce_sum(tf.cast(entries, gradient.dtype), axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(gradient, axes, keepdims=True), count)
    # Frozen or pruned entries have the gradient 0, which does not change.
    return tf.where(entries, gradient - mean, gradient)


@checks.dataclass
class Noise:
    """Adds decaying normal noise: `g <- g + N(0, scale / (1 + t) ^ decay)`, with t the global step.

    A. Neelakantan et al., "Adding Gradient Noise Improves Learning for Very Deep Networks", 2015,
    arXiv:1511.06807. The gradients of table rows that are not in the batch get no noise. The noise
    depends on the run's seed, the variable and the step; for a table, also on the set of rows in
    the batch. Therefore, a resumed run repeats its noise. A table gets the same noise with and
    without shards.

    Attributes:
      scale: the variance of the noise at step 0, above 0; the paper tries 0.01, 0.3 and 1.
      decay: the exponent in the decay of the variance, above 0; the paper's gamma.
    """

    scale: checks.Positive = 0.01
    decay: checks.Positive = 0.55

    def __call__(
        self,
        gradients: Sequence[types.Connected],
        variables: Sequence[tf.Variable],
        norm: tf.Tensor,
    ) -> list[types.Connected]:
        """Transform the gradients of N variables; see `types.Clipping`."""
        del norm
        step = tf.cast(tf1.train.get_global_step(), tf.float32)
        # `scale` is a variance, as in the paper. The draws have a standard deviation of 1.
        deviation = tf.sqrt(self.scale / tf.pow(1 + step, self.decay))
        noisy, names = list(gradients), list(map(patterns.variable_name, variables))
        for name in dict.fromkeys(names):
            # All shards of a table have the same name.
            indices = [index for index, other in enumerate(names) if other == name]
            parts, shard_list = [gradients[i] for i in indices], [variables[i] for i in indices]
            noise = _draw_noise(name, parts, shard_list)
            for index, part, draw in zip(indices, parts, noise, strict=True):
                noisy[index] = _add_values(part, tf.cast(deviation, draw.dtype) * draw)
        return noisy


def _add_values(gradient: types.Connected, values: tf.Tensor) -> types.Connected:
    return gradients_lib.transform_gradient(gradient, lambda entries: entries + values)


def _draw_noise(
    name: str, gradients: Sequence[types.Connected], variables: Sequence[tf.Variable]
) -> list[tf.Tensor]:
    """Draw normal numbers for the gradients of a variable, or of all shards of a table."""
    seed = draws.make_step_seed(f"noise/{name}")
    values = gradients_lib.list_values(gradients)
    whole = shards.whole_shape(variables[0])
    firsts = [
        shard.first if (shard := shards.find_shard(variable)) else 0 for variable in variables
    ]
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        pairs = zip(gradients, firsts, strict=True)
        rows = tf.concat([gradient.indices + first for gradient, first in pairs], 0)
        # One draw covers the rows of all shards, so that the noise does not depend on the shards.
        shape = tf.concat([tf.shape(rows), whole[1:]], 0)
        draw = tf.random.stateless_normal(shape, seed, dtype=values[0].dtype)
        # The argsort of an argsort has the rank of each row number.
        places = tf.argsort(tf.argsort(rows))
        return tf.split(tf.gather(draw, places), [tf.shape(value)[0] for value in values])
    draw = tf.random.stateless_normal(whole, seed, dtype=values[0].dtype)
    return [
        tf.gather(draw, gradient.indices + first)
        if isinstance(gradient, tf.IndexedSlices)
        else draw[first : first + variable.shape[0]]
        if shards.find_shard(variable)
        else draw
        for gradient, variable, first in zip(gradients, variables, firsts, strict=True)
    ]
