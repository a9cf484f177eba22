"""The model: one training step, readable on one screen.

from mtl import model
model.MultiTaskModel.columns = [@features.Numeric()]
model.MultiTaskModel.network = @shared_bottom.SharedBottom()
model.MultiTaskModel.heads = [@income/heads.Binary(), @never_married/heads.Binary()]
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from mtl import checks, compat, networks, types
from mtl import features as features_lib
from mtl.auxiliary import activations as activations_lib
from mtl.auxiliary import emitted as emitted_losses
from mtl.auxiliary import row_losses
from mtl.balancing import surgery as surgery_lib
from mtl.balancing import weighting as weighting_lib
from mtl.example_gradients import proof
from mtl.heads import metrics as metrics_lib
from mtl.heads import together
from mtl.layers import precision as precision_lib
from mtl.layers import quantization as quantization_lib
from mtl.networks import trunk
from mtl.optimization import schedules
from mtl.optimization import update as update_lib
from mtl.sparsity import pruned_step
from mtl.sparsity import pruning as pruning_lib
from mtl.step import emitted as emitted_lib
from mtl.step import gradients as gradients_lib
from mtl.step import monitors as monitors_lib
from mtl.step import row_draws, shown, summaries, training_loop, whole_batch
from mtl.variables import averaging, stacks
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
      auxiliary_losses: losses without a head, such as `auxiliary.VirtualAdversarial`, which
        training alone computes and which are balanced as the losses of tasks; scope
        `auxiliary/<name>`.
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
    auxiliary_losses: Sequence[types.AuxiliaryLoss] = ()

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
        self._check_auxiliary_losses()
        if self.mixing is not None:
            self._check_mixing()

    def _check_auxiliary_losses(self) -> None:
        """Fail unless each has a name of its own and suits the heads."""
        where = "MultiTaskModel.auxiliary_losses"
        checks.is_a(where, self.auxiliary_losses, (list, tuple), "be a list")
        for part in self.auxiliary_losses:
            example = "auxiliary.VirtualAdversarial"
            checks.require_part(where, part, example, arguments=1, attributes=["name"])
            types.read_member(part, types.AuxiliaryLoss, "check")(self.heads_by_task)
            rule = f"keep averages where the auxiliary loss {part.name!r} reads them"
            fix = "Set Update.average = @averaging.ExponentialAverage()."
            reads = types.read_member(part, types.AuxiliaryLoss, "reads_average")
            average = types.read_member(self.update, types.Update, "average")
            checks.require(not reads or average is not None, "Update.average", rule, average, fix)
        names = [*self.tasks, *(part.name for part in self._all_losses)]
        checks.unique(f"MultiTaskModel.heads and {where.partition('.')[2]}", names)

    def _check_mixing(self) -> None:
        """Fail unless what is mixed has a meaning for every head."""
        where = "MultiTaskModel.mixing"
        checks.require_part(where, self.mixing, "mixing.Mixup", arguments=1)
        for head in self.heads:
            rule = f"be None where the loss of a head is no sum over rows, as that of {head.name!r}"
            knows = isinstance(head, types.ExampleHead)
            checks.require(knows, where, rule, self.mixing, f"It is {type(head).__name__}.")
        for part in self.built_losses:
            rule = f"be None where the auxiliary loss {part.name!r} reads the labels of rows"
            reads = types.read_member(part, types.AuxiliaryLoss, "reads_labels")
            checks.require(not reads, where, rule, self.mixing)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks, in the order of the heads."""
        return tuple(head.name for head in self.heads)

    @property
    def heads_by_task(self) -> dict[str, types.Head]:
        """{task: its head}, in the order of the heads."""
        return {head.name: head for head in self.heads}

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The names of the losses that training adds up: tasks, then auxiliary losses."""
        return (*self.tasks, *(part.name for part in self.built_losses))

    @functools.cached_property  # All settings of all parts are looked through.
    def _all_losses(self) -> Sequence[types.AuxiliaryLoss]:
        """The auxiliary losses that are set, and those that columns and the network emit."""
        emitted = emitted_losses.find_losses([*self.columns, self.network])
        return [*self.auxiliary_losses, *emitted]

    @property
    def built_losses(self) -> Sequence[types.AuxiliaryLoss]:
        """The auxiliary losses that a step computes: those that do not weigh 0 for good."""
        losses = self._all_losses
        weights = (types.read_member(p, types.AuxiliaryLoss, "weight") for p in losses)
        return [
            part
            for part, weight in zip(losses, weights, strict=True)
            if callable(weight) or weight != 0
        ]

    @property
    def heads_of_losses(self) -> Sequence[types.Head]:
        """The heads that the auxiliary losses build themselves."""
        return [
            head
            for part in self.built_losses
            for head in types.read_member(part, types.AuxiliaryLoss, "own_heads")
        ]

    @property
    def are_rows_apart(self) -> bool:
        """Whether a row goes through a training step alone as it does among others."""
        apart = [
            types.read_member(p, types.AuxiliaryLoss, "are_rows_apart") for p in self.built_losses
        ]
        return self.mixing is None and all(apart)

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
    def stacks_tasks(self) -> bool:
        """Whether equal tasks may share variables of the graph, as `mtl.variables.stacks` says.

        Only with parts that are known to choose no variable by its name, and to treat a variable
        entry by entry: a part of one's own may do anything.
        """
        are_plain = (
            type(self.network) is networks.SharedBottom,
            type(self.weighting) in map(vars(weighting_lib).get, weighting_lib.__all__),
            type(self.surgery) is surgery_lib.Sum,
            type(self.update) is update_lib.Update and self.update.is_entrywise,
            self.held == freezing_lib.Freezing(),
            self.quantization == quantization_lib.Quantization(),
            not self.pruning,
            self.mixing is None,
            not self.built_losses,
        )
        return all(are_plain)

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
        """The files that training reads, {what: path}, such as those of columns, and masks."""
        entries = self.freezing.entries.items()
        masks = {f"Freezing.entries[{key!r}]": getattr(mask, "path", None) for key, mask in entries}
        read = {what: path for what, path in masks.items() if path}
        for part in self.built_losses:
            files = types.read_member(part, types.AuxiliaryLoss, "files")
            read |= {f"auxiliary/{part.name}/{what}": path for what, path in files.items()}
        return {**self.column_files, **read}

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
        attack: types.Attack | None = None,
        may_stack: bool = False,
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
          attack: moves the inputs of an evaluation, to where the losses of the labels are large.
          may_stack: whether equal tasks may share variables in training and evaluation, where
            nothing else looks for the variables of a task in the graph.
        """
        # An export has a variable for each task. Slices and audits know nothing of stacks.
        is_plain = mode != compat.estimator.ModeKeys.PREDICT and slices == 1 and observe is None
        is_plain = is_plain and precision == precision_lib.PLAIN and self.stacks_tasks
        with stacks.stack_tasks(may_stack and is_plain):
            build = functools.partial(self._build_graph, features, labels, mode, statistics)
            spec = build(loop, slices, precision, training_hooks, observe, attack)
        stacks.add_saver()
        return spec

    def _build_graph(
        self,
        features: Any,
        labels: types.Tensors | None,
        mode: str,
        statistics: features_lib.Statistics,
        loop: Mapping[str, Any] | None,
        slices: int,
        precision: precision_lib.Precision,
        training_hooks: Callable[[training_loop.StepResult], dict[str, Any]],
        observe: types.Observe | None,
        attack: types.Attack | None,
    ) -> compat.estimator.EstimatorSpec:
        """Build a graph, as `model_fn` says."""
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
            return self._infer(features, labels, mode, statistics, attack)

    def _infer(
        self,
        features: Any,
        labels: Any,
        mode: str,
        statistics: features_lib.Statistics,
        attack: types.Attack | None,
    ) -> compat.estimator.EstimatorSpec:
        """Build the graph of evaluation or of prediction."""
        scope = tf1.get_variable_scope()
        with row_draws.know_rows(features):
            outputs = self._build_outputs(features, statistics, training=False)
        logits = outputs.logits
        if attack is not None and mode == compat.estimator.ModeKeys.EVAL:
            forward = functools.partial(self._run_again, training=False)
            plain = self._gather(features, labels, outputs, forward, scope, {})
            logits = attack.attack(plain).logits
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
            self._sum_row_weights,
            features,
            labels,
            slices,
            are_rows_apart=self.are_rows_apart,
        )
        of_network = monitors_lib.take()
        # Slices keep no activations: summing their losses before surgery takes a pass of its own.
        # Where no value of a loss decides, the first slice stands in for all.
        reads = self._reads_losses
        losses = batch.sum(lambda forward: forward.losses) if reads else batch.first.losses
        with tf1.variable_scope("balancing"):
            step = tf1.train.get_or_create_global_step()
            weighted = self.weigh_losses(losses, step)
            # A weighting may be any function of the losses, such as a logarithm or a softmax. What
            # it does to a task's gradient is to multiply it by the derivative of the weighted loss
            # by the plain one: that is the task's weight. Every pass scales its losses by it, so
            # that no gradient has to go through the weighting, which knows the whole batch alone.
            # Equal weights hand the losses on. Those of many tasks are not multiplied by 1. Those
            # of few are, or TensorFlow would add them up in another order than it always did.
            are_plain = all(weighted[task] is loss for task, loss in losses.items())
            weighs = not (are_plain and stacks.are_stacked(len(losses)))
            weights = _find_weights(weighted, losses)
            variables = tf1.trainable_variables()  # With those of the weighting.
            scaled = batch.scale_losses(weights if weighs else None)
            gradients, monitors = self.surgery(weighted, variables, scaled)
        if weighs:
            # Weights are constants to surgery. What the weighting itself learns, such as log
            # variances, gets its gradient here: from the weighted losses, with the plain losses
            # held constant.
            stop = list(losses.values())
            own = tf.gradients(list(weighted.values()), variables, stop_gradients=stop)
            gradients = list(map(gradients_lib.add_gradients, gradients, own))
        if not reads:  # Surgery has added them up, in the same pass as the gradients.
            losses = {task: monitors[f"{task}/loss"] for task in losses}
            weighted = losses
            if weighs:
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
        scope = tf1.get_variable_scope()
        with pruned_step.watch_inputs() as watched, emitted_lib.collect() as found:
            outputs = self._build_outputs(features, statistics, training=True)
        logits, towers, mixture = outputs.logits, outputs.towers, outputs.mixture
        forward = functools.partial(self._run_again, training=True)
        activations = self._gather(features, labels, outputs, forward, scope, found)
        rows = row_losses.compute(self.built_losses, activations)
        whole = {name: found.average() for name, found in rows.items()}
        if mixture is not None:
            mixed = self._mix_losses(logits, labels, mixture)
            return whole_batch.ForwardPass({**mixed, **whole}, towers.shared, watched=watched)

        def samples(count: int) -> list[types.Tensors]:
            return [
                {
                    **self._compute_losses(
                        whole_batch.take_every(logits, first, count),
                        whole_batch.take_every(labels, first, count),
                    ),
                    **{name: found.average(first, count) for name, found in rows.items()},
                }
                for first in range(count)
            ]

        losses = {**self._compute_losses(logits, labels), **whole}
        return whole_batch.ForwardPass(losses, towers.shared, samples, watched=watched)

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
            return self._build_outputs(features, statistics, training=False).logits

    def infer_activations(
        self, features: types.Tensors, labels: types.Tensors, statistics: features_lib.Statistics
    ) -> activations_lib.Activations:
        """Compute what auxiliary losses read, as in evaluation; nothing of UPDATE_OPS is added."""
        scope = tf1.get_variable_scope()
        with (
            whole_batch.withhold_collections(),
            row_draws.know_rows(features),
            emitted_lib.collect() as found,
        ):
            outputs = self._build_outputs(features, statistics, training=False)
        forward = functools.partial(self._run_again, training=False)
        return self._gather(features, labels, outputs, forward, scope, found)

    def _build_outputs(
        self, features: types.Tensors, statistics: features_lib.Statistics, training: bool
    ) -> "_Outputs":
        """Encode the features, run network and heads; nothing is mixed but in training."""
        with self._separate_tasks(training), self.quantization.quantize_network(training):
            encoded = self._encode(features, statistics, training)
            mixture = self.mixing(encoded) if self.mixing is not None and training else None
            inputs = mixture.inputs if mixture else encoded
            towers = self._build_network(inputs, training)
            logits = self.build_logits(towers)
        return _Outputs(inputs, towers, logits, mixture)

    def _run_again(
        self, inputs: types.Tensors, training: bool
    ) -> tuple[types.Towers, dict[str, tf.Tensor]]:
        """Run network and heads on other inputs."""
        quantized = self.quantization.quantize_network(training, requires_use=False)
        with self._separate_tasks(training), quantized:
            towers = self._build_network(inputs, training)
            return towers, self.build_logits(towers)

    def _gather(
        self,
        features: types.Tensors,
        labels: types.Tensors,
        outputs: "_Outputs",
        forward: activations_lib.Forward,
        scope: Any,
        found: types.Tensors,
    ) -> activations_lib.Activations:
        """Return all that an auxiliary loss, or an attack, may look at."""
        of_network = outputs.inputs, outputs.towers, outputs.logits
        return activations_lib.Activations(
            features, labels, *of_network, self.heads_by_task, forward, scope, found
        )

    def _separate_tasks(self, training: bool) -> contextlib.AbstractContextManager[bool]:
        # See `separate_tasks`: surgery tells by the graph which variables are a task's own.
        return trunk.separate_tasks(training and not self.adds_losses)

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

        def build(head: types.Head, tower: tf.Tensor) -> tf.Tensor:
            trainable = types.read_member(head, types.Head, "trainable")
            with tf1.variable_scope(f"head/{head.name}"), freezing_lib.hold_part(trainable):
                return head.logits(tower)

        return together.build_logits(self.heads, towers, build)

    def _sum_label_weights(self, labels: types.Tensors) -> types.Tensors:
        return together.sum_label_weights(self.heads, labels)

    def _sum_row_weights(self, labels: types.Tensors) -> types.Tensors:
        own = row_losses.sum_weights(self.built_losses, labels, self.heads_by_task)
        return {**self._sum_label_weights(labels), **own}

    def weigh_losses(self, losses: types.Tensors, step: tf.Tensor) -> types.Tensors:
        """Weigh the losses of tasks and auxiliary losses, {name: scalar} -> {name: scalar}.

        Auxiliary losses are then multiplied by their own weights, which no weighting makes up for.
        """
        weighted = self.weighting(losses, step)
        own = {p.name: row_losses.compute_coefficient(p, step) for p in self.built_losses}
        return {name: own[name] * loss if name in own else loss for name, loss in weighted.items()}

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


