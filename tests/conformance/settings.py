"""Every part that a gin file can build, and settings with which it is right."""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import mtl
from mtl import experiment, features, heads, model, networks, spec
from mtl.balancing import methods
from mtl.compat import estimator
from mtl.data import csv, long_tail, pipeline
from mtl.heads import classifiers
from mtl.layers import quantization
from mtl.optimization import clipping, optimizers, update

# What code makes, and no gin file.
_NO_PARTS = (
    "mtl.scoring",
    "mtl.serving.rows",
    "mtl.serving.versions",
    "mtl.distribution.tf_config",
    "mtl.features.column",
    "mtl.features.statistics",
    "mtl.heads.base",
    "mtl.heads.classes",
    "mtl.optimization.finite",
    "mtl.variables.row_names",
    "mtl.variables.sharding",
    "mtl.transfer.plan",
)


def _source() -> Any:
    return csv.Csv(files={"train": "x.csv"})


def _spec() -> Any:
    return spec.Spec(features={"x": "float32"}, labels={"y": "int64"})


def _model() -> Any:
    return model.MultiTaskModel(**_REQUIRED["MultiTaskModel"]())


def _pipeline() -> Any:
    return pipeline.Pipeline(source=_source(), spec=_spec())


_REQUIRED: dict[str, Callable[[], dict[str, Any]]] = {
    "CrossStitch": lambda: {"stages": [networks.MLP()]},
    "MMoE": lambda: {"expert": networks.MLP()},
    "OMoE": lambda: {"expert": networks.MLP()},
    "PLE": lambda: {"experts": [networks.MLP()]},
    "SingleTask": lambda: {"trunk": networks.MLP()},
    "Parallel": lambda: {"trunks": [networks.MLP()]},
    "Stacked": lambda: {"trunks": [networks.MLP()]},
    "Sluice": lambda: {"stages": [networks.MLP()]},
    "ExampleClipping": lambda: {"max_norm": 1.0},
    "Combine": lambda: {"method": methods.PCGrad()},
    "Fixed": lambda: {"weights": {"y": 1.0}},
    "Scheduled": lambda: {"weights": {"y": 1.0}},
    "Csv": lambda: {"files": {"train": "x.csv"}},
    "TfRecord": lambda: {"files": {"train": "x.tfrecord"}},
    "Idx": lambda: {"files": {"train": {"x": "x.idx"}}},
    "LongTail": lambda: {"source": _source(), "label": "y"},
    "Numbered": lambda: {"source": _source()},
    "Subset": lambda: {"source": _source(), "share": 0.5},
    "Pipeline": lambda: {"source": _source(), "spec": _spec()},
    "Power": lambda: {"label": "y"},
    "Progressive": lambda: {"label": "y", "epochs": 2},
    "Tfds": lambda: {"name": "mnist"},
    "Run": lambda: {"train_steps": 5},
    "Experiment": lambda: {
        "data": _pipeline(),
        "model": _model(),
        "run": experiment.Run(train_steps=5),
    },
    "Bucketized": lambda: {"names": ["x"]},
    "Categorical": lambda: {"names": ["x"]},
    "Crossed": lambda: {"crosses": [["x", "z"]]},
    "Hashed": lambda: {"names": ["x"], "num_buckets": 10},
    "Identity": lambda: {"names": ["x"], "size": 10},
    "Image": lambda: {"names": ["x"]},
    "Numeric": lambda: {"names": ["x"]},
    "Binary": lambda: {"name": "y"},
    "MultiClass": lambda: {"name": "y", "classes": 3},
    "MultiLabel": lambda: {"name": "y", "classes": 3},
    "Ordinal": lambda: {"name": "y", "classes": 3},
    "Poisson": lambda: {"name": "y"},
    "Regression": lambda: {"name": "y"},
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
    "Cosine": lambda: {"value": 0.1, "decay_steps": 5},
    "Polynomial": lambda: {"value": 0.1, "decay_steps": 5},
    "InverseSqrt": lambda: {"value": 0.1, "warmup_steps": 5},
    "Exponential": lambda: {"value": 0.1, "decay_rate": 0.5, "decay_steps": 5},
    "Piecewise": lambda: {"boundaries": [5], "values": [0.1, 0.01]},
    "Lookahead": lambda: {"optimizer": optimizers.SGD(learning_rate=0.1)},
    "EstimatorHead": lambda: {"name": "y", "head": estimator.BinaryClassHead()},
    "Field": lambda: {"name": "x", "dtype": "int64"},
    "Spec": lambda: {"features": {"x": "float32"}, "labels": {"y": "int64"}},
    "WarmStart": lambda: {"source": "run"},
}
_REFITS = ("LogitAdjusted", "NearestMean", "TauNormalized")


def network() -> Any:
    """A network of one layer."""
    return networks.SharedBottom(trunk=networks.MLP())


def required(kind: type) -> dict[str, Any]:
    """Settings with which the part can be built."""
    if kind.__name__ in _REFITS:
        return {"task": "y", "source": "run"}
    if kind in (quantization.Binary, long_tail.Exponential, classifiers.Cosine):
        return {}
    return _REQUIRED.get(kind.__name__, dict)()


def kinds() -> Iterator[type]:
    """All parts: public, frozen dataclasses with keywords alone."""
    for info in pkgutil.walk_packages(mtl.__path__, "mtl."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            is_own = isinstance(value, type) and value.__module__ == info.name
            if is_own and not name.startswith("_") and _is_part(value):
                yield value


def _is_part(kind: type) -> bool:
    if not dataclasses.is_dataclass(kind) or inspect.isabstract(kind):
        return False
    if f"{kind.__module__}.".startswith(tuple(f"{name}." for name in _NO_PARTS)):
        return False
    return kind.__dataclass_params__.frozen and all(f.kw_only for f in dataclasses.fields(kind))
