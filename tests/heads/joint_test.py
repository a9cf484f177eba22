"""Joint tasks: probabilities of chains and branches, by float64 in logarithms and by hand."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from mtl import checks, heads
from mtl.heads import objectives
from tests.auxiliary import given
from tests.heads import harness

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(1)
ENDS = np.array([-100.0, -40.0, -1.0, 0.0, 3.0, 40.0, 100.0])
PAIRS = np.stack(np.meshgrid(ENDS, ENDS), -1).reshape(-1, 2)
TREE = ["click", {"if": "cart", "then": "from_cart", "else": ["look", "at_once"]}]


def _joint(**settings):
    return heads.Joint(name="both", **{"of": ["click", "order"], **settings})


def _compose(head, logits):
    with tf.Graph().as_default(), tf1.Session() as session:
        made = head.compose({name: tf.constant(value) for name, value in logits.items()})
        return session.run(made)


def _log_odds(a, b):
    """Return log p - log(1 - p) in float64; 1 - p is the sum over both ways to fail."""
    log_p = scipy.special.log_expit
    one, other = log_p(-a), log_p(a) + log_p(-b)
    return log_p(a) + log_p(b) - np.logaddexp(one, other)


def test_the_log_odds_of_both_are_exact_where_products_of_probabilities_clip():
    a, b = PAIRS.T
    logits = {"click": a[:, None].astype("f"), "order": b[:, None].astype("f")}
    found = _compose(_joint(), logits)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, 0], _log_odds(a, b), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("target", [0.0, 1.0])
def test_loss_and_gradient_are_finite_and_right_at_logits_of_100(target):
    a, b = PAIRS.T
    with tf.Graph().as_default(), tf1.Session() as session:
        x = [tf.constant(value[:, None], tf.float32) for value in (a, b)]
        logits = _joint().compose(dict(zip(("click", "order"), x, strict=True)))
        losses = _joint().losses(tf.squeeze(logits, -1), tf.fill([len(a)], target))
        losses, gradients = session.run([losses, tf.gradients(losses, x)])
    log_p = scipy.special.log_expit(a) + scipy.special.log_expit(b)
    z = _log_odds(a, b)
    # -y log p - (1 - y) log(1 - p), as ESMM has it, and its derivatives by hand.
    log_q = -np.logaddexp(0, z)
    np.testing.assert_allclose(losses, -log_p if target else -log_q, rtol=1e-5, atol=1e-30)
    p, own = np.exp(log_p), [scipy.special.expit(-a), scipy.special.expit(-b)]
    for gradient, share in zip(gradients, own, strict=True):
        expected = -share if target else np.exp(np.log(np.maximum(share, 1e-300)) + z)
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(gradient[:, 0], expected, rtol=1e-4, atol=1e-30)
    assert p.min() < 1e-80 and p.max() == 1


def test_gradients_are_those_of_finite_differences():
    def total(*logits):
        first, second, third = (x[:, None] for x in logits)
        tree = objectives.branch_log_odds(first, second, third)
        both = objectives.join_log_odds(tree, first + second)
        return tf.reduce_sum(tf.nn.softplus(-both) + tf.nn.softplus(both) / 2)

    arrays = [np.array([-100.0, 100.0, 0.5, 100.0]), np.array([100.0, -100.0, -2.0, 100.0])]
    assert given.gradient_error(total, *arrays, np.array([-100.0, 3.0, 1.0, 100.0])) < 1e-6


def test_a_chain_with_a_branch_adds_up_its_paths():
    names = heads.Joint(name="both", of=TREE).composes
    assert names == ["click", "cart", "from_cart", "look", "at_once"]
    logits = {name: RANDOM.normal(size=(9, 1)) for name in names}
    p = {name: scipy.special.expit(value) for name, value in logits.items()}
    paths = p["cart"] * p["from_cart"] + (1 - p["cart"]) * p["look"] * p["at_once"]
    found = _compose(heads.Joint(name="both", of=TREE), logits)
    np.testing.assert_allclose(scipy.special.expit(found), p["click"] * paths, rtol=1e-10)


def test_a_row_outside_of_the_space_is_a_negative_even_without_a_label():
    """As where orders are recorded for clicks alone: CTCVR is known of every impression."""
    labels = {
        "order": np.array([-1, 0, -1, -1, 1, 1, 0]),
        "click": np.array([0, 0, 1, -1, 1, -1, -1]),
    }
    head = _joint(label="order", within="click")
    with tf.Graph().as_default(), tf1.Session() as session:
        fields = {name: tf.constant(value) for name, value in labels.items()}
        found = session.run(head.examples(tf.zeros([7, 1]), fields))
    np.testing.assert_array_equal(found.weights, [1, 1, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(found.targets * found.weights, [0, 0, 0, 0, 1, 1, 0])
    wrong = {"order": np.array([1]), "click": np.array([0])}
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        harness.evaluate(head, np.zeros([1, 1], "f"), wrong, 1)
    told = "head 'both': label 'order' must hold no outcome unless label 'click' is 1, got 1"
    assert harness.label_error(caught.value) == told == head.check({"order": 1, "click": 0})


@pytest.mark.parametrize(
    ("of", "told"),
    [
        ([], "must hold a task, got []"),
        ("click", "must be a list of tasks and branches, got 'click'"),
        (["click", "click"], "must hold each task once, except for the two sides of a branch"),
        ([["click"]], "must hold tasks, and branches of tasks, got ['click']"),
        ([{"if": "click"}], 'must be {"if": task, "then": ..., "else": ...} in a branch'),
        ([{"if": "a", "then": "a", "else": "b"}], "must hold each task once"),
        ([{"if": "a", "then": [], "else": "b"}], 'must be {"if": task, "then": ..., "else": ...}'),
    ],
)
def test_a_chain_that_is_none_is_refused(of, told):
    with pytest.raises(checks.UserError) as caught:
        _joint(of=of)
    assert told in str(caught.value)
