"""Each method against NumPy and SciPy, which solve the same problem another way."""

import functools
import itertools

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import tensorflow as tf

from mtl.balancing import methods
from tests.balancing import surgery_methods

SIZES = [(2, 7), (3, 2), (4, 30), (8, 5), (16, 300)]
SCALES = [1e-6, 1.0, 1e6]
KINDS = ["plain", *surgery_methods.DEGENERATE]
each_scale = pytest.mark.parametrize("scale", SCALES)
each_kind = pytest.mark.parametrize("kind", KINDS)


def random_cases(count, **choices):
    """Parametrize a test by `count` random cases, with all values of a choice equally often.

    The gradients of a case are drawn by its `seed`.
    """
    random, cases = np.random.default_rng(count), []
    columns = [
        [values[i % len(values)] for i in random.permutation(count)] for values in choices.values()
    ]
    for seed, case in enumerate(zip(*columns, strict=True)):
        cases.append(pytest.param(*case, seed, id="-".join(map(str, [*case, seed]))))
    return pytest.mark.parametrize([*choices, "seed"], cases)


def _unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _min_norm_squared(rows):
    """By nonnegative least squares on the gradients themselves, not their inner products."""
    lengths = np.linalg.norm(rows, axis=1)
    share = lengths.min() / lengths
    system = np.vstack([_unit(rows).T, share])
    target = np.append(np.zeros(rows.shape[1]), 1.0)
    solution = scipy.optimize.nnls(system, target, maxiter=10_000)[0] * share
    return np.sum((solution / solution.sum() @ rows) ** 2)


@random_cases(50, size=SIZES, scale=SCALES, kind=KINDS)
def test_mgda_is_as_short_as_an_exact_solution(size, scale, kind, seed):
    rows = scale * surgery_methods.gradients_of(kind, *size, seed)
    weights = surgery_methods.weights(methods.MGDA(), rows)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    excess = np.sum((weights @ rows) ** 2) - _min_norm_squared(rows)
    assert excess <= 1e-9 * np.sum(rows**2, axis=1).min()


@each_scale
@pytest.mark.parametrize("cosine", [-0.99, -0.3, 0.2, 0.8])
def test_mgda_of_two_tasks_in_closed_form(cosine, scale):
    rows = scale * np.array([[1.0, 0.0], [2 * cosine, 2 * np.sqrt(1 - cosine**2)]])
    first, second = rows
    share = np.clip(second @ (second - first) / np.sum((second - first) ** 2), 0, 1)
    weights = surgery_methods.weights(methods.MGDA(), rows)
    np.testing.assert_allclose(weights, [share, 1 - share], atol=1e-9)


@pytest.mark.parametrize("normalize_update", [False, True])
@pytest.mark.parametrize("normalizer", ["l2", "loss", "loss+"])
def test_mgda_normalizers(normalizer, normalize_update):
    rows, losses = surgery_methods.gradients_of("conflicting", 4, 9), np.array([3.0, 0.0, 1.0, 2])
    lengths, positive = np.linalg.norm(rows, axis=1), np.array([3.0, 1.0, 1.0, 2])
    divisor = {"l2": lengths, "loss": positive, "loss+": lengths * positive}[normalizer]
    method = methods.MGDA(normalizer=normalizer, normalize_update=normalize_update)
    actual = surgery_methods.weights(method, rows, losses=losses)
    expected = surgery_methods.weights(methods.MGDA(), rows / divisor[:, np.newaxis])
    np.testing.assert_allclose(actual, expected / divisor if normalize_update else expected)


def _projected(rows, orders):
    """PCGrad as the paper writes it."""
    total = 0
    for i, order in enumerate(orders):
        changed = rows[i].copy()
        for j in order:
            if changed @ rows[j] < 0:
                changed -= changed @ rows[j] / (rows[j] @ rows[j]) * rows[j]
        total = total + changed
    return total


