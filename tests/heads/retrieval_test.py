"""In-batch softmax and ranks among all items against loops in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, heads
from mtl.data import drawn_items
from tests.heads import harness

tf1 = tf.compat.v1
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
            if counts:  # An item without a count has a count of 1.
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


def fitted_with_drawn(counts, tmp_path, power=0.0, **settings):
    """A head that knows these counts of the items to draw, and draws none itself."""
    negatives = drawn_items.DrawnItems(num=8, features=["item"], power=power)
    found = head(negatives=negatives, **settings)
    ((name, accumulator),) = found.negatives.accumulators("found", "item").items()
    rows = {"item": tf.repeat(tf.constant(list(counts), tf.int64), list(counts.values()))}
    accumulator.update(rows)
    statistics = features.statistics.Statistics(
        directory=str(tmp_path), entries={name: accumulator.save(str(tmp_path), name)}
    )
    return found.fitted(statistics)


@pytest.mark.parametrize("query", [None, "user"])
def test_drawn_items_are_negatives_by_their_share_of_the_mixture(query, tmp_path):
    vectors, labels = drawn(count=32)
    labels["click"][24:] = -1  # The last eight are drawn; what stands in their row tells nothing.
    keys, labels["item"][24:] = labels["item"][24:].copy(), -1
    labels["found/drawn"] = np.r_[np.full(24, -1), keys]
    shares = {item: count**0.5 for item, count in COUNTS.items()}
    shares = {item: share / sum(shares.values()) for item, share in shares.items()}
    found = fitted_with_drawn(COUNTS, tmp_path, 0.5, query=query, item_counts=COUNTS)
    rows = np.flatnonzero(labels["click"] > 0)

    def expected(given):
        total, weights = 0.0, labels["weight"].astype("d")
        for i in rows:
            terms = {}
            for j in [*rows, *range(24, 32)]:
                item = keys[j - 24] if j >= 24 else labels["item"][j]
                same = labels["item"][i] == item
                same |= bool(query) and j < 24 and labels["user"][i] == labels["user"][j]
                if i != j and same:
                    continue
                times = len(rows) * COUNTS.get(int(item), 1) / 100 + 8 * shares.get(int(item), 0)
                terms[j] = given[i, :4] @ given[j, 4:] / 0.5 - np.log(times)
            total += weights[i] * (np.log(np.exp(list(terms.values())).sum()) - terms[i])
        return total / weights[rows].sum()

    loss, gradient = harness.loss(found, vectors, labels)
    assert loss == pytest.approx(expected(vectors.astype("d")), rel=1e-5)
    np.testing.assert_array_equal(gradient[24:, :4], 0)
    for row, column in ((rows[0], 1), (rows[-1], 6), (25, 7)):
        step = np.zeros(vectors.shape)
        step[row, column] = 1e-4
        change = expected(vectors + step) - expected(vectors - step)
        assert gradient[row, column] == pytest.approx(change / 2e-4, abs=1e-5)


def test_batches_stay_without_drawn_items():
    batches = tf.data.Dataset.range(1)
    assert head().add_rows(batches, spec=None, reading=None) is batches


def test_the_sum_over_drawn_items_is_that_over_all_items_in_the_mean(tmp_path):
    """The sum of a single row, if every item is drawn exactly as often as expected."""
    count, random = 1000, np.random.default_rng(1)
    found = fitted_with_drawn(COUNTS, tmp_path, 1.0, item_counts=COUNTS)
    scores = random.normal(size=5)
    items = np.repeat(range(5), [10 * number for number in COUNTS.values()])
    vectors = np.zeros((count + 1, 8), "f")
    vectors[0, 0], vectors[1:, 4], vectors[0, 4] = 0.5, scores[items], scores[1]
    labels = {
        "click": np.r_[1, np.full(count, -1)],
        "item": np.r_[1, np.full(count, -1)],
        "weight": np.ones(count + 1, "f"),
        "found/drawn": np.r_[-1, items],
    }
    loss, _ = harness.loss(found, vectors, labels)
    times = (count + 1) * COUNTS[1] / 100
    others = np.exp(np.delete(scores, 1)).sum()
    # The term of the row's own item is divided by its expected count, as in both papers.
    expected = np.log1p(times * others / np.exp(2 * 0.5 * scores[1]))
    assert loss == pytest.approx(expected, abs=0.01)


def test_frequencies_are_those_of_the_paper_and_come_near_the_rates():
    rates, random = np.array([0.9, 0.5, 0.1, 0.02]), np.random.default_rng(0)
    streamed = heads.StreamedFrequency(rate=0.02, buckets=1000, hashes=2)
    last, gaps, times, found = np.zeros(4), np.zeros(4), np.zeros(4), []
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.train.get_or_create_global_step()
        keys, counts = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.bool, [None])
        log_share = streamed.update(keys, counts)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies([log_share, *updates]):
            following = step.assign_add(1)
        session.run(tf1.global_variables_initializer())
        for number in range(1, 2001):
            come = np.flatnonzero(random.random(4) < rates)
            for item in come:
                gap, times[item] = number - last[item], times[item] + 1
                rate = max(0.02, 1 / times[item])
                gaps[item] = (1 - rate) * gaps[item] + rate * gap
                last[item] = number
            # Twice in a batch is once, and a row that does not count leaves no trace.
            given = np.r_[come, come, 0, 1, 2, 3]
            feed = {keys: 1000 + given, counts: np.arange(len(given)) < 2 * len(come)}
            *_, shares = session.run([following, log_share], feed)
            np.testing.assert_allclose(np.exp(-shares[: len(come)]), gaps[come], rtol=1e-3)
            found.append(gaps.copy())
    np.testing.assert_allclose(np.mean(found[500:], 0), 1 / rates, rtol=0.25)


def test_items_that_meet_in_a_bucket_keep_the_larger_gap():
    streamed = heads.StreamedFrequency(buckets=2, hashes=8)
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.train.get_or_create_global_step()
        keys = tf1.placeholder(tf.int64, [None])
        log_share = streamed.update(keys, tf.ones_like(keys, tf.bool))
        session.run(tf1.global_variables_initializer())
        for number in range(1, 101):  # Item 7 comes with each step, item 8 in the last alone.
            session.run(step.assign(number - 1))
            given = [7, 8] if number == 100 else [7]
            updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
            shares, *_ = session.run([log_share, *updates], {keys: given})
    assert np.exp(shares[0]) == pytest.approx(1)
    assert np.exp(shares[1]) == pytest.approx(1 / 100)


def test_all_buckets_of_all_hashes_have_int32_numbers():
    heads.StreamedFrequency(buckets=2**30, hashes=1)
    with pytest.raises(checks.UserError, match="be at most 2147483646 for all hashes together"):
        heads.StreamedFrequency(buckets=2**30, hashes=2)


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


def test_items_that_are_no_text_are_not_mixed_up():
    ((_, accumulator),) = head().accumulators().items()
    accumulator.update({"item": tf.constant([b"\xff", b"\xfe"]), "click": tf.ones([2])})
    with pytest.raises(checks.UserError, match=r"^label 'item' must be UTF-8, got b'"):
        accumulator.save("", "")


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


@pytest.mark.parametrize("normalizes", [True, False])
def test_the_order_of_rows_changes_no_metric_if_the_features_of_an_item_vary(normalizes):
    vectors, labels = drawn(300)
    vectors[:, 4:] = vectors[:, 4:] + np.random.default_rng(1).normal(size=(300, 4))
    found = head(item_counts=COUNTS, normalizes=normalizes, cutoffs=[1, 3])
    metrics = harness.evaluate(found, vectors, labels)
    order = np.arange(300)[::-1]
    turned = {name: value[order] for name, value in labels.items()}
    other = harness.evaluate(found, vectors[order], turned)
    assert other == pytest.approx(metrics, rel=1e-6) and metrics["recall_at_3"] < 1


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


def test_vectors_keep_their_lengths_unless_they_are_to_be_normalised():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        plain = head(normalizes=False)
        logits = plain.logits(tf.constant([[3.0, 4.0, 0.0, 2.0]]))
        found = session.run(plain.predictions(logits))
    np.testing.assert_array_equal(found["query"], [[3, 4]])
    np.testing.assert_array_equal(found["item"], [[0, 2]])
    np.testing.assert_allclose(found["score"], [8], rtol=1e-6)


def test_mistakes():
    with pytest.raises(checks.UserError, match="Retrieval.temperature of task 'y' must be above"):
        heads.Retrieval(name="y", item="item", temperature=0)
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match="hold two vectors"):
        head().logits(tf.zeros([2, 5]))
    message = "head 'found': label 'item' must name the group of a labelled row, got -1"
    assert head().check({"click": 1, "item": -1}) == message
    assert head().check({"click": 0, "item": -1}) is None
