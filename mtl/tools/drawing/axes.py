"""Maps numbers to an axis, and draws it with round ticks: steps of 1, 2 or 5, or powers of ten.

axis = axes.span([0.2, 3.1], margin=0.06)
axis.place(1.0)                                   # in [0, 1]
axis.list_ticks(5)                                # [(place, "1"), (place, "2"), (place, "3")]
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from mtl.tools.drawing import figures, texts

# The smallest ratio of the largest to the smallest value on a logarithmic axis.
_LOG_FACTOR = 50
# The space on both sides of a constant value, as a share of the value.
_ROOM = 0.2
# The largest and the smallest positive number that an axis can draw. Ranges or logarithms of
# numbers beyond `_MOST` or `_LEAST` may overflow.
_MOST, _LEAST = 1e300, 1e-300
# Differences between numbers are rounding errors if they are below this share of the numbers.
_DIGITS = 1e-13
MOST_TICKS = 5
BESIDE = 6
"""The space between the label of a tick and its axis, in units of the picture."""
BELOW = 34
"""The space for the labels below a horizontal axis, in units of the picture."""
# Labels of numbers from `_PLAIN_FROM` to `_PLAIN_BELOW` have no exponent, unlike 1e-5.
_PLAIN_FROM, _PLAIN_BELOW = 1e-4, 1e9


class Axis(NamedTuple):
    """A range of numbers along an axis of a plot.

    Attributes:
      low: the number at the start of the axis.
      high: the number at the end of the axis.
      is_log: True for a logarithmic axis.
      is_whole: True if only whole numbers get ticks.
      near: if above 0, the axis is about linear between -near and near, and logarithmic outside.
    """

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False
    near: float = 0.0

    def place(self, value: float) -> float:
        """Return the position of a number along the axis.

        Args:
          value: a number between `low` and `high`; above 0 if the axis is logarithmic.

        Returns:
          The position, in [0, 1].
        """
        low, high, here = (self._bend_value(number) for number in (self.low, self.high, value))
        return (here - low) / (high - low)

    def _bend_value(self, value: float) -> float:
        if self.is_log:
            return math.log10(value)
        return math.asinh(value / self.near) if self.near else value

    def list_ticks(self, most: int) -> list[tuple[float, str]]:
        """Return round numbers at which the axis has ticks.

        Args:
          most: about the largest number of ticks.

        Returns:
          A list with (position in [0, 1], label) for each tick, from `low` to `high`.
        """
        if self.is_log:
            ends = math.log10(self.low), math.log10(self.high)
            powers = _list_multiples(*ends, max(1, _round_up((ends[1] - ends[0]) / most)))
            return [(self.place(10.0**n), _tell_number(10.0**n, 10.0**n, 10.0**n)) for n in powers]
        if self.near:
            return self._list_bent(most)
        step = _round_up((self.high - self.low) / most)
        step = max(step, 1) if self.is_whole else step
        largest = max(abs(self.low), abs(self.high))
        ticks = _list_multiples(self.low, self.high, step)
        return [(self.place(tick), _tell_number(tick, step, largest)) for tick in ticks]

    def _list_bent(self, most: int) -> list[tuple[float, str]]:
        """Return ticks at 0, and on both sides of 0 at `near` times powers of ten."""
        largest = max(abs(self.low), abs(self.high), self.near)
        # Add 1e-9, because rounding may put the logarithm of a power of ten below a whole number.
        powers = math.floor(math.log10(largest / self.near) + 1e-9) + 1
        # Multiply by 2, because ticks lie on both sides of 0.
        stride = math.ceil(2 * powers / most)
        sizes = [self.near * 10.0**n for n in range(powers - 1, -1, -stride)]
        ticks = [*(-size for size in sizes), 0.0, *reversed(sizes)]
        ticks = [tick for tick in ticks if self.low <= tick <= self.high]
        return [(self.place(tick), _tell_number(tick, abs(tick) or 1, largest)) for tick in ticks]


def span(
    values: Sequence[float], margin: float = 0.0, may_be_log: bool = False, is_whole: bool = False
) -> Axis:
    """Return an axis that covers all values.

    Args:
      values: numbers for which `is_drawable` is true; an empty list counts as one 0.
      margin: the space on each side, as a share of the range of the values.
      may_be_log: True for a logarithmic axis if all values are positive and the largest is more
        than 50 times the smallest.
      is_whole: True if only whole numbers get ticks.
    """
    low, high = min(values, default=0.0), max(values, default=0.0)
    # Divide by `_LOG_FACTOR`, because a product could overflow.
    if may_be_log and low > _LEAST and high / _LOG_FACTOR > low:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return Axis(10.0**first, 10.0**last, is_log=True)
    largest = max(abs(low), abs(high))
    # If all values are equal up to rounding, the axis still needs a length.
    if high - low <= max(largest * _DIGITS, _LEAST):
        room = largest * _ROOM if largest > _LEAST and margin else 0.0
        return Axis(low - room, high + (room or max(1.0, largest * _ROOM)), is_whole=is_whole)
    room = (high - low) * margin
    return Axis(low - room, high + room, is_whole=is_whole)


def is_drawable(value: float) -> bool:
    """Return True for a finite number that is so small that differences do not overflow."""
    return abs(value) < _MOST


def _round_up(value: float) -> float:
    """Return the smallest number from `value` on that is 1, 2 or 5 times a power of ten."""
    size = 10.0 ** math.floor(math.log10(value))
    # Multiply by 0.999, so that a rounding error does not turn a step of 2 into a step of 5.
    return next(factor * size for factor in (1, 2, 5, 10) if factor * size >= value * 0.999)


def _list_multiples(low: float, high: float, step: float) -> list[float]:
    # Multiples of the step are precise; adding up steps would also add up rounding errors.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _tell_number(value: float, step: float, largest: float) -> str:
    """Return a number as text, with as many digits as ticks at this distance need."""
    # A number far smaller than a step, such as 1e-17, is a rounding error of 0.
    if abs(value) < step / 1e6:
        return "0"
    power = math.floor(math.log10(step) + 1e-9)
    if _PLAIN_FROM <= largest < _PLAIN_BELOW:
        return f"{value:,.{max(0, -power)}f}"
    digits = max(0, math.floor(math.log10(abs(value)) + 1e-9) - power)
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def draw_base(
    axis: Axis, name: str, left: float, width: float, base: float, grid: float = -3
) -> list[str]:
    """Draw a horizontal axis with its name, and with as many labelled ticks as fit.

    Args:
      axis: the range of numbers that the axis covers.
      name: the text below the axis, with its unit.
      left: the left end of the axis, in units of the picture.
      width: the length of the axis, in units of the picture.
      base: the distance of the axis from the top of the picture.
      grid: the length of the vertical line at each tick; a line of positive length goes upwards,
        and a line of negative length downwards.
    """
    parts = [f'<path class="axis" d="M{texts.trim(left)} {base}h{texts.trim(width)}"/>']
    # Draw lines across the plot paler than short marks below the axis.
    kind = "grid" if grid > 0 else "axis"
    for tick in _fit_ticks(axis, left, width):
        parts.append(f'<path class="{kind}" d="M{texts.trim(tick.x)} {base}v{-grid}"/>')
        parts.append(texts.write(tick.label, texts.put(tick.middle, base + 14), "middle"))
    return [*parts, texts.write(name, texts.put(left + width, base + 28), "end", left + width)]


class _Tick(NamedTuple):
    """A tick of a horizontal axis, whose label is shifted if it would leave the picture."""

    x: float
    label: str
    half: float

    @property
    def middle(self) -> float:
        """The horizontal position of the middle of the label."""
        return max(self.half, min(self.x, figures.WIDTH - self.half))


def _fit_ticks(axis: Axis, left: float, width: float) -> list[_Tick]:
    """Return as many ticks as have room beside each other."""
    ticks: list[_Tick] = []
    # Try fewer and fewer ticks, because long labels need more room; the last try has one tick.
    for most in range(MOST_TICKS + 1, 0, -1):
        ticks = [
            _Tick(left + at * width, label, texts.measure(label) / 2)
            for at, label in axis.list_ticks(most)
        ]
        pairs = itertools.pairwise(ticks)
        if all(b.middle - b.half - BESIDE >= a.middle + a.half for a, b in pairs):
            break
    return ticks