class _Outputs(NamedTuple):
    """What goes into the network, what comes out of it and its heads, and how rows are mixed."""

    inputs: types.Tensors
    towers: types.Towers
    logits: types.Tensors
    mixture: types.Mixture | None


def _sum_average_losses(average_losses: types.Metrics, label_weights: types.Tensors) -> Any:
    """Return the sum of the tasks' losses, 0 for a task without labels; any other NaN stays one."""
    weights = tf.stack([label_weights[task] for task in average_losses])
    total, update = metrics_lib.stream_sums({"weights": weights}, lambda sums: sums)["weights"]
    losses = tf.stack([value for value, _ in average_losses.values()])
    values = tf.unstack(tf.where(total > 0, losses, tf.zeros_like(losses)))
    return tf.add_n(values), tf.group(update, *{each for _, each in average_losses.values()})


def _find_weights(weighted: types.Tensors, losses: types.Tensors) -> dict[str, tf.Tensor]:
    """Return the weights of the tasks: the derivatives of their weighted losses by their losses."""
    ones = {dtype: tf.ones([], dtype) for dtype in {loss.dtype for loss in losses.values()}}
    return {
        task: ones[loss.dtype] if weighted[task] is loss else tf.gradients(weighted[task], loss)[0]
        for task, loss in losses.items()
    }
