"""Inner products of short gradients, and the methods that use them, agree with full gradients."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from mtl import layers
from mtl.balancing import methods, short_gradients, stacked_passes, surgery, task_gradients
from mtl.balancing.methods import method as method_lib
from mtl.step import whole_batch
from tests.balancing import surgery_methods
from tests.conformance import balancers

tf1 = tf.compat.v1

BATCH, INPUTS, WIDTH, TASKS = 12, 60, 30, 5


def _exact(inputs, cotangents):
    """[T, T] in float64, of inputs [B, I] and cotangents [T, B, H]."""
    gradients = np.einsum("bi,tbh->tih", inputs.astype(np.float64), cotangents)
    return np.einsum("sih,tih->st", gradients, gradients)


def _products(inputs, cotangents, turned=False):
    """The inner products of short gradients; `turned` of a weight [H, I]."""
    with tf.Graph().as_default(), tf1.Session() as session:
        shape = (WIDTH, INPUTS) if turned else (INPUTS, WIDTH)
        weight = tf.zeros(shape)
        outputs = tf.linalg.matmul(tf.constant(inputs), weight, transpose_b=turned)
        gradients = [tf.gradients(outputs, weight, tf.constant(own))[0] for own in cotangents]
        blocks = short_gradients.shorten_gradients(gradients)
        leaves = [task_gradients.Leaf(tuple(range(len(cotangents))), rows) for rows in blocks]
        assert sum(rows.shape[1] for rows in blocks) == BATCH
        return session.run(task_gradients.compute_gramian(leaves, len(cotangents)))


def _draw(kind):
    """Inputs [B, I] and cotangents [T, B, H]."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(BATCH, INPUTS))
    cotangents = random.normal(size=(TASKS, BATCH, WIDTH)).astype(np.float32)
    if kind == "rows of zeros":
        inputs[[0, 5, 6]] = 0
    if kind == "no inputs":
        inputs *= 0
    if kind == "equal rows":
        inputs[3:] = inputs[0]
    if kind == "nearly equal rows":
        inputs[3:6] = inputs[0] + 1e-7 * inputs[3:6]
    if kind == "few columns":
        inputs[:, 4:] = 0
    if kind == "uneven rows":
        inputs *= 10.0 ** np.linspace(-9, 9, BATCH)[:, np.newaxis]
        cotangents /= 10.0 ** np.linspace(-9, 9, BATCH)[:, np.newaxis]
    return inputs.astype(np.float32), cotangents


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        "rows of zeros",
        "no inputs",
        "equal rows",
        "nearly equal rows",
        "few columns",
        "uneven rows",
    ],
)
def test_products_equal_those_of_the_gradients(kind, turned):
    inputs, cotangents = _draw(kind)
    exact = _exact(inputs, cotangents)
    norms = np.sqrt(np.diag(exact)) + (kind == "no inputs")
    scale = np.outer(norms, norms)
    found = _products(inputs, cotangents, turned)
    np.testing.assert_allclose(found / scale, exact / scale, atol=1e-6)


def test_gradients_that_nearly_depend_on_each_other_stay_apart():
    inputs, cotangents = _draw("plain")
    inputs += 3  # One direction, which all examples have, is much longer than all others.
    small = np.random.default_rng(1).normal(size=cotangents.shape[1:])
    cotangents[1] = cotangents[0] + 1e-5 * small
    apart = cotangents[1].astype(np.float64) - cotangents[0]
    found = _products(inputs, cotangents)
    square = found[0, 0] - 2 * found[0, 1] + found[1, 1]
    np.testing.assert_allclose(square, _exact(inputs, apart[np.newaxis])[0, 0], rtol=0.05)


def test_gradients_that_depend_on_each_other_stay_so():
    """Tasks whose labels differ in examples of equal inputs have one gradient."""
    inputs, cotangents = _draw("equal rows")
    cotangents[1] = cotangents[0, ::-1]
    cotangents[:, :3] = 0
    cotangents[1, 3:] = cotangents[0, 3:][::-1]
    found = np.linalg.eigvalsh(_products(inputs, cotangents[:2]))
    assert found[0] < 1e-13 * found[1]


