"""The page of a draft, and the table of a draft with hundreds of columns."""

import random
import re
import sys
import types
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from launch import new
from mtl import checks
from mtl.tools.drafting import page

ROWS = 300


@pytest.fixture
def draft(tmp_path, monkeypatch):
    """draft({column: values}, *flags): the text that is printed."""
    monkeypatch.chdir(tmp_path)

    def call(columns, *args):
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
        (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
        argv = ["--data", "t.csv", "--task", "y", *args]
        monkeypatch.setattr(sys, "argv", ["launch.new", *argv])
        return new.draft(new._parse(argv))

    return call


def _make_columns(numbers):
    draw = random.Random(0)
    label = [int(draw.random() < 0.4) for _ in range(ROWS)]
    return {
        "id": range(ROWS),
        **{f"x{i:03d}": [round(draw.gauss(0, 1), 3) for _ in range(ROWS)] for i in range(numbers)},
        "best": [round(y + draw.gauss(0, 1), 3) for y in label],
        "day": [f"{1 + i % 28:02d}.{1 + i % 12:02d}.2024" for i in range(ROWS)],
        "job": [draw.choice(["<b>cook</b>", "smith", ""]) for _ in range(ROWS)],
        "tags": ["|".join(draw.sample("abc", draw.randint(0, 2))) for _ in range(ROWS)],
        "scores": [
            "|".join(
                f"{key}:{draw.random():.2f}" for key in draw.sample(["pop", "rock"], 1 + i % 2)
            )
            for i in range(ROWS)
        ],
        "same": ["k"] * ROWS,
        "copy": ["no" if y else "yes" for y in label],
        "y": label,
    }


def _read_page(path):
    text = path.read_text()
    return text, ET.fromstring(text.replace("<!DOCTYPE html>", ""))


def _count_pictures(text):
    return len(re.findall(r'<svg [^>]*viewBox="0 0 360 ', text))


def test_a_draft_tells_the_name_of_a_task_that_differs_from_its_column(draft, tmp_path):
    columns = _make_columns(1)
    columns["y/2"], columns["y_2"] = columns["y"], columns["y"][::-1]
    printed = draft(columns, "--page", "t.html", "--task", "y/2", "--task", "y_2")
    rows = {line.split()[0]: line for line in printed.splitlines() if ", heads." in line}
    assert "task, heads" in rows["y"] and "task, heads" in rows["y_2"]
    assert "task 'y_2_2', heads" in rows["y/2"]
    cells = [cell.text for cell in _read_page(tmp_path / "t.html")[1].iter("td")]
    assert cells[cells.index("y_2_2") + 1] == "y/2"


def test_a_page_draws_each_column_and_tells_doubts_and_decisions(draft, tmp_path):
    columns = _make_columns(3)
    printed = draft(columns, "--page", "t.html")
    assert "\nPage: t.html" in printed
    text, _ = _read_page(tmp_path / "t.html")
    assert _count_pictures(text) == len(columns)
    assert "<b>cook" not in text and "&lt;b&gt;cook&lt;/b&gt;" in text
    assert "left out: an id, 300 values" in text and "left out: always &#39;k&#39;" in text
    assert "alone predicts &#39;y&#39;" in text and "Days since 1970." in text
    assert "python -m launch.train --gin_file t.gin" in text
    # The values of lists are drawn without weights, and lists do not count as values.
    assert text.count(">pop<") == text.count(">rock<") == text.count(">a<") == 1
    assert not re.search(r"pop:0|[a-c]\|[a-c]", text)
    (row,) = re.findall(r"<tr>(?:(?!</tr>).)*>tags<.*?</tr>", text, re.DOTALL)
    assert re.search(r"list, 3 values", row) and len(re.findall(r"\d%", row)) == 1


def test_many_columns_share_lines_by_their_use(draft, tmp_path):
    columns = _make_columns(500)
    printed = draft(columns, "--most", "5", "--page", "t.html")
    table = printed.partition("Look at:")[0].splitlines()
    names = [line.split()[0] for line in table if line.startswith("  ")]
    # The task, the leak, which has a doubt, and the best column; the five best hold both.
    assert names[1] == "y" and names[2] == "copy" and "best" in names[3:6]
    assert re.search(r"\+ 49\d more +<= 0\.\d{3}  number, such as 'x\d{3}'", printed)
    assert re.search(r"^  same .* left out: always 'k'$", printed, re.MULTILINE)
    assert "--most 0 prints them" in printed and len(table) < 25
    text, _ = _read_page(tmp_path / "t.html")
    assert _count_pictures(text) == len(columns) and len(text) < 2_000_000
    every = draft(columns, "--most", "0", "--force")
    assert all(f"  {name} " in every for name in columns) and "more" not in every


def test_doubts_beyond_the_most_are_counted(draft):
    columns = _make_columns(1)
    copies = {f"copy{i}": columns["copy"] for i in range(9)}
    printed = draft({**copies, **columns}, "--most", "4")
    doubts = printed.partition("Look at:\n")[2].partition("\n\n")[0].splitlines()
    assert len(doubts) == 5 and re.search(r"\d more doubts: --most 0 prints them", doubts[-1])


@pytest.mark.parametrize(
    "flags, error",
    [
        (["--page", "t.htm"], r"--page must end in \.html, got 't\.htm'"),
        (["--most", "-1"], "--most must be at least 0, got -1"),
        (["--page", "t.csv/p.html"], "--page"),
    ],
)
def test_a_wrong_page_is_refused_and_nothing_is_written(draft, tmp_path, flags, error):
    with pytest.raises(checks.UserError, match=error):
        draft(_make_columns(1), *flags)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_page_is_overwritten_only_by_force(draft, tmp_path):
    (tmp_path / "t.html").write_text("mine")
    with pytest.raises(checks.UserError, match="--page must be a new file"):
        draft(_make_columns(1), "--page", "t.html")
    assert (tmp_path / "t.html").read_text() == "mine" and not (tmp_path / "t.gin").exists()
    draft(_make_columns(1), "--page", "t.html", "--force")
    assert "Draft of t.gin" in (tmp_path / "t.html").read_text()


def test_a_single_number_is_in_the_middle_of_its_bar(monkeypatch):
    drawn = []
    monkeypatch.setattr(page.shares, "draw_bins", lambda title, sides, note: drawn.append(sides))
    page._draw_numbers("x", np.full(3, 0.25), is_whole=False)
    assert drawn == [{"rows": [(-0.25, 0.75, 1.0)]}]


def test_the_expected_share_of_unknown_values_is_the_share_of_drawn_splits():
    draw = np.random.default_rng(0)
    values = np.concatenate([np.arange(300), draw.integers(300, 500, 700), np.full(500, 999)])
    names, counts = np.unique(values, return_counts=True)
    column = types.SimpleNamespace(
        values=dict(zip(map(str, names), counts.tolist(), strict=True)), present=1, is_counted=True
    )
    plan = types.SimpleNamespace(
        holdout=types.SimpleNamespace(shares={"test": 0.2}, is_drawn=True, key="", folds=0),
        used=[types.SimpleNamespace(name="x", dtype="string", parts=("categories",))],
        table=types.SimpleNamespace(facts={"x": column}),
    )
    shares = []
    for _ in range(200):
        is_held_out = draw.random(len(values)) < 0.2
        kept, rows = np.unique(values[~is_held_out], return_counts=True)
        shares.append(1 - np.isin(values[is_held_out], kept[rows >= 2]).mean())
    expected = page.expect_unknown(plan)["x"]
    assert abs(np.mean(shares) - expected) < 4 * np.std(shares) / 200**0.5
