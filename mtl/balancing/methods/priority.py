"""A method for a primary task, which has priority, and other tasks that must also improve.

from mtl.balancing import methods
surgery.Combine.method = @methods.PCD()
methods.PCD.primary = "clicks"
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from mtl import checks
from mtl.balancing.methods import method, solvers
from mtl.deferred import tf

# Limits in units of the longest normalised gradient. If a task's progress falls short of its
# constraint by more than `_SHORT`, or a weight exceeds `_GREATEST`, the code concludes that no
# direction meets all constraints.
_SHORT = 1e-7
_GREATEST = 1e7
# If the squared norm of a sum of vectors is below this share of the squared sum of their norms, the
# norm is a rounding error.
_ROUNDING = 1e-13


@checks.dataclass
class PCD(method.Method):
    """Priority-constrained descent: the primary task's direction, with progress for all tasks.

    The direction d minimises `|d - h_p|^2` under `h_j'd >= tau |h_j|^2` for every other task j,
    where p is the primary task, `h_t = g_t / sqrt(v_t)` the normalised gradient of a task, and v_t
    the running average of `|g_t|^2`. The direction d is then scaled to the length of the primary
    task's gradient g_p.

    D. Varam, M. I. AlHajri, "Not All Objectives Are Born Equal: Priority-Constrained Descent for
    Hierarchical Multi-Objective Optimization", TMLR 2026, arXiv:2606.29521. An interior-point
    method finds the direction; the paper tries all subsets of the constraints. The paper adds 1e-8
    to the averages v_t. The code adds no constant to the averages v_t, so that the scale of the
    gradients does not matter. As in the paper, the combined gradient is the primary task's gradient
    itself if no direction meets all constraints. The combined gradient is 0 if the primary task has
    no gradient, as in a batch without labels of this task.

    Attributes:
      primary: the name of the primary task; by default the task of the model's first head.
      tau: the least progress of every other task, in [0, 1], relative to the progress along the
        task's own gradient. With a tau of 0, the other tasks need not improve, but must not get
        worse. The paper uses a tau of 0.02, and has its best results with values below 0.1.
      decay: the decay of the averages v_t of the squared norms, in [0, 1); 0.999 as in the paper.
        The averages are corrected for their start at 0, as in Adam.
    """

    primary: Annotated[str, checks.Is(str, "name a task")] | None = None
    tau: Annotated[float, checks.In("[0, 1]")] = 0.02
    decay: checks.Rate = 0.999

    def initial_state(self, num_tasks: int) -> dict[str, np.ndarray]:
        """Return zeros: averages of squared norms [T], and the numbers of averaged steps [T]."""
        return {"squared_norms": np.zeros(num_tasks), "norm_steps": np.zeros(num_tasks)}

    def __call__(self, tasks: method.Tasks) -> tuple[tf.Tensor, method.State]:
        """Return the tasks' weights [T], at least 0, and the new averages.

        Raises:
          UserError: the model has no task with the name `primary`.
        """
        primary = tasks.named("PCD.primary", self.primary)
        steps = tasks.state["norm_steps"] + 1
        squares = tasks.state["squared_norms"] * self.decay + (1 - self.decay) * tasks.norms**2
        lengths = tasks.norms / tf.sqrt(squares / (1 - self.decay**steps))
        direction = self._find_direction(tasks.cosines, lengths / tf.reduce_max(lengths), primary)
        square = tf.reduce_sum(direction * tf.linalg.matvec(tasks.cosines, direction))
        cancels = square <= _ROUNDING * tf.reduce_sum(direction) ** 2
        length = tf.reduce_sum(tf.where(primary, tasks.norms, tf.zeros_like(direction)))
        scale = tf.where(cancels, tf.zeros_like(length), length * tf.math.rsqrt(square))
        weights = direction / tasks.norms * scale
        return weights, {"squared_norms": squares, "norm_steps": steps}

    def _find_direction(
        self, cosines: tf.Tensor, lengths: tf.Tensor, primary: tf.Tensor
    ) -> tf.Tensor:
        """Return the direction d as weights [T] of the unit gradients."""
        is_other = tf.cast(~primary, tf.float64)
        start = tf.where(primary, lengths, tf.zeros_like(lengths))
        goals = self.tau * lengths - tf.linalg.matvec(cosines, start)
        # The primary task has no constraint, so its multiplier is fixed at 0.
        quadratic = cosines * is_other[:, tf.newaxis] * is_other + tf.linalg.diag(1 - is_other)
        linear = tf.where(primary, -tf.ones_like(lengths), goals)
        multipliers = is_other * solvers.nonnegative_minimum(quadratic, linear)
        shortfall = tf.reduce_max(is_other * (goals - tf.linalg.matvec(quadratic, multipliers)))
        is_possible = (shortfall <= _SHORT) & (tf.reduce_max(multipliers) < _GREATEST)
        return start + tf.where(is_possible, multipliers, tf.zeros_like(multipliers))
