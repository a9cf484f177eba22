"""Chooses the next masks of a `Pruning` in a training step.

change = next_masks.Change(part, cuts, gradients, inputs, batch, step)
masks, has_changed = change.choose_masks("pruning/share_0")       # state changes in UPDATE_OPS
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.sparsity import criteria
from mtl.sparsity import cuts as cuts_lib
from mtl.step import outlets, replicas, step_state, whole_batch
from mtl.variables import freezing

_OVERLAP = "pruning/overlap_"


def take_gradient(name: str, cut: cuts_lib.Cut, gradient: types.Gradient) -> tf.Tensor | None:
    """Return the dense gradient of a variable, from which scores are computed; None for a table.

    Args:
      name: the name of the variable, for error messages.
      cut: the pruned variable.
      gradient: the gradient of the variable; None if no loss depends on it.

    Raises:
      UserError: the criterion reads gradients, but the variable has no dense gradient.
    """
    gradient = _make_dense(gradient, cut)
    is_dense = isinstance(gradient, tf.Tensor)
    if cut.part.criterion.reads_gradients or cut.part.gradient == cuts_lib.DENSE:
        rule = "choose only weights that a loss depends on"
        fix = "The criterion reads gradients."
        checks.require(is_dense, "Pruning.patterns", rule, name, fix)
    return gradient if is_dense else None


def _make_dense(gradient: types.Gradient, cut: cuts_lib.Cut) -> types.Gradient:
    """Make a sparse gradient of a kernel dense, such as of the kernels of domains in STAR."""
    is_kernel = isinstance(gradient, tf.IndexedSlices) and not cut.is_table
    return tf.convert_to_tensor(gradient) if is_kernel else gradient


def average_inputs(
    part: cuts_lib.Part, names: Iterable[str], squares: Mapping[str, Any]
) -> Sequence[tf.Tensor] | Sequence[None]:
    """Compute the mean squares of the inputs of kernels.

    Args:
      part: the `Pruning` of the kernels.
      names: the names of N kernels.
      squares: {kernel: (sums of squares of its inputs [D], number of rows)}.

    Returns:
      N tensors [D]; a list of N None if the criterion does not read inputs.

    Raises:
      UserError: the criterion reads inputs, and `squares` lacks a kernel.
    """
    if not part.criterion.reads_inputs:
        return [None for _ in names]
    rule = "choose kernels of layers.dense and layers.conv"
    fix = "The criterion reads their inputs."
    for name in names:
        checks.require(name in squares, "Pruning.patterns", rule, name, fix)
    return [total / count for total, count in (squares[name] for name in names)]


class Change(NamedTuple):
    """The values that determine the next masks of a `Pruning`.

    Attributes:
      part: the `Pruning`.
      cuts: {name: `Cut`} of the N pruned variables.
      gradients: N gradients, with None for embedding tables.
      inputs: the mean squares of the inputs of N kernels; None if the criterion does not need them.
      batch: the batch, divided into parts, with the losses of the tasks.
      step: the global step.
    """

    part: cuts_lib.Part
    cuts: Mapping[str, cuts_lib.Cut]
    gradients: Sequence[tf.Tensor | None]
    inputs: Sequence[tf.Tensor | None]
    batch: whole_batch.WholeBatch
    step: tf.Tensor

    def choose_masks(self, name: str) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Choose the next masks, and add ops that save the state of the pruning to UPDATE_OPS.

        Args:
          name: the name of the variable that saves the pruned share, from `cuts.share_name`.

        Returns:
          The N next masks, and a bool scalar that is True if the masks may have changed.

        Raises:
          UserError: the criterion reads gradients of tasks, but no task has a gradient by a
            variable, or a gradient is sparse.
        """
        # `mask_value` is read before UPDATE_OPS run, so all ops of the step use the same masks.
        masks = [cut.mask_value for cut in self.cuts.values()]
        # If the saved share is too small, an earlier pruning was missed, and this step makes up for
        # it. A pruning is missed if processes share a global step, so that a process does not see
        # every step, or if a resumed run has a higher sparsity.
        share_variable = step_state.create_variable(name, np.zeros([], np.float64))
        old_share = share_variable.read_value()
        progress = self.part.schedule.progress(self.step)
        share = progress * self.part.final_sparsity
        is_due = share > old_share
        tasks_of = self._list_tasks() if self.part.criterion.reads_tasks else {}
        shared = [variable for variable, tasks in tasks_of.items() if len(tasks) > 1]
        read_overlaps, watch = _watch_overlaps(name.replace(cuts_lib.SHARE, _OVERLAP), shared)
        task_gradients = self._differentiate_where(is_due, tasks_of)

        def select() -> tuple[Any, ...]:
            weights = self._read_weights(task_gradients())
            selection = self.part.select_masks(weights, masks, progress)
            overlaps = tf.convert_to_tensor(selection.overlaps, tf.float32)
            return selection.is_finite, selection.masks, overlaps

        is_finite, new_masks, overlaps = tf.cond(
            is_due, self._as_one_op(select), lambda: (tf.constant(True), masks, read_overlaps())
        )
        watch(overlaps)
        # If a score is not finite, no weight is pruned, and the next step tries again.
        share = tf.where(is_due & is_finite, share, old_share)
        assignment = share_variable.assign(share, read_value=False)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, assignment)
        if self.part.criterion.gathers:
            # The scores of this step are computed from the old totals, before the totals change.
            with tf.control_dependencies(new_masks):
                gathering = tf.cond(self.step <= self.part.last_step, self._gather_totals, tf.no_op)
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, gathering)
        regrowth = self.part.regrowth
        if regrowth is None:
            return new_masks, is_due
        is_swapped = regrowth.is_due(self.step) & ~is_due

        def swap() -> list[tf.Tensor]:
            pairs = zip(new_masks, self._read_weights(), strict=True)
            return [regrowth.swap(mask, seen, self.step) for mask, seen in pairs]

        return tf.cond(is_swapped, swap, lambda: new_masks), is_due | is_swapped

    def _as_one_op(self, select: Callable[[], Any]) -> Callable[[], Any]:
        """Return `select` as one op: each op in a branch slows down steps that skip the branch."""
        # A `tf.function` needs all its ops on one device, and cannot differentiate losses outside
        # of it.
        is_here = not any("/job:" in cut.variable.device for cut in self.cuts.values())
        if replicas.count() > 1 or not is_here or self.part.criterion.reads_tasks:
            return select
        return tf.function(select, autograph=False, experimental_attributes={"_noinline": True})

    def _list_tasks(self) -> dict[str, set[str]]:
        """Return the tasks whose losses depend on each variable, {variable: tasks}."""
        # The code checks only which gradients are None; no step computes the values of these
        # gradients.
        gradients_by_task = self._differentiate_losses(self.batch.first)
        tasks_of: dict[str, set[str]] = {}
        rule = "choose only kernels that a task's loss depends on"
        rows = zip(*gradients_by_task.values(), strict=True)
        for name, gradients in zip(self.cuts, rows, strict=True):
            pairs = zip(gradients_by_task, gradients, strict=True)
            gradient_of = {task: gradient for task, gradient in pairs if gradient is not None}
            are_dense = all(isinstance(gradient, tf.Tensor) for gradient in gradient_of.values())
            fits, fix = bool(gradient_of) and are_dense, "The criterion reads gradients."
            checks.require(fits, "Pruning.patterns", rule, name, fix)
            tasks_of[name] = set(gradient_of)
        return tasks_of

    def _differentiate_where(
        self, is_due: tf.Tensor, tasks_of: Mapping[str, set[str]]
    ) -> Callable[[], Mapping[str, Sequence[tf.Tensor | None]]]:
        """Return a function that builds {task: N gradients} of the whole batch.

        The caller must call the returned function within the branch of `tf.cond` that runs if
        `is_due` is True. The returned function returns {} if the criterion does not need gradients
        of tasks. A gradient is None if the loss of the task does not depend on the variable.
        """
        if not self.part.criterion.reads_tasks:
            return dict
        if replicas.count() == 1:
            return lambda: self.batch.sum(self._differentiate_losses)
        # Replicas compute gradients only in due steps, but must exchange them in every step.
        batch = self.batch.without_replicas()
        variables = [cut.variable for cut in self.cuts.values()]

        def differentiate() -> dict[str, list[tf.Tensor]]:
            return {
                task: [
                    tf.zeros(variable.shape, variable.dtype) if gradient is None else gradient
                    for gradient, variable in zip(gradients, variables, strict=True)
                ]
                for task, gradients in batch.sum(self._differentiate_losses).items()
            }

        def nothing() -> dict[str, list[tf.Tensor]]:
            zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
            return dict.fromkeys(batch.first.losses, zeros)

        sums = replicas.sum_over_replicas(tf.cond(is_due, differentiate, nothing))
        connected = {
            task: [
                gradient if task in tasks_of[name] else None
                for name, gradient in zip(self.cuts, gradients, strict=True)
            ]
            for task, gradients in sums.items()
        }
        return lambda: connected

    def _differentiate_losses(
        self, forward: whole_batch.ForwardPass
    ) -> dict[str, list[tf.Tensor | None]]:
        """Build the gradients {task: N gradients} of one part of the batch."""
        cuts = list(self.cuts.values())
        variables = [cut.variable for cut in cuts]
        return {
            task: list(map(_make_dense, tf.gradients(loss, variables), cuts))
            for task, loss in forward.losses.items()
        }

    def _read_weights(
        self, task_gradients: Mapping[str, Sequence[tf.Tensor | None]] = MappingProxyType({})
    ) -> list[criteria.Seen]:
        """Read the values that criteria need; call it only in a branch, as it copies tables."""
        return [
            criteria.Seen(
                name=name,
                weights=cut.variable.read_value(),
                gradient=gradient,
                total=None if cut.total is None else cut.total.read_value(),
                inputs=inputs,
                task_gradients={task: values[place] for task, values in task_gradients.items()},
                is_moving=freezing.moving_entries(cut.variable),
            )
            for place, ((name, cut), gradient, inputs) in enumerate(
                zip(self.cuts.items(), self.gradients, self.inputs, strict=True)
            )
        ]

    def _gather_totals(self) -> tf.Operation:
        assignments = []
        for seen, cut in zip(self._read_weights(), self.cuts.values(), strict=True):
            total = self.part.criterion.gather(seen)
            # A NaN would stay in the sum or average forever.
            total = tf.where(tf.math.is_finite(total), total, seen.total)
            assignments.append(cast(tf.Variable, cut.total).assign(total, read_value=False))
        return tf.group(*assignments)


def _watch_overlaps(
    name: str, shared: Sequence[str]
) -> tuple[Callable[[], tf.Tensor], Callable[[tf.Tensor], None]]:
    """Return two functions: one reads the saved overlaps, one shows and saves new overlaps.

    Args:
      name: the name of the variable that saves the overlaps.
      shared: the variables on which the losses of several tasks depend.
    """
    if not shared:
        return lambda: tf.zeros([0]), lambda overlaps: None
    state = step_state.create_variable(name, np.zeros([len(shared)], np.float32))

    def watch(overlaps: tf.Tensor) -> None:
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, state.assign(overlaps, read_value=False))
        names = [f"pruning/{variable}/task_overlap" for variable in shared]
        outlets.add_scalars_where_due(names, lambda: overlaps)

    return state.read_value, watch
