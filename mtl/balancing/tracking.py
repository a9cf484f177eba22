"""Averages each task's gradients over the steps, for methods that decide by the averages.

surgery.Combine.method = @methods.MoCo()
surgery.Combine.scopes = ["^network/"]      # no embedding tables: the state has their size
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtl import checks
from mtl.balancing import task_gradients
from mtl.deferred import tf
from mtl.step import step_state


def track_gradients(
    leaves: Sequence[task_gradients.Leaf], names: Sequence[str], num_tasks: int, rate: float
) -> list[task_gradients.Leaf]:
    """Replace each gradient g by its running average, `y <- y + rate (g - y)` from y = 0.

    The averages y of the gradients are saved in variables `tracked/<name>` of the open variable
    scope. If a task is absent from a batch, the averages of its gradients do not change.

    Args:
      leaves: each leaf holds the gradients of S of the T tasks by one variable, [S, ...].
      names: for each leaf, the name under which its averages are saved.
      num_tasks: T, the number of all tasks.
      rate: the rate of the averages, in (0, 1]; with 1, the average is the gradient of the step.

    Raises:
      UserError: a gradient of an embedding table is given; its averages would be as large as the
        table.
    """
    _require_dense(leaves, names)
    present = _find_present(leaves, num_tasks)
    return [
        _average_leaf(leaf, name, present, rate) for leaf, name in zip(leaves, names, strict=True)
    ]


def precondition_gradients(
    leaves: Sequence[task_gradients.Leaf], names: Sequence[str]
) -> list[task_gradients.Leaf]:
    """Divide each gradient g by `s^(1/4)`, where s is the sum of g^2 over all steps so far.

    The squared norm of a divided gradient is `g' diag(sqrt(s))^-1 g`, the squared norm of g in
    AdaGrad's metric. The sums s of squared gradients are saved in variables `squares/<name>` of the
    open variable scope.

    Raises:
      UserError: a gradient of an embedding table is given; its sums of squares would be as large as
        the table.
    """
    _require_dense(leaves, names)
    return [_divide_leaf(leaf, name) for leaf, name in zip(leaves, names, strict=True)]


def _require_dense(leaves: Sequence[task_gradients.Leaf], names: Sequence[str]) -> None:
    sparse = [name for name, leaf in zip(names, leaves, strict=True) if leaf.ids is not None]
    fix = "The tracked state of an embedding table is as large as the table: leave it out."
    checks.require(not sparse, "Combine.scopes", "match dense variables", sparse, fix)


def _find_present(leaves: Sequence[task_gradients.Leaf], num_tasks: int) -> tf.Tensor:
    """Find the tasks with a nonzero gradient, [T] bool."""
    present = tf.zeros([num_tasks], tf.bool)
    for leaf in leaves:
        count = len(leaf.tasks)
        has_gradient = tf.reduce_any(tf.not_equal(tf.reshape(leaf.rows, [count, -1]), 0), 1)
        indices = [[task] for task in leaf.tasks]
        present |= tf.scatter_nd(indices, tf.cast(has_gradient, tf.int32), [num_tasks]) > 0
    return present


def _average_leaf(
    leaf: task_gradients.Leaf, name: str, present: tf.Tensor, rate: float
) -> task_gradients.Leaf:
    average = _create_state(leaf, f"tracked/{name}")
    old = average.read_value()
    # The shape [S, 1, ...] broadcasts over the entries of each task's gradient.
    is_present = tf.reshape(tf.gather(present, leaf.tasks), [-1] + [1] * (leaf.rows.shape.rank - 1))
    new = old + tf.where(is_present, rate * (leaf.rows - old), tf.zeros_like(old))
    step_state.assign_with_update(average, new)
    return task_gradients.Leaf(leaf.tasks, new)


def _divide_leaf(leaf: task_gradients.Leaf, name: str) -> task_gradients.Leaf:
    squares = _create_state(leaf, f"squares/{name}")
    new = squares.read_value() + leaf.rows**2
    step_state.assign_with_update(squares, new)
    # An inner product multiplies two gradients, and both are divided. To divide the product by the
    # square root of s, the sum of squared gradients, each gradient is divided by the fourth root of
    # s.
    return task_gradients.Leaf(leaf.tasks, tf.math.divide_no_nan(leaf.rows, new**0.25))


def _create_state(leaf: task_gradients.Leaf, name: str) -> tf.Variable:
    """Return a variable of zeros with the shape of the leaf."""
    return step_state.create_variable(
        name, np.zeros(leaf.rows.shape, leaf.rows.dtype.as_numpy_dtype)
    )
