"""Odd but correct lines of tables are read; lines that would fill memory are refused."""

import csv
import gzip
import random

import pytest

from mtl import checks
from mtl.tools.drafting import lines


def read(path, **settings):
    dialect = lines.read_dialect([str(path)], **settings)
    rows = [row for _, table in lines.read_blocks(dialect) for row in table.to_pylist()]
    return dialect, rows


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_cell_of_any_length_in_the_first_lines(quote, tmp_path):
    path, cell = tmp_path / "t.csv", "x" * 200_000
    path.write_text(f"a,b\n{quote}{cell}{quote},1\ny,2\n")
    dialect, rows = read(path)
    assert dialect.columns == ("a", "b") and rows == [{"a": cell, "b": "1"}, {"a": "y", "b": "2"}]


def test_carriage_returns_are_dropped_as_in_training(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\r\nx\ry,1\r\nz,2\r\r\n")
    assert read(path)[1] == [{"a": "xy", "b": "1"}, {"a": "z", "b": "2"}]


def test_blocks_end_at_lines_and_count_them(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{'v' * (i % 7)},{i}\n" for i in range(50)) + "last,50")
    expected = read(path)[1]
    assert [row["b"] for row in expected] == list(map(str, range(51)))
    for size in (1, 4, 5, 64):
        monkeypatch.setattr(lines, "_BLOCK_BYTES", size)
        assert read(path)[1] == expected
    path.write_text(path.read_text().replace("v,43", "v,43,3"))
    with pytest.raises(checks.UserError, match="t.csv line 45 must have 2 columns"):
        read(path)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("at", [1, 2, 300])
def test_a_line_without_an_end_is_refused_before_it_is_read_whole(name, at, tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_MOST_LINE_BYTES", 1000)
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 100)
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "wt") as file:
        file.write("a,b\n" * (at > 1) + "1,2\n" * (at - 2) + "x" * 10**6)
    with pytest.raises(checks.UserError, match=f"line {at} must have at most 1,000 bytes"):
        read(tmp_path / name)


def test_cells_are_those_of_the_csv_module():
    rng = random.Random(0)
    for _ in range(3000):
        text = "".join(rng.choices('a" ,;', k=rng.randint(1, 9)))
        for delimiter in ",;":
            expected = next(csv.reader([text], delimiter=delimiter), [])
            assert lines._cut(text, delimiter) == expected, (text, delimiter)
