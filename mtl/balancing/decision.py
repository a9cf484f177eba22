"""Decides the weights of the tasks' gradients by a surgery method, and updates its state.

weights = decision.decide_weights(methods.MGDA(), lambda: gramian, losses, every_steps=1, average=0)
present = decision.find_present(gramian)                           # [T] bool
monitors = decision.monitor_gramian(gramian, ["clicks", "sales"])    # {name: scalar}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mtl import checks, types
from mtl.balancing.methods import method as method_lib
from mtl.deferred import tf, tf1
from mtl.step import draws, step_state


def find_present(gramian: tf.Tensor) -> tf.Tensor:
    """Find the tasks that are present in a batch: tasks with a finite gradient that is not zero.

    Args:
      gramian: inner products of the tasks' gradients, [T, T].

    Returns:
      bool [T].
    """
    squares = tf.linalg.diag_part(gramian)
    return (squares > 0) & tf.math.is_finite(squares)


def mark_nonfinite(gramian: tf.Tensor) -> tf.Tensor:
    """Return NaN if the gradient of a task is not finite, else 0.

    Methods of surgery get only tasks with finite gradients. The caller adds the returned 0 or NaN
    to the result of a method, so that the update notices a gradient that is not finite.

    Args:
      gramian: inner products of the tasks' gradients, [T, T].

    Returns:
      A scalar: NaN if a diagonal entry of `gramian` is not finite, else 0.
    """
    is_finite = tf.reduce_all(tf.math.is_finite(tf.linalg.diag_part(gramian)))
    # The code does not compute 0 * NaN, because TensorFlow's graph optimizer would replace the
    # product by 0.
    return tf.where(is_finite, tf.constant(0.0, gramian.dtype), np.nan)


def _find_taking_part(
    method: method_lib.Method, gramian: tf.Tensor, losses: tf.Tensor
) -> tf.Tensor:
    """Find the tasks whose gradients a method gets in this step, [T] bool.

    If a method takes inner products between gradients of different samples, the product of a task
    with itself may be negative, so its sign does not show whether the task is present. If a method
    compares different samples, a task is therefore present if its loss is finite and not 0.
    """
    if method.samples == 1:
        return find_present(gramian)
    finite = tf.math.is_finite(losses) & tf.math.is_finite(tf.linalg.diag_part(gramian))
    return finite & tf.not_equal(losses, 0)


def create_state(method: method_lib.Method, num_tasks: int) -> dict[str, tf.Variable]:
    """Create the state of a method, as variables in the open variable scope.

    Args:
      method: the method of surgery.
      num_tasks: T, the number of all tasks, including tasks that are absent from a batch.

    Returns:
      {name of a state: its variable, [T] or [T, T]}.
    """
    initial = method.initial_state(num_tasks)
    return {name: step_state.create_variable(name, value) for name, value in initial.items()}


def decide_weights(
    method: method_lib.Method,
    gramian: Callable[[], tf.Tensor],
    losses: types.Tensors,
    every_steps: int,
    average: float,
) -> tf.Tensor:
    """Decide the weight of each task's gradient in this step.

    Args:
      method: the method of surgery.
      gramian: a function that builds the inner products of the tasks' gradients, [T, T] float64.
        Unless every step decides, `gramian` is called in a branch of `tf.cond`, so that only the
        steps that decide compute the products.
      losses: {task: scalar}.
      every_steps: the number of steps from one decision about the weights to the next.
      average: the share of the old weights in the new weights, in [0, 1).

    Returns:
      The weights, float64 [T], in the order of the losses; NaN if the gradient of a task is not
      finite.
    """
    variables = create_state(method, len(losses))
    # The weights are saved in the checkpoint only if a later step reads them.
    if every_steps > 1 or average > 0:
        variables["weights"] = step_state.create_variable("weights", np.ones(len(losses)))
    old = {name: variable.read_value() for name, variable in variables.items()}
    old.setdefault("weights", tf.zeros([len(losses)], tf.float64))

    def decide():
        products = gramian()
        new = decide_once(method, products, losses, old)
        new["weights"] = average * old["weights"] + (1 - average) * new["weights"]
        # If a gradient is not finite, the weights become NaN, so that `Update` notices the
        # gradient. In a step with a NaN, `assign_with_update` keeps the old state of the method.
        new["weights"] += mark_nonfinite(products)
        return new

    if every_steps == 1:
        new = decide()
    else:
        step = tf1.train.get_or_create_global_step().read_value()
        # The first step of a run must decide the weights, because no earlier weights exist. So this
        # condition differs from `is_due`, which is False in the first step.
        new = tf.cond(tf.equal(step % every_steps, 0), decide, lambda: _copy_values(old))
    for name, variable in variables.items():
        step_state.assign_with_update(variable, new[name])
    return new["weights"]


def decide_once(
    method: method_lib.Method,
    gramian: tf.Tensor,
    losses: types.Tensors,
    old: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
    """Compute new weights and state of the tasks in the batch; other tasks keep their old values.

    Args:
      method: the method of surgery.
      gramian: inner products of the gradients of all T tasks, float64 [T, T].
      losses: {task: scalar}.
      old: {name: value before this step, [T] or [T, T]}, for the state of the method and for
        "weights".

    Returns:
      {name: value after this step}, with the names and shapes of `old`.
    """
    values = tf.cast(tf.stack(list(losses.values())), tf.float64)
    places = tf.where(_find_taking_part(method, gramian, values))[:, 0]
    seed = draws.make_balancing_seed()

    def decide():
        tasks = method_lib.Tasks(
            gramian=_gather_entries(gramian, places),
            losses=_gather_entries(values, places),
            seed=seed,
            state={name: _gather_entries(value, places) for name, value in old.items()},
            names=tuple(losses),
            places=places,
        )
        # The ops of a method are small and run in loops: a GPU takes longer to start such an op
        # than a CPU takes to run it. On a GPU, eigenvalues and solutions of linear systems were
        # wrong if the norms of gradients differed by many orders of magnitude.
        with tf.device("/device:CPU:0"):
            new_weights, new = method(tasks)
            if isinstance(new_weights, (list, tuple, np.ndarray)):
                new_weights = tf.convert_to_tensor(new_weights, tf.float64)
            is_right = isinstance(new_weights, tf.Tensor) and new_weights.dtype == tf.float64
            is_right = is_right and new_weights.shape.is_compatible_with([None])
            where = f"the method {type(method).__name__}"
            rule = "return a weight for each task, float64 [T]"
            checks.require(is_right, where, rule, new_weights)
            new = {**new, "weights": new_weights}
            return {name: _replace_entries(old[name], places, new[name]) for name in old}

    # Methods divide by norms and take maxima over tasks, so they need at least one task.
    return tf.cond(tf.size(places) > 0, decide, lambda: _copy_values(old))


def _copy_values(values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {name: tf.identity(value) for name, value in values.items()}


def _gather_entries(whole: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Return the part of a tensor whose indices along every axis are in `places`."""
    for axis in range(whole.shape.rank):
        whole = tf.gather(whole, places, axis=axis)
    return whole


