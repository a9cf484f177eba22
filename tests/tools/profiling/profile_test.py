"""Runs that are profiled: which calls, what is written, and that nothing else changes."""

import dataclasses
import json
import logging

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, experiment
from mtl.monitoring import summary
from mtl.tf_internals import xplane
from mtl.tools.profiling import profile
from tests import brakes, tiny


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlowRows(tiny.Rows):
    """Rows that take longer to decode than a step takes."""

    def decode(self, batch, spec, with_labels):
        fields = super().decode(batch, spec, with_labels)
        x = tf.numpy_function(brakes.Brake(least_secs=0.2), [fields["x"]], tf.float32)
        return {**fields, "x": tf.ensure_shape(x, fields["x"].shape)}


def _slow(**run):
    made = tiny.make(train_steps=12, **run)
    source = SlowRows(splits=tiny.SPLITS)
    return dataclasses.replace(made, data=dataclasses.replace(made.data, source=source))


def _raw(model_dir):
    (folder,) = (model_dir / "plugins" / "profile").iterdir()
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("steps_per_call", "calls"), [(100, [4, 9]), (1, [4, 5, 6, 7, 8, 9])])
def test_a_slow_input_is_found_and_only_the_steps_asked_for_are_profiled(
    tmp_path, caplog, steps_per_call, calls
):
    with caplog.at_level(logging.INFO, "mtl"):
        tiny.train(_slow(profile=[4, 10], steps_per_call=steps_per_call), tmp_path)
    # Each mark is a session call; it begins at the step that it says.
    marks = [
        event.stats["step_num"]
        for plane in xplane.read(_raw(tmp_path))
        for _, events in plane.lines
        for event in events
        if event.name == profile.CALL
    ]
    assert sorted(marks) == calls
    told = json.loads((tmp_path / "profile" / "step_4_10.json").read_text())
    assert (told["first_step"], told["last_step"]) == (5, 9)
    assert told["session_calls"] == len(calls) - 1
    shares = {row["word"]: row["share"] for row in told["words"]}
    assert sum(shares.values()) == pytest.approx(100)
    wall = sum(row["wall_ms"] for row in told["words"])
    assert wall == pytest.approx(told["step_ms"])
    assert max(shares, key=shares.get) == "waiting for input"
    assert "Pipeline.cache = True" in told["advice"][0]
    assert told["peak_bytes"] > 16 * 3 * 4  # At least the batch.
    assert {"encode", "network", "heads", "update"} <= shares.keys()
    text = (tmp_path / "profile" / "step_4_10.txt").read_text()
    assert text in caplog.text and "Pipeline.cache = True" in text
    metrics = {"global_step": 12}
    assert told["headline"] in summary.of_training(str(tmp_path), metrics, 12, "mtl")


@pytest.mark.slow
@pytest.mark.parametrize("steps_per_call", [100, 1])
def test_weights_are_those_of_a_run_without_a_profile(tmp_path, steps_per_call):
    plain = tiny.train(tiny.make(steps_per_call=steps_per_call), tmp_path / "plain")
    made = tiny.make(steps_per_call=steps_per_call, profile=(3, 17))
    profiled = tiny.train(made, tmp_path / "profiled")
    assert plain.keys() == profiled.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(value, profiled[name], err_msg=name)
    assert not (tmp_path / "plain" / "plugins").exists()
    assert not (tmp_path / "plain" / "profile").exists()


@pytest.mark.medium
def test_two_profilers_at_once_are_refused_and_a_late_start_is_told(tmp_path, caplog):
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        with pytest.raises(checks.UserError, match=r"^Run\.profile must be None while another "):
            tiny.train(tiny.make(train_steps=10, profile=[4, 8]), tmp_path / "run")
    finally:
        tf.profiler.experimental.stop(save=False)
    tiny.train(tiny.make(train_steps=10), tmp_path / "late")
    with caplog.at_level(logging.INFO, "mtl"):
        tiny.train(tiny.make(train_steps=20, profile=[4, 12]), tmp_path / "late")
    assert "No profile of steps 4 to 12: training goes on from step 10" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ([0, 10], "begin at step 1 or later, got [0, 10]"),
        ([-5, 10], "begin at step 1 or later"),
        ([10, 41], "end at Run.train_steps, 40, or before, got [10, 41]"),
        ([20, 10], "span two steps or more, in order, got [20, 10]"),
        ([10, 11], "span two steps or more"),
        ([10], "be None or two steps, such as [100, 110], got [10]"),
        ([10, 20, 30], "be None or two steps"),
        ([10, 20.5], "be None or two steps"),
        (["a", "b"], "be None or two steps"),
        (100, "be None or two steps"),
    ],
)
def test_wrong_steps_are_refused(wrong, rule):
    with pytest.raises(checks.UserError) as raised:
        experiment.Run(train_steps=40, profile=wrong)
    assert f"Run.profile must {rule}" in str(raised.value)
