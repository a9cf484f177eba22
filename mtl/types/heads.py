"""Protocols of heads, which compute the losses, predictions and metrics of tasks."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from mtl import spec as spec_lib
from mtl.deferred import tf
from mtl.types import columns, data, parts, values


class LossInputs(NamedTuple):
    """Aligned logits, targets and weights of a batch.

    In the shapes for a map, n = H W is the number of pixels of the map.

    A weight of 0 means that the label is missing or ignored. The target of a label with weight 0 is
    any valid value, and the logits are 0, which keeps infinity and NaN out of sums and gradients.

    Attributes:
      logits: [B], [B, n] or [B, C]; for a map, [B, n] or [B, n, C].
      targets: [B] or [B, n]; for a map, [B, n] or [B, n, C].
      weights: [B] or [B, n], finite and at least 0.
    """

    logits: tf.Tensor
    targets: tf.Tensor
    weights: tf.Tensor


class Head(Protocol):
    """Turns the network's output for one task (tower) into logits, loss, predictions and metrics.

    The variables of a head are in the scope `head/<task>`.

    A head may also have the members of the protocols `FittedHead`, `CalibratedHead`, `ClassHead`,
    `MapHead`, `GroupHead`, `AddingHead`, `BatchHead`, `ComposingHead`, `UnlabelledHead`,
    `JointHead`, `NamingHead` and `CheckingHead`. If a head lacks a member, the protocol's default
    is used.

    Attributes:
      name: the name of the task, which differs between all heads of a model.
    """

    name: str

    @abc.abstractmethod
    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Compute the logits of a task.

        Args:
          tower: the task's output of the network, [B, H]; a map [B, H, W, C] if `is_dense`.

        Returns:
          Logits [B, C], or [B, H, W, C] for a map. C is the number of outputs of the last layer.
        """

    @abc.abstractmethod
    def loss(self, logits: tf.Tensor, labels: values.Tensors) -> tf.Tensor:
        """Compute the loss of a batch.

        Args:
          logits: [B, C], as `logits` returns them.
          labels: {label field: [B, ...]}; some labels may be missing.

        Returns:
          The weighted mean over labelled rows, a scalar; 0 if no row has a label.
        """

    @abc.abstractmethod
    def label_weight(self, labels: values.Tensors) -> tf.Tensor:
        """Sum the weights of the labelled rows, by which `loss` divides.

        Args:
          labels: {label field: [B, ...]}.

        Returns:
          The sum of the weights, a scalar. If a batch is split into slices or replicas, a step
          weighs the loss of each slice by the sum of the slice's label weights.
        """

    @abc.abstractmethod
    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits.

        Args:
          logits: [B, C].

        Returns:
          The predictions, {name: [B, ...]}, such as probabilities and class names. Exports serve
          the predictions as outputs.
        """

    @abc.abstractmethod
    def metrics(self, logits: tf.Tensor, labels: values.Tensors) -> values.Metrics:
        """Build the metrics of the task over the labelled rows.

        Args:
          logits: [B, C].
          labels: {label field: [B, ...]}.

        Returns:
          {name: (value, update)}; the names include `average_loss`.
        """

    @abc.abstractmethod
    def export_outputs(self, logits: tf.Tensor) -> dict[str, object]:
        """Build the outputs of an export.

        Args:
          logits: [B, C].

        Returns:
          {kind: `tf.estimator.export.ExportOutput`}; kinds are predict, classify and regress.
        """

    @abc.abstractmethod
    def check(self, labels: Mapping[str, values.PythonValue]) -> str | None:
        """Check the labels of one record.

        Args:
          labels: {label field: its value in plain Python}.

        Returns:
          The text of an error; None if the head finds no error. A run calls `check` only to explain
          an error of the graph.
        """

    @property
    def directions(self) -> Mapping[str, bool]:
        """{metric: True if a higher value is better}, the most important metric first.

        The name of a metric may contain "*", which matches any text. A metric is absent if neither
        higher nor lower values are better, as for a mean.
        """
        return {"average_loss": False}

    @property
    def field(self) -> str:
        """The label field that the head reads."""
        return self.name

    @property
    def weight(self) -> str | None:
        """The label field with the weights of examples; None if every example weighs 1."""
        return None

    @property
    def trainable(self) -> bool:
        """True if training may change the variables of the head."""
        return True


class FittedHead(Protocol):
    """A head that learns statistics of its labels before training."""

    def accumulators(self) -> Mapping[str, columns.Accumulator]:
        """Return accumulators of the head's labels, {name in the statistics: accumulator}."""
        return {}

    def fitted(self, statistics: columns.Statistics) -> Any:
        """Return a copy of the head with the statistics that its accumulators gathered.

        Args:
          statistics: the statistics of the training split, with an entry for each key of
            `accumulators()`.
        """
        del statistics
        return self


