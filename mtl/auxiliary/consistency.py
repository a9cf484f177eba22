"""Losses for predictions that are stable under small changes, or confident, without labels.

model.MultiTaskModel.auxiliary_losses = [@auxiliary.VirtualAdversarial()]
auxiliary.VirtualAdversarial.epsilon = 2.0
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from mtl import checks, types
from mtl.auxiliary import base, moved_inputs
from mtl.deferred import tf
from mtl.variables import averaging


@checks.dataclass
class VirtualAdversarial(moved_inputs.OfBounded, base.OfHeads):
    """`D(p(x), p(x + r))`, with r the direction of norm epsilon in which D grows the most.

    `iterations` of the power method find r from a random direction d: `d <- g / |g|`, with g the
    gradient of `D(p(x), p(x + xi d))` by d. Gradients go neither through p(x) nor through r. D is
    the sum of the divergences of all heads, so the same r is the worst for their sum.
    T. Miyato, S. Maeda, M. Koyama, S. Ishii, "Virtual Adversarial Training", 2017,
    arXiv:1704.03976.

    Attributes:
      epsilon: the norm of r over all moved values of a row, above 0.
      xi: the step length of the power method, above 0. At 1e-6, as in the paper's code, float32
        loses the direction.
      iterations: the number of iterations of the power method, at least 1; each takes a forward and
        a backward pass.
    """

    name: str = "virtual_adversarial"
    epsilon: checks.Positive = 1.0
    xi: checks.Positive = 0.1
    iterations: checks.Count = 1

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return how far predictions move, [B]."""
        space = self.open_space(activations.inputs)
        free = dataclasses.replace(space, bounds=None)
        target = _hold_logits(activations)
        direction = space.draw_normal("direction", 1.0)
        for _ in range(self.iterations):
            at = activations.run(free.apply(space.scale(direction, self.xi)))
            divergence = tf.reduce_sum(self._diverge(target, at.logits))
            direction = space.differentiate(divergence, at.inputs)
        at = activations.run(space.apply(space.scale(direction, self.epsilon)))
        return self._diverge(target, at.logits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trades(moved_inputs.OfAscent, base.OfHeads):
    """`D(p(x), p(x + r))`, with r the ascent of D within a ball; its weight is the beta of TRADES.

    It works as `Adversarial`, but with the divergence instead of the loss, and from a start of
    `N(0, 0.001^2)`, cut to the ball. Gradients go through both predictions, and not through r. H.
    Zhang et al., "Theoretically Principled Trade-off between Robustness and Accuracy", 2019,
    arXiv:1901.08573.
    """

    name: str = "trades"
    norm: str = "max"
    steps: int = 7

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return how far predictions move, [B]."""
        target = _hold_logits(activations)
        ascent = self.plan_ascent(
            activations, lambda at: tf.reduce_sum(self._diverge(target, at.logits))
        )
        space = ascent.space
        # The gradient of D is 0 at x itself, so the ascent needs another start.
        start = space.project(space.draw_normal("start", 0.001), self.epsilon)
        *_, last = ascent.unroll(activations, start, self.steps)
        return self._diverge(activations, last.logits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PiModel(moved_inputs.OfNoise, base.OfHeads):
    """`D(p, q)` of two passes over the same rows, with different dropout and noise.

    S. Laine, T. Aila, "Temporal Ensembling for Semi-Supervised Learning", 2016, arXiv:1610.02242,
    with the divergence of the heads instead of the squared distance of probabilities. Gradients
    go through both passes. The first pass is the plain one, without noise.

    Attributes:
      noise: the standard deviation of the noise on the inputs of the second pass, at least 0.
        Without noise the network must have dropout, or the passes are equal.
    """

    name: str = "pi_model"

    @property
    def needs_draws(self) -> bool:
        """True if the loss has no noise: both passes are then equal without dropout."""
        return not self.noise

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return how far the two predictions differ, [B]."""
        # The draw 0 would repeat the dropout of the plain pass.
        second = activations.run(self.add_noise(activations.inputs), draw=1)
        where, rule = self._where("noise"), "be above 0 if the network draws nothing"
        fix = "Or give the network dropout: both passes are equal without either."
        checks.require(self.noise > 0 or second.draws_by_step, where, rule, self.noise, fix)
        return self._diverge(activations, second.logits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanTeacher(moved_inputs.OfNoise, base.OfHeads):
    """`D(p', p)`, with p' the predictions of the averaged weights, without gradients through p'.

    A. Tarvainen, H. Valpola, "Mean teachers are better role models", 2017, arXiv:1703.01780, with
    the divergence of the heads instead of the squared distance of probabilities. The teacher uses
    `Update.average` from before the step, and its own dropout. It reads the columns as the student
    encodes them: the loss does not average embedding tables. In the first step it equals the
    student. The paper adds noise to the inputs of both models. Here only the student gets noise,
    because noise makes the teacher less certain.

    Attributes:
      noise: the standard deviation of the noise on the student's inputs, at least 0. Noise takes
        another pass; with 0 the student is the plain pass.
    """

    name: str = "mean_teacher"

    reads_average: ClassVar[bool] = True

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return how far the student is from the teacher, [B]."""
        teacher = activations.run(activations.inputs, draw=1, replace=averaging.read_average)
        student = activations
        if self.noise:
            student = activations.run(self.add_noise(activations.inputs), draw=2)
        return self._diverge(_hold_logits(teacher), student.logits)


@checks.dataclass
class PseudoLabels(moved_inputs.OfNoise, base.OfHeads):
    """The loss of the predicted class, for rows whose probability is at least `threshold`.

    The loss is a mean over all rows; rows below the threshold, and rows with a label, count as 0.
    D.-H. Lee, "Pseudo-Label", 2013; with `noise` the loss comes from a second pass, as in K. Sohn
    et al., "FixMatch", 2020, arXiv:2001.07685.

    Attributes:
      threshold: the least probability of a prediction that counts, in [0, 1).
      noise: the standard deviation of the noise on the inputs of the second pass, at least 0. With
        0 there is no second pass, and the loss comes from the plain pass.
    """

    name: str = "pseudo_labels"
    threshold: checks.Rate = 0.95

    kind: ClassVar[type] = types.WeighingHead
    rule: ClassVar[str] = "name tasks whose heads predict one class of several"
    reads_labels: ClassVar[bool] = True

    def _suits(self, head: types.Head) -> bool:
        return super()._suits(head) and types.read_member(head, types.ClassHead, "has_one_class")

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of the rows by the predicted classes, [B]."""
        student = activations
        if self.noise:
            student = activations.run(self.add_noise(activations.inputs), draw=1)
        losses = []
        for task in self._choose(activations.heads):
            head: Any = activations.heads[task]
            predictions = head.predictions(tf.stop_gradient(activations.logits[task]))
            counts = _find_confidence(predictions) >= self.threshold
            # Rows with a label, which have a weight, learn from the label itself.
            counts &= tf.equal(head.row_weights(activations.labels), 0)
            logits = student.logits[task]
            is_binary = "probability" in predictions
            targets = _find_likeliest(predictions)
            task_losses = head.losses(tf.squeeze(logits, -1) if is_binary else logits, targets)
            losses.append(tf.where(counts, task_losses, tf.zeros_like(task_losses)))
        return tf.add_n(losses)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntropyMinimization(base.OfHeads):
    """The entropy of the predictions.

    Y. Grandvalet, Y. Bengio, "Semi-supervised Learning by Entropy Minimization", 2004. With few
    labels all rows may end in one class: choose a small weight, and watch the metrics.
    """

    name: str = "entropy"

    kind: ClassVar[type] = types.UncertainHead
    rule: ClassVar[str] = "name tasks with heads Binary, MultiClass or MultiLabel"

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return the entropy of the predictions of rows, [B], in nats."""
        heads = cast(Mapping[str, types.UncertainHead], activations.heads)
        tasks = self._choose(activations.heads)
        return tf.add_n([heads[task].entropy(activations.logits[task]) for task in tasks])


def _hold_logits(activations: types.Activations) -> types.Activations:
    """Return the activations with logits that stop gradients."""
    constants = {task: tf.stop_gradient(logits) for task, logits in activations.logits.items()}
    return dataclasses.replace(activations, logits=constants)  # type: ignore[type-var]


def _find_likeliest(predicted: types.Tensors) -> tf.Tensor:
    """Return the likeliest class as a target of the head's loss, [B].

    The target is float32 for two classes, else an id. It may differ from `class_id`: a binary head
    applies its threshold there, and an ordinal head takes the median.
    """
    if "probability" in predicted:
        return tf.cast(predicted["probability"] >= 0.5, tf.float32)
    return tf.argmax(predicted["probabilities"], -1)


def _find_confidence(predicted: types.Tensors) -> tf.Tensor:
    """Return the probability of the likeliest class, [B]."""
    if "probability" in predicted:
        return tf.maximum(predicted["probability"], 1 - predicted["probability"])
    return tf.reduce_max(predicted["probabilities"], -1)
