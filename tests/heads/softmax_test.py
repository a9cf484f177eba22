"""Losses and last layers for long tails against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, heads
from mtl.heads import classifiers, softmax
from mtl.optimization import regularization
from tests.heads import harness

tf1 = tf.compat.v1
COUNTS = [700, 90, 7]
RNG = np.random.default_rng(0)
LOGITS, Y = RNG.normal(size=(40, 3)), RNG.integers(0, 3, 40)


def make(objective, **settings):
    return heads.MultiClass(
        name="y", classes=3, objective=objective, **{"class_counts": COUNTS, **settings}
    )


def cross_entropy(logits, y):
    return np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(y)), y]


def adjusted(tau):
    return cross_entropy(LOGITS + tau * np.log(np.array(COUNTS) / 797), Y).mean()


def ldam(max_margin, scale):
    margins = np.array([n**-0.25 for n in COUNTS])
    margins *= scale * max_margin / margins.max()
    return cross_entropy(LOGITS - np.eye(3)[Y] * margins[Y][:, None], Y).mean()


def class_balanced(beta):
    weights = np.array([(1 - beta) / (1 - beta**n) for n in COUNTS])
    weights *= 797 / (weights * COUNTS).sum()
    return (weights[Y] * cross_entropy(LOGITS, Y)).mean()


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (softmax.CrossEntropy(), cross_entropy(LOGITS, Y).mean()),
        (softmax.CrossEntropy(margin=softmax.LogitAdjustment()), adjusted(1.0)),
        (softmax.CrossEntropy(margin=softmax.LogitAdjustment(tau=0.5)), adjusted(0.5)),
        (softmax.CrossEntropy(margin=softmax.LDAM()), ldam(0.5, 30.0)),
        (softmax.CrossEntropy(margin=softmax.LDAM(max_margin=0.2, scale=3.0)), ldam(0.2, 3.0)),
        (
            softmax.CrossEntropy(class_weights=softmax.EffectiveNumber(beta=0.99)),
            class_balanced(0.99),
        ),
        (softmax.CrossEntropy(class_weights=softmax.EffectiveNumber(beta=0.0)), None),
    ],
    ids=["plain", "balanced", "tau", "ldam", "ldam_small", "class_balanced", "beta_0"],
)
def test_losses_and_gradients(objective, expected):
    head = make(objective)
    expected = cross_entropy(LOGITS, Y).mean() if expected is None else expected
    loss, gradient = harness.loss(head, LOGITS, {"y": Y})
    assert loss == pytest.approx(expected, rel=1e-5)
    step = np.zeros_like(LOGITS)
    step[3, 1] = 1e-2
    ends = [harness.loss(head, LOGITS + sign * step, {"y": Y})[0] for sign in (1, -1)]
    assert gradient[3, 1] == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=1e-2, abs=1e-5)


def test_effective_numbers_of_the_paper():
    """E_n = (1 - beta^n) / (1 - beta) is n for beta -> 1 and 1 for beta = 0."""
    for beta, numbers in ((1 - 1e-12, COUNTS), (0.0, [1, 1, 1])):
        with tf.Graph().as_default(), tf1.Session() as session:
            weights = session.run(softmax.EffectiveNumber(beta=beta)(np.array(COUNTS, float)))
        ratios = weights[0] / weights
        np.testing.assert_allclose(ratios, np.array(numbers) / numbers[0], rtol=1e-3)
        assert np.dot(weights, COUNTS) == pytest.approx(sum(COUNTS))


def test_deferred_weights_start_at_their_step():
    weigh = softmax.EffectiveNumber(beta=0.999, start_step=10)
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.train.get_or_create_global_step()
        weights = weigh(np.array(COUNTS, float))
        values = []
        for at in (0, 9, 10):
            step.load(at, session)
            values.append(session.run(weights))
    np.testing.assert_array_equal(values[0], [1, 1, 1])
    np.testing.assert_array_equal(values[1], values[0])
    assert values[2][0] < 1 < values[2][2]


def test_the_shift_of_training_is_absent_from_predictions():
    labels = {"y": Y}
    plain, shifted = (
        make(softmax.CrossEntropy(margin=margin))
        for margin in (None, softmax.LogitAdjustment(tau=2.0))
    )
    assert harness.loss(plain, LOGITS, labels)[0] != harness.loss(shifted, LOGITS, labels)[0]
    got, expected = (harness.predict(head, LOGITS) for head in (shifted, plain))
    np.testing.assert_array_equal(got["probabilities"], expected["probabilities"])


def layer(classifier, tower, **values):
    """The logits for a tower, with variables set by the ends of their names."""
    with tf.Graph().as_default(), tf1.Session() as session:
        logits = classifier(tf.constant(tower, tf.float32), 3, 0.0)
        session.run(tf1.global_variables_initializer())
        variables = {v.op.name.rpartition("/")[2]: v for v in tf1.trainable_variables()}
        for name, value in values.items():
            variables[name].load(value, session)
        return session.run(logits), session.run(variables)


def test_scales_start_at_one_and_scale_the_bias_too():
    tower, bias = RNG.normal(size=(4, 5)), [0.5, -1.0, 0.0]
    offset = [0.0, 1.0, -0.5]
    kernel = RNG.normal(size=(5, 3))
    logits, _ = layer(classifiers.Scaled(), tower, kernel=kernel, bias=bias)
    np.testing.assert_allclose(logits, tower @ kernel + bias, rtol=1e-4, atol=1e-5)
    scaled, _ = layer(classifiers.Scaled(), tower, kernel=kernel, bias=bias, scale_offset=offset)
    np.testing.assert_allclose(scaled, logits * [1, 2, 0.5], rtol=1e-4, atol=1e-5)


def test_a_penalty_draws_scales_to_one_not_to_zero():
    penalty = regularization.Regularization(l2={"/scale_offset$": 0.5})
    with tf.Graph().as_default(), tf1.Session() as session:
        with tf1.variable_scope("head/y"):
            logits = classifiers.Scaled()(tf.ones([1, 2]), 3, 0.0)
        (offset,) = (v for v in tf1.trainable_variables() if "scale_offset" in v.name)
        (gradient,), _ = penalty([None], [offset])
        step = offset.assign_sub(gradient)
        session.run(tf1.global_variables_initializer())
        start = session.run(logits)
        offset.load([1.0, -1.0, 5.0], session)
        for _ in range(60):
            session.run(step)
        np.testing.assert_allclose(session.run(logits), start, rtol=1e-6)


def test_the_cosine_does_not_depend_on_lengths():
    tower, kernel = RNG.normal(size=(4, 5)), RNG.normal(size=(5, 3))
    logits, variables = layer(classifiers.Cosine(scale=2.0), tower, kernel=kernel)
    lengths = np.linalg.norm(tower, axis=1)[:, None] * np.linalg.norm(kernel, axis=0)
    np.testing.assert_allclose(logits, 2 * tower @ kernel / lengths, rtol=1e-4)
    assert set(variables) == {"kernel"}


def test_a_class_without_a_row_is_refused_where_its_share_matters():
    head = make(softmax.CrossEntropy(margin=softmax.LogitAdjustment()), class_counts=[5, 0, 3])
    with pytest.raises(checks.UserError, match="class 1 must have a row in the training split"):
        harness.loss(head, LOGITS, {"y": Y})


def test_margins_have_the_scale_of_the_classifier():
    objective = softmax.CrossEntropy(margin=softmax.LDAM(scale=30.0))
    make(objective, classifier=classifiers.Cosine(scale=30.0))
    make(objective)  # The scale of a linear classifier is unknown.
    message = r"MultiClass.objective.margin.scale of task 'y' must have the scale .* 5.0, got 30.0"
    with pytest.raises(checks.UserError, match=message):
        make(objective, classifier=classifiers.Cosine(scale=5.0))


@pytest.mark.parametrize(
    ("make_part", "message"),
    [
        (lambda: softmax.LogitAdjustment(tau=0), "LogitAdjustment.tau must be above 0, got 0"),
        (lambda: softmax.LDAM(scale=-1), "LDAM.scale must be above 0"),
        (lambda: softmax.EffectiveNumber(beta=1.0), r"EffectiveNumber.beta must be in \[0, 1\)"),
        (lambda: softmax.EffectiveNumber(start_step=-1), "start_step must be at least 0"),
        (lambda: softmax.CrossEntropy(focal_gamma=-1), "focal_gamma must be at least 0"),
        (lambda: softmax.CrossEntropy(margin=softmax.LDAM), "margin must be a part such as"),
        (lambda: classifiers.Cosine(scale=0), "Cosine.scale must be above 0"),
    ],
)
def test_wrong_settings(make_part, message):
    with pytest.raises(checks.UserError, match=message):
        make_part()
