"""Optimizers by name, timers, exports that are kept, k-means by distance, in small tables."""

import os
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_estimator.python.estimator import gc, util
from tensorflow_estimator.python.estimator.canned import kmeans, optimizers
from tensorflow_estimator.python.estimator.hooks import basic_session_run_hooks

from mtl import compat
from mtl.compat import keras
from tests.compat import toy

tf1 = tf.compat.v1
api = compat.estimator
needs_keras_2 = pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")


@needs_keras_2
@pytest.mark.parametrize("name", ["Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"])
def test_optimizers_by_name(name):
    kind = getattr(tf.keras.optimizers.legacy, {"RMSProp": "RMSprop"}.get(name, name))
    for settings, rate in [({"learning_rate": 0.1}, 0.1), ({}, kind().learning_rate.numpy())]:
        optimizer = optimizers.get_optimizer_instance_v2(name, **settings)
        assert isinstance(optimizer, kind)
        np.testing.assert_allclose(optimizer.learning_rate.numpy(), rate)
    v1 = {"SGD": "GradientDescent"}.get(name, name) + "Optimizer"
    found = optimizers.get_optimizer_instance(name, learning_rate=0.1)
    assert isinstance(found, getattr(tf1.train, v1))


@needs_keras_2
def test_optimizers_given():
    own, v1 = tf.keras.optimizers.legacy.SGD(0.3), tf1.train.GradientDescentOptimizer(0.3)
    for given, get in [
        (own, optimizers.get_optimizer_instance_v2),
        (v1, optimizers.get_optimizer_instance),
    ]:
        assert get(given) is get(lambda given=given: given) is given
        for wrong in ((1, 2), lambda: (1, 2)):
            with pytest.raises(ValueError, match="The given object is not a"):
                get(wrong)
        with pytest.raises(ValueError, match="Unsupported optimizer name: no_such"):
            get("no_such", learning_rate=0.1)
    with pytest.raises(ValueError, match="learning_rate must be specified"):
        optimizers.get_optimizer_instance("Adam")


@needs_keras_2
def test_a_new_keras_optimizer_becomes_a_legacy_one():
    found = optimizers.get_optimizer_instance_v2(tf.keras.optimizers.Adam(0.25))
    assert isinstance(found, tf.keras.optimizers.legacy.Adam)
    np.testing.assert_allclose(found.learning_rate.numpy(), 0.25)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="optimizers.legacy.Adam"):
        optimizers.get_optimizer_instance_v2(tf.keras.optimizers.Adam(0.25))


def _versions(*numbers):
    return [gc.Path("/x", number) for number in numbers]


@pytest.mark.parametrize(
    ("rule", "given", "kept"),
    [
        (lambda: gc._largest_export_versions(2), (8, 9, 10), (9, 10)),
        (lambda: gc._largest_export_versions(2), (0, 3), (0, 3)),
        (lambda: gc._mod_export_version(3), (4, 5, 6, 9), (6, 9)),
        (lambda: gc._one_of_every_n_export_versions(3), (0, 1, 3, 5, 6, 7, 8, 33), (3, 6, 8, 33)),
        (lambda: gc._one_of_every_n_export_versions(3), (0, 4, 5), (0, 5)),
        (lambda: gc._negation(gc._mod_export_version(2)), (4, 5, 6, 9), (5, 9)),
        (
            lambda: gc._union(gc._largest_export_versions(3), gc._mod_export_version(3)),
            range(10),
            (0, 3, 6, 7, 8, 9),
        ),
    ],
    ids=["largest", "zero", "mod", "every", "every and zero", "negation", "union"],
)
def test_which_exports_are_kept(rule, given, kept):
    assert rule()(_versions(*given)) == _versions(*kept)


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["LatestExporter", "BestExporter"])
def test_old_exports_go(kind, tmp_path):
    estimator = api.Estimator(toy.model_fn, str(tmp_path / "model"))
    estimator.train(toy.input_fn, steps=1)
    base = tmp_path / "export"
    for version in (1000000101, 1000000102, 1000000103, 1999999999):
        (base / str(version)).mkdir(parents=True)
    (base / "not_a_version").mkdir()
    make = getattr(api, kind)
    settings = {"serving_input_receiver_fn": toy.serving_input_fn, "exports_to_keep": 2}
    exporter = make(name="x", **settings)
    path = exporter.export(estimator, str(base), None, {"loss": 1.0}, False).decode()
    assert {entry.name for entry in base.iterdir()} == {
        "1999999999",
        os.path.basename(path),
        "not_a_version",
    }
    with pytest.raises(ValueError, match="positive number"):
        make(name="x", **settings | {"exports_to_keep": 0})


