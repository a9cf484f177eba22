"""Masks over shared stages of vectors, images and maps; each mask belongs to a task."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks
from mtl.balancing import task_gradients
from mtl.variables import stacks

tf1 = tf.compat.v1

TASKS = ("click", "click_long")
RANDOM = np.random.default_rng(0)
VECTORS = {"x": RANDOM.normal(size=[9, 5]).astype(np.float32)}
IMAGES = {
    "picture": RANDOM.normal(size=[4, 5, 5, 2]).astype(np.float32),
    "size": RANDOM.normal(size=[4, 1]).astype(np.float32),
}
MAPS = {"picture": IMAGES["picture"]}


class Built:
    """A network in a new graph, with random scales and biases in place of ones and zeros."""

    def __init__(self, network, inputs, training=True):
        with tf.Graph().as_default(), tf1.Session() as session:
            tf1.set_random_seed(1)
            tf1.train.get_or_create_global_step()
            with tf1.variable_scope("network"), stacks.separate_tasks(True):
                towers = network({c: tf.constant(v) for c, v in inputs.items()}, TASKS, training)
            variables = tf1.trainable_variables()
            self.names = [v.op.name.removeprefix("network/") for v in variables]
            self.shapes = [shared.shape.as_list() for shared in towers.shared]
            losses = [tf.reduce_sum(tower**2) for tower in towers.values()]
            self.moves = {
                task: {
                    name
                    for name, gradient in zip(
                        self.names, tf1.gradients(loss, variables), strict=True
                    )
                    if gradient is not None
                }
                for task, loss in zip(TASKS, losses, strict=True)
            }
            found = task_gradients.TaskGradients.from_losses(losses, variables, towers.shared)
            at = [
                tf.add_n([g for g in of_tasks if g is not None])
                for of_tasks in found.at_representation
            ]
            through = found.continue_below(at, tf.ones([2]))
            plain = tf1.gradients(tf.add_n(losses), variables)
            session.run(tf1.global_variables_initializer())
            random = np.random.default_rng(3)
            for variable in tf1.global_variables():
                if variable.shape.rank == 1:
                    variable.load(random.uniform(0.5, 1.5, size=variable.shape), session)
            self.values = {
                v.op.name.removeprefix("network/"): session.run(v) for v in tf1.global_variables()
            }
            self.towers = session.run(dict(towers))
            self.through, self.plain = session.run([through, plain])

    def layer(self, name, x, activation, training=True, norm_name=None):
        """A dense layer or a convolution that keeps the borders, its norm and its activation."""
        norm_name = norm_name or f"{name}_norm"
        kernel = self.values[f"{name}/kernel"]
        if kernel.ndim == 4:
            size, (height, width) = len(kernel), x.shape[1:3]
            rim = size // 2
            padded = np.pad(x, [(0, 0), (rim, rim), (rim, rim), (0, 0)])
            x = sum(
                padded[:, i : i + height, j : j + width] @ kernel[i, j]
                for i in range(size)
                for j in range(size)
            )
        else:
            x = x @ kernel
        norm = {key: self.values[f"{norm_name}/{key}"] for key in ("gamma", "beta")}
        axes = tuple(range(x.ndim - 1))
        mean, variance = x.mean(axis=axes), x.var(axis=axes)
        if not training:
            moving = ("moving_mean", "moving_variance")
            mean, variance = (self.values[f"{norm_name}/{key}"] for key in moving)
        return activation(norm["gamma"] * (x - mean) / np.sqrt(variance + 1e-3) + norm["beta"])


def _relu(x):
    return np.maximum(x, 0)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _pool(x):
    """The largest of squares of two; what is left over at the border counts as a square."""
    if x.ndim == 2:
        return x
    height, width = ((side + 1) // 2 for side in x.shape[1:3])
    rows = [
        [x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2] for j in range(width)] for i in range(height)
    ]
    return np.stack([np.stack([s.max(axis=(1, 2)) for s in row], 1) for row in rows], 1)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("network", "inputs", "training"),
    [
        (networks.MTAN(layers=[6, 4]), VECTORS, True),
        (networks.MTAN(layers=[6, 4]), VECTORS, False),
        (networks.MTAN(filters=[3, 4]), IMAGES, True),
    ],
    ids=["vectors", "served", "images"],
)
@pytest.mark.always
def test_mtan_is_what_the_paper_says(network, inputs, training):
    made = Built(network, inputs, training)
    x, h = next(iter(inputs.values())), {}
    for level in range(2):
        x, h = _stage(made, f"stage_{level}", _pool(x) if level else x, h, _pool, training)
    for task in TASKS:
        expected = h[task]
        if inputs is IMAGES:
            expected = np.concatenate([expected.mean(axis=(1, 2)), IMAGES["size"]], axis=1)
        np.testing.assert_allclose(made.towers[task], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.medium
def test_a_decoder_goes_back_up_beside_what_came_down():
    made = Built(networks.MTAN(filters=[3, 4], decoder=True), MAPS)
    x, h, down = MAPS["picture"], {}, []
    for level in range(2):
        x, h = _stage(made, f"stage_{level}", _pool(x) if level else x, h, _pool)
        down.append(x)
    enlarge = functools.partial(_enlarge, like=down[0])
    joined = np.concatenate([enlarge(x), down[0]], axis=-1)
    x, h = _stage(made, "decoder_0", joined, h, enlarge)
    for task in TASKS:
        assert made.towers[task].shape == (4, 5, 5, 3)
        np.testing.assert_allclose(made.towers[task], h[task], rtol=1e-4, atol=1e-4)


def _stage(made, at, x, h, resize, training=True):
    """The output of a shared stage, and {task: what its mask leaves of it}."""
    c = {
        task: resize(
            made.layer(
                f"{at}/passed_on/hidden",
                passed,
                _relu,
                training,
                f"{at}/task_{task}/passed_on_norm",
            )
        )
        for task, passed in h.items()
    }
    u = made.layer(f"{at}/shared/first", x, _relu, training)
    x = made.layer(f"{at}/shared/second", u, _relu, training)
    for task in TASKS:
        seen = np.concatenate([u, c[task]], axis=-1) if c else u
        hidden = made.layer(f"{at}/task_{task}/hidden", seen, _relu, training)
        h = {**h, task: made.layer(f"{at}/task_{task}/mask", hidden, _sigmoid, training) * x}
    return x, h


def _enlarge(x, like):
    """Each pixel as a square of two, as far as the other map reaches."""
    return x.repeat(2, 1).repeat(2, 2)[:, : like.shape[1], : like.shape[2]]


@pytest.mark.medium
def test_masks_belong_to_a_task_and_all_else_is_shared():
    made = Built(networks.MTAN(layers=[6, 4], tower=networks.MLP(layers=[2])), VECTORS)
    shared = {name for name in made.names if re.match(r"stage_\d/(shared|passed_on)/", name)}
    for task in TASKS:
        own = {n for n in made.names if re.match(rf"(stage_\d/task_{task}|tower_{task})/", n)}
        assert made.moves[task] == shared | own
    assert set(made.names) == made.moves["click"] | made.moves["click_long"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("network", "inputs", "shapes"),
    [
        (networks.MTAN(layers=[6, 4]), VECTORS, [[9, 6]] * 2 + [[9, 4]] * 2),
        (networks.MTAN(filters=[3, 4]), IMAGES, [[4, 5, 5, 3]] * 2 + [[4, 3, 3, 4]] * 2),
        (
            networks.MTAN(filters=[3, 4], decoder=True),
            MAPS,
            [[4, 5, 5, 3]] * 2 + [[4, 3, 3, 4]] * 2 + [[4, 5, 5, 3]] * 2,
        ),
    ],
    ids=["vectors", "images", "maps"],
)
def test_gradients_through_what_is_shared_are_all_there_are(network, inputs, shapes):
    """A surgery at the shared outputs, with weights of 1, gives the sum of the losses."""
    made = Built(network, inputs)
    assert made.shapes == shapes
    for name, through, plain in zip(made.names, made.through, made.plain, strict=True):
        np.testing.assert_allclose(through, plain, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: networks.MTAN(), "MTAN must have either layers or filters, got {'layers': ()"),
        (lambda: networks.MTAN(layers=[4], filters=[4]), "MTAN must have either layers or filters"),
        (lambda: networks.MTAN(layers=4), "MTAN.layers must be a list of sizes"),
        (lambda: networks.MTAN(filters=[0]), "MTAN.filters must be above 0"),
        (lambda: networks.MTAN(filters=[4], pool=0), "MTAN.pool must be at least 1"),
        (lambda: networks.MTAN(layers=[4], decoder=True), "MTAN.decoder must be False for dense"),
        (lambda: Built(networks.MTAN(filters=[4], decoder=True), IMAGES), "must all be images"),
        (lambda: networks.MTAN(layers=[4], activation="rleu"), "Did you mean 'relu'?"),
        (lambda: networks.MTAN(layers=[4], tower=networks.MLP), "MTAN.tower must be a part"),
        (lambda: Built(networks.MTAN(filters=[4]), VECTORS), "MTAN inputs must hold an image"),
    ],
)
def test_bad_settings_are_one_line(make, says):
    with pytest.raises(checks.UserError) as error:
        make()
    assert says in str(error.value) and "\n" not in str(error.value)
