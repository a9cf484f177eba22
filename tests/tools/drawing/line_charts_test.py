"""Curves are thinned without losing what stands out, and their ticks are round."""

import math
import re
from xml.etree import ElementTree

import pytest

from mtl.tools.drawing import figures, line_charts


def _heights(figure):
    (points,) = re.findall(r'<polyline class="line c0 d0" points="([^"]*)"', figure.body)
    return [float(point.split(",")[1]) for point in points.split()]


def test_thinning_keeps_ends_and_single_spikes():
    points = [(step, 1.0) for step in range(10_000)]
    points[1234], points[8765] = (1234, 9.0), (8765, -3.0)
    thinned = line_charts.thin(points, 100)
    assert len(thinned) <= 100 and thinned == sorted(thinned)
    assert {points[0], points[-1], (1234, 9.0), (8765, -3.0)} <= set(thinned)
    assert line_charts.thin(points[:100], 100) == points[:100]
    figure = line_charts.draw_curves("t", {"x": dict.fromkeys(range(1, 100_001), 1.0)}, "up")
    assert len(_heights(figure)) <= 400


def test_a_figure_is_xml_and_its_title_is_escaped():
    curves = {"<i>": {0: 0.5, 100: 0.1}}
    figure = line_charts.draw_curves('<script>"', curves, "<b>", mark=100)
    root = ElementTree.fromstring(figure.svg)
    assert root.get("role") == "img" and root.get("aria-label") == '<script>"'
    assert root[0].tag.endswith("title") and root[0].text == '<script>"'
    assert "&lt;b&gt;</text>" in figure.svg and ">step</text>" in figure.svg
    assert figure.legend == [figures.Line(0, "<i>", 0.1)]


def test_a_line_that_never_changes_lies_in_the_middle():
    figure = line_charts.draw_curves("rate", {"a": {0: 0.001, 100: 0.001}}, "rate")
    assert ">0.0010<" in figure.svg and ">0.0009<" in figure.svg


def test_what_is_not_drawn_is_said():
    lines = {f"expert_{i}": [(0, i), (1, i)] for i in range(44)}
    figure = line_charts.draw("many", lines, "x", "y")
    assert figure.note == "4 more are not drawn." and len(figure.legend) == 40
    # Colours and dashes together tell lines apart.
    assert len({line.style for line in figure.legend}) == 40
    assert len({line.style.split()[1] for line in figure.legend[:8]}) == 8


def test_losses_over_magnitudes_are_drawn_by_logarithm():
    figure = line_charts.draw_curves("loss", {"a": {0: 10.0, 50: 0.1, 100: 0.001}}, "loss")
    assert all(f">{told}</text>" in figure.svg for told in ("0.01", "0.1", "10"))
    heights = _heights(figure)
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.2)


def test_points_that_are_not_finite_are_left_out():
    points = [(0.0, math.nan), (1.0, 2.0), (2.0, math.inf), (3.0, 4.0)]
    lines = {"one": points, "none": [(0.0, math.inf)]}
    drawn = line_charts.draw("a", lines, "x", "y", behind=[points])
    lines = {"one": points[1::2], "none": []}
    plain = line_charts.draw("a", lines, "x", "y", behind=[points[1::2]])
    assert drawn == plain and "nan" not in drawn.svg


def test_steps_have_whole_numbers():
    figure = line_charts.draw_curves("t", {"a": {0: 1.0, 2: 2.0}}, "up")
    numbers = re.findall(r'y="194" text-anchor="middle">([^<]*)<', figure.svg)
    assert numbers == ["0", "1", "2"]


def test_shares_fill_a_square_with_a_diagonal():
    corners = [(0.0, 0.0), (0.5, 1.0), (1.0, 1.0)]
    shown = line_charts.draw("t", {"a": corners}, "x", "y", is_share=True, diagonal=True)
    assert _heights(shown) == [180, 20, 20]
    (ends,) = re.findall(r'class="line diagonal" points="([^"]*)"', shown.body)
    assert [end.split(",")[1] for end in ends.split()] == ["180", "20"]
