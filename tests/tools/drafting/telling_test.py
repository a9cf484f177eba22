"""The metric of a single column equals scikit-learn on unseen rows."""

import numpy as np
import pytest
import sklearn.metrics

from mtl.tools.drafting import telling


# With a bin for each distinct number, as larger tables have, no number occurs in both halves: a
# copy of the label with noise scored like noise in a table of 300 rows.
@pytest.mark.parametrize("rows", [120, 300, 900, 4000])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_copy_of_the_label_is_seen_in_tables_of_any_size(rows, noise):
    drawn = np.random.default_rng(3)
    value = drawn.normal(size=rows)
    label = (value + noise * drawn.normal(size=rows) > 0).astype(np.float64)
    found = telling.measure_auc(telling.encode_numbers(value), label)
    expected = sklearn.metrics.roc_auc_score(label, value)
    assert expected - 0.1 < found <= expected + 0.02
    explained = telling.measure_r2(telling.encode_numbers(value), 3 * value)
    assert 0.75 < explained <= 1


def test_numbers_that_repeat_keep_a_code_each():
    codes = telling.encode_numbers(np.array([7.0, 3, 3, 7, 7, np.nan, 3, 7, 3, 7, 7]))
    np.testing.assert_array_equal(codes, [2, 1, 1, 2, 2, 0, 1, 2, 1, 2, 2])


def test_numbers_that_do_not_repeat_share_bins_of_ten_rows():
    codes = telling.encode_numbers(np.random.default_rng(0).permutation(300) / 7)
    np.testing.assert_array_equal(np.bincount(codes)[:30], [0] + [10] * 29)


def test_a_column_of_noise_tells_nothing():
    drawn = np.random.default_rng(5)
    codes = telling.encode_numbers(drawn.normal(size=2000))
    assert 0.45 < telling.measure_auc(codes, (drawn.random(2000) < 0.3).astype(float)) < 0.55
