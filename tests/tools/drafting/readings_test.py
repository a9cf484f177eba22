"""Columns of numbers as people write them, and words that mean a missing value in one column."""

import csv as csv_lib
import sys

import pytest

from launch import new
from mtl import checks, verbs
from mtl.configs import config
from mtl.data import arrow

ROWS = 120


@pytest.fixture
def draft(tmp_path, monkeypatch):
    """draft({column: texts}, *flags): the text that is printed; y and x are added."""
    monkeypatch.chdir(tmp_path)

    def call(columns, *args, delimiter=",", task="y"):
        rows = range(ROWS)
        columns = {**columns, "x": [i * i % 7 + 0.5 for i in rows]}
        columns |= {} if "y" in columns else {"y": [i * 7 % 5 % 2 for i in rows]}
        with open("t.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv_lib.writer(file, delimiter=delimiter, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        argv = ["--data", "t.csv", "--task", task, "--force", *args]
        monkeypatch.setattr(sys, "argv", ["launch.new", *argv])
        return new.draft(new._parse(argv))

    return call


def _scan(split="train"):
    """The values of all rows, as the drafted source reads them."""
    with config.isolated():
        data = config.load(["t.gin"]).data
    source = data.source.source
    return [row for _, row in source.scan(split, data.spec)]


@pytest.mark.slow
def test_a_spreadsheet_trains_with_the_numbers_that_people_wrote(draft):
    numbers = [round((i * 37 % 101) * 23.1 - 300, 1) for i in range(ROWS)]
    odd = ["TBD" if i == 7 else f"${x:,.2f}" for i, x in enumerate(numbers)]
    told = draft(
        {
            "wage": [f"{x:.1f}".replace(".", ",") for x in numbers],
            "price": [f"${x:,.2f}" for x in numbers],
            "share": [f"{x:.1f}%" for x in numbers],
            "loss": [f"({-x:.2f})" if x < 0 else f"{x:.2f}" for x in numbers],
            "late": ["<0.5" if x < 0 else x for x in numbers],
            "paid": odd,
        },
        delimiter=";",
        task="paid",
    )
    assert "paid" in told and "heads.Regression: a number" in told
    assert "'TBD' of 'paid', in 1 rows, counts as a missing value." in told
    assert "Limits such as <0.5 or 10+ of 'late'" in told
    rows = _scan()
    for name in ("wage", "price", "share", "loss"):
        assert [row[name] for row in rows] == pytest.approx(numbers, rel=1e-6), name
    assert [row["late"] for row in rows] == pytest.approx([x if x >= 0 else 0.5 for x in numbers])
    paid = [row["paid"] for row in rows]
    assert paid[7] != paid[7] and paid[8:] == pytest.approx(numbers[8:], rel=1e-6)
    settings = ["Run.train_steps = 4", "Run.checkpoint_steps = 4"]
    metrics, steps = verbs.train(config.load(["t.gin"], settings), "run")
    assert steps == 4 and metrics["paid/rmse"] > 0


def test_a_form_is_asked_for_where_a_text_has_two(draft):
    texts = ["1,234" if i % 3 else f"{i % 9 + 1},{i % 7}11" for i in range(ROWS)]
    told = draft({"c": texts})
    assert "If '1,5' is right: --number_form 'c=1,5'" in told
    assert _scan()[1]["c"] == 1234
    told = draft({"c": texts}, "--number_form", "c=1,5")
    assert "--number_form" not in told.split("Look at")[-1].split("Next")[0]
    assert _scan()[1]["c"] == pytest.approx(1.234)
    with pytest.raises(checks.UserError, match="--number_form 'c' must hold numbers such as"):
        draft({"c": texts}, "--number_form", "c=$1.5")
    with pytest.raises(checks.UserError, match="--number_form must be one of"):
        draft({"c": texts}, "--number_form", "d=1,5")
    with pytest.raises(checks.UserError, match="must write the number 1.5"):
        draft({"c": texts}, "--number_form", "c=1,50")


def test_a_word_is_missing_in_its_column_and_a_class_in_another(draft):
    kinds = [["none", "low", "high"][i % 3] for i in range(ROWS)]
    numbers = ["none" if i % 20 == 0 else i / 7 for i in range(ROWS)]
    told = draft({"kind": kinds, "n": numbers}, task="kind")
    assert "heads.MultiClass: 3 classes" in told
    rows = _scan()
    assert [row["kind"] for row in rows] == kinds
    assert [row["n"] != row["n"] for row in rows] == [text == "none" for text in numbers]
    # As an input, too, the word is a category.
    draft({"kind": kinds, "n": numbers})
    assert [row["kind"] for row in _scan()] == kinds
    # No other column holds the mark, so that it may hold for all of them.
    draft({"n": numbers})
    with config.isolated():
        assert config.load(["t.gin"]).data.source.source.missing == ["", "none"]


def test_a_class_is_named_like_a_mark(draft):
    kinds = [["NA", "EU"][i % 2] for i in range(ROWS)]
    with pytest.raises(checks.UserError, match="--value 'NA'"):
        draft({"kind": kinds}, task="kind")
    told = draft({"kind": kinds}, "--value", "NA", task="kind")
    assert "two classes, 'EU' in 50.0%" in told or "two classes, 'NA' in 50.0%" in told
    assert [row["kind"] for row in _scan()] == kinds
    three = [["NA", "EU", "AS"][i % 3] for i in range(ROWS)]
    assert "missing in 33.3% ('NA'), which weighs nothing" in draft({"kind": three}, task="kind")


def test_words_among_many_numbers_of_a_label_are_missing_and_told(draft):
    texts = ["TBD" if i == 3 else f"{i / 7:.2f}" for i in range(ROWS)]
    told = draft({"c": texts}, task="c")
    assert "heads.Regression" in told
    assert "'TBD' of 'c', in 1 rows, counts as a missing value." in told


def test_texts_of_a_columnar_file_have_forms_and_marks(draft, monkeypatch):
    import pyarrow as pa
    from pyarrow import parquet

    numbers = [i * 12.5 for i in range(ROWS)]
    table = {
        "price": [f"${x:,.2f}" for x in numbers],
        "kind": [["none", "a"][i % 2] for i in range(ROWS)],
        "n": ["none" if i % 20 == 0 else str(i / 7) for i in range(ROWS)],
        "y": [i % 2 for i in range(ROWS)],
    }
    parquet.write_table(pa.table(table), "t.parquet")
    argv = ["--data", "t.parquet", "--task", "y", "--keep", "kind", "--force"]
    monkeypatch.setattr(sys, "argv", ["launch.new", *argv])
    new.draft(new._parse(argv))
    rows = _scan()
    assert [row["price"] for row in rows] == pytest.approx(numbers)
    assert [row["kind"] for row in rows] == table["kind"] and rows[0]["n"] != rows[0]["n"]
    with config.isolated():
        assert isinstance(config.load(["t.gin"]).data.source.source, arrow.Arrow)
