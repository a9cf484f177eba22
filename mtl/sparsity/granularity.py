"""Granularities: weights are pruned one by one, n of m, in blocks, in units, or in table rows.

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
    """The base class of granularities; the weights of a group are pruned together."""

    fixed_sparsity: float | None = None
    """The final sparsity, if the granularity determines it; else None."""
    is_of_tables: bool = False
    """True if the granularity suits only embedding tables."""
    is_of_units: bool = False
    """True if the bias, scale and offset of a unit are pruned with its weights."""

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Check that the granularity suits the shape of a variable."""

    def group_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the array of a variable's groups, from the variable's shape."""
        return list(shape)

    def mask_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of a mask, which broadcasts to the variable's shape."""
        return list(shape)

    def list_together(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Divide the indices of N variables into sets; variables of a set have the same mask."""
        del shapes
        return [[index] for index in range(len(names))]

    def select(
        self,
        scores: Sequence[tf.Tensor],
        density: Any,
        densities: Sequence[float],
        progress: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Compute the masks of N variables from the scores of their weights."""
        group_masks = density.select([self.pool(s) for s in scores], densities, progress)
        pairs = zip(group_masks, scores, strict=True)
        return [self._spread_mask(mask, like) for mask, like in pairs]

    def pool(self, scores: tf.Tensor) -> tf.Tensor:
        """Average the scores of the weights in each group."""
        return scores

    def _spread_mask(self, group_mask: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        del like
        return group_mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entries(_Groups):
    """Prunes single weights, which costs the least accuracy; only sparse formats save memory."""


@checks.dataclass
class NOfM(_Groups):
    """Keeps the n weights with the largest scores among every m input weights of a unit.

    A. Zhou et al., "Learning N:M Fine-grained Structured Sparse Neural Networks From Scratch",
    2021, arXiv:2102.04010, section 3.1; GPUs multiply matrices with 2 of 4 weights at twice the
    speed. The m weights are neighbours along the axis of inputs, the last but one. The final
    sparsity is `1 - n / m`. Before the last step of the schedule, more than n of m weights remain;
    the number of remaining weights is rounded up. `Pruning.density` is not used.

    Attributes:
      n: the number of weights that remain of m neighbours, at least 1.
      m: the number of neighbouring weights of which n remain, above n. The number of a layer's
        inputs must be a multiple of `NOfM.m`.
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
        """Check that m divides the number of inputs of a variable.

        Raises:
          UserError: m does not divide the inputs, or the variable has fewer than two axes.
        """
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
        """Compute the masks of N variables from the scores of their weights.

        Args:
          scores: the scores of N variables, [..., inputs, units] each.
          density: not used.
          densities: not used.
          progress: a float64 scalar in [0, 1], the present share of the final sparsity.

        Returns:
          N masks, float32 zeros and ones in the shapes of the scores.
        """
        del density, densities
        # Without the tolerance, a rounding error just below an integer would be rounded down.
        num_pruned = tf.cast(tf.floor((self.m - self.n) * progress + 1e-9), tf.int32)
        return [self._keep_scores(s, self.m - num_pruned) for s in scores]

    def _keep_scores(self, scores: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        *outer, inputs, units = scores.shape
        # The transposes move the m neighbours to the last axis, and back.
        grouped = tf.reshape(scores, [-1, inputs // self.m, self.m, units])
        mask = densities_lib.keep_largest_of_last(tf.transpose(grouped, [0, 1, 3, 2]), count)
        return tf.reshape(tf.transpose(mask, [0, 1, 3, 2]), [*outer, inputs, units])


@checks.dataclass
class Blocks(_Groups):
    """Prunes blocks of inputs and units (a kernel's last two axes), by their mean score.

    Attributes:
      shape: the shape of a block, (inputs, units), which must divide the inputs and units of each
        variable.
    """

    shape: Annotated[
        Sequence[checks.Count],
        checks.Rule(
            "be two numbers, inputs and units",
            lambda value: isinstance(value, (list, tuple)) and len(value) == 2,
        ),
    ] = (4, 4)

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Check that the last two axes of a variable can be divided into blocks.

        Raises:
          UserError: blocks do not divide the last two axes of the variable, or the variable has
            fewer than two axes.
        """
        fits = len(shape) >= 2 and not any(
            size % side for size, side in zip(shape[-2:], self.shape, strict=True)
        )
        rule = f"divide inputs and units of {name!r}, {tuple(shape[-2:])}"
        checks.require(fits, "Blocks.shape", rule, tuple(self.shape))

    def group_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the number of blocks along each axis of a variable.

        Args:
          shape: the shape of the variable, [..., inputs, units].

        Returns:
          [..., block rows, block columns]; the axes before the last two do not change.
        """
        return [*shape[:-2], shape[-2] // self.shape[0], shape[-1] // self.shape[1]]

    def pool(self, scores: tf.Tensor) -> tf.Tensor:
        """Average the scores of the weights in each block.

        Args:
          scores: [..., inputs, units].

        Returns:
          The mean scores of the blocks, [..., block rows, block columns].
        """
        *outer, inputs, units = self.group_shape(scores.shape)
        # Here `inputs` and `units` count blocks.
        blocks = tf.reshape(scores, [*outer, inputs, self.shape[0], units, self.shape[1]])
        return tf.reduce_mean(blocks, [-3, -1])

    def _spread_mask(self, group_mask: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        del like
        return tf.repeat(tf.repeat(group_mask, self.shape[0], axis=-2), self.shape[1], axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRows(_Groups):
    """Prunes rows of embedding tables, by their mean score, such as the rows of useless tokens.

    A step that prunes reads the whole table; other steps read only the rows in the batch.
    """

    is_of_tables = True

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Check that a variable has two axes, so that its rows can be pruned.

        Raises:
          UserError: the variable does not have exactly two axes.
        """
        checks.require(len(shape) == 2, f"a table of {name!r}", "have rows", list(shape))

    def group_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the array of groups, one group for each row of a table.

        Args:
          shape: [rows, D].

        Returns:
          [rows, 1].
        """
        return [shape[0], 1]

    mask_shape = group_shape

    def pool(self, scores: tf.Tensor) -> tf.Tensor:
        """Average the scores of the weights in each row.

        Args:
          scores: [rows, D].

        Returns:
          [rows, 1].
        """
        return tf.reduce_mean(scores, 1, keepdims=True)


@checks.dataclass
class Units(_Groups):
    """Prunes units or channels, by the mean score of their input weights.

    A unit is pruned together with its entry of `<layer>/bias`, and with its scale and offset of
    `<layer>_norm`. A pruned unit has the same output for all examples, which is 0 after most
    activations. An optimised export leaves out pruned units and the weights that read them. Pruning
    units costs more accuracy than pruning single weights. A small network that is trained from
    scratch is often as good as a pruned network (Liu et al., "Rethinking the Value of Network
    Pruning", 2019, arXiv:1810.05270).

    If a residual connection adds the outputs of several layers, the same units of all these layers
    must be pruned. If the layers of a sum lost different units, an export could not leave out units
    of the sum.

    Attributes:
      together: patterns (see `mtl.variables.patterns`), such as `block_0_.*/conv_1/kernel$`. Each
        pattern selects kernels whose units are pruned together: the units with the least mean score
        over these kernels.
    """

    together: Annotated[Sequence[str], patterns.check_patterns] = ()
    is_of_units = True

    def list_together(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Divide the indices of N variables into sets; the variables of a set lose the same units.

        Raises:
          UserError: a pattern matches fewer than two variables, two patterns match the same
            variable, or the numbers of units differ.
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
        """Check that a variable has at least two axes: inputs and units.

        Raises:
          UserError: the variable has fewer than two axes.
        """
        checks.require(len(shape) >= 2, f"the variable {name!r}", "have units", list(shape))

    def group_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the array of groups, one group for each unit of a variable.

        Args:
          shape: the shape of the variable, [..., units].

        Returns:
          The shape of the groups, [1, ..., 1, units].
        """
        return [*[1] * (len(shape) - 1), shape[-1]]

    mask_shape = group_shape

    def pool(self, scores: tf.Tensor) -> tf.Tensor:
        """Average the scores of the input weights of each unit.

        Args:
          scores: [..., units].

        Returns:
          The mean score of each unit, [1, ..., 1, units].
        """
        return tf.reduce_mean(scores, list(range(scores.shape.rank - 1)), keepdims=True)