def _turned(rows, orders, usual):
    """GradVac as the paper writes it."""
    total = 0
    for i, order in enumerate(orders):
        changed = rows[i].copy()
        for j in order:
            length = np.linalg.norm(changed)
            cosine = changed @ rows[j] / length / np.linalg.norm(rows[j])
            if cosine < usual[i, j]:
                sine, usual_sine = np.sqrt(1 - cosine**2), np.sqrt(1 - usual[i, j] ** 2)
                factor = (usual[i, j] * sine - cosine * usual_sine) / usual_sine
                changed += factor * length / np.linalg.norm(rows[j]) * rows[j]
        total = total + changed
    return total


def _takes_every_order_and_no_other(method, rows, expected, state):
    choices = [itertools.permutations([j for j in range(3) if j != i]) for i in range(3)]
    outcomes = np.array([expected(rows, orders) for orders in itertools.product(*choices)])
    seen = set()
    for seed in range(100):
        weights, _ = surgery_methods.decide(method, rows, seed=seed, state=state)
        error = np.abs(outcomes - weights @ rows).max(axis=1)
        assert error.min() <= 1e-9 * np.abs(rows).max()
        seen.update(np.flatnonzero(error <= 1e-9 * np.abs(rows).max()))
    assert len(seen) == len(outcomes)


@pytest.mark.parametrize("kind", ["plain", "conflicting", "opposite", "stationary", "uneven"])
def test_pcgrad_takes_every_order_and_no_other(kind):
    rows = surgery_methods.gradients_of(kind, 3, 2, seed=5)
    _takes_every_order_and_no_other(methods.PCGrad(), rows, _projected, {})


def test_gradvac_takes_every_order_and_no_other():
    rows = surgery_methods.gradients_of("plain", 3, 4, seed=5)
    usual = np.array([[0, 0.3, 0.8], [0.6, 0, 0.1], [-0.2, 0.5, 0]])
    state = {"average_cosines": usual}
    expected = functools.partial(_turned, usual=usual)
    _takes_every_order_and_no_other(methods.GradVac(), rows, expected, state)


def test_gradvac_equals_the_paper_over_steps():
    method, state = methods.GradVac(rate=0.2), None
    average = np.zeros([2, 2])
    for seed in range(6):
        rows = surgery_methods.gradients_of("plain", 2, 3, seed=seed)
        total = 0
        for i, j in ((0, 1), (1, 0)):
            cosine = np.dot(*_unit(rows))
            changed, usual = rows[i].copy(), average[i, j]
            if cosine < usual:
                factor = usual * np.sqrt(1 - cosine**2) - cosine * np.sqrt(1 - usual**2)
                ratio = np.linalg.norm(rows[i]) / np.linalg.norm(rows[j])
                changed += ratio * factor / np.sqrt(1 - usual**2) * rows[j]
                reached = changed @ rows[j] / np.linalg.norm(changed) / np.linalg.norm(rows[j])
                assert reached == pytest.approx(usual, abs=1e-12)
            average[i, j] += 0.2 * (cosine - usual)
            total = total + changed
        weights, state = surgery_methods.decide(method, rows, state=state)
        np.testing.assert_allclose(weights @ rows, total, rtol=1e-9)
        np.testing.assert_allclose(state["average_cosines"], average, atol=1e-12)


def _cagrad_bound(rows, c):
    """The least value of the paper's dual problem, an upper bound of the best worst task."""
    gramian, num_tasks = rows @ rows.T, len(rows)
    products, radius = gramian.mean(1), c * np.linalg.norm(rows.mean(0))
    unit = np.abs(products).max()

    def dual(w):
        return (w @ products + radius * np.sqrt(max(w @ gramian @ w, 0))) / unit

    random = np.random.default_rng(0)
    starts = [np.full(num_tasks, 1 / num_tasks), *random.dirichlet(np.ones(num_tasks), size=4)]
    solutions = [
        scipy.optimize.minimize(
            dual,
            start,
            method="SLSQP",
            bounds=[(0, 1)] * num_tasks,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-15, "maxiter": 1000},
        )
        for start in starts
    ]
    feasible = [np.maximum(solution.x, 0) for solution in solutions]
    return unit * min(dual(x / x.sum()) for x in feasible)


