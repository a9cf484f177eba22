"""Confusion, reliability, ROC and slices against what is counted row by row."""

import numpy as np
import pytest

from mtl import heads
from mtl.tools.reports import assess, held_out, row_sections


def _binary(count=400, seed=0, ties=True):
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 2, count)
    score = np.clip(rng.normal(0.4 + 0.2 * target, 0.2), 0, 1)
    score = np.round(score, 2) if ties else score
    weight = rng.choice([0.0, 1.0, 2.5], count)
    error = -np.log(np.maximum(np.where(target, score, 1 - score), 1e-7))
    return held_out.Rows("binary", target, (score >= 0.5).astype(int), score, error, weight)


def test_confusion_counts_weights_of_labelled_rows():
    rows = _binary()
    counts = assess.count_confusion(rows, 2)
    for true in (0, 1):
        for predicted in (0, 1):
            chosen = (rows.target == true) & (rows.predicted == predicted)
            assert counts[true, predicted] == pytest.approx(rows.weight[chosen].sum())


def test_confusions_are_the_wrong_cells_of_the_matrix():
    rng = np.random.default_rng(3)
    target, predicted = rng.integers(0, 20, 300), rng.integers(0, 20, 300)
    ones, weight = np.ones(300), rng.choice([0.0, 1.0, 2.5], 300)
    rows = held_out.Rows("classes", target, predicted, ones, ones, weight)
    matrix = assess.count_confusion(rows, 20)
    np.fill_diagonal(matrix, 0)
    found = assess.count_confusions(rows)
    assert found == {(a, b): matrix[a, b] for a, b in zip(*matrix.nonzero(), strict=True)}
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_confusions_of_very_many_classes_need_little_memory():
    classes = 1_000_000
    target, predicted = np.array([0, 5, 999_999, 5]), np.array([0, 6, 3, 6])
    ones = np.ones(4)
    rows = held_out.Rows("classes", target, predicted, ones, ones, ones)
    head = heads.MultiClass(name="word", classes=classes)
    (table,) = row_sections._tell_confusion(head, rows)
    assert table.rows == [["5", "6", 2.0], ["999999", "3", 1.0]]


def test_the_area_below_the_roc_is_the_share_of_pairs_in_order():
    rows = _binary()
    points = np.array(assess.trace_roc(rows))
    steps = np.diff(points[:, 0])
    area = float(np.sum(steps * (points[1:, 1] + points[:-1, 1]) / 2))
    total = right = 0.0
    for i in np.flatnonzero(rows.target == 1):
        for j in np.flatnonzero(rows.target == 0):
            weight = rows.weight[i] * rows.weight[j]
            total += weight
            right += weight * (1.0 if rows.score[i] > rows.score[j] else 0.0)
            right += weight * (0.5 if rows.score[i] == rows.score[j] else 0.0)
    assert area == pytest.approx(right / total, abs=1e-12)
    assert tuple(points[0]) == (0, 0) and tuple(points[-1]) == (1, 1)


def test_rows_of_one_class_have_no_roc():
    rows = _binary()
    assert assess.trace_roc(rows._replace(target=np.zeros_like(rows.target))) == []


def test_bins_hold_every_labelled_row_once():
    rows = _binary()
    bins = assess.bin_scores(rows)
    assert sum(one.weight for one in bins) == pytest.approx(rows.weight.sum())
    inside = (rows.score >= 0.4) & (rows.score < 0.5)
    (found,) = [one for one in bins if 0.4 <= one.score < 0.5]
    weight = rows.weight[inside]
    assert found.true == pytest.approx(np.average(rows.target[inside], weights=weight))
    assert found.score == pytest.approx(np.average(rows.score[inside], weights=weight))


def test_tenths_of_numbers_are_of_equal_size():
    value = np.random.default_rng(1).normal(size=1000)
    rows = held_out.Rows("number", value + 1, value, value, np.ones(1000), np.ones(1000))
    bins = assess.bin_scores(rows)
    assert [one.weight for one in bins] == [100.0] * 10
    assert all(one.true == pytest.approx(one.score + 1) for one in bins)


def test_what_predicts_nan_is_left_out():
    rows = _binary()
    broken = rows._replace(score=np.where(np.arange(400) < 50, np.nan, rows.score))
    assert sum(one.weight for one in assess.bin_scores(broken)) == rows.weight[50:].sum()
    held = [one for one in assess.bin_scores(broken) if np.isnan(one.score)]
    assert not held


def test_a_slice_with_large_errors_comes_first():
    rng = np.random.default_rng(2)
    job = rng.choice(np.array([b"cook", b"smith", b"<b>"], object), 900)
    error = rng.exponential(size=900) + 2.0 * (job == b"smith")
    ones = np.ones(900)
    rows = held_out.Rows("binary", ones, ones, ones / 2, error, ones)
    ages = rng.normal(size=900)
    slices, number = assess.compare_slices(
        rows.error, rows.weight, {"job": job, "age": ages, "one": ones}
    )
    assert number == 3 + 4 and slices[0].field == "job" and slices[0].value == "smith"
    members = job == b"smith"
    one, other = error[members], error[~members]
    # Standard errors of means, with weights of 1: the biased variances.
    spread = np.sqrt(one.var() / len(one) + other.var() / len(other))
    assert slices[0].deviations == pytest.approx((one.mean() - other.mean()) / spread)
    assert slices[0].rows == members.sum()


def test_of_two_slices_only_the_worse_one_is_told():
    error = np.r_[np.random.default_rng(0).normal(size=100), np.full(100, 9.0)]
    sex = np.repeat(np.array([b"f", b"m"], object), 100)
    rows = held_out.Rows("binary", error, error, error, error, np.ones(200))
    slices, _ = assess.compare_slices(rows.error, rows.weight, {"sex": sex})
    assert [one.value for one in slices] == ["m"]


@pytest.mark.parametrize("values", [3, 1000])
def test_missing_numbers_are_a_slice(values):
    rng = np.random.default_rng(4)
    age = rng.integers(0, values, 600).astype(np.float32)
    age[:100] = np.nan
    error = rng.random(600) + 5.0 * np.isnan(age)
    ones = np.ones(600)
    rows = held_out.Rows("binary", ones, ones, ones, error, ones)
    slices, number = assess.compare_slices(rows.error, rows.weight, {"age": age})
    assert (slices[0].value, slices[0].rows) == ("missing", 100)
    assert number == 1 + min(values, 4)
