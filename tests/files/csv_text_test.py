"""A spreadsheet that opens a table does not take untrusted text for a formula."""

import csv
import io
import pathlib
import re

import numpy as np
import pytest

from mtl.files import csv_text
from mtl.tools.clip_audit import tables
from mtl.tools.explaining import tables as explained
from mtl.tools.reports import comparison, comparison_text
from tests import tiny
from tests.tools.reports import runs

ROOT = pathlib.Path(__file__).resolve().parents[2]
FORMULAS = [
    '=HYPERLINK("x","y")',
    "+1+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "＝1",
    "-",
    "+x",
]
NUMBERS = ["-1", "+0.5", "-1e-05", "-.5", "-inf", "nan", "3", -1, -0.5, None, ""]


def _read(text):
    return list(csv.reader(io.StringIO(text, newline="")))


def test_formulas_become_text_and_nothing_else_changes():
    rows = [["=x", "y"], *([text, "a=1"] for text in FORMULAS), *([one, "=b"] for one in NUMBERS)]
    found = _read(csv_text.write(rows))
    assert found[0] == ["'=x", "y"]
    assert [row[0] for row in found[1 : 1 + len(FORMULAS)]] == [f"'{text}" for text in FORMULAS]
    told = ["" if one is None else str(one) for one in NUMBERS]
    assert [row[0] for row in found[1 + len(FORMULAS) :]] == told
    assert found[1][1] == "a=1" and found[-1][1] == "'=b"


@pytest.mark.medium
def test_comparisons_hold_no_formula(tmp_path):
    made = {"=1+1": tiny.make(), "b": tiny.make(summary_steps=5)}
    found = comparison.compare(
        {n: runs.make("@x", {"sign/auc": -0.5}, one) for n, one in made.items()}
    )
    comparison_text.write_csv(str(tmp_path / "x.csv"), found)
    header, first, second = _read((tmp_path / "x.csv").read_text())
    assert first[:2] == ["'=1+1", "'@x"] and second[0] == "b"
    assert first[header.index("sign/auc")] == "-0.5"


def test_audits_hold_no_formula(tmp_path):
    tables.write_csv(
        str(tmp_path / "x.csv"), {"key": np.array(["=1", "a"], object), "n": np.array([-1.5, 2])}
    )
    assert (tmp_path / "x.csv").read_text() == "key,n\n'=1,-1.5\na,2\n"


def test_explanations_hold_no_formula(tmp_path, monkeypatch):
    lines = [("field", "value"), ("=cmd", -0.25), ("a", "@x")]
    monkeypatch.setattr(explained, "list_dependence", lambda found: iter(lines))
    for name in ("list_importance", "list_attributions", "list_gradients"):
        monkeypatch.setattr(explained, name, lambda found: iter(lines[:1]))
    (path,) = explained.write_tables(str(tmp_path), None)
    assert pathlib.Path(path).read_text() == "field,value\n'=cmd,-0.25\na,'@x\n"


def test_there_is_no_other_writer():
    sources = [path for top in ("mtl", "launch") for path in (ROOT / top).rglob("*.py")]
    found = {
        p.name for p in sources if re.search(r"csv\.(writer|DictWriter)|to_csv", p.read_text())
    }
    assert not found