@pytest.mark.medium
@random_cases(50, size=SIZES[:4], c=[0.5, 2.0], scale=SCALES, kind=KINDS)
def test_cagrad_reaches_its_dual_bound(size, c, scale, kind, seed):
    rows = scale * surgery_methods.gradients_of(kind, *size, seed)
    update = surgery_methods.weights(methods.CAGrad(c=c), rows) @ rows
    mean = rows.mean(0)
    rounding = 1e-14 * np.abs(rows).max()
    assert np.linalg.norm(update - mean) <= c * np.linalg.norm(mean) * (1 + 1e-9) + rounding
    if np.linalg.norm(mean) < 1e-9 * np.abs(rows).max():
        return
    unit = np.linalg.norm(mean) * np.linalg.norm(rows, axis=1).max()
    assert (rows @ update).min() >= _cagrad_bound(rows, c) - 1e-6 * unit


@pytest.mark.medium
@each_scale
def test_cagrad_of_two_orthogonal_tasks(scale):
    """By symmetry the update is longer than the mean by c; rescaled it is shorter again."""
    rows = scale * np.eye(2)
    for rescale in (False, True):
        weights = surgery_methods.weights(methods.CAGrad(c=0.5, rescale=rescale), rows)
        np.testing.assert_allclose(weights, 0.75 / (1.25 if rescale else 1), atol=1e-6)
    np.testing.assert_array_equal(surgery_methods.weights(methods.CAGrad(c=0), rows), [0.5, 0.5])


def _in_dual_cone(row, rows):
    """The vector nearest to `row` that conflicts with none of `rows`."""
    units, length = _unit(rows), np.linalg.norm(row)
    if length == 0:
        return row
    added = scipy.optimize.nnls(units.T, -row / length, maxiter=10_000)[0]
    return row + length * added @ units


@random_cases(50, size=SIZES, scale=SCALES, kind=KINDS)
def test_upgrad_and_dualproj_conflict_with_no_task(size, scale, kind, seed):
    rows = scale * surgery_methods.gradients_of(kind, *size, seed)
    longest = np.linalg.norm(rows, axis=1).max()
    expected = {
        methods.UPGrad(): np.mean([_in_dual_cone(row, rows) for row in rows], axis=0),
        methods.DualProj(): _in_dual_cone(rows.mean(0), rows),
    }
    for method, update in expected.items():
        actual = surgery_methods.weights(method, rows) @ rows
        assert (_unit(rows) @ actual).min() >= -1e-9 * longest
        np.testing.assert_allclose(actual, update, atol=1e-6 * longest)


@pytest.mark.parametrize("ratio", [1e-12, 1e-6, 1.0, 1e6, 1e12])
def test_upgrad_does_not_conflict_at_any_ratio_of_norms(ratio):
    rows = np.array([[1.0, 0.0, 0.0], [-0.8, 0.6, 0.0], [0.1, -0.7, 0.5]])
    rows[0] *= ratio
    for method in (methods.UPGrad(), methods.DualProj()):
        weights = surgery_methods.weights(method, rows)
        products = rows @ rows.T @ weights
        lengths = np.linalg.norm(rows, axis=1)
        assert (products / lengths).min() >= -1e-9 * np.linalg.norm(weights @ rows)


