"""The model: one training step, readable on one screen.

from mtl import model
model.MultiTaskModel.columns = [@features.Numeric()]
model.MultiTaskModel.network = @shared_bottom.SharedBottom()
model.MultiTaskModel.heads = [@income/heads.Binary(), @never_married/heads.Binary()]
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mtl import checks, compat, types
from mtl import features as features_lib
from mtl.balancing import surgery as surgery_lib
from mtl.balancing import weighting as weighting_lib
from mtl.example_gradients import proof
from mtl.heads import metrics as metrics_lib
from mtl.heads import together
from mtl.layers import precision as precision_lib
from mtl.layers import quantization as quantization_lib
from mtl.networks import trunk
from mtl.optimization import schedules
from mtl.sparsity import pruned_step
from mtl.sparsity import pruning as pruning_lib
from mtl.step import gradients as gradients_lib
from mtl.step import monitors as monitors_lib
from mtl.step import row_draws, shown, summaries, training_loop, whole_batch
from mtl.variables import averaging
from mtl.variables import freezing as freezing_lib
from mtl.variables import row_names as row_names_lib

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiTaskModel:
    """Several heads on a shared network, as an Estimator's `model_fn`.

    Attributes:
      columns: how features become the network's inputs; scope `features/<column>`.
      network: from the inputs to one tower per task; scope `network`.
      heads: the tasks; scope `head/<task>`.
      update: from gradients to a training step.
      weighting: scales the losses of the tasks; scope `balancing`. Equal weights by default.
      surgery: combines the tasks' gradients; a plain sum by default.
      freezing: what does not move, for good or up to a step; nothing by default.
      quantization: whose weights and inputs have few values; nothing by default.
      pruning: which weights are cut while the network trains; none by default.
      mixing: what mixes the rows of a batch in training, such as `mixing.Mixup`; None by default.
        Every head has to know the loss of each row, as `types.ExampleHead` does.
    """

    columns: Sequence[types.Column]
    network: types.Network
    heads: Sequence[types.Head]
    update: types.Update
    weighting: types.Weighting = weighting_lib.Equal()
    surgery: types.Surgery = surgery_lib.Sum()
    freezing: freezing_lib.Freezing = freezing_lib.Freezing()
    quantization: quantization_lib.Quantization = quantization_lib.Quantization()
    pruning: Sequence[pruning_lib.Pruning] = ()
    mixing: types.Mixing | None = None

    def __post_init__(self):
        for setting in ("columns", "heads"):
            value = getattr(self, setting)
            checks.is_a(f"MultiTaskModel.{setting}", value, (list, tuple), "be a list")
            checks.require(bool(value), f"MultiTaskModel.{setting}", "not be empty", value)
        for head in self.heads:
            is_head = hasattr(head, "logits") and hasattr(head, "metrics")
            rule = "hold heads such as @heads.Binary()"
            checks.require(is_head, "MultiTaskModel.heads", rule, head)
            for name, higher in types.read_member(head, types.Head, "directions").items():
                where = f"directions[{name!r}] of head {head.name!r}"
                checks.is_a(where, higher, bool, "be True or False")
        checks.unique("MultiTaskModel.heads", self.tasks)
        checks.require_part(
            "MultiTaskModel.network", self.network, "networks.SharedBottom", arguments=3
        )
        checks.require_part("MultiTaskModel.update", self.update, "update.Update", arguments=3)
        checks.require_part(
            "MultiTaskModel.weighting", self.weighting, "weighting.Equal", arguments=2
        )
        checks.require_part("MultiTaskModel.surgery", self.surgery, "surgery.Sum", arguments=3)
        example = "be built, such as @freezing.Freezing()"
        checks.is_a("MultiTaskModel.freezing", self.freezing, freezing_lib.Freezing, example)
        example = "be built, such as @quantization.Quantization()"
        kind = quantization_lib.Quantization
        checks.is_a("MultiTaskModel.quantization", self.quantization, kind, example)
        example = "be a list, such as [@pruning.Pruning()]"
        checks.is_a("MultiTaskModel.pruning", self.pruning, (list, tuple), example)
        for part in self.pruning:
            checks.is_a("MultiTaskModel.pruning", part, pruning_lib.Pruning, example)
        for column in self.columns:
            checks.require_part("MultiTaskModel.columns", column, "features.Numeric", arguments=2)
        if self.mixing is not None:
            self._check_mixing()

    def _check_mixing(self) -> None:
        """Fail unless what is mixed has a meaning for every head."""
        where = "MultiTaskModel.mixing"
        checks.require_part(where, self.mixing, "mixing.Mixup", arguments=1)
        for head in self.heads:
            rule = f"be None where the loss of a head is no sum over rows, as that of {head.name!r}"
            knows = isinstance(head, types.ExampleHead)
            checks.require(knows, where, rule, self.mixing, f"It is {type(head).__name__}.")

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks, in the order of the heads."""
        return tuple(head.name for head in self.heads)

    @property
    def held(self) -> freezing_lib.Freezing:
        """What does not move: by the setting, and by what the network needs."""
        return types.read_member(self.network, types.Network, "hold")(self.freezing)

    def find_direction(self, metric: str) -> bool | None:
        """Return whether a higher value of a metric is better; None where no head tells."""
        if metric in ("loss", "average_loss"):
            return False
        task, _, name = metric.partition("/")
        heads = [head for head in self.heads if head.name == task]
        found = [
            declared for head in heads for declared in metrics_lib.find_directions(head, [name])
        ]
        return found[0][1] if found else None

    def find_main_metrics(self, metrics: Iterable[str]) -> list[str]:
        """Return for every task the most telling of these evaluation metrics, by name."""
        names = [metric.partition("/")[::2] for metric in metrics]
        mains = []
        for head in self.heads:
            own = [name for task, name in names if task == head.name]
            mains += [
                f"{head.name}/{name}" for name, _ in metrics_lib.find_directions(head, own)[:1]
            ]
        return mains

    def fitted(self, statistics: features_lib.Statistics) -> "MultiTaskModel":
        """Return the model with what its heads learned of the training split."""
        heads = [types.read_member(head, types.Head, "fitted")(statistics) for head in self.heads]
        return dataclasses.replace(self, heads=heads)

    def fill_schedules(self, train_steps: int) -> "MultiTaskModel":
        """Return the model whose schedules last as long as the run, unless they say how long."""
        return schedules.fill_decay_steps(self, train_steps)

    def find_first_final_step(self, train_steps: int) -> int:
        """Return the step from which checkpoints are as sparse as they are to be.

        0 where nothing is pruned, or where the run ends before.
        """
        first = max((part.schedule.last_step + 1 for part in self.pruning), default=0)
        return first if first <= train_steps else 0

    @property
    def adds_losses(self) -> bool:
        """Whether gradients are those of the plain sum of the weighted losses."""
        return isinstance(self.surgery, surgery_lib.Sum)

    @property
    def _reads_losses(self) -> bool:
        """Whether weighting or surgery decide by the values of the losses."""
        return types.read_member(self.weighting, types.Weighting, "reads_losses") or (
            types.read_member(self.surgery, types.Surgery, "reads_losses")
        )

    @property
    def column_files(self) -> dict[str, str]:
        """{what it is for: path} of the files that the columns' settings name."""
        named = (types.read_member(column, types.Column, "files") for column in self.columns)
        return {f"features/{output}": path for files in named for output, path in files.items()}

    @property
    def training_files(self) -> dict[str, str]:
        """The files that training reads, {what: path}: those of columns, and masks."""
        entries = self.freezing.entries.items()
        masks = {f"Freezing.entries[{key!r}]": getattr(mask, "path", None) for key, mask in entries}
        return {**self.column_files, **{what: path for what, path in masks.items() if path}}

    def row_names(self, statistics: features_lib.Statistics) -> dict[str, types.RowNames]:
        """Return what rows of variables stand for, tokens or classes: {scope: names}."""
        named: dict[str, types.RowNames] = {}
        for column in self.columns:
            of_column = types.read_member(column, types.Column, "row_names")(statistics)
            own = {f"features/{name}/": names for name, names in of_column.items()}
            named = row_names_lib.join(named, own)
        for head in self.heads:
            of_head = types.read_member(head, types.Head, "row_names")
            named |= {f"head/{head.name}/": of_head} if of_head else {}
        return named

    def model_fn(
        self,
        features: Any,
        labels: types.Tensors | None,
        mode: str,
        *,
        statistics: features_lib.Statistics,
        loop: Mapping[str, Any] | None = None,
        slices: int = 1,
        precision: precision_lib.Precision = precision_lib.PLAIN,
        training_hooks: Callable[[training_loop.StepResult], dict[str, Any]] = lambda _: {},
        observe: types.Observe | None = None,
    ) -> compat.estimator.EstimatorSpec:
        """Build one of the graphs of `tf.estimator.Estimator`, which calls it for each.

        Args:
          features: {field: [B, ...]}; with `loop`, in training, an iterator of
            (features, labels) instead.
          labels: {field: [B, ...]}; None in prediction.
          mode: a `tf.estimator.ModeKeys`.
          statistics: what the columns learned of the training split.
          loop: the arguments of `training_loop.run_repeatedly`, for several steps per session call.
          slices: into how many micro-batches a training batch is cut.
          precision: in which numbers the network of a training step computes.
          training_hooks: gives the hook arguments of the EstimatorSpec, to watch the steps.
          observe: called in training with features, labels and {task: its weight}; what it adds to
            UPDATE_OPS runs before the weights move.
        """
        if mode == compat.estimator.ModeKeys.TRAIN:
            plain = functools.partial(self._step, statistics, slices, observe)
            is_watched = observe is not None or not self.adds_losses
            pruning = pruned_step.wrap_step(self.pruning, plain, is_watched)
            step = self.held.wrap_step(precision.wrap_step(pruning))
            if loop:
                result = training_loop.run_repeatedly(step, features, **loop)
            else:
                result = training_loop.run_once(step, features, labels)
            # Estimator ends a run at a NaN; what becomes of such a step is for the update to say.
            loss = tf.where(tf.math.is_nan(result["loss"]), 0.0, result["loss"])
            return compat.estimator.EstimatorSpec(
                mode, loss=loss, train_op=result.step, **training_hooks(result)
            )

        with summaries.drop_summaries():  # They are written in training alone.
            return self._infer(features, labels, mode, statistics)

    def _infer(
        self, features: Any, labels: Any, mode: str, statistics: features_lib.Statistics
    ) -> compat.estimator.EstimatorSpec:
        """Build the graph of evaluation or of prediction."""
        logits = self.infer_logits(features, statistics)
        averaged = types.read_member(self.update, types.Update, "average")
        is_hidden = any(part.hides_weights for part in self.pruning)
        scaffold = tf1.train.Scaffold(saver=averaging.Saver()) if averaged or is_hidden else None
        if mode == compat.estimator.ModeKeys.PREDICT:
            return compat.estimator.EstimatorSpec(
                mode,
                predictions={**self._name_predictions(logits), **shown.take()},
                export_outputs=self._export_outputs(logits),
                scaffold=scaffold,
            )
        losses = self._compute_losses(logits, labels)
        metrics = dict(together.build_metrics(self.heads, logits, labels))
        average_losses = {task: metrics[f"{task}/average_loss"] for task in self.tasks}
        metrics["average_loss"] = _sum_average_losses(
            average_losses, self._sum_label_weights(labels)
        )
        return compat.estimator.EstimatorSpec(
            mode,
            loss=tf.add_n(list(losses.values())),
            eval_metric_ops=metrics,
            scaffold=scaffold,
        )

    def _step(
        self,
        statistics: features_lib.Statistics,
        slices: int,
        observe: types.Observe | None,
        features: types.Tensors,
        labels: types.Tensors,
    ) -> tuple[tf.Operation, dict[str, tf.Tensor]]:
        """Build one training step: encode -> network -> heads -> weighting -> surgery -> update."""
        # One pass through the network, or one for each slice of the batch on each replica.
        forward = functools.partial(self._pass_forward, statistics)
        batch = whole_batch.build_batch(
            forward,
            self._sum_label_weights,
            features,
            labels,
            slices,
            are_rows_apart=self.mixing is None,
        )
        of_network = monitors_lib.take()
        # Slices keep no activations: summing their losses before surgery takes a pass of its own.
        # Where no value of a loss decides, the first slice stands in for all.
        reads = self._reads_losses
        losses = batch.sum(lambda forward: forward.losses) if reads else batch.first.losses
        with tf1.variable_scope("balancing"):
            weighted = self.weighting(losses, tf1.train.get_or_create_global_step())
            # A weighting may be any function of the losses, such as a logarithm or a softmax. What
            # it does to a task's gradient is to multiply it by the derivative of the weighted loss
            # by the plain one: that is the task's weight. Every pass scales its losses by it, so
            # that no gradient has to go through the weighting, which knows the whole batch alone.
            weights = {task: _find_weight(weighted[task], losses[task]) for task in losses}
            variables = tf1.trainable_variables()  # With those of the weighting.
            gradients, monitors = self.surgery(weighted, variables, batch.scale_losses(weights))
        # Weights are constants to surgery. What the weighting itself learns, such as log variances,
        # gets its gradient here: from the weighted losses, with the plain losses held constant.
        stop = list(losses.values())
        own = tf.gradients(list(weighted.values()), variables, stop_gradients=stop)
        gradients = list(map(gradients_lib.add_gradients, gradients, own))
        if not reads:  # Surgery has added them up, in the same pass as the gradients.
            losses = {task: monitors[f"{task}/loss"] for task in losses}
            weighted = {task: weights[task] * loss for task, loss in losses.items()}
        total = tf.add_n(list(weighted.values()))
        # UPDATE_OPS run before the weights move. Nothing else orders the reported loss and the
        # update: without this the loss might be that of variables that have moved already.
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, total)
        if observe:
            with summaries.drop_summaries():  # The audit builds the network once more.
                observe(features, labels, weights)
        set_to_zero = pruned_step.update_masks(gradients, variables, batch)
        train_op, of_update = self.update(gradients, variables, losses)
        train_op = features_lib.grow_tables(self.columns, features, set_to_zero(train_op))
        of_network |= monitors_lib.take()
        monitors = {"loss": total, **monitors, **of_update, **of_network}
        for task, loss in losses.items():
            monitors[f"{task}/loss"] = loss
            monitors[f"weight/{task}"] = weights[task]
        return train_op, monitors

    def _pass_forward(
        self, statistics: features_lib.Statistics, features: types.Tensors, labels: types.Tensors
    ) -> whole_batch.ForwardPass:
        """Compute the losses of these rows, and of samples of them, from features and labels."""
        with pruned_step.watch_inputs() as watched:
            logits, shared, mixture = self._build_outputs(features, statistics, training=True)
        if mixture is not None:
            mixed = self._mix_losses(logits, labels, mixture)
            return whole_batch.ForwardPass(mixed, shared, watched=watched)

        def samples(count: int) -> list[types.Tensors]:
            return [
                self._compute_losses(
                    whole_batch.take_every(logits, first, count),
                    whole_batch.take_every(labels, first, count),
                )
                for first in range(count)
            ]

        losses = self._compute_losses(logits, labels)
        return whole_batch.ForwardPass(losses, shared, samples, watched=watched)

    def _mix_losses(
        self, logits: types.Tensors, labels: types.Tensors, mixture: types.Mixture
    ) -> dict[str, tf.Tensor]:
        """Compute the losses of mixed rows: by their own labels, and by those of their partners."""
        others = {name: tf.gather(values, mixture.partners) for name, values in labels.items()}
        own, of_partners = (
            self._compute_losses(logits, labels),
            self._compute_losses(logits, others),
        )
        share = mixture.share
        return {task: share * own[task] + (1 - share) * of_partners[task] for task in own}

    def infer_logits(
        self, features: types.Tensors, statistics: features_lib.Statistics
    ) -> types.Tensors:
        """Compute the logits as in evaluation, {field: [B, ...]} -> {task: [B, C]}.

        No example depends on another one.
        """
        with row_draws.know_rows(features):
            return self._build_outputs(features, statistics, training=False)[0]

    def _build_outputs(
        self, features: types.Tensors, statistics: features_lib.Statistics, training: bool
    ) -> tuple[types.Tensors, Sequence[tf.Tensor], types.Mixture | None]:
        """Return the logits of every head, what tasks share in the network, and how rows are mixed.

        Nothing is mixed but in training.
        """
        # See `separate_tasks`: surgery tells by the graph which variables are a task's own.
        is_apart = training and not self.adds_losses
        with self.quantization.quantize_network(training), trunk.separate_tasks(is_apart):
            inputs = self._encode(features, statistics, training)
            mixture = self.mixing(inputs) if self.mixing is not None and training else None
            towers = self._build_network(mixture.inputs if mixture else inputs, training)
            logits = self.build_logits(towers)
        return logits, towers.shared, mixture

    def build_towers(
        self, features: types.Tensors, statistics: features_lib.Statistics, training: bool
    ) -> types.Towers:
        """Encode the features and run the network, {field: [B, ...]} -> {task: [B, H]}."""
        return self._build_network(self._encode(features, statistics, training), training)

    def _encode(
        self, features: types.Tensors, statistics: features_lib.Statistics, training: bool
    ) -> dict[str, tf.Tensor]:
        inputs = features_lib.encode_columns(self.columns, features, statistics, training)
        if training:
            changed = [part.columns for part in self.columns if getattr(part, "augmentations", ())]
            for name in [name for columns in changed for name in columns]:
                # Each image is changed by its own draws, through ops that no proof knows.
                inputs[name] = proof.declare(inputs[name])
        return inputs

    def _build_network(self, inputs: types.Tensors, training: bool) -> types.Towers:
        with tf1.variable_scope("network"):
            return precision_lib.run_network(
                lambda inside: self._run_network(inside, training), inputs, training
            )

    def _run_network(self, inputs: types.Tensors, training: bool) -> types.Towers:
        """Run the network, and fail unless it gives every task its tower."""
        towers, kind = self.network(inputs, self.tasks, training), type(self.network).__name__
        where = f"MultiTaskModel.network, {kind},"
        checks.is_a(where, towers, Mapping, "return types.Towers")
        fix = f"Missing: {', '.join(task for task in self.tasks if task not in towers)}."
        has_all = all(task in towers for task in self.tasks)
        checks.require(has_all, where, "return a tower for every task", list(towers), fix)
        for task in self.tasks:
            shape = towers[task].shape
            fits = shape.rank == 2 and shape[1] is not None
            checks.require(fits, f"{where} tower {task!r}", "be [B, H] of a known H", tuple(shape))
        return towers

    def build_logits(self, towers: types.Tensors) -> dict[str, tf.Tensor]:
        """Run every head on its tower, {task: [B, H]} -> {task: [B, C]}."""
        logits = {}
        for head in self.heads:
            trainable = types.read_member(head, types.Head, "trainable")
            with tf1.variable_scope(f"head/{head.name}"), freezing_lib.hold_part(trainable):
                logits[head.name] = head.logits(towers[head.name])
        return logits

    def _sum_label_weights(self, labels: types.Tensors) -> types.Tensors:
        return together.sum_label_weights(self.heads, labels)

    def _compute_losses(self, logits: types.Tensors, labels: types.Tensors) -> types.Tensors:
        # What compares the gradients of tasks has to see which variables are a task's own.
        if self.adds_losses:
            return together.compute_losses(self.heads, logits, labels)
        return {head.name: head.loss(logits[head.name], labels) for head in self.heads}

    def _name_predictions(self, logits: types.Tensors) -> dict[str, tf.Tensor]:
        return {
            f"{head.name}/{name}": value
            for head in self.heads
            for name, value in head.predictions(logits[head.name]).items()
        }

    def _export_outputs(self, logits: types.Tensors) -> dict[str, Any]:
        """Return a signature per head and kind, and `serving_default` with all predictions."""
        signatures = {
            head.name if kind == "predict" else f"{head.name}/{kind}": output
            for head in self.heads
            for kind, output in head.export_outputs(logits[head.name]).items()
        }
        everything = compat.estimator.export.PredictOutput(self._name_predictions(logits))
        return {"serving_default": everything, **signatures}


def _sum_average_losses(average_losses: types.Metrics, label_weights: types.Tensors) -> Any:
    """Return the sum of the tasks' losses, 0 for a task without labels; any other NaN stays one."""
    weights = tf.stack([label_weights[task] for task in average_losses])
    total, update = metrics_lib.stream_sums({"weights": weights}, lambda sums: sums)["weights"]
    losses = tf.stack([value for value, _ in average_losses.values()])
    values = tf.unstack(tf.where(total > 0, losses, tf.zeros_like(losses)))
    return tf.add_n(values), tf.group(update, *{each for _, each in average_losses.values()})


def _find_weight(weighted: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
    """Return the weight of a task: the derivative of its weighted loss by its loss."""
    return tf.ones_like(loss) if weighted is loss else tf.gradients(weighted, loss)[0]
