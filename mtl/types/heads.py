"""Heads compute the logits, losses, predictions and metrics of tasks from towers."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from mtl import spec as spec_lib
from mtl.deferred import tf
from mtl.types import columns, data, parts, values


class LossInputs(NamedTuple):
    """Logits, targets and weights of a batch, aligned: [B] or [B, n], logits maybe [B, C].

    A map has n = H W places; logits and targets may have a further axis, [B, n, C].

    A weight of 0 means that the label is missing or does not count. Its target is then a harmless
    value and its logits are 0, which keeps infinity and NaN out of sums and gradients.
    """

    logits: tf.Tensor
    targets: tf.Tensor
    weights: tf.Tensor


class Head(Protocol):
    """One task: turns its tower into logits, loss, predictions and metrics; scope `head/<task>`.

    A head may have more members: those of `FittedHead`, `CalibratedHead`, `ClassHead`, `MapHead`,
    `GroupHead`, `AddingHead`, `BatchHead`, `ComposingHead`, `UnlabelledHead`, `JointHead`,
    `NamingHead` and `CheckingHead`. If a head lacks a member, the default of that protocol holds.
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
          A scalar. A step adds up the losses of slices and replicas in proportion to it.
        """

    @abc.abstractmethod
    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits.

        Args:
          logits: [B, C].

        Returns:
          {name: [B, ...]}, such as probabilities and class names. Exports serve these outputs.
        """

    @abc.abstractmethod
    def metrics(self, logits: tf.Tensor, labels: values.Tensors) -> values.Metrics:
        """Build the metrics of the task over the labelled rows.

        Args:
          logits: [B, C].
          labels: {label field: [B, ...]}.

        Returns:
          {name: (value, update)}, `average_loss` among the names.
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
          The text of an error, or None. It runs only to explain an error of the graph.
        """

    @property
    def directions(self) -> Mapping[str, bool]:
        """{metric: True if a higher value is better}, the most important metric first.

        A name may hold "*". Metrics without a better direction, such as a mean, are left out.
        """
        return {"average_loss": False}

    @property
    def field(self) -> str:
        """The label field that the head reads."""
        return self.name

    @property
    def weight(self) -> str | None:
        """The label field with the weights of examples; None if each weighs 1."""
        return None

    @property
    def trainable(self) -> bool:
        """True if training may change the variables of the head."""
        return True


class FittedHead(Protocol):
    """A head that learns statistics of its labels before training."""

    def accumulators(self) -> Mapping[str, columns.Accumulator]:
        """Return accumulators of its labels, {name in the statistics: accumulator}."""
        return {}

    def fitted(self, statistics: columns.Statistics) -> Any:
        """Return the head with the statistics of its accumulators."""
        del statistics
        return self


class CalibratedHead(Protocol):
    """A head that calibrates its logits."""

    def calibrate(self, logits: tf.Tensor, features: values.Tensors) -> tf.Tensor:
        """Calibrate logits, maybe by features.

        Args:
          logits: [B, C].
          features: {field: [B, ...]}.

        Returns:
          Logits [B, C].
        """
        del features
        return logits


