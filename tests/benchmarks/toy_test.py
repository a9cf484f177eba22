import numpy as np
import pytest
import tensorflow as tf

from benchmarks import rows, toy
from mtl.configs import config

HOST = "gin_configs/experiments/digits_shared_bottom.gin"


def losses(x, y, scale=1.0):
    """The paper's formulas, and 21."""
    first, second = (
        np.log(np.maximum(np.abs(distance), 0.000005)) + 6
        for distance in (0.5 * (-x - 7) - np.tanh(-y), 0.5 * (-x + 3) + np.tanh(-y) + 2)
    )
    bowls = [((-x + best) ** 2 + 0.1 * (-y - 8) ** 2) / 10 - 20 for best in (7, -7)]
    above, below = np.maximum(np.tanh(0.5 * y), 0), np.maximum(np.tanh(-0.5 * y), 0)
    return [
        scale * (first * above + bowls[0] * below + 21),
        second * above + bowls[1] * below + 21,
    ]


def points(num=200):
    return np.random.default_rng(0).uniform(-11, 11, [2, num])


def test_losses_are_the_papers_and_above_zero():
    for scale in (1.0, 0.1):
        found = [value.numpy() for value in toy.losses(tf.constant(points()), scale).values()]
        np.testing.assert_allclose(found, losses(*points(), scale), rtol=1e-12)
        assert np.min(found) > 0


def test_gradients_are_those_of_finite_differences():
    where = tf.constant(points())
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(where)
        found = toy.losses(where)
    for index, value in enumerate(found.values()):
        gradient = tape.gradient(value, where).numpy()
        for axis, step in enumerate(1e-6 * np.eye(2)[..., np.newaxis]):
            ahead, behind = (losses(*(points() + sign * step))[index] for sign in (1, -1))
            np.testing.assert_allclose(gradient[axis], (ahead - behind) / 2e-6, atol=1e-5)


def test_the_front_ends_where_each_task_is_best_and_is_stationary_between():
    places, front = toy.front(15)
    # The line of the authors' plot is y = -8.3552, its middle.
    np.testing.assert_allclose(front[7], [0, -8.3552], atol=2e-4)
    grid = np.meshgrid(np.linspace(-11, 11, 441), np.linspace(-11, 11, 441))
    for value, end in zip(losses(*grid), (front[-1], front[0]), strict=True):
        least = np.unravel_index(value.argmin(), value.shape)
        np.testing.assert_allclose([axis[least] for axis in grid], end, atol=0.05)
    where = tf.constant(front.T)
    with tf.GradientTape() as tape:
        tape.watch(where)
        first, second = toy.losses(where).values()
        total = places * first + (1 - places) * second
    np.testing.assert_allclose(tape.gradient(total, where), 0 * front.T, atol=1e-9)


def test_nearest_is_measured_in_the_plane():
    np.testing.assert_allclose(toy.nearest([0, -7.3552]), [1, 0.5], atol=1e-3)
    np.testing.assert_allclose(toy.nearest([9, -8.434]), [2, 1], atol=1e-3)


@pytest.mark.medium
def test_descent_under_scaled_losses_ends_where_their_sum_is_least():
    model = config.load([HOST, rows.methods(["equal"])["equal"]]).model
    path = toy.descend(model, (-5.5, -8.0), 0.1, 20_000)
    distance, place = toy.nearest(path[-1])
    assert distance < 0.05
    assert place == pytest.approx(1 / 11, abs=0.01)
    assert len(path) < 180  # At rest before all steps are done.
