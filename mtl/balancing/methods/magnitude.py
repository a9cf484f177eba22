"""Methods that read losses and the lengths of gradients, and a method with random weights.

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

# A step of descent may pass 0: a weight below 0 would drive the task's loss up.
_LEAST_WEIGHT = 1e-3


@checks.dataclass
class GradNorm(method.Method):
    """Learns weights w that give slow tasks longer gradients.

    Let `n_t = w_t |g_t|`, with the mean n. Let r_t be the share of a task's first loss that is
    left, relative to the mean of all tasks. A step of gradient descent lowers
    `sum_t |n_t - n r_t^alpha| / n` with n and r held fixed; then w is scaled to sum T.

    Z. Chen, V. Badrinarayanan, C.-Y. Lee, A. Rabinovich, "GradNorm: Gradient Normalization for
    Adaptive Loss Balancing in Deep Multitask Networks", 2017, arXiv:1711.02257. The paper does not
    divide by n, and moves w by the network's optimizer, Adam. The division makes plain descent
    independent of the gradients' scale. The paper compares the last shared layer: set
    `Combine.scopes`.

    Attributes:
      alpha: at least 0; larger values favour slow tasks more. The paper takes 0.12 to 1.5.
      learning_rate: the learning rate of w for each decision, above 0; 0.025 is the paper's choice.
    """

    alpha: checks.NotNegative = 1.5
    learning_rate: checks.Positive = 0.025

    def initial_state(self, num_tasks: int) -> dict[str, np.ndarray]:
        """Return the weights [T], and the first losses [T], 0 before a task's first batch."""
        return {"task_weights": np.ones(num_tasks), "first_losses": np.zeros(num_tasks)}

    def __call__(self, tasks: method.Tasks) -> tuple[tf.Tensor, method.State]:
        """Return the weights [T] of this step, and the weights of the next step as state."""
        weights, first = tasks.state["task_weights"], tasks.state["first_losses"]
        first = tf.where(first > 0, first, tasks.losses)
        loss_ratios = tf.where(first > 0, tasks.losses / first, tf.ones_like(first))
        # Some losses can be below 0, and then have no real power alpha.
        loss_ratios = tf.maximum(loss_ratios, 0.0)
        pull = tf.math.divide_no_nan(loss_ratios, tf.reduce_mean(loss_ratios)) ** self.alpha
        lengths = weights * tasks.norms
        mean = tf.reduce_mean(lengths)
        # The derivative of the sum by w, with n and r held fixed.
        slope = tf.sign(lengths - mean * pull) * tasks.norms / mean
        new_weights = tf.maximum(weights - self.learning_rate * slope, _LEAST_WEIGHT)
        new_weights *= tf.reduce_sum(weights) / tf.reduce_sum(new_weights)
        return weights, {"task_weights": new_weights, "first_losses": first}


@checks.dataclass
class ExcessMTL(method.Method):
    """Moves weight to the tasks with the largest share of their excess risk left.

    `E_t = g_t' H_t^-1 g_t` with `H_t = diag(sqrt(s_t))`, s_t the sum of g_t^2 over the steps. E_t
    estimates how far the loss can still fall, without the part that noise in the labels causes.
    Then `w_t <- w_t exp(step_size e_t)`, scaled to sum 1; e_t is the share of the first E_t that is
    left.

    Y. He, S. Zhou, G. Zhang, H. Yun, Y. Xu, B. Zeng, T. Chilimbi, H. Zhao, "Robust Multi-Task
    Learning with Excess Risks", ICML 2024, arXiv:2402.02009. The code adds no constant to H, so the
    scale of the gradients does not matter. The authors' code scales w to sum T. In the paper, w
    scales the losses. Here, as in all surgery, a head gets the unscaled gradient of its loss. A
    task that is absent from a batch keeps its weight. The state has T times the size of the
    compared variables.

    Attributes:
      step_size: above 0; the default comes from the authors' code.
      warmup_steps: at least 1; the first excess risk of a task is the mean over these steps, and
        weights are equal until then. 1 as in the authors' code; the paper takes three epochs.
    """

    preconditions = True

    step_size: checks.Positive = 0.01
    warmup_steps: checks.Count = 1

    def initial_state(self, num_tasks: int) -> dict[str, np.ndarray]:
        """Return the logarithms of the weights [T]; sums and counts of first excess risks [T]."""
        zeros = np.zeros(num_tasks)
        logarithms = np.full(num_tasks, -np.log(num_tasks))
        return {"log_weights": logarithms, "first_risks": zeros, "first_steps": zeros}

    def __call__(self, tasks: method.Tasks) -> tuple[tf.Tensor, method.State]:
        """Return the weights [T], above 0, and the state; the sum, with absent tasks, is 1."""
        risks = tf.linalg.diag_part(tasks.gramian)
        old, first, steps = (
            tasks.state[name] for name in ("log_weights", "first_risks", "first_steps")
        )
        warm = steps >= self.warmup_steps
        excess_risks = tf.where(warm, risks * steps / tf.where(warm, first, 1.0), 1.0)
        new = old + self.step_size * excess_risks
        # The present tasks share the weight that they had together: absent tasks keep theirs.
        new += tf.reduce_logsumexp(old) - tf.reduce_logsumexp(new)
        first += tf.where(warm, tf.zeros_like(risks), risks)
        steps += tf.cast(~warm, tf.float64)
        return tf.exp(new), {"log_weights": new, "first_risks": first, "first_steps": steps}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Random(method.Method):
    """`g = sum_t w_t g_t` with `w = softmax(normal)`, drawn at every decision.

    B. Lin, F. Ye, Y. Zhang, I. Tsang, "Reasonable Effectiveness of Random Weighting: A Litmus Test
    for Multi-Task Learning", 2021, arXiv:2111.10603. A baseline. The draw depends on the run's
    seed and the global step.
    """

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the weights [T], above 0 with sum 1."""
        draws = tf.random.stateless_normal(tf.shape(tasks.norms), tasks.seed, dtype=tf.float64)
        return tf.nn.softmax(draws)
