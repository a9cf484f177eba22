"""The areas under ROC and precision-recall curves against scikit-learn, and their bounds."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.heads import metrics, ranking

tf1 = tf.compat.v1
sklearn_metrics = pytest.importorskip("sklearn.metrics")


def stream(labels, logits, weights, num_batches=3):
    """The areas and their bounds, of rows that come in batches."""
    with tf.Graph().as_default(), tf1.Session() as session:
        shape = [None, *np.shape(logits)[1:]]
        y, z, w = (tf1.placeholder(tf.float32, shape) for _ in range(3))
        streamed = metrics.stream_sums(
            {"scores": ranking.stream_scores(z, w * y, w * (1 - y))},
            lambda sums: ranking.integrate_curves(sums["scores"]),
        )
        session.run(tf1.local_variables_initializer())
        for rows in np.array_split(np.arange(len(logits)), num_batches):
            feed = {y: labels[rows], z: logits[rows], w: weights[rows]}
            session.run(streamed["auc"][1], feed)
        return session.run({name: value for name, (value, _) in streamed.items()})


def exact(labels, logits, weights):
    """Return the areas that scikit-learn computes for finite scores."""
    return {
        "auc": sklearn_metrics.roc_auc_score(labels, logits, sample_weight=weights),
        "pr_auc": sklearn_metrics.average_precision_score(labels, logits, sample_weight=weights),
    }


def assert_exact(got, labels, logits, weights):
    for name, value in exact(labels, logits, weights).items():
        assert got[name] == pytest.approx(value, abs=1e-6), name
        assert got[f"{name}_error_bound"] == 0


def drawn(count, centre, spread):
    """Labels, logits that know a little of them, and weights."""
    rng = np.random.default_rng(0)
    y = rng.random(count) < 0.1
    y[:2] = True, False
    return y, (centre + spread * (rng.normal(size=count) + y)).astype("f"), rng.random(count)


@pytest.mark.medium
@pytest.mark.parametrize("centre", [0, -6, 40, 1e6])
@pytest.mark.parametrize("spread", [0, 1e-6, 1e-3, 0.01, 1, 300])
def test_areas_are_exact_at_every_scale(centre, spread):
    labels, logits, weights = drawn(3000, centre, spread)
    assert_exact(stream(labels, logits, weights), labels, logits, weights)


@pytest.mark.medium
@pytest.mark.parametrize("num_batches", [1, 2, 20])
def test_areas_do_not_depend_on_the_batches(num_batches):
    """Batches beyond the first buffer, and a buffer that is compacted several times."""
    labels, logits, weights = drawn(30000, -3, 0.02)
    assert_exact(stream(labels, logits, weights, num_batches), labels, logits, weights)


@pytest.mark.medium
def test_ties_zeros_of_both_signs_tiny_numbers_and_infinities():
    logits = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-30, np.inf, -np.inf, np.inf, 3e38, 0.0], "f")
    labels = np.array([1, 0, 1, 0, 1, 1, 0, 0, 1, 0])
    weights = np.arange(1, 11).astype("f")
    # scikit-learn refuses infinities and, below 1e-38, depends on how they are flushed: ranks do.
    ranks = np.unique(logits, return_inverse=True)[1]
    assert_exact(stream(labels, logits, weights, 1), labels, ranks, weights)


@pytest.mark.medium
def test_rows_that_weigh_nothing_and_one_row():
    labels, logits, weights = drawn(100, 0, 1)
    weights[::2] = 0
    got = stream(labels, logits, weights)
    assert_exact(got, labels[1::2], logits[1::2], weights[1::2])
    assert np.isnan(list(stream(labels[:1], logits[:1], weights[:1], 1).values())[0])
    assert all(np.isnan(v) for v in stream(labels, logits, 0 * weights).values())


@pytest.mark.medium
def test_classes_are_ranked_apart_and_those_of_one_label_left_out():
    rng = np.random.default_rng(0)
    labels = (rng.random((400, 4)) < [0.5, 0.1, 0.0, 1.0]).astype("f")
    logits = (rng.normal(-6, 1e-3, (400, 4)) + 1e-3 * labels).astype("f") * [1, -1, 1e3, 1]
    weights = rng.random((400, 4))
    logits = logits.astype("f")
    got = stream(labels, logits, weights)
    each = [exact(labels[:, c], logits[:, c], weights[:, c]) for c in (0, 1)]
    assert got["auc"] == pytest.approx(np.mean([one["auc"] for one in each]), abs=1e-6)
    precisions = [one["pr_auc"] for one in each]  # Without negatives it is 1, and defined.
    assert got["pr_auc"] == pytest.approx(np.mean([*precisions, 1.0]), abs=1e-6)


@pytest.mark.parametrize("order", ["drawn", "ascending"])
def test_more_scores_than_can_be_told_apart_stay_within_the_bound(order, monkeypatch):
    monkeypatch.setattr(ranking, "MAX_CELLS", 64)
    labels, logits, weights = drawn(9000, -6, 0.01)
    if order == "ascending":  # The first scores tell nothing about later scores.
        rows = np.argsort(logits)
        labels, logits, weights = labels[rows], logits[rows], weights[rows]
    got = stream(labels, logits, weights, 9)
    for name, value in exact(labels, logits, weights).items():
        assert 0 < got[f"{name}_error_bound"] < 0.2
        assert abs(got[name] - value) <= got[f"{name}_error_bound"]


@pytest.mark.medium
def test_the_bound_is_reached_by_the_worst_order_within_a_cell(monkeypatch):
    monkeypatch.setattr(ranking, "MAX_CELLS", 1)
    logits = np.linspace(1, 1.5, 10).astype("f")
    labels = np.repeat([0.0, 1.0], 5)
    got = stream(labels, logits, np.ones(10), 1)
    assert got["auc"] == got["auc_error_bound"] == 0.5
    assert got["pr_auc"] == got["pr_auc_error_bound"] == 0.5


@pytest.mark.medium
def test_histograms_of_many_classes_stay_within_the_bound():
    rng = np.random.default_rng(0)
    num_classes = ranking.MAX_EXACT_CLASSES + 1
    labels = (rng.random((60, num_classes)) < 0.4).astype("f")
    logits = (rng.normal(-6, 0.01, labels.shape) + 0.01 * labels).astype("f")
    logits[0, :3] = [np.inf, -np.inf, 1e30]
    got = stream(labels, logits, np.ones_like(labels))
    shown = np.clip(logits, -1e5, 1e5)
    each = [exact(labels[:, c], shown[:, c], None) for c in range(num_classes)]
    for name in ("auc", "pr_auc"):
        off = abs(got[name] - np.mean([one[name] for one in each]))
        assert 1e-3 < off <= got[f"{name}_error_bound"]


@pytest.mark.medium
def test_infinities_are_the_ends_of_a_histogram():
    num_classes = ranking.MAX_EXACT_CLASSES + 1
    logits = np.repeat(np.array([[np.inf], [-np.inf], [0.0]], "f"), num_classes, 1)
    labels = np.repeat(np.array([[1.0], [0.0], [0.0]]), num_classes, 1)
    assert stream(labels, logits, np.ones_like(labels))["auc"] == 1


def test_the_state_is_reset_and_in_no_checkpoint():
    with tf.Graph().as_default(), tf1.Session() as session:
        y, z = tf.constant([1.0, 0.0, 0.0]), tf.constant([0.5, 0.25, 0.75])
        streamed = metrics.stream_sums(
            {"scores": ranking.stream_scores(z, y, 1 - y)},
            lambda sums: ranking.integrate_curves(sums["scores"]),
        )
        value, update = streamed["auc"]
        for _ in range(2):
            session.run(tf1.local_variables_initializer())
            assert np.isnan(session.run(value))
            session.run(update)
            assert session.run(value) == 0.5
        assert not tf1.global_variables()
        assert not tf1.trainable_variables()
