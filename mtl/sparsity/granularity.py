"""Groups of weights to cut together: single weights, n of m, blocks, units, or rows of a table.

from mtl.sparsity import granularity
pruning.Pruning.granularity = @granularity.NOfM()
granularity.NOfM.n = 2
granularity.NOfM.m = 4
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

from mtl import checks
from mtl.deferred import tf
from mtl.sparsity import densities as densities_lib
from mtl.variables import patterns


class _Groups:
    """Groups of weights that are kept or cut together, as the density chooses."""

    fixed_sparsity: float | None = None
    """The final sparsity, if the granularity determines it, else None."""
    is_of_tables: bool = False
    """True if it fits only tables that are looked up."""
    is_of_units: bool = False
    """True if bias, scale and offset of a unit are cut with its weights."""

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Fail unless it can cut a variable of this shape."""

    def group_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the groups in a variable of this shape."""
        return list(shape)

    def mask_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of a mask that broadcasts to a variable of this shape."""
        return list(shape)

    def list_together(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Return sets of the indices of N variables whose groups are kept or cut together."""
        del shapes
        return [[index] for index in range(len(names))]

    def select(
        self,
        scores: Sequence[tf.Tensor],
        density: Any,
        densities: Sequence[float],
        progress: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Return the masks of N variables, which broadcast to them, from the scores of weights."""
        group_masks = density.select([self.pool(s) for s in scores], densities, progress)
        pairs = zip(group_masks, scores, strict=True)
        return [self._spread_mask(mask, like) for mask, like in pairs]

    def pool(self, scores: tf.Tensor) -> tf.Tensor:
        """Return a score for each group."""
        return scores

    def _spread_mask(self, group_mask: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        del like
        return group_mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entries(_Groups):
    """Single weights: most accurate, and small only in formats that skip zeros (`TFLite`)."""


@checks.dataclass
class NOfM(_Groups):
    """Keeps the n weights with the largest scores of every m neighbours that feed a unit.

    A. Zhou et al., "Learning N:M Fine-grained Structured Sparse Neural Networks From Scratch",
    2021, arXiv:2102.04010, section 3.1; GPUs compute 2 of 4 at twice the speed. The m weights are
    neighbours along the axis of inputs, the last but one. The final sparsity is `1 - n / m`. Until
    then more than n weights stay, a number that is rounded up. `Pruning.density` is not used.

    Attributes:
      n: the number of weights that stay, at least 1.
      m: the number of neighbours, above n; it divides the number of inputs.
    """

    n: checks.Count = 2
    m: Annotated[int, checks.AtLeast(2)] = 4

    def __post_init__(self):
        checks.require(self.n < self.m, "NOfM.n", f"be below m, {self.m}", self.n)

    @property
    def fixed_sparsity(self) -> float:  # type: ignore[override]
        """The final sparsity."""
        return 1 - self.n / self.m

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Fail unless m divides the inputs of a variable of this shape."""
        fits = len(shape) >= 2 and shape[-2] % self.m == 0
        rule = f"divide the inputs of {name!r}, {shape[-2] if len(shape) > 1 else list(shape)}"
        checks.require(fits, "NOfM.m", rule, self.m)

    def select(
        self,
        scores: Sequence[tf.Tensor],
        density: Any,
        densities: Sequence[float],
        progress: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Return the masks of N variables, [..., inputs, units] each, from scores of this shape."""
        del density, densities
        # The tolerance is for rounding errors just below an integer.
        cut = tf.cast(tf.floor((self.m - self.n) * progress + 1e-9), tf.int32)
        return [self._keep_scores(s, self.m - cut) for s in scores]

    def _keep_scores(self, scores: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        *outer, inputs, units = scores.shape
        # The transposes bring the m neighbours to the last axis, and back.
        grouped = tf.reshape(scores, [-1, inputs // self.m, self.m, units])
        mask = densities_lib.keep_largest_of_last(tf.transpose(grouped, [0, 1, 3, 2]), count)
        return tf.reshape(tf.transpose(mask, [0, 1, 3, 2]), [*outer, inputs, units])


@checks.dataclass
class Blocks(_Groups):
    """Blocks of a kernel's last two axes, inputs and units, by their mean score.

    Attributes:
      shape: (inputs, units), which divide the inputs and units of each variable.
    """

    shape: Annotated[
        Sequence[checks.Count],
        checks.Rule(
            "be two numbers, inputs and units",
            lambda value: isinstance(value, (list, tuple)) and len(value) == 2,
        ),
    ] = (4, 4)

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Fail unless blocks divide a variable of this shape."""
        fits = len(shape) >= 2 and not any(
            size % side for size, side in zip(shape[-2:], self.shape, strict=True)
        )
        rule = f"divide inputs and units of {name!r}, {tuple(shape[-2:])}"
        checks.require(fits, "Blocks.shape", rule, tuple(self.shape))

    def group_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the blocks of a variable of this shape."""
        return [*shape[:-2], shape[-2] // self.shape[0], shape[-1] // self.shape[1]]

    def pool(self, scores: tf.Tensor) -> tf.Tensor:
        """Return a score for each group."""
        *outer, inputs, units = self.group_shape(scores.shape)
        # Here `inputs` and `units` count blocks.
        blocks = tf.reshape(scores, [*outer, inputs, self.shape[0], units, self.shape[1]])
        return tf.reduce_mean(blocks, [-3, -1])

    def _spread_mask(self, group_mask: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        del like
        return tf.repeat(tf.repeat(group_mask, self.shape[0], axis=-2), self.shape[1], axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRows(_Groups):
    """Whole rows of looked-up tables, by their mean score: tokens that carry little information.

    A step reads only the rows that it looks up; a step that cuts reads the whole table.
    """

    is_of_tables = True

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Fail unless a variable of this shape has rows."""
        checks.require(len(shape) == 2, f"a table of {name!r}", "have rows", list(shape))

    def group_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the rows of a table of this shape."""
        return [shape[0], 1]

    mask_shape = group_shape

    def pool(self, scores: tf.Tensor) -> tf.Tensor:
        """Return a score for each group."""
        return tf.reduce_mean(scores, 1, keepdims=True)


@checks.dataclass
class Units(_Groups):
    """Whole units or channels, by the mean score of the weights that feed them.

    A unit is cut together with its entries of `<layer>/bias`, and of scale and offset of
    `<layer>_norm`. A cut unit has the same output for all examples, 0 after most activations. An
    optimised export drops it, with the weights that read it. Pruning units costs more accuracy than
    pruning single weights. A small network that trains from scratch is often as good (Z. Liu et
    al., "Rethinking the Value of Network Pruning", 2019, arXiv:1810.05270).

    Layers whose outputs a residual connection adds up must lose the same units: a unit of the sum
    is gone only if it is cut in all of them.

    Attributes:
      together: patterns (see `mtl.variables.patterns`), such as `block_0_.*/conv_1/kernel$`. All
        kernels that match one pattern lose the same units, with the least mean scores on average.
    """

    together: Annotated[Sequence[str], patterns.check_patterns] = ()
    is_of_units = True

    def list_together(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Return sets of the indices of N variables whose units are kept or cut together.

        Raises:
          UserError: a pattern matches less than two variables, two patterns match one variable, or
            the numbers of units differ.
        """
        sets: list[list[int]] = []
        unmatched = set(range(len(names)))
        for pattern in self.together:
            matches = [index for index, name in enumerate(names) if patterns.matches(pattern, name)]
            rule, fix = "match at least two kernels that are cut", f"Cut: {list(names)}."
            checks.require(len(matches) > 1, "Units.together", rule, pattern, fix)
            counts = {names[index]: shapes[index][-1] for index in matches}
            rule = "match kernels with equally many units"
            checks.require(len(set(counts.values())) == 1, "Units.together", rule, counts)
            repeats = [names[index] for index in matches if index not in unmatched]
            checks.require(not repeats, "Units.together", "not match a kernel twice", repeats)
            sets.append(matches)
            unmatched -= set(matches)
        return sorted([*sets, *([index] for index in unmatched)])

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Fail unless a variable of this shape has units with inputs."""
        checks.require(len(shape) >= 2, f"the variable {name!r}", "have units", list(shape))

    def group_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the units in a variable of this shape."""
        return [*[1] * (len(shape) - 1), shape[-1]]

    mask_shape = group_shape

    def pool(self, scores: tf.Tensor) -> tf.Tensor:
        """Return a score for each group."""
        return tf.reduce_mean(scores, list(range(scores.shape.rank - 1)), keepdims=True)
