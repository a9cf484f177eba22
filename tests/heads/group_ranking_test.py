"""Losses and metrics of ranking within groups against loops in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, heads, types
from mtl.heads import rank_losses
from tests.heads import by_hand, harness

pytestmark = pytest.mark.medium

tf1 = tf.compat.v1


def drawn(count=60, num_groups=12, seed=0, ties=True):
    """Draw keys in any order, scores with ties, labels and weights; some of the last two are 0."""
    random = np.random.default_rng(seed)
    scores = random.normal(size=count).astype("f")
    if ties:
        scores = np.round(scores * 2) / 2
    weights = np.where(random.random(count) < 0.1, 0, random.random(count)).astype("f")
    keys = random.integers(0, num_groups, count)
    return keys, scores, random.integers(0, 4, count), weights


def head(**settings):
    return heads.Ranking(name="y", group="query", weight="weight", cutoffs=[2], **settings)


def fields(keys, labels, weights):
    return {"query": keys, "y": labels, "weight": weights}


@pytest.mark.parametrize("gain", ["exponential", "linear"])
@pytest.mark.parametrize("kind", rank_losses.TYPES)
def test_losses_and_their_gradients_are_those_of_the_formulas(kind, gain):
    keys, scores, labels, weights = drawn(ties=kind == "lambdarank")
    ranking = head(loss_type=kind, gain=gain, temperature=0.5)
    found, gradient = harness.loss(ranking, scores[:, None], fields(keys, labels, weights))

    def expected(given):
        return by_hand.loss(kind, keys, given, labels, weights, gain, 0.5)

    assert found == pytest.approx(expected(scores.astype("d")), rel=1e-5)
    if kind == "lambdarank":  # Its weights are constants, so that its loss has other differences.
        assert abs(gradient).max() > 0
        return
    for row in range(0, 60, 7):
        step = np.zeros(60)
        step[row] = 1e-4
        change = expected(scores + step) - expected(scores - step)
        assert gradient[row, 0] == pytest.approx(change / 2e-4, abs=1e-5)


def test_the_gradient_of_lambdarank_is_that_of_weighted_pairs():
    """The gradient of two rows is |change of NDCG| sigmoid(s_j - s_i)."""
    ranking = heads.Ranking(name="y", group="query", loss_type="lambdarank")
    labels = {"query": np.array([1, 1]), "y": np.array([0, 1])}
    loss, gradient = harness.loss(ranking, [[1.0], [0.5]], labels)
    change = 1 - 1 / np.log2(3)
    assert loss == pytest.approx(change * np.log1p(np.exp(0.5)), rel=1e-6)
    slope = change / (1 + np.exp(-0.5))
    np.testing.assert_allclose(gradient[:, 0], [slope, -slope], rtol=1e-6)
    untrained = harness.loss(ranking, [[0.0], [0.0]], labels)[1]
    assert untrained[1, 0] < 0 < untrained[0, 0]


def test_rows_of_equal_scores_and_labels_have_ranks_of_their_own():
    """LambdaRank of an untrained model: NDCG changes by swaps of ranks 1, 2, 3 and 4."""
    ranking = heads.Ranking(name="y", group="query", loss_type="lambdarank")
    labels = {"query": np.zeros(4, int), "y": np.array([1, 0, 1, 0])}
    loss, _ = harness.loss(ranking, np.zeros([4, 1]), labels)
    discounts = 1 / np.log2(1 + np.arange(1, 5))
    changes = discounts[:2, np.newaxis] - discounts[2:]  # Rows of label 1 rank last.
    expected = changes.sum() / discounts[:2].sum() * np.log(2)
    assert loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["ranknet", "softmax"])
def test_slices_of_whole_groups_add_up(kind):
    keys, scores, labels, weights = drawn()
    order = np.argsort(keys, kind="stable")
    keys, scores, labels, weights = (x[order] for x in (keys, scores, labels, weights))
    cut = int(np.searchsorted(keys, 5))
    ranking = head(loss_type=kind)

    def run(rows):
        given = fields(keys[rows], labels[rows], weights[rows])
        loss, _ = harness.loss(ranking, scores[rows, None], given)
        with tf.Graph().as_default(), tf1.Session() as session:
            tensors = {name: tf.constant(value) for name, value in given.items()}
            return loss, session.run(ranking.label_weight(tensors))

    (whole, total), *parts = (run(s) for s in (slice(None), slice(cut), slice(cut, None)))
    assert whole == pytest.approx(sum(loss * part for loss, part in parts) / total, rel=1e-5)
    assert total == pytest.approx(sum(part for _, part in parts), rel=1e-5)


@pytest.mark.parametrize("kind", rank_losses.TYPES)
def test_a_batch_in_which_nothing_can_be_ranked_has_no_loss(kind):
    labels = {"query": np.array([1, 1, 2]), "y": np.array([1, 1, 3])}
    ranking = heads.Ranking(name="y", group="query", loss_type=kind)
    loss, gradient = harness.loss(ranking, [[1.0], [2.0], [1e30]], labels)
    assert loss == 0
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("gain", ["exponential", "linear"])
def test_metrics_are_those_of_whole_groups_whatever_the_batches(gain):
    keys, scores, labels, weights = drawn()
    names = np.array([f"user {key}" for key in keys], object)
    expected = by_hand.metrics(keys, scores, labels, weights, 2, gain)
    for kind in rank_losses.TYPES:
        ranking = head(gain=gain, loss_type=kind)
        found = harness.evaluate(ranking, scores[:, None], fields(names, labels, weights))
        loss = by_hand.loss(kind, keys, scores.astype("d"), labels, weights, gain)
        assert found["average_loss"] == pytest.approx(loss, rel=1e-6), kind
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, abs=1e-6), name


def test_gauc_of_a_binary_head_is_not_the_mean_over_batches():
    keys, scores, labels, weights = drawn(200, num_groups=50)
    binary = heads.Binary(name="y", group="query", weight="weight")
    given = fields(keys, (labels > 1).astype("i8"), weights)
    found = harness.evaluate(binary, scores[:, None], given, num_batches=40)
    value = by_hand.metrics(keys, scores, labels > 1, weights, 2)["gauc"]
    assert found["gauc"] == pytest.approx(value, abs=1e-6)


def test_large_groups_of_equal_scores_have_exact_reciprocal_ranks():
    """Among n equal scores with r hits, the first hit has the mean rank (n + 1) / (r + 1)."""
    count = 5000
    labels = (np.arange(count) % 1250 == 0).astype("i8")
    given = {"query": np.zeros(count, "i8"), "y": labels}
    ranking = heads.Ranking(name="y", group="query", cutoffs=[100])
    found = harness.evaluate(ranking, np.zeros([count, 1], "f"), given)
    # The chance that no hit is among the first x is a product of shares.
    chances = np.cumprod(np.concatenate([[1], 1 - 4 / (count - np.arange(count - 4))]))
    first = chances[:-1] - chances[1:]
    expected = (first / np.arange(1, len(first) + 1)).sum()
    assert found["mrr"] == pytest.approx(expected, abs=1e-6)
    assert found["recall_at_100"] == pytest.approx(100 / count)
    assert found["gauc"] == 0.5


def test_a_nan_makes_nan_of_all_metrics():
    given = {"query": np.array([1, 1, 1]), "y": np.array([0, 1, 2])}
    ranking = heads.Ranking(name="y", group="query")
    found = harness.evaluate(ranking, np.array([[1.0], [np.nan], [0.0]], "f"), given, 1)
    assert found.pop("nan_predictions") == 1
    assert all(np.isnan(value) for value in found.values())


def test_a_row_without_a_group_is_named():
    message = "head 'y': label 'query' must name the group of a labelled row, got -1"
    ranking = heads.Ranking(name="y", group="query")
    assert ranking.check({"y": 1, "query": -1}) == message
    assert ranking.check({"y": -1, "query": -1}) is None
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        harness.loss(ranking, [[0.0]], {"query": np.array([-1]), "y": np.array([1])})
    assert harness.label_error(caught.value) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss_type": "listnet"}, "Ranking.loss_type of task 'y' must be one of"),
        ({"gain": "square"}, "Ranking.gain of task 'y' must be one of exponential, linear"),
        ({"temperature": 0}, "Ranking.temperature of task 'y' must be above 0"),
        ({"cutoffs": [0]}, "Ranking.cutoffs of task 'y' must be"),
        ({"group": 3}, "Ranking.group of task 'y' must name a label field"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(checks.UserError, match=message):
        heads.Ranking(**{"name": "y", "group": "query", **settings})


def test_what_needs_the_loss_of_each_row_knows_that_there_is_none():
    assert not isinstance(heads.Ranking(name="y", group="query"), types.ExampleHead)
    assert not isinstance(heads.Retrieval(name="y", item="item"), types.ExampleHead)
