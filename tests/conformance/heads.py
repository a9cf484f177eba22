"""One row for each head: labels that it takes, labels that it refuses, and its metrics.

To add a head, add a row here; `heads_test.py` checks the contract of `mtl.types.Head` for each.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtl import heads
from mtl.heads import classifiers, softmax

NAN = float("nan")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A head and the values around it.

    Attributes:
      make: builds the head of task "task" with these further settings.
      dtype: the type of the label field.
      labels: labels of single examples, all of them good.
      missing: one label that is missing.
      wrong: (label, what the error says it must be and that it got).
      metrics: the names of the metrics, sorted.
      predictions: {name: shape in one example}.
      signatures: the kinds of export outputs.
      others: {label field: value}, the same in every row.
      by_group: the metrics in which a weight weighs a whole group.
      places: the height and width of the map, of a head of maps.
    """

    make: Callable[..., Any]
    dtype: str
    labels: Sequence[Any]
    missing: Any
    wrong: Sequence[tuple[Any, str]]
    metrics: str
    predictions: dict[str, tuple[int, ...]]
    signatures: str
    others: dict[str, Any] = dataclasses.field(default_factory=dict)
    by_group: Sequence[str] = ()
    places: tuple[int, ...] = ()


def _head(kind: type, **settings: Any) -> Callable[..., Any]:
    return lambda **more: kind(name="task", **{**settings, **more})


_BINARY = {
    "metrics": "accuracy accuracy_baseline auc auc_error_bound average_loss calibration "
    "calibration_error label_mean nan_predictions normalized_entropy pr_auc pr_auc_error_bound "
    "precision "
    "prediction_mean recall",
    "predictions": {"probability": (), "class_id": (), "class": ()},
    "signatures": "classify predict regress",
}
_CLASSES = {"probabilities": (3,), "class_id": (), "class": ()}
_RECALLS = "recall/bird recall/cat recall/dog"
_MULTI_LABEL = {
    "metrics": "accuracy auc auc_error_bound average_loss exact_match label_mean nan_predictions "
    "normalized_entropy pr_auc pr_auc_error_bound precision recall",
    "predictions": {"probabilities": (3,), "multi_hot": (3,)},
    "signatures": "classify predict",
}
_REGRESSION = {
    "metrics": "average_loss label_mean mae nan_predictions prediction_mean r2 rmse",
    "signatures": "predict regress",
}
_RANKING: dict[str, Any] = {
    "dtype": "int64",
    "labels": [0, 2, 1, 0, 3],
    "missing": -1,
    "wrong": [(-2, "be a grade in [0, 31], got -2"), (32, "be a grade in [0, 31], got 32")],
    "metrics": "average_loss gauc mrr nan_predictions ndcg ndcg_at_2 precision_at_2 recall_at_2",
    "predictions": {"score": ()},
    "signatures": "predict regress",
    "others": {"query": 7},
    "by_group": ["mrr", "ndcg", "ndcg_at_2", "precision_at_2", "recall_at_2"],
}
_DEPTH = {
    "dtype": "float32",
    "metrics": "abs_error average_loss nan_predictions rel_error rmse",
    "predictions": {"depth": (1, 3)},
    "signatures": "predict",
}
ANIMALS = ["cat", "dog", "bird"]

