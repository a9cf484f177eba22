"""Metrics of slices, against scikit-learn on the rows that are cut out by hand."""

import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf
from scipy import stats

from mtl import checks, heads
from mtl.heads import metrics, slice_metrics, slices

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(4)
N = 300
FIELDS = {
    "country": np.array([b"DE", b"US", b"FR", b""], object)[RANDOM.integers(0, 4, N)],
    "age": np.where(RANDOM.random(N) < 0.1, np.nan, RANDOM.uniform(10, 90, N)).astype("f"),
    "level": RANDOM.integers(-1, 3, N),
}
CLICK = RANDOM.integers(-1, 2, N)
LABELS = {
    "click": CLICK,
    "order": np.where(CLICK == 1, RANDOM.integers(-1, 2, N), 0),
    "kinds": [list(RANDOM.integers(0, 3, n)) for n in RANDOM.integers(0, 3, N)],
    "weight": RANDOM.uniform(0.5, 2, N).astype("f"),
}
HEADS = [
    heads.Binary(name="order", within="click", weight="weight"),
    heads.MultiLabel(name="kinds", classes=3),
]
LOGITS = {h.name: RANDOM.normal(size=(N, h.size)).round(1).astype("f") for h in HEADS}
SLICES = {"country": ["DE", "IT"], "age": [(30.5, 60)]}
ROWS = {
    "country=DE": FIELDS["country"] == b"DE",
    "country=IT": np.zeros(N, bool),
    "age=30.5..60": (FIELDS["age"] >= 30.5) & (FIELDS["age"] < 60),
}
METRICS = ("auc", "pr_auc", "average_loss", "accuracy", "normalized_entropy")


@pytest.fixture(scope="module")
def found():
    """All metrics of all slices, over batches of different sizes."""
    with tf.Graph().as_default(), tf1.Session() as session:
        one = (FIELDS, LABELS, LOGITS)
        batches = [np.arange(0, 7), np.arange(7, 250), np.arange(250, N)]
        placed, feeds = _place(one, batches)
        made = slice_metrics.build_metrics(SLICES, HEADS, placed[2], placed[0], placed[1])
        session.run(tf1.local_variables_initializer())
        for feed in feeds:
            session.run([update for _, update in made.values()], feed)
        return session.run({name: value for name, (value, _) in made.items()})


def _place(trees, batches):
    """Return placeholders for the fields, and the values to feed for each of the batches."""
    placed, feeds = [], [{} for _ in batches]
    for tree in trees:
        tensors = {}
        for name, values in tree.items():
            if isinstance(values, list):
                whole = tf.ragged.constant(values, tf.int64, row_splits_dtype=tf.int64)
                rows = tf1.placeholder(tf.int64, [None])
                tensors[name] = tf.gather(whole, rows)
                for feed, batch in zip(feeds, batches, strict=True):
                    feed[rows] = batch
                continue
            dtype = tf.string if values.dtype == object else values.dtype
            tensors[name] = tf1.placeholder(dtype, [None, *values.shape[1:]])
            for feed, batch in zip(feeds, batches, strict=True):
                feed[tensors[name]] = values[batch]
        placed.append(tensors)
    return placed, feeds


@pytest.mark.medium
@pytest.mark.parametrize("name", ROWS)
def test_metrics_of_a_slice_within_a_space_are_those_of_scikit_learn(found, name):
    task = "order"
    rows = ROWS[name] & (LABELS[task] >= 0) & (CLICK == 1)
    own = {metric: found[f"{task}/{metric}@{name}"] for metric in METRICS}
    if not rows.any():
        assert np.isnan(list(own.values())).all()
        assert found[f"{task}/nan_predictions@{name}"] == 0
        return
    y, z = LABELS[task][rows], LOGITS[task][rows, 0].astype(np.float64)
    weights = {"sample_weight": LABELS["weight"][rows]}
    p = 1 / (1 + np.exp(-z))
    expected = {
        "auc": sklearn.metrics.roc_auc_score(y, z, **weights),
        "pr_auc": sklearn.metrics.average_precision_score(y, z, **weights),
        "average_loss": sklearn.metrics.log_loss(y, p, **weights),
        "accuracy": sklearn.metrics.accuracy_score(y, p >= 0.5, **weights),
    }
    share = np.average(y, weights=LABELS["weight"][rows])
    background = stats.entropy([share, 1 - share])
    expected["normalized_entropy"] = expected["average_loss"] / background
    for metric, value in expected.items():
        np.testing.assert_allclose(own[metric], value, rtol=0, atol=1e-6, err_msg=metric)