@random_cases(
    40,
    size=[(2, 7), (4, 30), (16, 300)],
    alpha=[0.5, 1.0, 2.0, 5.0],
    scale=SCALES,
    kind=["plain", "conflicting", "uneven"],
)
def test_fair_residuals(size, alpha, scale, kind, seed):
    rows = scale * surgery_methods.gradients_of(kind, *size, seed)
    weights = surgery_methods.weights(methods.FairGrad(alpha=alpha), rows)
    assert weights.min() > 0
    # Summed in the lengths of the gradients: the products of uneven ones cancel otherwise.
    lengths = np.linalg.norm(rows, axis=1)
    cosines = _unit(rows) @ _unit(rows).T
    products = lengths * (cosines @ (lengths * weights))
    # With twelve decades between tasks and alpha other than 1 the sum itself is rounded so far.
    rtol = 1e-6 if kind == "uneven" and alpha != 1 else 1e-8
    # A negligible weight is lost in the rounding of the sum, so its residual is not compared.
    heard = lengths * weights > 1e-12 * (lengths * weights).max()
    np.testing.assert_allclose((products * weights ** (1 / alpha))[heard], 1, rtol=rtol)
    if alpha == 1:
        nash = surgery_methods.weights(methods.NashMTL(), rows)
        np.testing.assert_allclose(weights, nash, rtol=1e-9)


@pytest.mark.parametrize("angle", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_fair_residuals_of_almost_opposite_gradients(alpha, angle):
    rows = np.array([[1.0, 0.0], [-3 * np.cos(angle), 3 * np.sin(angle)]])
    weights = surgery_methods.weights(methods.FairGrad(alpha=alpha), rows)
    np.testing.assert_allclose(rows @ rows.T @ weights * weights ** (1 / alpha), 1, rtol=1e-8)


@pytest.mark.parametrize("method", [methods.NashMTL(), methods.FairGrad()])
@pytest.mark.parametrize("kind", ["opposite", "stationary"])
@each_scale
def test_fair_updates_vanish_at_stationary_points(method, kind, scale):
    rows = scale * _unit(surgery_methods.gradients_of(kind, 2, 5))
    weights = surgery_methods.weights(method, rows)
    np.testing.assert_allclose(weights @ rows, 0, atol=1e-6 * np.abs(weights[:, None] * rows).max())


@each_scale
@pytest.mark.parametrize(("num_tasks", "dimension"), [(2, 7), (3, 3), (4, 30), (16, 300)])
def test_imtlg_and_config_equal_their_closed_forms(num_tasks, dimension, scale):
    rows = scale * surgery_methods.gradients_of("plain", num_tasks, dimension)
    units = _unit(rows)
    differences, unit_differences = rows[:1] - rows[1:], units[:1] - units[1:]
    others = rows[0] @ unit_differences.T @ np.linalg.inv(differences @ unit_differences.T)
    expected = np.append(1 - others.sum(), others)
    actual = surgery_methods.weights(methods.IMTLG(), rows)
    sign = np.sign(
        np.sum(np.linalg.solve(units @ units.T, np.ones(num_tasks)) / (rows**2).sum(1) ** 0.5)
    )
    np.testing.assert_allclose(actual, sign * expected, rtol=1e-9)

    direction = np.linalg.pinv(units) @ np.ones(num_tasks)
    direction /= np.linalg.norm(direction)
    expected = (rows @ direction).sum() * direction
    actual = surgery_methods.weights(methods.ConFIG(), rows) @ rows
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9 * scale)


@each_kind
@each_scale
def test_imtlg_projects_equally_where_that_is_possible(scale, kind):
    rows = scale * surgery_methods.gradients_of(kind, 3, 6)
    update = surgery_methods.weights(methods.IMTLG(), rows) @ rows
    products = _unit(rows) @ update
    np.testing.assert_allclose(products, products.mean(), atol=1e-6 * np.abs(rows).max())


