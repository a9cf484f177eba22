"""Clipping before the tasks, or the examples of a batch, are combined."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat, features, heads, model, networks
from mtl.balancing import example_clipping, methods, surgery, weighting
from mtl.example_gradients import gradient_forms
from mtl.model import graph_options
from mtl.optimization import adaptive_clipping, optimizers, transforms, update
from tests import tiny
from tests.balancing import surgery_methods

tf1 = tf.compat.v1

GRADIENTS = np.array([[3.0, 4.0, 0.0], [-0.3, 0.1, 0.2], [0.0, -8.0, 6.0]])
MAX_NORM = 1.5
ROWS = 4


def test_every_task_is_clipped_before_they_are_added_up():
    weights = surgery_methods.weights(methods.Clipped(max_norm=MAX_NORM), GRADIENTS)
    np.testing.assert_allclose(weights, [0.3, 1.0, 0.15], rtol=1e-12)


@pytest.mark.medium
@pytest.mark.parametrize("method", [methods.PCGrad(), methods.CAGrad(), methods.GradVac()])
def test_the_method_sees_clipped_gradients(method):
    scales = np.minimum(1, MAX_NORM / np.linalg.norm(GRADIENTS, axis=1))
    found = surgery_methods.weights(methods.Clipped(max_norm=MAX_NORM, method=method), GRADIENTS)
    alone = surgery_methods.weights(method, scales[:, None] * GRADIENTS)
    np.testing.assert_allclose(found, scales * alone, rtol=1e-9)


@pytest.mark.parametrize("method", [methods.GradDrop(), methods.MoCo(), methods.MoDo()])
def test_methods_that_do_not_suit(method):
    with pytest.raises(ValueError, match="Clipped.method must"):
        methods.Clipped(max_norm=1.0, method=method)


def _rows():
    """The third example is far off: its label is a thousand times too large."""
    rows = {name: np.asarray(values)[:ROWS] for name, values in tiny.rows(64, seed=3).items()}
    rows.pop("kind")
    return rows | {
        "size": rows["size"] * np.where(np.arange(ROWS) == 2, np.float32(1000), np.float32(1))
    }


class Tied:
    """A layer that no single pass takes apart by examples: a product over pairs of entries."""

    def __call__(self, inputs, tasks, training):
        hidden = tf.concat(list(inputs.values()), 1)
        kernel = tf1.get_variable("kernel", [hidden.shape[1], 6])
        return dict.fromkeys(tasks, tf.einsum("bi,bj,ik,jk->bk", hidden, hidden, kernel, kernel))


MLP = networks.SharedBottom(trunk=networks.MLP(layers=[6]))


def _step(part, slices, chosen=slice(None), network=MLP, storage="float32", **settings):
    """The change of every variable by one step at rate 1, with these settings of the update."""
    made = model.MultiTaskModel(
        columns=[
            features.Numeric(names=["x"], normalization="none"),
            features.Hashed(names=["word"], num_buckets=4, dimension=3, storage=storage),
        ],
        network=network,
        heads=[heads.Binary(name="sign"), heads.Regression(name="size")],
        update=update.Update(**{"optimizer": optimizers.SGD(learning_rate=1.0), **settings}),
        surgery=part,
        weighting=weighting.Fixed(weights={"sign": 1.5, "size": 0.5}),
    )
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(5)
        tf1.train.get_or_create_global_step()
        rows = {name: tf.constant(values[chosen]) for name, values in _rows().items()}
        inputs = {name: rows[name] for name in ("x", "word")}
        spec = made.model_fn(
            inputs,
            {name: rows[name] for name in ("sign", "size")},
            compat.estimator.ModeKeys.TRAIN,
            options=graph_options.GraphOptions(
                statistics=features.Statistics(directory="", entries={}), slices=slices
            ),
        )
        names = {variable.op.name: variable for variable in tf1.trainable_variables()}
        session.run(tf1.global_variables_initializer())
        before = session.run(names)
        session.run(spec.train_op)
        after = session.run(names)
        return {name: before[name] - after[name] for name in names}


@pytest.mark.medium
@pytest.mark.parametrize("network", [MLP, Tied()], ids=["one_pass", "a_pass_for_each"])
def test_every_example_is_clipped(network, caplog):
    """However the batch is cut, and whether or not one pass tells the norms."""
    alone = [_step(surgery.Sum(), 1, slice(n, n + 1), network) for n in range(ROWS)]
    norms = [np.sqrt(sum((g**2).sum() for g in example.values())) for example in alone]
    most = float(np.median(norms))
    assert max(norms) > 100 * most
    scales = [min(1, most / norm) for norm in norms]
    for slices in (1, 2, ROWS):
        found = _step(example_clipping.ExampleClipping(max_norm=most), slices, network=network)
        for name, value in found.items():
            clipped = [scale * g[name] for g, scale in zip(alone, scales, strict=True)]
            np.testing.assert_allclose(value, np.mean(clipped, 0), rtol=1e-5, atol=1e-5 * most)
    assert ("a pass for each example, for network/kernel" in caplog.text) == (network is not MLP)


@pytest.mark.parametrize("size", [1.0, 1e18, 1e30])
def test_norms_of_examples_whose_squares_overflow(size):
    random = np.random.default_rng(0)
    inputs, cotangents, rows = (random.normal(size=[3, 2, 4]).astype(np.float32) for _ in range(3))
    large = (cotangents * np.array([1, size, 0])[:, None, None]).astype(np.float32)
    ids, examples = np.array([5, 5, 2]), np.array([1, 1, 0])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = [
            gradient_forms.Plain(tf.constant(large)),
            gradient_forms.Products(tf.constant(inputs), tf.constant(large)),
            gradient_forms.Rows(*map(tf.constant, (ids, examples, rows[:, 0], 3))),
        ]
        squares = session.run(example_clipping._squared_norms(made, 3))
    large, inputs, rows = (of.astype(np.float64) for of in (large, inputs, rows[:, 0]))
    expected = (large**2).sum((1, 2)) + (np.einsum("itp,itq->ipq", inputs, large) ** 2).sum((1, 2))
    expected += [(rows[2] ** 2).sum(), ((rows[0] + rows[1]) ** 2).sum(), 0]
    np.testing.assert_allclose(squares, expected, rtol=1e-5)


@pytest.mark.medium
def test_without_a_bound_it_is_the_sum():
    found = _step(example_clipping.ExampleClipping(max_norm=float("inf")), 2)
    for name, value in _step(surgery.Sum(), 1).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.medium
def test_noise():
    part = example_clipping.ExampleClipping(max_norm=1e-9, noise_multiplier=3e9)
    noise = np.concatenate([value.ravel() for value in _step(part, 2).values()])
    np.testing.assert_allclose(noise.std(), 3 / ROWS, rtol=0.2)
    assert abs(noise.mean()) < 0.2
    assert len(np.unique(noise)) == noise.size


@pytest.mark.medium
@pytest.mark.parametrize(
    "settings",
    [
        {"transforms": [transforms.Centralization()]},
        {"clipping": adaptive_clipping.AGC(max_ratio=0.1)},
        {"optimizer": optimizers.RowWiseAdagrad(learning_rate=0.1)},
        {"optimizer": optimizers.RowWiseAdagrad(learning_rate=0.1), "storage": "bfloat16"},
    ],
    ids=["centralization", "agc", "row-wise", "16 bits"],
)
def test_a_table_with_noise_is_still_a_table(settings):
    """A step with hardly any noise is that without noise."""
    quiet, noisy = (
        _step(example_clipping.ExampleClipping(max_norm=1.0, noise_multiplier=m), 1, **settings)
        for m in (0, 1e-9)
    )
    # A table in bfloat16 is rounded at random.
    tolerance = 1e-3 if "storage" in settings else 1e-5
    for name, value in quiet.items():
        np.testing.assert_allclose(noisy[name], value, atol=tolerance, err_msg=name)


def test_bare_losses_are_refused():
    with pytest.raises(ValueError, match="ExampleClipping must get independent rows"):
        example_clipping.ExampleClipping(max_norm=1.0)({"a": tf.constant(1.0)}, [])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: methods.Clipped(max_norm=0), "Clipped.max_norm must be above 0"),
        (lambda: example_clipping.ExampleClipping(max_norm=-1), "max_norm must be above 0"),
        (
            lambda: example_clipping.ExampleClipping(max_norm=1, noise_multiplier=-1),
            "noise_multiplier must be at least 0",
        ),
    ],
)
def test_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build()
