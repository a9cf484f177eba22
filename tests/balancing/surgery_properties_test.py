"""Methods give finite updates for any gradients; the order of tasks and the scale do not matter."""

import itertools

import numpy as np
import pytest

from mtl.balancing import methods
from tests.balancing import surgery_methods

# Every method that decides by weights and draws nothing, and the power of the gradients' scale
# with which its update grows.
METHODS = [
    (methods.MGDA(), 1),
    (methods.MGDA(normalizer="l2"), 1),
    (methods.CAGrad(), 1),
    (methods.UPGrad(), 1),
    (methods.DualProj(), 1),
    (methods.NashMTL(), 0),
    (methods.FairGrad(), -1 / 3),
    (methods.IMTLG(), 1),
    (methods.ConFIG(), 1),
    (methods.AlignedMTL(), 1),
    (methods.AlignedMTL(scale="median"), 1),
    (methods.GradNorm(), 1),
    (methods.Krum(selected=2), 1),
    (methods.DBMTL(), 1),
    (methods.ExcessMTL(), 1),
    (methods.PCD(tau=0.3), 1),
    (methods.SDMGrad(), 1),
]
# Methods that draw random numbers, or whose step size depends on the gradients' scale.
DRAWING = [methods.PCGrad(), methods.GradVac(), methods.Random(), methods.MoCo(), methods.MoDo()]
each_method = pytest.mark.parametrize(
    ("method", "degree"), METHODS, ids=[str(method) for method, _ in METHODS]
)


@pytest.mark.medium
@pytest.mark.parametrize("method", [*(method for method, _ in METHODS), *DRAWING], ids=str)
def test_finite_on_degenerate_gradients(method):
    cases = itertools.product(surgery_methods.DEGENERATE, [2, 3, 5], [1e-12, 1e-6, 1.0, 1e6])
    for kind, num_tasks, scale in cases:
        rows = scale * surgery_methods.gradients_of(kind, num_tasks, 4)
        weights, state = surgery_methods.decide(method, rows)
        assert np.isfinite(weights).all(), (kind, num_tasks, scale)
        assert all(np.isfinite(value).all() for value in state.values()), (kind, num_tasks, scale)


REPEATED = [methods.GradVac(rate=rate) for rate in (0.5, 0.1, 1)]


@pytest.mark.medium
@pytest.mark.parametrize(
    "method", [*(method for method, _ in METHODS), *DRAWING, *REPEATED], ids=str
)
def test_finite_however_often_gradients_are_the_same(method):
    """The state of methods reaches its limits over many steps: cosines of -1 and 1."""
    one = np.array([0.3, -4.0])
    for factors in [(1, -1), (1, 1), (1,), (1, -1, 1), (1, -1e-8), (1e19, -1e19), (1, 1e-30)]:
        rows, state = np.outer(factors, one), None
        for _ in range(70 if method.initial_state(len(rows)) else 1):
            weights, state = surgery_methods.decide(method, rows, state=state)
            assert np.isfinite(weights).all(), factors
            assert all(np.isfinite(value).all() for value in state.values()), factors


def test_gradvac_where_gradients_are_exactly_opposite():
    """The first step cancels them; at rate 1 the next one expects a cosine of -1 and keeps them."""
    rows = np.array([[3.0, 4.0], [-3.0, -4.0]])
    method = methods.GradVac(rate=1)
    first, state = surgery_methods.decide(method, rows)
    np.testing.assert_allclose(first, [2, 2], rtol=1e-6)
    np.testing.assert_allclose(state["average_cosines"], [[0, -1], [-1, 0]], atol=1e-12)
    second, state = surgery_methods.decide(method, rows, state=state)
    np.testing.assert_allclose(second, [1, 1], rtol=1e-12)
    np.testing.assert_allclose(state["average_cosines"], [[0, -1], [-1, 0]], atol=1e-12)


@pytest.mark.medium
@each_method
def test_no_position_of_the_gradients_breaks_a_method(method, degree):
    """Order and scale do not matter, within a tolerance for nearly dependent gradients."""
    for seed in range(40):
        rows = surgery_methods.adversarial(seed)
        order = np.random.default_rng(seed).permutation(len(rows))
        if isinstance(method, methods.PCD):  # Its first task is the primary task.
            order = np.append(0, order[order > 0])
        weights = surgery_methods.weights(method, rows)
        size = np.abs(weights[:, np.newaxis] * rows).max()
        assert np.isfinite(weights).all(), seed
        others = [(rows[order], 0), (1e3 * rows, degree)]
        for other, power in others:
            update = surgery_methods.weights(method, other) @ other / 1e3**power
            np.testing.assert_allclose(update, weights @ rows, atol=1e-2 * size, err_msg=f"{seed}")


@pytest.mark.parametrize("method", [*(method for method, _ in METHODS), *DRAWING], ids=str)
def test_one_task_keeps_its_direction(method):
    weights = surgery_methods.weights(method, [[0.3, -4.0]])
    assert weights.shape == (1,)
    assert weights[0] > 0


