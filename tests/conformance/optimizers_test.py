"""Every optimizer against NumPy, on dense gradients and on rows, step by step and in the loop."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from mtl.optimization import optimizers, schedules, update
from tests.conformance import optimizers as rows
from tests.optimization import references, training

tf1 = tf.compat.v1

STEPS = 12
RANDOM = np.random.default_rng(0)
KERNEL = RANDOM.normal(size=[3, 2])
TABLE = RANDOM.normal(size=[7, 2])
KERNEL_GRADIENTS = RANDOM.normal(size=[STEPS, 3, 2])
# Row 0 is never looked up, row 1 only at the first step, and every step has duplicates.
IDS = np.concatenate([RANDOM.integers(2, 7, size=[STEPS, 9]), np.full([STEPS, 2], 3)], 1)
IDS[0, 0] = 1
ROW_GRADIENTS = RANDOM.normal(size=[STEPS, 11, 2])


def _step_fn(optimizer):
    def step_fn(batch):
        del batch
        step = tf1.train.get_global_step().read_value()
        with tf1.variable_scope("network"):
            kernel = training.variable("kernel", KERNEL)
            table = training.variable("table", TABLE)
        rows = tf.gather(table, tf.gather(tf.constant(IDS), step))
        loss = tf.reduce_sum(kernel * tf.gather(KERNEL_GRADIENTS.astype(np.float32), step))
        loss += tf.reduce_sum(rows * tf.gather(ROW_GRADIENTS.astype(np.float32), step))
        variables = [kernel, table]
        gradients = tf.gradients(loss, variables)
        assert isinstance(gradients[1], tf.IndexedSlices)
        return update.Update(optimizer=optimizer)(gradients, variables)

    return step_fn


def _rates():
    steps = np.arange(STEPS)
    return 0.05 * 0.5 ** (steps / 4) * np.minimum(1, (steps + 1) / 3)


# With the scope of a module the tests of a row run in sequence, and share its runs.
@pytest.fixture(scope="module", params=rows.ROWS, ids=lambda row: row.name)
def row(request):
    return request.param


@pytest.fixture(scope="module")
def whole(row):
    """Its variables after all steps, in the loop."""
    return training.train(_step_fn(row.optimizer), STEPS, looped=True).variables


@pytest.fixture(scope="module")
def first(row, tmp_path_factory):
    """Its variables after the first step, and the checkpoint of them."""
    path = str(tmp_path_factory.mktemp("first") / "model.ckpt")
    return training.train(_step_fn(row.optimizer), 1, looped=True, save=path).variables, path


@pytest.fixture(scope="module")
def resumed(row, first):
    """Its variables after all steps, of which those after the first are taken one by one."""
    step_fn = _step_fn(row.optimizer)
    return training.train(step_fn, STEPS - 1, looped=False, restore=first[1]).variables


def test_every_optimizer_has_a_row():
    shipped = {
        name
        for name, value in inspect.getmembers(optimizers, inspect.isclass)
        if value.__module__ == optimizers.__name__ and not name.startswith("_")
    }
    assert shipped == {type(row.optimizer).__name__ for row in rows.ROWS}


@pytest.mark.medium
@pytest.mark.always
@pytest.mark.parametrize("run", ["whole", "resumed"])
def test_equals_numpy(row, run, request):
    result = request.getfixturevalue(run)
    kernel_steps = [(np.arange(3), gradient) for gradient in KERNEL_GRADIENTS]
    kernel = references.train(row.of_dense, KERNEL, kernel_steps, _rates(), True)
    table_steps = list(zip(IDS, ROW_GRADIENTS, strict=True))
    table = references.train(row.reference, TABLE, table_steps, _rates(), row.sparse_rows)
    np.testing.assert_allclose(result["network/kernel"], kernel, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(result["network/table"], table, rtol=1e-6, atol=1e-6)
    assert result["global_step"] == STEPS


@pytest.mark.medium
def test_rows_that_are_not_looked_up_stay(row, whole, first):
    np.testing.assert_array_equal(whole["network/table"][0], TABLE[0].astype(np.float32))
    stayed = whole["network/table"][1] == first[0]["network/table"][1]
    assert stayed.all() if row.sparse_rows else not stayed.any()


@pytest.mark.medium
def test_state_names(row, whole):
    state = {f"network/{name}/{slot}" for name in ("kernel", "table") for slot in row.slots}
    state |= {"beta1_power", "beta2_power"} if "Adam" in row.slots else set()
    assert set(whole) == {"network/kernel", "network/table", "global_step"} | state


@pytest.mark.medium
def test_a_restored_run_goes_on_as_if_it_had_not_stopped(whole, resumed):
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


@pytest.mark.medium
def test_adam_and_lazy_adam_read_each_others_checkpoints(tmp_path):
    path = str(tmp_path / "model.ckpt")
    training.train(_step_fn(optimizers.Adam()), 3, looped=False, save=path)
    lazy = training.train(_step_fn(optimizers.LazyAdam()), 1, looped=False, restore=path)
    same = training.train(_step_fn(optimizers.Adam()), 4, looped=False)
    for name in ("network/kernel", "network/kernel/Adam", "network/kernel/Adam_1", "beta1_power"):
        np.testing.assert_array_equal(lazy.variables[name], same.variables[name])


def test_adam_w_decays_neither_biases_nor_norms():
    names = ("kernel", "bias", "norm/gamma", "norm/beta")

    def step_fn(step):
        del step
        with tf1.variable_scope("network"):
            variables = [training.variable(name, [2.0]) for name in names]
        zeros = [tf.zeros([1]) for _ in variables]
        optimizer = optimizers.AdamW(learning_rate=0.1, weight_decay=0.5)
        return update.Update(optimizer=optimizer)(zeros, variables)

    result = training.train(step_fn, 2, looped=False).variables
    np.testing.assert_allclose(result["network/kernel"], 2 * 0.95**2, rtol=1e-6)
    for name in names[1:]:
        assert result[f"network/{name}"] == 2.0


def test_adam_w_pattern_without_a_match():
    optimizer = optimizers.AdamW(not_decayed=["/bias$", "tabel"])
    with pytest.raises(ValueError, match=r"AdamW.not_decayed must match a variable, got 'tabel'"):
        training.train(_step_fn(optimizer), 1, looped=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optimizers.SGD(learning_rate=0), "SGD.learning_rate must be above 0, got 0"),
        (lambda: optimizers.Adam(learning_rate="x"), "Adam.learning_rate must be a number"),
        (
            lambda: optimizers.SGD(learning_rate=schedules.Cosine),
            r"SGD.learning_rate must be .* such as @schedules.Cosine\(\), got .*parentheses",
        ),
        (lambda: optimizers.AdamW(beta1=1), r"AdamW.beta1 must be in \[0, 1\), got 1"),
        (lambda: optimizers.LazyAdam(epsilon=-1), "LazyAdam.epsilon must be above 0, got -1"),
        (lambda: optimizers.AdamW(not_decayed=["("]), r"AdamW.not_decayed must hold regular"),
        (lambda: optimizers.AdamW(not_decayed="bias"), "AdamW.not_decayed must be a list"),
        (lambda: optimizers.FTRL(l1=-1), "FTRL.l1 must be at least 0, got -1"),
        (lambda: optimizers.Momentum(momentum=2), r"Momentum.momentum must be in \[0, 1\)"),
        (lambda: optimizers.RMSProp(decay=1.5), r"RMSProp.decay must be in \[0, 1\), got 1.5"),
        (
            lambda: optimizers.Adagrad(initial_accumulator=0),
            "Adagrad.initial_accumulator must be above 0",
        ),
    ],
)
def test_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
