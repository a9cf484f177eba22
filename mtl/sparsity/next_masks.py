"""Chooses the next masks of a part of `Pruning`.

change = next_masks.Change(part, cuts, gradients, inputs, batch, step)
masks, has_changed = change.choose_masks("pruning/share_0")       # UPDATE_OPS keep the state
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
    """Return the gradient for the scores; None for a table.

    Args:
      name: the name of the variable, for errors.
      cut: the variable.
      gradient: None if no loss depends on the variable.

    Raises:
      UserError: the criterion reads gradients, and there is no dense one.
    """
    gradient = _make_dense(gradient, cut)
    is_dense = isinstance(gradient, tf.Tensor)
    if cut.part.criterion.reads_gradients or cut.part.gradient == cuts_lib.DENSE:
        rule, fix = "choose weights that a loss depends on, each of them", "It reads gradients."
        checks.require(is_dense, "Pruning.patterns", rule, name, fix)
    return gradient if is_dense else None


def _make_dense(gradient: types.Gradient, cut: cuts_lib.Cut) -> types.Gradient:
    """Return the sparse gradient of looked-up kernels, such as STAR's, as a dense tensor."""
    is_kernel = isinstance(gradient, tf.IndexedSlices) and not cut.is_table
    return tf.convert_to_tensor(gradient) if is_kernel else gradient


def average_inputs(
    part: cuts_lib.Part, names: Iterable[str], squares: Mapping[str, Any]
) -> Sequence[tf.Tensor] | Sequence[None]:
    """Return the mean squares of kernels' inputs, from {kernel: their sums, and the count}."""
    if not part.criterion.reads_inputs:
        return [None for _ in names]
    rule, fix = "choose kernels of layers.dense and layers.conv", "It reads their inputs."
    for name in names:
        checks.require(name in squares, "Pruning.patterns", rule, name, fix)
    return [total / count for total, count in (squares[name] for name in names)]


