import dataclasses
import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import tensorflow as tf

from mtl.balancing import monitored
from mtl.monitoring import chart
from mtl.tools.drawing import balancing_picture
from tests import tiny

tf1 = tf.compat.v1

SVG = "{http://www.w3.org/2000/svg}"


def _write(directory, rows, suffix=""):
    with tf.Graph().as_default():
        writer = tf1.summary.FileWriter(str(directory), filename_suffix=suffix)
        for step, scalars in rows:
            values = [tf1.Summary.Value(tag=tag, simple_value=x) for tag, x in scalars.items()]
            writer.add_summary(tf1.Summary(value=values), step)
        writer.close()


def test_reads_what_concerns_the_balance(tmp_path):
    first = {"weight/a": 1.0, "weight/b/c": 2.0, "loss": 3.0, "a/loss": 4.0, "weights/a": 5.0}
    _write(tmp_path, [(10, first), (20, {"surgery/cosine/a/b": -0.5, "surgery/conflicts": 1.0})])
    _write(tmp_path, [(30, {"top/surgery/norm/a": 2.0, "surgery/weight/a": math.nan})], ".2")
    _write(tmp_path, [(10, {"weight/a": 7.0}), (40, {"weight/a": 8.0})], ".3")
    assert balancing_picture.read(str(tmp_path)) == {
        ("", "weight"): {"a": {10: 7.0, 40: 8.0}, "b/c": {10: 2.0}},
        ("", "surgery/cosine"): {"a/b": {20: -0.5}},
        ("", "surgery/conflicts"): {"all": {20: 1.0}},
        ("top", "surgery/norm"): {"a": {30: 2.0}},
    }


def test_a_file_that_breaks_off_is_read_up_to_there(tmp_path):
    _write(tmp_path, [(10, {"weight/a": 1.0}), (20, {"weight/a": 2.0})])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    _write(tmp_path, [(30, {"weight/a": 3.0})], ".2")
    assert balancing_picture.read(str(tmp_path)) == {("", "weight"): {"a": {10: 1.0, 30: 3.0}}}


def _texts(path):
    return [element.text for element in ElementTree.parse(path).iter(f"{SVG}text")]


def test_nothing_is_drawn_of_nothing(tmp_path):
    assert balancing_picture.draw(str(tmp_path)) is None
    assert not list(tmp_path.iterdir())


def test_draws_lines_where_the_values_are():
    panel = ElementTree.fromstring(
        chart.draw_page([chart.draw_lines("a < b", {"x": {0: 0.0, 10: 4.0}, "y": {5: -4.0}})])
    )
    first, second = panel.iter(f"{SVG}polyline")
    points = [[float(n) for n in p.split(",")] for p in first.get("points").split()]
    # Values from -4 to 4 and steps from 0 to 10 fill the panel; y grows downwards.
    np.testing.assert_allclose(points, [[0, 90], [420, 0]])
    assert second.get("points") == "210.0,180.0"
    assert [t.text for t in panel.iter(f"{SVG}text")][:4] == ["a < b", "-4", "0", "4"]


def test_wide_spans_are_drawn_by_logarithm():
    panel = ElementTree.fromstring(
        chart.draw_page([chart.draw_lines("t", {"x": {1: 0.01, 2: 1, 3: 100}})])
    )
    (line,) = panel.iter(f"{SVG}polyline")
    heights = [float(point.split(",")[1]) for point in line.get("points").split()]
    np.testing.assert_allclose(heights, [180, 90, 0])


def test_long_curves_are_thinned():
    panel = chart.draw_lines("t", {"x": dict.fromkeys(range(1, 100_001), 1.0)})
    assert len(re.search(r'points="([^"]*)"', panel).group(1).split()) <= 500


def test_draws_the_matrix(tmp_path):
    late = {"surgery/cosine/a/b": 0.5, "surgery/cosine/a/c": -0.25, "surgery/cosine/b/c": 0.0}
    early = dict.fromkeys(late, 1.0)
    _write(tmp_path, [(100, early), (1000, early), (3100, late), (4100, late)])
    texts = _texts(balancing_picture.draw(str(tmp_path)))
    start = next(i for i, text in enumerate(texts) if text.endswith("last quarter"))
    a, b, c = (texts[start + 1 + 4 * row : start + 5 + 4 * row] for row in range(3))
    assert a == ["a", "1.00", "0.50", "-0.25"]
    assert b == ["b", "0.50", "1.00", "0.00"]
    assert c == ["c", "-0.25", "0.00", "1.00"]


@pytest.mark.slow
def test_a_run_leaves_its_picture(tmp_path):
    made = tiny.make()
    model = dataclasses.replace(made.model, surgery=monitored.Monitored(every_steps=10))
    tiny.train(dataclasses.replace(made, model=model), tmp_path)
    texts = _texts(tmp_path / "balancing.svg")
    assert {"weights of the losses", "norms of the gradients", "sign/kind"} <= set(texts)