@pytest.mark.parametrize("side", [0, 1])
def test_what_is_not_finite_shows(side):
    given = _draw("plain")
    given[side][2, 0] = np.inf
    assert not np.isfinite(_products(*given)[2, 2])


def _shortened(batch=BATCH, reads=1, dtype=tf.float32, width=WIDTH, static=True):
    """Return the short gradients of a weight that `reads` ops read, or None."""
    with tf.Graph().as_default():
        weight = tf.zeros([INPUTS, width], dtype)
        sizes = [batch if static else None, INPUTS]
        losses = []
        outputs = [tf1.placeholder(dtype, sizes) @ weight for _ in range(reads)]
        for task in range(TASKS):
            losses.append(tf.add_n([tf.reduce_sum(tf.sin(task * own)) for own in outputs]))
        gradients = [tf.gradients(loss, weight)[0] for loss in losses]
        return short_gradients.shorten_gradients(gradients)


def test_only_of_products_with_the_same_inputs_and_only_where_it_is_cheaper():
    assert _shortened() is not None
    assert _shortened(reads=2) is None
    assert _shortened(batch=2 * INPUTS) is None
    assert _shortened(static=False) is None
    assert _shortened(dtype=tf.bfloat16) is None
    with tf.Graph().as_default():
        unlike = [tf.zeros([BATCH, INPUTS]) for _ in range(2)]
        apart = [tf.linalg.matmul(own, tf.ones([BATCH, 4]), transpose_a=True) for own in unlike]
        assert short_gradients.shorten_gradients(apart) is None


def _losses(rows, present, is_stacked):
    """Return the losses of a model with all kinds of layers, and a function for samples of rows.

    `is_stacked` leaves out the layers that stacked passes do not support.
    """
    with tf1.variable_scope("features"):
        given = layers.embedding(rows, 20, 40, "table")
    with tf1.variable_scope("network"):
        hidden = layers.dense(given, 40, "frozen", tf.tanh)
        hidden = layers.dense(hidden, 40, "hidden", tf.tanh)
        for _ in range(0 if is_stacked else 2):
            with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
                hidden = layers.dense(hidden, 40, "twice", tf.tanh)
        turned = tf1.get_variable("turned/kernel", [30, 40])
        sums = tf.linalg.matmul(hidden, turned, transpose_b=True)
        if not is_stacked:
            # Nothing else lies below it: a pass of a sum rounds otherwise than the sum of passes.
            pair = [tf.stop_gradient(given), tf1.get_variable("half/kernel", [40, 30])]
            half = tf.linalg.matmul(*[tf.cast(own, tf.bfloat16) for own in pair])
            sums += tf.cast(half, tf.float32)
        tower = tf.tanh(sums)
    squares = {}
    for index, task in enumerate(balancers.TASKS):
        with tf1.variable_scope(f"head/{task}"):
            targets = tf.sin(tf.cast(rows + index, tf.float32))
            error = layers.dense(tower, 1, "output") - targets[:, tf.newaxis]
        squares[task] = present[index] * error**2

    def samples(count):
        cuts = [slice(first, None, count) for first in range(count)]
        return [{name: tf.reduce_mean(own[cut]) for name, own in squares.items()} for cut in cuts]

    return samples(1)[0], samples


def _batches(graph_of, is_stacked):
    """Yield what `graph_of(losses, samples, variables)` gives for some batches, training on."""
    random = np.random.default_rng(0)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        step = tf1.train.get_or_create_global_step()
        rows = tf1.placeholder(tf.int32, [6])
        present = tf1.placeholder(tf.float32, [3])
        losses, samples = _losses(rows, present, is_stacked)
        variables = [own for own in tf1.trainable_variables() if "frozen" not in own.name]
        found = graph_of(losses, samples, variables)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies([*tf.nest.flatten(found), *updates]):
            descent = tf1.train.GradientDescentOptimizer(0.1)
            train = descent.minimize(tf.add_n(list(losses.values())), step)
        session.run(tf1.global_variables_initializer())
        for absent in (None, 1, None):
            feed = {rows: random.integers(0, 20, 6), present: np.arange(3) != absent}
            yield session.run([found, train], feed)[0]


