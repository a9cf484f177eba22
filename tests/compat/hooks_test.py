"""The session hooks that tf.estimator re-exports, and Estimator's own."""

import os

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat
from tests.compat import toy

tf1 = tf.compat.v1


@pytest.fixture
def estimator(tmp_path):
    return compat.estimator.Estimator(toy.model_fn, str(tmp_path / "model"))


@pytest.mark.medium
def test_session_run_hook_sees_every_step(estimator):
    class Recorder(compat.estimator.SessionRunHook):
        def __init__(self):
            self.steps, self.events = [], []

        def begin(self):
            self.events.append("begin")

        def after_create_session(self, session, coord):
            self.events.append("created")

        def before_run(self, run_context):
            return compat.estimator.SessionRunArgs(tf1.train.get_global_step())

        def after_run(self, run_context, run_values):
            self.steps.append(int(run_values.results))

        def end(self, session):
            self.events.append("end")

    hook = Recorder()
    estimator.train(toy.input_fn, steps=3, hooks=[hook])
    assert len(hook.steps) == 3
    assert hook.events == ["begin", "created", "end"]


def test_nan_loss_stops_training(estimator, tmp_path):
    def model_fn(features, labels, mode):
        loss = tf1.get_variable("x", []) * np.nan
        return compat.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.no_op())

    broken = compat.estimator.Estimator(model_fn, str(tmp_path / "broken"))
    with pytest.raises(compat.estimator.NanLossDuringTrainingError):
        broken.train(toy.input_fn, steps=2)


@pytest.mark.medium
def test_hooks_write_and_stop(estimator, tmp_path):
    hooks = [
        compat.estimator.StopAtStepHook(num_steps=4),
        compat.estimator.LoggingTensorHook({"kernel": "kernel"}, every_n_iter=1),
        compat.estimator.StepCounterHook(every_n_steps=1, output_dir=str(tmp_path / "counter")),
        compat.estimator.CheckpointSaverHook(str(tmp_path / "saver"), save_steps=2),
    ]
    with tf.Graph().as_default():  # its constructor opens a v1 summary writer
        profile = compat.estimator.ProfilerHook(2, output_dir=str(tmp_path / "profile"))
    hooks.append(profile)
    estimator.train(toy.input_fn, hooks=hooks)
    assert estimator.latest_checkpoint() is None  # the given saver hook replaces the default one
    assert tf.train.latest_checkpoint(str(tmp_path / "saver")).endswith("-4")
    assert any(name.startswith("timeline") for name in os.listdir(tmp_path / "profile"))
    (events,) = tf.io.gfile.glob(str(tmp_path / "counter" / "events*"))
    tags = {v.tag for e in tf1.train.summary_iterator(events) for v in e.summary.value}
    assert "global_step/sec" in tags


@pytest.mark.medium
def test_saving_listeners(estimator):
    class Listener(compat.estimator.CheckpointSaverListener):
        saved = []

        def after_save(self, session, global_step_value):
            self.saved.append(int(global_step_value))

    estimator.train(toy.input_fn, steps=3, saving_listeners=[Listener()])
    assert Listener.saved == [0, 3]


@pytest.mark.medium
def test_in_memory_evaluator(estimator):
    hook = compat.estimator.experimental.InMemoryEvaluatorHook(
        estimator, toy.input_fn, steps=1, every_n_iter=2
    )
    estimator.train(toy.input_fn, steps=4, hooks=[hook])
    (events,) = tf.io.gfile.glob(os.path.join(estimator.eval_dir(), "events*"))
    found = {
        event.step: value.simple_value
        for event in tf1.train.summary_iterator(events)
        for value in event.summary.value
        if value.tag == "mse"
    }
    assert set(found) >= {2, 4}
    expected = toy.mean_squared_error(toy.descend(4))
    np.testing.assert_allclose(found[4], expected, rtol=1e-4)


@pytest.mark.medium
def test_stop_at_checkpoint_step(estimator, tmp_path):
    estimator.train(toy.input_fn, steps=3)
    hook = compat.estimator.experimental.make_stop_at_checkpoint_step_hook(estimator, 3)
    estimator.train(toy.input_fn, hooks=[hook], max_steps=4)
    assert estimator.get_variable_value("global_step") in (3, 4)


@pytest.mark.medium
@pytest.mark.parametrize("namespace", [tf, tf1, tf.compat.v2])
def test_input_pipeline_goes_on_where_it_stopped(namespace, tmp_path):
    def input_fn():
        return tf.data.Dataset.range(100).map(lambda i: ({"i": i}, i))

    def model_fn(features, labels, mode):
        seen = tf1.get_variable("seen", [], tf.int64, tf1.zeros_initializer(), trainable=False)
        with tf.control_dependencies([seen.assign(seen * 100 + labels)]):
            step = tf1.assign_add(tf1.train.get_global_step(), 1)
        loss = tf.cast(labels, tf.float32)
        return compat.estimator.EstimatorSpec(mode, loss=loss, train_op=step.op)

    saved = []
    for steps in (3, 1, 2):
        config = compat.estimator.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=2)
        estimator = compat.estimator.Estimator(model_fn, config=config)
        hook = namespace.data.experimental.CheckpointInputPipelineHook(estimator)
        estimator.train(input_fn, steps=steps, hooks=[hook])
        state = tf.train.get_checkpoint_state(str(tmp_path), "checkpoint_input")
        saved.append([int(p.rpartition("-")[2]) for p in state.all_model_checkpoint_paths])
    assert estimator.get_variable_value("seen") == 102030405  # the examples 0 to 5
    assert saved[0] == [0, 2, 3]  # The steps at which the model is saved.
    assert state.model_checkpoint_path.endswith("input.ckpt-6")


def test_input_pipeline_policies(estimator):
    make = tf.data.experimental.CheckpointInputPipelineHook
    for policy in (None, "fail", "warn", "ignore"):
        make(estimator, external_state_policy=policy)
    with pytest.raises(ValueError, match="(?i)external_?state_?policy"):
        make(estimator, external_state_policy="forget")
