"""Draws bars with intervals and matrices in SVG, with colours from the page's style sheet.

pictures.draw_bars("auc", [pictures.Bar("age", 0.09, 0.07, 0.11), pictures.Bar("sex", -0.01)])
pictures.draw_matrix("cosines", ["a", "b"], ["a", "b"], [[1, -0.2], [-0.2, 1]])
"""

import html
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mtl.tools.reports import figures, svg_text

_WIDTH, _RIGHT, _TOP, _BOTTOM = 360, 14, 6, 20
_NAMES = 130
# The space above vertical or slanted letters.
_LETTER = 11
_BAR, _ROW = 10, 17
_MOST_TOLD = 8
# Ticks that are closer would overlap.
_APART = 30
_WIDEST, _NARROW, _SLANT = 56, 20, 50


class Bar(NamedTuple):
    """A number with a name and an optional interval."""

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan


def draw_bars(title: str, bars: Sequence[Bar], note: str = "") -> figures.Figure:
    """Draw a bar for each number, to the right or to the left of 0.

    Numbers that are not finite have a name, but no bar.
    """
    ends = [end for bar in bars for end in bar[1:] if math.isfinite(end)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    high = high if high > low else low + 1
    width = _WIDTH - _NAMES - _RIGHT

    def place(value: float) -> float:
        return _NAMES + (value - low) / (high - low) * width

    bottom = _TOP + _ROW * len(bars)
    parts = [f'<path class="axis" d="M{place(0):.1f} {_TOP}V{bottom}"/>']
    for value in sorted({low, 0.0, high}):
        if value and abs(place(value) - place(0)) < _APART:
            continue
        anchor = "end" if 0 < value == high else "middle"
        parts.append(_text(place(value), bottom + 14, f"{value:.3g}", anchor))
    for number, bar in enumerate(bars):
        top = _TOP + _ROW * number + (_ROW - _BAR) / 2
        at_axis = f'x="{_NAMES - 6}" y="{top + _BAR - 1:.1f}" text-anchor="end"'
        parts += [_name(bar.name, at_axis), *_draw_bar(bar, top, place)]
    return figures.Figure(title, _wrap(title, bottom + _BOTTOM, parts), [], note)


def _draw_bar(bar: Bar, top: float, place: Callable[[float], float]) -> list[str]:
    if not math.isfinite(bar.value):
        return [_text(place(0) + 4, top + _BAR - 1, "undefined", "start")]
    left, right = sorted((place(0), place(bar.value)))
    kind = "plus" if bar.value >= 0 else "minus"
    size = f'width="{right - left:.1f}" height="{_BAR}" rx="1.5"'
    parts = [f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" {size}/>']
    if math.isfinite(bar.low) and math.isfinite(bar.high):
        first, last, middle = place(bar.low), place(bar.high), top + _BAR / 2
        parts.append(
            f'<path class="whisker" d="M{first:.1f} {middle:.1f}H{last:.1f}'
            f'M{first:.1f} {middle - 3:.1f}v6M{last:.1f} {middle - 3:.1f}v6"/>'
        )
    return parts


def draw_matrix(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]] | np.ndarray,
    note: str = "",
) -> figures.Figure:
    """Draw values in [-1, 1], [R, C]; larger ones are stronger, and negative ones red."""
    longest = max((svg_text.measure(_cut(name)) for name in columns), default=0)
    # Names of narrow columns are vertical, as slanted names would overlap.
    angle = _SLANT if (_WIDTH - _NAMES) / max(len(columns), 1) >= _NARROW else 90
    turn = math.radians(angle)
    left, top = _NAMES, _TOP + _LETTER + longest * math.sin(turn) + _LETTER * math.cos(turn)
    right = max(_RIGHT, longest * math.cos(turn))
    width = min((_WIDTH - left - right) / max(len(columns), 1), _WIDEST)
    height = min(max(width, 14), 26)
    parts = []
    for j, name in enumerate(columns):
        x, y = left + (j + 0.5) * width + 3, top - 5
        place = f'transform="translate({x:.1f} {y:.1f}) rotate(-{angle})"'
        parts.append(_name(name, place))
    for i, name in enumerate(rows):
        y = top + i * height
        place = f'x="{left - 6}" y="{y + height / 2 + 4:.1f}" text-anchor="end"'
        parts.append(_name(name, place))
        for j in range(len(columns)):
            parts += _draw_cell(float(values[i][j]), left + j * width, y, width, height)
            if len(columns) <= _MOST_TOLD and math.isfinite(values[i][j]):
                middle = left + (j + 0.5) * width
                told = _text(middle, y + height / 2 + 4, f"{values[i][j]:.2f}", "middle")
                parts.append(told.replace("<text", '<text class="told"', 1))
    return figures.Figure(title, _wrap(title, top + height * len(rows) + 6, parts), [], note)


def _draw_cell(value: float, x: float, y: float, width: float, height: float) -> list[str]:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{height - 1:.1f}"'
    if not math.isfinite(value):
        return [
            f'<path class="grid" d="M{x:.1f} {y + height - 1:.1f}l{width - 1:.1f} -{height:.1f}"/>'
        ]
    strength = min(abs(value), 1.0) * 0.7
    kind = "plus" if value >= 0 else "minus"
    return [f'<rect class="{kind}" {place} fill-opacity="{strength:.2f}"/>']


def draw_pixels(title: str, values: np.ndarray) -> figures.Figure:
    """Draw the attribution of each pixel, [H, W], in shares of the largest."""
    most = float(np.abs(values).max()) or 1.0
    height, width = values.shape
    size = min(200 / max(height, width), 24.0)
    left = (_WIDTH - size * width) / 2
    parts = []
    for i in range(height):
        for j in range(width):
            share = float(values[i, j]) / most
            if abs(share) >= 0.02:
                kind, strength = ("plus" if share > 0 else "minus"), abs(share)
                place = f'x="{left + j * size:.1f}" y="{_TOP + i * size:.1f}"'
                parts.append(
                    f'<rect class="{kind}" {place} width="{size:.1f}" height="{size:.1f}" '
                    f'fill-opacity="{strength:.2f}"/>'
                )
    frame = f'width="{size * width:.1f}" height="{size * height:.1f}"'
    parts.append(f'<rect class="axis" x="{left:.1f}" y="{_TOP}" {frame}/>')
    return figures.Figure(title, _wrap(title, _TOP + size * height + 8, parts), [])


def _cut(name: str) -> str:
    return svg_text.cut(name, _NAMES - 8)


def _name(name: str, place: str) -> str:
    """Return a shortened name; the pointer shows the whole name."""
    short = _cut(name)
    whole = f"<title>{html.escape(name)}</title>" if short != name else ""
    return f"<text {place}>{whole}{html.escape(short)}</text>"


def _text(x: float, y: float, told: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place}>{html.escape(told)}</text>"


def _wrap(title: str, height: float, parts: Sequence[str]) -> str:
    label = html.escape(title)
    head = f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{label}">'
    return "".join([head, *parts, "</svg>"])
