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

import pytest
import tensorflow as tf

from launch import app
from mtl.monitoring import progress
from tests import brakes
from tests.monitoring import sessions

tf1 = tf.compat.v1


def _progress(result):
    return progress.Progress(result, last_step=25, batch_size=sessions.BATCH)


def _take_step(features, labels):
    """A step of two tasks."""
    train_op, monitors = sessions.take_step(features, labels)
    losses = {f"{name}/loss": monitors["loss"] / 2 for name in ("income", "age")}
    return train_op, {**monitors, **losses}


def _progress_of_tasks(result):
    return progress.Progress(result, 25, sessions.BATCH, ["income", "age"])


@pytest.mark.medium
@pytest.mark.parametrize("steps_per_call", [1, 3])
def test_progress_logs_plain_lines_without_a_terminal(caplog, capsys, monkeypatch, steps_per_call):
    monkeypatch.setattr(progress, "_LOG_SECS", 0.1)
    with caplog.at_level(logging.INFO, "mtl"):
        sessions.run(_progress_of_tasks, 25, steps_per_call, step=_take_step)
    records = [record for record in caplog.records if record.name == progress.__name__]
    assert 2 <= len(records) < 25
    waiting = r" waiting \d+%," * (steps_per_call > 1)
    losses = r" loss ([\d.]+), income ([\d.]+), age [\d.]+, \d+ s left"
    for record in records:
        line = rf"step (\d+) of 25, [\d,]+ examples/s,{waiting}{losses}"
        step, loss, of_task = re.fullmatch(line, record.getMessage()).groups()
        assert float(loss) == int(step) / 2
        assert float(of_task) == pytest.approx(int(step) / 4, abs=0.01)
        assert record.fields["losses"] == {"income": int(step) / 4, "age": int(step) / 4}
    assert records[-1].getMessage().startswith("step 25 of 25, ")
    assert "\r" not in capsys.readouterr().err


@pytest.mark.medium
def test_the_share_of_waiting_is_that_of_the_input(caplog):
    """A step takes 20 ms. A batch takes 60 or more, and TensorFlow reads one while a step runs."""
    shares = []
    for read in (lambda number: number, brakes.Brake(least_secs=0.06)):

        def prepare(dataset, read=read):
            rows = dataset.map(lambda n: tf.ensure_shape(tf.numpy_function(read, [n], n.dtype), []))
            return rows.map(lambda n: (n, n))

        with caplog.at_level(logging.INFO, "mtl"):
            sessions.run(_progress, 25, steps_per_call=5, prepare=prepare)
        shares.append(caplog.records[-1].fields["input_wait_share"])
    assert shares[0] + 0.1 < shares[1] and 0.4 < shares[1] < 1


@contextlib.contextmanager
def _terminal(monkeypatch, columns=120):
    """A list that gets what is written to a terminal that stands in for standard error."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
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
@pytest.mark.always
def test_progress_is_a_bar_on_a_terminal(caplog, monkeypatch):
    with caplog.at_level(logging.INFO, "mtl"), _terminal(monkeypatch) as written:
        sessions.run(_progress_of_tasks, 25, step=_take_step)
    text = "".join(written)
    assert not caplog.records
    pattern = r"(\d+)/25 \[\d+:\d+<(\d+:\d+),.*?([\d,]+) examples/s, loss ([\d.]+), income"
    states = re.findall(pattern, text)
    assert len(states) >= 2
    for step, _, examples, loss in states:
        assert float(loss) == int(step) / 2
        assert int(examples.replace(",", "")) > 0
    # The last thing is that the bar is wiped.
    assert text.rstrip(" ").endswith("\r")


@pytest.mark.medium
@pytest.mark.parametrize(("columns", "tasks"), [(40, 0), (60, 0), (80, 0), (110, 1), (200, 2)])
def test_the_bar_fits_the_terminal_and_cuts_no_number(columns, tasks, monkeypatch, caplog):
    with caplog.at_level(logging.INFO, "mtl"), _terminal(monkeypatch, columns) as written:
        sessions.run(_progress_of_tasks, 25, step=_take_step)
    states = [state for state in re.split(r"[\r\n]", "".join(written)) if "25 [" in state]
    assert len(states) >= 2 and max(map(len, states)) <= columns
    for state in states[1:]:  # The first one comes before any step.
        assert re.search(r"%\|.{8,}\| \d+/25 \[.*\]$", state), state
        assert re.search(r", loss [\d.]+[,\]]", state) or columns < 60, state
        assert state.count("income") + state.count("age") >= tasks


def test_tasks_without_room_are_counted():
    fields = {"loss": 6.0, "losses": {"a": 1.0, "b": 2.0, "c": 3.0}}
    tell = [progress.Progress._tell(None, fields, number) for number in (0, 1, 2, 3)]
    of_tasks = ["", ", a 1, 2 more", ", a 1, b 2, 1 more", ", a 1, b 2, c 3"]
    assert tell == [f"loss 6{text}" for text in of_tasks]


@pytest.mark.medium
def test_a_line_stands_above_the_bar(monkeypatch):
    """As that of an evaluation does, which comes while the bar is shown."""
    logger = logging.Logger("lines")
    logger.addHandler(app.Lines())

    class Telling(tf1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            logger.info("evaluated: auc %g", 0.5)

    with _terminal(monkeypatch) as written:
        sessions.run(_progress, 3, others=[Telling()])
    states = re.split(r"[\r\n]", "".join(written))
    assert [state.strip() for state in states].count("evaluated: auc 0.5") == 3
    assert sum("evaluated" in state for state in states) == 3


def test_a_line_without_a_bar_is_a_plain_line(capsys):
    logger = logging.Logger("lines")
    logger.addHandler(app.Lines())
    logger.info("evaluated: auc %g", 0.5)
    assert capsys.readouterr() == ("", "evaluated: auc 0.5\n")


def test_what_takes_long_is_told_and_what_does_not_is_not(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    with progress.tell_while(lambda: "exporting"):
        pass
    assert not caplog.messages
    monkeypatch.setattr(progress, "_LOG_SECS", 0.001)
    told = threading.Event()

    def describe():
        told.set()
        return "exporting"

    with progress.tell_while(describe):
        assert told.wait(60)
    assert caplog.messages[0].startswith("Still exporting, after ")


@pytest.mark.parametrize(
    ("loss", "text"),
    [(0.5, "loss 0.5, a 0.5, b (no label)"), (float("nan"), "loss nan, a 0.5, b nan")],
)
def test_a_task_without_labels_in_the_batch_is_told_apart_from_nan(loss, text):
    fields = {"loss": loss, "losses": {"a": 0.5, "b": float("nan")}}
    assert progress.Progress._tell(None, fields, 2) == text
