"""The scalars that a tracker gets: the speed and the waiting since its last report."""

import types

import numpy as np
import pytest

from mtl.tools.tracking import tracked


def test_speed_and_waiting_are_those_since_the_last_report():
    told = []
    result = types.SimpleNamespace(names=["loss"])
    hook = tracked.Tracked(result, 10, 64, lambda part, step, scalars: told.append((step, scalars)))
    session = types.SimpleNamespace(run=lambda fetched: 0)
    with tracked.tf1.Graph().as_default():
        hook.time.waited_secs = 0.0
        hook.after_create_session(session, None)
        for step, secs, waited_secs in ((5, 1.0, 0.9), (10, 2.0, 1.0), (20, 6.0, 4.0)):
            hook.time.secs, hook.time.waited_secs = secs, waited_secs
            hook.on_step(None, step, np.array([0.5]))
    steps, scalars = zip(*told, strict=True)
    assert steps == (10, 20)
    assert scalars[0] == {
        "loss": 0.5,
        "steps_per_sec": 5,
        "examples_per_sec": 320,
        "input_wait_share": 0.5,
    }
    assert scalars[1] == pytest.approx(
        {"loss": 0.5, "steps_per_sec": 2.5, "examples_per_sec": 160, "input_wait_share": 0.75}
    )
