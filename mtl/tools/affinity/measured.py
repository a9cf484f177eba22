"""Measures which tasks help each other: how a step of one task changes the losses of other tasks.

from mtl.tools import affinity
model.MultiTaskModel.surgery = @affinity.TaskAffinity()    # updates still use a plain sum
affinity.TaskAffinity.every_steps = 100

`python -m launch.affinity` reads the result, and proposes groups of tasks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

from mtl import checks, types
from mtl.balancing import decision, task_gradients
from mtl.balancing import surgery as surgery_lib
from mtl.deferred import tf, tf1
from mtl.layers import precision
from mtl.step import replicas, whole_batch
from mtl.variables import moved


@checks.dataclass
class TaskAffinity(types.Surgery):
    """A surgery that measures, every few steps, the affinity of each task to each other task.

    `Z(i, j) = 1 - L_j(theta - r g_i) / L_j(theta)` is the affinity of task i to task j: the share
    by which a gradient step of task i lowers the loss L_j of task j. An affinity is below 0 if the
    step raises the loss. `theta` are the variables that several tasks share, tables included, and
    `g_i` is the gradient of task i with respect to `theta`. The gradient step changes only the
    shared variables. The losses before and after the gradient step are computed on the same rows
    with the same dropout, and without the weights of the tasks. C. Fifty et al., "Efficiently
    Identifying Task Groupings for Multi-Task Learning" (TAG), 2021, arXiv:2109.04617. As in the
    paper's formula, the measured step is plain gradient descent, even if the run uses another
    optimizer. Where the formula divides by L_j, the code divides by |L_j|, because a negative loss
    would flip the sign of the affinity.

    `TaskAffinity` does not change the trained weights. A step that measures affinities costs a
    backward and a forward pass for each task. A training step without a measurement has no extra
    cost, and reports NaN as affinities. The affinities of a task are also NaN if the batch has no
    label of this task.

    Attributes:
      surgery: the surgery that combines the gradients of the tasks.
      every_steps: the number of steps between two measurements. `every_steps` must be a multiple of
        `Run.summary_steps`, because a run writes no scalars between two summaries.
      learning_rate: the factor r of the measured step, above 0. If the factor r is so large that a
        gradient step of a task raises the task's own loss, affinities mean nothing, and
        `launch.affinity` says that r is too large.
    """

    surgery: Annotated[types.Surgery, checks.Part("surgery.Sum", arguments=3)] = surgery_lib.Sum()
    every_steps: checks.Count = 100
    learning_rate: checks.Positive = 0.1
    step_extension = moved.ReadMoved

    @property
    def reads_losses(self) -> bool:
        """True if the decisions of `surgery` depend on the values of the losses."""
        return types.read_member(self.surgery, types.Surgery, "reads_losses")

    def check_experiment(self, experiment: Any) -> None:
        """Fail unless the run measures affinities at least once, and writes every measurement.

        Raises:
          UserError: `every_steps` is above `Run.train_steps`, or not a multiple of
            `Run.summary_steps`.
        """
        train_steps, summary_steps = experiment.run.train_steps, experiment.run.summary_steps
        where = "TaskAffinity.every_steps"
        rule = f"be at most Run.train_steps, {train_steps}"
        checks.require(self.every_steps <= train_steps, where, rule, self.every_steps)
        rule = f"be a multiple of Run.summary_steps, {summary_steps}, to write every result"
        is_written = self.every_steps % summary_steps == 0
        checks.require(is_written, where, rule, self.every_steps)

    def __call__(
        self,
        losses: types.Tensors,
        variables: Sequence[tf.Variable],
        batch: types.Batch | None = None,
    ) -> tuple[list[types.Gradient], dict[str, tf.Tensor]]:
        """Combine the gradients with `surgery`, and measure affinities if a measurement is due.

        Args:
          losses: {task: scalar}, the weighted losses.
          variables: N variables.
          batch: the forward passes over the whole batch, with their unweighted losses; None if
            there are only the `losses`.

        Returns:
          The combined gradients of the N variables, and {name of a scalar: its value}. The scalars
          are the scalars of `surgery`, `affinity/<i>/<j>` for all pairs of tasks, and
          `surgery/cosine/<task>/<task>` and `surgery/conflicts` for the unweighted gradients.

        Raises:
          UserError: several replicas train, the network computes in 16 bits, tasks share nothing,
            or there is a single loss.
        """
        gradients, monitors = self.surgery(losses, variables, batch)
        whole = _unweigh_losses(whole_batch.or_losses(batch, losses))
        tasks = task_gradients.BatchGradients(whole, variables, lambda shared: [])
        self._require_measurable(tasks, list(losses))
        is_due = decision.is_due(self.every_steps)
        unknown = tf.fill([2, len(losses), len(losses)], tf.constant(math.nan, tf.float64))
        measurement = tf.cond(is_due, lambda: self._measure(tasks), lambda: unknown)
        # Measure before the update, because the update changes the step and the variables.
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, measurement.op)
        affinities, gramian = tf.unstack(measurement)
        scalars = decision.monitor_gramian(gramian, list(losses))
        # Leave out norms, because the measured gradients ignore the weights of the losses.
        # `Monitored` reports the norms of weighted gradients.
        scalars = {
            name: value for name, value in scalars.items() if not name.startswith("surgery/norm/")
        }
        for row_task, row in zip(losses, tf.unstack(tf.cast(affinities, tf.float32)), strict=True):
            for column_task, value in zip(losses, tf.unstack(row), strict=True):
                scalars[f"affinity/{row_task}/{column_task}"] = value
        return gradients, scalars | monitors

    def _require_measurable(
        self, tasks: task_gradients.BatchGradients, names: Sequence[str]
    ) -> None:
        where, kind = "MultiTaskModel.surgery", type(self).__name__
        rule = f"not be {kind} if "
        fix = "There are no pairs of tasks to measure."
        checks.require(len(names) > 1, where, rule + "there is one task", names, fix)
        fix = "Measure on one device."
        count = replicas.count()
        checks.require(count == 1, where, rule + "several replicas train", count, fix)
        dtype = precision.current_dtype()
        fix = "Rounding would hide the effect of a step."
        rounds = rule + "the network computes in 16 bits"
        checks.require(dtype == tf.float32, where, rounds, dtype.name, fix)
        fix = "Tasks that share nothing can neither help nor harm each other."
        shares = len(tasks.first.shared) > 0
        checks.require(shares, where, rule + "tasks share no variable", names, fix)
        checks.require(
            tasks.batch.others is not None,
            where,
            rule + "the step cannot repeat its forward pass",
            names,
        )

    def _measure(self, tasks: task_gradients.BatchGradients) -> tf.Tensor:
        """Return affinities and inner products of the gradients of T tasks, [2, T, T] float64."""
        whole, shared = tasks.batch, tasks.first.shared
        build = cast(Callable[[int], whole_batch.ForwardPass], whole.others)
        variables = [tasks.variables[n] for n in shared]
        count = len(whole.first.losses)
        leaves = task_gradients.build_leaves(
            tasks.sum(lambda part: part.differentiate_anew(shared))
        )
        before = _stack_losses(whole.sum(lambda part: part.losses))

        @tf.autograph.experimental.do_not_convert
        def step_of(task: tf.Tensor) -> tf.Tensor:
            step = tf.one_hot(task, count, on_value=-self.learning_rate, dtype=tf.float64)
            changes = [leaf.combine(step) for leaf in leaves]
            # The losses before and after a task's step use the same rows and random numbers, so
            # only the step changes the losses.
            with moved.move(variables, changes), whole_batch.withhold_collections():
                moved_batch = dataclasses.replace(whole, first=build(0))
                return _stack_losses(moved_batch.sum(lambda part: part.losses))

        # Loop over the tasks one by one: T parallel passes would take T times the memory.
        after = tf.map_fn(
            step_of, tf.range(count), fn_output_signature=tf.float64, parallel_iterations=1
        )
        # [T, T]: row i holds the losses of all tasks after the step of task i.
        affinities = (before - after) / tf.abs(before)
        present = tf.not_equal(before, 0)
        is_measured = present[:, tf.newaxis] & present
        affinities = tf.where(is_measured, affinities, tf.constant(math.nan, tf.float64))
        return tf.stack([affinities, task_gradients.compute_gramian(leaves, count)])


def _stack_losses(losses: types.Tensors) -> tf.Tensor:
    return tf.stack([tf.cast(loss, tf.float64) for loss in losses.values()])


def _unweigh_losses(batch: whole_batch.WholeBatch) -> whole_batch.WholeBatch:
    """Return the batch with its unweighted losses."""

    def unweigh_pass(forward: whole_batch.ForwardPass) -> whole_batch.ForwardPass:
        return forward._replace(losses=forward.unweighted or forward.losses)

    others = batch.others
    return dataclasses.replace(
        batch,
        first=unweigh_pass(batch.first),
        others=others and (lambda index: unweigh_pass(others(index))),
    )