@pytest.mark.medium
def test_exports_only_get_better(tmp_path):
    """The first one after a restart is made whatever it is worth: release 2.15.0 does so."""
    estimator = api.Estimator(toy.model_fn, str(tmp_path / "model"))
    estimator.train(toy.input_fn, steps=1)
    loss = estimator.evaluate(toy.input_fn, steps=1, name="continuous")["loss"]
    for _ in range(2):
        exporter = api.BestExporter(
            serving_input_receiver_fn=toy.serving_input_fn,
            event_file_pattern="eval_continuous/*.tfevents.*",
        )
        made = [
            exporter.export(estimator, str(tmp_path / "export"), None, {"loss": value}, False)
            for value in (2 * loss, 3 * loss, loss / 2, loss)
        ]
        assert [path is not None for path in made] == [True, False, True, False]


@pytest.mark.medium
def test_only_the_final_export(tmp_path):
    estimator = api.Estimator(toy.model_fn, str(tmp_path / "model"))
    estimator.train(toy.input_fn, steps=1)
    exporter = api.FinalExporter("x", toy.serving_input_fn)
    assert exporter.export(estimator, str(tmp_path / "export"), None, {}, False) is None
    assert exporter.export(estimator, str(tmp_path / "export"), None, {}, True) is not None


def test_timers(monkeypatch):
    make = basic_session_run_hooks.SecondOrStepTimer
    for wrong in ({}, {"every_secs": 2.0, "every_steps": 10}):
        with pytest.raises(ValueError, match="every_secs"):
            make(**wrong)
    timer = make(every_steps=3)
    assert timer.should_trigger_for_step(1)
    assert timer.update_last_triggered_step(1) == (None, None)
    assert [timer.should_trigger_for_step(step) for step in (1, 2, 3, 4)] == [False] * 3 + [True]
    assert timer.update_last_triggered_step(5)[1] == 4
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    timer = make(every_secs=1.0)
    timer.update_last_triggered_step(1)
    assert not timer.should_trigger_for_step(2)
    now[0] += 1.0
    assert timer.should_trigger_for_step(2)
    assert not timer.should_trigger_for_step(1)


def _run_hook(hook, steps):
    """Runs a counter under one hook; the number of steps done when it stopped."""
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        update = tf1.assign_add(step, 1)
        tf.identity(tf.cast(step, tf.float32) * 0 + 42.0, name="answer")
        with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
            count = 0
            while not session.should_stop() and count < steps:
                session.run(update)
                count += 1
    return count


def test_stopping_at_a_step_and_waiting_for_one():
    assert _run_hook(api.StopAtStepHook(last_step=5), 20) == 5
    assert _run_hook(api.StopAtStepHook(num_steps=7), 20) == 7
    assert _run_hook(api.GlobalStepWaiterHook(0), 3) == 3
    with pytest.raises(ValueError, match="num_steps"):
        api.StopAtStepHook(num_steps=1, last_step=2)


