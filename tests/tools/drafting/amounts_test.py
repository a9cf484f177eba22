"""Heads of numbers: counts, amounts that are often 0, and others."""

import numpy as np
import pytest

from mtl import heads
from mtl.tools.drafting import amounts

DRAW = np.random.default_rng(0)
ROWS = 2000
IS_PAID = DRAW.random(ROWS) < 0.4
CASES = {
    "counts": (DRAW.poisson(3.0, ROWS), "Poisson"),
    "more varied counts": (DRAW.negative_binomial(2, 0.2, ROWS), "Poisson"),
    "counts of many zeros": (DRAW.negative_binomial(1, 0.3, ROWS), "Poisson"),
    "bursts": (DRAW.negative_binomial(1, 0.01, ROWS), "Regression"),
    "large counts": (DRAW.poisson(500.0, ROWS), "Regression"),
    "ages": (DRAW.integers(18, 80, ROWS), "Regression"),
    "differences": (DRAW.poisson(3.0, ROWS) - 3, "Regression"),
    "payments": (np.where(IS_PAID, DRAW.lognormal(3, 1, ROWS), 0), "ZeroInflatedLogNormal"),
    "whole payments": (
        np.where(IS_PAID, DRAW.lognormal(9, 1, ROWS).round(), 0),
        "ZeroInflatedLogNormal",
    ),
    "minutes": (np.where(IS_PAID, DRAW.uniform(0.1, 60, ROWS), 0), "Regression"),
    "prices": (DRAW.lognormal(3, 1, ROWS), "Regression"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_distribution_chooses_the_head(case):
    numbers, head = CASES[case]
    is_whole = bool((numbers == numbers.round()).all())
    choice = amounts.choose_head(numbers.astype(float), is_whole)
    assert choice.head == head
    made = getattr(heads, head)(name="y", **choice.settings)
    assert np.all(np.isfinite(made.initial_bias()))
    # Predictions start near the labels.
    start = numbers[numbers > 0].mean() if head == "ZeroInflatedLogNormal" else numbers.mean()
    prior = getattr(made, "prior_value", made.prior)
    assert prior == pytest.approx(start, rel=0.7 if head == "ZeroInflatedLogNormal" else 1e-2)


def test_an_alternative_is_told():
    hints = {
        case: amounts.choose_head(own.astype(float), True).hint for case, (own, _) in CASES.items()
    }
    assert "If not: heads.Regression" in hints["counts"]
    assert "59% are 0" in hints["payments"] and "heads.Tweedie" in hints["payments"]
    assert "heads.Tweedie" in hints["minutes"] and not hints["ages"]
