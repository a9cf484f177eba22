"""Matrices are XML, escape names, and draw what is there."""

import re
from xml.etree import ElementTree

import numpy as np

from mtl.tools.drawing import matrices

BAD = "<script>&\"'"
SVG = "{http://www.w3.org/2000/svg}"


def _cells(figure, count):
    cells = ElementTree.fromstring(figure.svg).findall(f"{SVG}g/{SVG}rect")
    assert len(cells) == count
    return [(one.get("class"), one.get("fill-opacity")) for one in cells]


def test_a_matrix_is_as_strong_as_its_values():
    values = np.array([[1.0, -0.5], [-0.5, np.nan]])
    figure = matrices.draw("t", ["a", BAD], ["a", BAD], values, "down", "across")
    assert _cells(figure, 3) == [("plus", "0.60"), ("minus", "0.30"), ("minus", "0.30")]
    told = [text.text for text in ElementTree.fromstring(figure.svg).iter(f"{SVG}text")]
    assert told.count("-0.50") == 2 and "nan" not in " ".join(told)
    assert told[:2] == ["across", "down"] and told[-2:] == ["-1", "1"]


def test_of_many_names_some_are_shown():
    many = [f"task {n}" for n in range(100)]
    figure = matrices.draw("t", many, many, np.eye(100), "true", "predicted")
    _cells(figure, 100)
    assert 20 < len(re.findall("task", figure.svg)) < 100 and figure.height < 500


def test_negative_cells_have_a_sign_in_print():
    names = [f"task {n}" for n in range(20)]
    figure = matrices.draw("t", names, names, -np.eye(20), "down", "across")
    assert figure.svg.count(">-</text>") == 20


def test_pixels_are_drawn_in_shares_of_the_largest():
    values = np.zeros([3, 4])
    values[1, 2], values[0, 0] = -4.0, 2.0
    figure = matrices.draw_pixels("t", values)
    assert _cells(figure, 2) == [("plus", "0.30"), ("minus", "0.60")]
    _cells(matrices.draw_pixels("zeros", np.zeros([2, 2])), 0)