WEIGHING = {
    type(row.surgery.method).__name__: row.surgery.method
    for row in balancers.SURGERIES
    if isinstance(row.surgery.method, method_lib.Method)
}
WEIGHING["PCD"] = methods.PCD()  # Tasks have no names here.


@pytest.mark.medium
@pytest.mark.parametrize("is_stacked", [False, True])
def test_every_method_decides_as_by_gradients_that_are_built(is_stacked):
    """The model has a table, a weight that is read twice, a 16-bit weight, and a frozen layer."""

    def rows(losses, samples, variables):
        one, other = samples(2)
        columns = task_gradients.differentiate_tasks([*one.values(), *other.values()], variables)
        shared = [column for column in columns if sum(own is not None for own in column) > 2]
        passes = stacked_passes.StackedPasses(shared)
        stacked = [passes.build(place) for place in range(len(shared))]
        pairs = zip(stacked, shared, strict=True)
        assert all((one is not other) == is_stacked for one, other in pairs)
        short = [task_gradients.shorten_gradients(column) for column in stacked]
        assert sum(leaves is not None for leaves in short) == 2
        others = zip(task_gradients.build_leaves(stacked), short, strict=True)
        short = [leaf for own, leaves in others for leaf in leaves or [own]]
        built = task_gradients.build_leaves(shared)
        flat = [
            tf.concat([tf.reshape(leaf.rows, [6, -1]) for leaf in leaves], 1)
            for leaves in (short, built)
        ]
        return [*flat, tf.stack([*one.values()])]

    states = {}
    for *sides, losses in _batches(rows, is_stacked):
        there = losses != 0
        for name, method in WEIGHING.items():
            weights = []
            for side, own in enumerate(sides):
                one, other = own[:3][there], own[3:][there]
                key = name, side, len(one)  # A batch without a task starts anew.
                found, states[key] = surgery_methods.decide(
                    method,
                    one,
                    losses[there],
                    state=states.get(key),
                    second=other if method.samples > 1 else None,
                )
                weights.append(found)
            # A weight that a projection makes small is only as precise as the largest weight.
            atol = 1e-7 * np.max(np.abs(weights))
            np.testing.assert_allclose(*weights, rtol=1e-6, atol=atol, err_msg=name)


PARTS = [
    surgery.Combine(method=methods.NashMTL()),
    surgery.Combine(method=methods.UPGrad(), every_steps=2),
    surgery.Combine(method=methods.MoDo()),
]


@pytest.mark.medium
@pytest.mark.parametrize("is_stacked", [False, True])
@pytest.mark.parametrize("part", PARTS, ids=["every step", "every 2 steps", "samples"])
def test_updates_are_those_of_gradients_that_are_built(part, is_stacked):
    def balance(losses, samples, variables):
        batch = whole_batch.WholeBatch(whole_batch.ForwardPass(losses, samples=samples))
        with tf1.variable_scope("short"):
            short = part(losses, variables, batch)
        with (
            tf1.variable_scope("built"),
            mock.patch.object(short_gradients, "shorten_gradients", return_value=None),
            mock.patch.dict(stacked_passes._RULES, clear=True),
        ):
            built = part(losses, variables, batch)
        assert [type(own) for own in short[0]] == [type(own) for own in built[0]]
        return [
            [[tf.convert_to_tensor(g) for g in side[0] if g is not None], side[1]]
            for side in (short, built)
        ]

    for (gradients, monitors), (expected, others) in _batches(balance, is_stacked):
        assert set(monitors) == set(others)
        for name, value in others.items():
            np.testing.assert_allclose(monitors[name], value, rtol=1e-6, err_msg=name)
        for one, other in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6 * np.max(np.abs(other)))
