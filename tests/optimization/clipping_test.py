import numpy as np
import pytest
import tensorflow as tf

from mtl.optimization import adaptive_clipping, clipping, optimizers, update
from mtl.step import gradients
from tests.optimization import training

tf1 = tf.compat.v1

INF = float("inf")
DENSE = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)


def _train(gradient_of_dense, ids, rows, max_norm, looped=False, **settings):
    """One SGD step at rate 1 from zero: the weights are the negative clipped gradients."""

    def step_fn(step):
        del step
        dense = training.variable("dense", np.zeros([2, 2]))
        table = training.variable("table", np.zeros([5, 2]))
        shape = tf.constant([5, 2], tf.int64)
        sparse = tf.IndexedSlices(tf.constant(rows, tf.float32), tf.constant(ids, tf.int64), shape)
        part = update.Update(
            optimizer=optimizers.SGD(learning_rate=1.0),
            clipping=clipping.GlobalNorm(max_norm=max_norm),
            **settings,
        )
        return part([tf.constant(gradient_of_dense, tf.float32), sparse], [dense, table])

    result = training.train(step_fn, 1, looped)
    return -result.variables["dense"], -result.variables["table"], result.monitors


def _norm(ids, rows):
    table = np.zeros([5, 2])
    np.add.at(table, ids, rows)
    return np.sqrt((DENSE**2).sum() + (table**2).sum()), table


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
@pytest.mark.parametrize("max_norm", [0.5, 5.0, 100.0, INF])
@pytest.mark.parametrize(
    ("ids", "rows"),
    [
        ([1, 4], [[1.0, 1.0], [2.0, -1.0]]),
        ([3, 1, 3], [[3.0, 0.0], [1.0, 1.0], [4.0, 0.0]]),
        ([2, 2], [[1.0, 1.0], [-1.0, -1.0]]),
        ([], np.zeros([0, 2])),
    ],
    ids=["distinct", "duplicates", "cancelling", "empty"],
)
def test_equals_numpy(ids, rows, max_norm, looped):
    dense, table, monitors = _train(DENSE, ids, rows, max_norm, looped)
    norm, summed = _norm(np.array(ids, int), rows)
    scale = min(1.0, max_norm / norm)
    np.testing.assert_allclose(monitors["gradient_norm"], norm, rtol=1e-6)
    np.testing.assert_allclose(dense, DENSE * scale, rtol=1e-6)
    np.testing.assert_allclose(table, summed * scale, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("policy", "size", "looped"),
    [("fail", 1e19, False), ("fail", 3e30, True), ("skip", 1e20, False), ("zero", 1e37, False)],
)
def test_a_finite_gradient_whose_squares_overflow(policy, size, looped):
    """Float32 ends at 3.4e38, which is the square of 1.8e19."""
    result = _train(size * DENSE, [1], [[-size, 0]], 5.0, looped, if_not_finite=policy)
    norm = np.sqrt((DENSE.astype(np.float64) ** 2).sum() + 1) * size
    np.testing.assert_allclose(result[2]["gradient_norm"], norm, rtol=1e-6)
    np.testing.assert_allclose(result[0], DENSE * 5 * size / norm, rtol=1e-5)
    np.testing.assert_allclose(result[1][1], [-5 * size / norm, 0], rtol=1e-5)
    assert not any(result[2].get(name) for name in ("skipped_steps", "zeroed_entries"))


def test_a_norm_beyond_float32_is_its_largest():
    most = np.finfo(np.float32).max
    _, _, monitors = _train(most * np.ones([2, 2]), [1], [[most, most]], 5.0)
    assert monitors["gradient_norm"] == most


@pytest.mark.parametrize("bad", [np.nan, INF, -INF])
def test_an_entry_that_is_not_finite_is_told_from_a_large_one(bad):
    with pytest.raises(tf.errors.InvalidArgumentError, match="in 1 of them: gradient of table"):
        _train(1e30 * DENSE, [1], [[1e30, bad]], 5.0)
    dense, table, monitors = _train(1e30 * DENSE, [1], [[1e30, bad]], 5.0, if_not_finite="zero")
    assert monitors["zeroed_entries"] == 1
    norm = np.sqrt((dense.astype(np.float64) ** 2).sum() + (table**2).sum())
    assert norm == pytest.approx(5, rel=1e-5)


