"""Every shipped file of optimizers and balancers builds what it says."""

import pathlib

import gin
import pytest

from mtl.balancing import example_clipping, methods, surgery, weighting
from mtl.layers import quantization
from mtl.optimization import (
    adaptive_clipping,
    clipping,
    lookahead,
    optimizers,
    regularization,
    transforms,
    update,
)
from mtl.variables import averaging

ROOT = pathlib.Path(__file__).parents[2] / "gin_configs"
OPTIMIZERS = {
    "adagrad": optimizers.Adagrad,
    "adam": optimizers.Adam,
    "adamw": optimizers.AdamW,
    "ftrl": optimizers.FTRL,
    "lazy_adam": optimizers.LazyAdam,
    "momentum": optimizers.Momentum,
    "rms_prop": optimizers.RMSProp,
    "row_wise_adagrad": optimizers.RowWiseAdagrad,
    "sgd": optimizers.SGD,
}
CLIPPING, SURGERY = "update.Update.clipping", "model.MultiTaskModel.surgery"
QUANTIZATION = "model.MultiTaskModel.quantization"
PARTS = {
    "average": ("update.Update.average", averaging.ExponentialAverage(decay=0.999)),
    "by_pattern": (
        "update.Update.optimizers",
        {
            "^features/": optimizers.Adagrad(learning_rate=0.05),
            "^network/.*/kernel$": optimizers.AdamW(learning_rate=0.001, weight_decay=0.01),
        },
    ),
    "centralization": ("update.Update.transforms", [transforms.Centralization()]),
    "lookahead": (
        "update.Update.optimizer",
        lookahead.Lookahead(optimizer=optimizers.LazyAdam(), steps=5, rate=0.5),
    ),
    "noise": ("update.Update.transforms", [transforms.Noise(scale=0.01, decay=0.55)]),
    "clip_adaptive": (CLIPPING, adaptive_clipping.AGC()),
    "clip_auto": (CLIPPING, adaptive_clipping.AutoClip()),
    "clip_average_norm": (CLIPPING, clipping.AverageNorm(max_norm=0.001)),
    "clip_by_pattern": (
        CLIPPING,
        clipping.ByPattern(
            parts={
                "^network/": clipping.GlobalNorm(max_norm=5.0),
                "^head/": clipping.Value(max_value=0.1),
            }
        ),
    ),
    "clip_examples": (SURGERY, example_clipping.ExampleClipping(max_norm=1.0)),
    "clip_global_norm": (CLIPPING, clipping.GlobalNorm(max_norm=5.0)),
    "clip_norm": (CLIPPING, clipping.Norm(max_norm=1.0)),
    "clip_tasks": (SURGERY, surgery.Combine(method=methods.Clipped(max_norm=1.0))),
    "clip_value": (CLIPPING, clipping.Value(max_value=0.1)),
    "l2": (
        "update.Update.regularization",
        regularization.Regularization(l2={"^network/.*/kernel$": 1e-4}),
    ),
}


@pytest.fixture(autouse=True)
def _clean():
    gin.clear_config()
    yield
    gin.clear_config()


def _build(path, what, *lines):
    """The object that `what` names after the file was read."""
    gin.parse_config([*(ROOT / path).read_text().splitlines(), *lines])
    return _built(gin.query_parameter(what))


def _built(value):
    if isinstance(value, dict):
        return {key: _built(part) for key, part in value.items()}
    return (
        [_built(part) for part in value]
        if isinstance(value, list)
        else value.scoped_configurable_fn()
    )


def test_every_file_is_tested():
    files = {path.stem for path in (ROOT / "optimization").glob("*.gin")}
    assert files == {*OPTIMIZERS, *PARTS}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name):
    built = _build(f"optimization/{name}.gin", "model.MultiTaskModel.update")
    assert type(built) is update.Update
    assert type(built.optimizer) is OPTIMIZERS[name]


def test_quantization():
    four = quantization.Uniform(bits=4)
    inner = ("^network/trunk/(block_[1-9]|hidden_)", "^network/tower_")
    assert _build("quantization/four_bits.gin", QUANTIZATION) == quantization.Quantization(
        weights={"^network/.*/kernel$": four}, activations=dict.fromkeys(inner, four)
    )
    gin.clear_config()
    signs = quantization.Binary(scaled=False)
    assert _build("quantization/binary.gin", QUANTIZATION) == quantization.Quantization(
        weights={"^network/.*/kernel$": quantization.Binary()},
        activations=dict.fromkeys(inner, signs),
    )


@pytest.mark.parametrize("name", PARTS)
def test_part(name):
    setting, expected = PARTS[name]
    built = _build(f"optimization/{name}.gin", setting)
    assert built == expected


def test_balancing():
    assert _build("balancing/equal.gin", "model.MultiTaskModel.weighting") == weighting.Equal()
    gin.clear_config()
    line = 'weighting.Fixed.weights = {"a": 1.0}'
    built = _build("balancing/fixed.gin", "model.MultiTaskModel.weighting", line)
    assert built == weighting.Fixed(weights={"a": 1.0})


def test_forgotten_parentheses():
    line = "optimizers.LazyAdam.learning_rate = @schedules.Cosine"
    lines = ["from mtl.optimization import schedules", line]
    with pytest.raises(ValueError, match="LazyAdam.learning_rate must be a number or a schedule"):
        _build("optimization/lazy_adam.gin", "model.MultiTaskModel.update", *lines)
