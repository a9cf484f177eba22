"""The curves of an evaluation become a picture and tables, also if a class has no row."""

import re

import numpy as np

from mtl.monitoring import curves
from mtl.tools.drawing import curve_files


def _count(rows):
    counted = curves.Counted(["cat", "dog"], np.zeros([2, 2]))
    scores = np.linspace(0.1, 0.9, rows)
    said = {
        "targets": np.arange(rows) % 2,
        "weights": np.ones(rows),
        "class_id": np.zeros(rows, int),
        "probabilities": np.stack([scores, 1 - scores], axis=1),
    }
    counted.add(said)
    return counted


def test_a_picture_shows_every_curve_with_names_of_its_axes(tmp_path):
    paths = curve_files.write_curves(str(tmp_path), {"kind": _count(40)}, {"kind": ["cat", "dog"]})
    tables = [
        f"kind_{what}.csv" for what in ("confusion", "histogram", "reliability", "thresholds")
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kind.svg", *tables]
    assert len(paths) == 5
    told = set(re.findall(r">([^<>]+)</text>", (tmp_path / "kind.svg").read_text()))
    assert {"kind, ROC", "kind, reliability", "kind, histogram"} < told
    assert {"false positive rate", "recall", "precision", "probability"} < told
    assert {"weight of rows", "true", "predicted", "cat", "dog"} < told


def test_sure_predictions_are_in_the_outer_bins():
    """A probability of 0 or 1 has an infinite logit."""
    counted = curves.Counted(["cat"], None)
    said = {"targets": np.array([1.0, 0.0, 1.0]), "weights": np.array([1.0, 2.0, 4.0])}
    counted.add({**said, "probability": np.array([1.0, 0.0, 0.5], np.float32)})
    bars = counted.count_predictions(0)
    assert (bars[-1].positives, bars[0].negatives) == (1, 2)
    assert counted.by_logit.sum() == 7
    np.testing.assert_array_equal(counted.by_logit[1, 0, -1], 1)
    np.testing.assert_array_equal(counted.by_logit[0, 0, 0], 2)


def test_curves_without_a_point_are_left_out(tmp_path):
    curve_files.write_curves(str(tmp_path), {"kind": _count(1)}, {"kind": ["cat", "dog"]})
    text = (tmp_path / "kind.svg").read_text()
    assert "nan" not in re.sub(r"<style>.*</style>", "", text, flags=re.S)
    assert ">kind, histogram<" in text
