"""Domain-adversarial training: removes information about the domain from the representation.

model.MultiTaskModel.auxiliary_losses = [@auxiliary.GradientReversal()]
auxiliary.GradientReversal.head = @domain/heads.Binary()
auxiliary.GradientReversal.reversal = @reversal/schedules.Sigmoid()    # or a number
domain/heads.Binary.name = "is_new"                # the label with the domain
reversal/schedules.Sigmoid.value = 1.0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

from mtl import checks, types
from mtl.auxiliary import representation, row_losses
from mtl.deferred import tf, tf1
from mtl.layers import straight_through
from mtl.networks import trunk
from mtl.variables import freezing


@checks.dataclass
class GradientReversal(representation.OfRepresentation):
    """The loss of a classifier of domains, whose gradient is reversed for the network.

    The classifier (hidden layers and a head) is trained to lower its loss L. The network below the
    classifier gets the gradient `-reversal dL/dh` at the representation h, and is trained to raise
    the loss L. Balancing treats the classifier's loss L as the loss of a task whose gradient is the
    reversed gradient. Y. Ganin et al., "Domain-Adversarial Training of Neural Networks", 2016,
    arXiv:1505.07818, where the reversal rises like `schedules.Sigmoid`. If the representation does
    not show the domain, the classifier's loss L equals the loss of random guesses, such as 0.69 for
    two equally frequent domains. A lower loss means that the representation still shows the domain.

    Attributes:
      head: the head of the classifier, any head of `mtl.heads` whose label is the domain. Rows
        without a label of the domain have weight 0.
      layers: the units of the hidden layers of the classifier, with ReLU.
      reversal: the factor of the reversed gradient; at least 0, or a schedule.
    """

    name: str = "domain"
    head: Annotated[
        types.Head,
        checks.Has(
            ("field", "logits", "losses", "examples", "row_weights"),
            "be a head such as @heads.Binary()",
        ),
    ]
    layers: Annotated[Sequence[int], trunk.check_sizes] = (64,)
    reversal: Annotated[
        float | types.Schedule, checks.Scheduled(checks.AtLeast(0), "schedules.Sigmoid")
    ] = 1.0

    def __post_init__(self):
        super().__post_init__()
        where = self._where("head")
        learns = types.read_member(self.head, types.FittedHead, "accumulators")()
        rule = "not need counts of the training split"
        fix = "Set class_counts of the head."
        checks.require(not learns, where, rule, self.head.name, fix)

    @property
    def own_heads(self) -> Sequence[types.Head]:
        """The head of the classifier."""
        return (self.head,)

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Check the setting `at`, and that the name of the head is not the name of a task.

        Raises:
          UserError: the head has the name of a task, or `at` names no tower.
        """
        super().check(heads)
        where, name = f"{self._where('head')}'s name", self.head.name
        checks.require(name not in heads, where, "differ from all tasks", name)

    def row_weights(self, labels: types.Tensors, heads: Mapping[str, types.Head]) -> tf.Tensor:
        """Return the weights of rows in the loss, {label: [B, ...]} -> [B]."""
        del heads
        return cast(types.WeighingHead, self.head).row_weights(labels)

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of the classifier, [B]."""
        hidden = reverse_gradient(self._read(activations), self._compute_reversal())
        hidden = trunk.dense_layers(hidden, self.layers, "relu", 0.0, False, training=True)
        with freezing.hold_part(types.read_member(self.head, types.Head, "trainable")):
            logits = self.head.logits(hidden)
        return row_losses.compute_of_labels(self.head, logits, activations.labels)

    def _compute_reversal(self) -> Any:
        if callable(self.reversal):
            return self.reversal(tf1.train.get_or_create_global_step().read_value())
        return self.reversal


def reverse_gradient(values: tf.Tensor, factor: tf.Tensor | float) -> tf.Tensor:
    """Return values unchanged, but multiply their gradient by -factor.

    Args:
      values: the tensor that is returned, of any shape.
      factor: a scalar, which gets no gradient.
    """

    def reverse(values: tf.Tensor) -> tf.Tensor:
        return -tf.stop_gradient(tf.cast(factor, values.dtype)) * values

    return straight_through.replace_gradient(tf.identity, reverse)(values)
