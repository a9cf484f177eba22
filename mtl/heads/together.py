"""Builds many equal heads with shared ops, on tensors [B, T] for T tasks.

losses = together.compute_losses(heads, logits, labels)          # {task: scalar}
weights = together.sum_label_weights(heads, labels)          # {task: scalar}
metrics = together.build_metrics(heads, logits, labels)       # {"<task>/<metric>": (value, update)}
predictions = together.build_predictions(heads, logits)       # {"<task>/<prediction>": [B, ...]}

If at least `FROM` heads differ only in names and labels, and their class supports it
(`types.JointHead`), the heads share ops. With shared ops, sums over a batch add numbers in another
order, and may round differently. Heads share the ops of predictions only if their variables are
stacked (`mtl.variables.stacks`). Heads that cannot share ops are built one by one. Sharing does not
change the names of tasks, variables, metrics and predictions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from mtl import checks, types
from mtl.deferred import tf
from mtl.heads import base, values
from mtl.heads import metrics as metrics_lib
from mtl.layers import stacked
from mtl.variables import stacks

if TYPE_CHECKING:
    from mtl.heads import binary

# The least number of equal heads that share ops. The metrics of a single head take about 800 ops.
FROM = 16


def build_logits(
    heads: Sequence[types.Head],
    towers: types.Tensors,
    build: Callable[[types.Head, tf.Tensor], tf.Tensor],
) -> dict[str, tf.Tensor]:
    """Compute the logits of all heads, with stacked variables if stacks are allowed.

    Args:
      heads: the heads of the tasks.
      towers: {task: [B, H]}.
      build: a function that computes logits from a head and its tower, for heads that are built one
        by one.

    Returns:
      The logits {task: [B, C]}, in the order of the heads.
    """
    stacked_parts = [
        part for part in _group_heads(heads) if isinstance(part, Alike) and part.is_stacked
    ]
    stacked_names = {head.name for part in stacked_parts for head in part.heads}
    logits, seeds = {}, {}
    for head in heads:
        if head.name in stacked_names:
            # Draw seeds in the order of the heads, as if they were built one by one.
            (seeds[head.name],) = stacks.draw_seeds(1)
        else:
            logits[head.name] = build(head, towers[head.name])
    for part in stacked_parts:
        logits |= part.logits(towers, seeds)
    return {head.name: logits[head.name] for head in heads}


def compute_losses(
    heads: Sequence[types.Head], logits: types.Tensors, labels: types.Tensors
) -> dict[str, tf.Tensor]:
    """Compute the losses.

    Args:
      heads: the heads of the tasks.
      logits: {task: [B, C]}.
      labels: {label field: [B, ...]}.

    Returns:
      The losses {task: scalar}, in the order of the heads.
    """
    losses: dict[str, tf.Tensor] = {}
    for part in _group_heads(heads, labels):
        if isinstance(part, Alike):
            losses |= part.each(part.loss(logits, labels))
        else:
            losses[part.name] = part.loss(logits[part.name], labels)
    return {head.name: losses[head.name] for head in heads}


def sum_label_weights(heads: Sequence[types.Head], labels: types.Tensors) -> dict[str, tf.Tensor]:
    """Sum the weights of the labels of each task.

    Args:
      heads: the heads of the tasks.
      labels: {label field: [B, ...]}.

    Returns:
      The sums {task: scalar}, in the order of the heads.
    """
    weights: dict[str, tf.Tensor] = {}
    for part in _group_heads(heads, labels):
        if isinstance(part, Alike):
            weights |= part.each(part.label_weight(labels))
        else:
            weights[part.name] = part.label_weight(labels)
    return {head.name: weights[head.name] for head in heads}


def build_metrics(
    heads: Sequence[types.Head], logits: types.Tensors, labels: types.Tensors
) -> types.Metrics:
    """Build the metrics.

    Args:
      heads: the heads of the tasks.
      logits: {task: [B, C]}.
      labels: {label field: [B, ...]}.

    Returns:
      {"<task>/<metric>": (value, update)}.
    """
    metrics: dict[str, tuple[tf.Tensor, tf.Operation]] = {}
    for part in _group_heads(heads, labels):
        if isinstance(part, Alike):
            metrics |= part.metrics(logits, labels)
        else:
            head_metrics = part.metrics(logits[part.name], labels)
            metrics |= {f"{part.name}/{name}": metric for name, metric in head_metrics.items()}
    return metrics


def build_predictions(heads: Sequence[types.Head], logits: types.Tensors) -> dict[str, tf.Tensor]:
    """Compute the predictions of every head.

    Args:
      heads: the heads of the tasks.
      logits: {task: [B, C]}.

    Returns:
      {"<task>/<prediction>": [B, ...]}.

    Raises:
      UserError: a head returns no map of tensors, or a scalar.
    """
    predictions: dict[str, types.Tensors] = {}
    for part in _group_heads(heads):
        if isinstance(part, Alike) and part.is_stacked:
            predictions |= part.predictions(logits)
    for head in heads:
        if head.name not in predictions:
            predictions[head.name] = head.predictions(logits[head.name])
            _check_predictions(head, predictions[head.name])
    return {
        f"{head.name}/{name}": value
        for head in heads
        for name, value in predictions[head.name].items()
    }


def _check_predictions(head: types.Head, predictions: types.Tensors) -> None:
    """Raise an error unless a head returned {name: [B, ...]}."""
    where = f"{type(head).__name__}.predictions of task {head.name!r}"
    checks.is_a(where, predictions, Mapping, "return {name: [B, ...]}")
    for name, value in predictions.items():
        rule = f"return a tensor [B, ...] as {name!r}"
        is_right = isinstance(value, tf.Tensor) and value.shape.rank != 0
        checks.require(is_right, where, rule, value)


def build_export_outputs(
    heads: Sequence[types.Head], logits: types.Tensors, predictions: types.Tensors
) -> dict[str, dict[str, Any]]:
    """Build the outputs of an export.

    Args:
      heads: the heads of the tasks.
      logits: {task: [B, C]}.
      predictions: the result of `build_predictions`.

    Returns:
      {task: {kind: output}}, with the kinds that `Head.export_outputs` returns.
    """
    outputs: dict[str, dict[str, Any]] = {}
    for part in _group_heads(heads):
        if isinstance(part, Alike) and part.is_stacked:
            outputs |= part.export_outputs(logits, predictions)
    for head in heads:
        if head.name not in outputs:
            outputs[head.name] = of_head = head.export_outputs(logits[head.name])
            where = f"{type(head).__name__}.export_outputs of task {head.name!r}"
            checks.is_a(where, of_head, Mapping, "return {kind: output}")
    return {head.name: outputs[head.name] for head in heads}


def sum_average_losses(
    metrics: types.Metrics, label_weights: types.Tensors
) -> tuple[tf.Tensor, tf.Operation]:
    """Sum the average losses of the tasks.

    A task without labels adds 0 to the sum. If the loss of another task is NaN, the sum is NaN.

    Args:
      metrics: {"<task>/average_loss": (value, update), ...}.
      label_weights: {task: the sum of the task's label weights in the batch}.

    Returns:
      The sum and its update op.
    """
    weights = tf.stack(list(label_weights.values()))
    total, update = metrics_lib.stream_sums({"weights": weights}, lambda sums: sums)["weights"]
    pairs = [metrics[f"{task}/average_loss"] for task in label_weights]
    losses = tf.stack([value for value, _ in pairs])
    # For a ranking head, groups may be complete only over all batches. If each batch has only parts
    # of groups, the label weight of a ranking head may be 0 in every batch, so the metric
    # `nan_predictions` must also show that no row has a NaN.
    nan_counts = [metrics.get(f"{task}/nan_predictions") for task in label_weights]
    has_nan = tf.stack([tf.constant(0.0) if pair is None else pair[0] for pair in nan_counts]) > 0
    is_absent = tf.math.is_nan(losses) & (total <= 0) & ~has_nan
    values = tf.unstack(tf.where(is_absent, tf.zeros_like(losses), losses))
    return tf.add_n(values), tf.group(update, *{pair_update for _, pair_update in pairs})


@dataclasses.dataclass(frozen=True)
class Alike:
    """T heads with the same settings but different names and label fields.

    Attributes:
      heads: the T heads, whose settings are equal except for names and labels.
    """

    heads: Sequence[binary.Binary]

    @property
    def is_stacked(self) -> bool:
        """True if the heads' variables are stacked into one variable for all heads."""
        return self.heads[0].trainable and stacks.are_stacked(len(self.heads))

    def logits(self, towers: types.Tensors, seeds: Mapping[str, stacks.Seed]) -> types.Tensors:
        """Compute the logits of all T tasks.

        Args:
          towers: {task: [B, H]}.
          seeds: {task: the seed with which its kernel is initialised}.

        Returns:
          The logits {task: [B, 1]}.
        """
        names, first = [head.name for head in self.heads], self.heads[0]
        inputs_by_head, head_seeds = (
            [towers[name] for name in names],
            [seeds[name] for name in names],
        )
        # A tower that all heads share, as with a shared bottom, needs no copies.
        is_shared = all(tower is inputs_by_head[0] for tower in inputs_by_head)
        inputs = inputs_by_head[0] if is_shared else stacked.stack_parts(inputs_by_head)
        initializer = tf.compat.v1.constant_initializer(first.initial_bias())
        scopes = [f"head/{name}" for name in names]
        stacked_logits = stacked.dense(
            inputs, first.size, "logits", scopes, head_seeds, initializer
        )
        return dict(zip(names, tf.unstack(stacked_logits, len(names), axis=1), strict=True))

    def each(self, vector: tf.Tensor) -> dict[str, tf.Tensor]:
        """Split [T] into {task: scalar}."""
        return dict(zip([head.name for head in self.heads], tf.unstack(vector), strict=True))

    def predictions(self, logits: types.Tensors) -> dict[str, types.Tensors]:
        """Predict for all T tasks.

        Args:
          logits: {task: [B, 1]}.

        Returns:
          {task: {prediction: [B]}}.
        """
        stacked_predictions = self.heads[0].predictions(self._stack_logits(logits))
        columns = {
            name: self._split_columns(values) for name, values in stacked_predictions.items()
        }
        return {
            head.name: {name: values[head.name] for name, values in columns.items()}
            for head in self.heads
        }

    def export_outputs(
        self, logits: types.Tensors, predictions: types.Tensors
    ) -> dict[str, dict[str, Any]]:
        """Build the outputs of an export for all T tasks.

        Args:
          logits: {task: [B, 1]}.
          predictions: {"<task>/<prediction>": [B]}, the result of `build_predictions`.

        Returns:
          {task: {kind: output}}, with the kinds that `Head.export_outputs` returns.
        """
        first, prefix = self.heads[0], f"{self.heads[0].name}/"
        names = [key.removeprefix(prefix) for key in predictions if key.startswith(prefix)]
        head_predictions = {
            head.name: {name: predictions[f"{head.name}/{name}"] for name in names}
            for head in self.heads
        }
        probabilities = [head_predictions[head.name]["probability"] for head in self.heads]
        class_scores = first.score_classes(
            self._stack_logits(logits), stacked.stack_parts(probabilities)
        )
        scores, classes = (
            self._split_columns(class_scores),
            base.tile_names(first.class_names, class_scores),
        )
        return {
            head.name: head.list_outputs(head_predictions[head.name], scores[head.name], classes)
            for head in self.heads
        }

    def _split_columns(self, values: tf.Tensor) -> dict[str, tf.Tensor]:
        """Split [B, T, ...] into {task: [B, ...]}."""
        columns = tf.unstack(values, len(self.heads), axis=1)
        return dict(zip([head.name for head in self.heads], columns, strict=True))

    def targets_and_weights(self, labels: types.Tensors) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse the labels of all T tasks, and compute the weights of the labels.

        Args:
          labels: {field: [B]}.

        Returns:
          Targets and weights, float32 [B, T] each; the weight of a missing label is 0.

        Raises:
          InvalidArgumentError: when the op runs, if a label or a weight is out of range.
        """
        first = self.heads[0]
        label = tf.stack([head.label_of(labels) for head in self.heads], axis=1)
        targets, present, valid = first.parsed(label)
        if valid is not None:
            texts = [head.message(head.field, first.rule(label.dtype)) for head in self.heads]
            with tf.control_dependencies([values.require_each(valid, label, texts)]):
                targets = tf.identity(targets)
        return targets, first.weights(labels, present)

    def examples(self, logits: types.Tensors, labels: types.Tensors) -> types.LossInputs:
        """Return logits, targets and weights of all T tasks in matching shapes.

        Args:
          logits: {task: [B, 1]}.
          labels: {field: [B]}.

        Returns:
          Logits, targets and weights, [B, T] each. The logits of labels of weight 0 are replaced by
          0.
        """
        targets, weights = self.targets_and_weights(labels)
        return types.LossInputs(
            tf.where(weights > 0, self._stack_flat_logits(logits), 0.0), targets, weights
        )

    def _stack_flat_logits(self, logits: types.Tensors) -> tf.Tensor:
        # Use tf.stack, as its gradient is a single op; `tf.concat` has several for each part.
        return tf.squeeze(tf.stack([logits[head.name] for head in self.heads], axis=1), axis=2)

    def _stack_logits(self, logits: types.Tensors) -> tf.Tensor:
        """Return the logits of all tasks as one tensor: {task: [B, 1]} -> [B, T, 1]."""
        return stacked.stack_parts([logits[head.name] for head in self.heads])

    def loss(self, logits: types.Tensors, labels: types.Tensors) -> tf.Tensor:
        """Compute the losses of all T tasks.

        Args:
          logits: {task: [B, 1]}.
          labels: {field: [B]}.

        Returns:
          The losses [T]: the weighted mean over the labelled rows of each task; 0 for a task
          without labels.
        """
        examples = self.examples(logits, labels)
        losses = self.heads[0].losses(examples.logits, examples.targets)
        total = tf.reduce_sum(examples.weights * losses, 0)
        return tf.math.divide_no_nan(total, tf.reduce_sum(examples.weights, 0))

    def label_weight(self, labels: types.Tensors) -> tf.Tensor:
        """Sum the weights of the labels: {field: [B]} -> [T]."""
        return tf.reduce_sum(self.targets_and_weights(labels)[1], 0)

    def metrics(self, logits: types.Tensors, labels: types.Tensors) -> types.Metrics:
        """Build the metrics of all T tasks.

        Args:
          logits: {task: [B, 1]}.
          labels: {field: [B]}.

        Returns:
          {"<task>/<metric>": (value, update)}.
        """
        first, examples = self.heads[0], self.examples(logits, labels)
        losses, counts = first.losses(examples.logits, examples.targets), examples.weights > 0
        is_nan = counts & (tf.math.is_nan(self._stack_flat_logits(logits)) | tf.math.is_nan(losses))
        sums = {
            "loss": metrics_lib.sum_weighted(losses, examples.weights, axis=0),
            "weight": metrics_lib.sum_weighted(tf.ones_like(losses), examples.weights, axis=0),
            base.NAN_PREDICTIONS: tf.reduce_sum(tf.cast(is_nan, tf.float64), 0),
            **first.sums(examples),
        }
        vector_metrics = metrics_lib.stream_sums(sums, first.all_metrics)
        of_tasks = {
            name: (self.each(vector), update) for name, (vector, update) in vector_metrics.items()
        }
        return {
            f"{head.name}/{name}": (columns[head.name], update)
            for head in self.heads
            for name, (columns, update) in of_tasks.items()
        }


def _group_heads(heads: Sequence[types.Head], labels: types.Tensors | None = None) -> list[Any]:
    """Group equal heads as `Alike`; return these groups, and all other heads."""
    if len(heads) < FROM:
        return list(heads)
    heads_by_kind: dict[Any, list[types.Head]] = {}
    parts: list[Any] = []
    for head in heads:
        kind = types.read_member(head, types.JointHead, "joint_kind")
        if kind is None:
            parts.append(head)
        else:
            # Labels of several types cannot be stacked.
            dtype = None if labels is None else labels[head.field].dtype
            heads_by_kind.setdefault((type(head), kind, dtype), []).append(head)
    for equal_heads in heads_by_kind.values():
        # The type checker cannot know that a head with a kind has the members of `Binary`.
        joint_heads = cast(list["binary.Binary"], equal_heads)
        parts += [Alike(joint_heads)] if len(equal_heads) >= FROM else equal_heads
    return parts
