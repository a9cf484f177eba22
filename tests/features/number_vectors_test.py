"""Numbers as vectors: the papers' equations, missing values, and fields of several values."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, verbs
from mtl.serving import loaded
from tests import tiny
from tests.optimization import training

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(0)
AGES = RANDOM.integers(17, 90, 200)
PAIRS = RANDOM.normal([0, 5], [1, 3], size=(200, 2)).astype(np.float32)
SPLIT = {"age": AGES, "pair": PAIRS, "pay": RANDOM.exponential(size=200).astype(np.float32)}
MISSING = np.array([1.0, np.nan, 2.0, np.inf, -np.inf], np.float32)
KINDS = [
    features.PiecewiseLinear(names=["x"]),
    features.PiecewiseLinear(names=["x"], dimension=3),
    features.Periodic(names=["x"], sigma=1.0),
    features.AutoDis(names=["x"]),
]


@pytest.fixture
def build(fit):
    """build(column, training split, batch) -> ({column: array}, {variable: drawn value})."""

    def run(column, split, batch=None):
        fitted = fit([column], split)
        with tf.Graph().as_default(), tf1.Session() as session:
            fed = {name: tf.constant(values) for name, values in (batch or split).items()}
            encoded = features.encode_columns([column], fed, fitted)
            variables = tf1.trainable_variables()
            random = np.random.default_rng(1)
            values = {v.op.name: random.normal(size=v.shape) for v in variables}
            session.run(tf1.global_variables_initializer())
            training.load(session, variables, lambda variable: values[variable.op.name])
            short = {name.removeprefix("features/"): value for name, value in values.items()}
            return session.run(encoded), short

    return run


def _paper_bins(value, b):
    """Equation 1 of the paper, for one number; t counts from 1."""
    last = len(b) - 1
    encoded = []
    for t in range(1, last + 1):
        if value < b[t - 1] and t > 1:
            encoded.append(0)
        elif value >= b[t] and t < last:
            encoded.append(1)
        else:
            encoded.append((value - b[t - 1]) / (b[t] - b[t - 1]))
    return encoded


def _z_scores(values):
    return (values - values.mean(0)) / values.std(0)


def test_bins_are_what_the_paper_says(build):
    b = [0, 1, 3, 10]
    values = np.array([-4, -0.5, 0, 0.25, 1, 2, 3, 9, 10, 24], np.float32)
    column = features.PiecewiseLinear(names=["x"], boundaries=b)
    encoded, variables = build(column, {"x": values})
    expected = [_paper_bins(value, b) for value in values]
    assert variables == {} and column.accumulators() == {}
    np.testing.assert_allclose(encoded["piecewise_linear_x"], expected, rtol=1e-5, atol=1e-6)
    ends = encoded["piecewise_linear_x"][[0, -1]]
    np.testing.assert_allclose(ends, [[-4, 0, 0], [1, 1, 3]], rtol=1e-5)


def test_fitted_bins_have_equal_shares_of_each_element(build):
    column = features.PiecewiseLinear(names=list(SPLIT), boundaries=4)
    encoded, _ = build(column, SPLIT)
    assert {name: value.shape[1] for name, value in encoded.items()} == {
        "piecewise_linear_age": 4,
        "piecewise_linear_pair": 8,
        "piecewise_linear_pay": 4,
    }
    of_pair = np.split(encoded["piecewise_linear_pair"], 2, axis=1)
    for each, numbers in zip(of_pair, PAIRS.T, strict=True):
        # Each bin rises from 0 to 1 with the numbers.
        order = np.argsort(numbers)
        assert (np.diff(each[order], axis=0) >= 0).all()
        np.testing.assert_allclose(each[order[[0, -1]]], [[0] * 4, [1] * 4], atol=1e-6)
        assert ((each > 0) & (each < 1)).sum(0).tolist() == pytest.approx([50] * 4, abs=2)


@pytest.mark.parametrize(
    "values, outlier",
    [
        (np.linspace(0, 1, 999, dtype=np.float32), -999_999),
        (np.linspace(0, 1, 999, dtype=np.float32), 999_999),
        (np.arange(999), -2_000_000_000),
    ],
)
def test_an_outlier_does_not_hide_the_places_of_all_other_values(build, values, outlier):
    values = np.append(values, outlier).astype(values.dtype)
    column = features.PiecewiseLinear(names=["x"], boundaries=8)
    bins = np.quantile(values, np.linspace(0, 1, 9))
    encoded = build(column, {"x": values})[0]["piecewise_linear_x"]
    expected = [_paper_bins(value, bins) for value in values.astype(np.float64)]
    # The fit takes boundaries from the values, and NumPy takes them between the values.
    np.testing.assert_allclose(encoded[:-1], expected[:-1], atol=0.03)


def test_a_field_that_is_mostly_one_value_keeps_bins_for_the_rest(build):
    gains = np.concatenate([np.zeros(900), np.arange(1, 101)]).astype(np.float32)
    column = features.PiecewiseLinear(names=["x"], boundaries=5)
    encoded = build(column, {"x": gains})[0]["piecewise_linear_x"]
    assert encoded.shape[1] == 5
    assert not encoded[:900].any() and (encoded[900:].sum(1) >= 1).all()


def test_elements_of_few_values_have_few_bins(build):
    values = np.stack([np.arange(40) % 2, np.full(40, 7), np.arange(40)], axis=1)
    column = features.PiecewiseLinear(names=["x"], boundaries=4)
    encoded, _ = build(column, {"x": values}, {"x": np.array([[0, 7, 0], [1, 9, 39]])})
    bit, constant, count = np.split(encoded["piecewise_linear_x"], 3, axis=1)
    assert bit.tolist() == [[0] * 4, [1, 0, 0, 0]] and not constant.any()
    np.testing.assert_allclose(count, [[0] * 4, [1] * 4], atol=1e-6)


def test_a_missing_number_is_in_the_middle_of_the_bins(build):
    """As all zeros it would be the least number there is."""
    column = features.PiecewiseLinear(names=["x"], boundaries=[0, 1, 3, 10], missing_flags=True)
    encoded = build(column, {"x": MISSING})[0]["piecewise_linear_x"]
    middle = [1, 0.5, 0, 1]
    np.testing.assert_allclose(encoded[[1, 3, 4]], [middle] * 3, rtol=1e-6)
    np.testing.assert_allclose(encoded[[0, 2]], [[1, 0, 0, 0], [1, 0.5, 0, 0]], rtol=1e-6)
    fitted = features.PiecewiseLinear(names=["y"], boundaries=4)
    batch = {"y": np.array([np.median(PAIRS[:, 0]), np.nan], np.float32)}
    median, missing = build(fitted, {"y": PAIRS[:, 0]}, batch)[0]["piecewise_linear_y"]
    np.testing.assert_allclose(missing, [1, 1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(median, missing, atol=0.05)


def test_logs_are_taken_of_boundaries_too(build):
    values = np.array([-np.e + 1, 0, 1, np.e - 1, 1], np.float32)
    column = features.PiecewiseLinear(names=["x"], boundaries=[-9, 0, 9], log=True)
    encoded = build(column, {"x": values})[0]["piecewise_linear_x"]
    logs = np.sign(values) * np.log1p(np.abs(values)) / np.log(10)
    expected = np.stack([np.minimum(logs + 1, 1), np.maximum(logs, 0)], axis=1)
    np.testing.assert_allclose(encoded, expected, rtol=1e-5, atol=1e-6)


def test_large_integers_that_lie_close_stay_apart(build):
    seconds = 1_700_000_000 + np.random.default_rng(0).permutation(1000)
    column = features.PiecewiseLinear(names=["at"], boundaries=4)
    encoded = build(column, {"at": seconds})[0]["piecewise_linear_at"]
    total = encoded.sum(1)[np.argsort(seconds)]
    np.testing.assert_allclose(np.diff(total), np.full(999, 4 / 1000), rtol=0.1)


def test_a_layer_on_the_bins_has_weights_for_each_element(build):
    plain, _ = build(features.PiecewiseLinear(names=list(SPLIT), boundaries=5, prefix="p"), SPLIT)
    column = features.PiecewiseLinear(names=list(SPLIT), boundaries=5, dimension=3)
    encoded, values = build(column, SPLIT)
    for field, size in (("age", 1), ("pair", 2), ("pay", 1)):
        scope = f"piecewise_linear_{field}"
        kernel, bias = (values[f"{scope}/linear/{name}"] for name in ("kernel", "bias"))
        bins = plain[f"p_{field}"].reshape(200, size, -1)
        expected = np.maximum(np.einsum("bnk,nkd->bnd", bins, kernel) + bias, 0)
        np.testing.assert_allclose(encoded[scope], expected.reshape(200, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dimension", [None, 3])
def test_waves_are_what_the_paper_says(build, dimension):
    column = features.Periodic(names=list(SPLIT), num_frequencies=4, sigma=1.0, dimension=dimension)
    encoded, values = build(column, SPLIT)
    for field, numbers in SPLIT.items():
        x = _z_scores(numbers.reshape(200, -1).astype(np.float64))[:, :, None]
        scope = f"periodic_{field}"
        angles = 2 * np.pi * x * values[f"{scope}/frequencies"]
        expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=2)
        if dimension:
            kernel, bias = (values[f"{scope}/linear/{name}"] for name in ("kernel", "bias"))
            expected = np.maximum(np.einsum("bnk,nkd->bnd", expected, kernel) + bias, 0)
        np.testing.assert_allclose(encoded[scope], expected.reshape(200, -1), rtol=1e-3, atol=1e-3)


def test_soft_buckets_are_what_the_paper_says(build):
    column = features.AutoDis(
        names=list(SPLIT), dimension=3, num_buckets=5, temperature=0.7, skip=0.3
    )
    encoded, values = build(column, SPLIT)
    for field, numbers in SPLIT.items():
        x = _z_scores(numbers.reshape(200, -1).astype(np.float64))
        parts = []
        for element in range(x.shape[1]):
            slopes, kernel, embedding = (
                values[f"autodis_{field}/{name}"][element]
                for name in ("hidden/kernel", "buckets/kernel", "embedding")
            )
            h = x[:, [element]] * slopes
            h = np.where(h > 0, h, 0.01 * h)
            e = np.exp((h @ kernel + 0.3 * h) / 0.7)
            parts.append(e / e.sum(1, keepdims=True) @ embedding)
        expected = np.concatenate(parts, axis=1)
        np.testing.assert_allclose(encoded[f"autodis_{field}"], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("column", KINDS[2:], ids=lambda column: column.prefix)
def test_a_missing_number_is_the_mean(build, column):
    """As in Numeric, of which these are encodings."""
    batch = {"x": np.array([1.5, np.nan, np.inf], np.float32)}
    encoded = build(column, {"x": MISSING}, batch)[0][f"{column.prefix}_x"]
    np.testing.assert_allclose(encoded[1:], encoded[[0, 0]], rtol=1e-6)


@pytest.mark.parametrize("column", KINDS, ids=lambda column: f"{column.prefix}_{column.dimension}")
def test_gradients_of_missing_numbers_are_finite(fit, column):
    fitted = fit([column], {"x": MISSING})
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = tf.constant(MISSING)
        (encoded,) = features.encode_columns([column], {"x": fed}, fitted).values()
        slopes = tf1.gradients(tf.reduce_sum(encoded**2), [fed, *tf1.trainable_variables()])
        session.run(tf1.global_variables_initializer())
        for slope in session.run(slopes):
            assert np.isfinite(slope).all()


@pytest.mark.parametrize("column", KINDS, ids=lambda column: f"{column.prefix}_{column.dimension}")
@pytest.mark.parametrize("values", [np.array(["a", "b"]), [[1, 2], [3]], np.zeros([2, 3, 4])])
def test_what_is_no_number_is_refused(fit, column, values):
    """In the name of the column itself."""
    rule = f"{type(column).__name__}.names must name fields of"
    with pytest.raises(checks.UserError, match=rule):
        fit([column], {"x": values})


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: features.PiecewiseLinear(names=["x"], boundaries=[1]),
            "ascend, and hold at least 2 numbers",
        ),
        (lambda: features.PiecewiseLinear(names=["x"], boundaries=1), "must be at least 2"),
        (lambda: features.PiecewiseLinear(names=["x"], boundaries=[2, 1]), "must ascend"),
        (
            lambda: features.PiecewiseLinear(names=["x"], boundaries=[0, np.inf]),
            "PiecewiseLinear.boundaries must be finite",
        ),
        (
            lambda: features.PiecewiseLinear(names=["x"], dimension=0),
            "PiecewiseLinear.dimension must be at least 1",
        ),
        (lambda: features.Periodic(names=["x"], sigma=0), "Periodic.sigma must be above 0"),
        (
            lambda: features.Periodic(names=["x"], normalization="zscore"),
            "Periodic.normalization must be one of z_score",
        ),
        (
            lambda: features.AutoDis(names=["x"], dimension=None),
            "AutoDis.dimension must be a whole",
        ),
        (lambda: features.AutoDis(names=["x"], temperature=0), "AutoDis.temperature must be above"),
        (lambda: features.AutoDis(names=["x"], skip=-1), "AutoDis.skip must be at least 0"),
        (lambda: features.AutoDis(names=["x"], log=1), "AutoDis.log must be True or False"),
    ],
)
def test_settings_are_checked_at_construction(make, message):
    with pytest.raises(checks.UserError) as error:
        make()
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow
def test_a_model_of_all_three_learns_and_serves(tmp_path):
    """The export is compared with the Estimator; rows with gaps come on top."""
    splits = {name: {**rows, "x": rows["x"].copy()} for name, rows in tiny.SPLITS.items()}
    for rows in splits.values():
        rows["x"][::7, 1] = np.nan
    columns = [
        features.PiecewiseLinear(names=["x"], boundaries=4, missing_flags=True),
        features.PiecewiseLinear(names=["x"], boundaries=4, dimension=3, prefix="layer"),
        features.Periodic(names=["x"], sigma=0.3, dimension=3, num_frequencies=4),
        features.AutoDis(names=["x"]),
    ]
    made = tiny.make(splits, columns=columns, check_rows=48)
    verbs.train(made, str(tmp_path))
    first, last = (tiny.variables(tmp_path, step) for step in (0, 40))
    trained = {name for name in last if name.startswith("features/") and "Adam" not in name}
    assert {name.split("/")[1] for name in trained} == {"layer_x", "periodic_x", "autodis_x"}
    for name in trained:
        assert np.abs(last[name] - first[name]).max() > 0, name
    path = max((tmp_path / "export" / "best").iterdir())
    rows = splits["test"]
    records = [
        made.data.spec.serialize({"x": rows["x"][i], "word": rows["word"][i]}) for i in range(48)
    ]
    with loaded.load_export(str(path)) as model:
        served = model(["serving_default"], records)
    for (_, name), value in served.items():
        assert value.dtype.kind != "f" or np.isfinite(value).all(), name
