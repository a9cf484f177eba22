"""train_and_evaluate in every place of a cluster, its listeners, and early stopping rules."""

import json
import os
import socket
import threading

import pytest
import tensorflow as tf
from tensorflow_estimator.python.estimator import early_stopping, training
from tensorflow_estimator.python.estimator import estimator as estimator_lib

from mtl import compat
from tests.compat import toy

tf1 = tf.compat.v1
api = compat.estimator


def _place(monkeypatch, cluster, kind, index=0):
    place = {"cluster": cluster, "task": {"type": kind, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(place))


def _estimator(path, **config):
    return api.Estimator(toy.model_fn, config=api.RunConfig(str(path), **config))


def _specs(steps=4, **evaluation):
    return api.TrainSpec(toy.input_fn, max_steps=steps), api.EvalSpec(
        toy.input_fn, **{"steps": 1, "start_delay_secs": 0, "throttle_secs": 0} | evaluation
    )


def _addresses(count):
    listeners = [socket.create_server(("localhost", 0)) for _ in range(count)]
    names = [f"localhost:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.close()
    return names


class _Exporter(api.Exporter):
    """Notes at which steps it was called, and whether for the last time."""

    name = "notes"

    def __init__(self):
        self.calls = []

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        assert export_path == os.path.join(estimator.model_dir, "export", "notes")
        assert checkpoint_path.endswith(f"-{eval_result['global_step']}")
        self.calls.append((int(eval_result["global_step"]), is_the_final_export))
        return "path"


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["master", "chief", "worker"])
def test_a_cluster_of_one(kind, monkeypatch, tmp_path):
    """A lone chief trains; a lone master evaluates and exports as well."""
    if kind == "worker":
        monkeypatch.setenv("TF_CONFIG", json.dumps({"task": {"type": "worker", "index": 0}}))
    else:
        _place(monkeypatch, {kind: ["localhost:1"]}, kind)
    exporter = _Exporter()
    estimator = _estimator(tmp_path, save_checkpoints_steps=2)
    result = api.train_and_evaluate(estimator, *_specs(exporters=exporter))
    assert estimator.get_variable_value("global_step") == 4
    expected = [] if kind == "chief" else [(2, False), (4, True)]
    assert exporter.calls == expected
    if kind == "worker":  # no cluster: a local run, which tells how it went
        assert (result[0]["global_step"], result[1]) == (4, ["path"])


@pytest.mark.medium
def test_master_and_parameter_server(monkeypatch, tmp_path):
    """A real parameter server in this process serves the master's variables."""
    master, server = _addresses(2)
    cluster = {"master": [master], "ps": [server]}
    _place(monkeypatch, cluster, "ps")
    executor = training._TrainingExecutor(_estimator(tmp_path), *_specs())
    threading.Thread(target=executor.run_ps, daemon=True).start()
    _place(monkeypatch, cluster, "master")
    exporter = _Exporter()
    estimator = _estimator(tmp_path, save_checkpoints_steps=2)
    api.train_and_evaluate(estimator, *_specs(exporters=exporter))
    assert exporter.calls == [(2, False), (4, True)]
    assert estimator.get_variable_value("global_step") == 4


@pytest.mark.medium
def test_the_evaluator_follows_checkpoints(monkeypatch, tmp_path):
    _estimator(tmp_path).train(toy.input_fn, max_steps=4)
    _place(monkeypatch, {"chief": ["localhost:1"]}, "evaluator")
    exporter = _Exporter()
    estimator = _estimator(tmp_path)
    api.train_and_evaluate(estimator, *_specs(name="later", exporters=exporter))
    assert exporter.calls == [(4, True)]
    assert os.path.isdir(estimator.eval_dir("later"))
    _place(monkeypatch, {"chief": ["localhost:1"]}, "evaluator", 1)
    with pytest.raises(ValueError, match="only be one `evaluator` task .*with task id 0"):
        api.train_and_evaluate(_estimator(tmp_path), *_specs())


class _Listener(training._ContinuousEvalListener):
    def __init__(self, before=True, after=True):
        self.answers = {"before": before, "after": after}
        self.results = []

    def before_eval(self):
        return self.answers["before"]

    def after_eval(self, eval_result):
        self.results.append(eval_result)
        return self.answers["after"]


@pytest.mark.medium
@pytest.mark.parametrize("place", ["local", "evaluator"])
@pytest.mark.parametrize("stop", ["before", "after"])
def test_listeners_end_it(stop, place, tmp_path):
    listener = _Listener(**{stop: False})
    estimator = _estimator(tmp_path, save_checkpoints_steps=2)
    if place == "evaluator":
        estimator.train(toy.input_fn, max_steps=2)
    executor = training._TrainingExecutor(estimator, *_specs(60), continuous_eval_listener=listener)
    getattr(executor, f"run_{place}")()
    assert len(listener.results) == int(stop == "after")
    for result in listener.results:
        assert result.status == training._EvalStatus.EVALUATED
        assert result.checkpoint_path.endswith(f"-{result.metrics['global_step']}")
    assert estimator.get_variable_value("global_step") < 60


def test_refused(monkeypatch, tmp_path):
    estimator, (train, evaluate) = _estimator(tmp_path), _specs()
    make = training._TrainingExecutor
    for arguments, kind, message in [
        ((object(), train, evaluate), TypeError, "`estimator` must have type"),
        ((estimator, object(), evaluate), TypeError, "`train_spec` must have type"),
        ((estimator, train, object()), TypeError, "`eval_spec` must be either `None` or"),
        ((estimator, train, evaluate, [object()]), TypeError, "All hooks must be"),
        ((estimator, train, evaluate, [], object()), TypeError, "_ContinuousEvalListener"),
    ]:
        with pytest.raises(kind, match=message):
            make(*arguments)
    for run in ("run_local", "run_master", "run_evaluator"):
        with pytest.raises(TypeError, match="`eval_spec` must have type"):
            getattr(make(estimator, train, None), run)()
    never = _estimator(tmp_path, save_checkpoints_steps=None, save_checkpoints_secs=None)
    with pytest.raises(ValueError, match="There should be a CheckpointSaverHook"):
        make(never, train, evaluate).run_local()
    for kind, message in [
        ("local", "in TF_CONFIG cannot be `local`"),
        ("other", "Task type other is not supported"),
    ]:
        _place(monkeypatch, {"chief": ["a:1"], kind: ["b:1"]}, kind)
        with pytest.raises(ValueError, match=message):
            make(_estimator(tmp_path), train, evaluate).run()


def test_a_server_needs_its_place(monkeypatch, tmp_path):
    executor = training._TrainingExecutor(_estimator(tmp_path), *_specs())
    with pytest.raises(RuntimeError, match="Could not start server; .*TF_CONFIG"):
        executor.run_ps()


SCORES = [(1000, 0.8, 0.5), (2000, 0.7, 0.6), (3000, 0.4, 0.7), (3500, 0.41, 0.68)]


@pytest.fixture
def evaluated(tmp_path):
    """An estimator with four evaluations: step, loss, accuracy."""
    estimator = _estimator(tmp_path)
    with tf.Graph().as_default():
        for step, loss, accuracy in SCORES:
            scores = {"loss": loss, "accuracy": accuracy}
            estimator_lib._write_dict_to_summary(estimator.eval_dir(), scores, step)
    return estimator


def _stops(*hooks):
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        nothing = tf.no_op()
        with tf1.train.SingularMonitoredSession(hooks=hooks) as session:
            session.run(nothing)
            return session.should_stop()


def test_evaluations_are_read_back(evaluated, tmp_path):
    found = early_stopping.read_eval_metrics(evaluated.eval_dir())
    assert list(found) == [step for step, _, _ in SCORES]
    assert found[3000] == pytest.approx({"loss": 0.4, "accuracy": 0.7})
    assert early_stopping.read_eval_metrics(str(tmp_path / "nowhere")) == {}


RULES = [  # rule, metric, threshold or steps, settings, stops
    ("if_higher", "accuracy", 0.8, {}, False),
    ("if_higher", "accuracy", 0.6, {"min_steps": 4000}, False),
    ("if_higher", "accuracy", 0.6, {}, True),
    ("if_lower", "loss", 0.3, {}, False),
    ("if_lower", "loss", 0.5, {"min_steps": 4000}, False),
    ("if_lower", "loss", 0.5, {}, True),
    ("if_no_increase", "accuracy", 1500, {}, False),
    ("if_no_increase", "accuracy", 500, {"min_steps": 4000}, False),
    ("if_no_increase", "accuracy", 500, {}, True),
    ("if_no_decrease", "loss", 1500, {}, False),
    ("if_no_decrease", "loss", 500, {"min_steps": 4000}, False),
    ("if_no_decrease", "loss", 500, {}, True),
]


@pytest.mark.parametrize(("rule", "metric", "limit", "settings", "stops"), RULES)
def test_stopping_rules(rule, metric, limit, settings, stops, evaluated):
    make = getattr(api.experimental, f"stop_{rule}_hook")
    assert _stops(make(evaluated, metric, limit, **settings)) == stops


@pytest.mark.medium
def test_one_rule_of_several_is_enough(evaluated):
    rules = api.experimental
    patient = rules.stop_if_no_decrease_hook(evaluated, "loss", 1500)
    for threshold, stops in ((0.3, False), (0.5, True)):
        assert _stops(patient, rules.stop_if_lower_hook(evaluated, "loss", threshold)) == stops
    for answer in (False, True):
        own = rules.make_early_stopping_hook(evaluated, should_stop_fn=lambda a=answer: a)
        assert _stops(own) == answer
    with pytest.raises(TypeError, match="`estimator` must"):
        rules.make_early_stopping_hook(object(), lambda: True)
    with pytest.raises(ValueError, match="Only one of"):
        rules.make_early_stopping_hook(
            evaluated, lambda: True, run_every_secs=60, run_every_steps=100
        )


def test_other_workers_stop_with_the_chief(tmp_path):
    class Worker(api.RunConfig):
        is_chief = False

    worker = api.Estimator(toy.model_fn, config=Worker(str(tmp_path)))
    hook = api.experimental.make_early_stopping_hook(worker, lambda: True)
    with tf.Graph().as_default():
        nothing = tf.no_op()
        with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
            session.run(nothing)
            assert not session.should_stop()
            stop = early_stopping._get_or_create_stop_var()
            stop.load(True, session.raw_session())
            session.run(nothing)
            assert session.should_stop()
