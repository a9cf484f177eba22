"""Draws a matrix of numbers as coloured cells with named rows and columns, or as pixels.

matrices.draw("cosines", ["a", "b"], ["a", "b"], [[1, -0.2], [-0.2, 1]], "task", "other task")
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mtl.tools.drawing import axes, figures, texts

_NAMES, _TOP, _RIGHT = 130, 20, 12
# The height of a line of text, and the angle of slanted names in degrees.
_LETTER, _SLANT = 11, 50
# Columns narrower than `_NARROW` have vertical names. No cell is wider than `_WIDEST` or
# higher than `_HIGHEST`.
_NARROW, _WIDEST, _HIGHEST = 20, 56, 26
# The smallest absolute value of a coloured cell.
_FAINT = 0.005
# The largest total height of all rows.
_MOST_HEIGHT = 340
_PIXELS, _KEY, _STRENGTH = 200, 12, 0.6


class _Grid(NamedTuple):
    """The position of the first cell, the size of a cell, and the angle of the columns' names."""

    left: float
    top: float
    width: float
    height: float
    angle: int = 0


def draw(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]] | np.ndarray,
    down: str,
    across: str,
) -> figures.Figure:
    """Draw a matrix of numbers, with stronger colours for larger absolute values.

    Negative numbers are red, with a minus sign. If rows or columns are too narrow for all names,
    only some of the names are written.

    Args:
      title: the title of the figure.
      rows: the names of R rows.
      columns: the names of C columns.
      values: numbers in [-1, 1], [R, C]; a NaN crosses out its cell.
      down: the name of the axis of rows.
      across: the name of the axis of columns.
    """
    cells = np.asarray(values, float).reshape(len(rows), len(columns))
    grid = _fit_grid(rows, columns, down)
    parts = [texts.write(across, texts.put(grid.left, 10), width=figures.WIDTH - grid.left)]
    room = grid.left - axes.BESIDE
    parts.append(texts.write(down, texts.put(room, grid.top - 6), "end", room))
    parts += [*_name_rows(rows, grid), *_name_columns(columns, grid), *_draw_cells(cells, grid)]
    bottom = grid.top + grid.height * len(rows)
    parts += _draw_key(cells, grid.left, bottom + 8)
    return figures.Figure(title, "".join(parts), bottom + 8 + _KEY + 4)


def _fit_grid(rows: Sequence[str], columns: Sequence[str], down: str) -> _Grid:
    """Choose the position and the size of cells, with room for the names of rows and columns."""
    longest = min(_NAMES, max(map(texts.measure, columns), default=0.0))
    count = max(len(columns), 1)
    # If there are few columns, the names of rows get more room.
    room = max(_NAMES, figures.WIDTH - _RIGHT - longest - count * _WIDEST)
    left = min(room, max(map(texts.measure, [*rows, down])) + axes.BESIDE)
    share = (figures.WIDTH - left - _RIGHT) / count
    # Write names horizontally if they fit above their columns. Slant names that do not fit
    # horizontally if columns are wide enough, or else write the names vertically.
    angle = 0 if longest <= min(share, _WIDEST) - 4 else _SLANT if share >= _NARROW else 90
    turn = math.radians(angle)
    # The slanted name of the last column reaches beyond the matrix.
    right = max(_RIGHT, longest * math.cos(turn) if angle else 0)
    width = min((figures.WIDTH - left - right) / count, _WIDEST)
    height = min(max(width, 14), _HIGHEST, _MOST_HEIGHT / max(len(rows), 1))
    top = _TOP + longest * math.sin(turn) + _LETTER * math.cos(turn)
    return _Grid(left, top, width, height, angle)


def _name_rows(rows: Sequence[str], grid: _Grid) -> list[str]:
    room, parts = grid.left - axes.BESIDE, []
    # If rows are lower than a letter, write only every n-th name.
    for i in range(0, len(rows), math.ceil(_LETTER / grid.height)):
        at = texts.put(room, grid.top + (i + 0.5) * grid.height + 4)
        parts.append(texts.write(rows[i], at, "end", room))
    return parts


