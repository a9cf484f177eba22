"""Losses without a head, and what they may look at."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import tensorflow as tf

from mtl.types import heads as heads_lib
from mtl.types import networks, parts, training, values


class Activations(Protocol):
    """What the network of a training step computed for its rows, for an auxiliary loss to read.

    Attributes:
      features: {field: [B, ...]}.
      labels: the same.
      inputs: the encoded columns, {column: [B, D] or [B, H, W, C]}.
      towers: {task: [B, H]}, and what tasks share.
      logits: {task: [B, C]}.
      heads: {task: its head}.
      draws_by_step: whether the network draws numbers, such as for dropout; known after `run`.
      emitted: {name: [B]}, the losses that columns and networks emit, as their `emitted_losses`
        say; those of the plain pass.
    """

    features: values.Tensors
    labels: values.Tensors
    inputs: values.Tensors
    towers: networks.Towers
    logits: values.Tensors
    heads: Mapping[str, heads_lib.Head]
    draws_by_step: bool
    emitted: values.Tensors

    @abc.abstractmethod
    def run(
        self,
        inputs: values.Tensors,
        draw: int = 0,
        replace: Callable[[tf.Variable], tf.Tensor] | None = None,
    ) -> "Activations":
        """Run the network once more, by the same variables: {column: ...} -> what it computes.

        No average of a normalisation moves, and nothing else of UPDATE_OPS runs again.

        Args:
          inputs: in place of the encoded columns.
          draw: 0 drops out what the pass before dropped out; any other number draws anew.
          replace: trainable variable -> what is read in its place.
        """


class Attack(Protocol):
    """Moves the inputs of an evaluation to where the losses of the labels are large."""

    @abc.abstractmethod
    def attack(self, activations: Activations) -> Activations:
        """Return what the network makes of the inputs that were moved."""

    @abc.abstractmethod
    def check(self, heads: Mapping[str, heads_lib.Head]) -> None:
        """Fail unless it can attack a model with these heads, {task: head}."""


class AuxiliaryLoss(Protocol):
    """A named loss without a head, in training alone; its variables live in `auxiliary/<name>`.

    Weighting, surgery, clipping and summaries treat it as they treat the loss of a task.
    """

    name: str

    @abc.abstractmethod
    def __call__(self, activations: Activations) -> tf.Tensor:
        """Compute the losses of rows, [B], or [B, P] of P parts that count on their own.

        The loss is the sum over the parts of the mean by `row_weights`.
        """

    def row_weights(self, labels: values.Tensors, heads: Mapping[str, heads_lib.Head]) -> tf.Tensor:
        """Return what rows weigh in the mean of each part, [B] or [B, P]; by default 1 each.

        {label: [B, ...]}, {task: head} -> weights. Nothing but labels decides, since what a slice
        of a batch weighs is known before it goes through the network. Where the data has no label
        at all, these are the features.
        """
        del heads
        return tf.ones([parts.count_rows(labels)])

    def check(self, heads: Mapping[str, heads_lib.Head]) -> None:
        """Fail unless it can be computed for a model with these heads, {task: head}."""
        del heads

    @property
    def weight(self) -> float | training.Schedule:
        """What its loss is multiplied by beside the balancing; with 0 none of it is built."""
        return 1.0

    @property
    def teaches(self) -> Sequence[str]:
        """The tasks that it can teach in place of their own losses (`Head.has_loss`)."""
        return ()

    @property
    def own_heads(self) -> Sequence[heads_lib.Head]:
        """The heads that it builds itself, whose labels are checked as those of tasks are."""
        return ()

    @property
    def label_fields(self) -> Sequence[str]:
        """The label fields that it reads itself, beside those of the model's heads."""
        read = []
        for head in parts.read_member(self, AuxiliaryLoss, "own_heads"):
            weight = parts.read_member(head, heads_lib.Head, "weight")
            read += [
                parts.read_member(head, heads_lib.Head, "field"),
                *([weight] if weight else []),
            ]
        return read

    @property
    def reads_average(self) -> bool:
        """Whether it reads the averages of the weights, which `Update.average` keeps."""
        return False

    @property
    def reads_labels(self) -> bool:
        """Whether a label has to belong to its row, so that rows cannot be mixed."""
        return bool(parts.read_member(self, AuxiliaryLoss, "label_fields"))

    @property
    def reads_features(self) -> bool:
        """Whether a feature has to belong to its row.

        Where `MultiTaskModel.mixing` mixes rows, such a loss sees rows that are not mixed, for
        which the network runs once more. Other losses see mixed rows, without features or labels.
        """
        return False

    @property
    def are_rows_apart(self) -> bool:
        """Whether the loss of a row depends on that row alone."""
        return True

    @property
    def needs_draws(self) -> bool:
        """Whether it compares what the network draws, such as dropout, and has no other cause.

        A pass as in evaluation, which draws nothing, leaves nothing of it.
        """
        return False

    @property
    def files(self) -> Mapping[str, str]:
        """The files that its settings name, {what for: path}. Their checksums are kept."""
        return {}

    @property
    def trainable(self) -> bool:
        """Whether its variables may move."""
        return True
