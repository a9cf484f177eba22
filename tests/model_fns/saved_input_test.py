"""A training that stops and goes on reads the rows that it would have read."""

import shutil

import pytest
import tensorflow as tf

from mtl import checks, model_fns
from tests import tiny
from tests.model_fns import twin


def _go_on(trained, folder):
    """Trains from the checkpoint in the middle of a run, in a copy of it."""
    shutil.copytree(trained.twin, folder, ignore=shutil.ignore_patterns(f"*-{twin.STEPS}*"))
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{twin.EVERY}"\n')
    rows = model_fns.SavedInput(twin.read_rows, str(folder))
    estimator = twin.estimator(folder)
    estimator.train(rows.read, max_steps=twin.STEPS, saving_listeners=[rows])
    return tiny.variables(folder)


@pytest.mark.medium
def test_stop_and_go_on_gives_the_same_weights(trained, tmp_path):
    found = _go_on(trained, tmp_path / "later")
    twin.assert_equal(found, tiny.variables(trained.ours))
    states = {path.name.split("-")[-1] for path in (tmp_path / "later/input").glob("*.index")}
    # None of a checkpoint that Estimator keeps no more.
    assert states == {f"{step}.index" for step in (twin.EVERY, twin.STEPS)}


def test_listener_without_its_input_is_refused(tmp_path):
    rows = model_fns.SavedInput(twin.read_rows, str(tmp_path))
    with pytest.raises(checks.UserError, match="be read by the training"):
        rows.before_save(None, 0)


def test_what_is_no_dataset_is_refused(tmp_path):
    rows = model_fns.SavedInput(lambda: (tf.ones([2]), tf.ones([2])), str(tmp_path))
    with tf.Graph().as_default(), pytest.raises(TypeError, match="return a tf.data.Dataset"):
        rows.read()
