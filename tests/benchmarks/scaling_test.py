import types

import pytest

from benchmarks import scaling
from mtl import distribution


def test_what_limits_workers_in_step():
    """A ring of N machines carries 2 (N - 1) / N times 4 bytes of every parameter."""
    assert scaling.efficiency(1, 1e9, 25.0, 0.4) == (0.4, 1.0)
    secs, share = scaling.efficiency(4, 1e8, 2.0, 0.4)
    sent = 2 * 3 / 4 * 4e8
    assert secs == pytest.approx(0.1 + sent / 2e9)
    assert share == pytest.approx(0.1 / secs)
    many, _ = scaling.efficiency(10_000, 1e8, 2.0, 0.4)
    assert many == pytest.approx(8e8 / 2e9, rel=1e-3)


@pytest.mark.medium
def test_a_plain_estimator_is_timed_after_its_warm_up(monkeypatch):
    """Workers are compared with it; here a single process trains in their place."""

    def train(estimator, spec, _):
        estimator.train(spec.input_fn, hooks=spec.hooks, max_steps=spec.max_steps)

    monkeypatch.setattr(scaling.compat.estimator, "train_and_evaluate", train)
    monkeypatch.setattr(scaling, "_UNITS", types.SimpleNamespace(value=4))
    monkeypatch.setattr(scaling, "_WARM_UP", 2)
    speed, waiting = scaling.plain_estimator(distribution.ONE, 3)
    assert speed > 0
    assert waiting != waiting  # NaN: an Estimator does not show how long it waits.