@each_scale
@pytest.mark.parametrize("scale_mode", ["min", "median", "rmse"])
@pytest.mark.parametrize("kind", ["plain", "equal", "opposite", "stationary"])
def test_aligned_mtl_equals_the_singular_value_decomposition(kind, scale_mode, scale):
    rows = scale * surgery_methods.gradients_of(kind, 4, 9)
    left, values, right = np.linalg.svd(rows, full_matrices=False)
    used = values > 1e-6 * values[0]
    left, values, right = left[:, used], values[used], right[used]
    length = {
        "min": values[-1],
        "median": values[len(values) // 2],
        "rmse": np.sqrt(np.mean(values**2)),
    }[scale_mode]
    actual = surgery_methods.weights(methods.AlignedMTL(scale=scale_mode), rows) @ rows
    np.testing.assert_allclose(actual, (length * left @ right).sum(0), atol=1e-9 * values[0])


def test_grad_norm_equals_its_equations_over_steps():
    method, state = methods.GradNorm(alpha=0.7, learning_rate=0.1), None
    weights, first = np.ones(3), None
    for seed in range(5):
        rows = surgery_methods.gradients_of("plain", 3, 4, seed=seed)
        losses = np.random.default_rng(seed).uniform(0.5, 2, size=3)
        first = losses if first is None else first
        actual, state = surgery_methods.decide(method, rows, losses=losses, state=state)
        np.testing.assert_allclose(actual, weights, rtol=1e-9)
        lengths = weights * np.linalg.norm(rows, axis=1)
        left = losses / first
        target = lengths.mean() * (left / left.mean()) ** 0.7
        slope = np.sign(lengths - target) * np.linalg.norm(rows, axis=1) / lengths.mean()
        weights = np.maximum(weights - 0.1 * slope, 1e-3)
        weights *= 3 / weights.sum()
    assert np.abs(weights - 1).max() > 0.1


def _on_simplex(values):
    level = scipy.optimize.brentq(
        lambda x: np.maximum(values - x, 0).sum() - 1, values.min() - 1, values.max(), xtol=1e-14
    )
    return np.maximum(values - level, 0)


@pytest.mark.parametrize("projection", ["simplex", "softmax"])
def test_moco_takes_one_step_and_projects(projection):
    method = methods.MoCo(step_size=0.05, ridge=0.3, projection=projection)
    for seed in range(10):
        rows = surgery_methods.gradients_of("plain", 5, 4, seed=seed)
        old = np.random.default_rng(seed).dirichlet(np.ones(5))
        actual, state = surgery_methods.decide(method, rows, state={"simplex_weights": old})
        moved = old - 0.05 * (rows @ rows.T + 0.3 * np.eye(5)) @ old
        if projection == "softmax":
            expected = np.exp(moved) / np.exp(moved).sum()
        else:
            expected = _on_simplex(moved)
        np.testing.assert_allclose(actual, expected, atol=1e-9)
        np.testing.assert_array_equal(state["simplex_weights"], actual)


@each_scale
def test_modo_multiplies_two_samples_and_takes_one_step(scale):
    method = methods.MoDo(step_size=0.05 / scale**2, ridge=0.3 * scale**2)
    for seed in range(10):
        first, second = (
            scale * surgery_methods.gradients_of("plain", 5, 4, seed=seed + part)
            for part in (0, 50)
        )
        old = np.random.default_rng(seed).dirichlet(np.ones(5))
        actual, state = surgery_methods.decide(
            method, first, state={"simplex_weights": old}, second=second
        )
        slope = first @ second.T @ old + method.ridge * old
        expected = _on_simplex(old - method.step_size * slope)
        np.testing.assert_allclose(actual, expected, atol=1e-9)
        np.testing.assert_array_equal(state["simplex_weights"], actual)


@each_scale
@pytest.mark.parametrize("settings", [{}, {"step_size": 10.0, "momentum": 0.5, "rescale": True}])
def test_sdmgrad_takes_its_steps(settings, scale):
    method = methods.SDMGrad(pull=0.4, steps=7, **settings)
    for seed in range(5):
        first = surgery_methods.gradients_of("plain", 4, 6, seed=seed)
        second = first + 0.3 * surgery_methods.gradients_of("plain", 4, 6, seed=seed + 50)
        products, a = first @ second.T, np.random.default_rng(seed).dirichlet(np.ones(4))
        products /= np.mean(np.sqrt(np.maximum(np.diag(products), 0))) ** 2
        state, velocity = {"simplex_weights": a}, 0
        for _ in range(7):
            velocity = method.momentum * velocity + products @ (a + 0.4 / 4)
            a = _on_simplex(a - method.step_size * velocity)
        actual, state = surgery_methods.decide(
            method, scale * first, state=state, second=scale * second
        )
        expected = (a + 0.1) / (1.4 if method.rescale else 1)
        np.testing.assert_allclose(actual, expected, atol=1e-9)
        np.testing.assert_allclose(state["simplex_weights"], a, atol=1e-9)


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["plain", "conflicting", "opposite", "parallel"])
def test_sdmgrad_ends_at_the_shortest_drawn_vector(kind):
    """With one sample and steps enough its a minimises |sum_t a_t g_t + pull g_0|."""
    rows, pull = surgery_methods.gradients_of(kind, 3, 5), 0.5
    method = methods.SDMGrad(pull=pull, step_size=0.3, steps=20_000)
    weights, _ = surgery_methods.decide(method, rows)
    shortest = _min_norm_squared(rows + pull * rows.mean(0))  # A sum of 1 moves all rows by it.
    assert np.sum((weights @ rows) ** 2) == pytest.approx(shortest, rel=1e-6, abs=1e-9)


