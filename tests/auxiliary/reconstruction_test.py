import numpy as np
import pytest
import tensorflow as tf

from mtl import auxiliary, checks
from tests import images
from tests.auxiliary import given

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(6)
ROWS = 400
COLUMNS = {
    # The value tells the row and the column.
    "a": np.stack([np.arange(ROWS), np.arange(ROWS) + 0.5], 1).astype(np.float32) + 1,
    "b": np.arange(ROWS, dtype=np.float32)[:, np.newaxis] + 1001,
    "id": np.arange(ROWS)[:, np.newaxis],
}


def _corrupt(share, replacement="row", columns=None):
    part = auxiliary.Reconstruction(share=0.5, replacement=replacement, columns=columns)

    def build():
        inputs = {name: tf.constant(values) for name, values in COLUMNS.items()}
        at = given.activations(inputs["a"], inputs=inputs)
        return dict(part._corrupt("x", at, share, replacement))

    return given.evaluate(build)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_replaces_whole_columns_of_a_share_of_the_rows_by_those_of_other_rows(share):
    found = _corrupt(share)
    moved = {name: (found[name] != COLUMNS[name]) for name in ("a", "b")}
    for name, changed in moved.items():
        assert changed.any(1).mean() == pytest.approx(share, abs=0.08)
        assert (changed.all(1) == changed.any(1)).all()
        # Every value comes from the same column of some row.
        sources = found[name][:, 0] - COLUMNS[name][0, 0]
        np.testing.assert_array_equal(found[name], COLUMNS[name][sources.astype(int)])
        assert len(set(sources)) > ROWS / 3
        # Each other row is as likely to be the source.
        distances = (sources - np.arange(ROWS))[changed.any(1)] % ROWS
        quartiles = np.quantile(distances, [0.25, 0.5, 0.75]) / ROWS
        np.testing.assert_allclose(quartiles, [0.25, 0.5, 0.75], atol=0.1)
        assert distances.min() > 0
    np.testing.assert_array_equal(found["id"], COLUMNS["id"])
    if share < 1:  # Columns are chosen each on their own.
        assert (moved["a"].any(1) != moved["b"].any(1)).any()


def test_puts_zeros_where_it_is_told_to_and_leaves_other_columns():
    found = _corrupt(0.5, "zero", ["b"])
    np.testing.assert_array_equal(found["a"], COLUMNS["a"])
    is_zero = found["b"] == 0
    assert is_zero.mean() == pytest.approx(0.5, abs=0.08)
    np.testing.assert_array_equal(found["b"][~is_zero], COLUMNS["b"][~is_zero])


@pytest.mark.medium
def test_equals_numpy_and_stops_the_target():
    x = RANDOM.normal(size=[5, 3]).astype(np.float32)
    part = auxiliary.Reconstruction(share=1.0, replacement="zero", layers=[2])

    def build():
        vectors = tf.constant(x)
        losses = part(given.activations(vectors))
        variables = {v.op.name: v for v in tf1.trainable_variables()}
        gradients = tf.gradients(losses, [vectors, *variables.values()])
        return losses, variables, gradients[0], dict(zip(variables, gradients[1:], strict=True))

    # All of the row is zeros, and no gradient goes through the target: so none goes to it.
    losses, variables, at_vectors, own = given.evaluate(build)
    decoded = (
        variables["decoded/bias"] + np.zeros(2) @ variables["decoded/kernel"] + np.zeros_like(x)
    )
    np.testing.assert_allclose(losses, ((decoded - x) ** 2).mean(1), rtol=1e-6)
    np.testing.assert_allclose(own["decoded/bias"], (2 * (decoded - x) / 3).sum(0), rtol=1e-5)
    np.testing.assert_array_equal(at_vectors, np.zeros_like(x))


@pytest.mark.medium
@pytest.mark.parametrize("replacement", ["row", "zero"])
def test_it_trains_and_learns_to_decode(replacement):
    part = auxiliary.Reconstruction(replacement=replacement, layers=[8], columns=["numeric_x"])
    made = images.make_model(auxiliary_losses=[part])
    _, first = images.take_steps(made, steps=1)
    _, last = images.take_steps(made, steps=100)
    assert last["reconstruction/loss"] < 0.9 * first["reconstruction/loss"]


def test_zeros_leave_rows_apart():
    assert auxiliary.Reconstruction(replacement="zero").are_rows_apart
    assert not auxiliary.Reconstruction().are_rows_apart


def test_columns_that_are_not_there_are_refused():
    part = auxiliary.Reconstruction(columns=["numeric_y"])
    with pytest.raises(checks.UserError, match=r"columns must be one of .*Did you mean 'numeric_x"):
        images.take_steps(images.make_model(auxiliary_losses=[part]), steps=0)
