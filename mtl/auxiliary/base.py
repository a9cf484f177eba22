"""Base classes of auxiliary losses, with a name, a weight, and the heads that a loss reads.

auxiliary.Adversarial.name = "adversarial"               # for TensorBoard and balancing
auxiliary.Adversarial.weight = 0.5                       # or a schedule
auxiliary.Adversarial.heads = ["digit"]                  # all by default
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, cast

from mtl import checks, types
from mtl.auxiliary import row_losses
from mtl.deferred import tf


@checks.dataclass
class Base(types.AuxiliaryLoss):
    """The base class of auxiliary losses, with a name and a weight.

    Attributes:
      name: the name of the loss, which must differ from the names of all tasks. The variables of
        the loss are in the scope `auxiliary/<name>`.
      weight: a factor of the loss, in addition to the weighting of the model; at least 0, or a
        schedule. If the weight is the constant 0, the loss is not computed.
    """

    name: checks.Name
    weight: Annotated[
        float | types.Schedule, checks.Scheduled(checks.AtLeast(0), "schedules.Cosine")
    ] = 1.0

    def _where(self, setting: str) -> str:
        return f"{type(self).__name__}.{setting}"


def list_towers(heads: Mapping[str, types.Head]) -> list[str]:
    """List the tasks that have a tower.

    Args:
      heads: {task: head}. A head that combines the logits of other tasks has no tower.
    """
    return [
        task
        for task, h in heads.items()
        if not types.read_member(h, types.ComposingHead, "composes")
    ]


@checks.dataclass
class OfHeads(Base):
    """The base class of losses that read the predictions of some heads.

    Attributes:
      heads: the names of the tasks whose predictions the loss reads; None for all tasks.
    """

    heads: checks.SomeNames | None = None

    kind: ClassVar[type] = types.ComparableHead
    rule: ClassVar[str] = "name tasks whose heads define a divergence"
    """`kind` is the protocol that heads must implement, and `rule` is the text of the error."""

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Check that the tasks exist, and that their heads suit the loss.

        Raises:
          UserError: a task is unknown, or its head does not implement the protocol `kind`.
        """
        for task in self._choose(heads):
            checks.one_of(self._where("heads"), task, heads)
            fits, head = self._suits(heads[task]), type(heads[task]).__name__
            checks.require(fits, self._where("heads"), self.rule, task, f"It is {head}.")

    def _suits(self, head: types.Head) -> bool:
        """Return True if the loss can be computed for a head."""
        return isinstance(head, self.kind)

    def _choose(self, heads: Mapping[str, types.Head]) -> Sequence[str]:
        return list(heads) if self.heads is None else self.heads

    def _diverge(self, activations: types.Activations, others: types.Tensors) -> tf.Tensor:
        """Compute the divergence between two sets of logits, summed over the heads, [B]."""
        heads = cast(Mapping[str, types.ComparableHead], activations.heads)  # See `check`.
        logits = activations.logits
        return tf.add_n(
            [
                heads[task].divergence(logits[task], others[task])
                for task in self._choose(activations.heads)
            ]
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfLabels(OfHeads):
    """The base class of losses that read labels; a task's loss is a mean over its labelled rows."""

    kind: ClassVar[type] = types.WeighingHead
    rule: ClassVar[str] = "name tasks whose heads know the loss and the weight of each row"
    reads_labels: ClassVar[bool] = True

    def _choose(self, heads: Mapping[str, types.Head]) -> Sequence[str]:
        """Return the tasks of the loss; by default all tasks whose heads have a loss."""
        if self.heads is not None:
            return self.heads
        return [
            task
            for task, h in heads.items()
            if types.read_member(h, types.UnlabelledHead, "has_loss")
        ]

    def row_weights(self, labels: types.Tensors, heads: Mapping[str, types.Head]) -> tf.Tensor:
        """Return the weights of rows for P tasks, {label: [B, ...]} -> [B, P]."""
        weighing_heads = cast(Mapping[str, types.WeighingHead], heads)
        return tf.stack(
            [weighing_heads[task].row_weights(labels) for task in self._choose(heads)], 1
        )

    def _compute_losses(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of rows for P tasks, [B, P]."""
        heads, labels = activations.heads, activations.labels
        losses = [
            row_losses.compute_of_labels(heads[task], activations.logits[task], labels)
            for task in self._choose(heads)
        ]
        return tf.stack(losses, 1)

    def _sum_losses(self, activations: types.Activations) -> tf.Tensor:
        """Compute the weighted sum of the losses of all rows and tasks."""
        # The result must be a sum, not a mean: the gradient by the inputs of a row must not depend
        # on the batch.
        weights = self.row_weights(activations.labels, activations.heads)
        return tf.reduce_sum(weights * self._compute_losses(activations))
