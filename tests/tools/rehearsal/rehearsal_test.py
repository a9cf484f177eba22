"""A run before it starts: what is read, counted and timed, and that nothing is written."""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from mtl.tools.rehearsal import rehearsal, rehearsal_text
from tests import tiny
from tests.tools.explaining import conftest

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run after 4 of 40 steps, and the values of its last checkpoint."""
    model_dir = tmp_path_factory.mktemp("rehearsed") / "run"
    return model_dir, tiny.train(tiny.make(train_steps=4), model_dir)


def files(folder):
    return {path: path.read_bytes() for path in pathlib.Path(folder).rglob("*") if path.is_file()}


def test_a_new_run_is_counted_and_timed(tmp_path, run):
    made = tiny.make(checkpoint_steps=15)
    found = rehearsal.rehearse(made, str(tmp_path / "no" / "run"))
    assert not list(tmp_path.iterdir())
    assert {name: split.rows for name, split in found.splits.items()} == {"train": 96, "test": 48}
    assert all(split.is_whole for split in found.splits.values())
    assert found.num_bytes == sum(value.nbytes for value in run[1].values())
    own = [name for name in run[1] if name.startswith(("features/", "network/", "head/"))]
    slots = [name for name in own if any(name.startswith(f"{other}/") for other in own)]
    counts = {name: run[1][name].size for name in own if name not in slots}
    assert sum(scope.parameters for scope in found.tree) == sum(counts.values())
    assert (found.first_step, found.last_step, found.evaluations) == (0, 40, 3)
    assert found.steps.secs > 0 and found.batches.secs > 0
    assert found.batch.size == 16 and np.shape(found.batch.features["x"]) == (16, 3)
    text = rehearsal_text.describe(found)
    for line in (
        "train    96        6",
        "x      feature  float32  [16, 3]",
        "40 steps, 3 evaluations",
    ):
        assert line in text


def test_rows_with_lists_are_rehearsed(tmp_path):
    found = rehearsal.rehearse(conftest.make(), str(tmp_path / "run"))
    assert {name: split.rows for name, split in found.splits.items()} == {"train": 800, "test": 300}


def test_a_run_goes_on_in_a_copy(run):
    model_dir, _ = run
    before = files(model_dir)
    found = rehearsal.rehearse(tiny.make(), str(model_dir))
    assert (found.first_step, found.last_step) == (4, 40)
    assert files(model_dir) == before
    done = dataclasses.replace(found, last_step=4, steps=None)
    assert "Nothing to train: step 4 of 4." in rehearsal_text.describe(done)


@pytest.mark.parametrize(("sizes", "secs"), [([5], 2), ([5, 5, 3], 4), ([], 0)])
def test_the_first_batch_is_timed_only_if_it_is_alone(sizes, secs, monkeypatch):
    now = [0.0]

    class Session:
        def run(self, count, feed):
            if not sizes:
                raise tf.errors.OutOfRangeError(None, None, "the end")
            now[0] += 2
            return sizes.pop(0)

    rows = sum(sizes)
    monkeypatch.setattr(rehearsal.time, "perf_counter", lambda: now[0])
    split = rehearsal._read_split(Session(), None, {})
    assert (split.rows, split.secs, split.is_whole) == (rows, secs, True)
