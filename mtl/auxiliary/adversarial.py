"""Adversarial training: losses at inputs with small changes that increase the loss.

model.MultiTaskModel.auxiliary_losses = [@auxiliary.Adversarial()]
auxiliary.Adversarial.epsilon = 0.15                     # for pixels in [0, 1], for example
auxiliary.Adversarial.bounds = (0.0, 1.0)

| method | settings |
| -- | -- |
| FGM | norm = "l2", steps = 1 (the default) |
| FGSM with a random start | norm = "max", step_size = 1.25 epsilon, random_start = True |
| PGD | norm = "max", steps = 7, random_start = True |
| FreeLB | norm = "l2", steps = 3, random_start = True, averages_steps = True |
"""

from __future__ import annotations

from collections.abc import Iterator

from mtl import checks, types
from mtl.auxiliary import base, moved_inputs, perturbations
from mtl.deferred import tf


@checks.dataclass
class Adversarial(moved_inputs.OfAscent, base.OfLabels):
    """The loss of the heads at inputs `x + r`, where r maximises this loss in a ball around x.

    Gradient ascent finds r by steps `r <- P(r + a g / |g|)`, or `r <- P(r + a sign(g))` for the
    norm "max", where a is the step size, g the gradient of a row's loss by its inputs, and P the
    projection on `|r| <= epsilon`. Gradients of the training step do not go through the
    perturbation r.

    T. Miyato, A. M. Dai, I. Goodfellow, "Adversarial Training Methods for Semi-Supervised Text
    Classification", 2016, arXiv:1605.07725 (FGM); Wong, Rice and Kolter, "Fast is better than
    free", 2020, arXiv:2001.03994 (a random start); Madry et al., "Towards Deep Learning Models
    Resistant to Adversarial Attacks", 2017, arXiv:1706.06083 (PGD); Zhu et al., "FreeLB", 2019,
    arXiv:1909.11764 (`averages_steps`). A norm covers all changed columns of a single row; some
    implementations take the norm over the batch. Madry et al. train only on adversarial inputs. To
    train only on adversarial inputs, give the tasks the weight 0, and this loss a weight above 0,
    in `weighting.Fixed`.

    Attributes:
      step_size: the norm of a step of the ascent, above 0. The default step size is epsilon for a
        single step, and 2.5 epsilon / steps for several steps.
      random_start: True starts the perturbation r at a random point in the ball; False starts it at
        0.
      averages_steps: True takes the mean of the losses at the start of the ascent and after each of
        its steps except the last; the memory for this mean grows with the number of steps. With
        `averages_steps = False`, the loss is the loss after the last step of the ascent.
    """

    name: str = "adversarial"
    random_start: bool = False
    averages_steps: bool = False

    def __post_init__(self):
        super().__post_init__()
        # `averages_steps` leaves out the loss after the last step of the ascent. With one step and
        # no random start, the mean would have only the loss at the unchanged inputs x.
        moves = self.random_start or not self.averages_steps or self.steps > 1
        rule = "be True with averages_steps and a single step"
        fix = "Without random_start, the mean of the losses covers only the unchanged inputs."
        checks.require(moves, self._where("random_start"), rule, self.random_start, fix)

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of the rows at adversarial inputs, [B, P] for P tasks."""
        points = list(self._ascend(activations))
        if not self.averages_steps:
            return self._compute_losses(points[-1])
        # As in FreeLB, the losses at r_0 to r_(K - 1) are averaged.
        losses = [self._compute_losses(point) for point in points[:-1]]
        return tf.add_n(losses) / len(losses)

    def _ascend(self, activations: types.Activations) -> Iterator[types.Activations]:
        """Yield the network's outputs at the start of the ascent, and after each of its steps."""
        ascent = self.plan_ascent(activations, self._sum_losses)
        return ascent.unroll(activations, self._draw_start(ascent), self.steps)

    def attack(self, activations: types.Activations) -> types.Activations:
        """Compute the network's outputs at adversarial inputs, for an evaluation.

        Args:
          activations: the network's outputs at the unchanged inputs, with labels.

        Returns:
          The outputs after the last step of the ascent; `averages_steps` has no effect.
        """
        # An evaluation needs no gradient through the steps, so a loop saves memory.
        ascent = self.plan_ascent(activations, self._sum_losses)
        return ascent.run_loop(activations, self._draw_start(ascent), self.steps)

    def _draw_start(self, ascent: perturbations.Ascent) -> types.Tensors:
        return ascent.space.draw_start("start", self.epsilon) if self.random_start else {}

    @property
    def _default_size(self) -> float:
        # A single step of 2.5 epsilon would always leave the ball.
        return self.epsilon if self.steps == 1 else super()._default_size


@checks.dataclass
class InputNoise(moved_inputs.OfBounded, base.OfLabels):
    """The loss of the heads at noisy inputs, `x + s n` with n ~ N(0, 1).

    C. M. Bishop, "Training with Noise is Equivalent to Tikhonov Regularization", 1995.

    Attributes:
      stddev: the standard deviation s of the noise, above 0, in the unit of the encoded columns.
    """

    name: str = "input_noise"
    stddev: checks.Positive = 0.1

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the losses of the rows at noisy inputs, [B, P] for P tasks."""
        space = self.open_space(activations.inputs)
        noisy = space.apply(space.draw_normal("noise", self.stddev))
        return self._compute_losses(activations.run(noisy))