class CalibratedHead(Protocol):
    """A head that calibrates its logits."""

    def calibrate(self, logits: tf.Tensor, features: values.Tensors) -> tf.Tensor:
        """Calibrate logits, for example separately for each value of a feature.

        Args:
          logits: the logits before the calibration, [B, C].
          features: {field: [B, ...]}.

        Returns:
          The calibrated logits, [B, C].
        """
        del features
        return logits


class ClassHead(Protocol):
    """A head that predicts classes."""

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes in the order of their ids; empty if the head has no classes."""
        return ()

    @property
    def has_one_class(self) -> bool:
        """True if each row has exactly one of several classes."""
        return bool(parts.read_member(self, ClassHead, "class_names"))

    @property
    def class_counts(self) -> Sequence[int] | Mapping[str, int] | None:
        """The number of training rows of each class; None if unknown."""
        return None

    @property
    def balances(self) -> str | None:
        """The label field whose rare classes weigh more in the loss; None for equal weights."""
        return None


class MapHead(Protocol):
    """A head that predicts a value for each pixel of a map."""

    @property
    def is_dense(self) -> bool:
        """True if the label is a map: towers and logits are [B, H, W, C], not [B, H] and [B, C]."""
        return False


class GroupHead(Protocol):
    """A head whose loss compares rows of a batch."""

    @property
    def are_rows_apart(self) -> bool:
        """True if the loss is a weighted mean of losses that each depend on a single row."""
        return True

    @property
    def whole_groups(self) -> str | None:
        """The label field whose groups must stay whole in a training batch; None without groups."""
        return None


class AddingHead(Protocol):
    """A head that adds rows to training batches."""

    @property
    def rows_added(self) -> int:
        """The number of rows that `add_rows` adds to a whole training batch."""
        return 0

    def add_rows(
        self, batches: tf.data.Dataset, spec: spec_lib.Spec, reading: data.Reading
    ) -> tf.data.Dataset:
        """Add the rows that the head's loss needs to the training batches.

        The rows that `add_rows` adds have no labels, so the losses of other heads ignore these
        rows.

        Args:
          batches: pairs of features and labels, {field: [B, ...]} each.
          spec: the fields of the data.
          reading: the settings with which this process reads batches; each of the `Reading.parts`
            of a batch gets equally many added rows.

        Returns:
          The batches with additional rows; labels may have additional fields.
        """
        del spec, reading
        return batches


class BatchHead(Protocol):
    """A head that looks at the whole batch of a step."""

    def see_batch(self, labels: values.Tensors) -> values.Tensors:
        """Return the labels of a step's whole batch, with added fields that the head's loss needs.

        Training calls `see_batch` once a step, before it cuts the batch into slices. The head may
        add UPDATE_OPS that write state for the next step. Replicas can communicate in `see_batch`,
        but not in the loop over slices.

        Args:
          labels: {field: [B, ...]}, the labels of the batch on this replica.

        Returns:
          The fields of `labels` and the added fields, {field: [B, ...]}.
        """
        return labels


class ComposingHead(Protocol):
    """A head that combines logits of other tasks."""

    @property
    def composes(self) -> Sequence[str]:
        """The tasks whose logits, instead of a tower, are the input of this head."""
        return ()

    def compose(self, logits: values.Tensors) -> tf.Tensor:
        """Compute the head's logits from the logits of other tasks.

        Args:
          logits: {task: [B, C]}, at least for the tasks in `composes`.

        Returns:
          Logits [B, C] of this head.
        """
        raise NotImplementedError


class UnlabelledHead(Protocol):
    """A head that may lack a loss, and learn from losses of other heads or auxiliary losses."""

    @property
    def has_loss(self) -> bool:
        """True if the head has a training loss; if False, only other losses train the head."""
        return True


class JointHead(Protocol):
    """A head that can be computed together with equal heads; see `mtl.heads.together`.

    A head with a `joint_kind` must have the members that `together.Alike` calls, for tensors [B, T]
    of T tasks.
    """

    @property
    def joint_kind(self) -> str | None:
        """A text that is equal for heads that differ only in name and label field.

        The property is None if the head cannot be computed together with other heads.
        """
        return None


@runtime_checkable
class HeadBlock(Protocol):
    """An entry of `MultiTaskModel.heads` that stands for several heads."""

    @abc.abstractmethod
    def list_heads(self) -> Sequence[Head]:
        """Build the heads of the block, one for each task."""


class NamingHead(Protocol):
    """A head that names the outputs of its last layer."""

    @property
    def row_names(self) -> columns.RowNames | None:
        """The names of the columns of the last layer's kernel; None if columns have no names."""
        return None


