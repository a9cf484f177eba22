"""Every side that a benchmark times still makes its steps."""

import functools

import numpy as np
import pytest

from benchmarks import (
    balancing_costs,
    balancing_speed,
    clip_audit_cost,
    gradients,
    micro_batches,
    overhead,
)
from mtl.balancing import methods, surgery

pytestmark = pytest.mark.medium


def test_balancing_steps():
    part = surgery.Combine(method=methods.MGDA(), on="representation")
    network = balancing_speed.a_model("convnet", 2, part)
    for model, batches in (
        (network, functools.partial(balancing_speed.noise, "convnet", 2)),
        (balancing_costs.looked_up(100, part), functools.partial(balancing_costs.lookups, 100)),
    ):
        steps = balancing_speed.Steps(model, batches)
        assert steps(2) > 0
        assert steps._step == 2
        steps.close()


def test_balancing_tells_its_memory(capsys):
    balancing_speed.measure_peak("mlp_64", 2, "Sum", "exact", threads=1)
    assert float(capsys.readouterr().out) > 0.1  # A single layer's activations take more.


@pytest.mark.parametrize("name", ["AGC", "masked entries"])
def test_gradient_steps(name):
    secs = gradients._measured([(name, functools.partial(gradients._table, 100, 50))], 1, 2)
    assert np.all(secs > 0)


def test_sliced_steps_tell_their_memory(capsys):
    micro_batches._measure("PCGrad on the representation", 8, 2)
    memory, secs = map(float, capsys.readouterr().out.split())
    assert memory >= 0
    assert secs > 0


def test_a_training_and_a_bare_loop_take_turns():
    side = functools.partial(overhead.train_whole, steps_per_call=10)
    turns = overhead.measure(side, units=4, num_turns=2)
    assert all(len(secs) >= 3 and min(secs) > 0 for secs in turns.secs.values())
    assert overhead.describe_ratios(turns, 2).count(" to ") == 2


def test_audited_steps(tmp_path):
    model = clip_audit_cost._model("12 tables of 10,000 rows", 1)
    steps = clip_audit_cost._Steps(model, clip_audit_cost._batch(4, 1), str(tmp_path), True)
    assert steps.secs(2) > 0
