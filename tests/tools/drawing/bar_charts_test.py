"""Bars are XML, escape names, and draw what is there."""

import re
from xml.etree import ElementTree

import numpy as np

from mtl.tools.drawing import bar_charts

BAD = "<script>&\"'"
SVG = "{http://www.w3.org/2000/svg}"


def test_bars_reach_from_zero_to_their_values():
    bars = [
        bar_charts.Bar("up", 2.0, 1.0, 3.0),
        bar_charts.Bar(BAD, -1.0),
        bar_charts.Bar("no", np.nan),
    ]
    root = ElementTree.fromstring(bar_charts.draw(BAD, bars, "drop").svg)
    up, down = root.findall(f"{SVG}rect")
    assert (up.get("class"), down.get("class")) == ("plus", "minus")
    np.testing.assert_allclose(float(up.get("width")), 2 * float(down.get("width")), atol=0.2)
    ends = float(down.get("x")) + float(down.get("width"))
    np.testing.assert_allclose(ends, float(up.get("x")), atol=0.11)
    assert len([one for one in root.findall(f"{SVG}path") if one.get("class") == "whisker"]) == 1
    told = [text.text for text in root.findall(f"{SVG}text")]
    assert {BAD, "undefined", "-1", "0", "3", "drop"} <= set(told)


def test_names_that_fit_are_whole():
    for name in ("famo", "age", "x" * 20, "iiiiiii", "0.1 + 0.2"):
        assert f">{name}</text>" in bar_charts.draw("t", [bar_charts.Bar(name, 0.3)], "x").svg


def test_a_large_bar_hides_no_small_ones():
    bars = [bar_charts.Bar("a", -0.5), bar_charts.Bar("b", -500.0)]
    drawn = bar_charts.draw("t", bars, "x", near=1.0).svg
    assert [">-100<" in drawn, ">-1<" in drawn] == [True, True]
    small, large = map(float, re.findall(r'<rect [^>]*width="([\d.]+)"', drawn))
    assert large / 20 < small < large / 10
    drawn = bar_charts.draw("t", bars[:1], "x", near=1.0).svg
    assert ">-0.4<" in drawn and ">-0.2<" in drawn


def test_there_may_be_no_bars_and_no_length():
    assert ElementTree.fromstring(bar_charts.draw("none", [], "x").svg) is not None
    zero = bar_charts.draw("zeros", [bar_charts.Bar("x", 0.0)], "x")
    assert 'width="0"' in zero.svg and ElementTree.fromstring(zero.svg) is not None


def test_what_is_undefined_stays_within_a_picture_of_negative_numbers():
    bars = [bar_charts.Bar("a", -1.0), bar_charts.Bar("b", np.nan)]
    assert 'text-anchor="end">undefined' in bar_charts.draw("t", bars, "x").svg
