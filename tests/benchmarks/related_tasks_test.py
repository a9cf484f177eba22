"""Labels and networks of `benchmarks.related_tasks` agree with NumPy for one setting."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import related_tasks as benchmark
from mtl.datasets import simulated


def test_labels_are_those_of_the_formula():
    settings = [(0.0, 3, 0.1), (1.0, 3, 0.1)]
    x, labels = benchmark.make_reader(settings, scale=2.0, sines=2)(0, tf.constant(5), 50)
    sums = x.numpy() @ (2 * simulated.draw_directions(3, 100, 0.0))
    exact = sums + np.sin(sums) + np.sin(2 * sums + 1)
    noise = labels.numpy()[0] - exact
    np.testing.assert_allclose(noise.std(), 0.1, rtol=0.2)
    # With a correlation of 1 both tasks are equal except for the noise, which all settings share.
    same = labels.numpy()[1] - noise
    np.testing.assert_allclose(same, exact[:, :1].repeat(2, axis=1), atol=1e-4)


@pytest.mark.parametrize("name", benchmark.NETWORKS)
def test_predictions_are_those_of_each_setting_alone(name):
    made = benchmark.Networks([1, 7])
    x = np.random.default_rng(0).normal(size=[6, 100]).astype(np.float32)
    found = made.predict(name, tf.constant(x)).numpy()
    weights = [weight.numpy()[1] for weight in made.weights[name]]
    kernel, bias, tower, tower_bias, last, last_bias, *gate = weights
    hidden = np.maximum(x @ kernel + bias, 0)
    for task in range(2):
        inputs = hidden
        if gate:
            logits = x @ gate[0][:, task if name == "MMoE" else 0]
            shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            inputs = (hidden.reshape(6, 8, 16) * shares[:, :, np.newaxis]).sum(axis=1)
        inside = np.maximum(inputs @ tower[task] + tower_bias[0, task], 0)
        expected = inside @ last[task] + last_bias[0, task]
        np.testing.assert_allclose(found[1, :, task], expected, rtol=1e-4, atol=1e-5)
    sizes = [sum(w.numpy()[0].size for w in made.weights[n]) for n in benchmark.NETWORKS]
    assert max(sizes) / min(sizes) < 1.06


def test_the_rate_and_the_moment_are_chosen_on_validation_data():
    shape = (1, 2, 2)  # A correlation, two seeds and two rates.
    validated, tested = [[1.0, 5.0, 1.0, 5.0], [2.0, 0.5, 2.0, 0.5]], [[3, 4, 3, 4], [7, 8, 7, 9]]
    seen = [
        {name: np.array([v, t], float) for name in benchmark.NETWORKS}
        for v, t in zip(validated, tested, strict=True)
    ]
    np.testing.assert_array_equal(benchmark.choose(seen[:1], shape)["MMoE"], [[3, 3]])
    np.testing.assert_array_equal(benchmark.choose(seen, shape)["MMoE"], [[8, 9]])