ROWS = {
    "binary": Row(
        make=_head(heads.Binary, positive_weight=2.0, label_smoothing=0.1, prior=0.3),
        dtype="int64",
        labels=[0, 1, 1, 0, 1],
        missing=-1,
        wrong=[(2, "be one of 0, 1, got 2"), (-2, "be one of 0, 1, got -2")],
        **_BINARY,
    ),
    "binary of floats": Row(
        make=_head(heads.Binary, focal_gamma=2.0),
        dtype="float32",
        labels=[0.0, 1.0, 1.0],
        missing=NAN,
        wrong=[(0.5, "be one of 0, 1, got 0.5")],
        **_BINARY,
    ),
    "binary of names": Row(
        make=_head(heads.Binary, positive=[">50K", ">50K."], negative=["<=50K", "<=50K."]),
        dtype="string",
        labels=[">50K", "<=50K", "<=50K.", ">50K."],
        missing="",
        wrong=[("50K", "be one of '<=50K', '<=50K.', '>50K', '>50K.', got '50K'")],
        **_BINARY,
    ),
    "multi_class": Row(
        make=_head(
            heads.MultiClass,
            classes=3,
            top_k=2,
            recall_limit=2,
            objective=softmax.CrossEntropy(focal_gamma=0.5, margin=softmax.LDAM()),
            classifier=classifiers.Cosine(),
            class_counts=[30, 20, 10],
        ),
        dtype="int64",
        labels=[0, 1, 2, 1],
        missing=-1,
        wrong=[(3, "be in [0, 3), got 3"), (-5, "be in [0, 3), got -5")],
        metrics="accuracy accuracy_baseline average_loss balanced_accuracy "
        "nan_predictions normalized_entropy top_2_accuracy",
        predictions=_CLASSES,
        signatures="classify predict",
    ),
    "multi_class of names": Row(
        make=_head(
            heads.MultiClass,
            classes=ANIMALS,
            objective=softmax.CrossEntropy(class_weights={"dog": 3.0}),
            classifier=classifiers.Scaled(),
            prior=[1, 2, 3],
        ),
        dtype="string",
        labels=["cat", "dog", "bird", "cat"],
        missing="",
        wrong=[("fish", "be one of 'cat', 'dog', 'bird', got 'fish'")],
        metrics="accuracy accuracy_baseline average_loss balanced_accuracy nan_predictions "
        f"normalized_entropy {_RECALLS}",
        predictions=_CLASSES,
        signatures="classify predict",
    ),
    "multi_label of multi-hot": Row(
        make=_head(heads.MultiLabel, classes=ANIMALS, positive_weight={"dog": 3.0}, prior=0.2),
        dtype="int64",
        labels=[[1, 0, 1], [0, 0, 0], [1, 1, 1]],
        missing=[-1, -1, -1],
        wrong=[([1, 7, 1], "be 1, 0 or missing, got 7")],
        **_MULTI_LABEL,
    ),
    "multi_label of lists of ids": Row(
        make=_head(heads.MultiLabel, classes=3, label_smoothing=0.1),
        dtype="ragged int64",
        labels=[[2, 0], [], [1], [0, 1, 2]],
        missing=[-1],
        wrong=[([1, 3], "be in [0, 3), got 3")],
        **_MULTI_LABEL,
    ),
    "multi_label of lists of names": Row(
        make=_head(heads.MultiLabel, classes=ANIMALS, empty_is_missing=True),
        dtype="ragged string",
        labels=[["dog"], ["bird", "dog"], ["cat"]],
        missing=[],
        wrong=[(["dog", "fish"], "be one of 'cat', 'dog', 'bird', got 'fish'")],
        **_MULTI_LABEL,
    ),
    "ordinal": Row(
        make=_head(heads.Ordinal, classes=3, prior=[0.2, 0.5, 0.3]),
        dtype="int64",
        labels=[0, 1, 2, 2],
        missing=-1,
        wrong=[(3, "be in [0, 3), got 3")],
        metrics="accuracy accuracy_baseline average_loss mae nan_predictions rmse",
        predictions={**_CLASSES, "value": ()},
        signatures="classify predict regress",
    ),
    "regression": Row(
        make=_head(heads.Regression, loss_type="huber", huber_delta=0.5, prior=2.0, unit=3.0),
        dtype="float32",
        labels=[0.5, -1.0, 3.0],
        missing=NAN,
        wrong=[(float("inf"), "be a finite number, got inf")],
        predictions={"value": ()},
        **_REGRESSION,
    ),
    "regression of vectors": Row(
        make=_head(heads.Regression, dimension=2),
        dtype="float32",
        labels=[[0.5, 1.0], [-1.0, 2.0], [3.0, 0.0]],
        missing=[NAN, NAN],
        wrong=[([0.0, -float("inf")], "be a finite number, got -inf")],
        predictions={"value": (2,)},
        **_REGRESSION,
    ),
    "poisson": Row(
        make=_head(heads.Poisson, prior=2.0),
        dtype="int64",
        labels=[0, 3, 1, 12],
        missing=-(2**63),
        wrong=[
            (-2, "be a finite count of at least 0, got -2"),
            (-1, "be a finite count of at least 0, got -1"),
        ],
        metrics="average_loss deviance label_mean mae nan_predictions prediction_mean r2 rmse",
        predictions={"value": ()},
        signatures="predict regress",
    ),
    "tweedie": Row(
        make=_head(heads.Tweedie, power=1.3, prior=2.0),
        dtype="float32",
        labels=[0.0, 3.5, 1.0, 12.0],
        missing=NAN,
        wrong=[(-2.0, "be a finite amount of at least 0, got -2")],
        metrics="average_loss deviance label_mean mae nan_predictions prediction_mean r2 rmse",
        predictions={"value": ()},
        signatures="predict regress",
    ),
    "quantile": Row(
        make=_head(heads.Quantile, levels=[0.1, 0.5, 0.9], label_mean=1.0, label_stddev=2.0),
        dtype="float32",
        labels=[0.5, -1.0, 3.0],
        missing=NAN,
        wrong=[(float("inf"), "be a finite number, got inf")],
        metrics="average_loss coverage/0.1 coverage/0.5 coverage/0.9 coverage_error label_mean mae "
        "nan_predictions prediction_mean r2 rmse",
        predictions={"quantiles": (3,), "value": ()},
        signatures="predict regress",
    ),
    "quantile of whole numbers": Row(
        make=_head(heads.Quantile, levels=[0.75]),
        dtype="int64",
        labels=[3, 0, 7],
        missing=-(2**63),
        wrong=[],
        metrics="average_loss coverage/0.75 coverage_error label_mean mae nan_predictions "
        "prediction_mean r2 rmse",
        predictions={"quantiles": (1,), "value": ()},
        signatures="predict regress",
    ),
    "zero_inflated": Row(
        make=_head(heads.ZeroInflatedLogNormal, prior=0.3, prior_value=5.0),
        dtype="float32",
        labels=[0.0, 12.5, 0.0, 1e-3],
        missing=NAN,
        wrong=[(-2.0, "be a finite amount of at least 0, got -2")],
        metrics="average_loss label_mean mae nan_predictions positive_auc "
        "positive_auc_error_bound prediction_mean r2 rmse",
        predictions={
            "value": (),
            "positive_probability": (),
            "log_mean": (),
            "log_scale": (),
        },
        signatures="predict regress",
    ),
    "survival": Row(
        make=_head(heads.Survival, event="seen", boundaries=[1, 2.5, 10]),
        dtype="float32",
        labels=[0.5, 2.5, 3.0, 40.0],
        missing=NAN,
        wrong=[(-2.0, "be a finite time of at least 0, got -2")],
        metrics="average_loss concordance concordance_error_bound event_share nan_predictions",
        predictions={"survival": (3,), "value": ()},
        signatures="predict regress",
        others={"seen": 1},
    ),
    "weighted_logistic": Row(
        make=_head(heads.WeightedLogistic, prior=2.0),
        dtype="float32",
        labels=[0.0, 3.5, 0.0, 12.0],
        missing=NAN,
        wrong=[(-2.0, "be a finite time of at least 0, got -2")],
        predictions={"value": ()},
        **_REGRESSION,
    ),
    "joint": Row(
        make=_head(heads.Joint, of=["binary", "binary_of_floats"]),
        dtype="int64",
        labels=[0, 1, 1, 0],
        missing=-1,
        wrong=[(2, "be one of 0, 1, got 2")],
        **_BINARY,
    ),
    "ranking of pairs": Row(
        make=_head(heads.Ranking, group="query", loss_type="ranknet", cutoffs=[2]), **_RANKING
    ),
    "ranking of lists": Row(
        make=_head(heads.Ranking, group="query", loss_type="softmax", cutoffs=[2]), **_RANKING
    ),
    "binary with groups": Row(
        make=_head(heads.Binary, group="query"),
        dtype="int64",
        labels=[0, 1, 1, 0],
        missing=-1,
        wrong=[(2, "be one of 0, 1, got 2")],
        others={"query": "some user"},
        **{**_BINARY, "metrics": " ".join(sorted([*_BINARY["metrics"].split(), "gauc"]))},
    ),
    "mixture_density": Row(
        make=_head(heads.MixtureDensity, num_components=3, label_mean=1.0, label_stddev=2.0),
        dtype="float32",
        labels=[0.5, -1.0, 3.0],
        missing=NAN,
        wrong=[(float("inf"), "be a finite number, got inf")],
        predictions={"value": (), "weights": (3,), "means": (3,), "scales": (3,)},
        **_REGRESSION,
    ),
    "mixture_density of whole numbers": Row(
        make=_head(heads.MixtureDensity, num_components=2, quantiles=[0.1, 0.5, 0.9]),
        dtype="int64",
        labels=[3, 0, 7],
        missing=-(2**63),
        wrong=[],
        predictions={
            "value": (),
            "weights": (2,),
            "means": (2,),
            "scales": (2,),
            "quantiles": (3,),
        },
        metrics="average_loss coverage/0.1 coverage/0.5 coverage/0.9 coverage_error label_mean mae "
        "nan_predictions prediction_mean r2 rmse",
        signatures="predict regress",
    ),
    "segmentation": Row(
        make=_head(
            heads.Segmentation,
            classes=ANIMALS,
            ignored=255,
            objective=softmax.CrossEntropy(class_weights={"dog": 3.0}, focal_gamma=0.5),
            predict_probabilities=True,
        ),
        dtype="int64",
        labels=[np.array([[0, 1, 2], [-1, 255, 2]]), np.array([[2, 2, 0], [1, 1, 0]])],
        missing=np.array([[-1, 255, 255], [-1, -1, -1]]),
        wrong=[(np.array([[0, 1, 3], [0, 0, 0]]), "be in [0, 3), got 3")],
        metrics="accuracy_baseline average_loss iou/bird iou/cat iou/dog miou nan_predictions "
        "pixel_accuracy",
        predictions={"class_id": (2, 3), "probabilities": (2, 3, 3)},
        signatures="predict",
        places=(2, 3),
    ),
    "segmentation of names": Row(
        make=_head(heads.Segmentation, classes=ANIMALS, iou_limit=2),
        dtype="string",
        labels=[np.array([["cat", ""], ["dog", "bird"]]), np.array([["cat", "cat"]] * 2)],
        missing=np.array([["", ""], ["", ""]]),
        wrong=[
            (
                np.array([["cat", "fish"], ["", ""]]),
                "be one of 'cat', 'dog', 'bird', got 'fish'",
            )
        ],
        metrics="accuracy_baseline average_loss miou nan_predictions pixel_accuracy",
        predictions={"class_id": (2, 2)},
        signatures="predict",
        places=(2, 2),
    ),
    "depth": Row(
        make=_head(heads.Depth, loss_type="huber", huber_delta=0.5, prior=2.0),
        labels=[np.array([[0.5, 0.0, 2.0]]), np.array([[NAN, 4.0, 3.0]])],
        missing=np.array([[0.0, NAN, 0.0]]),
        wrong=[
            (np.array([[1.0, -1.5, 2.0]]), "be finite and at least 0, got -1.5"),
            (np.array([[1.0, float("inf"), 2.0]]), "be finite and at least 0, got inf"),
        ],
        places=(1, 3),
        **_DEPTH,
    ),
    "depth of logarithms": Row(
        make=_head(heads.Depth, scale="log", prior=2.0),
        labels=[np.array([[0.5, 0.0, 2.0]]), np.array([[1.0, 4.0, 3.0]])],
        missing=np.array([[0.0, NAN, 0.0]]),
        wrong=[],
        places=(1, 3),
        **_DEPTH,
    ),
    "normals": Row(
        make=_head(heads.Normals),
        dtype="float32",
        labels=[
            np.array([[[0, 0, -1.0], [0, 0, 0]], [[1, 2, 2], [NAN, 1, 1]]]),
            np.array([[[1.0, 0, 0]] * 2, [[0, -3.0, 4]] * 2]),
        ],
        missing=np.array([[[0, 0, 0.0], [0, 0, NAN]]] * 2),
        wrong=[(np.full([2, 2, 3], float("inf")), "be a finite number, got inf")],
        metrics="average_loss mean_angle median_angle nan_predictions within_11_25 within_22_5 "
        "within_30",
        predictions={"normal": (2, 2, 3)},
        signatures="predict",
        places=(2, 2),
    ),
}
