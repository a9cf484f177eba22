"""Shows items of training steps in a branch of the graph, which runs only at due steps.

model_fn = functools.partial(model.model_fn, extensions=[watch_lib.Watching(board)])

The branch uses gradients that the surgery and the update compute in every step. Gradients that the
step itself does not need, such as the gradients of single tasks, are computed in the branch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.step import layer_hooks, outlets, replicas, whole_batch
from mtl.tools.tensorboard import board as board_lib
from mtl.tools.tensorboard import histograms, step_graph
from mtl.variables import patterns, stacks

Pairs = list[tuple["tf.Variable", types.Gradient]]
Entries = list["tf.Tensor"]
"""The weights of variables before a step, [N] each; for a table, only rows that are looked up."""


@dataclasses.dataclass(frozen=True)
class Watching:
    """Makes a `Watch` for each training step whose graph is built.

    Attributes:
      board: the `Board` that lists the items to show.
    """

    board: board_lib.Board
    suits_stacks = True

    def __call__(self, model: Any, features: types.Tensors, labels: types.Tensors) -> Watch:
        """Return a `Watch` for the step that is being built."""
        return Watch(self.board, model.adds_losses)


class Watch(types.StepExtension):
    """Computes TensorBoard items, such as histograms of weights, at the steps in their settings.

    Args:
      board: the `Board` that lists the items to show.
      adds_losses: True if the step only computes gradients of the sum of the losses.
    """

    def __init__(self, board: board_lib.Board, adds_losses: bool = True):
        self._board, self._adds_losses = board, adds_losses
        # Items would be the same on all replicas, so only the first replica shows them.
        self._is_shown = tf.get_static_value(replicas.replica_index()) in (0, None)
        self._items = board.due_items if self._is_shown else {}
        self._outputs: dict[str, tf.Tensor] = {}
        self._is_built = False
        self._balanced: Any = None  # The gradients for the update.
        self._parts: list[_Part] = []

    def wrap_forward(self, forward: types.Forward) -> types.Forward:
        """Return a forward pass that records the outputs of layers when it is first built."""
        if not self._is_shown:
            return forward

        def build_pass(features: Any, labels: Any) -> whole_batch.ForwardPass:
            # Further micro-batches and passes build the same ops again, so record only the first
            # pass.
            if self._is_built:
                return forward(features, labels)
            self._is_built = True
            notes = layer_hooks.NoteOutputs()
            with layer_hooks.attach(notes):
                forward_pass = forward(features, labels)
            self._outputs = notes.found
            if self._board.settings.graph:
                self._board.graph = step_graph.draw(forward_pass.losses, (features, labels))
            return forward_pass

        return build_pass

    @contextlib.contextmanager
    def around_update(self, found: Any, batch: Any) -> Iterator[None]:
        """Show the gradients of the update, which is built within this context.

        Raises:
          UserError: the update shows no gradients, a pattern matches no variable, or the network
            has no activation to show.
        """
        if not self._items:
            yield
            return
        del batch
        self._balanced = found
        # Check patterns before the update is built.
        self._check_patterns(found.variables)
        self._require_outputs()
        yield
        fix = "The model's update does not call `extensions.show_update`."
        self._require_part(bool(self._parts), next(iter(self._items.values()))[0], "update", fix)

    def see_update(
        self, gradients: Sequence[types.Connected], variables: Sequence[tf.Variable]
    ) -> None:
        """Draw the items that are due; `gradients` are the gradients that the optimizer gets."""
        balanced = self._balanced
        if balanced is None:
            return
        # An item is due if the global step after this step is due.
        step = tf1.train.get_or_create_global_step().read_value() + 1
        combined = self._select_pairs(balanced.variables, balanced.gradients)
        clipped = self._select_pairs(variables, gradients)
        for due, items in self._items.items():
            # All items that are due at the same steps share a branch of the graph.
            part = _Part(due.tell(step), clipped if "updates" in items else [])
            part.look(functools.partial(self._draw, items, combined, clipped, balanced.scaled))
            self._parts.append(part)

    def after_update(self, moved: tf.Operation) -> tf.Operation:
        """Add TensorBoard items to the summaries of the step, after the weights have changed."""
        for part in self._parts:
            outlets.add_summary(part.finish(moved))
        return moved

    def _check_patterns(self, variables: Sequence[tf.Variable]) -> None:
        for pattern in self._board.settings.variables:
            patterns.select_variables("TensorBoard.variables", pattern, variables)

    def _require_outputs(self) -> None:
        on = {name for items in self._items.values() for name in items}
        fix = "No layer of the network applies an activation by `mtl.layers`."
        for name in ("activations", "dead_units"):
            self._require_part(name not in on or bool(self._outputs), name, "network", fix)

    def _require_part(self, fits: bool, item: str, part: str, fix: str) -> None:
        got = getattr(self._board.settings, item)
        checks.require(fits, f"TensorBoard.{item}", f"be False with this {part}", got, fix)

    def _select_pairs(
        self, variables: Sequence[tf.Variable], gradients: Sequence[types.Gradient]
    ) -> Pairs:
        name_patterns = self._board.settings.variables
        return [
            (variable, gradient)
            for variable, gradient in zip(variables, gradients, strict=True)
            if not name_patterns
            or any(patterns.matches(pattern, variable) for pattern in name_patterns)
        ]

    def _draw(
        self,
        items: Sequence[str],
        combined: Pairs,
        clipped: Pairs,
        batch: whole_batch.WholeBatch,
    ) -> list[tf.Tensor]:
        """Draw the items in a branch of the graph, except for changes of the weights."""
        summaries: list[tf.Tensor] = []
        variables = [variable for variable, _ in combined]
        if "weights" in items:
            summaries += _draw_weights(variables)
        if "gradients_before_surgery" in items:
            before = combined
            if not self._adds_losses:
                # The pass over all micro-batches is inside of the branch, so it takes no time in
                # other steps.
                summed = batch.sum(lambda part: _differentiate_sum(part, variables))
                before = list(zip(variables, summed, strict=True))
            summaries += _draw_all("gradients_before_surgery", before)
        if "task_gradients" in items:
            summaries += _draw_tasks(batch, variables)
        if "gradients" in items:
            summaries += _draw_all("gradients", combined)
        if "clipped_gradients" in items:
            summaries += _draw_all("clipped_gradients", clipped)
        return summaries + self._draw_layers(items, num_tasks=len(batch.first.losses))

    def _draw_layers(self, items: Sequence[str], num_tasks: int) -> list[tf.Tensor]:
        summaries = []
        for layer, outputs in self._outputs.items():
            if "activations" in items:
                summaries.append(histograms.draw(f"activations/{layer}", outputs))
            if "dead_units" in items:
                share = _share_dead(outputs, num_tasks)
                summaries.append(histograms.draw_scalar(f"dead_units/{layer}", share))
        return summaries


class _Part:
    """A branch of the graph for TensorBoard items that are computed at the same steps.

    Args:
      is_due: a bool scalar of the graph: True at steps that compute the items.
      moving: pairs of a variable whose change is shown, and of the gradient that the optimizer gets
        for this variable.
    """

    def __init__(self, is_due: tf.Tensor, moving: Pairs):
        self._is_due, self._moving = is_due, moving
        self._summary = tf.constant("")
        self._weights: Entries = []

    def look(self, draw: Callable[[], list[tf.Tensor]]) -> None:
        """Draw TensorBoard items before the weights change; store weights whose change is shown."""

        def when_due() -> list[tf.Tensor]:
            return [histograms.join(draw()), *(_read_entries(*pair) for pair in self._moving)]

        def else_nothing() -> list[tf.Tensor]:
            # Both branches of `tf.cond` need the same number and types of outputs.
            return [tf.constant(""), *(tf.zeros([0]) for _ in self._moving)]

        self._summary, *self._weights = tf.cond(self._is_due, when_due, else_nothing)
        # Wait for all outputs of the branch before the update, because each output is ready at
        # another time.
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, tf.group(self._summary, *self._weights))

    def finish(self, train_op: tf.Operation) -> tf.Tensor:
        """Return the serialized summary of the step, with the change of the weights."""
        if not self._moving:
            return self._summary

        def when_due() -> tf.Tensor:
            summaries = []
            for (variable, gradient), before in zip(self._moving, self._weights, strict=True):
                summaries += _draw_update(variable, gradient, before)
            return histograms.join([self._summary, *summaries])

        # The change of the weights is only known after the update.
        with tf.control_dependencies([train_op]):
            return tf.cond(self._is_due, when_due, lambda: tf.constant(""))


def _differentiate_sum(part: Any, variables: Sequence[tf.Variable]) -> list[types.Gradient]:
    return tf.gradients(tf.add_n(list(part.losses.values())), list(variables))


def _draw_weights(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    return [
        histograms.draw(f"weights/{name}", values)
        for variable in variables
        for name, values in histograms.split(variable, variable.read_value())
    ]


def _draw_all(prefix: str, pairs: Pairs) -> list[tf.Tensor]:
    return [
        summary
        for variable, gradient in pairs
        for summary in histograms.draw_gradient(prefix, gradient, variable)
    ]


def _draw_tasks(batch: whole_batch.WholeBatch, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Draw histograms of the gradients of each task's weighted loss."""

    def of_part(part: Any) -> dict[str, list[types.Gradient]]:
        return {task: tf.gradients(loss, list(variables)) for task, loss in part.losses.items()}

    summaries = []
    for task, gradients in batch.sum(of_part).items():
        for pair in zip(variables, gradients, strict=True):
            summaries += _draw_all(f"task_gradients/{task}", [pair])
    return summaries


