"""Tables of 16 bits: what they hold, how they round, and that they learn what 32 bits learn."""

import functools
import types

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features
from mtl.layers import functions, half_tables
from mtl.optimization import clipping, lookahead, optimizers, regularization, update
from mtl.variables import averaging, freezing, masks, sharding
from tests.optimization import references, training

tf1 = tf.compat.v1

OPTIMIZERS = {
    "LazyAdam": (optimizers.LazyAdam, references.adam()),
    "RowWiseAdagrad": (optimizers.RowWiseAdagrad, references.row_wise_adagrad),
}


def _round(values, seed):
    with tf.Graph().as_default(), tf1.Session() as session:
        rounded = half_tables.round_at_random(tf.constant(values, tf.float32), tf.constant(seed))
        return session.run(tf.cast(rounded, tf.float32))


def test_a_number_is_rounded_to_one_of_two_beside_it_and_in_the_mean_to_itself():
    values = np.random.default_rng(0).normal(size=50).astype(np.float32)
    many = np.repeat(values, 4000).reshape(50, 4000)
    rounded = _round(many, [1, 2])
    low = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    high = ((values.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32)
    assert np.isin(rounded, np.stack([low, high])).all()
    assert ((rounded == low[:, np.newaxis]) | (rounded == high[:, np.newaxis])).all()
    error = (rounded.mean(1) - values) / np.abs(high - low)
    assert np.abs(error).max() < 5 * 0.5 / 4000**0.5


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, 0.15625])
def test_what_a_bfloat16_holds_stays(value):
    assert (_round([value] * 1000, [3, 4]) == np.float32(value)).all()


def test_nan_stays_nan_and_another_step_rounds_otherwise():
    assert np.isnan(_round([np.nan] * 1000, [1, 1])).all()
    values = [0.1] * 1000
    np.testing.assert_array_equal(_round(values, [1, 1]), _round(values, [1, 1]))
    assert (_round(values, [1, 1]) != _round(values, [1, 2])).any()


def test_replicas_and_their_copies_round_alike():
    names = ("features/x/embedding:0", "features/x/embedding/replica_1:0", "features/y/embedding:0")
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        seeds = [half_tables._make_seed(types.SimpleNamespace(name=name)) for name in names]
        session.run(tf1.global_variables_initializer())
        first, copy, other = session.run(seeds)
    np.testing.assert_array_equal(first, copy)
    assert (first != other).any()


def _look_up(ids, storage="bfloat16", name="embedding"):
    with sharding.store_tables(tf.as_dtype(storage)):
        return functions.embedding(ids, 5, 3, name)


@pytest.mark.parametrize("cut", [None, sharding.Sharding(servers=2, min_bytes=6)])
def test_the_gradient_of_a_table_has_32_bits_and_is_not_rounded_on_its_way(cut):
    ids = np.array([[1, 4], [1, 0]])
    weights = np.random.default_rng(1).normal(size=[2, 2, 3]).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        with cut.cut_tables() if cut else sharding.store_tables(tf.float32):
            rows = _look_up(tf.constant(ids))
        assert rows.dtype == tf.float32
        tables = tf1.trainable_variables()
        assert [table.dtype.base_dtype for table in tables] == [tf.bfloat16] * (2 if cut else 1)
        gradients = tf.gradients(tf.reduce_sum(rows * weights), tables)
        assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
        assert {gradient.values.dtype for gradient in gradients} == {tf.float32}
        session.run(tf1.global_variables_initializer())
        dense = session.run(tf.concat(list(map(tf.convert_to_tensor, gradients)), 0))
    expected = np.zeros([5, 3], np.float32)
    np.add.at(expected, ids, weights)
    np.testing.assert_allclose(dense, expected, rtol=1e-6, atol=1e-7)


STEPS = 30
IDS = np.random.default_rng(2).integers(0, 4, size=[STEPS, 6])
GRADIENTS = np.random.default_rng(3).normal(size=[STEPS, 6, 3])


