"""Methods that multiply gradients of different samples, so that noise does not bias the weights.

from mtl.balancing import methods
surgery.Combine.method = @methods.MoDo()
methods.MoDo.samples = 2
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from mtl import checks
from mtl.balancing.methods import method, solvers
from mtl.deferred import tf


def _check_samples(where: str, samples: int) -> None:
    checks.one_of(where, samples, (2, 3))


@checks.dataclass
class MoDo(method.Method):
    """`g = sum_t a_t g_t`: unbiased inner products move the weights a towards those of MGDA.

    Each step changes the weights by `a <- P(a - step_size (G G~' + ridge I) a)`. The initial
    weights are a = 1 / T. G and G~ are the gradients [T, D] of two samples of the batch, and P is
    the projection onto the simplex.

    L. Chen, H. Fernando, Y. Ying, T. Chen, "Three-Way Trade-Off in Multi-Objective Learning:
    Optimization, Generalization and Conflict-Avoidance", NeurIPS 2023, arXiv:2305.20057. The paper
    draws three batches for a step. Here, one batch is divided into two or three samples, after one
    forward pass. As in the paper, the scale of the gradients influences how far a step moves the
    weights a. A task without a label in a sample has the gradient 0 in this sample. The weight of a
    task that is absent from the batch does not change.

    Attributes:
      step_size: the step size of the weights a, above 0; the paper's gamma.
      ridge: a number, at least 0, that is added to the diagonal of the inner products, so that the
        weights are unique; the paper's rho.
      samples: the number of samples into which a batch is divided, 3 or 2. With 3 samples, the
        update takes gradients of the third sample, which are independent of the weights, as in the
        paper. With 2 samples, the update takes gradients of the whole batch, as in the authors'
        code. An update from the whole batch reads three times as many rows as an update from the
        third sample, but has a bias of the order of `step_size`.
    """

    step_size: checks.Positive = 0.1
    ridge: checks.NotNegative = 0.0
    samples: Annotated[int, _check_samples] = 3

    def initial_state(self, num_tasks: int) -> dict[str, np.ndarray]:
        """Return the tasks' weights [T]."""
        return {"simplex_weights": np.full(num_tasks, 1 / num_tasks)}

    def __call__(self, tasks: method.Tasks) -> tuple[tf.Tensor, method.State]:
        """Return the tasks' weights [T], at least 0, and the state.

        The weights of all tasks, in the batch or not, sum to 1.
        """
        old = tasks.state["simplex_weights"]
        slope = tf.linalg.matvec(tasks.gramian, old) + self.ridge * old
        weights = solvers.on_simplex(old - self.step_size * slope, tf.reduce_sum(old))
        return weights, {"simplex_weights": weights}


@checks.dataclass
class SDMGrad(method.Method):
    """`g = sum_t a_t g_t + pull g_0`: MGDA with a pull towards the mean gradient g_0.

    Each training step starts from the last weights a, and moves g towards the shortest vector
    `sum_t a_t g_t + pull g_0` by `steps` iterations `a <- P(a - step_size C (a + pull / T) / n^2)`.
    `C = G G~'` has the inner products between gradients of two samples of the batch, n is the mean
    square root of C's diagonal entries, and P the projection onto the simplex.

    P. Xiao, H. Ban, K. Ji, "Direction-oriented Multi-objective Learning: Simple and Provable
    Stochastic Algorithms", NeurIPS 2023, arXiv:2305.18409. The paper draws samples for each
    iteration; here, as in the authors' code, all iterations use the same inner products C. The
    authors' code divides the combined gradient g by 1 + pull. With the step size of 10 and the
    momentum of 0.5 in the authors' code, the iterations do not converge: the weights a jump between
    corners of the simplex. If no diagonal entry of the products C is above 0, the weights a do not
    change.

    Attributes:
      pull: the weight of the mean gradient g_0, at least 0; the paper's lambda. With `pull = 0`,
        the method is MGDA; with a large pull, g approaches the direction of the mean gradient.
      step_size: the step size of the weights a, above 0; the paper's beta. The step size should be
        below 2 / (the largest eigenvalue of the normalised products C / n^2), which is about 2 / T
        if the gradients agree.
      steps: the number of iterations in a training step, at least 1; the paper's S.
      momentum: the momentum of the iterations, in [0, 1); 0 as in the paper.
      rescale: True divides the combined gradient g by `1 + pull`, as the authors' code does. The
        paper does not divide g.
      samples: the number of samples into which a batch is divided, 3 or 2; see `MoDo`.
    """

    pull: checks.NotNegative = 0.3
    step_size: checks.Positive = 0.1
    steps: checks.Count = 20
    momentum: checks.Rate = 0.0
    rescale: bool = False
    samples: Annotated[int, _check_samples] = 3

    def initial_state(self, num_tasks: int) -> dict[str, np.ndarray]:
        """Return the initial state: the weights a [T] of the tasks' gradients, each 1 / T."""
        return {"simplex_weights": np.full(num_tasks, 1 / num_tasks)}

    def __call__(self, tasks: method.Tasks) -> tuple[tf.Tensor, method.State]:
        """Return the weights `a + pull / T` [T], and the new a as state."""
        # Because of noise, the product of two samples' gradients may be negative.
        diagonal = tf.maximum(tf.linalg.diag_part(tasks.gramian), 0.0)
        size = tf.reduce_mean(tf.sqrt(diagonal))
        products = tf.math.divide_no_nan(tasks.gramian, size**2)
        old = tasks.state["simplex_weights"]
        mean = self.pull / tf.cast(tf.size(old), tf.float64)

        def descend(i, a, velocity):
            velocity = self.momentum * velocity + tf.linalg.matvec(products, a + mean)
            new_a = solvers.on_simplex(a - self.step_size * velocity, tf.reduce_sum(old))
            return i + 1, new_a, velocity

        a, _ = solvers.repeat(self.steps, descend, old, tf.zeros_like(old))
        weights = a + mean
        return weights / (1 + self.pull) if self.rescale else weights, {"simplex_weights": a}