@each_method
@pytest.mark.parametrize("kind", ["plain", "conflicting", "opposite", "uneven"])
def test_the_order_of_tasks_does_not_matter(method, degree, kind):
    del degree
    rows = surgery_methods.gradients_of(kind, 5, 8)
    order = np.random.default_rng(0).permutation(5)
    if isinstance(method, methods.PCD):  # Its first task is the primary task.
        order = np.append(0, 1 + np.random.default_rng(0).permutation(4))
    update = surgery_methods.weights(method, rows) @ rows
    permuted = surgery_methods.weights(method, rows[order]) @ rows[order]
    # If gradients cancel, the error of the update is relative to the gradients, not to the sum.
    weights = surgery_methods.weights(method, rows)
    size = np.abs(weights[:, np.newaxis] * rows).max()
    np.testing.assert_allclose(permuted, update, atol=1e-6 * size)


@each_method
@pytest.mark.parametrize("kind", ["plain", "conflicting"])
@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1e3, 1e9])
def test_the_scale_of_gradients_does_not_matter(method, degree, kind, scale):
    rows = surgery_methods.gradients_of(kind, 5, 8)
    update = surgery_methods.weights(method, rows) @ rows
    scaled = surgery_methods.weights(method, scale * rows) @ (scale * rows)
    expected = scale**degree * update
    np.testing.assert_allclose(scaled, expected, rtol=0, atol=1e-7 * np.abs(expected).max())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "method",
    [
        methods.MGDA(),
        methods.UPGrad(),
        methods.DualProj(),
        methods.NashMTL(),
        methods.FairGrad(),
        methods.PCD(tau=0.0),
    ],
    ids=str,
)
def test_no_task_gets_worse(method, seed):
    rows = surgery_methods.gradients_of("conflicting", 6, 5, seed=seed)
    update = surgery_methods.weights(method, rows) @ rows
    lengths = np.linalg.norm(rows, axis=1)
    assert (rows @ update / lengths).min() >= -1e-9 * max(lengths.max(), np.linalg.norm(update))


@pytest.mark.parametrize("seed", range(10))
def test_no_task_gets_worse_where_gradients_are_independent(seed):
    rows = surgery_methods.gradients_of("conflicting", 4, 7, seed=seed)
    update = surgery_methods.weights(methods.ConFIG(), rows) @ rows
    assert (rows @ update).min() >= -1e-9
    pair = surgery_methods.gradients_of("conflicting", 2, 7, seed=seed)
    update = surgery_methods.weights(methods.PCGrad(), pair) @ pair
    assert (pair @ update).min() >= -1e-9


VANISHING = [methods.MGDA(), methods.UPGrad(), methods.DualProj(), methods.PCD(tau=0.0)]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("method", [*VANISHING, methods.NashMTL(), methods.FairGrad()], ids=str)
def test_updates_vanish_at_stationary_points_and_nowhere_else(method, scale):
    for seed in range(5):
        rows = scale * surgery_methods.gradients_of("stationary", 4, 6, seed=seed)
        weights = surgery_methods.weights(method, rows)
        size = np.abs(weights[:, np.newaxis] * rows).max()
        np.testing.assert_allclose(weights @ rows, 0, atol=1e-6 * size + 1e-9 * scale)
        # Out of the span of the others: some direction now suits all.
        rows[-1] += 0.3 * scale * np.random.default_rng(seed).normal(size=6)
        weights = surgery_methods.weights(method, rows)
        size = np.abs(weights[:, np.newaxis] * rows).max()
        assert np.abs(weights @ rows).max() > 1e-3 * size


@pytest.mark.parametrize("method", [methods.UPGrad(), methods.ConFIG(), methods.PCGrad()], ids=str)
@pytest.mark.parametrize("kind", ["plain", "conflicting"])
def test_linear_in_the_lengths_of_the_gradients(method, kind):
    rows = surgery_methods.gradients_of(kind, 4, 7)
    first, second = np.random.default_rng(0).uniform(0.01, 100, size=[2, 4, 1])
    updates = [
        surgery_methods.weights(method, lengths * rows) @ (lengths * rows)
        for lengths in (first, second, first + second)
    ]
    size = np.abs(updates).max()
    np.testing.assert_allclose(updates[0] + updates[1], updates[2], atol=1e-9 * size)


@pytest.mark.parametrize("method", [methods.NashMTL(), methods.IMTLG(), methods.DBMTL()], ids=str)
@pytest.mark.parametrize("kind", ["plain", "conflicting"])
def test_lengths_of_gradients_do_not_matter_to_the_direction(method, kind):
    rows = surgery_methods.gradients_of(kind, 4, 7)
    scaled = 10.0 ** np.array([[-6], [0], [3], [6]]) * rows
    directions = [surgery_methods.weights(method, given) @ given for given in (rows, scaled)]
    directions = [direction / np.linalg.norm(direction) for direction in directions]
    np.testing.assert_allclose(directions[0], directions[1], atol=1e-7)


@pytest.mark.parametrize("seed", range(10))
def test_equal_gradients_are_one_gradient(seed):
    row = np.random.default_rng(seed).normal(size=6)
    rows = np.stack([row, row, row])
    for method in (methods.MGDA(), methods.UPGrad(), methods.DualProj(), methods.IMTLG()):
        update = surgery_methods.weights(method, rows) @ rows
        np.testing.assert_allclose(update, row, rtol=1e-9)
    for method in (methods.PCGrad(), methods.GradVac(), methods.ConFIG()):
        update = surgery_methods.weights(method, rows) @ rows
        np.testing.assert_allclose(update, 3 * row, rtol=1e-9)
