"""Declared directions of metrics (higher is better or not) agree with good and bad predictions."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytest

from mtl import checks, compat, heads
from mtl.heads import metrics, shots
from tests import tiny
from tests.heads import harness

UNORDERED = {"accuracy_baseline", "label_mean", "prediction_mean", "calibration"}
UNORDERED |= {"label/mean", "prediction/mean"}
# They tell of the evaluation, not of how good predictions are: 0 of both.
WARNINGS = {"nan_predictions", "auc_error_bound", "pr_auc_error_bound"}
BITS = np.array([0, 1, 1, 0, 1, 0, 0, 1])
CLASSES = np.array([0, 1, 2, 3, 2, 1, 0, 3])
NUMBERS = np.array([0.5, 2.0, 1.0, 7.0, 3.0, 4.0], np.float32)
HOTS = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 1]])
_EYE = np.eye(4, dtype=np.float32)[CLASSES]
_ABOVE = (CLASSES[:, None] > np.arange(3)) * 6.0 - 3
_COUNTS = {"class_counts": [200, 200, 50, 5], "shots": shots.Shots()}

# The head, its labels, good logits and bad ones.
CASES = {
    "binary": (heads.Binary(name="y"), BITS, BITS[:, None] * 6.0 - 3, 3.0 - BITS[:, None] * 6),
    "multi_class": (
        heads.MultiClass(name="y", classes=4, top_k=2, **_COUNTS),
        *(CLASSES, _EYE * 5, -_EYE * 5 + np.arange(4) / 100),
    ),
    "multi_label": (heads.MultiLabel(name="y", classes=3), HOTS, HOTS * 6.0 - 3, 1.0 - HOTS * 2),
    "ordinal": (heads.Ordinal(name="y", classes=4), CLASSES, _ABOVE, -_ABOVE[:, ::-1]),
    "regression": (heads.Regression(name="y"), NUMBERS, NUMBERS[:, None] + 0.1, -NUMBERS[:, None]),
    "poisson": (
        heads.Poisson(name="y"),
        *(NUMBERS, np.log(NUMBERS[:, None] + 0.1), -np.log(NUMBERS[:, None])),
    ),
    "tf.estimator's binary": (
        heads.EstimatorHead(name="y", head=compat.estimator.BinaryClassHead(thresholds=[0.4])),
        *(BITS, BITS[:, None] * 6.0 - 3, 3.0 - BITS[:, None] * 6),
    ),
    "tf.estimator's regression": (
        heads.EstimatorHead(name="y", head=compat.estimator.RegressionHead()),
        *(NUMBERS, NUMBERS[:, None] + 0.1, -NUMBERS[:, None]),
    ),
}


@pytest.mark.medium
@pytest.mark.parametrize("case", CASES)
def test_every_metric_with_an_order_is_better_of_better_predictions(case):
    head, labels, good, bad = CASES[case]
    good, bad = (
        harness.evaluate(head, np.float32(logits), {"y": labels}, 1) for logits in (good, bad)
    )
    declared = dict(metrics.find_directions(head, list(good)))
    assert set(good) - set(declared) <= UNORDERED
    assert not UNORDERED & set(declared)
    assert not any(declared[name] for name in WARNINGS & set(good))
    ordered = declared.keys() - WARNINGS
    compared = {name for name in ordered if not np.isnan(good[name] + bad[name])}
    assert len(compared) > len(ordered) / 2
    for name in compared:
        assert good[name] != bad[name], name
        assert (good[name] > bad[name]) is np.bool_(declared[name]), name


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Lifted(heads.Binary):
    """A custom head with an additional metric, which is its main metric."""

    directions: ClassVar[Mapping[str, bool]] = {"lift/*": True, **heads.Binary.directions}


def _model(*own):
    return dataclasses.replace(tiny.make().model, heads=own)


def test_a_head_of_ones_own_declares_as_all_do():
    made = _model(_Lifted(name="sign"), heads.Binary(name="sign.b"))
    assert made.find_direction("sign/lift/10") is True
    assert made.find_direction("sign/calibration_error") is False
    assert made.find_direction("sign.b/lift/10") is None
    names = ["sign/auc", "sign/lift/10", "sign.b/pr_auc", "sign.b/auc", "average_loss"]
    assert made.find_main_metrics(names) == ["sign/lift/10", "sign.b/auc"]
    assert made.find_main_metrics(["loss"]) == []


@pytest.mark.parametrize(
    ("metric", "higher"),
    [
        ("loss", False),
        ("average_loss", False),
        ("sign/average_loss", False),
        ("sign/auc", True),
        ("kind/recall/2", True),
        ("size/rmse", False),
        ("size/auc", None),
        ("size/prediction_mean", None),
        ("nobody/auc", None),
        ("auc", None),
    ],
)
def test_the_model_knows_the_direction_of_every_tasks_metrics(metric, higher):
    assert tiny.make().model.find_direction(metric) is higher


def test_a_direction_that_is_no_bool_is_refused():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Wrong(heads.Binary):
        directions: ClassVar[Mapping[str, bool]] = {"lift": "False"}

    message = r"^directions\['lift'\] of head 'sign' must be True or False, got 'False'\.$"
    with pytest.raises(checks.UserError, match=message):
        _model(Wrong(name="sign"))