def _step_fn(optimizer, storage="bfloat16", **settings):
    def step_fn(step):
        rows = _look_up(tf.gather(tf.constant(IDS), step), storage)
        loss = tf.reduce_sum(rows * tf.gather(GRADIENTS.astype(np.float32), step))
        tables = tf1.trainable_variables()
        gradients = tf.gradients(loss, tables)
        return update.Update(optimizer=optimizer, **settings)(gradients, tables)

    return step_fn


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_step_is_that_of_numpy_but_for_the_last_bit(name, looped):
    make, reference = OPTIMIZERS[name]
    rate = 0.02
    step_fn = _step_fn(make(learning_rate=rate))
    before = training.train(_step_fn(make(learning_rate=1e-30)), 1, looped).variables
    start = before["embedding"].astype(np.float64)
    found = training.train(step_fn, STEPS, looped).variables
    assert found["embedding"].dtype == tf.bfloat16.as_numpy_dtype
    steps = list(zip(IDS, GRADIENTS, strict=True))
    expected = references.train(reference, start, steps, [rate] * STEPS, True)
    table = found["embedding"].astype(np.float64)
    # Each step is off by less than a bit, and as often up as down.
    bit = 2.0 ** (np.floor(np.log2(np.abs(expected).max())) - 7)
    np.testing.assert_allclose(table, expected, atol=2 * bit * STEPS**0.5)
    np.testing.assert_array_equal(table[4], start[4])  # Nobody looked it up.
    assert {value.dtype for key, value in found.items() if "/" in key} == {np.dtype("float32")}


@pytest.mark.medium
def test_small_steps_add_up_where_rounding_to_the_nearest_would_lose_them():
    """Steps of a sixteenth of the last bit of 0.75."""
    steps, change = 1600, 2.0**-12

    def step_fn(step):
        del step
        rows = _look_up(tf.constant([0]))
        (table,) = tf1.trainable_variables()
        gradients = tf.gradients(tf.reduce_sum(rows), [table])
        # The accumulator hardly moves: each step is the rate over 1000.
        rate, first = 1000 * change, 1e6
        adagrad = optimizers.RowWiseAdagrad(learning_rate=rate, initial_accumulator=first)
        return update.Update(optimizer=adagrad)(gradients, [table])

    end, start = (
        training.train(step_fn, count, looped=True).variables["embedding"][0]
        for count in (steps, 1)
    )
    moved = end.astype(np.float64) - start.astype(np.float64)
    np.testing.assert_allclose(moved, -steps * change, atol=0.15)
    assert float(tf.cast(0.75 - change, tf.bfloat16)) == 0.75


@pytest.mark.medium
def test_a_restored_run_goes_on_to_the_bit(tmp_path):
    step_fn = _step_fn(optimizers.RowWiseAdagrad(learning_rate=0.05))

    def from_global_step(batch):
        del batch
        return step_fn(tf1.train.get_global_step().read_value())

    path = str(tmp_path / "model.ckpt")
    training.train(from_global_step, 5, looped=True, save=path)
    resumed = training.train(from_global_step, 7, looped=True, restore=path).variables
    whole = training.train(from_global_step, 12, looped=True).variables
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