def test_sdmgrad_stays_where_samples_disagree():
    rows = surgery_methods.gradients_of("plain", 3, 5)
    old = np.array([0.2, 0.5, 0.3])
    _, state = surgery_methods.decide(
        methods.SDMGrad(), rows, state={"simplex_weights": old}, second=-rows
    )
    np.testing.assert_allclose(state["simplex_weights"], old, atol=1e-12)


def test_weights_on_the_simplex_start_equal():
    for method in (methods.MoDo(), methods.SDMGrad(), methods.MoCo()):
        np.testing.assert_array_equal(method.initial_state(4)["simplex_weights"], np.full(4, 0.25))


def test_weights_on_the_simplex_leave_absent_tasks_theirs():
    rows, old = surgery_methods.gradients_of("plain", 3, 5), np.array([0.1, 0.2, 0.3])
    for method in (methods.MoDo(), methods.SDMGrad(), methods.MoCo()):
        for before in (old, np.zeros(3)):
            state = {"simplex_weights": before}
            after = surgery_methods.decide(method, rows, state=state)[1]["simplex_weights"]
            assert after.sum() == pytest.approx(before.sum(), abs=1e-12)
            assert after.min() >= 0


def test_excess_mtl_equals_the_paper_over_steps():
    method, state = methods.ExcessMTL(step_size=0.2, warmup_steps=2), None
    weights, squares, firsts = np.full(3, 1 / 3), 0, []
    for seed in range(6):
        rows = surgery_methods.gradients_of("uneven", 3, 4, seed=seed)
        squares = squares + rows**2
        risks = np.sum(rows**2 / np.sqrt(squares), axis=1)
        if seed < 2:
            firsts.append(risks)
        else:
            weights = weights * np.exp(0.2 * risks / np.mean(firsts, axis=0))
            weights /= weights.sum()
        actual, state = surgery_methods.decide(method, rows / squares**0.25, state=state)
        np.testing.assert_allclose(actual, weights, rtol=1e-9)
    assert weights.max() > 1.1 * weights.min()


