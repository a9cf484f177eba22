"""Scores of weights against NumPy, and against the loss itself."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.sparsity import criteria

RANDOM = np.random.default_rng(0)
WEIGHTS, GRADIENT, TOTAL = (RANDOM.normal(size=[4, 3]).astype(np.float32) for _ in range(3))


def _seen(total=TOTAL):
    return criteria.Seen("w", tf.constant(WEIGHTS), tf.constant(GRADIENT), tf.constant(total))


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (criteria.Magnitude(), np.abs(WEIGHTS)),
        (criteria.Snip(), np.abs(WEIGHTS * GRADIENT)),
        (criteria.Taylor(momentum=0.8), 0.8 * TOTAL + 0.2 * (WEIGHTS * GRADIENT) ** 2),
        (criteria.Movement(), TOTAL - WEIGHTS * GRADIENT),
    ],
)
def test_scores_equal_numpy(part, expected):
    np.testing.assert_allclose(part.scores(_seen()), expected, rtol=1e-6)
    if part.gathers:
        np.testing.assert_allclose(part.gather(_seen()), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [[4, 3], [2, 2, 4, 3]])
def test_wanda_equals_numpy(shape):
    weights, total, inputs = RANDOM.normal(size=shape), RANDOM.random(4), RANDOM.random(4)
    given = (tf.constant(weights), None, tf.constant(total), tf.constant(inputs))
    found = criteria.Wanda(momentum=0.7).scores(criteria.Seen("w", *given))
    expected = np.abs(weights) * np.sqrt(0.7 * total + 0.3 * inputs)[:, np.newaxis]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert criteria.Wanda().total_shape(shape) == [4]


def test_snip_is_the_change_of_the_loss_by_a_factor_of_the_weight():
    """|dL(c * w) / dc| at c = 1, by finite differences: the paper's definition."""
    x = RANDOM.normal(size=[5, 4])

    def loss(weights):
        return np.log(np.cosh(x @ weights)).sum()

    gradient = x.T @ np.tanh(x @ WEIGHTS)
    given = _seen()._replace(gradient=tf.constant(gradient, tf.float32))
    found, step = np.asarray(criteria.Snip().scores(given)), 1e-5
    for place in np.ndindex(*WEIGHTS.shape):
        more, less = WEIGHTS.astype(np.float64), WEIGHTS.astype(np.float64)
        more[place] *= 1 + step
        less[place] *= 1 - step
        slope = (loss(more) - loss(less)) / (2 * step)
        assert found[place] == pytest.approx(abs(slope), rel=1e-4, abs=1e-6)


def test_movement_is_high_where_descent_moves_weights_away_from_zero():
    score = np.asarray(criteria.Movement().scores(_seen(np.zeros_like(TOTAL))))
    grows = np.abs(WEIGHTS - 1e-3 * GRADIENT) > np.abs(WEIGHTS)
    np.testing.assert_array_equal(score > 0, grows)


def test_a_draw_depends_on_the_run_and_the_name_alone():
    def draw(name, seed, step):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.compat.v1.set_random_seed(seed)
            tf.compat.v1.train.create_global_step()
            session.run(tf.compat.v1.train.get_global_step().assign(step))
            seen = criteria.Seen(name, tf.zeros([4, 3]), None, None)
            return session.run(criteria.Random().scores(seen))

    np.testing.assert_array_equal(draw("w", 1, 0), draw("w", 1, 9))
    assert (draw("w", 1, 0) != draw("v", 1, 0)).any()
    assert (draw("w", 1, 0) != draw("w", 2, 0)).any()


def test_settings():
    with pytest.raises(checks.UserError, match=r"Wanda.momentum must be in \[0, 1\), got -1"):
        criteria.Wanda(momentum=-1)
    with pytest.raises(checks.UserError, match=r"Taylor.momentum must be in \[0, 1\), got 1"):
        criteria.Taylor(momentum=1.0)


def _of_tasks(shape, tasks=3):
    """The scores of tasks for two variables, the second of which one task alone reads."""
    shared, own = RANDOM.random([tasks, *shape]), RANDOM.random([tasks, 5, 2])
    own[1:] = 0
    return [shared.astype(np.float32), own.astype(np.float32)]


@pytest.mark.parametrize("is_global", [False, True])
def test_the_union_of_what_tasks_mark_is_kept(is_global):
    """As each task marks its best k, for the least k whose union is large enough."""
    scores = _of_tasks([6, 4])
    merged = criteria.TaskSaliency().merge(list(map(tf.constant, scores)), is_global)
    flat = [own.reshape([3, -1]) for own in scores]
    groups = [np.concatenate(flat, 1)] if is_global else flat
    found = [own.numpy().ravel() for own in merged]
    found = [np.concatenate(found)] if is_global else found
    for own, got in zip(groups, found, strict=True):
        best = [[int(i) for i in np.argsort(-task) if task[i] > 0] for task in own]
        for wanted in range(1, len(got)):
            unions = [{i for task in best for i in task[:k]} for k in range(own.shape[1] + 1)]
            k = next((k for k, union in enumerate(unions) if len(union) >= wanted), None)
            if k is None:
                continue
            kept = set(np.argsort(-got, kind="stable")[:wanted].tolist())
            assert unions[k - 1] <= kept <= unions[k]


def test_the_sum_does_not_depend_on_the_size_of_a_loss():
    scores = _of_tasks([6, 4])
    part = criteria.TaskSaliency(combine="sum")
    expected = part.merge(list(map(tf.constant, scores)), False)
    totals = sum(own.reshape([3, -1]).sum(1) for own in scores)
    np.testing.assert_allclose(expected[0], np.einsum("t,tij->ij", 1 / totals, scores[0]), 1e-5)
    scaled = [own * np.array([1, 1000, 0.01], "f")[:, None, None] for own in scores]
    for got, wanted in zip(
        part.merge(list(map(tf.constant, scaled)), False), expected, strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_scores_of_tasks_are_those_of_snip():
    given = criteria.Seen("w", tf.constant(WEIGHTS), None, None, None, {"a": GRADIENT, "b": None})
    found = criteria.TaskSaliency().task_scores(given)
    np.testing.assert_allclose(found, [np.abs(WEIGHTS * GRADIENT), np.zeros_like(WEIGHTS)])
    with pytest.raises(checks.UserError, match=r"TaskSaliency.combine must be one of"):
        criteria.TaskSaliency(combine="max")
