"""Methods that combine running averages of the gradients, to reduce the noise of batches.

from mtl.balancing import methods
surgery.Combine.method = @methods.MoCo()
surgery.Combine.scopes = ["^network/"]
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from mtl import checks
from mtl.balancing.methods import method, solvers
from mtl.deferred import tf

PROJECTIONS = ("simplex", "softmax")


def _check_rate(where: str, rate: float) -> None:
    checks.positive(where, rate)
    checks.require(rate <= 1, where, "be in (0, 1]", rate)


@checks.dataclass
class MoCo(method.Method):
    """`g = sum_t a_t y_t`: averages gradients to y_t; the weights a move towards those of MGDA.

    Each step updates the running average of each task's gradient, `y <- y + rate (g - y)`, then the
    weights, `a <- P(a - step_size (Y Y' + ridge I) a)`. P is the projection onto the simplex.
    Before the first step, y is 0, and a is 1 / T.

    H. Fernando, H. Shen, M. Liu, S. Chaudhury, K. Murugesan, T. Chen, "Mitigating Gradient Bias in
    Multi-objective Learning: A Provably Convergent Stochastic Approach", ICLR 2023,
    arXiv:2210.12624. As in the paper, the scale of the gradients influences how far a step moves
    the weights a. In the paper's theorems, `rate` and `step_size` fall over the steps; here, both
    are constant. The averages are T times as large as the variables whose gradients are compared.

    Attributes:
      rate: the rate of the running averages y, in (0, 1]; the paper's beta.
      step_size: the step size of the weights a, above 0; the paper's gamma.
      ridge: a number, at least 0, that is added to the diagonal of the inner products, so that the
        weights are unique; the paper's rho.
      projection: the function that keeps the weights a on the simplex: "simplex" for the projection
        P onto it, or "softmax", as in the authors' code.
    """

    rate: Annotated[float, _check_rate] = 0.5
    step_size: checks.Positive = 0.1
    ridge: checks.NotNegative = 0.0
    projection: Annotated[str, checks.OneOf(PROJECTIONS)] = "simplex"

    @property
    def tracking_rate(self) -> float:
        """The rate of the running averages that replace the gradients."""
        return self.rate

    def initial_state(self, num_tasks: int) -> dict[str, np.ndarray]:
        """Return the tasks' weights [T]."""
        return {"simplex_weights": np.full(num_tasks, 1 / num_tasks)}

    def __call__(self, tasks: method.Tasks) -> tuple[tf.Tensor, method.State]:
        """Return the tasks' weights [T], at least 0, and the state.

        The weights of all tasks, in the batch or not, sum to 1.
        """
        old = tasks.state["simplex_weights"]
        slope = tf.linalg.matvec(tasks.gramian, old) + self.ridge * old
        new_weights = old - self.step_size * slope
        # If tasks are absent, the sum is below 1, because absent tasks keep their weights.
        total = tf.reduce_sum(old)
        if self.projection == "softmax":
            weights = total * tf.nn.softmax(new_weights)
        else:
            weights = solvers.on_simplex(new_weights, total)
        return weights, {"simplex_weights": weights}


@checks.dataclass
class DBMTL(method.Method):
    """`g = max_k |y_k| sum_t y_t / |y_t|`: scales averaged gradients to the length of the longest.

    B. Lin, W. Jiang, F. Ye, Y. Zhang, P. Chen, Y.-C. Chen, S. Liu, J. Kwok, "Dual-Balancing for
    Multi-Task Learning", 2023, arXiv:2308.12029. The other half of the paper's method, the
    logarithm of every loss, is `weighting.LogLoss`. Unless `rate` is 1, the averages y_t are saved,
    and are T times as large as the variables whose gradients are compared.

    Attributes:
      rate: the rate of the running averages, `y <- y + rate (g - y)`, in (0, 1]; 1 minus the
        paper's beta. With a rate of 1, gradients are not averaged, and the compared variables may
        include embedding tables.
    """

    rate: Annotated[float, _check_rate] = 0.1

    @property
    def tracking_rate(self) -> float:
        """The rate of the running averages that replace the gradients."""
        return self.rate

    def weights(self, tasks: method.Tasks) -> tf.Tensor:
        """Return the tasks' weights [T], at least 1."""
        return tf.reduce_max(tasks.norms) / tasks.norms
