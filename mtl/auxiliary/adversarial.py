"""Training against the worst inputs nearby, which raise the loss of the labels the most.

model.MultiTaskModel.auxiliary_losses = [@auxiliary.Adversarial()]
auxiliary.Adversarial.epsilon = 0.15                     # of pixels in [0, 1], say
auxiliary.Adversarial.bounds = (0.0, 1.0)

| method | settings |
| -- | -- |
| FGM | norm = "l2", steps = 1 (the default) |
| FGSM with a random start | norm = "max", step_size = 1.25 epsilon, random_start = True |
| PGD | norm = "max", steps = 7, random_start = True |
| FreeLB | norm = "l2", steps = 3, random_start = True, averages_steps = True |
"""

import dataclasses
from collections.abc import Iterator, Sequence

import tensorflow as tf

from mtl import checks, types
from mtl.auxiliary import base, perturbed, row_losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adversarial(base.OfLabels):
    """The loss of the heads at `x + r`, with `r` the ascent of that loss within a ball around x.

    `r <- P(r + a g / |g|)`, or `P(r + a sign(g))` for the norm "max", with g the gradient of a
    row's loss by its inputs and P the projection on `|r| <= epsilon`. No gradient goes through r.

    T. Miyato, A. M. Dai, I. Goodfellow, "Adversarial Training Methods for Semi-Supervised Text
    Classification", 2016, arXiv:1605.07725 (FGM); E. Wong, L. Rice, J. Z. Kolter, "Fast is better
    than free", 2020, arXiv:2001.03994 (a random start); A. Madry et al., "Towards Deep Learning
    Models Resistant to Adversarial Attacks", 2017, arXiv:1706.06083 (PGD); C. Zhu et al., "FreeLB",
    2019, arXiv:1909.11764 (`averages_steps`). Norms here are of single rows over all columns
    perturbed, not of the batch as in some codes. Madry et al. train on perturbed inputs alone: a
    weight of the tasks of 0 in the balancing does that.

    Attributes:
      epsilon: the greatest norm of r, above 0, in the unit of the encoded columns.
      norm: "l2" or "max".
      steps: of the ascent, at least 1; each takes a pass forward and one back.
      step_size: a, above 0; by default epsilon for one step, and 2.5 epsilon / steps for more.
      random_start: whether r starts from a draw in the ball, in place of 0.
      averages_steps: whether the loss is the mean over all r from the start to the one before the
        last step, in place of the one at the last; the memory grows by the steps.
      bounds: the least and the greatest value of an input, such as (0, 1) for pixels.
      columns: those that are perturbed, by name; None for all.
    """

    name: str = "adversarial"
    epsilon: float = 1.0
    norm: str = "l2"
    steps: int = 1
    step_size: float | None = None
    random_start: bool = False
    averages_steps: bool = False
    bounds: Sequence[float] | None = None
    columns: Sequence[str] | None = None

    def __post_init__(self):
        super().__post_init__()
        kind = type(self).__name__
        perturbed.check_settings(kind, self.norm, self.epsilon, self.bounds, self.columns)
        checks.whole(self._where("steps"), self.steps, 1)
        if self.step_size is not None:
            checks.positive(self._where("step_size"), self.step_size)
        for setting in ("random_start", "averages_steps"):
            checks.is_a(self._where(setting), getattr(self, setting), bool, "be True or False")
        moves = self.random_start or not self.averages_steps or self.steps > 1
        rule = "be True where the one point averaged is the start"
        checks.require(moves, self._where("random_start"), rule, self.random_start)

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of the rows at their worst inputs, [B, P] of P tasks."""
        points = list(self._ascend(activations))
        if not self.averages_steps:
            return self._compute_losses(points[-1])
        each = [self._compute_losses(point) for point in points[:-1]]
        return tf.add_n(each) / len(each)

    def _ascend(self, activations: types.Activations) -> Iterator[types.Activations]:
        """Yield the activations at the start and after each step."""
        space = perturbed.make_space(self, activations.inputs)
        start = space.draw_start("start", self.epsilon) if self.random_start else {}
        return perturbed.ascend(
            space, activations, self._sum_losses, start, self.steps, self._size, self.epsilon
        )

    def attack(self, activations: types.Activations) -> types.Activations:
        """Return what the network makes of the worst inputs, as an evaluation looks at it."""
        space = perturbed.make_space(self, activations.inputs)
        start = space.draw_start("start", self.epsilon) if self.random_start else {}
        return perturbed.ascend_in_loop(
            space, activations, self._sum_losses, start, self.steps, self._size, self.epsilon
        )

    @property
    def _size(self) -> float:
        """The length of a step."""
        if self.step_size is not None:
            return self.step_size
        return self.epsilon if self.steps == 1 else 2.5 * self.epsilon / self.steps

    def _sum_losses(self, activations: types.Activations) -> tf.Tensor:
        """Add up the losses of all rows in all tasks, by what they weigh."""
        total = []
        for task in self._choose(activations.heads):
            head, logits = activations.heads[task], activations.logits[task]
            losses, weights = row_losses.weigh_examples(head, logits, activations.labels)
            total.append(tf.reduce_sum(weights * losses))
        return tf.add_n(total)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputNoise(base.OfLabels):
    """The loss of the heads at `x + s n`, n ~ N(0, 1).

    C. M. Bishop, "Training with Noise is Equivalent to Tikhonov Regularization", 1995.

    Attributes:
      stddev: s, above 0, in the unit of the encoded columns.
      bounds: the least and the greatest value of an input, such as (0, 1) for pixels.
      columns: those that are perturbed, by name; None for all.
    """

    name: str = "input_noise"
    stddev: float = 0.1
    bounds: Sequence[float] | None = None
    columns: Sequence[str] | None = None

    def __post_init__(self):
        super().__post_init__()
        checks.positive(self._where("stddev"), self.stddev)
        perturbed.check_settings(type(self).__name__, "l2", 1.0, self.bounds, self.columns)

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of the rows at noisy inputs, [B, P] of P tasks."""
        space = perturbed.make_space(self, activations.inputs)
        noisy = space.apply(space.draw_normal("noise", self.stddev))
        return self._compute_losses(activations.run(noisy))
