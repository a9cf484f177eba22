"""The choice of a head for a label of numbers, from their distribution.

choice = amounts.choose_head(np.array([0, 2, 1, 0, 3, ...]), is_whole=True)
choice.head, choice.settings["prior"], choice.hint       # "Poisson", 1.2, "Counts: ..."
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# Counts start near 0, and their variance is about as large as their mean.
_LEAST_COUNT, _MEAN_COUNT, _DISPERSION = 0.1, 20.0, (0.2, 10.0)
# With a larger share of zeros, a label is modelled in two parts: zero or not, and the amount.
_MANY_ZEROS = 0.3


class Choice(NamedTuple):
    """A head for numbers.

    Attributes:
      head: its class.
      settings: {setting: value} for the gin file.
      hint: a sentence that tells the reason and the alternative; "" for a plain number.
    """

    head: str
    settings: Mapping[str, Any]
    hint: str = ""


def choose_head(numbers: np.ndarray, is_whole: bool) -> Choice:
    """Return the head for a label of numbers.

    Args:
      numbers: the labels without missing ones [N]; at least two of them differ.
      is_whole: True if all labels are whole numbers.
    """
    if is_whole and _are_counts(numbers):
        ratio = numbers.var() / numbers.mean()
        hint = f"Counts, with a variance of {ratio:.1f} times the mean. If not: heads.Regression."
        return Choice("Poisson", {"prior": _round(numbers.mean())}, hint)
    zeros = float((numbers == 0).mean())
    if numbers.min() >= 0 and zeros > _MANY_ZEROS and _is_log_normal(numbers[numbers > 0]):
        # The median of a log-normal distribution; the largest amounts would dominate its mean.
        typical = math.exp(np.log(numbers[numbers > 0]).mean())
        settings = {"prior": _round(1 - zeros), "prior_value": _round(typical)}
        hint = (
            f"{zeros:.0%} are 0, and the others have a heavy tail. "
            "Alternatives: heads.Tweedie and heads.Regression."
        )
        return Choice("ZeroInflatedLogNormal", settings, hint)
    mean, spread = float(numbers.mean()), float(numbers.std())
    # Predictions start at the mean; the loss counts errors in standard deviations.
    settings = {"prior": round_mean(mean, spread), "unit": _round(spread)}
    hint = _hint_tail(numbers, is_whole)
    if numbers.min() >= 0 and zeros > _MANY_ZEROS:
        hint = f"{zeros:.0%} are 0: heads.Tweedie and heads.ZeroInflatedLogNormal model zeros."
    return Choice("Regression", settings, hint)


def _are_counts(numbers: np.ndarray) -> bool:
    """Return True for small counts; the loss of large counts would outweigh other tasks."""
    mean, (low, high) = float(numbers.mean()), _DISPERSION
    is_near = 0 <= numbers.min() <= _LEAST_COUNT * mean and mean <= _MEAN_COUNT
    return is_near and low <= numbers.var() / mean <= high


def _is_log_normal(positive: np.ndarray) -> bool:
    """Return True if the logarithms vary and are less skewed than the amounts."""
    logs = np.log(positive)
    return logs.std() > 0 and abs(measure_skew(logs)) < abs(measure_skew(positive))


def _hint_tail(numbers: np.ndarray, is_whole: bool) -> str:
    mean, spread = float(numbers.mean()), float(numbers.std())
    # A normal distribution has its 99% quantile at 2.33 deviations.
    if numbers.min() < 0 or float(np.quantile(numbers, 0.99)) <= mean + 5 * spread / 2:
        return ""
    if is_whole:
        return "A heavy tail: heads.Poisson models counts, and heads.Tweedie models amounts."
    return "A heavy tail: loss_type 'huber' limits its weight, and heads.Tweedie models it."


def measure_skew(numbers: np.ndarray) -> float:
    """Return the skewness of numbers [N]; 0 if they do not vary."""
    spread = numbers.std()
    return float((((numbers - numbers.mean()) / spread) ** 3).mean()) if spread else 0.0


def _round(number: float) -> float:
    return float(f"{number:.4g}")


def round_mean(mean: float, spread: float) -> float:
    """Round a mean to about a thousandth of the spread, which may be far smaller than the mean.

    Args:
      mean: the mean of a label.
      spread: its standard deviation, in the same unit; 0 leaves the mean as it is.
    """
    return round(mean, 3 - math.floor(math.log10(spread))) if spread > 0 else mean