def _primary_constrained(rows, tau, averages):
    """PCD as the paper solves it, by trying every set of constraints; None if none will do."""
    units = rows / np.sqrt(averages)[:, np.newaxis]
    first, others = units[0], units[1:]
    for size in range(len(others) + 1):
        for chosen in map(list, itertools.combinations(range(len(others)), size)):
            system = others[chosen] @ others[chosen].T
            wanted = tau * np.sum(others[chosen] ** 2, axis=1) - others[chosen] @ first
            multipliers = np.linalg.lstsq(system, wanted, rcond=None)[0]
            direction = first + multipliers @ others[chosen]
            slack = others @ direction - tau * np.sum(others**2, axis=1)
            if multipliers.min(initial=0) >= 0 and slack.min() >= -1e-9:
                return direction
    return None


@random_cases(
    40,
    size=[(2, 7), (3, 2), (5, 30)],
    kind=["plain", "parallel", "conflicting", "stationary", "uneven"],
    tau=[0.0, 0.02, 1.0],
    scale=SCALES,
)
def test_pcd_equals_the_enumeration_of_the_paper(size, kind, tau, scale, seed):
    method, state = methods.PCD(primary="a", tau=tau, decay=0.9), None
    averages = np.zeros(size[0])
    for step in (1, 2):
        rows = scale * surgery_methods.gradients_of(kind, *size, seed=2 * seed + step)
        averages = 0.9 * averages + 0.1 * np.sum(rows**2, axis=1)
        actual, state = surgery_methods.decide(method, rows, state=state)
        direction = _primary_constrained(rows, tau, averages / (1 - 0.9**step))
        direction = rows[0] if direction is None else direction
        reached, length = np.linalg.norm(direction), np.linalg.norm(rows[0])
        expected = direction * (length / reached if reached > 1e-9 else 0)
        np.testing.assert_allclose(actual @ rows, expected, atol=1e-9 * length)


@pytest.mark.medium
def test_pcd_of_tasks_that_no_direction_suits():
    rows = surgery_methods.gradients_of("plain", 3, 5)
    rows[2] = -rows[1]
    weights = surgery_methods.weights(methods.PCD(primary="a"), rows)
    np.testing.assert_allclose(weights, [1, 0, 0], atol=1e-12)
    rows = np.array([[1.0, 2.0], [-0.5, -1.0]])  # Only a zero update suits both.
    update = surgery_methods.weights(methods.PCD(tau=0.0), rows) @ rows
    np.testing.assert_allclose(update, 0, atol=1e-9)


@pytest.mark.parametrize("place", [0, 2])
def test_pcd_knows_its_primary_task_by_name(place):
    rows = surgery_methods.gradients_of("conflicting", 3, 5)
    order = [place, *(t for t in range(3) if t != place)]
    named = surgery_methods.weights(methods.PCD(primary="abc"[place]), rows)
    first = surgery_methods.weights(methods.PCD(), rows[order])
    np.testing.assert_allclose(named[order], first, rtol=1e-9)
    with pytest.raises(ValueError, match="PCD.primary must be one of a, b, c, .* got 'clicks'"):
        surgery_methods.weights(methods.PCD(primary="clicks"), rows)


@pytest.mark.parametrize(("outliers", "selected"), [(0, 1), (1, 1), (2, 3)])
def test_krum_equals_brute_force(outliers, selected):
    rows = surgery_methods.gradients_of("plain", 7, 4)
    squares = np.sum((rows[:, np.newaxis] - rows) ** 2, axis=2)
    scores = [np.sort(np.delete(row, i))[: 7 - outliers - 2].sum() for i, row in enumerate(squares)]
    expected = np.zeros(7)
    expected[np.argsort(scores)[:selected]] = 1 / selected
    actual = surgery_methods.weights(methods.Krum(outliers=outliers, selected=selected), rows)
    np.testing.assert_array_equal(actual, expected)