@pytest.mark.parametrize(
    ("settings", "lines"),
    [({"every_n_iter": 4}, 3), ({"at_end": True}, 1), ({"every_n_iter": 4, "at_end": True}, 4)],
    ids=["every", "end", "both"],
)
def test_logged_tensors(settings, lines, monkeypatch):
    seen = []
    hook = api.LoggingTensorHook(
        ["answer"], formatter=lambda values: seen.append(values["answer"]) or "", **settings
    )
    _run_hook(hook, 10)
    assert seen == [42.0] * lines
    for wrong in ({"every_n_iter": 0}, {"every_n_iter": 5, "every_n_secs": 5}, {}):
        with pytest.raises(ValueError, match="(?i)every_n_iter|exactly one of"):
            api.LoggingTensorHook(["answer"], **wrong)


def test_results_of_input_functions():
    features, labels = np.arange(3), np.arange(3, 6)
    rows = (features[np.newaxis], labels[np.newaxis])
    for result, expected_labels, hooks in [
        ((features, labels), labels, 0),
        (features, None, 0),
        (lambda: tf.data.Dataset.from_tensor_slices(rows), labels, 1),
        (lambda: tf.data.Dataset.from_tensor_slices(rows[0]), None, 1),
    ]:
        with tf.Graph().as_default():
            result = result() if callable(result) else tf.nest.map_structure(tf.constant, result)
            found_features, found_labels, found_hooks = util.parse_input_fn_result(result)
            assert len(found_hooks) == hooks
            with tf1.train.MonitoredSession(hooks=found_hooks) as session:
                np.testing.assert_array_equal(session.run(found_features), features)
                if expected_labels is None:
                    assert found_labels is None
                else:
                    np.testing.assert_array_equal(session.run(found_labels), labels)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="input_fn should return"):
        util.parse_input_fn_result(tf.data.Dataset.from_tensors((1, 2, 3)))


ANGLES = np.array([[2.5, 0.1], [2, 0.2], [3, 0.1], [0.1, 2.5], [0.2, 2], [0.2, 4]], np.float32)


def _unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.medium
@pytest.mark.parametrize("mini_batch", [False, True], ids=["full", "mini"])
@pytest.mark.parametrize("start", ["random", "kmeans_plus_plus"])
def test_kmeans_by_angle(start, mini_batch, tmp_path):
    estimator = kmeans.KMeansClustering(
        2,
        model_dir=str(tmp_path),
        initial_clusters=start,
        distance_metric="cosine",
        use_mini_batch=mini_batch,
        seed=3,
    )

    def once():
        return tf.constant(ANGLES), None

    estimator.train(once, steps=40)
    centres = _unit(estimator.cluster_centers())
    expected = _unit(np.stack([_unit(ANGLES[:3]).mean(0), _unit(ANGLES[3:]).mean(0)]))
    order = np.argsort(-centres[:, 0])
    np.testing.assert_allclose(centres[order], expected, atol=0.04)

    def rows():
        return tf.data.Dataset.from_tensors(ANGLES)

    distances = np.array(list(estimator.transform(rows)))
    np.testing.assert_allclose(distances, 1 - _unit(ANGLES) @ centres.T, atol=1e-3)
    found = np.array(list(estimator.predict_cluster_index(rows)))
    np.testing.assert_array_equal(found, distances.argmin(axis=1))
    np.testing.assert_allclose(estimator.score(rows), distances.min(axis=1).sum(), atol=1e-3)


@pytest.mark.medium
def test_kmeans_on_columns_and_with_too_few_points(tmp_path):
    columns = [tf.feature_column.numeric_column(key) for key in "xy"]
    features = {"other": "text", "x": [[1.0], [3.0]], "y": [[2.0], [4.0]]}
    with tf.Graph().as_default(), tf1.Session() as session:
        parsed = session.run(kmeans._parse_features_if_necessary(features, columns))
    np.testing.assert_array_equal(parsed, [[1, 2], [3, 4]])
    estimator = kmeans.KMeansClustering(
        9, model_dir=str(tmp_path), initial_clusters="kmeans_plus_plus", seed=1
    )
    with pytest.raises((AssertionError, tf.errors.InvalidArgumentError)):
        estimator.train(lambda: (tf.constant(ANGLES), None), steps=1)
