"""Lines for a terminal fit its width, are escaped, and count the parts that were cut."""

import re

import numpy as np
import pyarrow as pa
import pytest

from mtl.tools.statistics import columns, drift, facts, gathering, tell


def _describe(table, limits=None):
    made = {}
    for column in table.column_names:
        collected = gathering.start_typed(table[column].type, limits or columns.Limits())
        for chunk in table[column].chunks:
            collected.add(chunk)
        made[column] = collected.finish(column)
    return facts.Dataset(name="data.csv", rows=len(table), columns=made)


def _make(rows=100, width=5):
    draw = np.random.default_rng(0)
    values = {f"n{i}": draw.normal(size=rows) for i in range(width)}
    return pa.table({**values, "text": draw.choice(["a", "b\n\x1b[31m", "c" * 900], rows)})


def test_a_table_of_few_columns_is_whole():
    text = tell.describe(_describe(_make()), most=50, width=100)
    lines = text.splitlines()
    assert lines[0] == "data.csv: 100 rows, 6 columns"
    assert sum(line.startswith("  n") for line in lines) == 5
    assert "\x1b" not in text and r"'b\n\x1b[31m'" in text and "more" not in text
    header = next(line for line in lines if "median" in line)
    assert "gaps" not in header and "zeros" not in header  # Columns of nothing are left out.


def test_labels_of_two_splits_stand_side_by_side():
    before, after = (
        facts.Dataset(name=name, rows=10, columns={}, tasks={"kind": task})
        for name, task in (
            ("a.csv", facts.Task(rows=10, labelled=8, counts={"cat": 6, "dog": 2})),
            ("b.csv", facts.Task(rows=10, labelled=10, counts={"cat": 5, "dog": 5})),
        )
    )
    (line,) = (line for line in tell._compare_tasks(before, after) if "kind" in line)
    shown = ["kind", "20.0%", "0.0%", "cat 75.00%, dog 25.00%", "cat 50.00%, dog 50.00%"]
    assert re.split("  +", line.strip()) == shown


def test_many_columns_are_cut_and_counted():
    dataset = _describe(_make(width=500))
    text = tell.describe(dataset, most=50, width=100)
    assert "451 more: --most 0 lists all" in text and len(text.splitlines()) < 60
    whole = tell.describe(dataset, most=0, width=100)
    assert "more:" not in whole and len(whole.splitlines()) > 500


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_of_texts_fit(width):
    table = pa.table({"x" * 200: [f"value {n}" for n in range(100)]})
    text = tell.describe(_describe(table), most=50, width=width)
    assert max(map(len, text.splitlines())) <= max(width, 100)
    assert "x…x" in text


def test_notes_tell_bounds():
    limits = columns.Limits(numbers=1000, texts=1000)
    table = pa.table({"x": np.arange(40_000.0), "t": [f"w{n}" for n in range(40_000)]})
    text = tell.describe(_describe(table, limits), most=50, width=100)
    assert "2 columns have more distinct values than fit into memory" in text and "~" in text
    empty = _describe(pa.table({"none": pa.array([None], pa.string()), "s": [{"a": 1}]}))
    text = tell.describe(empty, most=50, width=100)
    assert "Without any value: none." in text and "'s' has a type whose values are not read" in text


def test_a_comparison_names_drift_lost_and_new():
    before, after = _make(2000), _make(2000)
    after = after.set_column(0, "n0", pa.array(np.ones(2000))).append_column("late", after["n1"])
    compared = drift.compare(_describe(before), _describe(after.drop_columns(["n2"])))
    text = tell.compare(compared, most=2, width=120, threshold=0.1)
    assert "Lost: n2.\nNew: late." in text and "1 of 5 fields drift" in text
    row = next(line for line in text.splitlines() if line.startswith("  n0"))
    assert row.split()[:4] == ["n0", "drift", "float", "KS"]
    assert "3 more: --most 0 lists all" in text


@pytest.mark.parametrize(
    "value, text",
    [(0.5, "50.0%"), (0.0001, "<0.1%"), (0.0, ""), (float("nan"), ""), (1, "100.0%")],
)
def test_shares_are_short(value, text):
    assert tell.show_share(value) == text


@pytest.mark.parametrize(
    "value, text",
    [(5, "5"), (1234.0, "1,234"), (0.12345, "0.1235"), (2**62, "4.612e+18"), (float("nan"), "")],
)
def test_numbers_are_short(value, text):
    assert tell.show_number(value) == text


def test_times_are_iso():
    assert facts.show_time(0) == "1970-01-01"
    assert facts.show_time(-1_000_000) == "1969-12-31 23:59:59"
    assert facts.show_time(1_717_149_600_123_000) == "2024-05-31 10:00:00.123000"
    assert "us" in facts.show_time(2**63 - 1)
