"""A draft reports repeated rows, small splits, and copies of labels."""

import bisect
import math
import random
import sys

import numpy as np
import pytest
import scipy.stats

from launch import new
from mtl import checks
from mtl.tools.drafting import telling

ROWS = 1200


@pytest.fixture
def draft(tmp_path, monkeypatch):
    """draft({column: values}, *flags): the text that is printed."""
    monkeypatch.chdir(tmp_path)

    def call(columns, *args, task="y"):
        _write("t.csv", columns)
        argv = ["--data", "t.csv", "--task", task, "--force", *args]
        monkeypatch.setattr(sys, "argv", ["launch.new", *argv])
        return new.draft(new._parse(argv))

    return call


def _write(path, columns):
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _read_use(told, name):
    (line,) = (line for line in told.splitlines() if line.split()[:1] == [name])
    return line


def test_copies_of_a_number_are_left_out_and_predictors_are_not(draft):
    draw = random.Random(5)
    price = [draw.lognormvariate(3, 0.5) for _ in range(ROWS)]
    ordered = sorted(price)
    copies = {
        "euros": [0.92 * p for p in price],
        "noisy": [p + draw.gauss(0, 0.02) for p in price],
        "rank": [bisect.bisect(ordered, p) for p in price],
        "log": [math.log(p) for p in price],
        "less": [1000 - p for p in price],
        "cube": [p**3 for p in price],
        "text": [f"${p:.2f}" for p in price],
        "bin": [min(int(p // 5), 8) for p in price],
        "band": ["low" if p < 15 else "mid" if p < 30 else "high" for p in price],
        "dear": [int(p > 40) for p in price],
        "refund": [round(draw.random(), 3) if p > 30 else "" for p in price],
    }
    good = {
        "size": [p * draw.lognormvariate(0, 0.3) for p in price],
        "large": [int(p * draw.lognormvariate(0, 0.3) > 20) for p in price],
        "noise": [draw.random() for _ in price],
        "coin": [draw.choice("ab") for _ in price],
        "gaps": [draw.random() if draw.random() < 0.7 else "" for _ in price],
    }
    told = draft({"price": price, **copies, **good}, task="price")
    for name in copies:
        reasons = ("an id",) if name == "rank" else ("has ", "sorts rows like")
        use = _read_use(told, name)
        assert any(f"left out: {reason}" in use for reason in reasons), (name, use)
        assert name == "rank" or f"--keep {name!r}" in told
    for name in good:
        assert "left out" not in _read_use(told, name), name
    told = draft({"price": price, **copies, **good}, "--keep", "dear", task="price")
    assert "left out" not in _read_use(told, "dear")


def test_copies_of_classes_are_left_out_or_told(draft):
    draw = random.Random(6)
    grade = [draw.choice("abcde") for _ in range(ROWS)]
    flag = [draw.random() < 0.3 for _ in range(ROWS)]
    columns = {
        "grade": grade,
        "passed": ["yes" if g < "d" else "no" for g in grade],
        "resit": [round(draw.random(), 2) if g == "e" else "" for g in grade],
        "x": [draw.random() for _ in grade],
    }
    told = draft(columns, task="grade")
    assert "left out: follows from 'grade'" in _read_use(told, "passed")
    assert "left out: follows from 'grade'" in _read_use(told, "resit")
    assert "left out" not in _read_use(told, "x")
    noisy = [int(f if draw.random() < 0.98 else not f) for f in flag]
    told = draft({"y": list(map(int, flag)), "noisy": noisy, "x": columns["x"]})
    assert "left out" not in _read_use(told, "noisy") and "--leave_out 'noisy'" in told


def test_ranks_correlate_as_scipy_says():
    draw = np.random.default_rng(1)
    x = np.round(draw.normal(size=500), 1)
    y = x + draw.normal(size=500)
    y[::7] = np.nan
    known = np.isfinite(y)
    expected = scipy.stats.spearmanr(x[known], y[known]).statistic ** 2
    assert telling.measure_rank(x, y) == pytest.approx(expected)
    assert math.isnan(telling.measure_rank(np.ones(500), y))


def test_values_that_are_no_ranges_have_no_order():
    draw = np.random.default_rng(2)
    label = draw.integers(0, 5, 3000).astype(float) * (draw.random(3000) < 0.3)
    for values in (label, label * (draw.random(3000) < 0.1)):
        assert abs(telling.measure_order(draw.integers(0, 3, 3000), values)) < 0.1
    assert telling.measure_order((label > 1).astype(int), label) == 1
    assert math.isnan(telling.measure_order((label > 9).astype(int), label))


def test_rows_that_repeat_are_told(draft, tmp_path):
    draw = random.Random(7)
    half = {name: [draw.random() for _ in range(ROWS // 2)] for name in "ab"}
    half["y"] = [int(draw.random() < 0.4) for _ in range(ROWS // 2)]
    once = draft(half)
    assert "repeat another row" not in once
    twice = {"row_id": range(ROWS), **{name: own * 2 for name, own in half.items()}}
    assert f"{ROWS // 2:,} of {ROWS:,} rows repeat another row" in draft(twice)
    # Rows of a few categories repeat by chance.
    few = {"a": [draw.choice("xy") for _ in range(ROWS)], "y": half["y"] * 2}
    assert "repeat another row" not in draft(few)
    _write("test.csv", {name: own[:100] for name, own in half.items()})
    assert "100 of 100 test rows repeat a training row" in draft(half, "--test", "test.csv")
    with pytest.raises(checks.UserError, match="--test must name other files"):
        draft(half, "--test", "t.csv")
    _write("test.csv", {**half, "a": [draw.random() for _ in half["a"]]})
    assert "test rows repeat a training row" not in draft(half, "--test", "test.csv")


def test_splits_of_few_rows_or_positives_are_told(draft):
    draw = random.Random(8)
    columns = {"a": [draw.random() for _ in range(ROWS)]}
    columns["y"] = [int(i % 300 == 7) for i in range(ROWS)]
    assert "The test split has about 0.4 rows of a class of 'y'" in draft(columns)
    columns["y"] = [i % 2 for i in range(ROWS)]
    assert "split has about" not in draft(columns)
    assert "The train split has about 1 rows of 1,200" in draft(columns, "--holdout", "0.999")
    with pytest.raises(checks.UserError, match="--holdout must leave a row for the test split"):
        draft(columns, "--holdout", "0.0001")
    with pytest.raises(checks.UserError, match="--validation must leave a row for the validation"):
        draft(columns, "--validation", "0.0001")
