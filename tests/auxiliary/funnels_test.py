"""Losses of funnels and their gradients agree with NumPy; wrong settings are refused."""

import dataclasses

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from mtl import auxiliary, checks, heads
from mtl.auxiliary import row_losses
from tests.auxiliary import given

RANDOM = np.random.default_rng(2)
N = 40
CLICK = RANDOM.integers(-1, 2, N)
ORDER = np.where(CLICK == 1, RANDOM.integers(-1, 2, N), 0)
WEIGHT = RANDOM.uniform(0.5, 2, N).astype(np.float32)
TOWERS = RANDOM.normal(size=(N, 3)).astype(np.float32)
LOGITS = {name: RANDOM.normal(size=(N, 1)).astype(np.float32) for name in ("click", "order")}
LOGITS["click"][:4] = [[-100], [100], [-5], [5]]
LABELS = {"click": CLICK, "order": ORDER, "weight": WEIGHT}
HEADS = [heads.Binary(name="click", weight="weight"), heads.Binary(name="order", within="click")]
TASKS = {"task": "order", "propensity": "click"}
SEEN = (CLICK == 1) & (ORDER >= 0)
COUNTED = np.where(CLICK >= 0, WEIGHT, 0)


def _run(part, logits=LOGITS, given_heads=HEADS):
    """The loss of rows, the loss, and its gradients by the logits and the towers."""

    def build():
        towers = tf.constant(TOWERS)
        x = {name: tf.constant(value) for name, value in logits.items()}
        seen = dataclasses.replace(given.activations(towers, LABELS, given_heads), logits=x)
        part.check(seen.heads)
        rows = row_losses.compute([part], seen)[part.name]
        loss = rows.average()
        found = tf.gradients(loss, [*x.values(), towers], unconnected_gradients="zero")
        return rows.losses, loss, *found

    return given.evaluate(build)


def _losses(targets):
    return np.logaddexp(0, -(2 * targets - 1) * LOGITS["order"][:, 0])


def _inverse(most):
    return np.minimum(1 + np.exp(-LOGITS["click"][:, 0].astype(np.float64)), most)


@pytest.mark.medium
def test_inverse_propensity_is_the_weighted_mean_of_the_paper():
    most = 7.0
    rows, loss, by_click, by_order, _ = _run(auxiliary.InversePropensity(**TASKS, max_weight=most))
    expected = np.where(SEEN, _inverse(most) * _losses(ORDER), 0)
    np.testing.assert_allclose(rows, expected, rtol=1e-5)
    np.testing.assert_allclose(loss, (COUNTED * expected).sum() / COUNTED.sum(), rtol=1e-5)
    np.testing.assert_array_equal(by_click, 0)
    assert np.isfinite(by_order).all()
    np.testing.assert_array_equal(by_order[:, 0] != 0, SEEN)


@pytest.mark.medium
def test_normalised_weights_add_up_to_1():
    part = auxiliary.InversePropensity(**TASKS, normalizes=True)
    assert not part.are_rows_apart
    weights = np.where(SEEN, COUNTED * _inverse(20.0), 0)
    expected = (weights * _losses(ORDER)).sum() / weights.sum()
    np.testing.assert_allclose(_run(part)[1], expected, rtol=1e-5)


@pytest.mark.medium
def test_doubly_robust_is_what_is_imputed_and_what_corrects_it(monkeypatch):
    imputed = []
    compute = tf.nn.sigmoid_cross_entropy_with_logits

    def keep(labels, logits):
        imputed.append(logits)
        return compute(labels=labels, logits=logits)

    monkeypatch.setattr(tf.nn, "sigmoid_cross_entropy_with_logits", keep)
    part = auxiliary.DoublyRobust(**TASKS, layers=[], imputation_weight=0.5)

    def build():
        towers = tf.constant(TOWERS)
        x = {name: tf.constant(value) for name, value in LOGITS.items()}
        seen = dataclasses.replace(given.activations(towers, LABELS, HEADS), logits=x)
        rows = row_losses.compute([part], seen)[part.name].losses
        return rows, imputed[-1], *tf.gradients(rows, [*x.values(), towers])[1:]

    rows, guess, by_order, by_tower = given.evaluate(build)
    q, w = scipy.special.expit(guess), np.where(SEEN, _inverse(20.0), 0)
    expected = q * _losses(1) + (1 - q) * _losses(0)
    fit = np.logaddexp(0, -(2 * ORDER - 1) * guess)
    robust = expected + w * (_losses(ORDER) - expected)
    np.testing.assert_allclose(rows, robust + 0.5 * w * fit, rtol=1e-4, atol=1e-5)
    # Derived by hand. Unseen rows are drawn to the imputed q, and only seen rows train q.
    p = scipy.special.expit(LOGITS["order"][:, 0])
    np.testing.assert_allclose(by_order[:, 0], p - q + w * (q - ORDER), rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(np.abs(by_tower).sum(1) > 0, SEEN)


@pytest.mark.medium
def test_the_calibrator_counts_what_a_later_task_is_likelier():
    part = auxiliary.Calibrator(after={"order": "click"})
    of_all_rows = [HEADS[0], heads.Binary(name="order")]
    rows, loss, by_click, by_order, _ = _run(part, given_heads=of_all_rows)
    click, order = (scipy.special.expit(LOGITS[name][:, 0]) for name in ("click", "order"))
    above = np.maximum(order - click, 0)
    np.testing.assert_allclose(rows, above, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(loss, above.mean(), rtol=1e-5)
    assert part.weight == 0.6
    assert np.isfinite(by_click).all() and by_click.min() < 0 < by_order.max()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: auxiliary.InversePropensity(task="order", propensity="clik"),
            "InversePropensity.propensity must be one of click, order, size, other, no_click, got",
        ),
        (
            lambda: auxiliary.InversePropensity(task="click", propensity="order"),
            "InversePropensity.task must name a task with a space, got 'click'. Set the setting",
        ),
        (
            lambda: auxiliary.DoublyRobust(task="order", propensity="order"),
            "DoublyRobust.propensity must be another task, got 'order'",
        ),
        (
            lambda: auxiliary.DoublyRobust(**TASKS, normalizes=True),
            "DoublyRobust.normalizes must be False, got True",
        ),
        (
            lambda: auxiliary.Calibrator(after={"order": "size"}),
            "Calibrator.after must name a task with a head Binary, got 'size'. It is Regression.",
        ),
        (
            lambda: auxiliary.Calibrator(after={"order": "click"}),
            "Calibrator.after['order'] must name a task over the same rows as 'click', got",
        ),
        (
            lambda: auxiliary.InversePropensity(task="order", propensity="other"),
            "InversePropensity.propensity must predict a label that defines the space of 'order': ",
        ),
        (
            lambda: auxiliary.InversePropensity(task="order", propensity="no_click"),
            "InversePropensity.propensity must have positives that are the space of 'order', [1]",
        ),
        (
            lambda: auxiliary.InversePropensity(**TASKS, max_weight=0.5),
            "InversePropensity.max_weight must be at least 1, got 0.5",
        ),
    ],
)
def test_mistakes_are_one_line(make, told):
    known = {
        head.name: head
        for head in [
            *HEADS,
            heads.Regression(name="size"),
            heads.Binary(name="other"),
            heads.Binary(name="no_click", label="click", positive=[0], negative=[1]),
        ]
    }
    with pytest.raises(checks.UserError) as caught:
        make().check(known)
    assert str(caught.value).startswith(told)