@pytest.mark.medium
@pytest.mark.parametrize(
    "settings",
    [
        {"clipping": clipping.GlobalNorm(max_norm=0.1)},
        {"clipping": clipping.ByPattern(parts={"embedding": clipping.Norm(max_norm=0.1)})},
        {"regularization": regularization.Regularization(l1={"": 0.1}, l2={"": 0.1})},
        {"if_not_finite": "zero", "rates": {"embedding": 0.5}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_shapes_a_gradient_takes_it_for_one_of_32_bits(settings):
    rate = {"optimizer": optimizers.RowWiseAdagrad(learning_rate=0.05)}
    small = training.train(_step_fn(**rate, **settings), 3, looped=True)
    # The same first values: those of 32 bits are rounded to 16.
    plain = training.train(_step_fn(**rate, **settings, storage="float32"), 3, looped=True)
    norms = [result.monitors["gradient_norm"] for result in (small, plain)]
    assert norms[0] == pytest.approx(norms[1], rel=0.02)


@pytest.mark.medium
def test_rows_that_are_frozen_stay_to_the_bit():
    step_fn = _step_fn(optimizers.LazyAdam(learning_rate=0.1))

    def train(steps, **settings):
        wrapped = freezing.Freezing(**settings).wrap_step(lambda step, _: step_fn(step))
        return training.train(lambda step: wrapped(step, None), steps, looped=True).variables

    held = train(6, entries={"embedding": masks.Rows(rows=[1, 2])})["embedding"]
    start = train(1, until={"embedding": 5})["embedding"]
    assert ((held != start).any(1) == [False, True, True, False, False]).all()
    late = train(6, until={"embedding": 5})["embedding"]
    moved = np.isin(np.arange(5), IDS[5])
    np.testing.assert_array_equal((late != start).any(1), moved)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizer": optimizers.SGD()},
            "the optimizer of 'embedding', which has 16 bits, must be one of LazyAdam, RowWiseAda",
        ),
        (
            {"optimizer": optimizers.AdamW()},
            "LazyAdam, RowWiseAdagrad, got 'AdamW'. Choose one by pattern in Update.optim",
        ),
        ({"optimizer": optimizers.Adagrad()}, "must be one of LazyAdam, RowWiseAdagrad"),
        (
            {"optimizer": lookahead.Lookahead(optimizer=optimizers.Adam())},
            "must be one of LazyAdam, RowWiseAdagrad",
        ),
        (
            {
                "optimizer": optimizers.LazyAdam(),
                "average": averaging.ExponentialAverage(decay=0.9),
            },
            "Update.average must be None if tables have 16 bits, such as 'embedding', got Expon",
        ),
    ],
)
def test_what_would_lose_bits_is_refused(settings, message):
    with pytest.raises(checks.UserError, match=message):
        training.train(_step_fn(**settings), 1, looped=False)


@pytest.mark.parametrize("make", [optimizers.SGD, optimizers.Adagrad, optimizers.Momentum])
def test_variables_of_16_bits_that_a_network_creates_itself_are_left_alone(make):
    def step_fn(step):
        del step
        own = tf1.get_variable("own", [2], tf.bfloat16, tf1.ones_initializer())
        return update.Update(optimizer=make(learning_rate=0.5))([tf.ones([2], own.dtype)], [own])

    found = training.train(step_fn, 1, looped=False).variables
    assert (found["own"].astype(np.float32) < 1).all()
    assert {value.dtype for name, value in found.items() if "/" in name} <= {found["own"].dtype}


def test_a_dense_gradient_is_refused():
    def step_fn(step):
        del step
        _look_up(tf.constant([0]))
        (table,) = tf1.trainable_variables()
        return update.Update()([tf.zeros([5, 3])], [table])

    with pytest.raises(checks.UserError, match="must be sparse, got 'dense'"):
        training.train(step_fn, 1, looped=False)


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(features.Hashed, num_buckets=9),
        functools.partial(features.Identity, size=9),
        functools.partial(features.Categorical, vocabulary=["a", "b"]),
        functools.partial(features.Bucketized, boundaries=[1.0]),
    ],
)
def test_it_is_a_setting_of_columns(make):
    column = make(names=["x"], storage="bfloat16")
    with tf.Graph().as_default():
        fed = {"x": tf.constant([1, 2])}
        (output,) = features.encode_columns([column], fed, features.load_statistics("")).values()
        assert output.dtype == tf.float32
        assert tf1.trainable_variables()[0].dtype.base_dtype == tf.bfloat16
    with pytest.raises(checks.UserError, match="storage must be 'float32' if .* is None"):
        make(names=["x"], storage="bfloat16", dimension=None)
    with pytest.raises(checks.UserError, match="storage must be one of float32, bfloat16, got"):
        make(names=["x"], storage="float16")
