"""Figures of a page: lines in SVG whose colours the page's style sheet gives, and their legends.

figure = figures.draw_curves("loss", {"train": {100: 0.5, 200: 0.1}}, mark=200)
figure.title, figure.svg, figure.legend
"""

import dataclasses
import functools
import html
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mtl.monitoring import chart
from mtl.reports import svg_text

Points = Sequence[tuple[float, float]]

NUM_COLORS = 8
MOST_LINES = 16
_MOST_POINTS = 200
# Each point of a line of so few is marked.
_MOST_DOTS = 12
_WIDTH, _HEIGHT, _TOP, _RIGHT, _BOTTOM = 360, 190, 8, 10, 24
_PLOT_HEIGHT = _HEIGHT - _TOP - _BOTTOM
# Left of the axis: as much as numbers take, and 8 beside them.
_LEAST_LEFT, _BESIDE = 48, 8
_MOST_TICKS = 5
# Above and below a line that never changes, as a share of its value.
_ROOM = 0.2
# A line that spans a larger factor is drawn by its logarithm.
_LOG_FACTOR = 50
_ROUND_STEPS = (1, 2, 2.5, 5, 10)


class Line(NamedTuple):
    """A line of the legend: its colour, whether it is dashed, its name, and where it ends.

    Only what changes over the steps has an end that says something.
    """

    color: int
    is_dashed: bool
    name: str
    last: float | None


class Figure(NamedTuple):
    """A picture with what stands around it; `note` says what it leaves out."""

    title: str
    svg: str
    legend: list[Line]
    note: str = ""


