"""From towers to logits, losses, predictions and metrics: the tasks."""

import abc
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import tensorflow as tf

from mtl import spec as spec_lib
from mtl.types import columns, data, values


class LossInputs(NamedTuple):
    """Logits, targets and weights of a batch, aligned: [B] or [B, n], logits maybe [B, C].

    A map has n = H W places; logits and targets may have a further axis, [B, n, C].

    Where the weight is 0, the label is missing or does not count: the target is a harmless value
    and the logits are 0, so that no infinity or NaN gets from there into a sum or a gradient.
    """

    logits: tf.Tensor
    targets: tf.Tensor
    weights: tf.Tensor


class Head(Protocol):
    """One task: from the tower to logits, loss, predictions and metrics; scope `head/<task>`.

    Where the label is a map, `is_dense`, a tower is [B, H, W, C] in place of [B, H], and so are the
    logits in place of [B, C].
    """

    name: str

    @abc.abstractmethod
    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Compute the logits of a tower, [B, H] -> [B, C]."""

    @abc.abstractmethod
    def loss(self, logits: tf.Tensor, labels: values.Tensors) -> tf.Tensor:
        """Return the weighted mean over labelled rows: [B, C], {label: [B, ...]} -> scalar."""

    @abc.abstractmethod
    def label_weight(self, labels: values.Tensors) -> tf.Tensor:
        """Sum the weights that the mean is divided by: {label: [B, ...]} -> scalar."""

    @abc.abstractmethod
    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict, [B, C] -> {name: [B, ...]}, such as probabilities and class names."""

    @abc.abstractmethod
    def metrics(self, logits: tf.Tensor, labels: values.Tensors) -> values.Metrics:
        """Return the task's metrics over the labelled rows, `average_loss` among them."""

    @abc.abstractmethod
    def export_outputs(self, logits: tf.Tensor) -> dict[str, object]:
        """Return {kind: `tf.estimator.export.ExportOutput`}, of predict, classify and regress."""

    @abc.abstractmethod
    def check(self, labels: Mapping[str, values.PythonValue]) -> str | None:
        """Check the label values of one record (Python values); return what is wrong, or None."""

    def accumulators(self) -> Mapping[str, columns.Accumulator]:
        """Return what gathers statistics of the labels, by the name they are kept under."""
        return {}

    def fitted(self, statistics: columns.Statistics) -> "Head":
        """Return the head with what its accumulators gathered."""
        del statistics
        return self

    def calibrate(self, logits: tf.Tensor, features: values.Tensors) -> tf.Tensor:
        """Calibrate logits, by the features of their rows: [B, C], {field: [B, ...]} -> [B, C]."""
        del features
        return logits

    @property
    def directions(self) -> Mapping[str, bool]:
        """{metric: whether a higher value is better}, the one that tells most first.

        A name may hold "*". A metric without an order, such as a mean, is left out.
        """
        return {"average_loss": False}

    @property
    def field(self) -> str:
        """The label field."""
        return self.name

    @property
    def weight(self) -> str | None:
        """The label field that weighs the examples; None where each weighs 1."""
        return None

    @property
    def are_rows_apart(self) -> bool:
        """Whether the loss is a weighted mean of losses that each know one row alone."""
        return True

    @property
    def whole_groups(self) -> str | None:
        """The label field whose equal values no batch of training may part; None where any may."""
        return None

    def check_fields(self, spec: spec_lib.Spec) -> None:
        """Fail unless a specification has the features that its settings name."""
        del spec

    @property
    def rows_added(self) -> int:
        """How many rows `add_rows` puts into a batch of training, over all of its parts."""
        return 0

    def add_rows(
        self, batches: tf.data.Dataset, spec: spec_lib.Spec, reading: data.Reading
    ) -> tf.data.Dataset:
        """Return the batches of training with the rows that its loss needs beside their own.

        These rows have no labels, so other heads ignore them.
        """
        del spec, reading
        return batches

    def see_batch(self, labels: values.Tensors) -> values.Tensors:
        """Return the labels of a step's whole batch, with what its loss has to know of all of it.

        Training calls it once a step, before the batch is cut into slices: {field: [B, ...]} of
        this replica -> the same, and maybe more. State for the next step is written by UPDATE_OPS.
        Replicas can meet here, but not in the loop over slices.
        """
        return labels

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes in the order of their ids; none where there are no classes."""
        return ()

    @property
    def has_one_class(self) -> bool:
        """Whether each of its rows has one class of several."""
        return bool(self.class_names)

    @property
    def is_dense(self) -> bool:
        """Whether the label is a map, with something to predict at each of its places."""
        return False

    @property
    def class_counts(self) -> Sequence[int] | Mapping[str, int] | None:
        """How many rows of the training split every class has; None where that is not known."""
        return None

    @property
    def has_loss(self) -> bool:
        """Whether training adds its own loss; if not, it learns by what reads its logits."""
        return True

    @property
    def composes(self) -> Sequence[str]:
        """The tasks whose logits its own are made of, in place of a tower of the network."""
        return ()

    def compose(self, logits: values.Tensors) -> tf.Tensor:
        """Compute the logits from those of the tasks that it `composes`, {task: [B, C]}."""
        raise NotImplementedError

    @property
    def balances(self) -> str | None:
        """The label field whose rare classes the loss counts for more; None where it does not."""
        return None

    @property
    def row_names(self) -> columns.RowNames | None:
        """What the columns of its last layer stand for; None where they have no names."""
        return None

    @property
    def trainable(self) -> bool:
        """Whether its variables may move."""
        return True


class CombinedMetric(Protocol):
    """A metric that is computed from those of tasks."""

    name: str

    @property
    @abc.abstractmethod
    def metrics(self) -> Sequence[str]:
        """The metrics that it reads, `<task>/<metric>`."""

    @abc.abstractmethod
    def combine(self, values: values.Tensors, directions: Mapping[str, bool]) -> tf.Tensor:
        """Combine {metric: scalar} into a scalar; `directions` say which should be high."""

    def fitted(self, statistics: columns.Statistics) -> "CombinedMetric":
        """Return the metric with what a run keeps of it."""
        del statistics
        return self

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values are better."""
        return True


