"""Discrete representations: learned codes as in VQ-VAE, or categorical variables.

networks.SharedBottom.trunk = @networks.Codes()
networks.Codes.trunk = @networks.MLP()
networks.Codes.num_codes = 64
networks.Codes.num_groups = 8

networks.SharedBottom.trunk = @networks.Categories()
networks.Categories.trunk = @networks.MLP()
networks.Categories.temperature = @schedules.Exponential()
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Annotated, Any

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.layers import precision
from mtl.networks import trunk as trunk_lib
from mtl.step import outlets

_CODEBOOK, _COMMITMENT = "codebook", "commitment"


@checks.dataclass
class Codes:
    """Vector quantisation as in VQ-VAE: replaces a trunk's output by the nearest code.

    The output is the code `q = e[k]`, `k = argmin_k |z - e[k]|`, for `z = trunk(x)`. The gradient
    with respect to the code q is passed unchanged to the trunk's output z. A. van den Oord, O.
    Vinyals, K. Kavukcuoglu, "Neural Discrete Representation Learning" (VQ-VAE), 2017,
    arXiv:1711.00937. There are two auxiliary losses: "codebook", `|stop(z) - e[k]|^2`, trains only
    the codes, and "commitment", `|z - stop(e[k])|^2`, trains only the trunk. Each of the two
    auxiliary losses is a sum over the values of a vector. Balancing treats auxiliary losses like
    the losses of tasks. As in the paper, gradients train the codes; moving averages would differ
    between slices and replicas.

    The vector z is split into groups of equal size, and each group has separate codes, so q has
    `num_codes ^ num_groups` possible values. A code that is never the nearest code gets no gradient
    and remains unused. The monitor `codes/<scope>/used` shows the share of codes that a batch uses,
    and `codes/<scope>/perplexity` the exponential of the entropy of codes, as means over the
    groups.

    Attributes:
      trunk: computes the vector z, which codes replace; variables in `coded`.
      num_codes: the number of codes of each group, at least 2. The variable `codes`, [num_groups
        num_codes, H / num_groups], holds the codes of all groups.
      num_groups: the number of groups, which must divide the width of the trunk.
      commitment: the weight of the commitment loss, at least 0; 0.25 in the paper.
      shows_codes: True adds the indices of the codes to the predictions, as `<scope>/code_id` [B,
        num_groups].
    """

    trunk: Annotated[trunk_lib.Trunk, checks.Part("networks.MLP", arguments=2)]
    num_codes: Annotated[int, checks.AtLeast(2)] = 64
    num_groups: checks.Count = 1
    commitment: checks.NotNegative = 0.25
    shows_codes: bool = False

    @property
    def emitted_losses(self) -> Mapping[str, float]:
        """The weights of the auxiliary losses of the codes and the trunk, {name: weight}."""
        return {_CODEBOOK: 1.0, _COMMITMENT: self.commitment}

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, and replace its output by codes: {column: [B, ...]} -> [B, H]."""
        with tf1.variable_scope("coded"):
            groups = self._cut(self.trunk(inputs, training))  # [B, G, D]
        # The output depends on `network_groups`; losses use `loss_groups`, with 32 bits.
        network_groups, loss_groups = precision.share_output(groups)
        bound = 1 / self.num_codes
        shape = [self.num_groups * self.num_codes, groups.shape[2]]
        initializer = tf1.random_uniform_initializer(-bound, bound)
        codes = tf1.get_variable("codes", shape, tf.float32, initializer)
        ids = find_nearest(loss_groups, codes, self.num_groups)
        if training:
            _monitor_codes(ids, self.num_codes)
        else:
            with outlets.show_predictions(self.shows_codes):
                outlets.add_prediction("code_id", ids)
        # One table holds the codes of all groups; the codes of group g begin at row g num_codes.
        first = self.num_codes * tf.range(self.num_groups, dtype=ids.dtype)
        nearest_codes = tf.gather(codes, ids + first)
        _add_distance(
            _CODEBOOK, tf.stop_gradient(loss_groups), precision.share_output(nearest_codes)[1]
        )
        _add_distance(_COMMITMENT, loss_groups, tf.stop_gradient(nearest_codes))
        # Return exactly the code, with the gradient of the trunk's output (straight-through).
        value = tf.stop_gradient(tf.cast(nearest_codes, network_groups.dtype))
        outputs = value + (network_groups - tf.stop_gradient(network_groups))
        return tf.reshape(outputs, [-1, math.prod(groups.shape[1:])])

    def _cut(self, vectors: tf.Tensor) -> tf.Tensor:
        """Split vectors into groups, [B, H] -> [B, G, H / G]."""
        size, rest = divmod(vectors.shape[1], self.num_groups)
        rule = f"divide the {vectors.shape[1]} values of the trunk"
        checks.require(rest == 0, "Codes.num_groups", rule, self.num_groups)
        cut = tf.reshape(vectors, [-1, self.num_groups, size])
        return tf.ensure_shape(cut, [vectors.shape[0], self.num_groups, size])


