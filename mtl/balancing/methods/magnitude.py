"""Methods that read losses and norms of gradients, and a method with random weights.

from mtl.balancing import methods
surgery.Combine.method = @methods.GradNorm()
methods.GradNorm.alpha = 1.5
"""

from __future__ import annotations

import dataclasses

import numpy as np

from mtl import checks
from mtl.balancing.methods import method
from mtl.deferred import tf

# The least weight of a task in GradNorm. Without this limit, a step of gradient descent could make
# a weight negative, and training would increase the task's loss.
_LEAST_WEIGHT = 1e-3


@checks.dataclass
class GradNorm(method.Method):
    """Learns weights w so that tasks whose loss falls slowly get larger gradients.

    Let `n_t = w_t |g_t|` be the norm of a task's weighted gradient, and n the mean of n_t over the
    tasks. Let r_t be the ratio of a task's loss to its first loss, divided by the mean of this
    ratio over the tasks. A step of gradient descent on the weights w lowers `sum_t |n_t - n
    r_t^alpha| / n`, with n and r_t held constant. After each step of gradient descent, the weights
    w are scaled to the sum T, the number of tasks.

    Z. Chen, V. Badrinarayanan, C.-Y. Lee, A. Rabinovich, "GradNorm: Gradient Normalization for
    Adaptive Loss Balancing in Deep Multitask Networks", 2017, arXiv:1711.02257. The paper does not
    divide the sum by the mean norm n, and updates the weights w by the network's optimizer, Adam.
    The division by the mean norm n makes the changes of the weights independent of the gradients'
    scale. The paper takes the gradients by the last shared layer; set `Combine.scopes` to do the
    same.

    Attributes:
      alpha: the exponent of the loss ratios r_t, at least 0; larger values favour tasks with slowly
        falling losses more. The paper uses exponents from 0.12 to 1.5.
      learning_rate: the learning rate of the weights w, above 0; 0.025 as in the paper.
    """

    alpha: checks.NotNegative = 1.5
    learning_rate: checks.Positive = 0.025

    def initial_state(self, num_tasks: int) -> dict[str, np.ndarray]:
        """Return weights [T] of 1, and first losses [T], each 0 until the task's first batch."""
        return {"task_weights": np.ones(num_tasks), "first_losses": np.zeros(num_tasks)}

    def __call__(self, tasks: method.Tasks) -> tuple[tf.Tensor, method.State]:
        """Return the tasks' weights [T] of this step, and the weights of the next step as state."""
        weights, first = tasks.state["task_weights"], tasks.state["first_losses"]
        first = tf.where(first > 0, first, tasks.losses)
        loss_ratios = tf.where(first > 0, tasks.losses / first, tf.ones_like(first))
        # A negative ratio, from a loss below 0, has no real power alpha.
        loss_ratios = tf.maximum(loss_ratios, 0.0)
        pull = tf.math.divide_no_nan(loss_ratios, tf.reduce_mean(loss_ratios)) ** self.alpha
        lengths = weights * tasks.norms
        mean = tf.reduce_mean(lengths)
        # `slope` is the derivative of `sum_t |n_t - n r_t^alpha| / n` by w, with n and r held
        # constant.
        slope = tf.sign(lengths - mean * pull) * tasks.norms / mean
        new_weights = tf.maximum(weights - self.learning_rate * slope, _LEAST_WEIGHT)
        new_weights *= tf.reduce_sum(weights) / tf.reduce_sum(new_weights)
        return weights, {"task_weights": new_weights, "first_losses": first}


@checks.dataclass
class ExcessMTL(method.Method):
    """Moves weight to the tasks whose excess risk has fallen least since their first steps.

    The excess risk is estimated by `E_t = g_t' H_t^-1 g_t` with `H_t = diag(sqrt(s_t))`, and s_t
    the sum of g_t^2 over the steps. E_t estimates how far the loss of task t can still fall,
    without the part of the loss that noise in the labels causes. Let e_t be the excess risk E_t
    divided by the first E_t of the task. Each step multiplies the weight of a task by
    `exp(step_size e_t)`, then scales all weights to the sum 1.

    Y. He, S. Zhou, G. Zhang, H. Yun, Y. Xu, B. Zeng, T. Chilimbi, H. Zhao, "Robust Multi-Task
    Learning with Excess Risks", ICML 2024, arXiv:2402.02009. No constant is added to the matrix
    H_t, so the scale of the gradients does not matter. The authors' code scales the weights to the
    sum T, the number of tasks. In the paper, the weights scale the losses. Here, as in all surgery,
    the weights scale only gradients of shared variables. The weight of a task that is absent from a
    batch does not change. The saved sums s_t of squared gradients are T times as large as the
    variables whose gradients are compared.

    Attributes:
      step_size: the step size of the logarithms of the weights, above 0; the default comes from the
        authors' code.
      warmup_steps: the number of steps, at least 1, over which the first excess risk of a task is
        averaged. During these first `warmup_steps` steps, the relative excess risk e_t is 1. The
        authors' code takes the mean of 1 step, and the paper the mean of three epochs.
    """

    preconditions = True

    step_size: checks.Positive = 0.01
    warmup_steps: checks.Count = 1

    def initial_state(self, num_tasks: int) -> dict[str, np.ndarray]:
        """Return logarithms of the weights, and sums and counts of first excess risks, [T] each."""
        zeros = np.zeros(num_tasks)
        logarithms = np.full(num_tasks, -np.log(num_tasks))
        return {"log_weights": logarithms, "first_risks": zeros, "first_steps": zeros}

    def __call__(self, tasks: method.Tasks) -> tuple[tf.Tensor, method.State]:
        """Return the tasks' weights [T], above 0, and the state.

        The weights of all tasks, in the batch or not, sum to 1.
        """
        risks = tf.linalg.diag_part(tasks.gramian)
        old, first, steps = (
            tasks.state[name] for name in ("log_weights", "first_risks", "first_steps")
        )
        warm = steps >= self.warmup_steps
        excess_risks = tf.where(warm, risks * steps / tf.where(warm, first, 1.0), 1.0)
        new = old + self.step_size * excess_risks
        # The sum of the present tasks' weights does not change, because absent tasks keep their
        # weights.
        new += tf.reduce_logsumexp(old) - tf.reduce_logsumexp(new)
        first += tf.where(warm, tf.zeros_like(risks), risks)
        steps += tf.cast(~warm, tf.float64)
        return tf.exp(new), {"log_weights": new, "first_risks": first, "first_steps": steps}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Random(method.Method):
    """`g = sum_t w_t g_t` with random weights `w = softmax(z)`, `z_t ~ N(0, 1)`.

    B. Lin, F. Ye, Y. Zhang, I. Tsang, "Reasonable Effectiveness of Random Weighting: A Litmus Test
    for Multi-Task Learning", 2021, arXiv:2111.10603. Random weights, drawn from the run's seed and
    the global step, are a baseline for other methods.
    """

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T], above 0 with sum 1."""
        draws = tf.random.stateless_normal(tf.shape(tasks.norms), tasks.seed, dtype=tf.float64)
        return tf.nn.softmax(draws)
