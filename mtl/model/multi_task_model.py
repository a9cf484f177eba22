"""The model, as the `model_fn` of an Estimator; `MultiTaskModel._step` builds a training step.

from mtl import model
model.MultiTaskModel.columns = [@features.Numeric()]
model.MultiTaskModel.network = @shared_bottom.SharedBottom()
model.MultiTaskModel.heads = [@income/heads.Binary(), @never_married/heads.Binary()]
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from typing import Any, cast

from mtl import checks, types
from mtl import features as features_lib
from mtl.auxiliary import row_losses
from mtl.balancing import balanced
from mtl.deferred import compat, tf, tf1
from mtl.heads import slice_metrics, together
from mtl.layers import precision as precision_lib
from mtl.model import combined as combined_lib
from mtl.model import graph_options, passes
from mtl.optimization import schedules
from mtl.step import draws, outlets, training_loop, whole_batch
from mtl.step import extensions as extensions_lib
from mtl.variables import row_names, stacks


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiTaskModel(passes.Passes):
    """A shared network with a head for each task; its `model_fn` is for an Estimator."""

    def fitted(self, statistics: features_lib.Statistics) -> MultiTaskModel:
        """Return a copy whose heads and metrics know the statistics of the training split.

        Args:
          statistics: the statistics of the run, with the entries of all accumulators of heads.

        Raises:
          UserError: the run has tasks, classes or values in another order.
        """
        # Every command that restores a checkpoint calls this method first.
        directory = os.path.dirname(statistics.directory)
        self.require_order(row_names.load(directory, with_files=False), statistics)
        heads = [
            types.read_member(head, types.FittedHead, "fitted")(statistics) for head in self.heads
        ]
        combined = [
            types.read_member(part, types.CombinedMetric, "fitted")(statistics)
            for part in self.combined_metrics
        ]
        return dataclasses.replace(self, heads=heads, combined_metrics=combined)

    def fill_schedules(self, train_steps: int) -> MultiTaskModel:
        """Return a copy in which schedules without a length last for the whole run.

        Args:
          train_steps: the number of steps of the run.
        """
        return schedules.fill_decay_steps(self, train_steps)

    def model_fn(
        self,
        features: Any,
        labels: types.Tensors | None,
        mode: str,
        *,
        options: graph_options.GraphOptions,
    ) -> compat.estimator.EstimatorSpec:
        """Build the graph of training, evaluation or prediction; Estimator calls this method.

        Args:
          features: {field: [B, ...]}. In training with `GraphOptions.loop`: an iterator of
            (features, labels).
          labels: {field: [B, ...]}; None in prediction.
          mode: a `tf.estimator.ModeKeys`.
          options: further options of the graph.

        Returns:
          An EstimatorSpec: with loss and train_op in training; with loss, metrics and hooks in
          evaluation; with predictions and export outputs in prediction.
        """
        if options.extensions is None:
            options = dataclasses.replace(options, extensions=self.step_extensions)
        with stacks.stack_tasks(options.may_stack and self._can_stack(options)):
            spec = self._build_graph(features, labels, mode, options)
        saver = stacks.add_saver()
        if saver is None or mode != compat.estimator.ModeKeys.PREDICT:
            return spec
        saver.build()  # An export needs a scaffold whose saver is built.
        return spec._replace(scaffold=tf1.train.Scaffold(saver=saver))

    def _can_stack(self, options: graph_options.GraphOptions) -> bool:
        """Return True if equal tasks may share stacked variables in this graph."""
        # Micro-batches, and extensions such as audits, cannot handle stacked variables.
        suits = [getattr(make, "suits_stacks", False) for make in options.extensions or ()]
        is_plain = options.slices == 1 and options.precision == precision_lib.PLAIN
        return is_plain and all(suits) and self.stacks_tasks

    def _build_graph(
        self,
        features: Any,
        labels: types.Tensors | None,
        mode: str,
        options: graph_options.GraphOptions,
    ) -> compat.estimator.EstimatorSpec:
        """Build the graph of a mode; see `model_fn`."""
        if mode == compat.estimator.ModeKeys.TRAIN:
            plain = functools.partial(self._step, options)
            step = self.held.wrap_step(options.precision.wrap_step(plain))
            if options.loop:
                result = training_loop.run_repeatedly(step, features, **options.loop)
            else:
                result = training_loop.run_once(step, features, labels)
            _require_tables_outside()
            loss = balanced.hide_nan(result["loss"])
            return compat.estimator.EstimatorSpec(
                mode, loss=loss, train_op=result.step, **options.training_hooks(result)
            )

        with outlets.drop_summaries():  # Only training writes summaries.
            return self._infer(features, labels, mode, options)

    def _infer(
        self,
        features: Any,
        labels: Any,
        mode: str,
        options: graph_options.GraphOptions,
    ) -> compat.estimator.EstimatorSpec:
        """Build the graph of evaluation or of prediction."""
        scope = tf1.get_variable_scope()
        with draws.know_rows(features):
            outputs = self.build_outputs(features, options.statistics, training=False)
        logits = outputs.logits
        if options.attack is not None and mode == compat.estimator.ModeKeys.EVAL:
            plain = self.gather_activations(features, labels, outputs, scope, {}, training=False)
            logits = options.attack.attack(plain).logits
        scaffold = self.build_scaffold()
        if mode == compat.estimator.ModeKeys.PREDICT:
            predictions = self.name_predictions(logits)
            return compat.estimator.EstimatorSpec(
                mode,
                predictions={**predictions, **outlets.take_predictions()},
                export_outputs=self._export_outputs(logits, predictions),
                scaffold=scaffold,
            )
        losses = self._compute_losses(logits, labels)
        metrics = dict(together.build_metrics(self.heads, logits, labels))
        metrics |= slice_metrics.build_metrics(self.slices, self.heads, logits, features, labels)
        metrics |= combined_lib.build_metrics(self.combined_metrics, metrics, self.find_direction)
        weights = self._sum_label_weights(labels)
        metrics["average_loss"] = together.sum_average_losses(metrics, weights)
        return compat.estimator.EstimatorSpec(
            mode,
            loss=tf.add_n(list(losses.values())),
            eval_metric_ops=metrics,
            evaluation_hooks=options.evaluation_hooks(features, labels, logits),
            scaffold=scaffold,
        )

    def _step(
        self, options: graph_options.GraphOptions, features: types.Tensors, labels: types.Tensors
    ) -> tuple[tf.Operation, dict[str, tf.Tensor]]:
        """Build one training step: encode -> network -> heads -> weighting -> surgery -> update."""
        for head in self.heads_with_loss:
            labels = types.read_member(head, types.BatchHead, "see_batch")(labels)
        all_extensions = [make(self, features, labels) for make in options.extensions or ()]
        with extensions_lib.enter(all_extensions) as extensions:
            forward: types.Forward = functools.partial(self._pass_forward, options.statistics)
            for extension in extensions:
                forward = extension.wrap_forward(forward)
            # The batch takes one forward pass on each replica or, with micro-batches, one forward
            # pass for each micro-batch.
            batch = whole_batch.build_batch(
                forward,
                self._sum_row_weights,
                features,
                labels,
                options.slices,
                are_rows_apart=self.are_rows_apart,
            )
            of_network = outlets.take_scalars()
            parts = self.weigh_losses, self.surgery, self.reads_losses
            result = balanced.balance_losses(batch, *parts)
            with contextlib.ExitStack() as stack:
                for extension in extensions:
                    stack.enter_context(extension.around_update(result, batch))
                train_op, of_update = self.update(result.penalised, result.variables, result.losses)
            for extension in extensions:
                train_op = extension.after_update(train_op)
            of_extensions = outlets.take_scalars()
        if result.penalty is not None:
            of_update["regularization"] = result.penalty + of_update.get("regularization", 0.0)
        of_step = {"loss": result.total, **result.monitors, **result.describe_tasks(), **of_update}
        used = sorted(of_step.keys() & of_network.keys())
        rule = "give its scalars other names than those of the run"
        checks.require(not used, "MultiTaskModel.network", rule, used)
        return train_op, {**of_step, **of_network, **of_extensions}

    def differentiate(
        self, features: types.Tensors, labels: types.Tensors, statistics: features_lib.Statistics
    ) -> balanced.Balanced:
        """Build the gradients of a training step from a forward pass in evaluation mode.

        Weighting and surgery use the current values of their variables. Dropout and mixing are off,
        and the graph gets no UPDATE_OPS.

        Args:
          features: {field: [B, ...]}.
          labels: {field: [B, ...]}.
          statistics: the statistics of the training split.

        Returns:
          The gradients for a batch of these B rows, with the losses and the weights of the tasks.
        """

        def build(features: Any, labels: Any) -> tuple[Any, dict[str, tf.Tensor]]:
            forward = functools.partial(self._pass_forward, statistics, training=False)
            for head in self.heads_with_loss:
                labels = types.read_member(head, types.BatchHead, "see_batch")(labels)
            weights, apart = self._sum_row_weights, self.are_rows_apart
            with outlets.drop_summaries(), whole_batch.withhold_collections():
                batch = whole_batch.build_batch(forward, weights, features, labels, 1, apart)
                parts = self.weigh_losses, self.surgery, self.reads_losses
                return balanced.balance_losses(batch, *parts), {}

        result, _ = self.held.wrap_step(build)(features, labels)
        return cast(balanced.Balanced, result)

    def _pass_forward(
        self,
        statistics: features_lib.Statistics,
        features: types.Tensors,
        labels: types.Tensors,
        training: bool = True,
    ) -> whole_batch.ForwardPass:
        """Run the network and the heads on some rows, and compute the losses of these rows."""
        scope, extensions = tf1.get_variable_scope(), self.extend_pass(training)
        with contextlib.ExitStack() as stack:
            contexts = [extension.around_network() for extension in extensions_lib.current()]
            contexts += [extension.around_network() for extension in extensions]
            tensor_maps = [stack.enter_context(context) for context in contexts]
            outputs = self.build_outputs(features, statistics, training, extensions)
        watched = {name: tensors for by_name in tensor_maps for name, tensors in by_name.items()}
        logits = outputs.logits
        compute: types.ComputeLosses = self._compute_losses
        added: dict[str, Any] = {}
        for extension in extensions:
            of_pass = self.gather_activations(features, labels, outputs, scope, {}, training)
            added |= extension.add_losses(of_pass, outputs.encoded)
            compute = extension.wrap_losses(compute)

        def samples(count: int) -> list[types.Tensors]:
            return [
                {
                    **compute(
                        whole_batch.take_every(logits, first, count),
                        whole_batch.take_every(labels, first, count),
                    ),
                    **{name: losses.average(first, count) for name, losses in added.items()},
                }
                for first in range(count)
            ]

        whole = {name: losses.average() for name, losses in added.items()}
        has_samples = self.are_rows_apart and all(e.has_samples for e in extensions)
        return whole_batch.ForwardPass(
            {**compute(logits, labels), **whole},
            outputs.towers.shared,
            samples if has_samples else None,
            watched=watched,
        )

    def _sum_label_weights(self, labels: types.Tensors) -> types.Tensors:
        return together.sum_label_weights(self.heads_with_loss, labels)

    def _sum_row_weights(self, labels: types.Tensors) -> types.Tensors:
        weights = row_losses.sum_weights(self.built_losses, labels, self.heads_by_task)
        return {**self._sum_label_weights(labels), **weights}

    def weigh_losses(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Weigh the losses of tasks and auxiliary losses.

        Each auxiliary loss is also multiplied by its `weight`, after the weighting.

        Args:
          losses: {name of a task or an auxiliary loss: scalar}.
          step: the global step, an int64 scalar.

        Returns:
          {name: scalar}.
        """
        weighted = balanced.weigh_losses(self.weighting, losses, step)
        factors = {p.name: row_losses.compute_coefficient(p, step) for p in self.built_losses}
        return {
            name: factors[name] * loss if name in factors else loss
            for name, loss in weighted.items()
        }

    def _compute_losses(self, logits: types.Tensors, labels: types.Tensors) -> types.Tensors:
        # If surgery needs the gradients of single tasks, each task has separate ops for its loss.
        # From separate ops, surgery can see in the graph which variables belong to one task.
        if self.adds_losses:
            return together.compute_losses(self.heads_with_loss, logits, labels)
        return {h.name: h.loss(logits[h.name], labels) for h in self.heads_with_loss}

    def _export_outputs(self, logits: types.Tensors, predictions: types.Tensors) -> dict[str, Any]:
        """Return the signatures of an export; `serving_default` has all predictions."""
        outputs_by_task = together.build_export_outputs(self.heads, logits, predictions)
        signatures = {
            task if kind == "predict" else f"{task}/{kind}": output
            for task, outputs in outputs_by_task.items()
            for kind, output in outputs.items()
        }
        everything = compat.estimator.export.PredictOutput(predictions)
        return {"serving_default": everything, **signatures}


def _require_tables_outside() -> None:
    """Check that a session of the graph can initialise the lookup tables of user code."""
    initializers = tf1.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)
    graph = tf1.get_default_graph()
    inside = [initializer.name for initializer in initializers if initializer.graph is not graph]
    rule, fix = "be created outside of loops", "Create it under `with tf.init_scope():`."
    checks.require(not inside, "a lookup table", rule, inside[:1], fix)
