"""A training that stops and goes on reads the rows that it would have read."""

import shutil

import pytest
import tensorflow as tf

from mtl import checks, compat, model_fns
from tests import tiny
from tests.model_fns import twin

tf1 = tf.compat.v1


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


def _model_fn(features, labels, mode):
    """Adds up the rows that it has read."""
    total = tf1.get_variable("total", [], initializer=tf1.zeros_initializer())
    step = tf1.train.get_global_step()
    with tf.control_dependencies([total.assign_add(features)]):
        moved = tf1.assign_add(step, 1).op
    return compat.estimator.EstimatorSpec(mode, loss=tf.cast(step, tf.float32), train_op=moved)


def _estimator(folder):
    config = compat.estimator.RunConfig(save_checkpoints_steps=50, log_step_count_steps=None)
    return compat.estimator.Estimator(_model_fn, str(folder), config)


def _count_to_ten():
    return tf.data.Dataset.range(1, 11).map(lambda number: (tf.cast(number, tf.float32), 0))


def _total(folder):
    return tiny.variables(folder)["total"], tiny.variables(folder)["global_step"]


@pytest.mark.medium
def test_a_training_after_the_end_of_the_input_reads_it_once_more(tmp_path):
    """As with a plain `input_fn`; before, it took no step."""
    rows = model_fns.SavedInput(_count_to_ten, str(tmp_path))
    for epoch in (1, 2, 3):
        _estimator(tmp_path).train(rows.read, saving_listeners=[rows])
        assert _total(tmp_path) == (55 * epoch, 10 * epoch)
    _estimator(tmp_path).train(rows.read, saving_listeners=[rows], steps=4)
    _estimator(tmp_path).train(rows.read, saving_listeners=[rows], steps=3)
    assert _total(tmp_path) == (55 * 3 + sum(range(1, 8)), 37)


@pytest.mark.medium
def test_an_input_that_starts_anew_says_so(tmp_path, caplog):
    folder = str(tmp_path / "run")
    rows = model_fns.SavedInput(_count_to_ten, folder)
    _estimator(folder).train(rows.read, saving_listeners=[rows], steps=4)
    assert not caplog.records
    other = model_fns.SavedInput(_count_to_ten, folder, settings={"seed": 2})
    _estimator(folder).train(other.read, saving_listeners=[other], steps=1)
    assert "step 4 has no saved state that fits this input" in caplog.text
    caplog.clear()
    elsewhere = model_fns.SavedInput(_count_to_ten, str(tmp_path / "other"))
    _estimator(folder).train(elsewhere.read, saving_listeners=[elsewhere], steps=1)
    assert "continues another checkpoint than the latest in SavedInput.model_dir" in caplog.text
    caplog.clear()
    _estimator(folder).train(rows.read, steps=1)  # Without the listener.
    assert "step 6 has no saved state that fits this input" in caplog.text


@pytest.mark.medium
def test_elements_that_cannot_be_fetched_go_on(tmp_path):
    """Such as the None in place of labels."""

    def count():
        return tf.data.Dataset.range(1, 11).map(lambda number: (tf.cast(number, tf.float32), None))

    rows = model_fns.SavedInput(count, str(tmp_path))
    for _ in range(2):
        _estimator(tmp_path).train(rows.read, saving_listeners=[rows], steps=4)
    assert _total(tmp_path) == (sum(range(1, 9)), 8)