def test_random_weights_change_with_the_seed_and_sum_to_one():
    rows = surgery_methods.gradients_of("plain", 5, 4)
    draws = np.array(
        [surgery_methods.weights(methods.Random(), rows, seed=seed) for seed in range(400)]
    )
    np.testing.assert_allclose(draws.sum(1), 1)
    np.testing.assert_array_equal(draws[3], surgery_methods.weights(methods.Random(), rows, seed=3))
    normal = np.log(draws) - np.log(draws).mean(1, keepdims=True)
    assert normal.std() == pytest.approx(np.sqrt(4 / 5), rel=0.05)


def _by_coordinate(method, rows, at=None, seeds=(0,)):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        at = None if at is None else tf.constant(at)
        seed = tf.compat.v1.placeholder(tf.int32, [2])
        evidence = method.evidence(tf.constant(rows), at)
        update = method(tf.constant(rows), evidence, seed)
        return np.array([session.run(update, {seed: [number, 1]}) for number in seeds])


@pytest.mark.parametrize(("num_tasks", "trim"), [(5, 1), (6, 2), (3, 0)])
def test_trimmed_mean_equals_scipy(num_tasks, trim):
    rows = np.random.default_rng(0).normal(size=(num_tasks, 4, 3))
    actual = _by_coordinate(methods.TrimmedMean(trim=trim), rows)[0]
    np.testing.assert_allclose(actual, scipy.stats.trim_mean(rows, trim / num_tasks + 1e-9, axis=0))


@pytest.mark.medium
@pytest.mark.parametrize("num_present", [1, 2, 3, 6])
def test_trimmed_mean_of_tasks_that_are_present_equals_numpy(num_present):
    """The number of tasks is unknown while the graph is built."""
    rows = np.random.default_rng(1).normal(size=[num_present, 5])
    method = tf.function(
        lambda rows: methods.TrimmedMean(trim=2)(rows, None, tf.constant(0)),
        input_signature=[tf.TensorSpec([None, 5], tf.float64)],
    )
    cut = min(2, (num_present - 1) // 2)
    expected = np.sort(rows, axis=0)[cut : num_present - cut].mean(axis=0)
    np.testing.assert_allclose(method(rows), expected, rtol=1e-12)


def test_trimmed_mean_leaves_a_value():
    rows = np.array([[1.0], [5.0]])
    np.testing.assert_array_equal(_by_coordinate(methods.TrimmedMean(trim=3), rows)[0], [3.0])


@pytest.mark.medium
def test_grad_drop_lets_one_sign_win_as_often_as_it_should():
    rows = np.array([[1.0, -1.0, 2.0, 0.0], [3.0, 0.5, -2.0, 0.0], [-1.0, 0.25, 1.0, 0.0]])
    positive, negative = np.maximum(rows, 0).sum(0), np.minimum(rows, 0).sum(0)
    updates = _by_coordinate(methods.GradDrop(leak=0.25), rows, seeds=range(2000))
    chance = np.array([4 / 5, 0.75 / 1.75, 3 / 5])
    won = positive + 0.25 * negative
    lost = negative + 0.25 * positive
    is_won = np.isclose(updates, won)[:, :3]
    assert (is_won | np.isclose(updates, lost)[:, :3]).all()
    np.testing.assert_allclose(is_won.mean(0), chance, atol=0.04)
    np.testing.assert_array_equal(updates[:, 3], 0)


def test_grad_drop_on_activations_draws_once_for_the_batch_by_the_sign_of_the_activation():
    random = np.random.default_rng(0)
    rows, at = random.normal(size=(2, 6, 3)), random.normal(size=(6, 3))
    signed = (rows * np.sign(at)).sum(1)
    for update in _by_coordinate(methods.GradDrop(), rows, at, seeds=range(20)):
        for unit in range(3):
            outcomes = [
                (rows[:, :, unit] * (sign * signed[:, unit, np.newaxis] > 0)).sum(0)
                for sign in (1, -1)
            ]
            assert any(np.allclose(update[:, unit], outcome) for outcome in outcomes)
