"""Texts fit: long ones are shortened in the middle, and the pointer shows the whole."""

import pytest

from mtl.tools.drawing import texts

NAMES = [
    "married civilian spouse present",
    "x" * 70,
    "W" * 27,
    "минуты просмотра после клика",
    "短",
]


@pytest.mark.parametrize("text", [*NAMES, "", "a", "0.99995"])
@pytest.mark.parametrize("width", [5, 44, 120])
def test_what_is_shortened_fits(text, width):
    short = texts.shorten(text, width)
    assert (short == text) == (texts.measure(text) <= width)
    assert short in (text, "…") or texts.measure(short) <= width
    if short != text:
        start, end = short.split("…")
        assert text.startswith(start) and text.endswith(end) and len(start) - len(end) in (0, 1)


def test_the_pointer_shows_the_whole_of_a_shortened_text():
    drawn = texts.write("<never> married", texts.put(1, 2), width=60)
    assert "<title>&lt;never&gt; married</title>" in drawn and "…" in drawn
    assert "<title>" not in texts.write("short", texts.put(1, 2), width=60)


def test_lines_break_at_spaces():
    lines = texts.wrap("a title with a word_that_is_very_long and more", 70)
    assert " ".join(lines) == "a title with a word_that_is_very_long and more"
    assert all(texts.measure(line) <= 70 or " " not in line for line in lines)
    assert texts.wrap("", 70) == []


def test_characters_that_xml_forbids_are_replaced():
    assert texts.escape("a\x00b\ud800<") == "a�b�&lt;"
