"""Draws line charts over steps or over other numbers.

line_charts.draw_curves("loss", {"train": {100: 0.5, 200: 0.1}}, "loss", mark=200)
line_charts.draw("ROC", {"cat": [(0.0, 0.0), (0.2, 0.9)]}, "false positive rate", "recall")
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from mtl.tools.drawing import axes, figures, texts

Points = Sequence[tuple[float, float]]

MOST_LINES = 40
_MOST_POINTS = 400
# The largest number of points of a line with a dot at each point.
_MOST_DOTS = 12
_TOP, _RIGHT, _PLOT_HEIGHT = 20, 12, 160
_HEIGHT = _TOP + _PLOT_HEIGHT + axes.BELOW
# The smallest space to the left of a plot, for the labels of its vertical axis.
_LEAST_LEFT = 36
_MARGIN = 0.06


@dataclasses.dataclass(frozen=True)
class _Plot:
    """Maps points to positions in the picture."""

    across: axes.Axis
    up: axes.Axis

    @functools.cached_property
    def left(self) -> float:
        """The left edge of the plot, to the right of the labels of the vertical axis."""
        widths = [texts.measure(label) for _, label in self.up.list_ticks(axes.MOST_TICKS)]
        return max(_LEAST_LEFT, math.ceil(max(widths, default=0)) + axes.BESIDE)

    @property
    def width(self) -> float:
        """The width of the plot, in units of the picture."""
        return figures.WIDTH - self.left - _RIGHT

    def x(self, value: float) -> float:
        """Return the horizontal position of a value, from the left."""
        return self.left + self.across.place(value) * self.width

    def y(self, value: float) -> float:
        """Return the vertical position of a value, from the top."""
        return _TOP + (1 - self.up.place(value)) * _PLOT_HEIGHT


def draw_curves(
    title: str,
    curves: Mapping[str, Mapping[int, float]],
    up: str,
    mark: int | None = None,
    may_be_log: bool = True,
) -> figures.Figure:
    """Draw curves over the steps of a training.

    Args:
      title: the title of the figure.
      curves: {name: {step: value}}; values that are not finite are left out.
      up: the name of the vertical axis, with its unit.
      mark: a step to mark by a dotted vertical line, such as the step of the best checkpoint.
      may_be_log: True to allow a logarithmic vertical axis.
    """
    lines = {name: sorted(points.items()) for name, points in curves.items() if points}
    figure = draw(title, lines, "step", up, mark=mark, may_be_log=may_be_log)
    # The legend shows the last value of a curve, even if this value is not finite.
    legend = [line._replace(last=lines[line.name][-1][1]) for line in figure.legend]
    return figure._replace(legend=legend)


def draw(  # noqa: PLR0913  Callers name the arguments.
    title: str,
    lines: Mapping[str, Points],
    across: str,
    up: str,
    *,
    mark: float | None = None,
    may_be_log: bool = False,
    is_share: bool = False,
    diagonal: bool = False,
    behind: Sequence[Points] = (),
    from_zero: bool = True,
) -> figures.Figure:
    """Draw lines through points.

    Args:
      title: the title of the figure.
      lines: {name: [(x, y), ...]}; lines beyond `MOST_LINES` are left out, with a note.
      across: the name of the horizontal axis, with its unit.
      up: the name of the vertical axis, with its unit.
      mark: a number on the horizontal axis to mark by a dotted vertical line.
      may_be_log: True to allow a logarithmic vertical axis.
      is_share: True if all numbers are in [0, 1]; both axes then show this range.
      diagonal: True to draw the line x = y.
      behind: lines that are drawn thinly in the background, and that the legend does not name.
      from_zero: False if the horizontal axis need not include 0.
    """
    finite = {name: _keep_finite(points) for name, points in list(lines.items())[:MOST_LINES]}
    behind = [_keep_finite(points) for points in behind]
    unit = axes.Axis(0.0, 1.0)
    # The plot must also have room for the lines in the background.
    all_lines = [*finite.values(), *behind]
    plot = _Plot(unit, unit) if is_share else _fit_plot(all_lines, may_be_log, from_zero)
    parts = _draw_frame(plot, across, up)
    parts += [_draw_path(points, plot, "line thin") for points in behind]
    if diagonal:
        # Draw the part of the diagonal that lies within both axes.
        ends = max(plot.across.low, plot.up.low), min(plot.across.high, plot.up.high)
        parts.append(_draw_path([(end, end) for end in ends], plot, "line diagonal"))
    if mark is not None and plot.across.low <= mark <= plot.across.high:
        parts.append(f'<path class="mark" d="M{texts.trim(plot.x(mark))} {_TOP}v{_PLOT_HEIGHT}"/>')
    legend = [figures.Line(number, name) for number, name in enumerate(finite)]
    for line in legend:
        parts += _draw_line(line, finite[line.name], plot)
    more = len(lines) - len(finite)
    note = f"{more} more are not drawn." if more else ""
    return figures.Figure(title, "".join(parts), _HEIGHT, legend, note)


def _draw_line(line: figures.Line, points: Points, plot: _Plot) -> list[str]:
    parts = [_draw_path(thin(points, _MOST_POINTS), plot, f"line {line.style}")]
    color = line.style.partition(" ")[0]
    # A line with a single point needs a dot to be visible.
    for x, y in points if len(points) <= _MOST_DOTS else ():
        at = f'cx="{texts.trim(plot.x(x))}" cy="{texts.trim(plot.y(y))}"'
        parts.append(f'<circle class="dot {color}" {at} r="2.5"/>')
    return parts


def _fit_plot(lines: Sequence[Points], may_be_log: bool, from_zero: bool) -> _Plot:
    """Return a plot that has room for all lines."""
    xs = [x for points in lines for x, _ in points]
    ys = [y for points in lines for _, y in points]
    # An axis of whole numbers, such as steps, has no ticks such as 2.5.
    is_whole = all(isinstance(x, int | np.integer) for x in xs)
    across = axes.span([*xs, 0] if from_zero else xs, is_whole=is_whole)
    return _Plot(across, axes.span(ys, _MARGIN, may_be_log))


def _keep_finite(points: Points) -> Points:
    return [point for point in points if all(map(axes.is_drawable, point))]


def _draw_path(points: Points, plot: _Plot, style: str) -> str:
    corners = [f"{texts.trim(plot.x(x))},{texts.trim(plot.y(y))}" for x, y in points]
    return f'<polyline class="{style}" points="{" ".join(corners)}"/>'


def thin(points: Points, most: int) -> Points:
    """Return at most `most` points of a line, with both ends and all spikes.

    The line is cut into stretches, and the lowest and the highest point of each stretch are kept,
    so that a single spike among thousands of points stays visible.

    Args:
      points: (x, y), sorted by x.
      most: the largest number of points to return, 4 or more.
    """
    if len(points) <= most:
        return points
    inner, result = points[1:-1], [points[0]]
    # Besides both ends of the line, the result has two points of each stretch.
    size = math.ceil(len(inner) / ((most - 2) // 2))
    for start in range(0, len(inner), size):
        stretch = inner[start : start + size]
        ends = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        # Sort by x, because the highest point may come before the lowest point.
        result += sorted(ends)
    return [*result, points[-1]]


def _draw_frame(plot: _Plot, across: str, up: str) -> list[str]:
    """Draw both axes of a plot with their names and ticks."""
    left, base = plot.left, _TOP + _PLOT_HEIGHT
    parts = [texts.write(up, texts.put(0, 10), width=figures.WIDTH)]
    for place, label in plot.up.list_ticks(axes.MOST_TICKS):
        y = _TOP + (1 - place) * _PLOT_HEIGHT
        parts.append(
            f'<path class="grid" d="M{texts.trim(left)} {texts.trim(y)}h{texts.trim(plot.width)}"/>'
        )
        parts.append(texts.write(label, texts.put(left - axes.BESIDE, y + 3.5), "end"))
    return parts + axes.draw_base(plot.across, across, left, plot.width, base)
