"""Batch normalisation within groups of rows, such as domains.

hidden = partitioned_norm.normalise(hidden, domains, "norm", training)    # [B, D], [B, N]
"""

from __future__ import annotations

from mtl.deferred import tf, tf1
from mtl.layers import functions
from mtl.step import replicas
from mtl.variables import freezing

# The moments of a few rows are noisy, and the variance of a single row is undefined. So a group
# with fewer than `_ENOUGH_ROWS` rows in a batch also uses the moments of all rows.
_ENOUGH_ROWS = 16


def normalise(
    inputs: tf.Tensor,
    groups: tf.Tensor,
    name: str,
    training: bool,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
) -> tf.Tensor:
    """Normalise each row by the moments of the row's group.

    A row x of group n becomes
    `gamma * gamma[n] * (x - mean[n]) / sqrt(variance[n] + epsilon) + beta + beta[n]` (X. Sheng et
    al., CIKM 2021, arXiv:2101.11427, section 4.2). Training uses the moments of the group's rows in
    the batch, over all synchronous replicas, with the unbiased variance. A group of r < 16 rows
    uses a mixture of the group's moments and the moments of all rows of the batch:
    `w m_group + (1 - w) m_all` with `w = (r - 1) / 15`. For a single row, whose variance is
    undefined, the weight w of the group's moments is 0.

    Evaluation, and training with frozen averages, use moving averages [N, D] of each group's
    moments in training. The first batch with a row of a group sets the group's averages; later,
    UPDATE_OPS change the averages as in `layers.batch_norm`. Batches without a row of a group do
    not change the group's averages; all other batches have the same weight. Batches with few rows
    of a group do not spoil the group's averages, because their moments come mostly from all rows of
    the batch. If batches were weighted by rows, averages of a rare group would lag for long.

    Args:
      inputs: [B, D].
      groups: the group of each row, one-hot [B, N].
      name: the scope of the variables.
      training: True normalises by the moments of the batch, False by the moving averages.
      momentum: the decay rate of the moving averages, in [0, 1].
      epsilon: a small number, which is added to the variance.

    Returns:
      Normalised inputs, [B, D], in the type of the inputs. Computations use float32.
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
            # The first batch sets the averages: a rare group would otherwise keep initial values.
            group_momentum = tf.where(_are_unmoved(*averages), 0.0, momentum)
            functions.update_averages(averages, moments, group_momentum)
        return tf.cast(outputs, inputs.dtype)


def _find_moments(
    values: tf.Tensor, members: tf.Tensor, averages: list[tf.Variable]
) -> list[tf.Tensor]:
    """Return mean and variance of each group, [N, D]; moving averages for groups without rows."""
    counts = _sum_over_rows(members, tf.ones_like(values[:, :1]))  # [N, 1]
    means = _sum_over_rows(members, values) / tf.maximum(counts, 1)
    deviations = values - tf.linalg.matmul(members, means)
    squares = _sum_over_rows(members, deviations**2)
    # The variance of a single row is undefined, but its `group_share` is 0.
    variances = squares / tf.maximum(counts - 1, 1)
    # The variance of all rows is the variance within groups plus the variance of group means.
    size = tf.reduce_sum(counts)
    mean = tf.reduce_sum(counts * means, axis=0) / size
    between_groups = tf.reduce_sum(counts * (means - mean) ** 2, axis=0)
    variance = (tf.reduce_sum(squares, axis=0) + between_groups) / tf.maximum(size - 1, 1)
    group_share = tf.clip_by_value((counts - 1) / (_ENOUGH_ROWS - 1), 0, 1)
    moments = [
        group_share * means + (1 - group_share) * mean,
        group_share * variances + (1 - group_share) * variance,
    ]
    return [tf.where(counts > 0, *pair) for pair in zip(moments, averages, strict=True)]


def _are_unmoved(mean: tf.Variable, variance: tf.Variable) -> tf.Tensor:
    """Return True for groups with initial averages 0 and 1, which have had no row, [N, 1]."""
    is_first = tf.equal(mean, 0) & tf.equal(variance, 1)
    return tf.reduce_all(is_first, axis=1, keepdims=True)


def _sum_over_rows(members: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Sum values over the rows of each group, [B, N] and [B, D] -> [N, D]."""
    sums = tf.linalg.matmul(members, values, transpose_a=True)
    if replicas.are_separate():
        return sums
    return replicas.average_over_replicas(sums) * replicas.count()