@pytest.mark.parametrize(
    "part",
    [
        clipping.Norm(max_norm=2.0),
        clipping.AverageNorm(max_norm=0.5),
        clipping.ByPattern(parts={"": clipping.GlobalNorm(max_norm=2.0)}),
        adaptive_clipping.AGC(skipped=[]),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [1e20, 3e30])
def test_the_family_clips_what_is_large_as_what_is_not(part, size):
    """All of these bound the gradient, so that ten times as large a one leads to the same."""
    random = np.random.default_rng(0)
    dense, rows = random.normal(size=[2, 2]), random.normal(size=[2, 2])
    results = []
    for scale in (1e6, size):
        with tf.Graph().as_default(), tf1.Session() as session:
            variables = [training.variable(name, np.ones([2, 2])) for name in "ab"]
            sparse = tf.IndexedSlices(tf.constant(np.float32(scale * rows)), tf.constant([0, 1]))
            own = [tf.constant(np.float32(scale * dense)), sparse]
            norm = gradients.norm_from_squares(gradients.squared_norms(own))
            clipped = gradients.list_values(part(own, variables, norm))
            session.run(tf1.global_variables_initializer())
            results.append(session.run(clipped))
    for small, large in zip(*results, strict=True):
        np.testing.assert_allclose(large, small, rtol=1e-4)


def test_slices_of_3_and_4_for_one_row_have_norm_7():
    _, table, monitors = _train(np.zeros([2, 2]), [0, 0], [[3.0, 0.0], [4.0, 0.0]], 5.0)
    assert monitors["gradient_norm"] == 7.0
    np.testing.assert_allclose(table[0], [5.0, 0.0], rtol=1e-6)


def test_zero_gradients_stay_zero():
    dense, table, monitors = _train(np.zeros([2, 2]), [1], [[0.0, 0.0]], 1.0)
    assert monitors["gradient_norm"] == 0
    np.testing.assert_array_equal(dense, 0)
    np.testing.assert_array_equal(table, 0)


GROUPS = {"^dense": clipping.Norm(max_norm=1.0), "": clipping.Value(max_value=0.4)}
FAMILY = [
    clipping.GlobalNorm(max_norm=2.0),
    clipping.Norm(max_norm=2.0),
    clipping.AverageNorm(max_norm=0.3),
    clipping.Value(max_value=0.7),
    clipping.ByPattern(parts=GROUPS),
    adaptive_clipping.AGC(max_ratio=0.1, skipped=()),
    adaptive_clipping.AutoClip(percentile=0),
]
UNBOUNDED = [
    clipping.GlobalNorm(max_norm=INF),
    clipping.Norm(max_norm=INF),
    clipping.AverageNorm(max_norm=INF),
    clipping.Value(max_value=INF),
    adaptive_clipping.AGC(max_ratio=INF, skipped=()),
]
WEIGHTS = np.array([[0.1, -4.0], [0.2, 3.0]], np.float32)
TABLE = np.arange(10, dtype=np.float32).reshape([5, 2]) / 4
ROWS, IDS = np.array([[3.0, 0.5], [0.25, 1.0], [4.0, -2.0]], np.float32), [3, 1, 3]


def _clipped(part, dense=DENSE, ids=IDS, rows=ROWS):
    """The clipped gradients of a dense variable and a table, the second as [5, 2]."""
    with tf.Graph().as_default(), tf1.Session() as session:
        variables = [training.variable("dense", WEIGHTS), training.variable("table", TABLE)]
        # The length is unknown: TensorFlow's graph optimizer divides by a known length of 0.
        rows = tf1.placeholder_with_default(np.asarray(rows, np.float32), [None, 2])
        ids = tf1.placeholder_with_default(np.asarray(ids, np.int64), [None])
        sparse = tf.IndexedSlices(rows, ids, tf.constant([5, 2], tf.int64))
        merged = [tf.constant(dense), gradients.merge_rows(sparse)]
        norm = gradients.norm_from_squares(gradients.squared_norms(merged))
        of_dense, of_table = part(merged, variables, norm)
        assert isinstance(of_table, tf.IndexedSlices)
        session.run(tf1.global_variables_initializer())
        return session.run([of_dense, tf.convert_to_tensor(of_table)])


def _bounded(values, norms, most):
    return values * np.minimum(1, most / np.maximum(norms, 1e-30))


def _expected(part, dense, table):
    """The same in NumPy; rows 1 and 3 of the table are in the batch."""
    norms = np.linalg.norm(dense), np.linalg.norm(table)
    match part:
        case clipping.GlobalNorm():
            return [_bounded(g, np.hypot(*norms), part.max_norm) for g in (dense, table)]
        case clipping.Norm():
            return [
                _bounded(g, n, part.max_norm) for g, n in zip((dense, table), norms, strict=True)
            ]
        case clipping.AverageNorm():
            return [
                _bounded(g, n / 4, part.max_norm)
                for g, n in zip((dense, table), norms, strict=True)
            ]
        case clipping.Value():
            return [np.clip(g, -part.max_value, part.max_value) for g in (dense, table)]
        case clipping.ByPattern():
            return [_bounded(dense, norms[0], 1.0), np.clip(table, -0.4, 0.4)]
        case adaptive_clipping.AGC():
            most = part.max_ratio * np.maximum(np.linalg.norm(WEIGHTS, axis=0), part.least_norm)
            rows = part.max_ratio * np.maximum(np.linalg.norm(TABLE, axis=1), part.least_norm)
            return [
                _bounded(dense, np.linalg.norm(dense, axis=0), most),
                _bounded(table, np.linalg.norm(table, axis=1)[:, None], rows[:, None]),
            ]
    return dense, table  # The first norm of a run is every percentile of those seen.


@pytest.mark.parametrize("part", FAMILY, ids=lambda part: type(part).__name__)
def test_the_family_equals_numpy(part):
    table = np.zeros([5, 2], np.float32)
    np.add.at(table, IDS, ROWS)
    for found, expected in zip(_clipped(part), _expected(part, DENSE, table), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("part", UNBOUNDED, ids=lambda part: type(part).__name__)
def test_an_infinite_bound_clips_nothing(part):
    dense, table = _clipped(part)
    np.testing.assert_array_equal(dense, DENSE)
    np.testing.assert_array_equal(table[3], [7, -1.5])


@pytest.mark.parametrize("bad", [np.nan, INF, -INF])
@pytest.mark.parametrize("part", FAMILY + UNBOUNDED[:1], ids=lambda part: type(part).__name__)
def test_one_bad_entry_does_not_spread(part, bad):
    gradient = DENSE.copy()
    gradient[0, 0] = bad
    dense, table = _clipped(part, gradient)
    assert np.isfinite(table).all()
    assert np.isfinite(dense[:, 1]).all()
    assert (table[3] != 0).all()


@pytest.mark.parametrize("part", FAMILY, ids=lambda part: type(part).__name__)
def test_no_rows_and_zeros(part):
    dense, table = _clipped(part, np.zeros_like(DENSE), [], np.zeros([0, 2]))
    np.testing.assert_array_equal(dense, 0)
    np.testing.assert_array_equal(table, 0)


def test_patterns_that_match_nothing():
    parts = {"": clipping.Norm(max_norm=1.0), "^dense": clipping.Norm(max_norm=1.0)}
    with pytest.raises(ValueError, match="ByPattern.parts must match a variable, got '.dense'"):
        _clipped(clipping.ByPattern(parts=parts))


def test_units_of_agc():
    """A filter of a convolution is a unit, a bias as a whole; what is skipped passes."""
    with tf.Graph().as_default(), tf1.Session() as session:
        names = {"conv": [3, 3, 2, 4], "bias": [4], "scale": [], "head/x/logits": [4, 1]}
        values = {name: np.full(shape, 2.0, np.float32) for name, shape in names.items()}
        variables = [training.variable(name, value) for name, value in values.items()]
        given = [tf.fill(variable.shape, 10.0) for variable in variables]
        part = adaptive_clipping.AGC(max_ratio=0.5)
        clipped = part(given, variables, tf.constant(1.0))
        session.run(tf1.global_variables_initializer())
        for value, name in zip(session.run(clipped), names, strict=True):
            np.testing.assert_allclose(value, 10.0 if "head" in name else 1.0, rtol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("looped", training.LOOPED)
@pytest.mark.parametrize("window", [4, 100])
def test_auto_clip_follows_the_norms_that_it_has_seen(window, looped):
    norms = np.array([5.0, 1.0, np.nan, 3.0, 8.0, 2.0, 9.0, 4.0], np.float32)
    part = adaptive_clipping.AutoClip(percentile=30, window=window)

    def step_fn(step):
        weight = training.variable("weight", [0.0])
        given = tf.gather(norms, step)[tf.newaxis]
        train_op, monitors = update.Update(
            optimizer=optimizers.SGD(learning_rate=1.0), clipping=part, if_not_finite="skip"
        )([given], [weight])
        return train_op, monitors

    result = training.train(step_fn, len(norms), looped)
    moved, seen = 0.0, []
    for norm in norms:
        if np.isfinite(norm):
            seen.append(norm)
            moved += min(norm, np.percentile(seen[-window:], 30))
    np.testing.assert_allclose(result.variables["weight"], [-moved], rtol=1e-6)
    assert result.variables["update/auto_clip/count"] == len(seen)


def test_sparse_gradients_stay_sparse():
    with tf.Graph().as_default():
        shape = tf.constant([5, 2], tf.int64)
        sparse = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 1, 2], tf.int64), shape)
        clip = clipping.GlobalNorm(max_norm=1.0)
        (clipped,) = clip(
            [sparse], [training.variable("table", np.zeros([5, 2]))], tf.constant(9.0)
        )
        assert isinstance(clipped, tf.IndexedSlices)


