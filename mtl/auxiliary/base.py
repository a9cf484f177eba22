"""What auxiliary losses share: a name, a weight, the heads and the columns that they concern.

auxiliary.Adversarial.name = "adversarial"               # in TensorBoard, and for the balancing
auxiliary.Adversarial.weight = 0.5                       # or a schedule
auxiliary.Adversarial.heads = ["digit"]                  # all by default
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import tensorflow as tf

from mtl import checks, types
from mtl.auxiliary import row_losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base(types.AuxiliaryLoss):
    """What all have: a name and a weight.

    Attributes:
      name: of the loss, unlike that of any task; its variables lie in `auxiliary/<name>`.
      weight: what the loss is multiplied by, beside its weight in the balancing; at least 0, or a
        schedule. With 0 it is left out of the graph.
    """

    name: str
    weight: float | types.Schedule = 1.0

    def __post_init__(self):
        checks.scope_name(self._where("name"), self.name)
        if callable(self.weight):
            checks.require_part(self._where("weight"), self.weight, "schedules.Cosine", arguments=1)
        else:
            checks.at_least(self._where("weight"), self.weight, 0)

    def _where(self, setting: str) -> str:
        return f"{type(self).__name__}.{setting}"


def list_towers(heads: Mapping[str, types.Head]) -> list[str]:
    """Return the tasks that have a tower: those that are not composed of others."""
    return [task for task, h in heads.items() if not types.read_member(h, types.Head, "composes")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfHeads(Base):
    """A loss that concerns the predictions of some heads.

    Attributes:
      heads: the tasks, by name; None for all.
    """

    heads: Sequence[str] | None = None

    kind: ClassVar[type] = types.ComparableHead
    rule: ClassVar[str] = "name tasks whose heads define a divergence"
    """What a head has to be, and how an error puts it."""

    def __post_init__(self):
        super().__post_init__()
        if self.heads is not None:
            rule = "be a list of tasks, or None for all"
            checks.texts(self._where("heads"), self.heads, rule)
            checks.unique(self._where("heads"), self.heads)
            checks.require(bool(self.heads), self._where("heads"), rule, list(self.heads))

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Fail unless the tasks exist, and their heads are such as the loss needs."""
        for task in self._choose(heads):
            checks.one_of(self._where("heads"), task, heads)
            fits, head = self._suits(heads[task]), type(heads[task]).__name__
            checks.require(fits, self._where("heads"), self.rule, task, f"It is {head}.")

    def _suits(self, head: types.Head) -> bool:
        """Return whether the loss can be computed for a head."""
        return isinstance(head, self.kind)

    def _choose(self, heads: Mapping[str, types.Head]) -> Sequence[str]:
        return list(heads) if self.heads is None else self.heads

    def _diverge(self, activations: types.Activations, others: types.Tensors) -> tf.Tensor:
        """Sum over the heads how far other logits are from those there, [B]."""
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
    """A loss of some heads by their labels, each a part: a mean over its own labelled rows."""

    kind: ClassVar[type] = types.WeighingHead
    rule: ClassVar[str] = "name tasks whose heads know the loss and the weight of each row"
    reads_labels: ClassVar[bool] = True

    def _choose(self, heads: Mapping[str, types.Head]) -> Sequence[str]:
        """Return the tasks; where none are named, those that training has a loss of."""
        if self.heads is not None:
            return self.heads
        return [task for task, h in heads.items() if types.read_member(h, types.Head, "has_loss")]

    def row_weights(self, labels: types.Tensors, heads: Mapping[str, types.Head]) -> tf.Tensor:
        """Return what rows weigh in each task, {label: [B, ...]} -> [B, P]."""
        known = cast(Mapping[str, types.WeighingHead], heads)
        return tf.stack([known[task].row_weights(labels) for task in self._choose(heads)], 1)

    def _compute_losses(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of rows in each task, [B, P]."""
        heads, labels = activations.heads, activations.labels
        each = [
            row_losses.compute_of_labels(heads[task], activations.logits[task], labels)
            for task in self._choose(heads)
        ]
        return tf.stack(each, 1)

    def _sum_losses(self, activations: types.Activations) -> tf.Tensor:
        """Add up the losses of all rows in all tasks, by what they weigh."""
        weights = self.row_weights(activations.labels, activations.heads)
        return tf.reduce_sum(weights * self._compute_losses(activations))
