"""Compares two data sets field by field, and says how large a difference may be by chance.

comparison = drift.compare(training, new)
values = comparison.differences[0].values
values.distance, values.noise                           # 0.31, 0.02
comparison.list_failures(threshold=0.1)                 # ["'age': KS 0.31, by chance up to 0.02"]

| values | distance | source |
| -- | -- | -- |
| numbers, truth | KS: the largest difference of the distribution functions | Kolmogorov, Smirnov |
| texts, bytes | L-infinity: the largest difference of the share of a value | drift of TFDV |

Distances are in [0, 1]. The noise of a field is an upper bound for the distance between two random
samples of the same distribution. If rows are independent, a distance exceeds its noise by chance in
at most 1 of 100 comparisons of data sets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from mtl.tools.statistics import facts

KS, L_INFINITY = "KS", "L-infinity"
# The largest probability that any distance in any field exceeds its noise by chance.
CHANCE = 0.01
_MEASURES = 4  # The number of shifts in `Difference.shifts`.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shift:
    """The distance between two data sets in one field, and the noise of this distance.

    Attributes:
      what: the name of the distance, such as "KS" or "gaps".
      distance: the distance, in [0, 1]; NaN for a distance that cannot be measured.
      noise: the largest distance that is likely by chance.
    """

    what: str
    distance: float
    noise: float

    def exceeds(self, threshold: float) -> bool:
        """Return True if the distance is above a threshold and above the noise; False for NaN.

        Args:
          threshold: the distance in [0, 1] above which a field drifts.
        """
        return self.distance > max(threshold, self.noise)

    def describe(self) -> str:
        """Return a text such as "KS 0.31, by chance up to 0.02"."""
        return f"{self.what} {self.distance:.3g}, by chance up to {self.noise:.2g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """The differences between two data sets in a field.

    Attributes:
      name: the name of the field.
      before: statistics of the field in the old data.
      after: statistics of the field in the new data.
      values: the distance between the distributions of values, without missing values.
      gaps: the difference between the shares of rows without a value in the two data sets.
      unseen: the share of the values in the new data that the old data lack, minus the expected
        share; NaN if the old data have too many distinct values to count them all.
      unknown: the share of the values in the new data that a model does not know, minus the
        expected share; NaN without a model.
      changed: the change of the type, such as "int, now text"; "" if the type is the same.
    """

    name: str
    before: facts.Column
    after: facts.Column
    values: Shift
    gaps: Shift
    unseen: Shift
    unknown: Shift
    changed: str = ""

    @property
    def shifts(self) -> Sequence[Shift]:
        """The distances of the field."""
        return self.values, self.gaps, self.unseen, self.unknown

    @property
    def largest(self) -> float:
        """The largest distance; infinite if the type has changed, -1 if none can be measured."""
        distances = [shift.distance for shift in self.shifts if not math.isnan(shift.distance)]
        return math.inf if self.changed else max(distances, default=-1.0)

    def list_failures(self, threshold: float) -> list[str]:
        """Return a text for each way in which the field drifts.

        Args:
          threshold: the distance in [0, 1] above which a field drifts.

        Returns:
          The change of the type, if the type has changed, and a text for each distance above the
          threshold and above its noise. [] without drift.
        """
        failures = [self.changed] if self.changed else []
        return failures + [shift.describe() for shift in self.shifts if shift.exceeds(threshold)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """The comparison of two data sets.

    Attributes:
      before: the old data.
      after: the new data.
      differences: the differences in each common field, from the largest to the smallest.
      lost: the fields that the new data lack.
      added: the fields that only the new data have.
    """

    before: facts.Dataset
    after: facts.Dataset
    differences: Sequence[Difference]
    lost: Sequence[str]
    added: Sequence[str]

    def list_failures(self, threshold: float) -> list[str]:
        """Return a text for each field that has drifted or that the new data lack.

        Args:
          threshold: the distance in [0, 1] above which a field drifts, if the distance also exceeds
            its noise.

        Returns:
          Texts such as "'age': KS 0.31, by chance up to 0.02" or "'age' is lost"; [] without drift.
        """
        failures = [f"{name!r} is lost" for name in self.lost]
        for difference in self.differences:
            texts = difference.list_failures(threshold)
            failures += [f"{difference.name!r}: {'; '.join(texts)}"] if texts else []
        return failures


def compare(before: facts.Dataset, after: facts.Dataset) -> Compared:
    """Compare two data sets field by field.

    Args:
      before: the old data, such as the training split.
      after: the new data.
    """
    shared = [name for name in before.columns if name in after.columns]
    # By Bonferroni's correction, the chances of all distances in all fields add up to at most
    # CHANCE.
    chance = CHANCE / (_MEASURES * max(len(shared), 1))
    differences = [
        _compare_columns(before.columns[name], after.columns[name], chance) for name in shared
    ]
    return Compared(
        before=before,
        after=after,
        differences=sorted(differences, key=lambda difference: -difference.largest),
        lost=[name for name in before.columns if name not in after.columns],
        added=[name for name in after.columns if name not in before.columns],
    )


def _compare_columns(before: facts.Column, after: facts.Column, chance: float) -> Difference:
    unseen = Shift(what="unseen", distance=math.nan, noise=math.nan)
    values = dataclasses.replace(unseen, what="")
    changed = _find_change(before, after)
    if not changed and before.count and after.count:
        values, unseen = _compare_values(before, after, chance)
    return Difference(
        name=before.name,
        before=before,
        after=after,
        values=values,
        gaps=_compare_shares("gaps", before.gaps, after.gaps, (before.rows, after.rows), chance),
        unseen=unseen,
        unknown=_compare_unknown(before, after, chance),
        changed=changed,
    )


def _find_change(before: facts.Column, after: facts.Column) -> str:
    """Return how the type of a column has changed, as text; "" if it has not changed.

    All types of numbers count as the same type, and an empty column fits all types.
    """
    sides = (before, after)
    kinds = ["number" if side.kind in facts.NUMBERS else side.kind for side in sides]
    is_same = kinds[0] == kinds[1] and before.is_list == after.is_list
    is_known = facts.EMPTY not in kinds
    return "" if is_same or not is_known else f"{before.type_name}, now {after.type_name}"


def _compare_values(
    before: facts.Column, after: facts.Column, chance: float
) -> tuple[Shift, Shift]:
    nothing = Shift(what="", distance=math.nan, noise=math.nan)
    if before.kind == facts.TIME:
        return nothing, nothing  # New rows have later times, which is not drift.
    if before.texts is not None and after.texts is not None:
        return _compare_texts(before, after, chance)
    if before.numbers is not None and after.numbers is not None:
        return _compare_numbers(before, after, chance), nothing
    return nothing, nothing


def _compare_numbers(before: facts.Column, after: facts.Column, chance: float) -> Shift:
    sides = [column.numbers for column in (before, after) if column.numbers is not None]
    if not all(side.count for side in sides):
        return Shift(what=KS, distance=math.nan, noise=math.nan)
    distributions = [side.weigh() for side in sides]
    # The cumulative distribution functions change only at the values in the data.
    places = np.unique(np.concatenate([values for values, _ in distributions]))
    shares = []
    for values, weights in distributions:
        totals = np.concatenate([[0], np.cumsum(weights)])
        shares.append(totals[np.searchsorted(values, places, side="right")] / totals[-1])
    rows = [_count_independent(column) for column in (before, after)]
    # The noise is a quantile of the two-sample Kolmogorov-Smirnov test, from the first term of its
    # series.
    noise = math.sqrt(-math.log(chance / 2) / 2 * (1 / rows[0] + 1 / rows[1]))
    # The quantile sketches of both data sets have errors, too, perhaps in opposite directions.
    noise += sum(side.rank_error for side in sides)
    return Shift(what=KS, distance=float(np.abs(shares[0] - shares[1]).max()), noise=noise)


def _count_independent(column: facts.Column) -> int:
    """Return the number of independent values; the values of the same list count as one."""
    return max(min(column.count, column.present), 1)


def _compare_texts(before: facts.Column, after: facts.Column, chance: float) -> tuple[Shift, Shift]:
    sides = [column.texts for column in (before, after) if column.texts is not None]
    counts = _align_counts([side.read_counts() for side in sides])
    totals = [side.count for side in sides]
    rows = (_count_independent(before), _count_independent(after))
    shares = [side_counts / total for side_counts, total in zip(counts, totals, strict=True)]
    noise = _find_noise((counts[0] + counts[1]) / sum(totals), rows, chance)
    # Counts are too low if the table of counts has lost texts because of its size.
    noise += sum(side.lost / total for side, total in zip(sides, totals, strict=True))
    distance = float(np.abs(shares[0] - shares[1]).max())
    values = Shift(what=L_INFINITY, distance=distance, noise=noise)
    return values, _compare_unseen(counts, totals, rows, sides[0].is_exact, chance)


def _align_counts(tables: Sequence[tuple[pa.Array, np.ndarray]]) -> list[np.ndarray]:
    """For each table, return its counts of all texts in any table; 0 for texts that it lacks."""
    encoded = pa.concat_arrays([values for values, _ in tables]).dictionary_encode()
    places = encoded.indices.to_numpy()
    size, start, aligned = len(encoded.dictionary), 0, []
    for values, counts in tables:
        table_counts = np.zeros(size, np.int64)
        table_counts[places[start : start + len(values)]] = counts
        start += len(values)
        aligned.append(table_counts)
    return aligned


def _compare_unseen(
    counts: Sequence[np.ndarray],
    totals: Sequence[int],
    rows: tuple[int, int],
    is_exact: bool,
    chance: float,
) -> Shift:
    """Return the share of new values that the old data lack, minus the expected share.

    The probability that the next value is new is about the share of values that have occurred once
    (Good, The population frequencies of species, https://doi.org/10.1093/biomet/40.3-4.237).
    """
    # If the table of the old data has lost a text because of its size, the text would look new.
    if not is_exact:
        return Shift(what="unseen", distance=math.nan, noise=math.nan)
    once, twice = ((counts[0] == number).sum() for number in (1, 2))
    expected = once / totals[0]
    share = counts[1][counts[0] == 0].sum() / totals[1]
    # The expected share is an estimate, so its error is added to the error of the measured share.
    error = math.sqrt(2 * twice) / totals[0] * math.sqrt(-2 * math.log(chance))
    noise = _find_noise(np.array([expected]), rows, chance) + error
    return Shift(what="unseen", distance=max(float(share - expected), 0.0), noise=float(noise))


def _compare_shares(
    what: str, before: float, after: float, rows: tuple[int, int], chance: float
) -> Shift:
    if not all(rows) or math.isnan(before + after):
        return Shift(what=what, distance=math.nan, noise=math.nan)
    pooled = (before * rows[0] + after * rows[1]) / sum(rows)
    noise = _find_noise(np.array([pooled]), rows, chance)
    return Shift(what=what, distance=abs(after - before), noise=noise)


def _compare_unknown(before: facts.Column, after: facts.Column, chance: float) -> Shift:
    """Return the share of new values that a model does not know, minus the expected share."""
    nothing = Shift(what="unknown", distance=math.nan, noise=math.nan)
    if before.unknown is None or after.unknown is None or not before.count or not before.is_exact:
        return nothing
    expected, error = _expect_unknown(before, chance)
    if math.isnan(expected + after.unknown):
        return nothing
    rows = (_count_independent(before), _count_independent(after))
    noise = _find_noise(np.array([expected]), rows, chance) + error
    return Shift(what="unknown", distance=max(after.unknown - expected, 0.0), noise=noise)


def _expect_unknown(before: facts.Column, chance: float) -> tuple[float, float]:
    """Return the expected share of unknown values in new rows, and the error of this estimate.

    A model that was fitted to the old data may not know the values that occur fewer than k times in
    the old rows. Good's estimate says: the values that occur r - 1 times in the old rows have about
    the same share in the new rows as the values that occur r times have in the old rows. The
    expected share of unknown values in the new rows is therefore the share that the values with at
    most k occurrences have in the old rows.
    """
    kinds, numbers = np.unique(_read_counts(before), return_counts=True)
    values = (kinds * numbers).astype(float)
    total, unknown = values.sum(), before.unknown or 0.0
    # Assume that all values below some frequency are unknown, although a user's vocabulary may
    # include rare values.
    below = np.concatenate([[0.0], np.cumsum(values) / total])
    # `unknown` and `below` come from different divisions, so they may differ in the last bits.
    rare = int(np.searchsorted(below, unknown - _ROUNDING))
    frequency = kinds[rare - 1] + 1 if rare else 1
    expected = max(unknown, float(values[kinds <= frequency].sum() / total))
    squares = float((values * kinds)[kinds <= frequency + 1].sum())
    return expected, math.sqrt(squares) / total * math.sqrt(-2 * math.log(chance))


def _read_counts(column: facts.Column) -> np.ndarray:
    """Return how often each value of a column occurs, in any order."""
    if column.texts is not None:
        return column.texts.read_counts()[1]
    return column.numbers.weigh()[1] if column.numbers is not None else np.zeros([0], np.int64)


def _find_noise(shares: np.ndarray, rows: tuple[int, int], chance: float) -> float:
    """Return a bound that the differences of shares between two samples rarely exceed.

    The chance that any difference exceeds the bound is at most `chance`: Bernstein's inequality
    limits this chance for a single share, and the limits for all shares are added.
    """
    # Compute the bound of equal shares only once, because rare values often have equal shares.
    kinds, numbers = np.unique(shares, return_counts=True)
    variances = kinds * (1 - kinds) * (1 / rows[0] + 1 / rows[1])
    step = max(1 / rows[0], 1 / rows[1])
    low, high = 0.0, 1.0
    # Find the bound of the differences by bisection. After 40 halvings, the error of the bound,
    # 2^-40, is far below the last digit of a distance.
    for _ in range(40):
        middle = (low + high) / 2
        exponents = middle**2 / (2 * (variances + step * middle / 3))
        bound = float((numbers * np.minimum(2 * np.exp(-exponents), 1)).sum())
        low, high = (middle, high) if bound > chance else (low, middle)
    return high
