import contextlib
import fcntl
import logging
import os
import pty
import re
import struct
import sys
import termios
import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from launch import app
from mtl.monitoring import doubts, hooks
from mtl.step import training_loop
from tests import tiny

tf1 = tf.compat.v1

BATCH = 64


def _step(features, labels):
    """A step whose loss is half the step's number."""
    del labels
    step = tf1.train.get_global_step()
    features = tf.ensure_shape(tf.numpy_function(_slowly, [features], tf.int64), [])
    with tf.control_dependencies([features]):
        train_op = step.assign_add(1, read_value=False)
    return train_op, {"other": tf.constant(2.0), "loss": tf.cast(features, tf.float32) / 2}


def _slowly(number):
    time.sleep(0.02)
    return number


class _Pausing(tf1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        time.sleep(0.05)


def _run(make_hook, num_steps, steps_per_call=1, others=(), step=None):
    """Trains in a real session with the hook that `make_hook` makes of the step's result."""
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        dataset = tf.data.Dataset.range(1, 1000)
        dataset = dataset.map(lambda number: (number, number))
        iterator = tf1.data.make_initializable_iterator(dataset)
        tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        if steps_per_call == 1:
            result = training_loop.run_once(step or _step, *iterator.get_next())
        else:
            result = training_loop.run_repeatedly(
                step or _step, iterator, steps_per_call, num_steps, ()
            )
        stop = tf1.train.StopAtStepHook(last_step=num_steps)
        used = [make_hook(result), stop, _Pausing(), *others]
        with tf1.train.MonitoredSession(hooks=used) as session:
            while not session.should_stop():
                session.run(result.step)


@pytest.mark.medium
@pytest.mark.parametrize("steps_per_call", [1, 5])
def test_summaries_hold_the_values_of_their_steps(tmp_path, steps_per_call):
    def make(result):
        return hooks.Summaries(result, str(tmp_path), every_steps=10, batch_size=BATCH)

    _run(make, 25, steps_per_call)
    found = tiny.scalars(tmp_path)
    assert {step for step, _ in found} == {10, 20}
    assert {tag for _, tag in found} == {"other", "loss", "steps_per_sec", "examples_per_sec"}
    assert (found[10, "loss"], found[20, "loss"]) == (5.0, 10.0)
    # A step takes 20 ms; the 50 ms between two calls do not count.
    assert 25 < found[20, "steps_per_sec"] <= 50
    speed = found[20, "steps_per_sec"] * BATCH
    assert found[20, "examples_per_sec"] == pytest.approx(speed)


@pytest.mark.medium
def test_summaries_of_a_run_that_fails_are_there(tmp_path):
    class Failing(tf1.train.SessionRunHook):
        def before_run(self, run_context):
            return tf1.train.SessionRunArgs(tf1.train.get_global_step())

        def after_run(self, run_context, run_values):
            if run_values.results >= 15:
                raise RuntimeError("stop here")

    def make(result):
        return hooks.Summaries(result, str(tmp_path), every_steps=10, batch_size=BATCH)

    with pytest.raises(RuntimeError, match="stop here"):
        _run(make, 25, others=[Failing()])
    assert tiny.scalars(tmp_path)[10, "loss"] == 5.0


def _progress(result):
    return hooks.Progress(result, last_step=25, batch_size=BATCH)


@pytest.mark.medium
def test_progress_logs_plain_lines_without_a_terminal(caplog, capsys, monkeypatch):
    monkeypatch.setattr(hooks, "_LOG_SECS", 0.1)
    with caplog.at_level(logging.INFO, "mtl"):
        _run(_progress, 25)
    lines = [record.getMessage() for record in caplog.records if record.name == hooks.__name__]
    assert 2 <= len(lines) < 25
    pattern = r"step (\d+) of 25, loss ([\d.]+), [\d,]+ examples/s, \d+ s left"
    for line in lines:
        step, loss = re.fullmatch(pattern, line).groups()
        assert float(loss) == int(step) / 2
    assert lines[-1].startswith("step 25 of 25, loss 12.5,")
    assert "\r" not in capsys.readouterr().err


@contextlib.contextmanager
def _terminal(monkeypatch):
    """A list that gets what is written to a terminal that stands in for standard error."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    written = []
    reader = threading.Thread(target=_drain, args=(ours, written))
    reader.start()
    with os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        yield written
    reader.join()
    os.close(ours)


def _drain(terminal, written):
    """Reads until the other end is closed, which Linux reports as an error."""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 1 << 16):
            written.append(data.decode(errors="replace"))


@pytest.mark.medium
def test_progress_is_a_bar_on_a_terminal(caplog, monkeypatch):
    with caplog.at_level(logging.INFO, "mtl"), _terminal(monkeypatch) as written:
        _run(_progress, 25)
    text = "".join(written)
    assert not caplog.records
    states = re.findall(r"(\d+)/25 \[\d+:\d+<(\d+:\d+),.*?([\d,]+) examples/s, loss ([\d.]+)", text)
    assert len(states) >= 2
    for step, _, examples, loss in states:
        assert float(loss) == int(step) / 2
        assert int(examples.replace(",", "")) > 0
    # The last thing is that the bar is wiped.
    assert text.rstrip(" ").endswith("\r")


@pytest.mark.medium
def test_a_line_stands_above_the_bar(monkeypatch):
    """As that of an evaluation does, which comes while the bar is shown."""
    logger = logging.Logger("lines")
    logger.addHandler(app.Lines())

    class Telling(tf1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            logger.info("evaluated: auc %g", 0.5)

    with _terminal(monkeypatch) as written:
        _run(_progress, 3, others=[Telling()])
    states = re.split(r"[\r\n]", "".join(written))
    assert [state.strip() for state in states].count("evaluated: auc 0.5") == 3
    assert sum("evaluated" in state for state in states) == 3


def test_a_line_without_a_bar_is_a_plain_line(capsys):
    logger = logging.Logger("lines")
    logger.addHandler(app.Lines())
    logger.info("evaluated: auc %g", 0.5)
    assert capsys.readouterr() == ("", "evaluated: auc 0.5\n")


@pytest.mark.medium
@pytest.mark.parametrize("every", [1, 4, 10])
def test_summaries_that_are_fetched_come_at_their_steps(tmp_path, every):
    """In one step a call they are made only where they are due."""
    made = []

    def step(features, labels):
        train_op, monitors = _step(features, labels)
        told = tf.numpy_function(lambda n: made.append(int(n)) or n, [features], tf.int64)
        tf1.summary.scalar("told", tf.cast(tf.ensure_shape(told, []), tf.float32))
        return train_op, monitors

    def make(result):
        return hooks.Summaries(result, str(tmp_path), every_steps=every, batch_size=BATCH)

    _run(make, 12, step=step)
    due = [number for number in range(1, 13) if number % every == 0]
    found = tiny.scalars(tmp_path)
    assert {key: value for key, value in found.items() if key[1] == "told"} == {
        (number, "told"): number for number in due
    }
    assert made == due


@pytest.mark.parametrize("skipped, is_told", [(0, False), (4, False), (5, True), (40, True)])
def test_many_steps_that_were_skipped_are_told_at_the_end(skipped, is_told, tmp_path):
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        names = ("loss", "skipped_steps")
        hook = hooks.Skipped(
            training_loop.StepResult(tf.constant(0), tf.zeros([2]), names), tmp_path
        )
        hook.before_run(None)
        # The last call of a run makes no step.
        for values in ([0.7, skipped], [0.0, 0.0]):
            results = (40, np.float32(values))
            hook.after_run(None, tf1.train.SessionRunValues(results, None, None))
        hook.end(None)
    told = doubts.read_all_doubts(str(tmp_path))
    assert bool(told) == is_told
    assert not told or told[0].startswith(f"{skipped} of 40 steps were skipped")


@pytest.mark.medium
def test_callbacks_come_once_before_the_first_step_and_after_each_call():
    steps = []

    def make(result):
        return hooks.Callbacks(lambda: steps.append("started"), lambda: steps.append("called"))

    _run(make, 2)
    assert steps == ["started", "called", "called"]


@pytest.mark.parametrize(
    "losses, weights, start, is_told",
    [
        ((44.0, 1.0), (1.0, 1.0), 0, True),
        ((44.0, 1.0), (0.01, 1.0), 0, False),
        ((44.0, 1.0), (1.0, 1.0), 5, False),
        ((0.7, 1.1), (1.0, 1.0), 0, False),
        ((44.0, -1.0), (1.0, 1.0), 0, False),
        ((float("nan"), 1.0), (1.0, 1.0), 0, False),
    ],
)
def test_a_task_that_makes_up_the_loss_is_told_once(losses, weights, start, is_told, tmp_path):
    names = ("loss", "a/loss", "b/loss", "weight/a", "weight/b")
    model = types.SimpleNamespace(tasks=("a", "b"), loss_names=("a", "b"), adds_losses=True)
    run = types.SimpleNamespace(summary_steps=10, train_steps=40)
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        result = training_loop.StepResult(tf.constant(0), tf.zeros([5]), names)
        hook = hooks.Dominance(result, str(tmp_path), model, run)
        hook.after_create_session(types.SimpleNamespace(run=lambda _: start), None)
        values = np.float32([0.0, *losses, *weights])
        hook.on_step(None, 9, values)
        assert doubts.read_all_doubts(str(tmp_path)) == []
        hook.on_step(None, 10, values)
        told = doubts.read_all_doubts(str(tmp_path))
        hook.on_step(None, 20, np.float32([0, 1, 99, 1, 1]))
    assert doubts.read_all_doubts(str(tmp_path)) == told and len(told) == is_told
    assert not told or told[0].startswith("Task 'a' makes up 44 of the loss of 45 at step 10")


def test_an_auxiliary_loss_that_makes_up_the_loss_is_told(tmp_path):
    names = ("loss", "a/loss", "aux/loss", "weight/a", "weight/aux")
    model = types.SimpleNamespace(tasks=("a",), loss_names=("a", "aux"), adds_losses=True)
    run = types.SimpleNamespace(summary_steps=10, train_steps=40)
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        result = training_loop.StepResult(tf.constant(0), tf.zeros([5]), names)
        hook = hooks.Dominance(result, str(tmp_path), model, run)
        hook.after_create_session(types.SimpleNamespace(run=lambda _: 0), None)
        hook.on_step(None, 10, np.float32([0.0, 1.0, 0.5, 1.0, 1000.0]))
    (told,) = doubts.read_all_doubts(str(tmp_path))
    assert told.startswith("Auxiliary loss 'aux' makes up 500 of the loss of 501 at step 10")
