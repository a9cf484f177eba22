"""The choice of a head for a label of numbers, from the distribution of the numbers.

choice = amounts.choose_head(np.array([0, 2, 1, 0, 3, ...]), is_whole=True)
choice.head, choice.settings["prior"], choice.hint       # "Poisson", 1.2, "Counts: ..."
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# Labels are counts if their smallest value is near 0, their mean is small, and their variance is
# about as large as their mean.
_LEAST_COUNT, _MEAN_COUNT, _DISPERSION = 0.1, 20.0, (0.2, 10.0)
# If at least this share of the labels is 0, the chosen head predicts separately whether a label is
# 0, and the amount of a label above 0.
_MANY_ZEROS = 0.3


class Choice(NamedTuple):
    """The choice of a head for a label of numbers.

    Attributes:
      head: the name of the head's class.
      settings: {setting of the head: value} for the gin file.
      hint: a sentence that gives the reason for this head or names other heads; "" if no other head
        comes into question.
    """

    head: str
    settings: Mapping[str, Any]
    hint: str = ""


def choose_head(numbers: np.ndarray, is_whole: bool) -> Choice:
    """Choose a head for a label of numbers.

    Args:
      numbers: the labels that are not missing, [N]; at least two of them differ.
      is_whole: True if all labels are whole numbers.
    """
    if is_whole and _are_counts(numbers):
        ratio = numbers.var() / numbers.mean()
        hint = f"Counts, with a variance of {ratio:.1f} times the mean. If not: heads.Regression."
        return Choice("Poisson", {"prior": _round(numbers.mean())}, hint)
    zeros = float((numbers == 0).mean())
    if numbers.min() >= 0 and zeros > _MANY_ZEROS and _is_log_normal(numbers[numbers > 0]):
        # Use the median of a log-normal distribution, because the largest
        # amounts would dominate a mean.
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
    """Return True for small counts; the Poisson loss of large counts would outweigh other tasks."""
    mean, (low, high) = float(numbers.mean()), _DISPERSION
    is_near = 0 <= numbers.min() <= _LEAST_COUNT * mean and mean <= _MEAN_COUNT
    return is_near and low <= numbers.var() / mean <= high


def _is_log_normal(positive: np.ndarray) -> bool:
    """Return True if the logarithms of amounts vary, and are less skewed than the amounts."""
    logs = np.log(positive)
    return logs.std() > 0 and abs(measure_skew(logs)) < abs(measure_skew(positive))


def _hint_tail(numbers: np.ndarray, is_whole: bool) -> str:
    mean, spread = float(numbers.mean()), float(numbers.std())
    # The 99% quantile of a normal distribution lies 2.33 standard deviations above the mean.
    if numbers.min() < 0 or float(np.quantile(numbers, 0.99)) <= mean + 5 * spread / 2:
        return ""
    if is_whole:
        return "A heavy tail: heads.Poisson models counts, and heads.Tweedie models amounts."
    return "A heavy tail: loss_type 'huber' limits its weight, and heads.Tweedie models it."


def measure_skew(numbers: np.ndarray) -> float:
    """Return the skewness of numbers [N]; 0 if all numbers are equal."""
    spread = numbers.std()
    return float((((numbers - numbers.mean()) / spread) ** 3).mean()) if spread else 0.0


def _round(number: float) -> float:
    return float(f"{number:.4g}")


def round_mean(mean: float, spread: float) -> float:
    """Round the mean of a label to about a thousandth of the label's standard deviation.

    Args:
      mean: the mean of the label.
      spread: the standard deviation of the label; if it is 0, the mean is not rounded.
    """
    return round(mean, 3 - math.floor(math.log10(spread))) if spread > 0 else mean
