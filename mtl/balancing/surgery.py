"""Surgery: combines the gradients of several tasks into a single gradient.

from mtl.balancing import methods, surgery
model.MultiTaskModel.surgery = @surgery.Combine()      # surgery.Sum() by default
surgery.Combine.method = @methods.PCGrad()

A method of surgery gets the inner products of the tasks' gradients, the losses and its state, and
returns a weight for each task. `Combine` handles sparse gradients, absent tasks, scopes, the shared
representation, decisions at some steps only, and averages of the weights. Only a `CoordinateMethod`
gets the gradients themselves.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

from mtl import checks, types
from mtl.balancing import decision, task_gradients, tracking
from mtl.balancing.methods import method as method_lib
from mtl.deferred import tf
from mtl.step import draws, replicas, whole_batch
from mtl.variables import patterns

Gradients = list[types.Gradient]
Monitors = dict[str, "tf.Tensor"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sum(types.Surgery):
    """Takes the gradient of the sum of the weighted losses, in one backward pass."""

    reads_losses = False
    adds_losses = True

    @property
    def is_entrywise(self) -> bool:
        return type(self) is Sum

    def __call__(
        self,
        losses: types.Tensors,
        variables: Sequence[tf.Variable],
        batch: types.Batch | None = None,
    ) -> tuple[Gradients, Monitors]:
        """Compute the gradient of the sum of the losses.

        Args:
          losses: {task: scalar}, weighted.
          variables: N variables.
          batch: the batch, divided into parts; by default a single part with these losses.

        Returns:
          The gradients by the N variables, and the unweighted losses, {`<task>/loss`: scalar}. The
          gradient of an embedding table is IndexedSlices, and the gradient of a variable that
          affects no loss is None.
        """
        whole = whole_batch.or_losses(batch, losses)

        def differentiate_sum(forward: whole_batch.ForwardPass) -> tuple[Gradients, types.Tensors]:
            gradients = tf.gradients(tf.add_n(list(forward.losses.values())), list(variables))
            return gradients, forward.unweighted or {}

        gradients, plain = whole.sum(differentiate_sum, update=True)
        return gradients, {f"{task}/loss": loss for task, loss in plain.items()}


@checks.dataclass
class Combine(types.Surgery):
    """Combines the tasks' gradients g_t by a method, most often to a weighted sum `sum_t w_t g_t`.

    The method combines gradients only for variables that several tasks share; the code finds these
    variables in the graph. A variable of a single task gets the gradient of this task's weighted
    loss. A task that has no gradient in a batch, for example because the batch has no label of the
    task, has no influence on the weights of the step.

    Attributes:
      method: the method of surgery, a part of `mtl.balancing.methods`.
      on: the tensors by which the tasks' gradients are taken and compared. "parameters" is exact,
        and takes a backward pass for each task. With "parameters", the gradients of single tasks
        are not built for layers that are wider than the batch. "representation" is the output of
        the network that tasks share: the backward pass of each task ends there, and one pass
        carries the combined gradient through the shared trunk (Sener and Koltun, 2018,
        arXiv:1810.04650). "representation" is cheaper, but only approximates the combined gradients
        of "parameters".
      scopes: patterns of the shared variables whose gradients are compared, such as the variables
        of the last shared layer. The decided weights apply to all shared variables.
      every_steps: new weights are decided at global steps that are multiples of this number. A step
        without a decision uses the last weights, and takes a single backward pass. With
        `every_steps = 1`, every step decides new weights.
      average: the share of the old weights w in the weights of a step, in [0, 1): `w <- average w +
        (1 - average) new`, with w = 1 before the first step. 0 takes only the new weights. S. Zhou
        et al., "On the Convergence of Stochastic Multi-Objective Gradient Manipulation and Beyond"
        (CR-MOGM), NeurIPS 2022.
      per_replica: with False, weights are decided from the gradients of the whole batch, so
        replicas exchange the gradients of T tasks. With `per_replica = True`, each replica decides
        weights from its own part of the batch, and replicas exchange only combined gradients, which
        is cheaper; but the combined gradients differ from those of the whole batch.
    """

    method: Annotated[
        method_lib.Method | method_lib.CoordinateMethod,
        checks.Part("methods.PCGrad"),
        checks.Is(
            (method_lib.Method, method_lib.CoordinateMethod),
            "be a method, such as @methods.PCGrad()",
        ),
    ]
    on: Annotated[str, checks.OneOf(("parameters", "representation"))] = "parameters"
    scopes: Annotated[Sequence[str], patterns.check_patterns] = ()
    every_steps: checks.Count = 1
    average: checks.Rate = 0.0
    per_replica: bool = False

    def __post_init__(self):
        fits = self.on == "parameters" or not self.scopes
        fix = 'Scopes choose among parameters: set Combine.on = "parameters".'
        checks.require(fits, "Combine.scopes", "be empty on the representation", self.scopes, fix)
        if self._sees_coordinates:
            fix = "decides for every coordinate; it has no weights to keep."
            self._require_setting("every_steps", 1, fix)
            self._require_setting("average", 0, fix)
        elif self._keeps_gradients:
            self._require_setting("every_steps", 1, "keeps state from the gradients of every step.")
            fix = "keeps gradients over steps, but each step has new activations."
            self._require_setting("on", "parameters", fix)
        elif self._weighing_method.samples > 1:
            fix = "multiplies gradients of different rows, which share only parameters."
            self._require_setting("on", "parameters", fix)

    def _require_setting(self, setting: str, value: Any, reason: str) -> None:
        current, fix = getattr(self, setting), f"{type(self.method).__name__} {reason}"
        checks.require(current == value, f"Combine.{setting}", f"be {value}", current, fix)

    @property
    def _weighing_method(self) -> method_lib.Method:
        """The setting `method`, for code that runs only if the method is a `Method`."""
        return cast(method_lib.Method, self.method)

    @property
    def _choosing_method(self) -> method_lib.CoordinateMethod:
        """The setting `method`, for code that runs only if the method is a `CoordinateMethod`."""
        return cast(method_lib.CoordinateMethod, self.method)

    @property
    def _keeps_gradients(self) -> bool:
        return self._weighing_method.tracking_rate < 1 or self._weighing_method.preconditions

    @property
    def _sees_coordinates(self) -> bool:
        return isinstance(self.method, method_lib.CoordinateMethod)

    def __call__(
        self,
        losses: types.Tensors,
        variables: Sequence[tf.Variable],
        batch: types.Batch | None = None,
    ) -> tuple[Gradients, Monitors]:
        """Combine the tasks' gradients.

        Args:
          losses: {task: scalar}, the weighted losses of the whole batch.
          variables: N variables, in any order.
          batch: the batch, divided into parts, with the outputs that tasks share; by default a
            single part with these losses.

        Returns:
          The combined gradients of the N variables, and the scalars `surgery/weight/<task>`, {name:
          scalar}. If every step decides from its whole batch, there are also the scalars of
          `decision.monitor_gramian`.

        Raises:
          UserError: `on` is "representation" and the network has no output that tasks share, or a
            pattern of `scopes` matches no shared variable.
        """
        # A single task needs no surgery, only one backward pass.
        if len(losses) == 1:
            return Sum()(losses, variables, batch)
        whole = whole_batch.or_losses(batch, losses)
        if self.per_replica:
            whole = whole.without_replicas()
        batch_gradients = task_gradients.BatchGradients(
            whole, variables, self._check_representation
        )
        self._check_tasks(batch_gradients, list(losses))
        # The gradients are combined in one of three ways:
        # - by coordinate, if the method is a `CoordinateMethod`, such as GradDrop;
        # - by decisions, if weights are decided at some steps only, or from samples of the batch.
        #   A step that decides weights takes separate backward passes for single tasks. The update
        #   takes one more backward pass, from the weighted losses; a step that decides no weights
        #   takes only the backward pass of the update;
        # - by weights: each task's gradient gets a weight, if every step decides from its whole
        #   batch. The tasks' gradients that determine the weights are also summed for the update.
        if self._sees_coordinates:
            combine = self._combine_by_coordinate
        elif self.every_steps > 1 or self._weighing_method.samples > 1:
            combine = self._combine_by_decisions
        else:
            combine = self._combine_by_weights
        gradients, monitors = combine(batch_gradients, losses)
        # The losses of the replicas add up to the loss of the whole batch, so their gradients add
        # up, too.
        return replicas.sum_over_replicas(gradients) if self.per_replica else gradients, monitors

    def _check_tasks(
        self, batch_gradients: task_gradients.BatchGradients, names: Sequence[str]
    ) -> None:
        """Raise an error if a task trains shared variables, but has no gradient to compare."""
        if self.on == "parameters" and not self.scopes:
            return
        first = batch_gradients.first
        uncompared = first.list_uncompared(self._list_compared(first))
        where, rule = (
            "Combine.on",
            'be "parameters" for losses that reach shared variables on other paths',
        )
        if self.scopes:
            where, rule = "Combine.scopes", "match a variable of each loss"
        # If no task is compared, a later error says which tensor affects no loss.
        is_fine = len(uncompared) in (0, len(names))
        tasks = ", ".join(names[task] for task in uncompared)
        fix = f"Of {tasks}, no gradient is compared."
        checks.require(is_fine, where, rule, self.scopes or self.on, fix)

    def _check_representation(self, shared: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if self.on == "parameters":
            return []
        fix = 'The network has no output that tasks share: use "parameters".'
        checks.require(len(shared) > 0, "Combine.on", "suit the network", self.on, fix)
        return list(shared)

    def _list_compared(self, tasks: task_gradients.TaskGradients) -> list[int]:
        """Return the indices of the variables whose gradients are compared."""
        if self.on == "representation":
            return []
        return (
            tasks.select_shared("Combine.scopes", self.scopes)
            if self.scopes
            else list(tasks.shared)
        )

    def _combine_by_weights(
        self, batch_gradients: task_gradients.BatchGradients, losses: types.Tensors
    ) -> tuple[Gradients, Monitors]:
        """Decide weights from the tasks' gradients of the whole batch, and sum these gradients."""
        compare = (
            self._compare_parameters if self.on == "parameters" else self._compare_representation
        )
        gradients, weights, gramian = compare(batch_gradients, losses)
        monitors = decision.monitor_weights(weights, list(losses))
        return gradients, monitors | decision.monitor_gramian(gramian, list(losses))

    # Inner products of gradients over the whole batch are not the sum of the inner products over
    # its parts. So the gradients are summed over all parts of the batch before their inner products
    # are taken.
    def _compare_parameters(
        self, batch_gradients: task_gradients.BatchGradients, losses: types.Tensors
    ) -> tuple[Gradients, tf.Tensor, tf.Tensor]:
        tasks = batch_gradients.sum_gradients()
        indices = self._list_compared(tasks)
        if self._keeps_gradients:
            leaves, gramian, products = self._track_gradients(tasks, indices, len(losses))
        else:
            gramian, leaves = tasks.multiply(indices)
            products = gramian
        weights = self._decide_weights(lambda: products, losses)
        gradients = [leaf.combine(weights) for leaf in leaves.values()]
        return batch_gradients.complete(tasks, list(leaves), gradients, weights), weights, gramian

    def _track_gradients(
        self, tasks: task_gradients.TaskGradients, indices: Sequence[int], num_tasks: int
    ) -> tuple[dict[int, task_gradients.Leaf], tf.Tensor, tf.Tensor]:
        """Return averaged gradients, their inner products, and inner products for the method."""
        names = [patterns.variable_name(tasks.variables[n]) for n in indices]
        leaves = tasks.list_leaves(indices)
        if self._weighing_method.tracking_rate < 1:
            leaves = tracking.track_gradients(
                leaves, names, num_tasks, self._weighing_method.tracking_rate
            )
        gramian = products = task_gradients.compute_gramian(leaves, num_tasks)
        if self._weighing_method.preconditions:
            products = task_gradients.compute_gramian(
                tracking.precondition_gradients(leaves, names), num_tasks
            )
        return dict(zip(indices, leaves, strict=True)), gramian, products

    def _compare_representation(
        self, batch_gradients: task_gradients.BatchGradients, losses: types.Tensors
    ) -> tuple[Gradients, tf.Tensor, tf.Tensor]:
        # The weights need inner products over all parts of the batch, and the combined gradients
        # need the weights. So two passes go over the slices, and only the second pass runs the
        # UPDATE_OPS of the slices.
        gramian = batch_gradients.sum(
            lambda tasks: task_gradients.compute_gramian(tasks.list_leaves(), len(losses))
        )
        weights = self._decide_weights(lambda: gramian, losses)

        def spread(tasks: task_gradients.TaskGradients) -> Gradients:
            return tasks.continue_below(
                [leaf.combine(weights) for leaf in tasks.list_leaves()], weights
            )

        return batch_gradients.sum(spread, update=True), weights, gramian

    def _decide_weights(self, gramian: Callable[[], tf.Tensor], losses: types.Tensors) -> tf.Tensor:
        return decision.decide_weights(
            self._weighing_method, gramian, losses, self.every_steps, self.average
        )

    def _combine_by_decisions(
        self, batch_gradients: task_gradients.BatchGradients, losses: types.Tensors
    ) -> tuple[Gradients, Monitors]:
        """Decide weights at some steps, or from samples; then differentiate weighted losses."""
        size, indices = len(losses), self._list_compared(batch_gradients.first)
        gramian = batch_gradients.rare_gramian(
            "Combine", self.every_steps, indices, self._take_deciding
        )
        # With several samples, `gramian()[:size, -size:]` has the inner products between the
        # gradients of the first and of the second sample. With one sample, the slice is the whole
        # Gramian.
        weights = self._decide_weights(lambda: gramian()[:size, -size:], losses)

        def differentiate_weighted(tasks: task_gradients.TaskGradients) -> Gradients:
            # With three samples, the third sample gives the gradients of the update, because the
            # weights do not depend on its rows.
            moving = (
                self._take_samples(tasks)[-1]
                if self._weighing_method.samples == 3
                else tasks.losses
            )
            tasks = dataclasses.replace(tasks, losses=moving)
            return tasks.complete(tasks.differentiate_weighted(weights, tasks.shared))

        return batch_gradients.sum(differentiate_weighted, update=True), decision.monitor_weights(
            weights, list(losses)
        )

    def _take_deciding(self, tasks: task_gradients.TaskGradients) -> task_gradients.TaskGradients:
        """Return `tasks` with the losses that decide the weights: of all rows, or of samples."""
        if self._weighing_method.samples == 1:
            return tasks
        first, second, *_ = self._take_samples(tasks)
        return dataclasses.replace(tasks, losses=[*first, *second])

    def _take_samples(self, tasks: task_gradients.TaskGradients) -> list[list[tf.Tensor]]:
        fix = (
            "This method needs the losses of samples of the batch. Leave out "
            "MultiTaskModel.mixing, which mixes samples, and heads and auxiliary losses that "
            "compare rows."
        )
        if not tasks.samples:
            checks.fail("Combine.method", "suit the model", self.method, fix)
        return [list(losses.values()) for losses in tasks.samples(self._weighing_method.samples)]

    def _combine_by_coordinate(
        self, batch_gradients: task_gradients.BatchGradients, losses: types.Tensors
    ) -> tuple[Gradients, Monitors]:
        """Combine the tasks' gradients by a method that treats each coordinate separately."""
        # A `CoordinateMethod` decides no weights. So shared variables outside of `scopes` get the
        # sum of the tasks' gradients.
        count, ones = len(losses), tf.ones([len(losses)], tf.float64)
        if self.on == "parameters":
            tasks = batch_gradients.sum_gradients()
            indices = self._list_compared(tasks)
            leaves = tasks.list_leaves(indices)
            gramian = task_gradients.compute_gramian(leaves, count)
            evidence = [self._choosing_method.evidence(leaf.rows, None) for leaf in leaves]
            choices = self._choose_gradients(leaves, evidence, gramian)
            gradients = batch_gradients.complete(tasks, indices, choices, ones)
        else:

            def compare(tasks: task_gradients.TaskGradients) -> tuple[tf.Tensor, list[tf.Tensor]]:
                places = zip(tasks.list_leaves(), tasks.representation, strict=True)
                evidence = [self._choosing_method.evidence(leaf.rows, at) for leaf, at in places]
                return task_gradients.compute_gramian(tasks.list_leaves(), count), evidence

            # To choose gradients in one part of the batch, the method needs the values of
            # `evidence` from the whole batch.
            gramian, evidence = batch_gradients.sum(compare)

            def spread(tasks: task_gradients.TaskGradients) -> Gradients:
                return tasks.continue_below(
                    self._choose_gradients(tasks.list_leaves(), evidence, gramian), ones
                )

            gradients = batch_gradients.sum(spread, update=True)
        return gradients, decision.monitor_gramian(gramian, list(losses))

    def _choose_gradients(
        self,
        leaves: Sequence[task_gradients.Leaf],
        evidence: Sequence[tf.Tensor | None],
        gramian: tf.Tensor,
    ) -> list[types.Gradient]:
        """Return the combined gradient by each variable or tensor, from the tasks in the batch."""
        present, gradients = decision.find_present(gramian), []
        for index, (leaf, leaf_evidence) in enumerate(zip(leaves, evidence, strict=True)):
            is_present, seed = tf.gather(present, leaf.tasks), draws.make_balancing_seed(index)
            values = self._choose_among(is_present, leaf.rows, leaf_evidence, seed)
            # A task whose gradient is not finite counts as absent, but the update has to see the
            # NaN.
            values += tf.cast(decision.mark_nonfinite(gramian), values.dtype)
            gradients.append(leaf.to_gradient(values))
        return gradients

    def _choose_among(
        self, is_present: tf.Tensor, rows: tf.Tensor, evidence: tf.Tensor | None, seed: tf.Tensor
    ) -> tf.Tensor:
        """Combine the gradients [S, ...] of the present tasks, which are marked by a bool [S]."""

        def choose_some() -> tf.Tensor:
            # The method must not see absent tasks: in a trimmed mean, for example, the zeros of an
            # absent task would count as values.
            present_evidence = (
                evidence if evidence is None else tf.boolean_mask(evidence, is_present)
            )
            return self._choosing_method(tf.boolean_mask(rows, is_present), present_evidence, seed)

        # If no task is absent, this branch copies no gradient, and the number of rows is static.
        choose_all = functools.partial(self._choosing_method, rows, evidence, seed)
        return tf.cond(tf.reduce_all(is_present), choose_all, choose_some)
