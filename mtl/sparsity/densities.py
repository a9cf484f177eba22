"""Densities, which determine the share of each layer that remains, and choose masks by scores.

from mtl.sparsity import densities
pruning.Pruning.density = @densities.Global()
densities.Global.floor = 0.02

The granularity says which weights form a group: single weights, blocks, units or rows. At least one
group of each layer remains.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

from mtl import checks
from mtl.deferred import tf

_HALF = 1 << 16  # The number of values of 16 bits, which are half of a float32.


@checks.dataclass
class Uniform:
    """Prunes the same share of the groups of every layer.

    At a high sparsity, too few weights of small layers remain: at 98%, only 18 of 100 units before
    a head still have inputs (`benchmarks/pruning.py`).

    Attributes:
      per_unit: True prunes the same share of the input weights of every unit, as Wanda does (Sun et
        al., "A Simple and Effective Pruning Approach for Large Language Models", 2024,
        arXiv:2306.11695). `per_unit` requires the granularity `Entries`, single weights.
    """

    per_unit: bool = False
    is_global = False

    def densities(self, shapes: Sequence[Sequence[int]], sparsity: float) -> list[float]:
        """Return the final share of remaining groups, for each of N layers.

        Args:
          shapes: for each of N layers, the shape of the array of its groups.
          sparsity: the final share of pruned groups over all layers, in (0, 1).
        """
        return [1 - sparsity] * len(shapes)

    def select(
        self, scores: Sequence[tf.Tensor], densities: Sequence[float], progress: tf.Tensor
    ) -> list[tf.Tensor]:
        """Compute the masks of N layers: float32 zeros and ones in the shapes of the scores.

        Args:
          scores: the scores of the groups of N layers.
          densities: the final shares of remaining groups, from the method `densities`.
          progress: a float64 scalar in [0, 1], the present share of the final sparsity.
        """
        if not self.per_unit:
            return _select_by_layer(scores, densities, progress)
        return [
            _keep_largest_of_units(layer, _count_groups(layer.shape[-2], density, progress))
            for layer, density in zip(scores, densities, strict=True)
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErdosRenyiKernel:
    """Prunes less of small layers: each keeps a share proportional to `sum(shape) / prod(shape)`.

    U. Evci et al., "Rigging the Lottery: Making All Tickets Winners", 2020, arXiv:1911.11134,
    section 3. If the share of a layer would exceed 1, the layer is not pruned. The shares of the
    pruned layers have a common factor, which leads to the requested sparsity over all layers.
    """

    is_global = False

    def densities(self, shapes: Sequence[Sequence[int]], sparsity: float) -> list[float]:
        """Return the final share of remaining groups, for each of N layers.

        Args:
          shapes: for each of N layers, the shape of the array of its groups.
          sparsity: the final share of pruned groups over all layers, in (0, 1).
        """
        sizes = [math.prod(shape) for shape in shapes]
        raw = [sum(shape) / size for shape, size in zip(shapes, sizes, strict=True)]
        budget, dense = (1 - sparsity) * sum(sizes), set[int]()
        while True:
            shares = _share_out(budget, sizes, raw, dense)
            too_dense = [i for i, share in enumerate(shares) if share > 1]
            if not too_dense:
                return shares
            # Each round exempts only the densest layer from pruning, because each exempted layer
            # changes the factor of all other layers.
            dense.add(max(too_dense, key=lambda i: raw[i]))

    def select(
        self, scores: Sequence[tf.Tensor], densities: Sequence[float], progress: tf.Tensor
    ) -> list[tf.Tensor]:
        """Compute the masks of N layers: float32 zeros and ones in the shapes of the scores."""
        return _select_by_layer(scores, densities, progress)


@checks.dataclass
class Global:
    """Prunes the groups with the least scores over all layers.

    The scores of different layers must be comparable, as with `Snip` and `Taylor`. With
    `Magnitude`, the scores are comparable only if the layers have similar initial values and
    similar training.

    Attributes:
      floor: the least remaining share of each layer, in [0, 1). With a floor of 0, pruning may
        leave only one group of a layer.
    """

    floor: checks.Rate = 0.01
    is_global = True

    def densities(self, shapes: Sequence[Sequence[int]], sparsity: float) -> list[float]:
        """Return the final share of remaining groups over all layers, as a list of N equal shares.

        Raises:
          UserError: `floor` is above the final share of remaining groups.
        """
        rule = f"be at most 1 - sparsity, {1 - sparsity:.6g}"
        checks.require(self.floor <= 1 - sparsity, "Global.floor", rule, self.floor)
        return [1 - sparsity] * len(shapes)

    def select(
        self, scores: Sequence[tf.Tensor], densities: Sequence[float], progress: tf.Tensor
    ) -> list[tf.Tensor]:
        """Compute the masks of N layers: float32 zeros and ones in the shapes of the scores."""
        sizes = [layer.shape.num_elements() for layer in scores]
        floors = [max(1, math.ceil(self.floor * size)) for size in sizes]
        raised_scores = []
        for layer, floor in zip(scores, floors, strict=True):
            flat = tf.reshape(layer, [-1])
            is_in_floor = keep_largest(flat, tf.constant(floor)) > 0
            # Each layer keeps at least a share `self.floor` of its groups. These groups get the
            # largest number as their score, as frozen entries have, and all other groups get less.
            lowered = tf.minimum(flat, flat.dtype.max / 2)
            raised_scores.append(tf.where(is_in_floor, flat.dtype.max, lowered))
        # The least number of groups of each layer is rounded up, so the sum over layers may exceed
        # the number of groups that should remain.
        total = _count_groups(sum(sizes), densities[0], progress, least=sum(floors))
        masks = tf.split(keep_largest(tf.concat(raised_scores, 0), total), sizes)
        return [tf.reshape(mask, layer.shape) for mask, layer in zip(masks, scores, strict=True)]


def _share_out(
    budget: float, sizes: Sequence[int], raw: Sequence[float], dense: Collection[int]
) -> list[float]:
    """Return shares proportional to `raw` that leave `budget` groups; 1 for layers in `dense`."""
    remaining = budget - sum(sizes[i] for i in dense)
    others = [i for i in range(len(sizes)) if i not in dense]
    factor = remaining / sum(raw[i] * sizes[i] for i in others) if others else 0.0
    return [1.0 if i in dense else factor * raw[i] for i in range(len(sizes))]


def _select_by_layer(
    scores: Sequence[tf.Tensor], densities: Sequence[float], progress: tf.Tensor
) -> list[tf.Tensor]:
    masks = []
    for layer, density in zip(scores, densities, strict=True):
        count = _count_groups(layer.shape.num_elements(), density, progress)
        masks.append(tf.reshape(keep_largest(tf.reshape(layer, [-1]), count), layer.shape))
    return masks


def _count_groups(size: int, density: float, progress: tf.Tensor, least: int = 1) -> tf.Tensor:
    """Return the number of groups of a layer that remain at this step, an int32 scalar."""
    # The share falls from 1 to the density. The type is float64, because float32 cannot count more
    # than 2^24 weights exactly.
    share = 1 - (1 - tf.constant(density, tf.float64)) * progress
    return tf.cast(tf.clip_by_value(tf.round(share * size), least, size), tf.int32)


def keep_largest(scores: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return ones at the largest scores, else zeros; of equal scores, the first are chosen.

    To find the least of the largest scores, the scores are counted, first by their upper 16 bits,
    then by their lower 16 bits. Counting the scores is many times faster than sorting the scores.

    Args:
      scores: finite scores, [N].
      count: the number of ones, a scalar in [0, N].

    Returns:
      float32 [N].
    """
    bits = tf.bitcast(tf.cast(scores, tf.float32) + 0.0, tf.int32)  # -0.0 becomes 0.0.
    # If their bits are read as integers, negative floats are in reverse order.
    ordered = tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, 0x7FFFFFFF), bits)
    count = tf.cast(count, tf.int32)
    # The shift keeps the sign, so `upper` begins at -2^15. `_find_least` needs values from 0 on, so
    # 2^15 is added to `upper`.
    upper = tf.bitwise.right_shift(ordered, 16)
    least_upper, num_equal = _find_least(upper + _HALF // 2, count)
    is_equal = tf.equal(upper, least_upper - _HALF // 2)
    # The value `_HALF` is outside of the bins, and is not counted.
    lower = tf.where(is_equal, tf.bitwise.bitwise_and(ordered, _HALF - 1), _HALF)
    least_lower, num_equal = _find_least(lower, num_equal)
    least = (least_upper - _HALF // 2) * _HALF + least_lower
    is_above, is_equal = ordered > least, tf.equal(ordered, least)
    # If several scores equal `least`, the smallest chosen score, only the first `num_equal` of them
    # are chosen.
    is_among_first = tf.cumsum(tf.cast(is_equal, tf.int32)) <= num_equal
    return tf.cast(is_above | is_equal & is_among_first, tf.float32)


def _find_least(values: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the least of the `count` largest values in [0, 2^16), and the number of its copies."""
    bins = tf.math.bincount(values, minlength=_HALF, maxlength=_HALF)
    reached = tf.cumsum(bins, reverse=True)
    least = tf.math.count_nonzero(reached >= count, dtype=tf.int32) - 1
    return least, count - (reached[least] - bins[least])


def _keep_largest_of_units(scores: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return ones at the largest scores of each unit, [..., inputs, units], else zeros."""
    order = list(range(scores.shape.rank))
    # The axes are transposed to [..., units, inputs], because `keep_largest_of_last` ranks scores
    # along the last axis.
    order[-2:] = reversed(order[-2:])
    return tf.transpose(keep_largest_of_last(tf.transpose(scores, order), count), order)


def keep_largest_of_last(scores: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return ones at the largest scores along the last axis, else 0; of equal scores, the first.

    Args:
      scores: the scores to compare along the last axis, [..., N].
      count: the number of ones along the last axis, an int32 scalar.

    Returns:
      Ones and zeros, float32, in the shape of the scores.
    """
    by_rank = tf.argsort(scores, direction="DESCENDING", stable=True)
    ranks = tf.argsort(by_rank)
    return tf.cast(ranks < count, tf.float32)
