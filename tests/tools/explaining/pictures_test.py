"""Pictures are XML, escape names, and draw what is there."""

import re
from xml.etree import ElementTree

import numpy as np

from mtl.tools.explaining import pictures

BAD = "<script>&\"'"


def parse(figure):
    return ElementTree.fromstring(figure.svg)


def test_bars_reach_from_zero_to_their_values():
    bars = [pictures.Bar("up", 2.0, 1.0, 3.0), pictures.Bar(BAD, -1.0), pictures.Bar("no", np.nan)]
    root = parse(pictures.draw_bars(BAD, bars))
    up, down = root.findall("rect")
    assert (up.get("class"), down.get("class")) == ("plus", "minus")
    assert float(up.get("width")) == 2 * float(down.get("width"))
    ends = float(down.get("x")) + float(down.get("width"))
    np.testing.assert_allclose(ends, float(up.get("x")), atol=0.11)
    assert len([path for path in root.findall("path") if path.get("class") == "whisker"]) == 1
    told = [text.text for text in root.findall("text")]
    assert BAD in told and "undefined" in told and "3" in told
    assert pictures.draw_bars("none", []).svg.endswith("</svg>")
    assert parse(pictures.draw_bars("zeros", [pictures.Bar("x", 0.0)])) is not None


def test_a_matrix_is_as_strong_as_its_values():
    values = np.array([[1.0, -0.5], [-0.5, np.nan]])
    root = parse(pictures.draw_matrix("t", ["a", BAD], ["a", BAD], values))
    cells = [(one.get("class"), one.get("fill-opacity")) for one in root.findall("rect")]
    assert cells == [("plus", "0.70"), ("minus", "0.35"), ("minus", "0.35")]
    told = [text.text for text in root.findall("text")]
    assert told.count("-0.50") == 2 and "nan" not in " ".join(told)
    many = [f"task {n}" for n in range(20)]
    figure = pictures.draw_matrix("t", many, many, np.eye(20))
    assert len(re.findall("<rect", figure.svg)) == 400 and parse(figure) is not None


def test_pixels_are_drawn_in_shares_of_the_largest():
    values = np.zeros([3, 4])
    values[1, 2], values[0, 0] = -4.0, 2.0
    root = parse(pictures.draw_pixels("t", values))
    *cells, _ = root.findall("rect")
    assert [(one.get("class"), one.get("fill-opacity")) for one in cells] == [
        ("plus", "0.50"),
        ("minus", "1.00"),
    ]
    assert parse(pictures.draw_pixels("zeros", np.zeros([2, 2]))) is not None
