"""Estimator's calls of model_fn, input_fn and hooks: requirements, arguments and refusals."""

import functools
import json
import os

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.training import training

from mtl import compat

tf1 = tf.compat.v1
api = compat.estimator


def _count_up():
    return tf1.assign_add(tf1.train.get_global_step(), 1)


def _spec(mode, **more):
    step = _count_up()
    arguments = {"loss": tf.constant(1.0), "train_op": step, "predictions": tf.constant([[10.0]])}
    return api.EstimatorSpec(mode, **arguments | more)


def _model_fn(features, labels, mode):
    return _spec(mode)


def _input_fn():
    return {"x": tf.constant([[1], [1]])}, tf.constant([[1], [1]])


def _estimator(path, model_fn=_model_fn, **settings):
    return api.Estimator(model_fn, str(path), **settings)


def _run(estimator, verb, input_fn=_input_fn, **arguments):
    """One step of `verb`."""
    if verb == "predict":
        return next(estimator.predict(input_fn, **arguments))
    return getattr(estimator, verb)(input_fn, steps=1, **arguments)


VERBS = {"train": "train", "evaluate": "eval", "predict": "infer"}
CALLS = pytest.mark.parametrize("verb", VERBS)


@pytest.mark.parametrize("version", [api, compat.estimator_v1], ids=["v2", "v1"])
def test_a_subclass_may_add_but_not_override(version):
    def subclass(**members):
        return type("Own", (version.Estimator,), members)(model_fn=_model_fn)

    assert subclass(predict_proba=lambda self: 1).predict_proba() == 1
    with pytest.raises(ValueError, match="cannot override members of Estimator.*predict"):
        subclass(predict=lambda self, input_fn: None)


class _Callable:
    def __call__(self, features, labels):
        return _spec("train")

    def method(self, features, labels, mode):
        return _spec(mode)


@pytest.mark.parametrize(
    "model_fn",
    [
        lambda features: _spec("train"),
        lambda mode, params, config, labels, features: _spec(mode),
        functools.partial(lambda features, labels, own, mode: _spec(mode), own=3),
        _Callable(),
        _Callable().method,
    ],
    ids=["features", "all", "partial", "object", "method"],
)
def test_kinds_of_model_fn(model_fn, tmp_path):
    estimator = _estimator(tmp_path, model_fn)
    takes_labels = model_fn.__name__ != "<lambda>" if hasattr(model_fn, "__name__") else True
    takes_labels = takes_labels or "labels" in model_fn.__code__.co_varnames
    estimator.train(_input_fn if takes_labels else lambda: _input_fn()[0], steps=1)
    assert estimator.get_variable_value("global_step") == 1
    assert {"features", "labels", "mode", "config"} == set(
        estimator.model_fn.__code__.co_varnames[:4]
    )


