"""Settings of losses that move the inputs of the network: which inputs, how far, and how.

auxiliary.Adversarial.columns = ["image_photo"]          # encoded columns; all by default
auxiliary.Adversarial.bounds = (0.0, 1.0)
auxiliary.PiModel.noise = 0.3
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

from mtl import checks, types
from mtl.auxiliary import base, perturbations
from mtl.deferred import tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfColumns(base.Base):
    """A loss that moves some columns of the inputs.

    Attributes:
      columns: the encoded columns that are moved, by name; None for all columns with numbers.
    """

    columns: Sequence[str] | None = None

    bounds: ClassVar[Sequence[float] | None] = None

    def __post_init__(self):
        super().__post_init__()
        if self.columns is not None:
            where, rule = self._where("columns"), "be a list of columns, or None for all"
            checks.texts(where, self.columns, rule)
            checks.unique(where, self.columns)
            checks.require(bool(self.columns), where, rule, list(self.columns))

    def open_space(self, inputs: types.Tensors, norm: str = "l2") -> perturbations.Space:
        """Return the space of perturbations, {column: [B, ...]} -> space."""
        columns = perturbations.choose_columns(self._where("columns"), self.columns, inputs)
        return perturbations.Space(inputs, columns, norm, self.bounds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfBounded(OfColumns):
    """A loss that moves inputs within bounds.

    Attributes:
      bounds: the least and the greatest value of an input, such as (0, 1) for pixels; None for any.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfAscent(OfBounded):
    """A loss that moves inputs step by step to raise a value.

    Attributes:
      epsilon: the greatest norm of a perturbation, above 0, in the unit of the encoded columns.
      norm: "l2", over all moved values of a row, or "max", the greatest of them.
      steps: at least 1; each takes a forward and a backward pass.
      step_size: the norm of a step, above 0; by default 2.5 epsilon / steps.
    """

    epsilon: float = 1.0
    norm: str = "l2"
    steps: int = 1
    step_size: float | None = None

    def __post_init__(self):
        super().__post_init__()
        checks.one_of(self._where("norm"), self.norm, perturbations.NORMS)
        checks.positive(self._where("epsilon"), self.epsilon)
        checks.whole(self._where("steps"), self.steps, 1)
        if self.step_size is not None:
            checks.positive(self._where("step_size"), self.step_size)

    def plan_ascent(
        self, activations: types.Activations, measure: Callable[[types.Activations], tf.Tensor]
    ) -> perturbations.Ascent:
        """Return an ascent of `measure`, which returns a sum over rows."""
        size = self._default_size if self.step_size is None else self.step_size
        space = self.open_space(activations.inputs, self.norm)
        return perturbations.Ascent(space, measure, size, self.epsilon)

    @property
    def _default_size(self) -> float:
        return 2.5 * self.epsilon / self.steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfNoise(OfColumns):
    """A loss at noisy inputs.

    Attributes:
      noise: the standard deviation of the noise, at least 0, in the unit of the encoded columns.
    """

    noise: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        checks.at_least(self._where("noise"), self.noise, 0)

    def add_noise(self, inputs: types.Tensors) -> types.Tensors:
        """Return the inputs with noise, {column: [B, ...]}; unchanged without noise."""
        if not self.noise:
            return inputs
        space = self.open_space(inputs)
        return space.apply(space.draw_normal("noise", self.noise))
