"""JSON lines are drafted by the types of their values, and train as they are."""

import json
import sys

import pytest

from launch import new
from mtl import checks, verbs
from mtl.configs import config
from mtl.data import json_lines
from mtl.tools.drafting import objects

ROWS = 200


def _write(path, change=lambda i, row: row):
    with open(path, "w", encoding="utf-8") as file:
        for i in range(ROWS):
            row = {
                "wage": i * 37 % 101 / 7,
                "job": ["cook", "NA", "pilot"][i % 3],
                "tags": [tag for place, tag in enumerate("abc") if i >> place & 1],
                "items": list(range(i % 4)),
                "member": i % 5 < 2,
                "day": f"2024-{i % 12 + 1:02d}-{i % 28 + 1:02d}",
                "quoted": str(i * 7 % 50),
                "price": f"${i * 31 % 97}.50",
                "place": {"x": 1},
                "mixed": [1, "one"][i % 2],
                "clicked": i * i % 11 < 5,
                "level": ["low", "mid", "NA"][i * i % 7 % 3],
            }
            row = {key: value for key, value in row.items() if key != "wage" or i % 10}
            file.write(json.dumps(change(i, row)) + "\n")


@pytest.fixture
def draft(tmp_path, monkeypatch):
    """draft(*flags): the text that is printed, of t.jsonl."""
    monkeypatch.chdir(tmp_path)

    def call(*args):
        argv = ["--data", "t.jsonl", "--force", *args]
        monkeypatch.setattr(sys, "argv", ["launch.new", *argv])
        return new.draft(new._parse(argv))

    return call


@pytest.mark.slow
def test_a_draft_of_json_lines_trains_as_it_is(draft):
    _write("t.jsonl")
    told = draft("--task", "clicked", "--task", "level", "--validation", "0.2")
    assert "'place' is left out: a draft has no input for object." in told
    assert "'mixed' is left out: a draft has no input for int and text." in told
    assert "'price' holds texts of numbers. To use the column, write numbers or null." in told
    assert "means a missing label: write null." in told and "--input NEW.jsonl" in told
    made = config.load(["t.gin"], ["Run.train_steps = 4", "Run.checkpoint_steps = 4"])
    assert isinstance(made.data.source.source, json_lines.JsonLines)
    assert made.data.spec.features == {
        "job": "string",
        "tags": ("string", (None,)),
        "items": ("int64", (None,)),
        "member": "int64",
        "day": "string",
        "quoted": "int64",
        "wage": "float32",
    }
    metrics, steps = verbs.train(made, "run")
    assert steps == 4 and 0 <= metrics["clicked/auc"] <= 1


def test_columns_are_texts_of_all_keys(tmp_path):
    path = str(tmp_path / "t.jsonl")
    _write(path)
    dialect = objects.read_dialect([path])
    ((_, block),) = objects.read_blocks(dialect)
    assert len(block) == ROWS
    row = block.slice(3, 1).to_pylist()[0]
    assert (row["member"], row["items"], row["job"]) == ("0", "0|1|2", "cook")
    assert block["wage"][0].as_py() == "" and block["wage"][1].as_py() == repr(37 / 7)
    assert {*dialect.numbers} == {"wage", "member", "clicked"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n{"a": \n', "t.jsonl line 2 must be JSON"),
        ('{"a": 1}\n[1]\n', "t.jsonl line 2 must be a JSON object"),
        ("\n\n", "t.jsonl must hold a row, got 'blank lines'"),
    ],
)
def test_a_line_that_is_wrong_is_named(draft, tmp_path, text, message):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(checks.UserError, match=message):
        draft("--task", "a")


@pytest.mark.parametrize("flag", ["--missing", "--delimiter", "--list_delimiter", "--value"])
def test_flags_about_texts_are_refused(draft, flag):
    _write("t.jsonl")
    with pytest.raises(checks.UserError, match=f"{flag} must be left out"):
        draft("--task", "clicked", flag, ";")


def test_a_label_of_numbers_in_texts_is_refused(draft):
    _write("t.jsonl", lambda i, row: {**row, "y": f"${i / 7:.2f}"})
    with pytest.raises(checks.UserError, match="--task 'y' must hold numbers in JSON, or null"):
        draft("--task", "y")