@pytest.mark.medium
def test_lists_are_cut_as_other_labels(found):
    for name, rows in ROWS.items():
        hot = np.array([[k in own for k in range(3)] for own in LABELS["kinds"]])[rows]
        value = found[f"kinds/label_mean@{name}"]
        np.testing.assert_allclose(value, hot.mean() if rows.any() else np.nan, rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (1, FIELDS["level"] == 1),
        (-1, FIELDS["level"] == -1),
        ((None, 1), FIELDS["level"] < 1),
        ((0, None), FIELDS["level"] >= 0),
    ],
)
@pytest.mark.parametrize("missing", [[], [-1]])
def test_rows_are_found_by_value_and_by_range(value, rows, missing):
    """No row whose label is missing is in a range, also for the metrics of other heads."""
    head = heads.Regression(name="level", missing=missing)
    fields = {"level": FIELDS["level"], "weight": LABELS["weight"]}
    with tf.Graph().as_default(), tf1.Session() as session:
        labels = {name: tf.constant(given) for name, given in fields.items()}
        logits = {"level": tf.zeros([N, 1]), "weight": tf.zeros([N, 1])}
        both = [head, heads.Regression(name="weight")]
        made = slice_metrics.build_metrics({"level": [value]}, both, logits, labels, labels)
        shown = {1: "1", -1: "-1", (None, 1): "..1", (0, None): "0.."}[value]
        session.run(tf1.local_variables_initializer())
        session.run([update for _, update in made.values()])
        rmse = session.run(made[f"level/rmse@level={shown}"][0])
        mean = session.run(made[f"weight/label_mean@level={shown}"][0])
    present = ~np.isin(FIELDS["level"], missing)
    counted = FIELDS["level"][rows & present].astype(float)
    expected = np.sqrt((counted**2).mean()) if len(counted) else np.nan
    np.testing.assert_allclose(rmse, expected, rtol=1e-6)
    others = LABELS["weight"][rows & present if isinstance(value, tuple) else rows]
    np.testing.assert_allclose(mean, others.mean(), rtol=1e-6)


def test_a_metric_of_a_slice_has_the_order_of_the_metric_and_comes_behind_it():
    names = ["auc@country=DE", "average_loss@country=DE", "auc", "average_loss", "label_mean@x=1"]
    declared = metrics.find_directions(HEADS[0], names)
    assert [name for name, _ in declared] == [names[i] for i in (2, 3, 0, 1)]
    assert dict(declared)["auc@country=DE"] is True
    assert dict(declared)["average_loss@country=DE"] is False


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"country": "DE"}, "slices['country'] must be a list of values, got 'DE'"),
        ({"age": [(1, 2, 3)]}, "hold values, and pairs (from, to) of numbers or None"),
        ({"age": [(None, None)]}, "hold values, and pairs (from, to) of numbers or None"),
        ({"age": [(30, 20)]}, "must hold ascending pairs, got (30, 20)"),
        ({"level": [1, 1]}, "must hold each name once, got ['level=1']"),
    ],
)
def test_slices_that_are_none_are_refused(given, told):
    with pytest.raises(checks.UserError) as caught:
        slices.check("slices", given)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"level": ["one"]}, "must hold values of int64, the type of field 'level', got 'one'"),
        ({"country": [(1, 2)]}, "must be a field of numbers, got 'string'"),
    ],
)
def test_slices_of_another_type_are_refused(given, told):
    with tf.Graph().as_default(), pytest.raises(checks.UserError) as caught:
        fields = {"level": tf.constant([1], tf.int64), "country": tf.constant(["DE"])}
        slice_metrics.build_metrics(given, [], {}, fields, {})
    assert told in str(caught.value)


def test_the_ends_of_a_range_are_numbers_as_the_field_holds_them():
    given = np.array([0.3, 0.7], "f")
    with tf.Graph().as_default(), tf1.Session() as session:
        fields, logits = {"size": tf.constant(given)}, {"size": tf.zeros([2, 1])}
        chosen = {"size": [(None, 0.7), (0.7, None)]}
        made = slice_metrics.build_metrics(
            chosen, [heads.Regression(name="size")], logits, {}, fields
        )
        session.run(tf1.local_variables_initializer())
        session.run([update for _, update in made.values()])
        below, above = (
            session.run(made[f"size/label_mean@size={name}"][0]) for name in ("..0.7", "0.7..")
        )
    assert (below, above) == (given[0], given[1])


def test_ranges_of_large_numbers_have_different_names():
    hours = {"time": [(1700007200 + 3600 * i, 1700010800 + 3600 * i) for i in range(3)]}
    slices.check("MultiTaskModel.slices", hours)
    assert slices.list_slices(hours)[0].name == "time=1700007200..1700010800"
    ends = {"x": [(None, 0.25), (0.25, 1e6), (12345.678, None)]}
    names = [part.name for part in slices.list_slices(ends)]
    assert names == ["x=..0.25", "x=0.25..1e+06", "x=12345.678.."]
