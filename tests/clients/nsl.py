"""neural-structured-learning's adversarial regularisation of an Estimator, on new TensorFlow.

    python -m venv .clients/nsl
    .clients/nsl/bin/pip install . neural-structured-learning
    .clients/nsl/bin/python -m tests.clients.nsl

The library asks for `tf.estimator`, which TensorFlow 2.16 and later lack and `mtl.compat` brings
back. The library is not changed. The program prints its results, and fails if one of them is wrong.
"""

import tempfile

import numpy as np
import tensorflow as tf

import mtl.compat  # noqa: F401  # Before the library, which reads tf.estimator.

import neural_structured_learning as nsl  # isort: skip

tf1 = tf.compat.v1
_RANDOM = np.random.default_rng(0)
_X = _RANDOM.normal(size=(512, 4)).astype(np.float32)
_ROWS = ({"x": _X}, (_X[:, 0] + 0.5 * _X[:, 1] > 0).astype(np.int64))


def read_rows(passes: int = 1) -> tf.data.Dataset:
    """Return the rows in batches of 64."""
    return tf.data.Dataset.from_tensor_slices(_ROWS).repeat(passes).batch(64)


def train(multiplier: float | None) -> tuple[dict, float]:
    """Train a canned classifier, regularised if there is a multiplier: metrics, and |dL/dx|."""
    optimizer = lambda: tf1.train.AdamOptimizer(0.01)  # noqa: E731
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = tf1.estimator.DNNClassifier(
            [16],
            [tf.feature_column.numeric_column("x", shape=(4,))],
            optimizer=optimizer,
            model_dir=model_dir,
            config=tf.estimator.RunConfig(tf_random_seed=1),
        )
        if multiplier is not None:
            settings = nsl.configs.make_adv_reg_config(multiplier=multiplier, adv_step_size=0.5)
            estimator = nsl.estimator.add_adversarial_regularization(
                estimator, optimizer_fn=optimizer, adv_config=settings
            )
        estimator.train(lambda: read_rows(40), steps=200)
        metrics = estimator.evaluate(read_rows)
        names = estimator.get_variable_names()
        assert "dnn/hiddenlayer_0/kernel" in names, names
        kernel = estimator.get_variable_value("dnn/hiddenlayer_0/kernel")
        return metrics, float(np.abs(kernel).sum())


def main() -> None:
    """Train without, with nothing and with much of the regularisation."""
    plain, none, much = (train(multiplier) for multiplier in (None, 0.0, 2.0))
    for name, (metrics, size) in {"plain": plain, "0": none, "2": much}.items():
        print(f"{name}: accuracy {metrics['accuracy']:.3f}, loss {metrics['loss']:.4f}, {size:.3f}")
        assert metrics["accuracy"] > 0.95, metrics
        assert metrics["global_step"] == 200, metrics
    # A multiplier of 0 adds nothing; a multiplier of 2 has to change the weights.
    assert abs(plain[1] - none[1]) < 1e-3, (plain, none)
    assert abs(plain[1] - much[1]) > 0.05, (plain, much)
    print("neural-structured-learning", nsl.__version__, "on TensorFlow", tf.__version__, "works")


if __name__ == "__main__":
    main()
