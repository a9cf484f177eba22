"""The parts of a training step, as types: encode, network, heads, weighting, surgery, update."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import tensorflow as tf

Tensors = Mapping[str, tf.Tensor]
"""Named tensors; by task where the name is plural (`losses`), by field for features and labels."""

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None
"""Of one variable: sparse where it was looked up, None where nothing depends on it."""

Connected: TypeAlias = tf.Tensor | tf.IndexedSlices
"""The gradient of a variable that something depends on."""

GradientsAndVariables = list[tuple[tf.Tensor | tf.IndexedSlices | None, tf.Variable]]

Metrics = Mapping[str, tuple[tf.Tensor, tf.Operation]]
"""{name: (value, update)} as `EstimatorSpec.eval_metric_ops` takes them."""


class Column(Protocol):
    """Encodes some of the features; its variables live in `features/<column>`."""

    @property
    def columns(self) -> Mapping[str, Sequence[str]]:
        """{column: the fields it reads}; one object may make several columns."""

    def accumulators(self) -> Mapping[str, Any]:
        """{name: `accumulators.Accumulator`} of what the training split must tell first."""

    def __call__(self, features: Tensors, fitted: Any) -> Tensors:
        """{field: [B, ...]} and `features.Statistics` -> {column: [B, D] or [B, H, W, C]}."""


class Towers(dict[str, tf.Tensor]):
    """{task: [B, H]}, with the outputs that tasks share and all of them are made of.

    Attributes:
      shared: tensors [B, ...] that separate what tasks share from what each has of its own; a
        network takes them from `precision.share_output`, which have 32 bits.
    """

    def __init__(self, towers: Tensors, shared: Sequence[tf.Tensor] = ()):
        super().__init__(towers)
        self.shared = tuple(shared)


class Network(Protocol):
    """The shared network; its variables live in `network`.

    It asks `get_variable` for them in the type of its inputs, which need not be float32.
    """

    def __call__(self, inputs: Tensors, tasks: Sequence[str], training: bool) -> Towers:
        """{column: [B, D] or [B, H, W, C]} -> {task: [B, H]}."""


class Head(Protocol):
    """One task: from the tower to logits, loss, predictions and metrics; scope `head/<task>`."""

    name: str

    directions: Mapping[str, bool]
    """{metric: whether a higher value is better}, the one that tells most first; see `Base`."""

    def accumulators(self) -> Mapping[str, Any]:
        """{name: `accumulators.Accumulator` of labels} of what the training split must tell."""

    def fitted(self, statistics: Any) -> "Head":
        """Return the head with what its accumulators gathered, from `features.Statistics`."""

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """[B, H] -> [B, C]."""

    def loss(self, logits: tf.Tensor, labels: Tensors) -> tf.Tensor:
        """[B, C] and {label: [B, ...]} -> the weighted mean over the labelled rows, a scalar."""

    def label_weight(self, labels: Tensors) -> tf.Tensor:
        """{label: [B, ...]} -> the sum of weights that the mean is divided by, a scalar."""

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """[B, C] -> {name: [B, ...]}, such as probabilities and class names."""

    def metrics(self, logits: tf.Tensor, labels: Tensors) -> Metrics:
        """Return the task's metrics over the labelled rows."""

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """{kind: ExportOutput} with kind among predict, classify and regress."""

    def check(self, labels: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the label values of one record (Python values), or None."""


class Weighting(Protocol):
    """Losses decide: scales each task's loss; state lives in `balancing`, updated by UPDATE_OPS.

    Where neither it nor the surgery reads losses, which they say by `reads_losses = False`, a batch
    in slices passes through the network once: losses of the first slice stand in for the batch's.
    """

    def __call__(self, losses: Tensors, step: tf.Tensor) -> Tensors:
        """{task: scalar} -> {task: scalar}.

        The derivative of each by its own loss is the weight of the task; no gradient goes from one
        task's value to another's loss. A loss of 0 may be that of a batch without a label.
        """


class Surgery(Protocol):
    """Gradients decide: one update direction from several losses.

    One that does not read losses (see `Weighting`) returns `<task>/loss` of the batch, unweighted.
    """

    def __call__(
        self,
        losses: Tensors,
        variables: Sequence[tf.Variable],
        batch: Any = None,
    ) -> tuple[list[Gradient], dict[str, tf.Tensor]]:
        """{task: scalar}, N variables and a `whole_batch.WholeBatch` -> N gradients, and scalars.

        A gradient is sparse where a variable was looked up. Gradients are those of the whole batch,
        the sum over its parts; the scalars are for people to watch.
        """


class Update(Protocol):
    """From gradients to a training step: schedule, clip, apply, after UPDATE_OPS."""

    def __call__(
        self,
        gradients: Sequence[tf.Tensor | tf.IndexedSlices | None],
        variables: Sequence[tf.Variable],
        losses: Tensors | None = None,
    ) -> tuple[tf.Operation, dict[str, tf.Tensor]]:
        """N gradients, N variables, {task: loss} -> the op of one step, and scalars to watch."""


class Clipping(Protocol):
    """Bounds the gradient between balancing and the optimizer."""

    def __call__(
        self, gradients: Sequence[Connected], variables: Sequence[tf.Variable], norm: tf.Tensor
    ) -> list[Connected]:
        """N gradients with merged rows, N variables and their global norm -> N gradients."""


class Optimizer(Protocol):
    """How a gradient moves a variable."""

    @property
    def learning_rate(self) -> Any:
        """A number or a schedule."""

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        """Return the optimizer of the graph, at the learning rate of this step, a scalar."""


class Schedule(Protocol):
    """A value that changes over the steps."""

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """int64 scalar -> float32 scalar."""
