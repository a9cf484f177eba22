"""Perturbations of inputs against NumPy: their norms, directions and bounds."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import auxiliary, checks, compat, features, heads, model, networks
from mtl.auxiliary import perturbations
from mtl.layers import precision
from mtl.model import graph_options
from mtl.optimization import optimizers, update
from tests import images
from tests.auxiliary import probe

tf1 = tf.compat.v1

PHOTO, X = "image_photo", "numeric_x"


@pytest.fixture
def runs(monkeypatch):
    """The list of all that later runs of the network compute."""
    return probe.record_runs(monkeypatch)


def _perturb(part, runs):
    """Return the inputs before and after a perturbation, their gradients, and the losses."""
    with probe.open_step() as (activations, session):
        with tf1.variable_scope("auxiliary/it"):
            losses = part(activations)
        columns = part.columns or [PHOTO, X]
        before = runs[-2] if len(runs) > 1 else activations
        gradients = tf.gradients(part._sum_losses(before), [before.inputs[c] for c in columns])
        return session.run(
            {
                "plain": activations.inputs,
                "moved": runs[-1].inputs,
                "before": before.inputs,
                "gradients": dict(zip(columns, gradients, strict=True)),
                "losses": losses,
                "sums": [part._sum_losses(at) for at in (activations, runs[-1])],
            }
        )


def _rows(values):
    return np.concatenate([values[c].reshape(images.ROWS, -1) for c in values], 1)


def test_fgm_moves_rows_by_one_length_along_their_gradients(runs):
    found = _perturb(auxiliary.Adversarial(epsilon=0.3), runs)
    gradient = _rows(found["gradients"])
    length = np.linalg.norm(gradient, axis=1, keepdims=True)
    assert (length > 0).all()
    expected = 0.3 * gradient / length
    moved = _rows(found["moved"]) - _rows(found["plain"])
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-6)
    assert found["sums"][1] > found["sums"][0]
    assert found["losses"].shape == (images.ROWS, 2)


def test_a_step_of_pgd_goes_along_the_sign_and_ends_in_the_cube_and_its_bounds(runs):
    part = auxiliary.Adversarial(
        epsilon=0.1,
        norm="max",
        steps=3,
        random_start=True,
        bounds=(0.0, 1.0),
        columns=[PHOTO],
    )
    found = _perturb(part, runs)
    assert len(runs) == 4
    step = 2.5 * 0.1 / 3
    # A change that a bound has cut is cut in the image alone: the perturbation itself goes on.
    inside = (found["before"][PHOTO] > 0) & (found["before"][PHOTO] < 1)
    change = found["before"][PHOTO] - found["plain"][PHOTO]
    change = np.clip(change + step * np.sign(found["gradients"][PHOTO]), -0.1, 0.1)
    expected = np.clip(found["plain"][PHOTO] + change, 0, 1)
    assert inside.mean() > 0.8
    np.testing.assert_allclose(found["moved"][PHOTO][inside], expected[inside], atol=1e-6)
    np.testing.assert_array_equal(found["moved"][X], found["plain"][X])
    assert found["moved"][PHOTO].min() >= 0
    assert found["moved"][PHOTO].max() <= 1
    assert np.abs(found["moved"][PHOTO] - found["plain"][PHOTO]).max() <= 0.1 + 1e-6
    assert found["sums"][1] > found["sums"][0]


@pytest.mark.parametrize("norm", perturbations.NORMS)
def test_a_projection_keeps_what_lies_inside_and_shortens_the_rest(norm):
    random = np.random.default_rng(1)
    given = {c: random.normal(size=(9, n)).astype(np.float32) for c, n in (("a", 3), ("b", 2))}
    given = {c: v * np.linspace(0, 2, 9, dtype=np.float32)[:, None] for c, v in given.items()}
    space = perturbations.Space(given, ["a", "b"], norm)
    with tf.Graph().as_default(), tf1.Session() as session:
        tensors = {c: tf.constant(v) for c, v in given.items()}
        found = session.run(space.project(tensors, 1.0))
    both = np.concatenate([given["a"], given["b"]], 1)
    if norm == "max":
        expected = np.clip(both, -1, 1)
    else:
        expected = both / np.maximum(np.linalg.norm(both, axis=1, keepdims=True), 1)
    np.testing.assert_allclose(np.concatenate([found["a"], found["b"]], 1), expected, rtol=1e-5)


def test_a_direction_does_not_overflow_in_float16():
    """At a loss scale of 2^15, as losses would then be NaN, and the scale would never fall."""

    def step_fn(x, _):
        def network(inputs):
            return {"a": inputs["x"] * tf.constant(4.0, tf.float16)}

        loss = 10 * tf.reduce_sum(precision.run_network(network, {"x": x}, True)["a"])
        direction = perturbations.Space({"x": x}, ["x"], "l2").differentiate(loss, {"x": x})
        return direction["x"], tf.gradients(loss, x)[0]

    with tf.Graph().as_default(), tf1.Session() as session:
        step = precision.Precision(dtype="float16").wrap_step(step_fn)
        built = step(tf.ones([2, 1]), None)
        session.run(tf1.global_variables_initializer())
        direction, gradient = session.run(built)
    np.testing.assert_array_equal(direction, [[40], [40]])
    assert not np.isfinite(gradient).any()


def test_directions_of_any_size_have_a_length_and_none_stays_none():
    given = {"a": np.array([[3e-30, 4e-30], [3e30, 4e30], [0, 0], [3, 4]], np.float32)}
    space = perturbations.Space(given, ["a"], "l2")
    with tf.Graph().as_default(), tf1.Session() as session:
        found = session.run(space.scale({"a": tf.constant(given["a"])}, 5.0))["a"]
    np.testing.assert_allclose(found, [[3, 4], [3, 4], [0, 0], [3, 4]], rtol=1e-5)


def test_draws_fill_the_ball_and_count_by_row(monkeypatch):
    part = auxiliary.Adversarial(epsilon=1.0, random_start=True, columns=[X])
    with probe.open_step() as (activations, session):
        space = part.open_space(activations.inputs)
        start = session.run([space.draw_start(f"{n}", 1.0)[X] for n in range(30)])
        normal = session.run([space.draw_normal(f"{n}", 2.0)[X] for n in range(30)])
    radii = np.linalg.norm(np.concatenate(start), axis=1)
    assert radii.max() <= 1
    # Uniform in a ball of three dimensions: an eighth lies within half of the radius.
    assert np.mean(radii < 0.5) == pytest.approx(1 / 8, abs=0.03)
    assert np.concatenate(normal).std() == pytest.approx(2.0, rel=0.05)


def test_an_input_outside_of_the_bounds_is_not_moved_further_than_asked():
    given = {"a": tf.constant([[-3.0, 0.95, 0.5]])}
    space = perturbations.Space(given, ["a"], "max", bounds=(0.0, 1.0))
    moved = space.apply({"a": tf.constant([[-0.1, 0.1, 0.1]])})["a"]
    np.testing.assert_allclose(moved, [[-3.0, 1.0, 0.6]], rtol=1e-6)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"epsilon": 0}, "Adversarial.epsilon must be above 0, got 0"),
        ({"norm": "l3"}, "Adversarial.norm must be one of l2, max, got 'l3'"),
        ({"bounds": (1, 0)}, "Adversarial.bounds must be (least, greatest)"),
        ({"weight": -1}, "Adversarial.weight must be at least 0"),
        ({"averages_steps": True}, "Adversarial.random_start must be True"),
        ({"heads": []}, "Adversarial.heads must hold a name"),
    ],
)
def test_settings_without_a_meaning_are_refused(settings, message):
    with pytest.raises(checks.UserError) as error:
        auxiliary.Adversarial(**settings)
    assert message in str(error.value)


def test_vectors_of_ids_are_moved_and_their_table_stays_sparse():
    part, seen = auxiliary.Adversarial(epsilon=0.5, columns=["identity_item"]), probe.Probe()
    made = model.MultiTaskModel(
        columns=[
            features.Identity(names=["item"], size=50, dimension=4),
            features.Numeric(names=["x"], normalization="none"),
        ],
        network=networks.SharedBottom(trunk=images.TRUNK),
        heads=[heads.Regression(name="size")],
        update=update.Update(optimizer=optimizers.SGD(learning_rate=0.1)),
        auxiliary_losses=[seen],
    )
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 1
        tf1.train.create_global_step()
        given = {"item": tf.range(8, dtype=tf.int64), "x": tf.ones([8, 2])}
        labels = {"size": tf.constant(np.arange(8, dtype=np.float32))}
        mode = compat.estimator.ModeKeys.TRAIN
        made.model_fn(
            given, labels, mode, options=graph_options.GraphOptions(statistics=images.STATISTICS)
        )
        (activations,) = seen.seen
        with tf1.variable_scope("auxiliary/it"):
            points = list(part._ascend(activations))
            losses = part._compute_losses(points[-1])
        name = "features/identity_item/embedding"
        (table,) = [v for v in tf1.global_variables() if v.op.name == name]
        (gradient,) = tf.gradients(losses, table)
        assert isinstance(gradient, tf.IndexedSlices)
        session.run(tf1.global_variables_initializer())
        moved, plain = session.run([points[-1].inputs, activations.inputs])
    change = moved["identity_item"] - plain["identity_item"]
    np.testing.assert_allclose(np.linalg.norm(change, axis=1), np.full(8, 0.5), rtol=1e-5)
    np.testing.assert_array_equal(moved["numeric_x"], plain["numeric_x"])
