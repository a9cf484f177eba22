"""Methods that project conflicting gradients onto normal planes or onto the dual cone.

from mtl.balancing import methods
surgery.Combine.method = @methods.PCGrad()
surgery.Combine.method = @methods.UPGrad()
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import numpy as np

from mtl import checks
from mtl.balancing.methods import method, solvers
from mtl.deferred import tf


def _random_orders(tasks: method.Tasks) -> tf.Tensor:
    """Draw T random orders of the T tasks; each row of the result [T, T] is an order."""
    return tf.argsort(tf.random.stateless_uniform(tf.shape(tasks.gramian), tasks.seed))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PCGrad(method.Method):
    """`g = sum_i g_i'`, with g_i' the gradient g_i without its components against other gradients.

    For each task i, g_i' starts as g_i; for each other task j in random order, if the inner product
    `<g_i', g_j>` is negative, then `g_i' <- g_i' - (<g_i', g_j> / |g_j|^2) g_j`.

    T. Yu, S. Kumar, A. Gupta, S. Levine, K. Hausman, C. Finn, "Gradient Surgery for Multi-Task
    Learning", 2020, arXiv:2001.06782. For each task, each step draws a new order of the other
    tasks, from the run's seed and the global step.
    """

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T], at least 1."""
        cosines, orders = tasks.cosines, _random_orders(tasks)
        identity = tf.eye(tf.size(tasks.losses), dtype=tf.float64)

        def project(position, combinations):  # Row i of [T, T] has the weights of g_i'.
            other = orders[:, position]
            # Row i has a 1 at the task j whose gradient g_j is compared with g_i'. If j is i, the
            # row is 0, because a gradient is not compared with itself.
            onto = tf.one_hot(other, tf.shape(orders)[1], dtype=tf.float64) * (1 - identity)
            product = tf.reduce_sum((combinations @ cosines) * onto, 1, keepdims=True)
            return position + 1, combinations - tf.minimum(product, 0) * onto

        combinations = solvers.repeat(tf.size(tasks.losses), project, tf.linalg.diag(tasks.norms))
        return tf.reduce_sum(combinations, 0) / tasks.norms


@checks.dataclass
class GradVac(method.Method):
    """`g = sum_i g_i'`: raises the cosine of two gradients if it is below its running average.

    For each task i, g_i' starts as g_i; for each other task j in random order, let c be the cosine
    of g_i' and g_j, and v the running average of this cosine over the steps. If the cosine c is
    below its average v, the assignment `g_i' <- g_i' + |g_i'| (v sqrt(1 - c^2) - c sqrt(1 - v^2)) /
    (|g_j| sqrt(1 - v^2)) g_j` raises the cosine to v. The average cosine changes by `v <- (1 -
    rate) v + rate c`. If g_i' and g_j are exactly opposite, g_i' becomes 0, as in the limit of a
    cosine c of -1; if the average v is also -1, g_i' does not change.

    Z. Wang, Y. Tsvetkov, O. Firat, Y. Cao, "Gradient Vaccine: Investigating and Improving
    Multi-task Optimization in Massively Multilingual Models", 2020, arXiv:2010.05874. Here, each
    pair of tasks has a single average cosine, over all variables. The paper has its best results
    with a separate average cosine for each layer.

    Attributes:
      rate: the rate of the running averages, in (0, 1]; 0.01 as the paper's beta.
    """

    rate: Annotated[float, checks.In("(0, 1]")] = 0.01

    def initial_state(self, num_tasks: int) -> dict[str, np.ndarray]:
        """Return zeros, the initial average cosines [T, T]."""
        return {"average_cosines": np.zeros([num_tasks, num_tasks])}

    def __call__(self, tasks: method.Tasks) -> tuple[tf.Tensor, method.State]:
        """Return the tasks' weights [T], at least 1, and the new averages."""
        cosines, orders = tasks.cosines, _random_orders(tasks)
        size = tf.size(tasks.losses)
        off_diagonal = 1 - tf.eye(size, dtype=tf.float64)

        def turn(position, combinations, average):
            onto = tf.one_hot(orders[:, position], size, dtype=tf.float64) * off_diagonal
            products = combinations @ cosines
            length = tf.reduce_sum(products * combinations, 1, keepdims=True)
            length = tf.sqrt(tf.maximum(length, 0.0))
            present_cosines = tf.clip_by_value(tf.math.divide_no_nan(products, length), -1.0, 1.0)
            # An average of 1 would lead to a division by 0.
            usual = tf.minimum(average, 1 - 1e-9)
            turns = (
                usual * tf.sqrt(1 - present_cosines**2) / tf.sqrt(1 - usual**2) - present_cosines
            )
            # If cosine and average are -1, `turns` is 0 / 0, and the gradient must not change.
            combinations += (
                onto * length * tf.where(present_cosines < usual, turns, tf.zeros_like(turns))
            )
            return (
                position + 1,
                combinations,
                average + self.rate * onto * (present_cosines - average),
            )

        start = (tf.linalg.diag(tasks.norms), tasks.state["average_cosines"])
        combinations, average = solvers.repeat(size, turn, *start)
        return tf.reduce_sum(combinations, 0) / tasks.norms, {"average_cosines": average}


@dataclasses.dataclass(frozen=True, kw_only=True)
class UPGrad(method.Method):
    """`g = mean_i P(g_i)`, with P the projection onto vectors that conflict with no task.

    Vectors that conflict with no task form a cone, so the mean g of the projections conflicts with
    no task. The projection is `P(g_i) = sum_j v_j g_j`, where v minimises `v'Gv` over `v >= e_i`,
    for the Gramian G and the unit vector e_i.

    P. Quinton, V. Rey, "Jacobian Descent for Multi-Objective Optimization", 2024, arXiv:2406.16232.
    The projections are computed for unit gradients, because the length of P(g_i) is proportional to
    the length of g_i. For unit gradients, rounding errors stay small even if the norms of the
    gradients are small or have large ratios.
    """

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T], at least 1 / T."""
        projections = tf.linalg.diag(tasks.norms) @ _in_dual_cone(tasks.cosines)
        return tf.reduce_mean(projections, 0) / tasks.norms


@dataclasses.dataclass(frozen=True, kw_only=True)
class DualProj(method.Method):
    """`g = P(mean_i g_i)`, with P the projection onto vectors that conflict with no task.

    D. Lopez-Paz, M. Ranzato, "Gradient Episodic Memory for Continual Learning", 2017,
    arXiv:1706.08840, in the form of Quinton and Rey, 2024, arXiv:2406.16232.
    """

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T], at least 1 / T."""
        share = tasks.norms / tf.reduce_max(tasks.norms)
        multipliers = solvers.nonnegative_minimum(
            tasks.cosines, -tf.linalg.matvec(tasks.cosines, share)
        )
        return (share + multipliers) / share / tf.cast(tf.size(share), tf.float64)


def _in_dual_cone(cosines: tf.Tensor) -> tf.Tensor:
    """Project unit gradients onto the dual cone; row i of [T, T] has the weights of P(g_i)."""
    size = tf.shape(cosines)[0]
    quadratic = tf.tile(cosines[tf.newaxis], [size, 1, 1])
    return tf.eye(size, dtype=tf.float64) + solvers.nonnegative_minimum(quadratic, -cosines)