def _read_entries(variable: tf.Variable, gradient: types.Gradient) -> tf.Tensor:
    """Return the entries of a variable, [N]; for a table, only the rows with a gradient."""
    if isinstance(gradient, tf.IndexedSlices):
        # `unique` keeps the order, so rows before and after the update have the same order.
        values = tf.gather(variable, tf.unique(gradient.indices).y)
    else:
        values = variable.read_value()
    return tf.reshape(tf.cast(values, tf.float32), [-1])


def _draw_update(
    variable: tf.Variable, gradient: types.Gradient, before: tf.Tensor
) -> list[tf.Tensor]:
    change = _read_entries(variable, gradient) - before
    shape, is_table = variable.shape, isinstance(gradient, tf.IndexedSlices)
    if is_table:
        # The number of rows that are looked up depends on the batch.
        shape = tf.TensorShape([None, *shape[1:]])
    target_shape = [-1, *shape[1:]]
    changes = histograms.split(variable, tf.reshape(change, target_shape))
    old_weights = histograms.split(variable, tf.reshape(before, target_shape))
    summaries = []
    for (name, moved), (_, weights) in zip(changes, old_weights, strict=True):
        summaries.append(histograms.draw(f"updates/{name}", moved))
        # If all weights are 0, the ratio is NaN or infinity, which `writing.keep_whole` drops.
        share = tf.linalg.norm(moved) / tf.linalg.norm(weights)
        summaries.append(histograms.draw_scalar(f"update_ratio/{name}", share))
    return summaries


def _share_dead(outputs: tf.Tensor, num_tasks: int) -> tf.Tensor:
    """Return the share of units, along the last axis, that are 0 in all rows."""
    # Reduce all axes except the units: the rows, and the height and width of a map.
    axes = list(range(outputs.shape.rank - 1))
    # In a stack [B, T, H], each task has separate units.
    if stacks.are_stacked(num_tasks) and outputs.shape[1:-1] == [num_tasks]:
        axes = [0]
    return tf.reduce_mean(tf.cast(tf.reduce_all(tf.equal(outputs, 0), axes), tf.float32))