class _Axis(NamedTuple):
    """Values to [0, 1]."""

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        value = math.log10(value) if self.is_log else value
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return round values within the range: (where they are, what they say)."""
        least = (self.high - self.low) / _MOST_TICKS
        size = 10 ** math.floor(math.log10(least))
        step = next(factor * size for factor in _ROUND_STEPS if factor * size >= least * 0.999)
        step = max(step, 1) if self.is_log else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [number * step for number in range(first, last + 1)]
        shown = [_short(10**v) if self.is_log else _short(v, step) for v in values]
        places = [(value - self.low) / (self.high - self.low) for value in values]
        return list(zip(places, shown, strict=True))


@dataclasses.dataclass(frozen=True)
class _Plot:
    """Where points lie in the picture."""

    across: _Axis
    up: _Axis

    @functools.cached_property
    def left(self) -> float:
        """Where the plot begins: right of the numbers beside it."""
        widths = [svg_text.measure(told) for _, told in self.up.ticks()]
        return max(_LEAST_LEFT, math.ceil(max(widths, default=0)) + _BESIDE)

    @property
    def width(self) -> float:
        """How wide it is."""
        return _WIDTH - self.left - _RIGHT

    def x(self, value: float) -> float:
        """Return how far right a value lies."""
        return self.left + self.across.place(value) * self.width

    def y(self, value: float) -> float:
        """Return how far down a value lies."""
        return _TOP + (1 - self.up.place(value)) * _PLOT_HEIGHT


def draw_curves(
    title: str,
    curves: Mapping[str, Mapping[int, float]],
    mark: int | None = None,
    may_be_log: bool = True,
) -> Figure:
    """Draw {name: {step: value}}, with a vertical line at the step `mark`."""
    lines = {name: sorted(points.items()) for name, points in curves.items() if points}
    drawn = draw_lines(title, lines, mark=mark, may_be_log=may_be_log)
    ends = [line._replace(last=lines[line.name][-1][1]) for line in drawn.legend]
    return drawn._replace(legend=ends)


def draw_lines(
    title: str,
    lines: Mapping[str, Points],
    mark: float | None = None,
    may_be_log: bool = False,
    is_share: bool = False,
    behind: Sequence[Points] = (),
    from_zero: bool = True,
) -> Figure:
    """Draw {name: [(x, y), ...]}; where `is_share`, both are in [0, 1] and meet on the diagonal.

    Lines `behind` the others are thin and have no name. The first axis begins at 0 or before,
    unless `from_zero` is False. Points that are not finite are left out.
    """
    drawn = {name: _keep_finite(points) for name, points in list(lines.items())[:MOST_LINES]}
    behind = [_keep_finite(points) for points in behind]
    everything = [*drawn.values(), *behind]
    xs = [x for points in everything for x, _ in points] or [0]
    ys = [y for points in everything for _, y in points] or [0]
    across = _Axis(0, 1) if is_share else _span(min([0] * from_zero + xs), max(xs), 0)
    is_log = may_be_log and min(ys) > 0 and max(ys) > _LOG_FACTOR * min(ys)
    up = _Axis(0, 1) if is_share else _span_log(ys) if is_log else _span(min(ys), max(ys), 0.06)
    plot = _Plot(across, up)
    parts = [_grid(plot)]
    if is_share:
        parts.append(_path(((0, 0), (1, 1)), plot, "diagonal"))
    parts += [_path(points, plot, "line thin") for points in behind]
    if mark is not None and across.low <= mark <= across.high:
        parts.append(f'<path class="mark" d="M{plot.x(mark):.1f} {_TOP}v{_PLOT_HEIGHT}"/>')
    legend = []
    for number, (name, points) in enumerate(drawn.items()):
        color, is_dashed = number % NUM_COLORS, number >= NUM_COLORS
        style = f"line c{color}" + " dashed" * is_dashed
        parts.append(_path(chart.thin(points, _MOST_POINTS), plot, style))
        if len(points) <= _MOST_DOTS:
            parts += [_dot(x, y, plot, color) for x, y in points]
        legend.append(Line(color, is_dashed, name, None))
    left = len(lines) - len(drawn)
    note = f"{left} more are not drawn." if left else ""
    return Figure(title, _wrap(title, parts), legend, note)


def _keep_finite(points: Points) -> Points:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _span(low: float, high: float, margin: float) -> _Axis:
    is_flat = low == high and margin > 0
    room = abs(high) * _ROOM if is_flat else (high - low) * margin
    low, high = low - room, high + room
    return _Axis(low, high if high > low else low + 1)


def _span_log(values: Sequence[float]) -> _Axis:
    return _Axis(math.log10(min(values)), math.log10(max(values)), True)


def _path(points: Points, plot: _Plot, style: str) -> str:
    placed = [f"{_trim(plot.x(x))},{_trim(plot.y(y))}" for x, y in points]
    return f'<polyline class="{style}" points="{" ".join(placed)}"/>'


def _dot(x: float, y: float, plot: _Plot, color: int) -> str:
    return f'<circle class="dot c{color}" cx="{plot.x(x):.1f}" cy="{plot.y(y):.1f}" r="2.5"/>'


def _trim(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _grid(plot: _Plot) -> str:
    parts, left = [], plot.left
    for place, told in plot.up.ticks():
        y = _TOP + (1 - place) * _PLOT_HEIGHT
        parts.append(f'<path class="grid" d="M{left} {y:.1f}h{plot.width}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 3.5:.1f}" text-anchor="end">{told}</text>')
    ends = float(_WIDTH)
    base = _TOP + _PLOT_HEIGHT
    for place, told in reversed(plot.across.ticks()):
        x, half = left + place * plot.width, svg_text.measure(told) / 2
        x = min(x, _WIDTH - half)
        if x + half <= ends:  # Of two that would touch, the right one stays.
            parts.append(f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{told}</text>')
            ends = x - half
    return "".join([*parts, f'<path class="axis" d="M{left} {base}h{plot.width}"/>'])


def _wrap(title: str, parts: Sequence[str]) -> str:
    label = html.escape(title)
    head = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
    return "".join([head, *parts, "</svg>"])


def _short(value: float, step: float | None = None) -> str:
    """Return a round number in few letters, with as many digits as a step to the next one needs."""
    if abs(value) < 1e-12:
        return "0"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    if abs(value) < 1e-3:
        return f"{value:.2g}".replace("e-0", "e-")
    if step is None:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    digits = next((n for n in range(12) if math.isclose(round(step, n), step)), 12)
    return f"{value:,.{digits}f}"