@runtime_checkable
class ExampleHead(Protocol):
    """A head that also knows the loss of every example, as the clip audit and `refit` need it."""

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
        """Split labels [B, ...] into targets and whether they are present, [B] or [B, n] each."""

    @abc.abstractmethod
    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Predict from logits, [B, C] -> {name: [B, ...]}."""

    @abc.abstractmethod
    def examples(self, logits: tf.Tensor, labels: values.Tensors) -> LossInputs:
        """Align logits [B, C] and {label: [B, ...]}, for the losses to be computed from them."""

    @abc.abstractmethod
    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the loss of every example: [B, ...] and [B] or [B, n] -> [B] or [B, n]."""


@runtime_checkable
class WeighingHead(ExampleHead, Protocol):
    """A head that knows what rows weigh before it knows their logits, for auxiliary losses."""

    @abc.abstractmethod
    def row_weights(self, labels: values.Tensors) -> tf.Tensor:
        """Sum the weights of each row, {label: [B, ...]} -> [B]."""


@runtime_checkable
class ComparableHead(Protocol):
    """A head that knows how far two predictions for a row are apart."""

    @abc.abstractmethod
    def divergence(self, logits: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Return how far predictions are from the ones of `logits`: [B, C], [B, C] -> [B].

        It is at least 0, and 0 where both are the same; gradients go through both.
        """


@runtime_checkable
class UncertainHead(Protocol):
    """A head that knows how uncertain a prediction is."""

    @abc.abstractmethod
    def entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the entropy of the prediction in nats, [B, C] -> [B]."""


@runtime_checkable
class TeachableHead(ComparableHead, Protocol):
    """A head that can learn from the predictions of another model."""

    @abc.abstractmethod
    def recover_logits(self, predictions: values.Tensors) -> tf.Tensor:
        """Return logits that give predictions, {name: [B, ...]} of `Head.predictions` -> [B, C]."""
