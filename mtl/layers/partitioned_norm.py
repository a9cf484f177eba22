"""Batch normalisation by groups of rows, such as domains.

hidden = partitioned_norm.normalise(hidden, domains, "norm", training)    # [B, D], [B, N]
"""

import tensorflow as tf

from mtl.layers import functions
from mtl.step import replicas
from mtl.variables import freezing

tf1 = tf.compat.v1


def normalise(
    inputs: tf.Tensor,
    groups: tf.Tensor,
    name: str,
    training: bool,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
) -> tf.Tensor:
    """Normalise each row by the moments of its group: [B, D] and one-hot [B, N] -> [B, D].

    `gamma * gamma[n] * (x - mean[n]) / sqrt(variance[n] + epsilon) + beta + beta[n]` (X. Sheng et
    al., CIKM 2021, arXiv:2101.11427, section 4.2). In training the moments are those of the group's
    rows in the batch, of all replicas that train in step; otherwise, and where they are frozen, the
    moving averages [N, D], which UPDATE_OPS move as those of `layers.batch_norm`. A group without a
    row in the batch keeps its averages.
    """
    with tf1.variable_scope(name):
        width, count = inputs.shape[-1], groups.shape[-1]
        zeros, ones = tf1.zeros_initializer(), tf1.ones_initializer()
        gamma = tf1.get_variable("gamma", [width], tf.float32, ones)
        beta = tf1.get_variable("beta", [width], tf.float32, zeros)
        gammas = tf1.get_variable("group_gamma", [count, width], tf.float32, ones)
        betas = tf1.get_variable("group_beta", [count, width], tf.float32, zeros)
        averages = [
            functions.create_average("moving_mean", [count, width], zeros),
            functions.create_average("moving_variance", [count, width], ones),
        ]
        values, members = tf.cast(inputs, tf.float32), tf.cast(groups, tf.float32)
        moving = freezing.averages_move(averages[0]) if training else False
        moments = averages if moving is False else _find_moments(values, members, averages)
        if isinstance(moving, tf.Tensor):
            moments = [tf.where(moving, *pair) for pair in zip(moments, averages, strict=True)]
        mean, variance = (tf.linalg.matmul(members, moment) for moment in moments)
        scale = (gamma * tf.linalg.matmul(members, gammas)) * tf.math.rsqrt(variance + epsilon)
        outputs = (values - mean) * scale + beta + tf.linalg.matmul(members, betas)
        if moving is not False:
            functions.update_averages(averages, moments, momentum)
        return tf.cast(outputs, inputs.dtype)


def _find_moments(
    values: tf.Tensor, members: tf.Tensor, averages: list[tf.Variable]
) -> list[tf.Tensor]:
    """Return mean and variance of each group, [N, D]; the averages where a group has no row."""
    counts = replicas.average_over_replicas(tf.reduce_sum(members, axis=0))[:, tf.newaxis]
    is_there = counts > 0
    safe = tf.where(is_there, counts, tf.ones_like(counts))
    sums = tf.linalg.matmul(members, values, transpose_a=True)
    mean = replicas.average_over_replicas(sums) / safe
    centred = (values - tf.linalg.matmul(members, mean)) ** 2
    squares = tf.linalg.matmul(members, centred, transpose_a=True)
    variance = replicas.average_over_replicas(squares) / safe
    found = zip((mean, variance), averages, strict=True)
    return [tf.where(is_there, moment, average) for moment, average in found]