@pytest.mark.parametrize(
    ("model_fn", "settings", "message"),
    [
        (None, {}, "model_fn.* must be"),
        (_model_fn, {"config": "text"}, "an instance of `RunConfig`"),
        (lambda x, labels: None, {}, "features"),
        (lambda features, labels, other: None, {}, "other"),
        (_model_fn, {"params": {"a": 1}}, "params"),
        (_Callable(), {"params": {"a": 1}}, "does not include params"),
        (_model_fn, {"config": api.RunConfig("here")}, "set both in constructor and `RunConfig`"),
    ],
    ids=["none", "config", "features", "unknown", "params", "object", "model_dir"],
)
def test_refused_settings(model_fn, settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        _estimator(tmp_path, model_fn, **settings)


def test_properties(tmp_path):
    class Config(api.RunConfig):
        """A subclass of RunConfig."""

    params = {"units": [3, 4]}
    estimator = _estimator(
        tmp_path, lambda features, params: _spec("train"), config=Config(), params=params
    )
    params["units"].append(5)
    assert estimator.params == {"units": [3, 4]}
    assert isinstance(estimator.config, Config)
    assert estimator.config.model_dir == estimator.model_dir == str(tmp_path)
    assert estimator.eval_dir() == os.path.join(str(tmp_path), "eval")
    assert estimator.eval_dir("name") == os.path.join(str(tmp_path), "eval_name")


@pytest.mark.parametrize("model_dir", [None, ""])
def test_a_model_dir_and_a_session_of_its_own(model_dir):
    estimator = api.Estimator(_model_fn, model_dir)
    assert os.path.isdir(estimator.model_dir)
    session = estimator._session_config
    assert session.allow_soft_placement
    iterations = session.graph_options.rewrite_options.meta_optimizer_iterations
    assert iterations == rewriter_config_pb2.RewriterConfig.ONE


@pytest.mark.medium
@CALLS
def test_input_fn_gets_what_it_names(verb, tmp_path):
    calls = []

    class Input:
        def __call__(self, mode, params, config):
            calls.append((mode, params, config.tf_random_seed))
            return _input_fn()

    def model_fn(features, labels, mode, params, config):
        seeds.append(tf1.get_default_graph().seed)
        given.append((sorted(features), labels is None, mode, params, config.tf_random_seed))
        return _spec(mode)

    seeds, given = [], []
    params, config = {"batch_size": 10}, api.RunConfig(tf_random_seed=4321)
    estimator = _estimator(tmp_path, model_fn, params=params, config=config)
    for input_fn in (Input(), lambda mode, params, config: Input()(mode, params, config)):
        _run(estimator, verb, input_fn)
    assert calls == [(VERBS[verb], params, 4321)] * 2
    assert given == [(["x"], verb == "predict", VERBS[verb], params, 4321)] * 2
    assert seeds == [4321] * 2


@CALLS
def test_refused_inputs_and_hooks(verb, tmp_path):
    estimator = _estimator(tmp_path)
    with pytest.raises(TypeError, match="must be a SessionRunHook"):
        _run(estimator, verb, hooks=["text"])
    without_labels = _estimator(tmp_path, lambda features: _spec("train"))
    if verb != "predict":
        with pytest.raises(ValueError, match="model_fn does not take labels"):
            _run(without_labels, verb)
        with pytest.raises(ValueError, match="Must specify steps > 0"):
            getattr(estimator, verb)(_input_fn, steps=0)
        with pytest.raises(ValueError, match="len 2 tuple"):
            _run(estimator, verb, lambda: (4, 5, 6))
    wrong = _estimator(tmp_path, lambda features, labels: "text")
    with pytest.raises(ValueError, match="model_fn should return an EstimatorSpec"):
        _run(wrong, verb)


def test_refused_training(tmp_path):
    estimator = _estimator(tmp_path)
    with pytest.raises(ValueError, match="Must specify max_steps > 0"):
        estimator.train(_input_fn, max_steps=0)
    with pytest.raises(TypeError, match="must be a list of CheckpointSaverListener"):
        estimator.train(_input_fn, steps=1, saving_listeners=["text"])
    never = api.RunConfig(save_checkpoints_steps=None, save_checkpoints_secs=None)
    with pytest.raises(ValueError, match="CheckpointSaverHook to use saving_listeners"):
        _estimator(tmp_path, config=never).train(
            _input_fn, steps=1, saving_listeners=[api.CheckpointSaverListener()]
        )

    class Evaluator(api.RunConfig):
        task_type = "evaluator"

    with pytest.raises(ValueError, match="train_and_evaluate"):
        _estimator(tmp_path, config=Evaluator()).train(_input_fn, steps=1)


class _Recorder(api.SessionRunHook):
    def __init__(self):
        self.begins = self.runs = 0

    def begin(self):
        self.begins += 1

    def after_run(self, run_context, run_values):
        self.runs += 1


@CALLS
def test_hooks_of_the_call_and_of_the_spec(verb, tmp_path):
    kinds = {"train": ["training_hooks", "training_chief_hooks"], "evaluate": ["evaluation_hooks"]}
    kinds = kinds.get(verb, ["prediction_hooks"])
    names = ("training_hooks", "training_chief_hooks", "evaluation_hooks", "prediction_hooks")
    hooks = {name: _Recorder() for name in names}
    own = _Recorder()

    def model_fn(features, labels, mode):
        return _spec(mode, **{name: [hook] for name, hook in hooks.items()})

    _run(_estimator(tmp_path, model_fn), verb, hooks=[own])
    assert (own.begins, own.runs) == (1, 1)
    assert {name: hook.begins for name, hook in hooks.items()} == {
        name: int(name in kinds) for name in names
    }


def test_own_hooks_see_the_step_whose_loss_is_not_a_number(tmp_path):
    def model_fn(features, labels, mode):
        step = _count_up()
        loss = tf.cond(step > 1, lambda: np.nan, lambda: 1.0)
        return api.EstimatorSpec(mode, loss=loss, train_op=step)

    hook = _Recorder()
    with pytest.raises(api.NanLossDuringTrainingError):
        _estimator(tmp_path, model_fn).train(_input_fn, steps=2, hooks=[hook])
    assert hook.runs == 2


@pytest.mark.medium
def test_steps_and_listeners(tmp_path):
    counts = {"before": 0, "after": 0}

    class Listener(api.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            counts["before"] += 1

        def after_save(self, session, global_step_value):
            counts["after"] += 1

    config = api.RunConfig(save_checkpoints_steps=10)
    estimator = _estimator(tmp_path / "first", config=config)
    assert estimator.latest_checkpoint() is None
    for call in (estimator.get_variable_names, lambda: estimator.get_variable_value("one")):
        with pytest.raises(ValueError, match="not find trained model"):
            call()
    estimator.train(_input_fn, steps=26, saving_listeners=[Listener()])
    assert counts == {"before": 4, "after": 4}  # steps 0, 10, 20 and 26
    estimator.train(_input_fn, max_steps=26)
    assert estimator.get_variable_value("global_step") == 26
    text = (tmp_path / "first" / "checkpoint").read_text()
    assert str(tmp_path) not in text  # a model_dir can be moved
    (tmp_path / "first").rename(tmp_path / "second")
    moved = _estimator(tmp_path / "second")
    moved.train(_input_fn, steps=4)
    assert moved.latest_checkpoint().endswith("second/model.ckpt-30")


def test_another_shape_of_a_variable_is_explained(tmp_path):
    def model_fn(shape):
        def build(features, labels, mode):
            tf1.get_variable("weight", shape, use_resource=False)
            return _spec(mode)

        return build

    _estimator(tmp_path, model_fn([2])).train(_input_fn, steps=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a mismatch between the current"):
        _estimator(tmp_path, model_fn([3])).train(_input_fn, steps=1)


@pytest.mark.medium
@CALLS
def test_the_scaffold_of_the_spec_is_used(verb, tmp_path):
    restored, started = [], []

    class Saver(tf1.train.Saver):
        def restore(self, session, path):
            restored.append(path)
            super().restore(session, path)

    def model_fn(features, labels, mode):
        tf1.get_variable("weight", [])
        scaffold = tf1.train.Scaffold(
            saver=Saver(), init_fn=lambda scaffold, session: started.append(1)
        )
        return _spec(mode, scaffold=scaffold)

    estimator = _estimator(tmp_path, model_fn)
    estimator.train(_input_fn, steps=1)
    assert (restored, started) == ([], [1])
    _run(estimator, verb)
    assert len(restored) == 1


@pytest.mark.parametrize(
    ("jobs", "task", "writes", "settings"),
    [
        (("ps", "worker", "master"), ("master", 0), False, (0, None)),
        (("ps", "worker", "master"), ("worker", 0), True, (0, None)),
        (("ps", "worker", "worker", "master"), ("worker", 1), False, (0, None)),
        (("master",), ("master", 0), False, (100, 200)),
        (("master", "ps"), ("master", 0), False, (100, 200)),
    ],
    ids=["master", "first worker", "second worker", "alone", "alone with ps"],
)
def test_the_first_worker_writes_summaries(jobs, task, writes, settings, monkeypatch, tmp_path):
    """Looks at what the session is asked for; the cluster itself is not started."""
    cluster = {job: ["localhost:0"] * jobs.count(job) for job in jobs}
    place = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(place))
    seen = {}

    def session(**arguments):
        seen.update(arguments)
        raise InterruptedError

    monkeypatch.setattr(training, "MonitoredTrainingSession", session)
    config = api.RunConfig(save_summary_steps=100, log_step_count_steps=200)
    with pytest.raises(InterruptedError):
        _estimator(tmp_path, config=config).train(_input_fn, steps=1)
    kinds = (api.SummarySaverHook, api.StepCounterHook)
    found = [any(isinstance(hook, kind) for hook in seen["hooks"]) for kind in kinds]
    assert found == [writes, writes]
    assert (seen["save_summaries_steps"], seen["log_step_count_steps"]) == settings
