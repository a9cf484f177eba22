import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features

_AGES = np.array([20.0, 30.0, 50.0, 100.0], np.float32)


def test_z_score_uses_the_training_split_not_the_batch(encode):
    batch = np.array([20.0, 0.0], np.float32)
    encoded = encode([features.Numeric(names=["age"])], {"age": _AGES}, {"age": batch})
    expected = (batch - _AGES.mean()) / _AGES.std()
    np.testing.assert_allclose(encoded["numeric_age"], expected[:, None], rtol=1e-5)


def test_min_max_of_vectors_is_per_element(encode):
    values = np.array([[1, 10], [3, 20], [2, 40]], np.int64)
    column = features.Numeric(names=["v"], normalization="min_max")
    expected = (values - [1, 10]) / [2, 30]
    np.testing.assert_allclose(encode([column], {"v": values})["numeric_v"], expected, rtol=1e-6)


def test_log_keeps_the_sign_and_is_taken_before_the_fit(encode):
    values = np.array([-99.0, 0.0, 0.0, 9999.0], np.float32)
    logs = np.sign(values) * np.log1p(np.abs(values))
    column = features.Numeric(names=["gain"], log=True)
    expected = (logs - logs.mean()) / logs.std()
    encoded = encode([column], {"gain": values})["numeric_gain"]
    np.testing.assert_allclose(encoded[:, 0], expected, rtol=1e-5)


def test_a_missing_value_becomes_the_mean_and_raises_its_flag(encode):
    values = np.array([1.0, np.nan, 3.0, np.inf], np.float32)
    column = features.Numeric(names=["x"], missing_flags=True)
    np.testing.assert_allclose(
        encode([column], {"x": values})["numeric_x"], [[-1, 0], [0, 1], [1, 0], [0, 1]], atol=1e-6
    )


def test_a_value_that_never_varies_becomes_zero(encode):
    columns = [
        features.Numeric(names=["x"]),
        features.Numeric(names=["x"], normalization="min_max", prefix="other"),
    ]
    encoded = encode(columns, {"x": np.full(3, 7.0, np.float32)}, {"x": np.array([7.0, 9.0])})
    assert encoded["numeric_x"].tolist() == encoded["other_x"].tolist() == [[0], [0]]


@pytest.mark.parametrize("normalization", ["z_score", "min_max"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_the_logarithm_of_a_value_that_never_varies_becomes_zero(encode, dtype, normalization):
    """Rounding makes logarithms of equal numbers differ, by their places in a batch."""
    values = {
        f"x{n}": np.full(1003, 0.37 * n if dtype == np.float32 else n, dtype) for n in range(40)
    }
    column = features.Numeric(names=list(values), log=True, normalization=normalization)
    assert not any(encoded.any() for encoded in encode([column], values).values())


def test_without_normalization_nothing_is_fitted(encode):
    column = features.Numeric(names=["flag"], normalization="none")
    assert column.accumulators() == {}
    encoded = encode([column], {"flag": np.array([True, False])})
    assert encoded["numeric_flag"].tolist() == [[1], [0]]


@pytest.mark.parametrize(
    "values, message",
    [
        (np.array(["a", "b"]), "Numeric.names must name fields of numbers, got 'x'"),
        ([[1, 2], [3]], "a Bucketized column takes lists"),
        (np.zeros([2, 3, 4]), r"must name fields of shape \(\) or \(n,\), got 'x'"),
    ],
)
def test_what_is_no_number_is_refused(encode, values, message):
    with pytest.raises(checks.UserError, match=message):
        encode([features.Numeric(names=["x"])], {"x": values})


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"normalization": "zscore"}, "Did you mean 'z_score'?"),
        ({"names": "age"}, "Numeric.names must be a list of fields, got 'age'"),
        ({"names": []}, "Numeric.names must name a field"),
        ({"names": ["a", "a"]}, "Numeric.names must hold each name once"),
        ({"log": 1}, "Numeric.log must be True or False"),
        ({"prefix": "a/b"}, "Numeric.prefix must consist of letters"),
    ],
)
def test_settings_are_checked_at_construction(settings, message):
    with pytest.raises(checks.UserError) as error:
        features.Numeric(**{"names": ["age"], **settings})
    assert message in str(error.value)