def _replace_entries(whole: tf.Tensor, places: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    """Return `whole` with `part` written to the entries whose indices are all in `places`."""
    axes = tf.meshgrid(*[places] * whole.shape.rank, indexing="ij")
    return tf.tensor_scatter_nd_update(whole, tf.stack(axes, -1), part)


def monitor_gramian(gramian: tf.Tensor, names: Sequence[str]) -> dict[str, tf.Tensor]:
    """Compute norms and cosines of the tasks' gradients, as scalars to monitor.

    Args:
      gramian: inner products of the tasks' gradients, float64 [T, T]. In steps that do not compute
        the inner products, `gramian` and all returned scalars are NaN.
      names: the names of the T tasks.

    Returns:
      {name: float32 scalar}: `surgery/norm/<task>`; `surgery/cosine/<task>/<task>` for each pair;
      and `surgery/conflicts`, the share of pairs with a cosine below 0. The cosines of a task
      without a gradient, such as a task without labels in the batch, are NaN, and
      `surgery/conflicts` leaves out the pairs of this task.
    """
    norms = tf.sqrt(tf.linalg.diag_part(gramian))
    products = norms[:, tf.newaxis] * norms
    cosines = tf.where(products > 0, gramian / products, math.nan)
    # The matrix is symmetric, so each pair of tasks counts once.
    pairs = [(a, b) for a in range(len(names)) for b in range(a)]
    values = tf.cast(tf.gather_nd(cosines, pairs), tf.float32)
    norms, cosines = tf.unstack(tf.cast(norms, tf.float32)), tf.unstack(values)
    monitors = {f"surgery/norm/{name}": norm for name, norm in zip(names, norms, strict=True)}
    for (a, b), cosine in zip(pairs, cosines, strict=True):
        monitors[f"surgery/cosine/{names[b]}/{names[a]}"] = cosine
    conflicts, known = values < 0, tf.logical_not(tf.math.is_nan(values))
    # If no pair of tasks has a cosine, the share is 0 / 0, which is NaN.
    monitors["surgery/conflicts"] = _count(conflicts) / _count(known)
    return monitors


def _count(mask: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(mask, tf.float32))


def is_due(every_steps: int) -> tf.Tensor:
    """Return True if the next global step is a multiple of `every_steps`, a bool scalar."""
    step = tf1.train.get_or_create_global_step().read_value()
    # The update increments the global step at its end, so the variable still has the old value
    # here.
    return tf.equal((step + 1) % every_steps, 0)


def monitor_weights(weights: tf.Tensor, names: Sequence[str]) -> dict[str, tf.Tensor]:
    """Return the weights of all tasks as scalars to monitor.

    Args:
      weights: the weights of the tasks' gradients, [T], in the order of `names`.
      names: the names of the T tasks.

    Returns:
      {"surgery/weight/<task>": float32 scalar}.
    """
    parts = tf.unstack(tf.cast(weights, tf.float32))
    return {f"surgery/weight/{name}": part for name, part in zip(names, parts, strict=True)}
