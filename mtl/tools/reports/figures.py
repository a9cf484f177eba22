"""Draws figures of a page: lines in SVG, with colours from the page's style sheet, and legends.

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
from mtl.tools.reports import svg_text

Points = Sequence[tuple[float, float]]

NUM_COLORS = 8
MOST_LINES = 16
_MOST_POINTS = 200
# A line of at most so many points has a dot at each.
_MOST_DOTS = 12
_WIDTH, _HEIGHT, _TOP, _RIGHT, _BOTTOM = 360, 190, 8, 10, 24
_PLOT_HEIGHT = _HEIGHT - _TOP - _BOTTOM
# The space left of the axis: the width of its numbers, at least 48 in total, and 8 more.
_LEAST_LEFT, _BESIDE = 48, 8
_MOST_TICKS = 5
# The space above and below a constant line, as a share of its value.
_ROOM = 0.2
# Lines that span a larger factor get a logarithmic axis.
_LOG_FACTOR = 50
_ROUND_STEPS = (1, 2, 2.5, 5, 10)


class Line(NamedTuple):
    """A line of the legend: its colour, whether it is dashed, its name, and its last value.

    The last value is only set for curves over steps.
    """

    color: int
    is_dashed: bool
    name: str
    last: float | None


class Figure(NamedTuple):
    """A picture with its title and legend; `note` names left-out points."""

    title: str
    svg: str
    legend: list[Line]
    note: str = ""


class _Axis(NamedTuple):
    """Maps values to [0, 1]."""

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        value = math.log10(value) if self.is_log else value
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return (place, label) of round values within the range."""
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
    """Maps points to places in the picture."""

    across: _Axis
    up: _Axis

    @functools.cached_property
    def left(self) -> float:
        """The left edge of the plot, right of the axis numbers."""
        widths = [svg_text.measure(told) for _, told in self.up.ticks()]
        return max(_LEAST_LEFT, math.ceil(max(widths, default=0)) + _BESIDE)

    @property
    def width(self) -> float:
        """The width of the plot."""
        return _WIDTH - self.left - _RIGHT

    def x(self, value: float) -> float:
        """Return the horizontal place of a value."""
        return self.left + self.across.place(value) * self.width

    def y(self, value: float) -> float:
        """Return the vertical place of a value, from the top."""
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
    """Draw {name: [(x, y), ...]}; with `is_share`, x and y are in [0, 1], and a diagonal is drawn.

    Lines `behind` the others are thin, without a name. The x axis includes 0 unless `from_zero` is
    False. Points that are not finite are left out.
    """
    drawn = {name: _keep_finite(points) for name, points in list(lines.items())[:MOST_LINES]}
    behind = [_keep_finite(points) for points in behind]
    if is_share:
        plot = _Plot(_Axis(0, 1), _Axis(0, 1))
        parts = [_grid(plot), _path(((0, 0), (1, 1)), plot, "diagonal")]
    else:
        plot = _fit([*drawn.values(), *behind], may_be_log, from_zero)
        parts = [_grid(plot)]
    parts += [_path(points, plot, "line thin") for points in behind]
    if mark is not None and plot.across.low <= mark <= plot.across.high:
        parts.append(f'<path class="mark" d="M{plot.x(mark):.1f} {_TOP}v{_PLOT_HEIGHT}"/>')
    legend = []
    for number, (name, points) in enumerate(drawn.items()):
        legend.append(Line(number % NUM_COLORS, number >= NUM_COLORS, name, None))
        parts += _draw_line(legend[-1], points, plot)
    left = len(lines) - len(drawn)
    note = f"{left} more are not drawn." if left else ""
    return Figure(title, _wrap(title, parts), legend, note)


def _draw_line(line: Line, points: Points, plot: _Plot) -> list[str]:
    style = f"line c{line.color}" + " dashed" * line.is_dashed
    dotted = points if len(points) <= _MOST_DOTS else ()
    dots = [_dot(x, y, plot, line.color) for x, y in dotted]
    return [_path(chart.thin(points, _MOST_POINTS), plot, style), *dots]


def _fit(lines: Sequence[Points], may_be_log: bool, from_zero: bool) -> _Plot:
    """Return a plot that is large enough for all lines."""
    points = [point for line in lines for point in line] or [(0, 0)]
    xs, ys = zip(*points, strict=True)
    across = _span(min(0, *xs) if from_zero else min(xs), max(xs), 0)
    if may_be_log and min(ys) > 0 and max(ys) > _LOG_FACTOR * min(ys):
        return _Plot(across, _Axis(math.log10(min(ys)), math.log10(max(ys)), True))
    return _Plot(across, _span(min(ys), max(ys), 0.06))


def _keep_finite(points: Points) -> Points:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _span(low: float, high: float, margin: float) -> _Axis:
    is_flat = low == high and margin > 0
    room = abs(high) * _ROOM if is_flat else (high - low) * margin
    low, high = low - room, high + room
    return _Axis(low, high if high > low else low + 1)


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
        if x + half <= ends:  # If two labels would touch, only the right one stays.
            parts.append(f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{told}</text>')
            ends = x - half
    return "".join([*parts, f'<path class="axis" d="M{left} {base}h{plot.width}"/>'])


def _wrap(title: str, parts: Sequence[str]) -> str:
    label = html.escape(title)
    head = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
    return "".join([head, *parts, "</svg>"])


def _short(value: float, step: float | None = None) -> str:
    """Return a round number in few characters, with the digits that a step between ticks needs."""
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