class ClassHead(Protocol):
    """A head that predicts classes."""

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes in the order of their ids; empty without classes."""
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
    """A head that predicts a value for each place of a map."""

    @property
    def is_dense(self) -> bool:
        """True if the label is a map: towers and logits are [B, H, W, C], not [B, H] and [B, C]."""
        return False


class GroupHead(Protocol):
    """A head whose loss compares rows."""

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
        """Return the training batches with the additional rows that its loss needs.

        These rows have no labels, so other heads ignore them.
        """
        del spec, reading
        return batches


class BatchHead(Protocol):
    """A head that looks at the whole batch of a step."""

    def see_batch(self, labels: values.Tensors) -> values.Tensors:
        """Return the labels of a step's whole batch, with added fields that its loss needs.

        Training calls it once a step, before the batch is cut into slices. UPDATE_OPS write state
        for the next step. Replicas can communicate here, but not in the loop over slices.

        Args:
          labels: {field: [B, ...]}, the labels of the batch on this replica.

        Returns:
          {field: [B, ...]}, with all fields of `labels`.
        """
        return labels


class ComposingHead(Protocol):
    """A head that combines logits of other tasks."""

    @property
    def composes(self) -> Sequence[str]:
        """The tasks whose logits it combines into its logits, in place of a tower."""
        return ()

    def compose(self, logits: values.Tensors) -> tf.Tensor:
        """Compute its logits from the logits of the tasks in `composes`, {task: [B, C]}."""
        raise NotImplementedError


class UnlabelledHead(Protocol):
    """A head that learns from the losses of other parts."""

    @property
    def has_loss(self) -> bool:
        """True if training adds its loss; if False, it learns from losses that read its logits."""
        return True


class JointHead(Protocol):
    """A head that can be computed together with equal heads; see `mtl.heads.together`.

    It then has the members that `together.Alike` calls, for tensors [B, T] of T tasks.
    """

    @property
    def joint_kind(self) -> str | None:
        """A text that it shares with the heads that differ only in name and label field.

        None if the head has to be computed alone.
        """
        return None


@runtime_checkable
class HeadBlock(Protocol):
    """An entry of `MultiTaskModel.heads` that stands for several heads."""

    @abc.abstractmethod
    def list_heads(self) -> Sequence[Head]:
        """Build its heads, one for each task."""


class NamingHead(Protocol):
    """A head that names the columns of its last layer."""

    @property
    def row_names(self) -> columns.RowNames | None:
        """The names of the columns of its last layer; None if they have no names."""
        return None


class CheckingHead(Protocol):
    """A head whose settings name features."""

    def check_fields(self, spec: spec_lib.Spec) -> None:
        """Fail unless a specification has the features that its settings name."""
        del spec


class CombinedMetric(Protocol):
    """A metric that is computed from metrics of tasks."""

    name: str

    @property
    @abc.abstractmethod
    def metrics(self) -> Sequence[str]:
        """The metrics that it reads, `<task>/<metric>`."""

    @abc.abstractmethod
    def combine(self, values: values.Tensors, directions: Mapping[str, bool]) -> tf.Tensor:
        """Combine metrics of tasks.

        Args:
          values: {metric: scalar}, for the names in `metrics`.
          directions: {metric: True if a higher value is better}.

        Returns:
          A scalar.
        """

    def fitted(self, statistics: columns.Statistics) -> CombinedMetric:
        """Return the metric with the statistics that a run keeps for it."""
        del statistics
        return self

    @property
    def higher_is_better(self) -> bool:
        """True if higher values are better."""
        return True


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
          Targets, and True for present labels; [B] or [B, n] each. Targets of missing labels are
          any valid value.
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
          Logits, targets and weights. Rows that do not count have a weight of 0.
        """

    @abc.abstractmethod
    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss of every example, without weights.

        Args:
          logits: [B, ...], aligned by `examples`.
          targets: [B] or [B, n].

        Returns:
          Losses of the shape of the targets.
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
          others: the logits of the other one, [B, C].

        Returns:
          [B], at least 0, and 0 if both predictions are equal. Gradients go through both.
        """


@runtime_checkable
class UncertainHead(Protocol):
    """A head that measures the uncertainty of a prediction."""

    @abc.abstractmethod
    def entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the entropy of the prediction in nats, [B, C] -> [B]."""


@runtime_checkable
class TeachableHead(ComparableHead, Protocol):
    """A head that can learn from the predictions of another model."""

    @abc.abstractmethod
    def recover_logits(self, predictions: values.Tensors) -> tf.Tensor:
        """Return logits [B, C] from which `Head.predictions` are these, {name: [B, ...]}."""
