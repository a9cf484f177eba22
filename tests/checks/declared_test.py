"""Settings are checked as their annotations say, before `__post_init__`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pytest

from mtl import checks
from mtl.deferred import tf


@checks.dataclass
class Layers:
    """Has settings of most kinds."""

    units: checks.Count = 64
    sizes: Annotated[Sequence[checks.Count], checks.Filled("hold a size")] = (3,)
    kind: Annotated[str, checks.OneOf(["mean", "sum"])] = "mean"
    rate: checks.Rate | None = None
    weights: Mapping[str, checks.Positive] = dataclasses.field(default_factory=dict)
    share: Annotated[float, checks.In("(0, 1]")] = 1.0
    factor: Annotated[float | Any, checks.Scheduled(checks.positive, "schedules.Cosine")] = 1.0
    names: checks.Names = ()
    own: bool = False
    initial: tf.Tensor | None = None

    def __post_init__(self):
        checks.require(self.units % 2 == 0, "Layers.units", "be even", self.units)


@checks.dataclass
class More(Layers):
    """Adds a setting, and redeclares the default of another one."""

    units: int = 32
    depth: checks.Natural = 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"units": 0}, "Layers.units must be at least 1, got 0."),
        ({"units": 2.0}, "Layers.units must be a whole number, got 2.0."),
        ({"units": True}, "Layers.units must be a whole number, got True."),
        ({"units": 3}, "Layers.units must be even, got 3."),
        ({"sizes": ()}, "Layers.sizes must hold a size, got []."),
        ({"sizes": 3}, "Layers.sizes must be a list of whole numbers, got 3."),
        ({"sizes": [1, 0]}, "Layers.sizes must be at least 1, got 0."),
        ({"kind": "sun"}, "Layers.kind must be one of mean, sum, got 'sun'. Did you mean 'sum'?"),
        ({"rate": 1}, "Layers.rate must be in [0, 1), got 1."),
        ({"weights": {"a": 0}}, "Layers.weights['a'] must be above 0, got 0."),
        ({"weights": {1: 1}}, "Layers.weights must be a map from texts, got 1."),
        ({"share": 0}, "Layers.share must be in (0, 1], got 0."),
        ({"share": float("nan")}, "Layers.share must be a float32, got nan."),
        ({"factor": -1}, "Layers.factor must be above 0, got -1."),
        ({"factor": object()}, "Layers.factor must be a number or a schedule such as"),
        ({"factor": dict}, "a number or a schedule such as @schedules.Cosine(), got .*parentheses"),
        ({"names": ["a", "a"]}, "Layers.names must hold each name once, got ['a']."),
        ({"own": 1}, "Layers.own must be True or False, got 1."),
    ],
)
def test_one_line_for_a_value_that_a_setting_cannot_have(settings, message):
    with pytest.raises(checks.UserError) as caught:
        Layers(**settings)
    told = str(caught.value)
    assert all(part in told for part in message.split(".*"))


def test_values_at_the_edges_pass():
    Layers(units=2, sizes=[1], rate=0, share=1, weights={"a": 1e-9}, factor=lambda step: step)
    assert Layers(rate=None).rate is None


def test_a_subclass_checks_what_its_bases_declare_and_is_named_in_errors():
    assert More(depth=0, units=2).depth == 0
    for settings, told in (({"kind": ""}, "More.kind"), ({"units": 0}, "More.units")):
        with pytest.raises(checks.UserError, match=told):
            More(**settings)
    with pytest.raises(checks.UserError, match=r"More\.depth must be at least 0"):
        More(depth=-1)
    with pytest.raises(checks.UserError, match="be even"):
        More(units=3)


def test_a_plain_dataclass_may_inherit_from_a_declared_one():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Plain(Layers):
        depth: int = 0

    with pytest.raises(checks.UserError, match=r"Plain\.units must be at least 1"):
        Plain(units=0)


def test_a_class_is_frozen_and_copies_are_checked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Layers().units = 3
    with pytest.raises(checks.UserError, match="at least 1"):
        dataclasses.replace(Layers(), units=0)


def test_settings_are_described_by_what_they_take():
    assert checks.describe_settings(More) == {
        "sizes": "Sequence[int, at least 1]",
        "kind": "str, one of mean, sum",
        "rate": "float, in [0, 1), or None",
        "weights": "Mapping[str, float, above 0]",
        "share": "float, in (0, 1]",
        "factor": "float | Any",
        "names": "Sequence[str], each once",
        "depth": "int, at least 0",
    }