class Change(NamedTuple):
    """The values that determine the next masks of a part.

    Attributes:
      part: the part that prunes.
      cuts: {variable: its `Cut`}, N.
      gradients: N, None for tables.
      inputs: N, the mean squares of inputs; None if the criterion does not need them.
      batch: its parts hold the losses of the tasks.
      step: the global step.
    """

    part: cuts_lib.Part
    cuts: Mapping[str, cuts_lib.Cut]
    gradients: Sequence[tf.Tensor | None]
    inputs: Sequence[tf.Tensor | None]
    batch: whole_batch.WholeBatch
    step: tf.Tensor

    def choose_masks(self, name: str) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return the N next masks, and True if they may have changed; `name` names the state."""
        # `kept` was read before UPDATE_OPS run, so all of the step sees the same masks.
        masks = [cut.kept for cut in self.cuts.values()]
        # The cut share is saved, and a missed cut is made up for: processes that share a global
        # step do not see every number, and a continued run may have a higher sparsity.
        cut_share = step_state.create_variable(name, np.zeros([], np.float64))
        so_far = cut_share.read_value()
        progress = self.part.schedule.progress(self.step)
        share = progress * self.part.final_sparsity
        is_due = share > so_far
        reached = self._list_reached() if self.part.criterion.reads_tasks else {}
        shared = [one for one, tasks in reached.items() if len(tasks) > 1]
        before, watch = _watch_overlaps(name.replace(cuts_lib.SHARE, _OVERLAP), shared)
        task_gradients = self._differentiate_where(is_due, reached)

        def select() -> tuple[Any, ...]:
            found = self.part.select_masks(self._read_weights(task_gradients()), masks, progress)
            return found.is_finite, found.masks, tf.convert_to_tensor(found.overlaps, tf.float32)

        is_finite, chosen, overlaps = tf.cond(
            is_due, self._as_one_op(select), lambda: (tf.constant(True), masks, before())
        )
        watch(overlaps)
        # A cut without finite scores did not happen, and the next step tries it again.
        share = tf.where(is_due & is_finite, share, so_far)
        assigned = cut_share.assign(share, read_value=False)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, assigned)
        if self.part.criterion.gathers:
            # The scores of this step read the totals of the steps before; they add the batch
            # themselves.
            with tf.control_dependencies(chosen):
                gathered = tf.cond(self.step <= self.part.last_step, self._gather_totals, tf.no_op)
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, gathered)
        regrowth = self.part.regrowth
        if regrowth is None:
            return chosen, is_due
        is_swapped = regrowth.is_due(self.step) & ~is_due

        def swap() -> list[tf.Tensor]:
            pairs = zip(chosen, self._read_weights(), strict=True)
            return [regrowth.swap(mask, seen, self.step) for mask, seen in pairs]

        return tf.cond(is_swapped, swap, lambda: chosen), is_due | is_swapped

    def _as_one_op(self, select: Callable[[], Any]) -> Callable[[], Any]:
        """Return a branch that is one op, because each op of an unused branch slows a step."""
        # A function needs all its ops on one device, and cannot reach losses outside of it.
        is_here = not any("/job:" in cut.variable.device for cut in self.cuts.values())
        if replicas.count() > 1 or not is_here or self.part.criterion.reads_tasks:
            return select
        return tf.function(select, autograph=False, experimental_attributes={"_noinline": True})

    def _list_reached(self) -> dict[str, set[str]]:
        """Return {variable: the tasks whose losses depend on it}."""
        # Gradients of the first part show which losses reach a variable; they are never run.
        found = self._differentiate_losses(self.batch.first)
        reached: dict[str, set[str]] = {}
        rule = "choose kernels that a task's loss depends on, each of them"
        for name, of_tasks in zip(self.cuts, zip(*found.values(), strict=True), strict=True):
            pairs = zip(found, of_tasks, strict=True)
            own = {task: each for task, each in pairs if each is not None}
            is_fit = own and all(isinstance(each, tf.Tensor) for each in own.values())
            checks.require(bool(is_fit), "Pruning.patterns", rule, name, "It reads gradients.")
            reached[name] = set(own)
        return reached

    def _differentiate_where(
        self, is_due: tf.Tensor, reached: Mapping[str, set[str]]
    ) -> Callable[[], Mapping[str, Sequence[tf.Tensor | None]]]:
        """Return a function that gives {task: N gradients} of the whole batch.

        It must be called within the branch of `is_due`. It gives {} if the criterion does not need
        the gradients; a gradient is None if the loss of the task does not reach the variable.
        """
        if not self.part.criterion.reads_tasks:
            return dict
        if replicas.count() == 1:
            return lambda: self.batch.sum(self._differentiate_losses)
        # Replicas compute gradients only when they are due, but must exchange them in every step.
        own, variables = self.batch.without_replicas(), [c.variable for c in self.cuts.values()]

        def differentiate() -> dict[str, list[tf.Tensor]]:
            return {
                task: [
                    tf.zeros(variable.shape, variable.dtype) if gradient is None else gradient
                    for gradient, variable in zip(gradients, variables, strict=True)
                ]
                for task, gradients in own.sum(self._differentiate_losses).items()
            }

        def nothing() -> dict[str, list[tf.Tensor]]:
            zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
            return dict.fromkeys(own.first.losses, zeros)

        found = replicas.sum_over_replicas(tf.cond(is_due, differentiate, nothing))
        connected = {
            task: [
                gradient if task in reached[name] else None
                for name, gradient in zip(self.cuts, gradients, strict=True)
            ]
            for task, gradients in found.items()
        }
        return lambda: connected

    def _differentiate_losses(
        self, forward: whole_batch.ForwardPass
    ) -> dict[str, list[tf.Tensor | None]]:
        """Return {task: N gradients} of a part of the batch."""
        cuts = list(self.cuts.values())
        variables = [cut.variable for cut in cuts]
        return {
            task: list(map(_make_dense, tf.gradients(loss, variables), cuts))
            for task, loss in forward.losses.items()
        }

    def _read_weights(
        self, task_gradients: Mapping[str, Sequence[tf.Tensor | None]] = MappingProxyType({})
    ) -> list[criteria.Seen]:
        """Return the values for the criteria; call it in a branch, because it copies tables."""
        return [
            criteria.Seen(
                name=name,
                weights=cut.variable.read_value(),
                gradient=gradient,
                total=None if cut.total is None else cut.total.read_value(),
                inputs=inputs,
                task_gradients={task: own[place] for task, own in task_gradients.items()},
                is_moving=freezing.moving_entries(cut.variable),
            )
            for place, ((name, cut), gradient, inputs) in enumerate(
                zip(self.cuts.items(), self.gradients, self.inputs, strict=True)
            )
        ]

    def _gather_totals(self) -> tf.Operation:
        assigned = []
        for seen, cut in zip(self._read_weights(), self.cuts.values(), strict=True):
            new = self.part.criterion.gather(seen)
            # A NaN would stay in a sum for good.
            new = tf.where(tf.math.is_finite(new), new, seen.total)
            assigned.append(cast(tf.Variable, cut.total).assign(new, read_value=False))
        return tf.group(*assigned)


def _watch_overlaps(
    name: str, shared: Sequence[str]
) -> tuple[Callable[[], tf.Tensor], Callable[[tf.Tensor], None]]:
    """Return functions that read the overlaps of the last cut, and that show and keep them.

    Args:
      name: of the state.
      shared: the variables that several tasks depend on.
    """
    if not shared:
        return lambda: tf.zeros([0]), lambda new: None
    state = step_state.create_variable(name, np.zeros([len(shared)], np.float32))

    def watch(new: tf.Tensor) -> None:
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, state.assign(new, read_value=False))
        names = [f"pruning/{one}/task_overlap" for one in shared]
        outlets.add_scalars_where_due(names, lambda: new)

    return state.read_value, watch
