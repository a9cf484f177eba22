"""Draws the distribution of the values of a column in one or two data sets.

shares.draw_bins("age", {"train": [(0, 10, 0.2), (10, 20, 0.8)]})
shares.draw_values("city", ["Berlin", "Rome"], {"train": [0.7, 0.3], "new": [0.5, 0.5]})
"""

import math
from collections.abc import Mapping, Sequence

from mtl.tools.drawing import axes, figures, line_charts, texts

Bins = Sequence[tuple[float, float, float]]

_NAMES, _RIGHT, _TOP, _BAR, _GAP = 150, 14, 6, 8, 6
_STYLES = ("plus", "minus")
INNER = (0.005, 0.995)
"""The quantiles between which numbers are drawn, if few numbers lie far outside of them."""
# All numbers are drawn if they span at most this many times the range between the quantiles.
_FAR = 4.0


def draw_bins(title: str, sides: Mapping[str, Bins], note: str = "") -> figures.Figure:
    """Draw the outlines of histograms in the same plot.

    Args:
      title: the title of the figure.
      sides: {name of a data set: [(lower end, upper end, share)]}.
      note: a line of text below the figure.
    """
    lines = {name: _outline_bins(bins) for name, bins in sides.items()}
    figure = line_charts.draw(title, lines, "", "share of the values", from_zero=False)
    return figure._replace(note=note)


def choose_ends(
    least: float, greatest: float, inner_least: float, inner_greatest: float
) -> tuple[float, float, bool]:
    """Return the range to draw, and whether few numbers lie far outside of it.

    Args:
      least: the least number.
      greatest: the greatest number.
      inner_least: the quantile of the numbers for the first share in `INNER`.
      inner_greatest: the quantile of the numbers for the second share in `INNER`.
    """
    is_far = greatest - least > _FAR * (inner_greatest - inner_least) > 0
    return (inner_least, inner_greatest, True) if is_far else (least, greatest, False)


def fit_whole(low: float, high: float, most: int) -> tuple[float, float, int]:
    """Return the ends and the number of bins of a histogram of whole numbers.

    Every bin covers the same number of whole numbers.

    Args:
      low: the least number.
      high: the greatest number.
      most: the largest number of bins.

    Returns:
      The lower end of the first bin, the upper end of the last bin, and the number of bins. The
      lower and the upper end lie in the middle between two whole numbers.
    """
    low, high = math.floor(low), math.ceil(high)
    width = math.ceil((high - low + 1) / most)
    size = math.ceil((high - low + 1) / width)
    # The ends lie between whole numbers, so that no number lies on an edge of two bins.
    return low - 0.5, low - 0.5 + size * width, size


def _outline_bins(bins: Bins) -> list[tuple[float, float]]:
    """Return the corners of the outline of a histogram."""
    if not bins:
        return []
    steps = [corner for low, high, share in bins for corner in ((low, share), (high, share))]
    # Start and end at a height of 0, so that the outline is closed.
    return [(bins[0][0], 0.0), *steps, (bins[-1][1], 0.0)]


def draw_values(
    title: str, names: Sequence[str], sides: Mapping[str, Sequence[float]], note: str = ""
) -> figures.Figure:
    """Draw the share of each value, with a bar for each of at most two data sets.

    Args:
      title: the title of the figure, such as the column.
      names: the values of the column, from top to bottom.
      sides: {name of a data set: the share of each value, in [0, 1]}.
      note: a line of text below the figure.
    """
    axis = axes.span([0.0, *(share for shares in sides.values() for share in shares)])
    left = min(_NAMES, max(map(texts.measure, names), default=0.0) + axes.BESIDE)
    width, row = figures.WIDTH - left - _RIGHT, _BAR * len(sides) + _GAP
    base = _TOP + row * len(names)
    parts = axes.draw_base(axis, "share of the values", left, width, base, grid=row * len(names))
    for number, name in enumerate(names):
        top = _TOP + row * number + _GAP / 2
        middle = texts.put(left - axes.BESIDE, top + (row - _GAP) / 2 + 4)
        parts.append(texts.write(name, middle, "end", left - axes.BESIDE))
        for side, (style, shares) in enumerate(zip(_STYLES, sides.values(), strict=False)):
            size = f'width="{texts.trim(axis.place(shares[number]) * width)}" height="{_BAR}"'
            parts.append(f'<rect class="{style}" {texts.put(left, top + side * _BAR)} {size}/>')
    legend = [figures.Line(number, name) for number, name in enumerate(sides)]
    return figures.Figure(title, "".join(parts), base + axes.BELOW, legend, note)
