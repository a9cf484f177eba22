"""train_and_evaluate with every exporter, and early stopping."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat
from tests.compat import toy


def _estimator(path, **config):
    settings = compat.estimator.RunConfig(model_dir=str(path), tf_random_seed=1, **config)
    return compat.estimator.Estimator(toy.model_fn, config=settings, params={"rate": 0.2})


def _specs(steps, hooks=(), exporters=()):
    train = compat.estimator.TrainSpec(toy.input_fn, max_steps=steps, hooks=hooks)
    evaluate = compat.estimator.EvalSpec(
        toy.input_fn, steps=1, start_delay_secs=0, throttle_secs=0, exporters=exporters
    )
    return train, evaluate


@pytest.mark.medium
def test_evaluates_every_checkpoint_and_exports(tmp_path):
    exporters = [
        compat.estimator.BestExporter(
            serving_input_receiver_fn=toy.serving_input_fn, exports_to_keep=5
        ),
        compat.estimator.FinalExporter("final", toy.serving_input_fn),
        compat.estimator.LatestExporter("latest", toy.serving_input_fn, exports_to_keep=2),
    ]
    estimator = _estimator(tmp_path, save_checkpoints_steps=5)
    metrics, exported = compat.estimator.train_and_evaluate(
        estimator, *_specs(20, exporters=exporters)
    )
    assert metrics["global_step"] == 20
    expected = toy.mean_squared_error(toy.descend(20, rate=0.2))
    np.testing.assert_allclose(metrics["mse"], expected, rtol=1e-4)
    counts = {p.name: len(list(p.iterdir())) for p in (tmp_path / "export").iterdir()}
    assert counts.pop("best_exporter") >= 2
    assert counts == {"final": 1, "latest": 2}
    paths = [pathlib.Path(path.decode()) for path in exported if path]
    assert {p.parent.name for p in paths} == {"best_exporter", "final", "latest"}
    for path in paths:
        serve = tf.saved_model.load(str(path)).signatures["serving_default"]
        (name,) = serve.structured_input_signature[1]
        outputs = serve(**{name: tf.constant(toy.ROWS)})["y"]
        expected = toy.ROWS @ toy.descend(20, rate=0.2)
        np.testing.assert_allclose(outputs, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.medium
def test_own_exporter(tmp_path):
    seen = []

    class Exporter(compat.estimator.Exporter):
        name = "own"

        def export(self, estimator, **arguments):
            step = arguments["eval_result"]["global_step"]
            seen.append((step, arguments["is_the_final_export"]))

    estimator = _estimator(tmp_path, save_checkpoints_steps=2)
    compat.estimator.train_and_evaluate(estimator, *_specs(4, exporters=[Exporter()]))
    assert seen == [(2, False), (4, True)]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("stop_if_lower_hook", {"metric_name": "loss", "threshold": 1e9}),
        ("stop_if_higher_hook", {"metric_name": "loss", "threshold": -1.0}),
        ("stop_if_no_increase_hook", {"metric_name": "loss", "max_steps_without_increase": 6}),
    ],
)
def test_early_stopping(name, arguments, tmp_path):
    estimator = _estimator(tmp_path, save_checkpoints_steps=4)
    make = getattr(compat.estimator.experimental, name)
    hook = make(estimator, run_every_secs=None, run_every_steps=1, **arguments)
    compat.estimator.train_and_evaluate(estimator, *_specs(400, hooks=[hook]))
    assert estimator.get_variable_value("global_step") < 400


@pytest.mark.medium
def test_no_decrease_does_not_stop_while_it_decreases(tmp_path):
    estimator = _estimator(tmp_path, save_checkpoints_steps=4)
    hook = compat.estimator.experimental.stop_if_no_decrease_hook(
        estimator, "loss", 6, run_every_secs=None, run_every_steps=1
    )
    compat.estimator.train_and_evaluate(estimator, *_specs(16, hooks=[hook]))
    assert estimator.get_variable_value("global_step") == 16


@pytest.mark.medium
def test_own_stopping_rule(tmp_path):
    estimator = _estimator(tmp_path)
    calls = []
    hook = compat.estimator.experimental.make_early_stopping_hook(
        estimator, lambda: len(calls) >= 3 or calls.append(1), None, run_every_steps=1
    )
    estimator.train(toy.input_fn, hooks=[hook], max_steps=50)
    assert 3 <= estimator.get_variable_value("global_step") < 50
