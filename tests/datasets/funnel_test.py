"""A simulated funnel draws its rows as its docstring says."""

import numpy as np
import pytest
import scipy.special

from mtl import checks, spec
from mtl.datasets import funnel

pytestmark = pytest.mark.medium

MADE = funnel.Funnel(rows={"train": 20_000, "test": 1500}, click_bias=-1.0)
SPEC = spec.Spec(features={"x": ("float32", (8,))}, labels={"order": "int64"})


def _read(made, split="train"):
    found = list(made.records(split).batch(5000).as_numpy_iterator())
    return {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}


@pytest.fixture(scope="module")
def rows():
    return _read(MADE)


def test_probabilities_follow_from_x_and_the_market(rows):
    a, b = (rows["x"] @ MADE.vectors).T
    offsets = {b"DE": 0.0, b"FR": 0.5, b"US": -0.5}
    m = np.array([offsets[market] for market in rows["market"]])
    click, cart = scipy.special.expit(-1 + 1.5 * a + m), scipy.special.expit(b - m)
    high, low = (scipy.special.expit(b - 0.5 * a**2 + bias) for bias in (0.5, -1.5))
    np.testing.assert_allclose(rows["click_probability"], click, rtol=1e-4)
    order = cart * high + (1 - cart) * low
    np.testing.assert_allclose(rows["order_probability"], order, rtol=1e-4)
    np.testing.assert_allclose(rows["expected_seconds"], click * 10 * np.exp(b / 2), rtol=1e-4)
    first, second = MADE.vectors.T
    np.testing.assert_allclose([first @ first, second @ second, first @ second], [1, 1, 0.3])


def test_labels_are_drawn_as_said_and_come_one_after_the_other(rows):
    click = rows["click"] == 1
    for label, truth in (
        ("click", rows["click_probability"]),
        ("would_order", rows["order_probability"]),
        ("order", rows["click_probability"] * rows["order_probability"]),
    ):
        error = np.sqrt((truth * (1 - truth)).mean() / len(truth))
        assert abs(rows[label].mean() - truth.mean()) < 4 * error
    for label in ("cart", "order", "seconds"):
        assert (rows[label][~click] == 0).all() and rows[label].any()
    np.testing.assert_array_equal(rows["order"], rows["click"] * rows["would_order"])
    # Clicked rows have the stated probability of orders, too: given x, clicks do not matter.
    apart = rows["order"][click].mean() - rows["order_probability"][click].mean()
    assert abs(apart) < 0.03 < abs(rows["order_probability"][click].mean() - 0.5)
    apart = rows["seconds"].mean() / rows["expected_seconds"].mean()
    assert abs(apart - 1) < 0.1
    shares = [np.mean(rows["market"] == market.encode()) for market in funnel.MARKETS]
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.02)


def test_rows_depend_on_seed_split_and_number_alone(rows):
    small = _read(funnel.Funnel(rows={"train": 1200}, click_bias=-1.0))
    for name, values in small.items():
        np.testing.assert_array_equal(values, rows[name][:1200], err_msg=name)
    assert not np.array_equal(_read(MADE, "test")["x"][:1200], small["x"])


def test_scan_draws_the_same_rows(rows):
    where, first = next(iter(MADE.scan("train", SPEC)))
    assert where == "Funnel split 'train' row 0"
    assert first == {"x": rows["x"][0].tolist(), "order": int(rows["order"][0])}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"relatedness": 1.5}, "Funnel.relatedness must be in [-1, 1], got 1.5"),
        ({"dimension": 1}, "Funnel.dimension must be at least 2, got 1"),
        ({"rows": {"training": 5}}, "Did you mean 'train'?"),
        ({"bend": -1.0}, "Funnel.bend must be at least 0, got -1.0"),
    ],
)
def test_settings_that_are_none_are_refused(settings, told):
    with pytest.raises(checks.UserError) as caught:
        funnel.Funnel(**settings)
    assert told in str(caught.value)
