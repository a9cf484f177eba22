import csv
import math
import pathlib
import re

import pytest

from mtl.tools.drawing import affinity_picture, pictures

CURVES = {
    "affinity/a/a": {10: 0.5, 20: 0.7},
    "affinity/a/b": {10: 0.02, 20: 0.04},
    "affinity/b/a": {10: -0.01},
    "affinity/b/b": {10: 0.3, 20: 0.3},
    "surgery/cosine/a/b": {10: 0.25, 20: 0.75},
    "affinity/c/a": {},
    "loss": {10: 1.0},
}


def test_a_table_and_a_picture_of_the_means(tmp_path):
    path, _ = pictures.write(str(tmp_path), CURVES, [affinity_picture])
    lines = list(csv.DictReader((tmp_path / "affinity.csv").open()))
    assert [(line["from"], line["onto"]) for line in lines] == [
        ("a", "a"),
        ("a", "b"),
        ("b", "a"),
        ("b", "b"),
    ]
    assert float(lines[1]["affinity"]) == pytest.approx(0.03)
    error = math.sqrt(0.0002) / math.sqrt(2)
    assert float(lines[1]["standard_error"]) == pytest.approx(error, rel=1e-5)
    assert (lines[1]["measurements"], lines[1]["cosine"]) == ("2", "0.5")
    assert lines[2]["cosine"] == "0.5" and lines[2]["standard_error"] == ""
    texts = re.findall(r">([^<]+)</text>", pathlib.Path(path).read_text())
    title = " ".join(texts[: texts.index("onto")])
    assert title == "affinity of the row onto the column, in units of 0.1 (alone: 0)"
    # Row a: onto b; row b: onto a. A task's effect on itself is crossed out, as any unknown one.
    assert {"from", "onto", "affinity", "step"} < set(texts)
    at = texts.index("0.30")
    assert texts[at : at + 2] == ["0.30", "-0.10"] and "0.00" not in texts


def test_a_run_without_measurements_has_no_picture(tmp_path):
    assert pictures.write(str(tmp_path), {"loss": {1: 2.0}}) == []
    assert list(tmp_path.iterdir()) == []
