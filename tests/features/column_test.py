"""Names of columns, which scopes of variables and files allow."""

import numpy as np
import pytest

from mtl import features
from mtl.features import column


def test_a_name_holds_only_characters_that_scopes_allow():
    assert column.name_columns("hashed", ["capital gain", "a.b-c"]) == {
        "capital gain": "hashed_capital_gain",
        "a.b-c": "hashed_a.b-c",
    }


def test_fields_that_differ_only_in_other_characters_keep_separate_columns(encode):
    batch = {"年龄": np.array([1.0, 2.0]), "性别": np.array([3.0, 4.0]), "age": np.array([5.0, 6])}
    part = features.Numeric(names=list(batch), normalization="none")
    names = {field: name for name, (field,) in part.columns.items()}
    assert names["age"] == "numeric_age" and len(part.columns) == 3
    encoded = encode([part], batch)
    for field, values in batch.items():
        np.testing.assert_array_equal(encoded[names[field]][:, 0], values)


@pytest.mark.parametrize(
    "part",
    [
        features.TimeParts(names=["日期", "时间"], units=["hour", "day"]),
        features.Crossed(crosses=[["年龄", "a"], ["性别", "a"]]),
        features.DaysSince(names=["日期", "时间"], since="now"),
        features.PiecewiseLinear(names=["(a)", "[a]"]),
    ],
)
def test_all_parts_keep_such_fields(part):
    assert len(set(part.columns.values())) == 2
    assert all(name.isascii() for name in part.columns)


def test_numbers_of_several_shapes_keep_such_fields(encode):
    """Fields with several numbers are encoded one by one, and others together."""
    random = np.random.default_rng(0)
    batch = {field: random.normal(size=[8, 2]) for field in ("(a)", "[a]")}
    batch |= {field: random.normal(size=8) for field in ("(b)", "[b]")}
    part = features.Numeric(names=list(batch))
    encoded = encode([part], batch)
    for name, (field,) in part.columns.items():
        values = batch[field].reshape(8, -1)
        expected = (values - values.mean(0)) / values.std(0)
        np.testing.assert_allclose(encoded[name], expected, rtol=1e-4, atol=1e-5)


def test_crosses_keep_the_boundaries_of_such_fields(encode):
    fields = {"(a)": np.arange(8.0), "[a]": 10 * np.arange(8.0)}
    part = features.Crossed(crosses=[["(a)", "[a]"]], boundaries=dict.fromkeys(fields, 2))
    assert len(part.accumulators()) == 2
    assert list(encode([part], fields)) == ["crossed__a__x__a_"]
