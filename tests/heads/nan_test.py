"""A NaN prediction is counted, and makes NaN of every metric that knows the predictions."""

import numpy as np
import pytest

from mtl import compat, heads, spec
from mtl.compat import keras
from mtl.heads import shots
from tests.heads import harness

RANDOM = np.random.default_rng(0)
NUMBERS = RANDOM.normal(size=(40, 3)).astype("f")
CASES = {
    "binary": (heads.Binary(name="y", weight="w"), 1, RANDOM.integers(0, 2, 40)),
    "classes": (
        heads.MultiClass(
            name="y", classes=3, weight="w", top_k=2, shots=shots.Shots(), class_counts=[500, 50, 5]
        ),
        3,
        RANDOM.integers(0, 3, 40),
    ),
    "several": (heads.MultiLabel(name="y", classes=3, weight="w"), 3, NUMBERS > 0),
    "order": (heads.Ordinal(name="y", classes=4, weight="w"), 3, RANDOM.integers(0, 4, 40)),
    "number": (heads.Regression(name="y", weight="w"), 1, NUMBERS[:, 0]),
    "numbers": (heads.Regression(name="y", dimension=3, weight="w"), 3, NUMBERS),
    "count": (heads.Poisson(name="y", weight="w"), 1, RANDOM.integers(0, 4, 40)),
}
OF_LABELS = {"accuracy_baseline", "label_mean"}


def case(name):
    """A head, finite logits, and labels with weights."""
    head, width, labels = CASES[name]
    logits = NUMBERS[:, :width].copy()
    labels = labels.astype(np.int64) if labels.dtype == bool else labels.copy()
    return head, logits, {"y": labels, "w": np.ones(40, "f")}


@pytest.mark.medium
@pytest.mark.parametrize("name", CASES)
def test_one_nan_makes_nan_of_every_metric_but_those_of_labels(name):
    head, logits, labels = case(name)
    clean = harness.evaluate(head, logits, labels)
    assert clean["nan_predictions"] == 0
    assert not {metric for metric, value in clean.items() if np.isnan(value)}
    logits[[3, 17], 0] = np.nan
    got = harness.evaluate(head, logits, labels)
    assert got["nan_predictions"] == 2
    defined = {metric for metric, value in got.items() if not np.isnan(value)}
    assert defined == (OF_LABELS & set(got)) | {"nan_predictions"}
    assert {metric: got[metric] for metric in defined - {"nan_predictions"}} == {
        metric: clean[metric] for metric in defined - {"nan_predictions"}
    }
    assert np.isnan(harness.loss(head, logits, labels)[0])


@pytest.mark.medium
@pytest.mark.parametrize("name", CASES)
def test_rows_without_a_label_or_of_no_weight_may_be_nan(name):
    head, logits, labels = case(name)
    is_float = labels["y"].dtype.kind == "f"
    labels["y"][3] = np.nan if is_float else spec.MISSING["int64"]
    labels["w"][17] = 0
    expected = harness.evaluate(head, logits, labels)
    logits[[3, 17]] = np.nan
    got = harness.evaluate(head, logits, labels)
    assert got == pytest.approx(expected, nan_ok=True)
    assert got["nan_predictions"] == 0


def test_only_labelled_numbers_of_a_vector_count():
    head, logits, labels = case("numbers")
    labels["y"][3, 1], logits[3, 1] = np.nan, np.nan
    assert harness.evaluate(head, logits, labels)["nan_predictions"] == 0
    logits[3, 2] = np.nan
    assert harness.evaluate(head, logits, labels)["nan_predictions"] == 1


@pytest.mark.medium
@pytest.mark.parametrize("name", ["binary", "several", "order"])
def test_an_infinite_logit_is_a_sure_prediction(name):
    head, logits, labels = case(name)
    logits[3], logits[17] = np.inf, -np.inf
    got = harness.evaluate(head, logits, labels)
    assert got.pop("nan_predictions") == 0
    assert not np.isnan(list(got.values())).any()
    finite = np.clip(logits, -1e4, 1e4)
    expected = harness.evaluate(head, finite, labels)
    for metric in got.keys() - {"average_loss", "normalized_entropy"}:
        assert got[metric] == pytest.approx(expected[metric], abs=1e-6), metric


@pytest.mark.medium
def test_an_infinite_logit_of_a_softmax_is_a_nan_prediction():
    head, logits, labels = case("classes")
    logits[3, 0] = np.inf
    assert np.isnan(harness.predict(head, logits[3:4])["probabilities"]).any()
    assert harness.evaluate(head, logits, labels)["nan_predictions"] == 1
    logits[3, 0] = -np.inf  # A class that is surely not the one.
    labels["y"][3] = 1
    assert harness.evaluate(head, logits, labels)["nan_predictions"] == 0


@pytest.mark.medium
def test_a_rate_of_zero_is_right_where_nothing_is_counted():
    head, logits, labels = case("count")
    logits[3], labels["y"][3] = -np.inf, 0
    assert harness.predict(head, logits[3:4])["value"] == 0
    got = harness.evaluate(head, logits, labels)
    assert np.isfinite(list(got.values())).all()
    labels["y"][3] = 2
    got = harness.evaluate(head, logits, labels)
    assert (got["nan_predictions"], got["average_loss"]) == (0, np.inf)


@pytest.mark.medium
@pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")
@pytest.mark.parametrize(
    ("make", "labels"),
    [
        (lambda: compat.estimator.BinaryClassHead(), RANDOM.integers(0, 2, 40)),
        (lambda: compat.estimator.MultiClassHead(3), RANDOM.integers(0, 3, 40)),
        (lambda: compat.estimator.RegressionHead(), NUMBERS[:, 0].copy()),
    ],
    ids=["binary", "classes", "number"],
)
def test_heads_of_the_estimator_count_theirs(make, labels):
    head = heads.EstimatorHead(name="y", head=make())
    logits = NUMBERS[:, : head.head.logits_dimension].copy()
    clean = harness.evaluate(head, logits, {"y": labels})
    assert clean["nan_predictions"] == 0
    assert not np.isnan(list(clean.values())).any()
    logits[3, 0] = np.nan
    got = harness.evaluate(head, logits, {"y": labels})
    assert got["nan_predictions"] == 1
    defined = {metric for metric, value in got.items() if not np.isnan(value)}
    assert defined == ({"accuracy_baseline", "label/mean"} & set(got)) | {"nan_predictions"}
    labels[3] = np.nan if labels.dtype.kind == "f" else -1
    got = harness.evaluate(head, logits, {"y": labels})
    assert got["nan_predictions"] == 0
    assert not np.isnan(list(got.values())).any()
