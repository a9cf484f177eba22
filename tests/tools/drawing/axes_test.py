"""Ticks are round, few, distinct and true."""

import re

import numpy as np
import pytest

from mtl.tools.drawing import axes

SPANS = [
    (0, 1000),
    (0.99981, 0.99998),
    (-3.3, 0.2),
    (1e6, 4e6),
    (0, 3e-5),
    (5, 5),
    (0, 0),
    (-7, -7),
    (1e12, 1e12 + 3),
    (-1e299, 1e299),
    (3e-299, 8e-299),
    (1234567.0, 1234567.5),
    (0, 5e-324),
]


@pytest.mark.parametrize(("low", "high"), SPANS)
def test_linear_ticks_are_multiples_of_1_2_or_5(low, high):
    axis = axes.span([low, high], margin=0.06)
    places, labels = zip(*axis.list_ticks(5), strict=True)
    numbers = [float(label.replace(",", "")) for label in labels]
    assert 2 <= len(set(labels)) == len(labels) <= 6
    assert min(places) >= 0 and max(places) <= 1 + 1e-9
    steps = np.diff(numbers)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-3)
    assert f"{steps[0]:.1e}"[:3] in ("1.0", "2.0", "5.0")
    np.testing.assert_allclose([axis.place(number) for number in numbers], places, atol=1e-3)


def test_thousands_are_separated():
    labels = [label for _, label in axes.span([0, 2_000_000]).list_ticks(4)]
    assert labels == ["0", "500,000", "1,000,000", "1,500,000", "2,000,000"]
    assert axes.span([0, 3e10]).list_ticks(3)[-1][1] == "3e10"


@pytest.mark.parametrize("values", [(0.003, 9.0), (2.0, 150.0), (1e-12, 1e12), (1e-290, 1e290)])
def test_logarithmic_ticks_are_powers_of_ten(values):
    axis = axes.span(values, may_be_log=True)
    ticks = axis.list_ticks(5)
    assert axis.is_log and 2 <= len(ticks) <= 6
    for place, label in ticks:
        assert re.fullmatch(r"0\.0*1|1e-?\d+|1[0,]*", label)
        assert axis.place(float(label.replace(",", ""))) == pytest.approx(place)
    assert all(0 <= axis.place(value) <= 1 for value in values)


@pytest.mark.parametrize("values", [(1.0, 40.0), (-1.0, 1000.0), (0.0, 1000.0), ()])
def test_other_values_are_not_drawn_by_logarithm(values):
    assert not axes.span(values, may_be_log=True).is_log


def test_whole_numbers_have_whole_ticks():
    labels = [label for _, label in axes.span([0, 2], is_whole=True).list_ticks(5)]
    assert labels == ["0", "1", "2"]


def test_an_axis_that_is_bent_shows_small_and_large_numbers():
    axis = axes.Axis(-30.0, 2.0, near=0.1)
    labels = [label for _, label in axis.list_ticks(8)]
    assert labels == ["-10", "-1", "-0.1", "0", "0.1", "1"]
    places = [axis.place(value) for value in (-30, -10, -1, 0, 0.1, 2)]
    assert places == sorted(places) and (places[0], places[-1]) == (0, 1)
