"""Partial dependence beside scikit-learn's, and the values that are asked for."""

import numpy as np
import pytest
from sklearn import base, inspection

from mtl.tools.explaining import dependence, outputs
from tests.tools.explaining import importance_test


class _Regressor(base.RegressorMixin, base.BaseEstimator):
    """The run as scikit-learn sees it, which wants an estimator that is fitted."""

    def __init__(self, own=None):
        self.own = own

    def fit(self, given, labels):
        return self

    def __sklearn_is_fitted__(self):
        return True

    def predict(self, given):
        # scikit-learn sets one value of the grid in all rows, and calls this for each value.
        return self.own.predict(given)


@pytest.mark.medium
def test_it_is_that_of_scikit_learn(held, open_run):
    names = importance_test.FIELDS
    given = np.stack([held.features[name] for name in names], 1).astype(np.float64)

    def add(made):
        return outputs.describe_output(made.heads["second"], made.logits["second"])

    with open_run(add) as made:
        own = _Regressor(importance_test._Model(made, held, "second"))
        expected = inspection.partial_dependence(
            own, given, [1], kind="both", grid_resolution=7, method="brute"
        )
        grid = expected["grid_values"][0].astype(np.float32)
        found = dependence.compute(made, [made.extra], held, "b", grid)
    np.testing.assert_allclose(found.means["second"][:, 0], expected["average"][0], rtol=1e-4)
    some = np.unique(np.linspace(0, held.size - 1, 20).astype(int))
    lines = expected["individual"][0][some].T
    np.testing.assert_allclose(found.lines["second"][:, :, 0], lines, rtol=1e-4, atol=1e-5)
    assert np.ptp(found.means["second"]) > 2


def test_numbers_are_asked_for_at_quantiles_that_occur():
    values = np.random.default_rng(1).normal(size=500).astype(np.float32)
    grid = dependence.make_grid(values, is_number=True)
    assert len(grid) == 20 and set(grid) <= set(values) and (np.diff(grid) > 0).all()
    below = [(values <= value).mean() for value in grid]
    np.testing.assert_allclose(below, np.linspace(0.025, 0.975, 20), atol=0.01)
    few = np.array([3, 1, 3, 2], np.int64)
    assert dependence.make_grid(few, is_number=True).tolist() == [1, 2, 3]


def test_where_most_rows_hold_one_number_the_others_are_asked_for_too():
    values = np.concatenate([np.zeros(900), np.arange(1, 101)])
    grid = dependence.make_grid(values, is_number=True)
    assert 10 <= len(grid) <= 20 and grid[0] == 0 and set(grid) <= set(values)


def test_what_is_no_number_is_left_out():
    values = np.array([np.nan, 1.0, np.inf, 2.0])
    assert dependence.make_grid(values, is_number=True).tolist() == [1, 2]


def test_a_field_without_a_grid_says_why():
    words = np.array([b"a", b"b"], object)
    assert "several values" in dependence.tell_unfit(np.zeros([5, 2]), True)
    assert "the same value" in dependence.tell_unfit(np.array([np.nan, 1, 1]), True)
    assert "occurs twice" in dependence.tell_unfit(words, False)
    assert dependence.tell_unfit(np.repeat(words, 2), False) is None
    assert dependence.tell_unfit(np.arange(3), True) is None


def test_names_come_by_how_often_they_occur():
    values = np.array([b"b"] * 3 + [b"a"] * 5 + [b"c"], object)
    assert dependence.make_grid(values, is_number=False).tolist() == [b"a", b"b", b"c"]
    many = np.arange(100) % 40
    assert len(dependence.make_grid(many, is_number=False)) == 12
