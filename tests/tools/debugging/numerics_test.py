"""Checks of every op in every step; all faults are in benchmarks/debugger.py."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import debugger
from mtl import checks
from mtl.tools.debugging import numerics
from tests import tiny

pytestmark = [pytest.mark.medium, pytest.mark.keeps_op_stacks]

tf1 = tf.compat.v1


def fail(made, model_dir):
    with pytest.raises(checks.UserError) as error:
        tiny.train(made, model_dir)
    return str(error.value)


@pytest.mark.parametrize(
    "fault, place, steps_per_call, named",
    [
        ("log_of_zero", "head", 100, "Log (Log, "),
        ("sqrt_gradient", "column", 1, "features/own/Sqrt_grad/SqrtGrad (SqrtGrad, "),
        ("float16", "network", 100, "network/Cast (Cast, "),
    ],
)
def test_the_op_and_its_line_are_named_in_the_step(fault, place, steps_per_call, named, tmp_path):
    made = debugger.make(fault, place, check_numerics=True, steps_per_call=steps_per_call)
    said = fail(made, tmp_path / "run")
    assert f"at step {debugger.STEP} in " in said and "of its ops: " in said
    assert named in said and "benchmarks/debugger.py:" in said and f" in _{fault})" in said
    assert said.endswith(f"launch.debug --model_dir {tmp_path / 'run'} --step {debugger.STEP}")


def test_it_ends_a_run_that_would_skip_the_step(tmp_path):
    made = debugger.make("log_of_zero", "head", check_numerics=True)
    update = dataclasses.replace(made.model.update, if_not_finite="skip")
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, update=update))
    assert "1 of its ops: Log (Log, " in fail(made, tmp_path / "run")


def test_weights_are_those_without_checks_to_the_bit(tmp_path):
    for name, checked in (("plain", False), ("checked", True)):
        made = tiny.make(train_steps=6, micro_batches=2, check_numerics=checked)
        tiny.train(made, tmp_path / name)
    plain, checked = (tiny.variables(tmp_path / name) for name in ("plain", "checked"))
    assert plain.keys() == checked.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(value, checked[name], err_msg=name)


def test_only_the_op_that_makes_it_of_finite_inputs_is_named():
    with tf.Graph().as_default(), tf1.Session() as session:
        given = tf1.placeholder(tf.float32, [3])
        variable = tf1.get_variable("weight", initializer=[1.0, 1.0, 1.0])
        logarithm = tf.math.log(given, name="logarithm")
        masked = tf.where(given > 0, logarithm, 0.0) + variable
        after = tf.exp(logarithm, name="after") * masked
        check = numerics.assert_finite([after], tf.constant(7), unless=False)
        session.run(variable.initializer)
        session.run(check, {given: [1, 2, 3]})
        session.run(check, {given: [1, np.nan, 3]})  # It came with the data.
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            session.run(check, {given: [1, 0, 3]})
        assert "at step 7 in 1 of its ops: logarithm (Log, " in error.value.message
        session.run(variable.assign([1, np.inf, 1]))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"ops: .*\(ReadVariableOp"):
            session.run(check, {given: [1, 2, 3]})
