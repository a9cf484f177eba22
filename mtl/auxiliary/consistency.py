"""Losses without labels, which make predictions confident, or stable under small changes.

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
    """The divergence D of predictions at inputs x and `x + r`, for the r that increases D most.

    The predictions for a row x are p(x). The power method finds the change r from a random
    direction d, by iterations `d <- g / |g|` with g the gradient of `D(p(x), p(x + xi d))` by d.
    Gradients of the training step go neither through the predictions p(x) nor through the change r.
    The divergence D is a sum over all heads, so all heads have the same change r. T. Miyato, S.
    Maeda, M. Koyama, S. Ishii, "Virtual Adversarial Training", 2017, arXiv:1704.03976.

    Attributes:
      epsilon: the norm of the change r, over all changed values of a row, above 0.
      xi: the step length of the power method, above 0. The paper's code uses 1e-6, a length at
        which rounding errors of float32 hide the direction.
      iterations: the number of iterations of the power method, at least 1. Each iteration takes a
        forward and a backward pass.
    """

    name: str = "virtual_adversarial"
    epsilon: checks.Positive = 1.0
    xi: checks.Positive = 0.1
    iterations: checks.Count = 1

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the divergence of each row, [B]."""
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
    """The divergence D of the predictions at inputs x and `x + r`, where r maximises D in a ball.

    The setting `weight` is the beta of TRADES. Gradient ascent finds the change r as in
    `Adversarial`, but maximises the divergence and not the loss. The ascent starts at random values
    of N(0, 0.001^2), projected on the ball. Gradients of the training step go through both
    predictions, but not through the change r. H. Zhang et al., "Theoretically Principled Trade-off
    between Robustness and Accuracy", 2019, arXiv:1901.08573.
    """

    name: str = "trades"
    norm: str = "max"
    steps: int = 7

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the divergence of each row, [B]."""
        target = _hold_logits(activations)
        ascent = self.plan_ascent(
            activations, lambda at: tf.reduce_sum(self._diverge(target, at.logits))
        )
        space = ascent.space
        # At x itself, the gradient of D is 0, so the ascent cannot start there.
        start = space.project(space.draw_normal("start", 0.001), self.epsilon)
        *_, last = ascent.unroll(activations, start, self.steps)
        return self._diverge(activations, last.logits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PiModel(moved_inputs.OfNoise, base.OfHeads):
    """`D(p, q)`: the divergence of two passes over the same rows, with different dropout and noise.

    S. Laine, T. Aila, "Temporal Ensembling for Semi-Supervised Learning", 2016, arXiv:1610.02242,
    with the divergence of the heads in place of the squared distance of probabilities. Gradients go
    through both forward passes over the rows. The inputs of the first pass have no noise.

    Attributes:
      noise: the standard deviation of the noise on the inputs of the second pass, at least 0.
        Without noise, the network must have dropout, because the two passes would otherwise be
        equal.
    """

    name: str = "pi_model"

    @property
    def needs_draws(self) -> bool:
        """True if the loss has no noise, and so needs random draws of the network."""
        return not self.noise

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the divergence of the two predictions of each row, [B]."""
        # `draw=0` would repeat the dropout of the first pass.
        second = activations.run(self.add_noise(activations.inputs), draw=1)
        where, rule = self._where("noise"), "be above 0 if the network has no dropout"
        fix = "Or give the network dropout. Without noise and dropout, both passes are equal."
        checks.require(self.noise > 0 or second.draws_by_step, where, rule, self.noise, fix)
        return self._diverge(activations, second.logits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanTeacher(moved_inputs.OfNoise, base.OfHeads):
    """`D(p', p)`: the divergence of the predictions p from predictions p' of averaged weights.

    A. Tarvainen, H. Valpola, "Mean teachers are better role models", 2017, arXiv:1703.01780, with
    the divergence of the heads in place of the squared distance of probabilities. The teacher,
    which predicts p', has the averages of the weights before the step (`Update.average`), and other
    dropout than the student. Gradients do not go through the teacher's predictions. The teacher
    reads the columns that the student has encoded, so it does not use averages of embedding tables.
    In the first step, teacher and student have the same weights. Tarvainen and Valpola add noise to
    the inputs of both teacher and student. Here, only the student gets noise, because noise makes
    the teacher less certain.

    Attributes:
      noise: the standard deviation of the noise on the student's inputs, at least 0. Noise takes a
        further forward pass; without noise, the student is the forward pass of the step.
    """

    name: str = "mean_teacher"

    reads_average: ClassVar[bool] = True

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the divergence of the student from the teacher for each row, [B]."""
        teacher = activations.run(activations.inputs, draw=1, replace=averaging.read_average)
        student = activations
        if self.noise:
            student = activations.run(self.add_noise(activations.inputs), draw=2)
        return self._diverge(_hold_logits(teacher), student.logits)


@checks.dataclass
class PseudoLabels(moved_inputs.OfNoise, base.OfHeads):
    """The loss of the predicted class, for unlabelled rows with a confident prediction.

    The loss is a mean over all rows. The loss is 0 for rows that have a label with a weight above
    0, and for rows whose predicted class has a probability below `threshold`. D.-H. Lee,
    "Pseudo-Label", 2013. With `noise`, the loss comes from a second pass on noisy inputs, as in
    Sohn et al., "FixMatch", 2020, arXiv:2001.07685.

    Attributes:
      threshold: the least probability of the predicted class, in [0, 1).
      noise: the standard deviation of the noise on the inputs of the second pass, at least 0. With
        a noise of 0, the loss needs only one forward pass.
    """

    name: str = "pseudo_labels"
    threshold: checks.Rate = 0.95

    kind: ClassVar[type] = types.WeighingHead
    rule: ClassVar[str] = "name tasks whose heads predict one class of several"
    reads_labels: ClassVar[bool] = True

    def _suits(self, head: types.Head) -> bool:
        return super()._suits(head) and types.read_member(head, types.ClassHead, "has_one_class")

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of the rows for their predicted classes, [B]."""
        student = activations
        if self.noise:
            student = activations.run(self.add_noise(activations.inputs), draw=1)
        losses = []
        for task in self._choose(activations.heads):
            head: Any = activations.heads[task]
            predictions = head.predictions(tf.stop_gradient(activations.logits[task]))
            counts = _find_confidence(predictions) >= self.threshold
            # Rows with a weight have a label, so they need no predicted class.
            counts &= tf.equal(head.row_weights(activations.labels), 0)
            logits = student.logits[task]
            is_binary = "probability" in predictions
            targets = _find_likeliest(predictions)
            task_losses = head.losses(tf.squeeze(logits, -1) if is_binary else logits, targets)
            losses.append(tf.where(counts, task_losses, tf.zeros_like(task_losses)))
        return tf.add_n(losses)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntropyMinimization(base.OfHeads):
    """The entropy of the predictions, which makes predictions confident.

    Y. Grandvalet, Y. Bengio, "Semi-supervised Learning by Entropy Minimization", 2004. With few
    labels, the model may predict the same class for all rows. Therefore, choose a small weight for
    this loss, and look at the metrics of the tasks.
    """

    name: str = "entropy"

    kind: ClassVar[type] = types.UncertainHead
    rule: ClassVar[str] = "name tasks with heads Binary, MultiClass or MultiLabel"

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the entropy of the predictions of each row, [B], in nats."""
        heads = cast(Mapping[str, types.UncertainHead], activations.heads)
        tasks = self._choose(activations.heads)
        return tf.add_n([heads[task].entropy(activations.logits[task]) for task in tasks])


def _hold_logits(activations: types.Activations) -> types.Activations:
    """Return a copy of activations with logits that get no gradient, by `tf.stop_gradient`."""
    constants = {task: tf.stop_gradient(logits) for task, logits in activations.logits.items()}
    return dataclasses.replace(activations, logits=constants)  # type: ignore[type-var]


def _find_likeliest(predicted: types.Tensors) -> tf.Tensor:
    """Return the most probable class as a target of the head's loss, [B].

    The target is float32 for two classes, else a class id. The prediction `class_id` may differ
    from the most probable class, because a binary head applies its threshold, and an ordinal head
    takes the median.
    """
    if "probability" in predicted:
        return tf.cast(predicted["probability"] >= 0.5, tf.float32)
    return tf.argmax(predicted["probabilities"], -1)


def _find_confidence(predicted: types.Tensors) -> tf.Tensor:
    """Return the probability of the most probable class, [B]."""
    if "probability" in predicted:
        return tf.maximum(predicted["probability"], 1 - predicted["probability"])
    return tf.reduce_max(predicted["probabilities"], -1)
