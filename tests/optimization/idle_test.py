"""Rates, their factors, and freezing decide which variables move in which steps."""

import math

import pytest

from mtl.optimization import idle, optimizers, schedules, update
from mtl.variables import freezing

TABLE, KERNEL = "features/job/embedding", "network/trunk/kernel"
ENDS = schedules.Piecewise(boundaries=[9], values=[1.0, 1e-9])


def _ended(decay_steps, value=1.0):
    return schedules.Polynomial(value=value, decay_steps=decay_steps)


def _found(until=None, frozen=(), **settings):
    part = update.Update(**settings)
    frozen = freezing.Freezing(until=until or {}, frozen=frozen)
    found = idle.find_moving(part, frozen, [TABLE, KERNEL, "network/trunk/bias"], last=20)
    return {moving.example: (moving.where, moving.first, moving.end) for moving in found}


LAZY = optimizers.LazyAdam()


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, {TABLE: ("Update.optimizer", 0, math.inf)}),
        ({"schedule": _ended(6)}, {TABLE: ("Update.schedule", 0, 6)}),
        ({"rates": {"": ENDS}}, {TABLE: ("Update.optimizer", 0, math.inf)}),
        ({"frozen": ["^features/"]}, {KERNEL: ("Update.optimizer", 0, math.inf)}),
        (
            {"optimizers": {"^features/": optimizers.LazyAdam(learning_rate=_ended(5))}},
            {
                TABLE: ("Update.optimizers['^features/']", 0, 5),
                KERNEL: ("Update.optimizer", 0, math.inf),
            },
        ),
        (
            {
                "optimizer": optimizers.LazyAdam(learning_rate=_ended(5)),
                "optimizers": {"^features/": LAZY},
            },
            {
                TABLE: ("Update.optimizers['^features/']", 0, math.inf),
                KERNEL: ("Update.optimizer", 0, 5),
            },
        ),
        (
            {
                "optimizer": optimizers.LazyAdam(learning_rate=_ended(7)),
                "rates": {"trunk": _ended(4), "kernel$": 0.5},
            },
            {TABLE: ("Update.optimizer", 0, 7), KERNEL: ("Update.rates['trunk']", 0, 4)},
        ),
        (
            {"until": {"trunk": 30, "bias": 40}},
            {
                TABLE: ("Update.optimizer", 0, math.inf),
                KERNEL: ("Update.optimizer", 30, math.inf),
                "network/trunk/bias": ("Update.optimizer", 40, math.inf),
            },
        ),
    ],
)
def test_when_variables_move(settings, expected):
    assert _found(**settings) == expected


@pytest.mark.parametrize(
    "first_step, end, first, is_idle",
    [(0, 7, 0, False), (0, 7, 7, True), (6, 7, 0, False), (7, 7, 0, True), (20, math.inf, 0, True)],
)
def test_idle(first_step, end, first, is_idle):
    moving = idle.Moving(example="a", where="b", first=first_step, end=end)
    assert moving.is_idle(first, 20) == is_idle
