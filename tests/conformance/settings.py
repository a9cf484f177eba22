"""Every part that a gin file can build, and settings with which it is right."""

from collections.abc import Callable
from typing import Any

from mtl import experiment, features, heads, histories, model, networks, spec
from mtl.balancing import methods
from mtl.compat import estimator
from mtl.data import csv, long_tail, pipeline
from mtl.features import tokenizers
from mtl.heads import classifiers
from mtl.layers import quantization
from mtl.optimization import clipping, optimizers, update
from mtl.sparsity import pruning_schedules


def _source() -> Any:
    return csv.Csv(files={"train": "x.csv"})


def _spec() -> Any:
    return spec.Spec(features={"x": "float32"}, labels={"y": "int64"})


def _model() -> Any:
    return model.MultiTaskModel(**_REQUIRED["MultiTaskModel"]())


def _pipeline() -> Any:
    return pipeline.Pipeline(source=_source(), spec=_spec())


_REQUIRED: dict[str, Callable[[], dict[str, Any]]] = {
    "AITM": lambda: {"network": network(), "after": {"b": ["a"]}},
    "AdaTT": lambda: {"experts": [networks.MLP()]},
    "DBMTL": lambda: {
        "network": network(),
        "after": {"b": ["a"]},
        "relation": networks.MLP(),
    },
    "FinalMLP": lambda: {"streams": [networks.MLP(), networks.MLP()]},
    "TwoTower": lambda: {
        "query": networks.MLP(),
        "item": networks.MLP(),
        "item_columns": ["item_*"],
    },
    "WideAndDeep": lambda: {"network": network()},
    "HoME": lambda: {"experts": [networks.MLP(), networks.MLP()], "groups": {"all": ["y"]}},
    "LTB": lambda: {"levels": [networks.MLP()], "num_nodes": [2]},
    "MTAN": lambda: {"layers": [4]},
    "ResFlow": lambda: {"network": network(), "after": {"b": ["a"]}},
    "STAR": lambda: {"domain": "identity_x"},
    "PackNet": lambda: {"network": network(), "order": ["a", "b"]},
    "Piggyback": lambda: {"network": network(), "added": ["b"]},
    "STEM": lambda: {"expert": networks.MLP(), "own": {"y": ["y_*"]}},
    "CrossStitch": lambda: {"stages": [networks.MLP()]},
    "MMoE": lambda: {"expert": networks.MLP()},
    "OMoE": lambda: {"expert": networks.MLP()},
    "PLE": lambda: {"experts": [networks.MLP()]},
    "SingleTask": lambda: {"trunk": networks.MLP()},
    "Parallel": lambda: {"trunks": [networks.MLP()]},
    "Stacked": lambda: {"trunks": [networks.MLP()]},
    "Sluice": lambda: {"stages": [networks.MLP()]},
    "Cubic": lambda: {"end_step": 10},
    "Distillation": lambda: {"teacher": "run"},
    "FeatureDistillation": lambda: {"teacher": "run", "tensor": "x"},
    "Pruning": lambda: {"schedule": pruning_schedules.OneShot(), "sparsity": 0.5},
    "Regrowth": lambda: {"until_step": 10},
    "ExampleClipping": lambda: {"max_norm": 1.0},
    "Combine": lambda: {"method": methods.PCGrad()},
    "Fixed": lambda: {"weights": {"y": 1.0}},
    "Scheduled": lambda: {"weights": {"y": 1.0}},
    "Csv": lambda: {"files": {"train": "x.csv"}},
    "TfRecord": lambda: {"files": {"train": "x.tfrecord"}},
    "ExampleLists": lambda: {"files": {"train": "x.tfrecord"}},
    "StoredRows": lambda: {"files": {"train": "x.tfrecord"}, "cells": csv.Csv(files={"none": ""})},
    "JsonLines": lambda: {"files": {"train": "x.jsonl"}},
    "SvmLight": lambda: {"files": {"train": "x.svm"}},
    "Idx": lambda: {"files": {"train": {"x": "x.idx"}}},
    "Npy": lambda: {"folders": {"train": "train"}},
    "ImageFiles": lambda: {"source": _source(), "fields": ["x"]},
    "Joined": lambda: {
        "source": _source(),
        "tables": {"a": _source()},
        "fields": {"a": ["b"]},
    },
    "Mixture": lambda: {"sources": {"a": _source()}},
    "ByKey": lambda: {"source": _source(), "field": "x", "held_out": {"test": 0.1}},
    "ByTime": lambda: {"source": _source(), "field": "x", "starts": {"test": 1}},
    "LongTail": lambda: {"source": _source(), "label": "y"},
    "Numbered": lambda: {"source": _source()},
    "Splits": lambda: {"source": _source(), "shares": {"train": 0.9, "test": 0.1}},
    "Subset": lambda: {"source": _source(), "share": 0.5},
    "Pipeline": lambda: {"source": _source(), "spec": _spec()},
    "Power": lambda: {"label": "y"},
    "Progressive": lambda: {"label": "y", "epochs": 2},
    "Tfds": lambda: {"name": "mnist"},
    "Run": lambda: {"train_steps": 5},
    "MeanGain": lambda: {"baselines": {"y/auc": 0.5}},
    "GradientReversal": lambda: {"head": heads.Binary(name="domain")},
    "InversePropensity": lambda: {"task": "b", "propensity": "a"},
    "DoublyRobust": lambda: {"task": "b", "propensity": "a"},
    "Calibrator": lambda: {"after": {"b": "a"}},
    "SupervisedContrastive": lambda: {"head": "y"},
    "Codes": lambda: {"trunk": networks.MLP()},
    "Categories": lambda: {"trunk": networks.MLP()},
    "Experiment": lambda: {
        "data": _pipeline(),
        "model": _model(),
        "run": experiment.Run(train_steps=5),
    },
    "Bucketized": lambda: {"names": ["x"]},
    "Categorical": lambda: {"names": ["x"]},
    "ColorJitter": lambda: {"brightness": 0.1},
    "Crossed": lambda: {"crosses": [["x", "z"]]},
    "Growing": lambda: {"names": ["x"], "capacity": 8},
    "DaysSince": lambda: {"names": ["x"], "since": "z"},
    "Hashed": lambda: {"names": ["x"], "num_buckets": 10},
    "History": lambda: {
        "name": "clicks",
        "events": [features.Identity(names=["x"], size=10)],
        "encoder": histories.Pooling(),
    },
    "Identity": lambda: {"names": ["x"], "size": 10},
    "Image": lambda: {"names": ["x"]},
    "Numeric": lambda: {"names": ["x"]},
    "Unified": lambda: {"names": ["x"], "num_buckets": 10},
    "Weighted": lambda: {"lookups": [features.Hashed(names=["x"], num_buckets=10)]},
    "MixedDimensions": lambda: {"ends": [1]},
    "MultiHash": lambda: {"num_buckets": 10},
    "TimeParts": lambda: {"names": ["x"]},
    "Text": lambda: {
        "names": ["x"],
        "tokenizer": tokenizers.Bytes(),
        "encoder": histories.Pooling(),
    },
    "AutoDis": lambda: {"names": ["x"]},
    "Periodic": lambda: {"names": ["x"]},
    "PiecewiseLinear": lambda: {"names": ["x"]},
    "Binary": lambda: {"name": "y"},
    "Block": lambda: {"head": heads.Binary, "tasks": ["y", "z"]},
    "CategoricalMixture": lambda: {"name": "y", "sizes": [3, 2]},
    "GaussianMixture": lambda: {"name": "y"},
    "MixtureDensity": lambda: {"name": "y"},
    "MultiClass": lambda: {"name": "y", "classes": 3},
    "Depth": lambda: {"name": "y"},
    "MultiLabel": lambda: {"name": "y", "classes": 3},
    "Normals": lambda: {"name": "y"},
    "Segmentation": lambda: {"name": "y", "classes": 3},
    "Ordinal": lambda: {"name": "y", "classes": 3},
    "Poisson": lambda: {"name": "y"},
    "Quantile": lambda: {"name": "y"},
    "Regression": lambda: {"name": "y"},
    "Survival": lambda: {"name": "y", "event": "seen", "boundaries": [1, 2]},
    "Tweedie": lambda: {"name": "y"},
    "ZeroInflatedLogNormal": lambda: {"name": "y"},
    "Score": lambda: {"name": "y"},
    "Joint": lambda: {"name": "y", "of": ["a", "b"]},
    "WeightedLogistic": lambda: {"name": "y"},
    "Ranking": lambda: {"name": "y", "group": "query"},
    "Retrieval": lambda: {"name": "y", "item": "item"},
    "WholeGroups": lambda: {"group": "query"},
    "DrawnItems": lambda: {"num": 8, "features": ["x"]},
    "FromFile": lambda: {"path": __file__},
    "Rows": lambda: {"rows": [1]},
    "MultiTaskModel": lambda: {
        "columns": [features.Numeric(names=["x"])],
        "network": network(),
        "heads": [heads.Binary(name="y")],
        "update": update.Update(),
    },
    "KerasModel": lambda: {"build": network},
    "SharedBottom": lambda: {"trunk": networks.MLP()},
    "AverageNorm": lambda: {"max_norm": 1.0},
    "GlobalNorm": lambda: {"max_norm": 1.0},
    "Norm": lambda: {"max_norm": 1.0},
    "Value": lambda: {"max_value": 1.0},
    "ByPattern": lambda: {"parts": {"x": clipping.Norm(max_norm=1.0)}},
    "Constant": lambda: {"value": 0.1},
    "Arrow": lambda: {"files": {"train": "x.parquet"}},
    "Profile": lambda: {"steps": [1, 5]},
    "Reporting": lambda: {"trackers": []},
    "Cosine": lambda: {"value": 0.1, "decay_steps": 5},
    "Polynomial": lambda: {"value": 0.1, "decay_steps": 5},
    "Exponential": lambda: {"value": 0.1, "decay_rate": 0.5, "decay_steps": 5},
    "Piecewise": lambda: {"boundaries": [5], "values": [0.1, 0.01]},
    "Lookahead": lambda: {"optimizer": optimizers.SGD(learning_rate=0.1)},
    "EstimatorHead": lambda: {"name": "y", "head": estimator.BinaryClassHead()},
    "Field": lambda: {"name": "x", "dtype": "int64"},
    "Spec": lambda: {"features": {"x": "float32"}, "labels": {"y": "int64"}},
    "WarmStart": lambda: {"source": "run"},
}
_CALIBRATIONS = ("Isotonic", "Platt", "Temperature")
_REFITS = ("LogitAdjusted", "NearestMean", "TauNormalized")


def network() -> Any:
    """Return a network with default settings."""
    return networks.SharedBottom(trunk=networks.MLP())


def required(kind: type) -> dict[str, Any]:
    """Return settings with which the part can be built."""
    if kind.__name__ in _CALIBRATIONS:
        return {"tasks": ["y"], "source": "run", "split": "held"}
    if kind.__name__ in _REFITS:
        return {"task": "y", "source": "run"}
    # These need no settings, unlike other parts with the same names.
    named_alike = (quantization.Binary, long_tail.Exponential, classifiers.Cosine, methods.DBMTL)
    if kind in named_alike:
        return {}
    return _REQUIRED.get(kind.__name__, dict)()
