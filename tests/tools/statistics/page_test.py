"""Pages: valid XML, everything escaped, a picture for each column."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pyarrow as pa
import pytest

from mtl.tools.drawing import shares
from mtl.tools.statistics import drift, page
from tests.tools.statistics.tell_test import _describe


def _make(shift=0.0, width=3):
    draw = np.random.default_rng(0)
    values = {f"n{i} <b>&": draw.normal(size=500) + shift for i in range(width)}
    heavy = draw.normal(size=500)
    heavy[0] = 1e9
    words = draw.choice(["<script>alert(1)</script>", "a&b", "c" * 300], 500)
    days = pa.array(draw.integers(0, 99, 500).astype("i4"), pa.int32()).cast(pa.date32())
    others = {"heavy": heavy, "word": words, "day": days, "one": np.ones(500)}
    return pa.table({**values, **others, "none": pa.array([None] * 500, pa.string())})


def _read(path):
    text = path.read_text()
    assert "<script>" not in text and "http://" not in text.replace("http://www.w3.org/", "")
    return text, ET.fromstring(text.replace("<!DOCTYPE html>", ""))


def _count_pictures(text):
    return len(re.findall(r'<svg [^>]*viewBox="0 0 360 ', text))  # Legends have pictures, too.


def test_a_page_describes_a_data_set(tmp_path):
    path = tmp_path / "a.html"
    page.write(str(path), [_describe(_make())], None, 0.1)
    text, _ = _read(path)
    assert _count_pictures(text) == 7  # None of the column without values.
    assert "&lt;script&gt;alert" in text and "0.80% of the values lie outside" in text
    assert "Days since 1970" in text


def test_a_page_compares_two_data_sets(tmp_path):
    path = tmp_path / "a.html"
    both = [_describe(_make()), _describe(_make(1.0).drop_columns(["one"]))]
    page.write(str(path), both, drift.compare(*both), 0.1)
    text, _ = _read(path)
    assert "4 fields drift" in text and "Lost: one." in text and _count_pictures(text) == 6
    assert "before" in text and "after" in text


def test_hundreds_of_columns_are_drawn(tmp_path):
    path = tmp_path / "a.html"
    both = [_describe(_make(width=500)), _describe(_make(width=500))]
    page.write(str(path), both, drift.compare(*both), 0.1)
    text, _ = _read(path)
    assert "no drift" in text and _count_pictures(text) == 504 and len(text) < 5_000_000


@pytest.mark.parametrize("low, high", [(0, 1), (3, 3), (18, 89), (-5, 24), (0, 10**6)])
def test_bins_hold_equally_many_whole_numbers(low, high):
    first, last, size = shares.fit_whole(low, high, 30)
    width = (last - first) / size
    assert size <= 30 and width == int(width) and first < low and high < last
    assert last - high <= width


def test_values_that_one_side_lacks_have_no_bar():
    before, after = _describe(pa.table({"x": ["a"] * 9 + ["b"]})), _describe(pa.table({"x": ["c"]}))
    (figure,) = page.draw_columns({"before": before, "after": after}, ["x"]).figures
    assert figure.body.count("<rect") == 6 and figure.body.count('width="0"') == 3
    assert [line.name for line in figure.legend] == ["before", "after"]
