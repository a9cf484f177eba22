"""Draws a chart with a bar and an interval for each number.

bar_charts.draw("auc", [bar_charts.Bar("age", 0.09, 0.07, 0.11)], "drop of auc")
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mtl.tools.drawing import axes, figures, texts

_NAMES, _RIGHT, _TOP, _ROW, _BAR = 150, 14, 6, 17, 10


class Bar(NamedTuple):
    """A number to draw as a bar, with a name and an optional interval.

    Attributes:
      name: the text to the left of the bar.
      value: the number that the bar shows.
      low: the lower end of the interval; NaN for no interval.
      high: the upper end of the interval; NaN for no interval.
    """

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan


def draw(
    title: str, bars: Sequence[Bar], across: str, note: str = "", near: float = 0.0
) -> figures.Figure:
    """Draw a bar for each number, to the right or to the left of 0.

    In place of a bar for a number that is not finite, the chart says "undefined".

    Args:
      title: the title of the figure.
      bars: the bars, from top to bottom.
      across: the name of the horizontal axis, with its unit.
      note: a line of text below the figure.
      near: a power of ten, the largest absolute value on a linear scale. Absolute values above
        `near` are on a logarithmic scale, so that a large number does not hide small numbers. 0 for
        a linear axis.
    """
    # `bar[1:]` contains the value and both ends of the interval.
    ends = [end for bar in bars for end in bar[1:] if axes.is_drawable(end)]
    # The axis must include 0, because all bars begin there.
    axis = axes.span([0.0, *ends])
    # If all drawn numbers lie between -near and near, the horizontal axis stays linear.
    if max(-axis.low, axis.high) > near:
        axis = axis._replace(near=near)
    names = max((texts.measure(bar.name) for bar in bars), default=0.0)
    left = min(_NAMES, names + axes.BESIDE)
    width, height = figures.WIDTH - left - _RIGHT, _ROW * len(bars)
    base = _TOP + height

    def place(value: float) -> float:
        return left + axis.place(value) * width

    parts = axes.draw_base(axis, across, left, width, base, grid=height)
    for number, bar in enumerate(bars):
        middle = _TOP + _ROW * (number + 0.5)
        at = texts.put(left - axes.BESIDE, middle + 4)
        parts.append(texts.write(bar.name, at, "end", left - axes.BESIDE))
        parts += _draw_bar(bar, middle, place)
    # Draw the line at 0 last, so that bars do not cover it.
    parts.append(f'<path class="axis" d="M{texts.trim(place(0))} {_TOP}V{base}"/>')
    return figures.Figure(title, "".join(parts), base + axes.BELOW, note=note)


def _draw_bar(bar: Bar, middle: float, place: Callable[[float], float]) -> list[str]:
    zero = place(0)
    if not axes.is_drawable(bar.value):
        # Write the text on the side of 0 that has more room.
        x, anchor = (zero - 4, "end") if zero > figures.WIDTH / 2 else (zero + 4, "start")
        return [texts.write("undefined", texts.put(x, middle + 4), anchor)]
    # Sort the ends, because an SVG rectangle cannot have a negative width.
    start, end = sorted((zero, place(bar.value)))
    sign = "plus" if bar.value >= 0 else "minus"
    size = f'width="{texts.trim(end - start)}" height="{_BAR}" rx="1.5"'
    parts = [f'<rect class="{sign}" {texts.put(start, middle - _BAR / 2)} {size}/>']
    if axes.is_drawable(bar.low) and axes.is_drawable(bar.high):
        first, last = texts.trim(place(bar.low)), texts.trim(place(bar.high))
        caps = "".join(f"M{x} {texts.trim(middle - 3)}v6" for x in (first, last))
        parts.append(f'<path class="whisker" d="M{first} {texts.trim(middle)}H{last}{caps}"/>')
    return parts
