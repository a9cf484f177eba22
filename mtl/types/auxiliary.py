"""Protocols of auxiliary losses, which have no head, and of the activations they may read."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mtl.deferred import tf
from mtl.types import heads as heads_lib
from mtl.types import networks, parts, training, values


class Activations(Protocol):
    """The inputs, towers and logits of a training step, which auxiliary losses read.

    Attributes:
      features: {field: [B, ...]}.
      labels: {field: [B, ...]}.
      inputs: the encoded columns, {column: [B, D] or [B, H, W, C]}.
      towers: {task: [B, H]}, with the outputs that tasks share.
      logits: {task: [B, C]}.
      heads: {task: its head}.
      draws_by_step: True if the network drew random numbers, such as for dropout; only valid in a
        result of `run`.
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
        """Run the network once more, with the same variables and other inputs.

        The additional run adds no UPDATE_OPS, such as updates of the moving averages of batch norm.

        Args:
          inputs: {column: [B, ...]}, which the network reads instead of the encoded columns.
          draw: 0 repeats the random draws of the first pass, such as dropout; other numbers draw
            anew.
          replace: maps a trainable variable to the tensor that the network reads in its place.

        Returns:
          The activations that the network computes from `inputs`.
        """


class Attack(Protocol):
    """An adversarial attack, which changes the inputs of an evaluation to increase the losses."""

    @abc.abstractmethod
    def attack(self, activations: Activations) -> Activations:
        """Compute the outputs of the network for the changed inputs.

        Args:
          activations: the values that the network computed for the unchanged inputs.

        Returns:
          The activations of the same rows for the changed inputs.
        """

    @abc.abstractmethod
    def check(self, heads: Mapping[str, heads_lib.Head]) -> None:
        """Fail unless the attack suits a model with these heads.

        Args:
          heads: {task: its head}.

        Raises:
          UserError: the attack does not suit the heads.
        """


class AuxiliaryLoss(Protocol):
    """A named training loss without a head; its variables are in the scope `auxiliary/<name>`.

    Weighting, surgery, clipping and summaries treat an auxiliary loss like the loss of a task.

    Attributes:
      name: the name of the loss, other than the names of tasks and of other auxiliary losses.
    """

    name: str

    @abc.abstractmethod
    def __call__(self, activations: Activations) -> tf.Tensor:
        """Compute the losses of rows.

        A loss may consist of P parts. Each part of the loss is averaged over the rows with the
        weights of `row_weights`, and the sum of these averages is the loss.

        Args:
          activations: the values that the network computed for the rows.

        Returns:
          The loss of each row, [B]; or [B, P] for a loss of P parts.
        """

    def row_weights(self, labels: values.Tensors, heads: Mapping[str, heads_lib.Head]) -> tf.Tensor:
        """Compute the weight of each row in the mean of each part of the loss; by default, 1.

        Weights may depend only on labels, because a step needs the sum of weights of each slice of
        the batch before the forward pass.

        Args:
          labels: {label: [B, ...]}; the features if the data has no label fields.
          heads: {task: its head}.

        Returns:
          The weights of the rows, [B] for all parts of the loss, or [B, P] for P parts of the loss.
        """
        del heads
        return tf.ones([parts.count_rows(labels)])

    def check(self, heads: Mapping[str, heads_lib.Head]) -> None:
        """Fail unless the loss suits a model with these heads; by default, all heads are allowed.

        Args:
          heads: {task: its head}.

        Raises:
          UserError: the loss does not suit the heads.
        """
        del heads

    @property
    def weight(self) -> float | training.Schedule:
        """The factor of the loss, in addition to its weight by balancing; 0 removes the loss."""
        return 1.0

    @property
    def teaches(self) -> Sequence[str]:
        """The tasks that can learn from this loss alone, if `has_loss` of their heads is False."""
        return ()

    @property
    def own_heads(self) -> Sequence[heads_lib.Head]:
        """The heads that the loss builds, whose labels are checked like labels of tasks."""
        return ()

    @property
    def label_fields(self) -> Sequence[str]:
        """The label fields that the loss reads, in addition to the fields of the model's heads."""
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
        """True if the loss reads the averaged weights of `Update.average`."""
        return False

    @property
    def reads_labels(self) -> bool:
        """True if the loss reads labels of single rows, which rows mixed by mixup do not have."""
        return bool(parts.read_member(self, AuxiliaryLoss, "label_fields"))

    @property
    def reads_features(self) -> bool:
        """True if the loss reads features of single rows.

        If `MultiTaskModel.mixing` mixes rows, the network runs once more, on rows that are not
        mixed, for losses that read features. Losses that read no features get the mixed rows,
        without features or labels.
        """
        return False

    @property
    def are_rows_apart(self) -> bool:
        """True if the loss of each row does not depend on other rows of the batch."""
        return True

    @property
    def needs_draws(self) -> bool:
        """True if the loss compares outputs under different random draws, such as dropout.

        In an evaluation, which has no random draws, a loss that needs draws is 0.
        """
        return False

    @property
    def files(self) -> Mapping[str, str]:
        """The files that the settings name, {purpose: path}; a run saves their checksums."""
        return {}

    @property
    def trainable(self) -> bool:
        """True if training may change the variables of the loss."""
        return True
