"""Curves are thinned without losing what stands out, and their ticks are round."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from mtl.monitoring import chart
from mtl.tools.reports import figures


def test_thinning_keeps_ends_and_single_spikes():
    points = [(step, 1.0) for step in range(10_000)]
    points[1234], points[8765] = (1234, 9.0), (8765, -3.0)
    thinned = chart.thin(points, 100)
    assert len(thinned) <= 100 and thinned == sorted(thinned)
    assert {points[0], points[-1], (1234, 9.0), (8765, -3.0)} <= set(thinned)
    assert chart.thin(points[:100], 100) == points[:100]


@pytest.mark.parametrize(
    "low,high", [(0, 1000), (0.99981, 0.99998), (-3.3, 0.2), (1e6, 4e6), (0, 3e-5), (5, 5)]
)
def test_ticks_are_few_distinct_and_true(low, high):
    figure = figures.draw_lines("a", {"b": [(0, low), (1, high)]})
    labels = re.findall(r'text-anchor="end">([^<]*)</text>', figure.svg)
    numbers = [float(t.replace("M", "e6").replace("k", "e3").replace(",", "")) for t in labels[:-1]]
    assert 2 <= len(set(labels)) <= 8
    assert len(set(numbers)) == len(numbers)
    assert np.allclose(np.diff(numbers), np.diff(numbers)[0], rtol=0.01)


def test_a_figure_is_xml_and_its_title_is_escaped():
    figure = figures.draw_curves('<script>"', {"<i>": {0: 0.5, 100: 0.1}}, mark=100)
    root = ElementTree.fromstring(figure.svg)
    assert root.get("aria-label") == '<script>"'
    assert figure.legend == [figures.Line(0, False, "<i>", 0.1)]


def test_a_line_that_never_changes_lies_in_the_middle():
    figure = figures.draw_curves("rate", {"a": {0: 0.001, 100: 0.001}})
    assert ">0.0010<" in figure.svg and ">0.0009<" in figure.svg


def test_what_is_not_drawn_is_said():
    lines = {f"expert_{i}": [(0, i), (1, i)] for i in range(20)}
    figure = figures.draw_lines("many", lines)
    assert figure.note == "4 more are not drawn." and len(figure.legend) == 16


def test_losses_over_magnitudes_are_drawn_by_logarithm():
    figure = figures.draw_curves("loss", {"a": {0: 10.0, 50: 0.1, 100: 0.001}})
    assert all(f">{told}</text>" in figure.svg for told in ("0.01", "0.1", "10"))
    heights = [float(y) for y in re.findall(r"[\d.]+,([\d.]+)", figure.svg)]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.2)


def test_points_that_are_not_finite_are_left_out():
    points = [(0.0, math.nan), (1.0, 2.0), (2.0, math.inf), (3.0, 4.0)]
    drawn = figures.draw_lines("a", {"one": points, "none": [(0.0, math.inf)]}, behind=[points])
    plain = figures.draw_lines(
        "a", {"one": points[1::2], "none": []}, behind=[points[1::2]], from_zero=True
    )
    assert drawn == plain and "nan" not in drawn.svg
