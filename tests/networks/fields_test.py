"""Columns as fields, and trunks made of trunks."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks
from mtl.networks import fields

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(0)
INPUTS = {
    "age": RANDOM.normal(size=[5, 1]).astype(np.float32),
    "job": RANDOM.normal(size=[5, 4]).astype(np.float32),
    "pay": RANDOM.normal(size=[5, 1]).astype(np.float32),
    "day": RANDOM.normal(size=[5, 7]).astype(np.float32),
}


def _run(build, inputs=INPUTS):
    with tf.Graph().as_default(), tf1.Session() as session:
        output = build({column: tf.constant(value) for column, value in inputs.items()})
        session.run(tf1.global_variables_initializer())
        variables = {v.op.name: v for v in tf1.trainable_variables()}
        return session.run([output, variables])


def test_columns_of_another_width_are_projected():
    stacked, kernels = _run(lambda inputs: fields.stack_fields("FM", inputs, 4, True))
    assert stacked.shape == (5, 4, 4)
    assert set(kernels) == {f"field_{c}/projection/kernel" for c in ("age", "pay", "day")}
    for index, (column, value) in enumerate(INPUTS.items()):
        kernel = kernels.get(f"field_{column}/projection/kernel", np.eye(4))
        np.testing.assert_allclose(stacked[:, index], value @ kernel, rtol=1e-5, atol=1e-6)


def test_columns_of_one_width_are_taken_as_they_are():
    inputs = {"a": INPUTS["age"], "b": INPUTS["pay"]}
    stacked, kernels = _run(lambda inputs: fields.stack_fields("FM", inputs, None, True), inputs)
    assert kernels == {}
    np.testing.assert_array_equal(stacked, np.stack(list(inputs.values()), axis=1))


@pytest.mark.parametrize(
    ("inputs", "dimension", "says"),
    [
        (INPUTS, None, "FM inputs must have equal widths, got {'age': 1, 'job': 4"),
        ({"age": INPUTS["age"]}, 4, "FM inputs must hold at least two columns, got ['age']"),
        ({**INPUTS, "photo": np.zeros([5, 2, 2, 1], np.float32)}, 4, "Column 'photo' has that"),
    ],
)
def test_columns_that_cannot_be_compared_are_one_line(inputs, dimension, says):
    with pytest.raises(checks.UserError) as error:
        _run(lambda inputs: fields.stack_fields("FM", inputs, dimension, True), inputs)
    assert says in str(error.value) and "\n" not in str(error.value)


def _mlp(variables, scope, values):
    kernel, bias = (variables[f"{scope}/hidden_0/{name}"] for name in ("kernel", "bias"))
    return np.maximum(values @ kernel + bias, 0)


def test_parallel_trunks_are_joined():
    trunk = networks.Parallel(trunks=[networks.MLP(layers=[3]), networks.MLP(layers=[2])])
    output, variables = _run(lambda inputs: trunk(inputs, True))
    joined = np.concatenate(list(INPUTS.values()), axis=1)
    expected = [_mlp(variables, f"parallel_{i}", joined) for i in range(2)]
    np.testing.assert_allclose(output, np.concatenate(expected, axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("trunk", "says"),
    [
        (networks.MLP(layers=[3]), "same height and width, got [(4, 4, 2), (3,)]"),
        (lambda inputs, training: inputs["photo"][:, ::2, ::2], "got [(4, 4, 2), (2, 2, 1)]"),
    ],
)
def test_a_map_and_a_vector_are_not_joined(trunk, says):
    parallel = networks.Parallel(trunks=[networks.UNet(filters=[2]), trunk])
    with pytest.raises(checks.UserError) as error:
        _run(lambda inputs: parallel(inputs, True), {"photo": np.zeros([5, 4, 4, 1], np.float32)})
    assert "Parallel.trunks must return only vectors" in str(error.value)
    assert says in str(error.value)


def test_stacked_trunks_read_from_each_other():
    trunk = networks.Stacked(trunks=[networks.MLP(layers=[3]), networks.MLP(layers=[2])])
    output, variables = _run(lambda inputs: trunk(inputs, True))
    hidden = _mlp(variables, "stacked_0", np.concatenate(list(INPUTS.values()), axis=1))
    np.testing.assert_allclose(output, _mlp(variables, "stacked_1", hidden), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [networks.Parallel, networks.Stacked])
@pytest.mark.parametrize(
    ("trunks", "says"),
    [([], "must hold a trunk"), (networks.MLP(), "be a list"), ([networks.MLP], "must be a part")],
)
def test_what_is_no_list_of_trunks_is_one_line(kind, trunks, says):
    with pytest.raises(checks.UserError) as error:
        kind(trunks=trunks)
    assert says in str(error.value) and f"{kind.__name__}.trunks" in str(error.value)
