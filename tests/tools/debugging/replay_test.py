"""Runs that break at a step, which is then replayed; all faults are in benchmarks/debugger.py."""

import contextlib
import dataclasses
import json
import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import debugger
from mtl import checks, verbs
from mtl.balancing import methods, surgery
from mtl.tools.debugging import findings, replay
from tests import tiny

pytestmark = [pytest.mark.medium, pytest.mark.keeps_op_stacks]


def train(made, model_dir):
    """The one line that ended the run."""
    with pytest.raises(checks.UserError) as error:
        tiny.train(made, model_dir)
    return str(error.value)


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Return an experiment whose head takes the logarithm of 0 at step 5, its folder and error."""
    model_dir = tmp_path_factory.mktemp("broken") / "run"
    made = debugger.make("log_of_zero", "head", checkpoint_steps=2, summary_steps=1)
    return made, model_dir, train(made, model_dir)


def test_a_run_that_fails_names_the_command_and_the_page_names_row_and_line(broken):
    made, model_dir, said = broken
    assert said.endswith(f"python -m launch.debug --model_dir {model_dir} --step 5")
    before = content(model_dir)
    printed = verbs.debug(made, str(model_dir))
    after = content(model_dir)
    folder = model_dir / "debug" / "step_5"
    assert {path.parent for path in after.keys() - before.keys()} == {folder}
    assert all(after[path] == value for path, value in before.items())
    assert "Step 5: the logarithm of 0" in printed and "rows     11" in printed
    assert "benchmarks/debugger.py:" in printed and "tf.math.log(probe)" in printed
    assert "tasks    size\n" in printed
    page = (folder / "summary.md").read_text()
    assert f"python -m launch.debug --model_dir {model_dir} --step 5\n" in page
    (row,) = map(json.loads, (folder / "rows.jsonl").read_text().splitlines())
    columns, number = made.data.source.columns, debugger.STEP * debugger.BATCH + debugger.ROW
    assert row["row"] == debugger.ROW and row["label_probe"] == 0
    assert row["place"] == f"train row {number}" and row["place"] in printed
    assert row["x"] == columns["x"][number].tolist() and row["size"] == columns["size"][number]


def test_an_earlier_step_is_the_one_that_was_and_nothing_is_broken_in_it(broken):
    made, model_dir, _ = broken
    logged = tiny.scalars(model_dir)
    with replay.open_step(made, str(model_dir), 4) as replayed:
        assert findings.examine_step(replayed).findings == []
        for task, tensor in replayed.losses.items():
            for dump, step in ((replayed.before, 3), (replayed.dump, 4)):
                (value,) = dump.read_numbers(tensor)
                np.testing.assert_allclose(value, logged[step + 1, f"{task}/loss"], rtol=1e-5)


def test_a_run_that_looked_texts_up_before_is_replayed_with_texts(tmp_path):
    made = tiny.make(train_steps=5, checkpoint_steps=2, summary_steps=1)
    made = dataclasses.replace(made, data=dataclasses.replace(made.data, cache=True))
    tiny.train(made, tmp_path)
    logged = tiny.scalars(tmp_path)
    with replay.open_step(made, str(tmp_path), 3) as replayed:
        for task, tensor in replayed.losses.items():
            (value,) = replayed.dump.read_numbers(tensor)
            np.testing.assert_allclose(value, logged[4, f"{task}/loss"], rtol=1e-5)


@pytest.mark.parametrize(
    "step, says",
    [
        (-1, "--step must be at least 0"),
        (6, "--step must be at most 5, the step that fails, got 6"),
        (7, "--step must be at most 5, the step that fails, got 7"),
    ],
)
def test_a_step_that_is_never_reached(step, says, broken):
    with pytest.raises(checks.UserError, match=says):
        verbs.debug(broken[0], str(broken[1]), step)


def test_gradients_under_a_condition_are_one_line(tmp_path):
    made = debugger.make("log_of_zero", "head", checkpoint_steps=2, summary_steps=1)
    rare = surgery.Combine(method=methods.CAGrad(), every_steps=10)
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, surgery=rare))
    train(made, tmp_path)
    before = content(tmp_path)
    with pytest.raises(checks.UserError, match="got 'Combine'. Train with Run.check_numerics"):
        verbs.debug(made, str(tmp_path))
    assert content(tmp_path) == before


def test_data_that_cannot_be_read_any_more_is_one_line(broken, monkeypatch):
    def fail(*_):
        raise tf.errors.DataLossError(None, None, "corrupted record")

    monkeypatch.setattr(replay._Replay, "_build_input", fail)
    monkeypatch.setattr(debugger.Arrays, "scan", lambda *_: iter([("gone", "it must be whole")]))
    for step in (4, 5):  # A replay of step 5 runs step 4 first.
        with pytest.raises(checks.UserError, match="^gone: it must be whole"):
            verbs.debug(broken[0], str(broken[1]), step)


def test_a_step_before_all_checkpoints_and_a_run_that_has_not_failed(broken, tmp_path):
    made, model_dir, _ = broken
    for path in model_dir.iterdir():
        if path.is_file() and path.name != "failure.json":
            os.symlink(path, tmp_path / path.name)
    last = 'model_checkpoint_path: "model.ckpt-4"\nall_model_checkpoint_paths: "model.ckpt-4"\n'
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "checkpoint").write_text(last)
    cases = {
        (None,): "--step must be set, because the run has not failed",
        (3,): "--step must come at or after a checkpoint of .*, got 3. Steps with checkpoints: 4",
        (5,): "--step must come at or after a checkpoint with the input state",
    }
    for args, says in cases.items():
        with pytest.raises(checks.UserError, match=says):
            verbs.debug(made, str(tmp_path), *args)


@pytest.mark.parametrize(
    "fault, place, run",
    [
        ("sqrt_gradient", "network", {}),
        ("label_weight", "column", {"micro_batches": 4}),
        ("learning_rate", "head", {"checkpoint_steps": 1}),
    ],
)
def test_a_fault_is_found(fault, place, run, tmp_path):
    made = debugger.make(fault, place, **run)
    step = debugger.STEP
    with contextlib.suppress(checks.UserError):
        tiny.train(made, tmp_path)
    if (tmp_path / "failure.json").exists():
        step = json.loads((tmp_path / "failure.json").read_text())["step"]
    with replay.open_step(made, str(tmp_path), step) as replayed:
        report = findings.examine_step(replayed)
    assert debugger.is_right(fault, place, report), report.findings[:1]


def test_rows_are_valid_json_with_values_that_json_lacks():
    columns = {
        "x": np.array([[1.0, np.nan], [np.inf, 2.0]]),
        "word": np.array([b"a", b"\xff"], object),
    }
    dump = mock.Mock(read_any=columns.get)
    replayed = mock.Mock(fields={name: name for name in columns}, dump=dump)
    assert findings.read_rows(replayed, [0, 1]) == [
        {"row": 0, "x": [1.0, "nan"], "word": "a"},
        {"row": 1, "x": ["inf", 2.0], "word": "\ufffd"},
    ]
