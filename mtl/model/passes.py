"""Builds the graph from features to logits: columns, mixing of rows, network and heads."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from mtl import checks, deferred, types
from mtl import features as features_lib
from mtl.auxiliary import activations as activations_lib
from mtl.deferred import tf, tf1
from mtl.example_gradients import proof
from mtl.heads import together
from mtl.layers import precision as precision_lib
from mtl.model import settings
from mtl.step import draws, outlets, whole_batch
from mtl.variables import freezing as freezing_lib

with deferred.imports():
    from mtl.variables import average_saver, stacks


class Outputs(NamedTuple):
    """The tensors of a forward pass from features to logits.

    Attributes:
      encoded: the encoded columns, {column: [B, D] or [B, H, W, C]}.
      inputs: the inputs of the network: `encoded`, as changed by the extensions of the pass.
      towers: the outputs of the network, {task: [B, H]}.
      logits: the outputs of the heads, {task: [B, C]}.
    """

    encoded: types.Tensors
    inputs: types.Tensors
    towers: types.Towers
    logits: types.Tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes(settings.Settings):
    """The forward pass of a model, from features to logits."""

    def infer_activations(
        self, features: types.Tensors, labels: types.Tensors, statistics: features_lib.Statistics
    ) -> activations_lib.Activations:
        """Compute the tensors that auxiliary losses read, in evaluation mode.

        In evaluation mode, rows do not affect each other. `infer_activations` adds no UPDATE_OPS to
        the graph.

        Args:
          features: {field: [B, ...]}.
          labels: {field: [B, ...]}; only passed on to the result.
          statistics: the statistics of the training split.

        Returns:
          Inputs, towers and logits of the B rows, which are not mixed.
        """
        scope = tf1.get_variable_scope()
        with (
            whole_batch.withhold_collections(),
            draws.know_rows(features),
            outlets.collect_losses() as emitted,
        ):
            outputs = self.build_outputs(features, statistics, training=False)
        return self.gather_activations(features, labels, outputs, scope, emitted, training=False)

    def build_towers(
        self, features: types.Tensors, statistics: features_lib.Statistics, training: bool
    ) -> types.Towers:
        """Encode the features, and run the network up to the heads.

        Args:
          features: {field: [B, ...]}.
          statistics: the statistics of the training split.
          training: True for training mode.

        Returns:
          The towers, {task: [B, H], or a map [B, H, W, C]}.
        """
        return self._build_network(self._encode(features, statistics, training), training)

    def build_logits(self, towers: types.Tensors, features: types.Tensors) -> dict[str, tf.Tensor]:
        """Run all heads on the outputs of the network.

        Args:
          towers: {task: [B, H]}, for the tasks in `tower_tasks`.
          features: {field: [B, ...]}, for heads with calibration slices.

        Returns:
          The logits of all tasks, {task: [B, C]}.
        """

        def build(head: types.Head, tower: tf.Tensor) -> tf.Tensor:
            trainable = types.read_member(head, types.Head, "trainable")
            with tf1.variable_scope(f"head/{head.name}"), freezing_lib.hold_part(trainable):
                calibrate = types.read_member(head, types.CalibratedHead, "calibrate")
                return calibrate(head.logits(tower), features)

        with_tower = set(self.tower_tasks)
        heads = [head for head in self.heads if head.name in with_tower]
        logits = together.build_logits(heads, towers, build)
        for head in self.heads:
            if head.name not in with_tower:
                with tf1.variable_scope(f"head/{head.name}"):
                    logits[head.name] = cast(types.ComposingHead, head).compose(logits)
        return {head.name: logits[head.name] for head in self.heads}

    def build_outputs(
        self,
        features: types.Tensors,
        statistics: features_lib.Statistics,
        training: bool,
        extensions: Sequence[types.PassExtension] = (),
    ) -> Outputs:
        """Run the model from features to logits.

        Args:
          features: {field: [B, ...]}.
          statistics: the statistics of the training split.
          training: True for training mode.
          extensions: the extensions of this pass.

        Returns:
          The tensors of the pass, B rows each.

        Raises:
          UserError: the network returns no tower for a task, or a tower of the wrong rank; or a
            pattern of the quantization matches nothing.
        """
        with self._separate_tasks(training), self.quantize(training):
            encoded = self._encode(features, statistics, training)
            inputs: types.Tensors = encoded
            for extension in extensions:
                inputs = extension.change_inputs(inputs)
            towers = self._build_network(inputs, training)
            logits = self.build_logits(towers, features)
        return Outputs(encoded, inputs, towers, logits)

    def run_again(
        self, features: types.Tensors, inputs: types.Tensors, training: bool
    ) -> tuple[types.Towers, dict[str, tf.Tensor]]:
        """Run network and heads a second time, on other inputs for the same rows.

        Args:
          features: {field: [B, ...]}, the features of the rows.
          inputs: {column: [B, D] or [B, H, W, C]}, the inputs of the network.
          training: True for training mode.

        Returns:
          Towers {task: [B, H]} and logits {task: [B, C]}.
        """
        with self._separate_tasks(training), self.quantize(training, requires_use=False):
            towers = self._build_network(inputs, training)
            return towers, self.build_logits(towers, features)

    def quantize(
        self, training: bool, requires_use: bool = True
    ) -> contextlib.AbstractContextManager[object]:
        """Quantise the network that is built in the context, if the model has a `quantization`.

        Args:
          training: True for training mode.
          requires_use: True raises an error at the end of the context for each pattern that has
            matched nothing.

        Raises:
          UserError: a pattern of the quantization matches nothing.
        """
        if self.quantization is None:
            return contextlib.nullcontext()
        return self.quantization.quantize_network(training, requires_use)

    def gather_activations(
        self,
        features: types.Tensors,
        labels: types.Tensors,
        outputs: Outputs,
        scope: Any,
        emitted: types.Tensors,
        training: bool,
    ) -> activations_lib.Activations:
        """Collect the tensors that auxiliary losses and attacks may read.

        Args:
          features: {field: [B, ...]}.
          labels: {field: [B, ...]}.
          outputs: the tensors of the first pass over these rows.
          scope: the variable scope in which the first pass was built; further passes reuse it.
          emitted: {name: [B]}, the losses that columns and network emitted in the first pass.
          training: True runs further passes in training mode.
        """
        forward = functools.partial(self.run_again, features, training=training)
        of_network = outputs.inputs, outputs.towers, outputs.logits
        return activations_lib.Activations(
            features, labels, *of_network, self.heads_by_task, forward, scope, emitted
        )

    def name_predictions(self, logits: types.Tensors) -> dict[str, tf.Tensor]:
        """Compute the predictions of all tasks.

        Args:
          logits: {task: [B, C]}, or [B, H, W, C] for a map.

        Returns:
          {"<task>/<prediction>": [B, ...]}.
        """
        return together.build_predictions(self.heads, logits)

    def build_scaffold(self) -> tf.compat.v1.train.Scaffold | None:
        """Return a scaffold that restores averaged or unmasked weights; None if there are none."""
        averaged = types.read_member(self.update, types.Update, "average")
        is_hidden = any(part.hides_weights for part in self.pruning)
        return tf1.train.Scaffold(saver=average_saver.Saver()) if averaged or is_hidden else None

    def _separate_tasks(self, training: bool) -> contextlib.AbstractContextManager[object]:
        # Surgery finds the variables of a single task in the graph, so tasks must not share ops:
        # see `separate_tasks`.
        return stacks.separate_tasks(training and not self.adds_losses)

    def _encode(
        self, features: types.Tensors, statistics: features_lib.Statistics, training: bool
    ) -> dict[str, tf.Tensor]:
        inputs = features_lib.encode_columns(self.columns, features, statistics, training)
        if training:
            changed = [part.columns for part in self.columns if getattr(part, "augmentations", ())]
            for name in [name for columns in changed for name in columns]:
                # Augmentations change each image separately. `proof` has no rules for the ops of
                # augmentations, so the code declares that each row stays separate.
                inputs[name] = proof.declare(inputs[name])
        return inputs

    def _build_network(self, inputs: types.Tensors, training: bool) -> types.Towers:
        with tf1.variable_scope("network"):
            return precision_lib.run_network(
                lambda inside: self._run_network(inside, training), inputs, training
            )

    def _run_network(self, inputs: types.Tensors, training: bool) -> types.Towers:
        """Run the network, and raise an error unless it returns a tower for every task."""
        tasks, kind = self.tower_tasks, type(self.network).__name__
        towers = self.network(inputs, tasks, training)
        where = f"MultiTaskModel.network, {kind},"
        checks.is_a(where, towers, Mapping, "return types.Towers")
        fix = f"Missing: {', '.join(task for task in tasks if task not in towers)}."
        has_all = all(task in towers for task in tasks)
        checks.require(has_all, where, "return a tower for every task", list(towers), fix)
        rows = next((value.shape[:1] for value in inputs.values()), tf.TensorShape([None]))
        for task in tasks:
            of_task = f"{where} tower {task!r}"
            checks.is_a(of_task, towers[task], tf.Tensor, "be a tensor")
            _check_tower(of_task, self.heads_by_task[task], towers[task].shape, rows)
        return towers


def _check_tower(where: str, head: types.Head, shape: tf.TensorShape, rows: tf.TensorShape) -> None:
    """Check that a tower has the rank that its head needs, and as many rows as the batch."""
    rank, rule, fix = 2, "be [B, H] of a known H", ""
    if types.read_member(head, types.MapHead, "is_dense"):
        rank, rule = 4, "be a map, [B, H, W, C] of known sizes"
        fix = "The trunk networks.UNet returns maps."
    elif shape.rank == 4:
        fix = f"{type(head).__name__} predicts no maps."
    fits = shape.rank == rank and shape[1:].is_fully_defined()
    checks.require(fits, where, rule, tuple(shape), fix)
    rule = f"have a row for each of the {rows[0]} rows"
    checks.require(shape[:1].is_compatible_with(rows), where, rule, shape[0])