def _name_columns(columns: Sequence[str], grid: _Grid) -> list[str]:
    parts = []
    for j in range(0, len(columns), math.ceil(_LETTER / grid.width)):
        x, y = grid.left + (j + 0.5) * grid.width, grid.top - 5
        if grid.angle:
            at = f"translate({texts.trim(x + 3)} {texts.trim(y)}) rotate(-{grid.angle})"
            parts.append(texts.write(columns[j], f'transform="{at}"', width=_NAMES))
        else:
            parts.append(texts.write(columns[j], texts.put(x, y), "middle"))
    return parts


def _draw_cells(cells: np.ndarray, grid: _Grid) -> list[str]:
    """Draw the cells, and write their numbers if there is room."""
    gap = 1 if grid.width > 4 else 0
    # Without "crispEdges", browsers blur the edges between cells.
    parts = ['<g shape-rendering="crispEdges">']
    for (i, j), value in np.ndenumerate(cells):
        x, y = grid.left + j * grid.width, grid.top + i * grid.height
        wide, high = texts.trim(grid.width - gap), texts.trim(grid.height - gap)
        if not math.isfinite(value):
            # Cross out a cell without a value, so that it does not look like 0.
            line = f"M{texts.trim(x)} {texts.trim(y + grid.height - gap)}l{wide} -{high}"
            parts.append(f'<path class="grid" d="{line}"/>')
            continue
        if abs(value) >= _FAINT:
            size = f'width="{wide}" height="{high}"'
            parts.append(_draw_cell(float(value), f"{texts.put(x, y)} {size}"))
        # If the number has no room, write only its sign, because some readers do not see colours.
        for text in (f"{value:.2f}", "-" if value < 0 else ""):
            if text and texts.measure(text) <= grid.width - 2 and grid.height >= _LETTER:
                at = texts.put(x + grid.width / 2, y + grid.height / 2 + 4)
                parts.append(texts.write(text, at, "middle", style="told"))
                break
    return [*parts, "</g>"]


def _draw_cell(value: float, place: str) -> str:
    sign = "plus" if value >= 0 else "minus"
    return f'<rect class="{sign}" {place} fill-opacity="{min(abs(value), 1.0) * _STRENGTH:.2f}"/>'


def _draw_key(cells: np.ndarray, left: float, top: float) -> list[str]:
    """Draw a key that shows the colours of some round numbers."""
    numbers = [n / 4 for n in range(-4 if (cells < 0).any() else 0, 5)]
    parts = []
    for place, value in enumerate(numbers):
        at = f'{texts.put(left + 24 + place * _KEY, top)} width="{_KEY}" height="{_KEY - 2}"'
        parts.append(_draw_cell(value, at))
    ends = ((left + 20, "end", numbers[0]), (left + 28 + len(numbers) * _KEY, "start", 1.0))
    labels = [texts.write(f"{value:g}", texts.put(x, top + 9), anchor) for x, anchor, value in ends]
    return [*parts, *labels]


def draw_pixels(title: str, values: np.ndarray) -> figures.Figure:
    """Draw the attribution of each pixel of an image, relative to the largest attribution.

    Args:
      title: the title of the figure.
      values: attributions of any size and sign, [H, W].
    """
    # If all attributions are 0, divide by 1 instead of 0.
    most = float(np.abs(values).max()) or 1.0
    height, width = values.shape
    size = min(_PIXELS / max(height, width), 24.0)
    left, top = (figures.WIDTH - size * width) / 2, 6
    parts = _draw_cells(values / most, _Grid(left, top, size, size))
    frame = f'width="{texts.trim(size * width)}" height="{texts.trim(size * height)}"'
    parts.append(f'<rect class="axis" {texts.put(left, top)} {frame}/>')
    bottom = top + size * height + 8
    parts += _draw_key(values, left, bottom)
    return figures.Figure(title, "".join(parts), bottom + _KEY + 4)
