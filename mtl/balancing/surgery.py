"""Gradients decide: one update direction from the losses of several tasks.

from mtl.balancing import methods, surgery
model.MultiTaskModel.surgery = @surgery.Combine()      # surgery.Sum() by default
surgery.Combine.method = @methods.PCGrad()
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import tensorflow as tf

from mtl import checks, types
from mtl.balancing import decision, task_gradients, tracking
from mtl.balancing.methods import method as method_lib
from mtl.step import draws, replicas, whole_batch
from mtl.variables import patterns

Gradients = list[types.Gradient]
Monitors = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sum:
    """The gradient of the sum of the weighted losses, in one backward pass."""

    reads_losses = False

    def __call__(
        self,
        losses: types.Tensors,
        variables: Sequence[tf.Variable],
        batch: whole_batch.WholeBatch | None = None,
    ) -> tuple[Gradients, Monitors]:
        """{task: scalar} and N variables -> N gradients, and `<task>/loss` of `batch`, unweighted.

        The gradient of a table that was only looked up is IndexedSlices, of a variable that no
        loss depends on None.
        """
        batch = batch or whole_batch.WholeBatch(whole_batch.Part(losses))

        def total(part: whole_batch.Part) -> tuple[Gradients, types.Tensors]:
            gradients = tf.gradients(tf.add_n(list(part.losses.values())), list(variables))
            return gradients, part.unweighted or {}

        gradients, plain = batch.sum(total, update=True)
        return gradients, {f"{task}/loss": loss for task, loss in plain.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Combine:
    """Combines the tasks' gradients as `method` decides; `g = sum_t w_t g_t` for most methods.

    It concerns the variables that several tasks share, as seen in the graph. A variable of one
    task gets the gradient of that task's weighted loss. A task without a gradient in a batch (no
    label, a loss of zero) is left out of the decision of that step.

    Attributes:
      method: decides; a part of `mtl.balancing.methods`.
      on: where the gradients are compared. "parameters" is exact: one backward pass for each task.
        "representation" is the shared output of the network: each task's pass ends there, and one
        pass of the combined gradient goes on through the shared trunk (Sener and Koltun, 2018,
        arXiv:1810.04650). Cheap, and an upper bound: directions differ from the exact ones.
      scopes: patterns; compares the gradients of the matching shared variables only, such as the
        last shared layer. The weights then apply to all shared variables.
      every_steps: the weights are decided on global steps that are multiples of this and kept in
        between, where a step is one backward pass. 1 decides at every step.
      average: rate in [0, 1) at which past weights persist: `w <- average w + (1 - average) new`,
        from w = 1. 0 takes the new ones. S. Zhou et al., "On the Convergence of Stochastic
        Multi-Objective Gradient Manipulation and Beyond" (CR-MOGM), NeurIPS 2022.
      per_replica: several replicas decide together, from the gradients of the whole batch, and send
        T gradients around. Where this is True, each decides from its own part of the batch, and
        they send only what they combined: cheaper, and another method.
    """

    method: method_lib.Method | method_lib.CoordinateMethod
    on: str = "parameters"
    scopes: Sequence[str] = ()
    every_steps: int = 1
    average: float = 0.0
    per_replica: bool = False

    def __post_init__(self):
        checks.part("Combine.method", self.method, "methods.PCGrad")
        rule = "be a method, such as @methods.PCGrad()"
        kinds = (method_lib.Method, method_lib.CoordinateMethod)
        checks.is_a("Combine.method", self.method, kinds, rule)
        checks.one_of("Combine.on", self.on, ("parameters", "representation"))
        patterns.check("Combine.scopes", self.scopes)
        checks.is_a("Combine.every_steps", self.every_steps, int, "be a number of steps")
        checks.positive("Combine.every_steps", self.every_steps)
        checks.rate("Combine.average", self.average)
        checks.is_a("Combine.per_replica", self.per_replica, bool, "be True or False")
        alone = self.on == "parameters" or not self.scopes
        fix = 'They choose among parameters: set Combine.on = "parameters".'
        checks.require(alone, "Combine.scopes", "be empty on the representation", self.scopes, fix)
        if self._sees_coordinates:
            fix = "decides for every coordinate; it has no weights to keep."
            self._require("every_steps", 1, fix)
            self._require("average", 0, fix)
        elif self._keeps_gradients:
            self._require("every_steps", 1, "keeps what it learns of the gradients of every step.")
            fix = "keeps gradients over steps; a batch's activations are new in each."
            self._require("on", "parameters", fix)
        elif self._weighing.samples > 1:
            fix = "multiplies gradients of different rows; on the representation rows do not meet."
            self._require("on", "parameters", fix)

    def _require(self, setting: str, value: Any, why: str) -> None:
        own, fix = getattr(self, setting), f"{type(self.method).__name__} {why}"
        checks.require(own == value, f"Combine.{setting}", f"be {value}", own, fix)

    @property
    def _weighing(self) -> method_lib.Method:
        """The method, where it does not see coordinates."""
        return cast(method_lib.Method, self.method)

    @property
    def _choosing(self) -> method_lib.CoordinateMethod:
        """The method, where it sees coordinates."""
        return cast(method_lib.CoordinateMethod, self.method)

    @property
    def _keeps_gradients(self) -> bool:
        return self._weighing.tracking_rate < 1 or self._weighing.preconditions

    @property
    def _sees_coordinates(self) -> bool:
        return isinstance(self.method, method_lib.CoordinateMethod)

    def __call__(
        self,
        losses: types.Tensors,
        variables: Sequence[tf.Variable],
        batch: whole_batch.WholeBatch | None = None,
    ) -> tuple[Gradients, Monitors]:
        """{task: scalar}, N variables and the parts of the batch -> N gradients, scalars.

        The scalars are `surgery/weight/<task>`, and where every step decides by whole batches also
        `surgery/norm/<task>` and `surgery/conflicts`, the share of pairs of tasks whose
        gradients have a negative inner product.

        Args:
          losses: of the whole batch.
          variables: in any order.
          batch: its parts, and what their tasks share; by default these losses alone.

        Raises:
          UserError: on the representation, if the network has none; if a pattern of `scopes`
            matches no shared variable.
        """
        if len(losses) == 1:
            return Sum()(losses, variables, batch)
        batch = batch or whole_batch.WholeBatch(whole_batch.Part(losses))
        if self.per_replica:
            batch = batch.own()
        parts = task_gradients.Parts(batch, variables, self._representation)
        if self._sees_coordinates:
            combine = self._by_coordinate
        elif self.every_steps > 1 or self._weighing.samples > 1:
            combine = self._by_decisions
        else:
            combine = self._by_weights
        gradients, monitors = combine(parts, losses)
        return replicas.total(gradients) if self.per_replica else gradients, monitors

    def _representation(self, shared: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if self.on == "parameters":
            return []
        fix = 'The network has no output that tasks share: use "parameters".'
        checks.require(len(shared) > 0, "Combine.on", "suit the network", self.on, fix)
        return list(shared)

    def _compared(self, tasks: task_gradients.TaskGradients) -> list[int]:
        """Return the indices of the variables whose gradients are compared."""
        if self.on == "representation":
            return []
        return tasks.matching("Combine.scopes", self.scopes) if self.scopes else list(tasks.shared)

    def _by_weights(
        self, parts: task_gradients.Parts, losses: types.Tensors
    ) -> tuple[Gradients, Monitors]:
        """Return the sum of what the decision was made by."""
        compare = self._on_parameters if self.on == "parameters" else self._on_representation
        gradients, weights, gramian = compare(parts, losses)
        monitors = decision.weight_monitors(weights, list(losses))
        return gradients, monitors | decision.monitors(gramian, list(losses))

    def _on_parameters(
        self, parts: task_gradients.Parts, losses: types.Tensors
    ) -> tuple[Gradients, tf.Tensor, tf.Tensor]:
        tasks = parts.whole()
        compared = self._compared(tasks)
        names = [patterns.name(tasks.variables[n]) for n in compared]
        leaves = tasks.leaves(compared)
        if self._weighing.tracking_rate < 1:
            leaves = tracking.tracked(leaves, names, len(losses), self._weighing.tracking_rate)
        gramian = judged = task_gradients.gramian(leaves, len(losses))
        if self._weighing.preconditions:
            judged = task_gradients.gramian(tracking.preconditioned(leaves, names), len(losses))
        weights = self._decide(lambda: judged, losses)
        combined = [leaf.combined(weights) for leaf in leaves]
        return parts.completed(tasks, compared, combined, weights), weights, gramian

    def _on_representation(
        self, parts: task_gradients.Parts, losses: types.Tensors
    ) -> tuple[Gradients, tf.Tensor, tf.Tensor]:
        gramian = parts.sum(lambda part: task_gradients.gramian(part.leaves(), len(losses)))
        weights = self._decide(lambda: gramian, losses)

        def spread(part: task_gradients.TaskGradients) -> Gradients:
            return part.spread([leaf.combined(weights) for leaf in part.leaves()], weights)

        return parts.sum(spread, update=True), weights, gramian

    def _decide(self, gramian: Callable[[], tf.Tensor], losses: types.Tensors) -> tf.Tensor:
        return decision.weights(self._weighing, gramian, losses, self.every_steps, self.average)

    def _by_decisions(
        self, parts: task_gradients.Parts, losses: types.Tensors
    ) -> tuple[Gradients, Monitors]:
        """Of the weighted losses, in one pass."""
        size, compared = len(losses), self._compared(parts.first)
        gramian = parts.rare_gramian("Combine", self.every_steps, compared, self._deciding)
        weights = self._decide(lambda: gramian()[:size, -size:], losses)

        def weighted(part: task_gradients.TaskGradients) -> Gradients:
            moving = self._samples(part)[-1] if self._weighing.samples == 3 else part.losses
            part = dataclasses.replace(part, losses=moving)
            return part.completed(part.weighted(weights, part.shared))

        return parts.sum(weighted, update=True), decision.weight_monitors(weights, list(losses))

    def _deciding(self, part: task_gradients.TaskGradients) -> task_gradients.TaskGradients:
        """With the losses that decide: of two samples, where the method takes some."""
        if self._weighing.samples == 1:
            return part
        first, second, *_ = self._samples(part)
        return dataclasses.replace(part, losses=[*first, *second])

    def _samples(self, part: task_gradients.TaskGradients) -> list[list[tf.Tensor]]:
        fix = "It needs the losses of samples of the batch."
        if not part.samples:
            checks.fail("Combine.method", "suit the model", self.method, fix)
        return [list(losses.values()) for losses in part.samples(self._weighing.samples)]

    def _by_coordinate(
        self, parts: task_gradients.Parts, losses: types.Tensors
    ) -> tuple[Gradients, Monitors]:
        """Return the method's choice at each coordinate."""
        count, ones = len(losses), tf.ones([len(losses)], tf.float64)
        if self.on == "parameters":
            tasks = parts.whole()
            compared = self._compared(tasks)
            leaves = tasks.leaves(compared)
            gramian = task_gradients.gramian(leaves, count)
            evidence = [self._choosing.evidence(leaf.rows, None) for leaf in leaves]
            chosen = self._chosen(leaves, evidence, gramian)
            gradients = parts.completed(tasks, compared, chosen, ones)
        else:

            def compare(part: task_gradients.TaskGradients) -> tuple[tf.Tensor, list[tf.Tensor]]:
                places = zip(part.leaves(), part.representation, strict=True)
                evidence = [self._choosing.evidence(leaf.rows, at) for leaf, at in places]
                return task_gradients.gramian(part.leaves(), count), evidence

            gramian, evidence = parts.sum(compare)

            def spread(part: task_gradients.TaskGradients) -> Gradients:
                return part.spread(self._chosen(part.leaves(), evidence, gramian), ones)

            gradients = parts.sum(spread, update=True)
        return gradients, decision.monitors(gramian, list(losses))

    def _chosen(
        self,
        leaves: Sequence[task_gradients.Leaf],
        evidence: Sequence[tf.Tensor | None],
        gramian: tf.Tensor,
    ) -> list[types.Gradient]:
        """Return a gradient for each leaf, by the tasks that are present."""
        present, chosen = decision.present(gramian), []
        for index, (leaf, own) in enumerate(zip(leaves, evidence, strict=True)):
            there = tf.gather(present, leaf.tasks)
            own = own if own is None else tf.boolean_mask(own, there)
            seed = draws.balancing_seed(index)
            values = self._choosing(tf.boolean_mask(leaf.rows, there), own, seed)
            values += tf.cast(decision.spoiled(gramian), values.dtype)
            chosen.append(leaf.like(values))
        return chosen
