"""Base classes of losses that change the inputs of the network, with their settings.

auxiliary.Adversarial.columns = ["image_photo"]          # encoded columns
auxiliary.Adversarial.bounds = (0.0, 1.0)
auxiliary.PiModel.noise = 0.3
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

from mtl import checks, types
from mtl.auxiliary import base, perturbations
from mtl.deferred import tf


@checks.dataclass
class OfColumns(base.Base):
    """The base class of losses that change some columns of the inputs.

    Attributes:
      columns: the names of the encoded columns that are changed; None for all columns of numbers.
    """

    columns: checks.SomeNames | None = None

    bounds: ClassVar[Sequence[float] | None] = None

    def open_space(self, inputs: types.Tensors, norm: str = "l2") -> perturbations.Space:
        """Return the perturbations of some inputs that this loss may apply, as a `Space`.

        Args:
          inputs: {column: [B, ...]}, the encoded columns.
          norm: the norm of a row's perturbation, "l2" or "max".

        Raises:
          UserError: a column of `columns` is unknown or not encoded as floats, or there is no
            column of floats.
        """
        columns = perturbations.choose_columns(self._where("columns"), self.columns, inputs)
        return perturbations.Space(inputs, columns, norm, self.bounds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfBounded(OfColumns):
    """The base class of losses that change inputs within bounds.

    Attributes:
      bounds: the least and the greatest value of an input, such as (0, 1) for pixels; None for no
        bounds.
    """

    bounds: Sequence[float] | None = None  # type: ignore[misc]

    def __post_init__(self):
        super().__post_init__()
        if self.bounds is not None:
            where, rule = self._where("bounds"), "be (least, greatest), or None for no bounds"
            checks.is_a(where, self.bounds, (list, tuple), rule)
            checks.require(len(self.bounds) == 2, where, rule, self.bounds)
            for value in self.bounds:
                checks.number(where, value)
            checks.require(self.bounds[0] < self.bounds[1], where, rule, self.bounds)


@checks.dataclass
class OfAscent(OfBounded):
    """The base class of losses that change inputs by gradient ascent.

    Attributes:
      epsilon: the largest norm of a perturbation, above 0, in the unit of the encoded columns.
      norm: the norm of a row's perturbation: "l2", over all changed values, or "max", the largest
        absolute value.
      steps: the number of steps of the ascent, at least 1. Each step takes a forward and a backward
        pass.
      step_size: the norm of a step of the ascent, above 0; by default 2.5 epsilon / steps.
    """

    epsilon: checks.Positive = 1.0
    norm: Annotated[str, checks.OneOf(perturbations.NORMS)] = "l2"
    steps: checks.Count = 1
    step_size: checks.Positive | None = None

    def plan_ascent(
        self, activations: types.Activations, measure: Callable[[types.Activations], tf.Tensor]
    ) -> perturbations.Ascent:
        """Return the gradient ascent that maximises a value, with the settings of this loss.

        Args:
          activations: the network's outputs at the unchanged inputs.
          measure: a function from activations to the scalar that the ascent maximises, which must
            be a sum over rows.
        """
        size = self._default_size if self.step_size is None else self.step_size
        space = self.open_space(activations.inputs, self.norm)
        return perturbations.Ascent(space, measure, size, self.epsilon)

    @property
    def _default_size(self) -> float:
        # As in Madry et al., the steps can reach the border of the ball from any start, and move
        # along the border.
        return 2.5 * self.epsilon / self.steps


@checks.dataclass
class OfNoise(OfColumns):
    """The base class of losses at noisy inputs.

    Attributes:
      noise: the standard deviation of the noise, at least 0, in the unit of the encoded columns.
    """

    noise: checks.NotNegative = 0.0

    def add_noise(self, inputs: types.Tensors) -> types.Tensors:
        """Add noise to inputs.

        Args:
          inputs: {column: [B, ...]}, the encoded columns.

        Returns:
          All columns, with noise on the columns of `columns`; `inputs` itself if `noise` is 0.
        """
        if not self.noise:
            return inputs
        space = self.open_space(inputs)
        return space.apply(space.draw_normal("noise", self.noise))