@checks.dataclass
class Categories:
    """Categorical latent variables on a trunk, drawn by Gumbel-softmax in training.

    The output is the concatenation of one-hot vectors c,
    `c[i] ~ Categorical(softmax(W[i] trunk(x) + b[i]))`. Training draws each one-hot vector c by
    `layers.gumbel_softmax`, with straight-through gradients. Evaluation and prediction use the most
    likely class. E. Jang, S. Gu, B. Poole, "Categorical Reparameterization with Gumbel-Softmax",
    2017, arXiv:1611.01144.

    Attributes:
      trunk: computes the vector that the linear layer with W and b reads; variables in
        `categorised`. The variables of the linear layer, W and b, are in `logits`.
      num_variables: the number of categorical variables c, at least 1.
      num_classes: the number of classes of each variable, at least 2.
      temperature: a number above 0, or a schedule that is clipped to at least 0.01. At temperatures
        near 0, the softmax is close to one-hot, but gradients are large.
    """

    trunk: Annotated[trunk_lib.Trunk, checks.Part("networks.MLP", arguments=2)]
    num_variables: checks.Count = 8
    num_classes: Annotated[int, checks.AtLeast(2)] = 8
    temperature: Annotated[
        float | types.Schedule, checks.Scheduled(checks.positive, "schedules.Exponential")
    ] = 1.0

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Draw categorical variables, {column: [B, ...]} -> [B, num_variables num_classes]."""
        with tf1.variable_scope("categorised"):
            hidden = self.trunk(inputs, training)
        logits = layers.dense(hidden, self.num_variables * self.num_classes, "logits")
        logits_by_variable = tf.reshape(logits, [-1, self.num_variables, self.num_classes])
        logits_by_variable.set_shape([logits.shape[0], self.num_variables, self.num_classes])
        draws = layers.gumbel_softmax(
            logits_by_variable, self._compute_temperature(training), "draw", training
        )
        return tf.reshape(draws, tf.shape(logits))

    def _compute_temperature(self, training: bool) -> Any:
        if not callable(self.temperature):
            return self.temperature
        if not training:
            return 1.0  # The temperature does not change the most likely class.
        step = tf1.train.get_global_step().read_value()
        return tf.maximum(self.temperature(step), 0.01)


def find_nearest(vectors: tf.Tensor, codes: tf.Tensor, num_groups: int) -> tf.Tensor:
    """Find the nearest code of each group of a vector.

    Args:
      vectors: the G parts of each vector, [B, G, D].
      codes: K codes for each of G groups, [G K, D], in the order of the groups.
      num_groups: G, the number of groups of a vector.

    Returns:
      The index of the nearest code among the codes of the same group, int64 [B, G].
    """
    groups = tf.transpose(tf.stop_gradient(vectors), [1, 0, 2])  # [G, B, D]
    codes_by_group = tf.reshape(
        tf.stop_gradient(codes), [num_groups, -1, codes.shape[1]]
    )  # [G, K, D]
    # Omit the squares of the vectors, which are equal for all codes.
    products = tf.linalg.matmul(groups, codes_by_group, transpose_b=True)
    distances = tf.reduce_sum(tf.square(codes_by_group), 2)[:, tf.newaxis] - 2 * products
    return tf.transpose(tf.argmin(distances, 2))


def _add_distance(name: str, first: tf.Tensor, second: tf.Tensor) -> None:
    outlets.add_loss(name, lambda: tf.reduce_sum(tf.square(first - second), [1, 2]))


def _monitor_codes(ids: tf.Tensor, num_codes: int) -> None:
    """Add monitors of the codes that a batch uses."""
    prefix = tf1.get_variable_scope().name.partition("/")[2]
    names = [f"codes/{prefix}/used", f"codes/{prefix}/perplexity"]
    outlets.add_scalars_where_due(names, functools.partial(_describe, ids, num_codes))


def _describe(ids: tf.Tensor, num_codes: int) -> tf.Tensor:
    """Compute share and perplexity of used codes, means over groups: [B, G] -> [2]."""
    shares = tf.reduce_mean(tf.one_hot(ids, num_codes), 0)  # [G, K]
    share_used = tf.reduce_mean(tf.cast(shares > 0, tf.float32))
    entropy = -tf.reduce_sum(tf.math.xlogy(shares, shares), 1)
    return tf.stack([share_used, tf.reduce_mean(tf.exp(entropy))])