class CheckingHead(Protocol):
    """A head whose settings name features."""

    def check_fields(self, spec: spec_lib.Spec) -> None:
        """Fail unless a specification has the features that the head's settings name.

        Args:
          spec: the fields of the data.

        Raises:
          UserError: a feature is missing, or does not suit the head.
        """
        del spec


class CombinedMetric(Protocol):
    """A metric that is computed from metrics of tasks.

    Attributes:
      name: the name of the metric in evaluations, other than `loss`, `average_loss` and
        `global_step`.
      higher_is_better: True if higher values of the metric are better, False if lower values are.
    """

    name: str
    higher_is_better: bool

    @property
    @abc.abstractmethod
    def metrics(self) -> Sequence[str]:
        """The metrics that the combined metric reads, `<task>/<metric>`."""

    @abc.abstractmethod
    def combine(self, values: values.Tensors, directions: Mapping[str, bool]) -> tf.Tensor:
        """Combine metrics of tasks.

        Args:
          values: {metric: scalar}, for the names in `metrics`.
          directions: {metric: True if a higher value is better}.

        Returns:
          The combined metric, a scalar.
        """

    def fitted(self, statistics: columns.Statistics) -> CombinedMetric:
        """Return a copy of the metric with statistics of the training split.

        Returns:
          The copy, which has the same name; by default, the metric itself.
        """
        del statistics
        return self


@runtime_checkable
class ExampleHead(Protocol):
    """A head with a loss for every example, which the clip audit and `refit` need."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The task."""

    @property
    @abc.abstractmethod
    def field(self) -> str:
        """The label field."""

    @abc.abstractmethod
    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Split labels into targets and a mask.

        Args:
          label: the label field, [B, ...].

        Returns:
          Targets, and a mask that is True for present labels, [B] or [B, n] each. The target of a
          missing label may be any valid value.
        """

    @abc.abstractmethod
    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits, [B, C] -> {name: [B, ...]}."""

    @abc.abstractmethod
    def examples(self, logits: tf.Tensor, labels: values.Tensors) -> LossInputs:
        """Align logits and labels as inputs of `losses`.

        Args:
          logits: [B, C].
          labels: {label field: [B, ...]}.

        Returns:
          Logits, targets and weights. Rows without a label have a weight of 0.
        """

    @abc.abstractmethod
    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example, without weights.

        Args:
          logits: [B, ...], as `examples` returns them.
          targets: the targets, as `examples` returns them, [B] or [B, n].

        Returns:
          The losses, in the shape of the targets.
        """


@runtime_checkable
class WeighingHead(ExampleHead, Protocol):
    """A head that computes the weights of rows without logits, for auxiliary losses."""

    @abc.abstractmethod
    def row_weights(self, labels: values.Tensors) -> tf.Tensor:
        """Compute the weight of each row from its labels alone.

        Args:
          labels: {label field: [B, ...]}.

        Returns:
          The sum of the weights of a row's labels, [B].
        """


@runtime_checkable
class ComparableHead(Protocol):
    """A head that measures the distance of two predictions for a row."""

    @abc.abstractmethod
    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Compute the divergence of two predictions for each row.

        Args:
          logits: the logits of one prediction, [B, C].
          others: the logits of the other prediction, [B, C].

        Returns:
          The divergence, [B], at least 0; 0 if both predictions are equal. Gradients go through
          `logits` and through `others`.
        """


@runtime_checkable
class UncertainHead(Protocol):
    """A head that measures the uncertainty of a prediction."""

    @abc.abstractmethod
    def entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """Compute the entropy of the prediction for each row.

        Args:
          logits: [B, C], or [B, H, W, C] for a map.

        Returns:
          The entropy in nats, [B].
        """


@runtime_checkable
class TeachableHead(ComparableHead, Protocol):
    """A head that can learn from the predictions of another model."""

    @abc.abstractmethod
    def recover_logits(self, predictions: values.Tensors) -> tf.Tensor:
        """Invert `Head.predictions`.

        Args:
          predictions: {name: [B, ...]}, the predictions of another model for the task.

        Returns:
          Logits [B, C], or [B, H, W, C] for a map.
        """
