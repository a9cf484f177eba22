"""Losses without a head, and the activations that they may read."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mtl.deferred import tf
from mtl.types import heads as heads_lib
from mtl.types import networks, parts, training, values


class Activations(Protocol):
    """Values that the network of a training step computed for its rows; auxiliary losses read them.

    Attributes:
      features: {field: [B, ...]}.
      labels: {field: [B, ...]}.
      inputs: the encoded columns, {column: [B, D] or [B, H, W, C]}.
      towers: {task: [B, H]}, with the outputs that tasks share.
      logits: {task: [B, C]}.
      heads: {task: its head}.
      draws_by_step: True if the network draws random numbers, such as for dropout; set after `run`.
      emitted: {name: [B]}, the losses that columns and networks emit in the first pass (see
        `emitted_losses`).
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
    ) -> Activations:
        """Run the network once more, with the same variables: {column: ...} -> its activations.

        UPDATE_OPS, such as moving averages of normalisations, do not run again.

        Args:
          inputs: inputs in place of the encoded columns.
          draw: 0 repeats the random draws of the first pass, such as dropout; other numbers draw
            anew.
          replace: trainable variable -> the tensor that the network reads in its place.
        """


class Attack(Protocol):
    """Moves the inputs of an evaluation to increase the losses of the labels."""

    @abc.abstractmethod
    def attack(self, activations: Activations) -> Activations:
        """Return the activations of the network on the moved inputs."""

    @abc.abstractmethod
    def check(self, heads: Mapping[str, heads_lib.Head]) -> None:
        """Fail unless the attack suits a model with these heads, {task: head}."""


class AuxiliaryLoss(Protocol):
    """A named training loss without a head; its variables live in `auxiliary/<name>`.

    Weighting, surgery, clipping and summaries treat it like the loss of a task.
    """

    name: str

    @abc.abstractmethod
    def __call__(self, activations: Activations) -> tf.Tensor:
        """Compute the losses of rows.

        Each part is averaged by `row_weights`, and the loss is the sum of the parts.

        Args:
          activations: the values that the network computed for the rows.

        Returns:
          [B], or [B, P] for P separate parts.
        """

    def row_weights(self, labels: values.Tensors, heads: Mapping[str, heads_lib.Head]) -> tf.Tensor:
        """Compute the weights of rows in the mean of each part; by default 1 each.

        They may depend only on labels, because a step needs the weight of each slice before its
        forward pass.

        Args:
          labels: {label: [B, ...]}; the features if the data has no labels at all.
          heads: {task: its head}.

        Returns:
          [B] or [B, P].
        """
        del heads
        return tf.ones([parts.count_rows(labels)])

    def check(self, heads: Mapping[str, heads_lib.Head]) -> None:
        """Fail unless the loss suits a model with these heads, {task: head}."""
        del heads

    @property
    def weight(self) -> float | training.Schedule:
        """The factor of the loss, applied beside balancing; 0 leaves the loss out of the graph."""
        return 1.0

    @property
    def teaches(self) -> Sequence[str]:
        """The tasks that can learn from this loss, if their heads add no loss (`has_loss`)."""
        return ()

    @property
    def own_heads(self) -> Sequence[heads_lib.Head]:
        """The heads that the loss builds; their labels are checked like the labels of tasks."""
        return ()

    @property
    def label_fields(self) -> Sequence[str]:
        """The label fields that the loss reads, beside the fields of the model's heads."""
        fields = []
        for head in parts.read_member(self, AuxiliaryLoss, "own_heads"):
            weight = parts.read_member(head, heads_lib.Head, "weight")
            fields += [
                parts.read_member(head, heads_lib.Head, "field"),
                *([weight] if weight else []),
            ]
        return fields

    @property
    def reads_average(self) -> bool:
        """True if the loss reads the averages of the weights, which `Update.average` keeps."""
        return False

    @property
    def reads_labels(self) -> bool:
        """True if the loss reads labels of single rows, which mixed rows do not have."""
        return bool(parts.read_member(self, AuxiliaryLoss, "label_fields"))

    @property
    def reads_features(self) -> bool:
        """True if the loss reads features of single rows.

        If `MultiTaskModel.mixing` mixes rows, the network runs once more for such a loss, on rows
        that are not mixed. Other losses see mixed rows, without features or labels.
        """
        return False

    @property
    def are_rows_apart(self) -> bool:
        """True if the loss of a row depends only on that row."""
        return True

    @property
    def needs_draws(self) -> bool:
        """True if the loss only compares outputs under different random draws, such as dropout.

        Without random draws, as in evaluation, this loss is 0.
        """
        return False

    @property
    def files(self) -> Mapping[str, str]:
        """The files that its settings name, {purpose: path}; a run keeps their checksums."""
        return {}

    @property
    def trainable(self) -> bool:
        """True if training may change the variables of the loss."""
        return True
