"""A picture holds everything within its frame, whatever is drawn, on light and dark screens."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from mtl.tools.drawing import bar_charts, figures, line_charts, matrices, texts

SVG = "{http://www.w3.org/2000/svg}"
NAMES = [
    "married civilian spouse present",
    "never_married_and_never_lived_together",
    "x" * 70,
    "W" * 27,
    "минуты просмотра после клика",
    "短",
    "<&>",
]
CURVES = {
    "empty": {},
    "one point": {100: 0.5},
    "zero": {0: 0.0},
    "near one": {step: 0.9999 + step * 1e-6 for step in range(10, 90, 10)},
    "millions": {step: 1234567.0 + step for step in range(10, 90, 10)},
    "below zero": {step: -123456.7 + step / 10 for step in range(10, 90, 10)},
    "tiny": {step: 1.234e-7 + step * 1e-11 for step in range(10, 90, 10)},
    "huge": {1: 1e299, 2: -1e299, 3: math.inf, 4: math.nan, 5: 1.7e308},
    "long run": {step * 1_000_000: float(step) for step in range(1, 9)},
    "many factors": {step: 10.0**-step for step in range(1, 12)},
}


def draw_all():
    """Figures of all kinds, {what: figure}."""
    random = np.random.default_rng(0)
    found = {
        name: line_charts.draw_curves(name, {name: curve}, name) for name, curve in CURVES.items()
    }
    found["long axis names"] = line_charts.draw("t" * 90, {"a": [(0, 1)]}, "x" * 90, "y" * 90)
    far = [(1234567.125, 1.0), (1234567.5, 4.0)]
    found["far"] = line_charts.draw("far", {"a": far}, "x", "y", from_zero=False)
    for count in (1, 7, 40):
        lines = {f"{i} {NAMES[i % 7]}": {0: i, 1000: 2 * i} for i in range(count)}
        found[f"{count} lines"] = line_charts.draw_curves(" ".join(NAMES), lines, NAMES[2])
    bars = [bar_charts.Bar(name, 0.1 * i, 0.1 * i - 1, 0.1 * i) for i, name in enumerate(NAMES)]
    found["bars"] = bar_charts.draw("bars", bars, "drop of " + NAMES[1] * 3)
    bars = [bar_charts.Bar(NAMES[3], -1234567.0), bar_charts.Bar("a", 2.0, math.nan, math.inf)]
    found["large bars"] = bar_charts.draw("large", [*bars, bar_charts.Bar("", math.nan)], "seconds")
    found["no bars"] = bar_charts.draw("none", [], "drop")
    for count in (0, 1, 2, 7, 30, 200):
        names = [f"{i} {NAMES[i % 7]}" for i in range(count)]
        cells = random.uniform(-1, 1, [count, count])
        cells[:1] = np.nan
        found[f"{count} cells"] = matrices.draw("cells", names, names, cells, NAMES[0], NAMES[1])
        digits = list(map(str, range(count)))
        found[f"{count} digits"] = matrices.draw("digits", digits, digits, cells, "a", "b")
    found["pixels"] = matrices.draw_pixels("pixels", random.uniform(-1, 1, [28, 20]))
    return found


FIGURES = draw_all()


def _list_boxes(figure):
    """(text, left, top, right, bottom) of each text of a figure that is not slanted."""
    for text in ElementTree.fromstring(figure.svg).iter(f"{SVG}text"):
        told = "".join(text.itertext()) if not len(text) else text[0].tail
        width = texts.measure(told)
        if "transform" in text.attrib:
            yield from _turn(text, told, width)
            continue
        left = (
            float(text.get("x"))
            - width * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")]
        )
        y = float(text.get("y"))
        yield told, left, y - 8, left + width, y + 2


def _turn(text, told, width):
    place = re.fullmatch(r"translate\((\S+) (\S+)\) rotate\(-(\d+)\)", text.get("transform"))
    x, y, angle = map(float, place.groups())
    angle = math.radians(angle)
    yield told, x - 8, y - width * math.sin(angle), x + width * math.cos(angle), y + 3


@pytest.mark.parametrize("what", FIGURES)
def test_nothing_lies_outside(what):
    figure = FIGURES[what]
    root = ElementTree.fromstring(figure.svg)
    assert "nan" not in figure.body.replace("n/a", "") and "inf" not in figure.body
    for told, left, top, right, bottom in _list_boxes(figure):
        assert left >= -0.1 and right <= figures.WIDTH + 0.1, told
        assert top >= 0 and bottom <= figure.height, told
    for line in root.iter(f"{SVG}polyline"):
        for x, y in (map(float, point.split(",")) for point in line.get("points").split()):
            assert 0 <= x <= figures.WIDTH and 0 <= y <= figure.height
    for box in root.iter(f"{SVG}rect"):
        x, y, width, height = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        assert x >= 0 and x + width <= figures.WIDTH + 0.2
        assert y >= 0 and y + height <= figure.height + 0.2


@pytest.mark.parametrize("what", FIGURES)
def test_texts_do_not_overlap(what):
    boxes = [box for box in _list_boxes(FIGURES[what]) if box[0]]
    straight = [box for box in boxes if box[4] - box[2] <= 10.1]
    for number, (one, left, top, right, bottom) in enumerate(straight):
        for other, left_2, top_2, right_2, bottom_2 in straight[number + 1 :]:
            is_beside = right <= left_2 or right_2 <= left
            assert is_beside or bottom <= top_2 or bottom_2 <= top, (one, other)


def test_every_axis_has_a_name():
    for what, figure in FIGURES.items():
        if what in CURVES:
            assert ">step</text>" in figure.svg and f">{what}</text>" in figure.svg
    assert ">seconds</text>" in FIGURES["large bars"].svg
    assert ">a</text>" in FIGURES["7 digits"].svg and ">b</text>" in FIGURES["7 digits"].svg


def test_a_file_has_all_figures_with_titles_legends_and_notes():
    chosen = [*FIGURES.values(), FIGURES["7 lines"]._replace(note="A note.")]
    root = ElementTree.fromstring(figures.lay_out("All", chosen))
    width, height = map(float, root.get("viewBox").split()[2:])
    assert root.get("role") == "img" and root.find(f"{SVG}title").text == "All"
    told = [text.text for text in root.iter(f"{SVG}text")]
    assert "A note." in told and {figure.title for figure in chosen[:4]} <= set(told)
    bottoms = []
    for panel in root.findall(f"{SVG}g"):
        x, y = map(float, re.findall(r"[\d.]+", panel.get("transform")))
        assert 0 <= x <= width - figures.WIDTH
        for text in panel.findall(f"{SVG}text"):
            shown = text.text or text[0].tail
            scale = 14 / texts.SIZE if text.get("class") == "title" else 1
            assert float(text.get("x")) + texts.measure(shown) * scale <= figures.WIDTH + 0.1
            bottoms.append(y + float(text.get("y")))
    assert max(bottoms) < height


def test_one_figure_is_alone_and_none_is_empty():
    one, none = (figures.lay_out("t", some) for some in ([FIGURES["one point"]], []))
    assert 'viewBox="0 0 408 ' in one and ElementTree.fromstring(none) is not None


def test_a_file_is_legible_on_dark_screens_and_without_variables():
    style = ElementTree.fromstring(figures.lay_out("t", [])).find(f"{SVG}style").text
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    assert "var(" not in style and "--" not in style
    assert "#ffffff" in light and "#ffffff" not in dark
    grounds = [re.search(r"\.ground \{ fill: (#\w+)", part)[1] for part in (light, dark)]
    for ground, part in zip(grounds, (light, dark), strict=True):
        for name in ("svg text", "svg text.told"):
            ink = re.search(rf"^{name} \{{.*fill: (#\w+)", part, re.M)[1]
            assert _contrast(ink, ground) > 4.5
        for number in range(8):
            color = re.search(rf"\.c{number} \{{ stroke: (#\w+)", part)[1]
            assert _contrast(color, ground) > 3


def _contrast(one, other):
    """The contrast of two colours, as WCAG defines it."""
    return (max(_shine(one), _shine(other)) + 0.05) / (min(_shine(one), _shine(other)) + 0.05)


def _shine(color):
    parts = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]
