"""Estimator v1 and v2, RunConfig, warm start, export and SavedModelEstimator, end to end."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat
from tests.compat import toy

tf1 = tf.compat.v1
VERSIONS = {"v2": lambda: compat.estimator.Estimator, "v1": lambda: compat.estimator_v1.Estimator}


def _kernel(estimator):
    return estimator.get_variable_value("kernel")


@pytest.mark.medium
@pytest.mark.parametrize("version", VERSIONS)
def test_train_evaluate_predict(version, tmp_path):
    estimator = VERSIONS[version]()(toy.model_fn, str(tmp_path), params={"rate": 0.05})
    estimator.train(toy.input_fn, steps=3)
    estimator.train(toy.input_fn, max_steps=5)
    kernel = toy.descend(5, rate=0.05)
    np.testing.assert_allclose(_kernel(estimator), kernel, rtol=1e-5)
    metrics = estimator.evaluate(toy.input_fn, steps=1)
    assert metrics["global_step"] == 5
    np.testing.assert_allclose(metrics["mse"], toy.mean_squared_error(kernel), rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], metrics["mse"], rtol=1e-6)
    predictions = [p["y"] for p in estimator.predict(lambda: toy.input_fn(repeat=False))]
    np.testing.assert_allclose(predictions, toy.ROWS @ kernel, rtol=1e-4, atol=1e-5)


@pytest.mark.medium
def test_training_goes_on_from_the_last_checkpoint(tmp_path):
    for steps in (2, 3):
        estimator = compat.estimator.Estimator(toy.model_fn, str(tmp_path))
        estimator.train(toy.input_fn, steps=steps)
    assert estimator.get_variable_value("global_step") == 5
    np.testing.assert_allclose(_kernel(estimator), toy.descend(5), rtol=1e-5)
    assert set(estimator.get_variable_names()) == {"global_step", "kernel"}


@pytest.mark.medium
def test_checkpoints_follow_run_config(tmp_path):
    config = compat.estimator.RunConfig(
        model_dir=str(tmp_path), save_checkpoints_steps=2, keep_checkpoint_max=2, tf_random_seed=7
    )
    estimator = compat.estimator.Estimator(toy.model_fn, config=config)
    estimator.train(toy.input_fn, steps=7)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert [path.rpartition("-")[2] for path in state.all_model_checkpoint_paths] == ["6", "7"]
    assert estimator.latest_checkpoint() == state.model_checkpoint_path


@pytest.mark.medium
def test_export_serves_what_predict_says(tmp_path):
    estimator = compat.estimator.Estimator(toy.model_fn, str(tmp_path / "model"))
    estimator.train(toy.input_fn, steps=4)
    path = estimator.export_saved_model(
        str(tmp_path / "export"), toy.serving_input_fn, assets_extra={"note.txt": __file__}
    )
    serve = tf.saved_model.load(path.decode()).signatures["serving_default"]
    (name,) = serve.structured_input_signature[1]
    outputs = serve(**{name: tf.constant(toy.ROWS)})["y"]
    np.testing.assert_allclose(outputs, toy.ROWS @ _kernel(estimator), rtol=1e-5, atol=1e-6)
    assert (pathlib.Path(path.decode()) / "assets.extra" / "note.txt").exists()


@pytest.mark.medium
def test_export_of_all_modes_and_saved_model_estimator(tmp_path):
    from tensorflow_estimator.python.estimator.canned import saved_model_estimator

    estimator = compat.estimator.Estimator(toy.model_fn, str(tmp_path / "model"))
    estimator.train(toy.input_fn, steps=4)

    def supervised():
        rows, labels = (
            tf1.placeholder(tf.float32, [None, 3]),
            tf1.placeholder(tf.float32, [None, 1]),
        )
        build = compat.estimator.experimental.build_raw_supervised_input_receiver_fn
        return build({"x": rows}, labels)()

    path = estimator.experimental_export_all_saved_models(
        str(tmp_path / "export"),
        {"train": supervised, "eval": supervised, "infer": toy.serving_input_fn},
    )
    again = saved_model_estimator.SavedModelEstimator(path.decode(), str(tmp_path / "again"))
    mse = again.evaluate(toy.input_fn, steps=1)["metrics/mse"]
    np.testing.assert_allclose(mse, toy.mean_squared_error(toy.descend(4)), rtol=1e-5)
    again.train(toy.input_fn, steps=2)
    np.testing.assert_allclose(_kernel(again), toy.descend(6), rtol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("settings", [False, True])
def test_warm_start(settings, tmp_path):
    first = compat.estimator.Estimator(toy.model_fn, str(tmp_path / "first"))
    first.train(toy.input_fn, steps=4)
    start = str(tmp_path / "first")
    if settings:
        start = compat.estimator.WarmStartSettings(start, vars_to_warm_start="kernel")
    second = compat.estimator.Estimator(
        toy.model_fn, str(tmp_path / "second"), warm_start_from=start
    )
    second.train(toy.input_fn, steps=1)
    assert second.get_variable_value("global_step") == 1
    np.testing.assert_allclose(_kernel(second), toy.descend(5), rtol=1e-5)


@pytest.mark.medium
def test_warm_start_maps_names_and_vocabularies(tmp_path):
    vocabularies = {}
    for name, words in {"old": ["a", "b"], "new": ["b", "c", "a"]}.items():
        vocabularies[name] = tmp_path / f"{name}.txt"
        vocabularies[name].write_text("\n".join(words))

    def model_fn(name, rows):
        def build(features, labels, mode):
            table = tf1.get_variable(name, [rows, 2], initializer=tf1.random_normal_initializer())
            step = tf1.assign_add(tf1.train.get_global_step(), 1)
            return compat.estimator.EstimatorSpec(mode, loss=tf.reduce_sum(table), train_op=step.op)

        return build

    old = compat.estimator.Estimator(model_fn("table", 2), str(tmp_path / "old"))
    old.train(toy.input_fn, steps=1)
    start = compat.estimator.WarmStartSettings(
        str(tmp_path / "old"),
        var_name_to_vocab_info={
            "words": compat.estimator.VocabInfo(
                new_vocab=str(vocabularies["new"]),
                new_vocab_size=3,
                num_oov_buckets=0,
                old_vocab=str(vocabularies["old"]),
                backup_initializer=tf1.zeros_initializer(),
            )
        },
        var_name_to_prev_var_name={"words": "table"},
    )
    new = compat.estimator.Estimator(
        model_fn("words", 3), str(tmp_path / "new"), warm_start_from=start
    )
    new.train(toy.input_fn, steps=1)
    table = old.get_variable_value("table")
    expected = np.stack([table[1], np.zeros(2), table[0]])
    np.testing.assert_array_equal(new.get_variable_value("words"), expected)


def test_mode_keys_and_spec_errors():
    assert (compat.estimator.ModeKeys.TRAIN, compat.estimator.ModeKeys.PREDICT) == (
        "train",
        "infer",
    )
    with pytest.raises(ValueError, match="Missing train_op"):
        compat.estimator.EstimatorSpec("train")


@pytest.mark.medium
def test_memory_holds_over_repeated_evaluation(tmp_path):
    import gc

    estimator = compat.estimator.Estimator(toy.model_fn, str(tmp_path))
    estimator.train(toy.input_fn, steps=1)

    def graphs():
        estimator.evaluate(toy.input_fn, steps=1)
        gc.collect()
        return sum(isinstance(thing, tf.Graph) for thing in gc.get_objects())

    before = [graphs() for _ in range(3)][-1]
    assert [graphs() for _ in range(3)][-1] <= before