SECONDS = 1_700_000_000 + np.random.default_rng(0).permutation(1000).astype(np.int64)


@pytest.mark.parametrize("normalization", ["z_score", "min_max"])
@pytest.mark.parametrize("start", [0, -2 * 1_700_000_000, 2**40])
def test_large_integers_that_lie_close_stay_apart(encode, normalization, start):
    """A thousand seconds within 17 minutes: float32 knows nine of them."""
    column = features.Numeric(names=["at"], normalization=normalization)
    values = SECONDS + start
    encoded = encode([column], {"at": values})["numeric_at"][:, 0]
    own = (values - values.min()).astype(np.float64)
    expected = own / own.max() if normalization == "min_max" else (own - own.mean()) / own.std()
    assert encoded.dtype == np.float32
    assert len(set(encoded.tolist())) == 1000
    np.testing.assert_allclose(encoded, expected, rtol=2e-7, atol=2e-6)


def test_logs_of_large_integers_stay_apart(encode):
    column = features.Numeric(names=["at"], log=True, missing_flags=True)
    encoded = encode([column], {"at": SECONDS})["numeric_at"]
    logs = np.log1p(SECONDS.astype(np.float64))
    expected = (logs - logs.mean()) / logs.std()
    np.testing.assert_allclose(encoded[:, 0], expected, atol=1e-6)
    assert len(set(encoded[:, 0].tolist())) == 1000
    assert not encoded[:, 1].any()


def test_elements_of_a_vector_keep_their_own_precision(encode):
    values = np.stack([SECONDS, SECONDS % 7], axis=1)
    encoded = encode([features.Numeric(names=["v"])], {"v": values})["numeric_v"]
    expected = (values - values.mean(0)) / values.std(0)
    np.testing.assert_allclose(encoded, expected, atol=1e-6)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_what_float32_holds_is_computed_in_float32_as_ever(encode, dtype, log):
    """To the bit, so that runs of earlier versions go on as they were."""
    values = np.random.default_rng(1).integers(0, 250, 500).astype(dtype)
    if dtype == np.int64:
        values[:2] = 2**24, -(2**24)
    encoded = encode([features.Numeric(names=["x"], log=log)], {"x": values})["numeric_x"][:, 0]
    floats = tf.constant(values.astype(np.float32))
    plain = tf.sign(floats) * tf.math.log1p(tf.abs(floats)) if log else floats
    exact = values.astype(np.float64)
    measured = np.sign(exact) * np.log1p(np.abs(exact)) if log else exact
    if log and dtype == np.float32:
        measured = plain.numpy().astype(np.float64)
    mean, stddev = measured.mean(), measured.std()
    old = (plain - np.float32(mean)) * np.float32(1 / stddev)
    np.testing.assert_allclose(encoded, old, rtol=0, atol=1e-6 if log else 0)


@pytest.mark.parametrize("settings", [{}, {"log": True}, {"missing_flags": True}])
def test_fields_of_one_number_are_encoded_together_as_alone(encode, settings):
    random = np.random.default_rng(0)
    split = {name: random.normal(i, 1 + i, 20).astype(np.float32) for i, name in enumerate("abc")}
    split |= {"n": np.arange(20), "since": 2**31 + np.arange(20), "v": random.normal(size=(20, 2))}
    split["b"][4] = np.nan
    split["v"] = split["v"].astype(np.float32)
    one = encode([features.Numeric(names=list(split), **settings)], split)
    alone = [features.Numeric(names=[name], **settings) for name in split]
    other = encode(alone, split)
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
