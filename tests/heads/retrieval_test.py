"""In-batch softmax and ranks among all items against loops in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, heads
from tests.heads import harness

pytestmark = pytest.mark.medium

COUNTS = {0: 50, 1: 20, 2: 20, 3: 5, 4: 5}


def drawn(count=24, seed=0):
    random = np.random.default_rng(seed)
    items, queries = random.integers(0, 6, count), random.integers(0, 8, count)
    vectors = random.normal(size=(count, 8)).astype("f")
    vectors[:, 4:] = random.normal(size=(6, 4))[items]
    labels = {"click": random.integers(-1, 2, count), "item": items, "user": queries}
    return vectors, {**labels, "weight": random.random(count).astype("f")}


def head(**settings):
    settings = {"normalizes": False, "temperature": 0.5, **settings}
    return heads.Retrieval(name="found", label="click", item="item", weight="weight", **settings)


def loss_by_hand(vectors, labels, counts, query):
    rows = np.flatnonzero(labels["click"] > 0)
    labels = {**labels, "weight": labels["weight"].astype("d")}
    total = 0.0
    for i in rows:
        terms = {}
        for j in rows:
            same = labels["item"][i] == labels["item"][j]
            same |= bool(query) and labels["user"][i] == labels["user"][j]
            if i != j and same:
                continue
            score = vectors[i, :4] @ vectors[j, 4:] / 0.5
            if counts:  # An item that was never counted is taken for one that was seen once.
                share = counts.get(int(labels["item"][j]), 1) / sum(counts.values())
                score -= np.log(share)
            terms[j] = score
        total += labels["weight"][i] * (np.log(np.exp(list(terms.values())).sum()) - terms[i])
    return total / labels["weight"][rows].sum()


@pytest.mark.parametrize("query", [None, "user"])
@pytest.mark.parametrize("counts", [None, COUNTS])
def test_the_loss_is_that_of_the_formula(query, counts):
    vectors, labels = drawn()
    found = head(query=query, corrects_popularity=bool(counts), item_counts=counts)

    def expected(given):
        return loss_by_hand(given, labels, counts, query)

    loss, gradient = harness.loss(found, vectors, labels)
    assert loss == pytest.approx(expected(vectors.astype("d")), rel=1e-5)
    for row, column in ((0, 1), (3, 6), (7, 7), (12, 2)):
        step = np.zeros(vectors.shape)
        step[row, column] = 1e-4
        change = expected(vectors + step) - expected(vectors - step)
        assert gradient[row, column] == pytest.approx(change / 2e-4, abs=1e-5)


def test_names_of_items_are_counted_alike():
    vectors, labels = drawn()
    plain = head(item_counts=COUNTS)
    named = head(item_counts={f"item {item}": count for item, count in COUNTS.items()})
    names = np.array([f"item {item}" for item in labels["item"]], object)
    expected, _ = harness.loss(plain, vectors, labels)
    found, _ = harness.loss(named, vectors, {**labels, "item": names})
    assert found == pytest.approx(expected, rel=1e-6)


def test_items_are_counted_where_the_label_is_above_0():
    ((_, accumulator),) = head().accumulators().items()
    for rows in ([5, 5, 7], [7, 7, 9]):
        batch = {"item": tf.constant(rows, tf.int64), "click": tf.constant([1.0, np.nan, 2.0])}
        accumulator.update(batch)
    assert accumulator.save("", "") == {"items": [5, 7, 9], "counts": [1, 2, 1]}
    assert not head(item_counts=COUNTS).accumulators()


def test_metrics_rank_each_item_among_all_of_the_split():
    vectors, labels = drawn(300)
    rows = np.flatnonzero(labels["click"] > 0)
    items = {item: vectors[labels["item"] == item][0, 4:] for item in range(6)}
    items[3] = items[2]  # Two items of equal scores are in no order.
    vectors[:, 4:] = np.stack([items[item] for item in labels["item"]])
    found = harness.evaluate(head(cutoffs=[1, 3], item_counts=COUNTS), vectors, labels)
    names, sums = ["average_loss", "mrr", "recall_at_1", "recall_at_3"], np.zeros(4)
    for i in rows:
        scores = np.array([vectors[i, :4].astype("d") @ items[item] for item in range(6)])
        own = scores[labels["item"][i]]
        above, level = (scores > own + 1e-9).sum(), (abs(scores - own) < 1e-9).sum()
        ranks = above + 1 + np.arange(level)
        loss = np.log(np.exp((scores - own) / 0.5).sum())
        sums += labels["weight"][i] * np.array(
            [loss, np.mean(1 / ranks), np.mean(ranks <= 1), np.mean(ranks <= 3)]
        )
    expected = sums / labels["weight"][rows].sum()
    np.testing.assert_allclose([found[name] for name in names], expected, rtol=1e-5)
    assert found["ranked_items"] == 6


def test_rows_that_are_no_hits_change_nothing_and_nothing_has_no_loss():
    vectors, labels = drawn()
    expected, _ = harness.loss(head(item_counts=COUNTS), vectors, labels)
    rows = labels["click"] > 0
    some = {name: value[rows] for name, value in labels.items()}
    assert harness.loss(head(item_counts=COUNTS), vectors[rows], some)[0] == pytest.approx(expected)
    vectors[~rows] = np.nan
    loss, gradient = harness.loss(head(item_counts=COUNTS), vectors, labels)
    assert loss == pytest.approx(expected)
    np.testing.assert_array_equal(gradient[~rows], 0)
    none = {**labels, "click": np.zeros(24, "i8")}
    assert harness.loss(head(item_counts=COUNTS), vectors, none)[0] == 0


def test_vectors_of_length_1_and_their_score():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        normal = head(normalizes=True)
        logits = normal.logits(tf.constant([[3.0, 4.0, 0.0, 2.0]]))
        found = session.run(normal.predictions(logits))
    np.testing.assert_allclose(found["query"], [[0.6, 0.8]], rtol=1e-6)
    np.testing.assert_allclose(found["item"], [[0.0, 1.0]], rtol=1e-6)
    np.testing.assert_allclose(found["score"], [0.8], rtol=1e-6)


def test_mistakes():
    with pytest.raises(checks.UserError, match="Retrieval.temperature of task 'y' must be above"):
        heads.Retrieval(name="y", item="item", temperature=0)
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match="hold two vectors"):
        head().logits(tf.zeros([2, 5]))
    message = "head 'found': label 'item' must name the group of a labelled row, got -1"
    assert head().check({"click": 1, "item": -1}) == message
    assert head().check({"click": 0, "item": -1}) is None