@pytest.mark.parametrize("max_norm", [0, -1.0, float("nan"), "5"])
def test_settings(max_norm):
    with pytest.raises(ValueError, match="GlobalNorm.max_norm must be"):
        clipping.GlobalNorm(max_norm=max_norm)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: clipping.Norm(max_norm=0), "Norm.max_norm must be above 0"),
        (lambda: clipping.AverageNorm(max_norm=-1), "AverageNorm.max_norm must be above 0"),
        (lambda: clipping.Value(max_value="1"), "Value.max_value must be a number above 0"),
        (lambda: clipping.ByPattern(parts={}), "ByPattern.parts must not be empty"),
        (lambda: clipping.ByPattern(parts={"(": 1}), "ByPattern.parts"),
        (
            lambda: clipping.ByPattern(parts={"a": 5.0}),
            "must be a part such as @clipping.GlobalNorm",
        ),
        (lambda: adaptive_clipping.AGC(max_ratio=0), "AGC.max_ratio must be above 0"),
        (lambda: adaptive_clipping.AutoClip(percentile=101), "AutoClip.percentile must be in "),
        (lambda: adaptive_clipping.AutoClip(window=0), "AutoClip.window must be at least 1"),
    ],
)
def test_settings_of_the_family(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("names", "expected"), [("abc", [1, 2, 4]), ("aba", [5, 2, 5]), ("aaa", [7, 7, 7])]
)
def test_shards_count_as_the_table_that_they_make_up(names, expected, monkeypatch):
    monkeypatch.setattr(clipping.patterns, "variable_name", lambda variable: variable)
    found = clipping._of_tables(tf.constant([1.0, 2.0, 4.0]), list(names))
    assert found.numpy().tolist() == expected
