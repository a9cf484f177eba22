"""Draws line charts and matrices as SVG, without a plotting library.

svg = chart.draw_page([chart.draw_lines("loss", {"digit": {100: 0.5, 200: 0.1}})])
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

_COLORS = ("#1b6ca8", "#d1495b", "#2e8b57", "#e09f3e", "#6c4ab6", "#5f6b6d", "#c65d9b", "#17a2b8")
_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 420, 180, 60, 34, 170
_PANEL = (_LEFT + _WIDTH + _LEGEND, _TOP + _HEIGHT + 40)
_COLUMNS = 2
_MOST_POINTS = 500
# Rows of a matrix below this height have no name.
_LEAST_ROW = 8


class _Axis(NamedTuple):
    """Maps values to [0, 1]; by logarithm if they are positive and span more than a factor 50."""

    low: float
    high: float
    is_log: bool

    @classmethod
    def spanning(cls, values: Sequence[float]) -> "_Axis":
        low, high = min(values), max(values)
        if low > 0 and high > 50 * low:
            return cls(math.log10(low), math.log10(high), True)
        low, high = min(low, 0.0), max(high, 0.0)
        return cls(low, high if high > low else low + 1, False)

    def place(self, value: float) -> float:
        return ((math.log10(value) if self.is_log else value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return (place, label) of three ticks: both ends, and 0 or the middle."""
        middle = 0.0 if self.low < 0 < self.high else (self.low + self.high) / 2
        values = [10**v if self.is_log else v for v in (self.low, middle, self.high)]
        return [(self.place(value), f"{value:.3g}") for value in values]


def draw_lines(
    title: str, curves: Mapping[str, Mapping[int, float] | Sequence[tuple[float, float]]]
) -> str:
    """Draw {name: {step: value}, or pairs of numbers} as a panel with a line for each name."""
    lines = {
        name: sorted(points.items() if isinstance(points, Mapping) else points)
        for name, points in curves.items()
    }
    steps = _Axis(0, max(points[-1][0] for points in lines.values()) or 1, False)
    values = _Axis.spanning([value for points in lines.values() for _, value in points])
    parts = [_text(0, -14, title, "start", bold=True)]
    parts += [_tick(0, 1 - part, label, across=True) for part, label in values.ticks()]
    parts += [_tick(part, 1, label, across=False) for part, label in steps.ticks()]
    for index, (name, ordered) in enumerate(lines.items()):
        parts += _draw_line(index, name, _trace(thin(ordered, _MOST_POINTS), steps, values))
    return "\n".join(parts)


def _trace(points: Sequence[tuple[float, float]], across: _Axis, up: _Axis) -> str:
    return " ".join(
        f"{across.place(x) * _WIDTH:.1f},{(1 - up.place(y)) * _HEIGHT:.1f}" for x, y in points
    )


def _draw_line(index: int, name: str, path: str) -> list[str]:
    """Draw a line and its row of the legend."""
    color = _COLORS[index % len(_COLORS)]
    dashes = "" if index < len(_COLORS) else ' stroke-dasharray="5 3"'
    x, row = _WIDTH + 8, 10 + 15 * index
    return [
        f'<polyline points="{path}" fill="none" stroke="{color}"{dashes}/>',
        f'<path d="M{x} {row - 4}h16" stroke="{color}" stroke-width="2"{dashes}/>',
        _text(x + 21, row, name, "start"),
    ]


def thin(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return at most `most` points of a line, with both ends and all spikes.

    Each stretch of the line keeps its lowest and its highest point: a single spike among thousands
    of points stays visible.
    """
    if len(points) <= most:
        return list(points)
    inner, kept = points[1:-1], [points[0]]
    size = math.ceil(len(inner) / ((most - 2) // 2))
    for start in range(0, len(inner), size):
        stretch = inner[start : start + size]
        ends = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        kept += sorted(ends)
    return [*kept, points[-1]]


def draw_matrix(title: str, cells: Mapping[tuple[str, str], float]) -> str:
    """Draw {(row, column): value in [-1, 1]} as a panel; values below 0 are red.

    A missing cell gets the value of the cell across the diagonal, or 1.
    """
    names = list(dict.fromkeys(name for pair in cells for name in pair))
    size = min(40.0, _HEIGHT / len(names))
    both = {(b, a): value for (a, b), value in cells.items()} | dict(cells)
    parts = [_text(0, -14, title, "start", bold=True)]
    for i, row in enumerate(names):
        parts.append(_text(len(names) * size + 8, (i + 0.6) * size, row, "start"))
        for j, column in enumerate(names):
            value = both.get((row, column), 1.0)
            parts += _cell(i, j, size, value)
    return "\n".join(parts)


def draw_shares(title: str, names: Sequence[str], cells: np.ndarray) -> str:
    """Draw a matrix of shares, [C, C] for C classes, as a panel; a larger share is darker."""
    size = min(40.0, _HEIGHT / len(names))
    parts = [_text(0, -14, title, "start", bold=True)]
    for i, name in enumerate(names):
        if size > _LEAST_ROW:
            parts.append(_text(len(names) * size + 8, (i + 0.6) * size, name, "start"))
        for j, share in enumerate(cells[i].tolist()):
            parts += _cell(i, j, size, share)
    return "\n".join(parts)


def _cell(row: int, column: int, size: float, value: float) -> list[str]:
    """Draw a cell of a matrix, red below 0, with its number if there is room."""
    color = "#d1495b" if value < 0 else "#1b6ca8"
    parts = [
        f'<rect x="{column * size:.1f}" y="{row * size:.1f}" width="{size:.1f}" '
        f'height="{size:.1f}" fill="{color}" fill-opacity="{abs(value):.2f}"/>'
    ]
    if size > 25:
        parts.append(_text((column + 0.5) * size, (row + 0.6) * size, f"{value:.2f}", "middle"))
    return parts


def draw_page(panels: Sequence[str]) -> str:
    """Return a picture of panels, two in a row."""
    width, height = _PANEL[0] * _COLUMNS, _PANEL[1] * math.ceil(len(panels) / _COLUMNS)
    placed = []
    for index, panel in enumerate(panels):
        x = _LEFT + index % _COLUMNS * _PANEL[0]
        y = _TOP + index // _COLUMNS * _PANEL[1]
        placed.append(f'<g transform="translate({x} {y})">\n{panel}\n</g>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
    )
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, background, *placed, "</svg>", ""])


def _tick(x: float, y: float, label: str, across: bool) -> str:
    x, y = x * _WIDTH, y * _HEIGHT
    grid = f"h{_WIDTH}" if across else "v4"
    text = _text(-6, y + 4, label, "end") if across else _text(x, y + 16, label, "middle")
    return f'<path d="M{x:.1f} {y:.1f}{grid}" stroke="#cccccc" stroke-width="0.6"/>{text}'


def _text(x: float, y: float, text: str, anchor: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place}{weight}>{html.escape(text)}</text>"
