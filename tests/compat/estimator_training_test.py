"""Our distribute-coordinator module against NumPy-plain expectations and TensorFlow 2.15's own."""

import importlib.util
import json
import os

import pytest
import tensorflow as tf
from tensorflow.python.distribute import distribute_config
from tensorflow.python.distribute import distribute_coordinator as coordinator

from mtl import checks, compat
from mtl.compat import estimator_training

CLUSTER = {"chief": ["h0:1"], "worker": ["h1:1", "h2:1"], "ps": ["h3:1", "h4:1"]}
MASTER = {"master": ["h0:1"], "worker": ["h1:1"]}


def _native():
    """TensorFlow 2.15's own module, or None where it is gone."""
    from tensorflow.python.distribute import estimator_training as found

    return None if found is estimator_training else found


MODULES = [m for m in (estimator_training, _native()) if m is not None]


def _strategy():
    return tf.distribute.MirroredStrategy(["/cpu:0"])


def _config(monkeypatch, module, cluster=None, task=("chief", 0), **settings):
    """A RunConfig whose distributed part `module` fills."""
    if cluster:
        place = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(place))
    else:
        monkeypatch.delenv("TF_CONFIG", raising=False)
    from tensorflow_estimator.python.estimator import run_config

    monkeypatch.setattr(run_config, "distribute_coordinator_training", module)
    return compat.estimator.RunConfig(**settings)


def _experimental(**settings):
    return distribute_config.DistributeConfig(**settings)


def _place(config):
    names = ("task_type", "task_id", "is_chief", "master", "num_worker_replicas")
    return {name: getattr(config, name) for name in names} | {
        "mode": getattr(config, "_distribute_coordinator_mode", None),
        "runs": estimator_training.should_run_distribute_coordinator(config),
        "jobs": sorted(tf.train.ClusterSpec(config.cluster_spec).jobs),
    }


INDEPENDENT = coordinator.CoordinatorMode.INDEPENDENT_WORKER
STANDALONE = coordinator.CoordinatorMode.STANDALONE_CLIENT
CASES = {
    "local": ({}, lambda: {"train_distribute": _strategy()}, None, False),
    "cluster": ({"cluster": CLUSTER}, lambda: {"train_distribute": _strategy()}, INDEPENDENT, True),
    "experimental": (
        {"cluster": CLUSTER},
        lambda: {"experimental_distribute": _experimental(train_distribute=_strategy())},
        INDEPENDENT,
        True,
    ),
    "evaluation only": (
        {"cluster": CLUSTER},
        lambda: {"eval_distribute": _strategy()},
        None,
        False,
    ),
    "no strategy": ({"cluster": CLUSTER}, dict, None, False),
    "master": (
        {"cluster": MASTER, "task": ("master", 0)},
        lambda: {"train_distribute": _strategy()},
        None,
        False,
    ),
    "remote": (
        {},
        lambda: {
            "train_distribute": _strategy(),
            "experimental_distribute": _experimental(remote_cluster={"chief": ["h0:1"]}),
        },
        STANDALONE,
        True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_run_config(name, monkeypatch):
    place, settings, mode, runs = CASES[name]
    found = [_place(_config(monkeypatch, m, **place, **settings())) for m in MODULES]
    assert (found[0]["mode"], found[0]["runs"]) == (mode, runs)
    assert all(other == found[0] for other in found)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("phase", ["train_distribute", "eval_distribute"])
def test_a_strategy_set_twice_is_refused(phase, module, monkeypatch):
    settings = {
        phase: _strategy(),
        "experimental_distribute": _experimental(**{phase: _strategy()}),
    }
    with pytest.raises(ValueError, match=phase):
        _config(monkeypatch, module, **settings)


@pytest.mark.parametrize("module", MODULES)
def test_a_remote_cluster_beside_tf_config_is_refused(module, monkeypatch):
    settings = {
        "train_distribute": _strategy(),
        "experimental_distribute": _experimental(remote_cluster={"chief": ["h0:1"]}),
    }
    with pytest.raises(ValueError, match="remote_cluster"):
        _config(monkeypatch, module, CLUSTER, **settings)


class _Context:
    """The context that the coordinator gives to a worker."""

    def __init__(self, task_type, task_id, cluster=CLUSTER):
        self.cluster_spec = tf.train.ClusterSpec(cluster) if cluster else None
        self.task_type, self.task_id = task_type, task_id
        self.master_target = f"grpc://{task_type}"
        self.is_chief = task_type == "chief"


def _worker_place(set_place, context):
    config = compat.estimator.RunConfig()
    set_place(config, context)
    names = ("task_type", "task_id", "is_chief", "master", "evaluation_master", "service")
    names += ("num_ps_replicas", "num_worker_replicas", "global_id_in_cluster")
    jobs = tf.train.ClusterSpec(config.cluster_spec or {}).jobs
    return {name: getattr(config, name) for name in names} | {"jobs": sorted(jobs)}


PLACES = {
    ("chief", 0): (2, 3, 0),
    ("worker", 0): (2, 3, 1),
    ("worker", 1): (2, 3, 2),
    ("ps", 1): (2, 3, 4),
    (None, None): (2, 3, 0),
}


@pytest.mark.parametrize(("task", "expected"), PLACES.items())
def test_place_in_the_cluster(task, expected):
    contexts = {"cluster": _Context(*task)}
    setters = [estimator_training._set_place]
    if native := _native():
        setters.append(native._init_run_config_from_worker_context)
    found = [_worker_place(setter, contexts["cluster"]) for setter in setters]
    names = ("num_ps_replicas", "num_worker_replicas", "global_id_in_cluster")
    assert tuple(found[0][name] for name in names) == expected
    assert all(other == found[0] for other in found)


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (_Context("evaluator", 0, CLUSTER | {"evaluator": ["h9:1"]}), (0, 0, None, [])),
        (_Context(None, None, cluster=None), (0, 1, 0, [])),
    ],
)
def test_place_outside_the_cluster(context, expected):
    setters = [estimator_training._set_place]
    if native := _native():
        setters.append(native._init_run_config_from_worker_context)
    found = [_worker_place(setter, context) for setter in setters]
    names = ("num_ps_replicas", "num_worker_replicas", "global_id_in_cluster", "jobs")
    assert tuple(found[0][name] for name in names) == expected
    assert all(other == found[0] for other in found)


def test_an_unknown_task_type_is_named():
    with pytest.raises(checks.UserError, match="one of chief, worker, ps, got 'wroker'"):
        estimator_training._set_place(compat.estimator.RunConfig(), _Context("wroker", 0))


def test_train_needs_a_client(monkeypatch, tmp_path):
    config = _config(monkeypatch, estimator_training, CLUSTER, train_distribute=_strategy())
    estimator = compat.estimator.Estimator(lambda features: None, str(tmp_path), config=config)
    message = "Estimator.train must run in standalone_client mode, got 'independent_worker'"
    with pytest.raises(ValueError, match=message):
        estimator_training.estimator_train(estimator, lambda *args: None, [])


def test_this_tensorflow_uses_the_module():
    """From 2.16 on, `tensorflow.python.distribute` gives our module; 2.15 has one itself."""
    shipped = os.path.join(
        os.path.dirname(tf.__file__), "python", "distribute", "estimator_training.py"
    )
    assert os.path.exists(shipped) == (_native() is not None)
    assert importlib.util.find_spec("mtl.compat.estimator_training")
