import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.optimization import optimizers, schedules, update
from tests.conformance import optimizers as rows
from tests.optimization import references, training

STEPS = 5
START = np.random.default_rng(0).normal(size=[3, 1])
GRADIENTS = np.random.default_rng(1).normal(size=[STEPS, 3, 1])
WARM = schedules.Constant(value=0.5, warmup_steps=4)


def _step_fn(optimizer, rates):
    def step_fn(step):
        names = ("plain", "slow/kernel", "slow/bias")
        variables = [training.variable(name, START) for name in names]
        gradients = [tf.gather(GRADIENTS.astype(np.float32), step)] * 3
        return update.Update(optimizer=optimizer, rates=rates)(gradients, variables)

    return step_fn


@pytest.mark.medium
@pytest.mark.parametrize("row", rows.ROWS, ids=lambda row: row.name)
def test_factors_multiply_the_learning_rate(row):
    step_fn = _step_fn(row.optimizer, {"^slow/": 0.25, "/bias$": WARM})
    result = training.train(step_fn, STEPS, looped=True).variables
    steps = np.arange(STEPS)
    rate = 0.05 * 0.5 ** (steps / 4) * np.minimum(1, (steps + 1) / 3)
    warm = 0.5 * np.minimum(1, (steps + 1) / 4)
    expected = {"plain": rate, "slow/kernel": 0.25 * rate, "slow/bias": 0.25 * warm * rate}
    moves = [(np.arange(3), gradient) for gradient in GRADIENTS]
    for name, rates in expected.items():
        # AdamW leaves biases undecayed.
        is_bias = name.endswith("bias") and row.name == "AdamW"
        reference = references.adam() if is_bias else row.of_dense
        value = references.train(reference, START, moves, rates, True)
        np.testing.assert_allclose(result[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
    assert result["global_step"] == STEPS


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({"slow": 0}, r"Update.rates\['slow'\] must be above 0, got 0"),
        ({"slow": "x"}, r"Update.rates\['slow'\] must be a part such as @schedules.Cosine"),
        (["slow"], "Update.rates must map patterns to factors"),
    ],
)
def test_settings(rates, message):
    with pytest.raises(checks.UserError, match=message):
        update.Update(rates=rates)


def test_a_pattern_without_a_match():
    with pytest.raises(checks.UserError, match="Update.rates must match a variable, got 'slwo'"):
        training.train(_step_fn(optimizers.SGD(), {"slwo": 2.0}), 1, looped=False)
