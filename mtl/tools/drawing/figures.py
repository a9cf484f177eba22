"""Combines several figures into a picture in a file, or writes single figures for a page.

svg = figures.lay_out("A run", [line_charts.draw_curves("loss", curves, "loss")])   # for a file
figure.title, figure.svg, figure.legend, figure.note                                # for a page
"""

import functools
import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from mtl.tools.drawing import texts

WIDTH = 360
STYLE = pathlib.Path(__file__).with_name("style.css").read_text()
"""The style sheet of charts in pages: colours for light and dark screens, then other rules."""
_COLUMNS, _GAP = 2, 24
_LINE, _TITLE_LINE = 14, 16
# Letters of titles are larger than the letters that `texts` measures.
_TITLE_WIDTH = WIDTH * texts.SIZE / 14
_SWATCH, _BETWEEN = 28, 12
_COLORS = 8


class Line(NamedTuple):
    """A line of the legend.

    Attributes:
      number: the place of the line in the figure, from 0, which determines its colour and dashes.
      name: the name of the line.
      last: the last value of the curve; None for a line without steps.
    """

    number: int
    name: str
    last: float | None = None

    @property
    def style(self) -> str:
        """The CSS classes for the line's colour and dashes, which differ for up to 64 lines."""
        return f"c{self.number % _COLORS} d{(self.number + self.number // _COLORS * 3) % _COLORS}"


class Figure(NamedTuple):
    """A drawing with its title and legend.

    Attributes:
      title: the title of the figure.
      body: the SVG elements of the drawing, which is `WIDTH` units wide.
      height: the height of the drawing, in units of the picture.
      legend: the lines of the legend; () for no legend.
      note: a line of text below the drawing; "" for none.
    """

    title: str
    body: str
    height: float
    legend: Sequence[Line] = ()
    note: str = ""

    @property
    def svg(self) -> str:
        """The drawing as SVG, for a page that contains the style sheet of this module."""
        return _open_figure(self.title, WIDTH, self.height) + self.body + "</svg>"


def lay_out(title: str, figures: Sequence[Figure]) -> str:
    """Return a picture with all figures, their titles and their legends, two figures in a row.

    Args:
      title: the title of the picture, for screen readers and the mouse pointer.
      figures: the figures, from left to right and from top to bottom.

    Returns:
      The content of an SVG file.
    """
    columns = min(_COLUMNS, max(1, len(figures)))
    top, parts = float(_GAP), []
    for first in range(0, len(figures), columns):
        panels = [_draw_panel(figure) for figure in figures[first : first + columns]]
        for number, (panel, _) in enumerate(panels):
            left = _GAP + number * (WIDTH + _GAP)
            # Start both figures of a row at the same height, even if a title takes several lines.
            parts.append(f'<g transform="translate({left} {texts.trim(top)})">\n{panel}\n</g>')
        top += max(height for _, height in panels) + _GAP
    return draw_picture(title, columns * (WIDTH + _GAP) + _GAP, top, parts)


def draw_picture(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """Return the content of an SVG file that adapts to dark screens and narrow windows.

    Args:
      title: the title of the picture, for screen readers and the mouse pointer.
      width: the width of the picture, in pixels.
      height: the height of the picture, in pixels.
      parts: the SVG elements of the picture.
    """
    head = _open_figure(title, width, height, f' width="{width:.0f}" height="{height:.0f}"')
    style = f"<style>\n{_style_file()}</style>"
    ground = '<rect class="ground" width="100%" height="100%"/>'
    return "\n".join([head, style, ground, *parts, "</svg>", ""])


@functools.cache
def _style_file() -> str:
    """Return the style sheet without CSS variables, which SVG editors do not support."""
    # A file needs only the rules of the style sheet, which come after the definitions of its
    # variables.
    rules = STYLE[STYLE.index("svg text") :]
    of_light, of_dark = (
        re.sub(r"var\((--\w+)\)", functools.partial(_find_color, colors), rules)
        # Colours for light screens come before "@media", and colours for dark screens after it.
        for colors in STYLE.split("@media")
    )
    fit = "svg { max-width: 100%; height: auto; }\n"
    return f"{fit}{of_light}@media (prefers-color-scheme: dark) {{\n{of_dark}}}\n"


def _find_color(colors: str, variable: re.Match[str]) -> str:
    return re.findall(rf"{variable[1]}: (#\w+)", colors)[0]


def _open_figure(title: str, width: float, height: float, size: str = "") -> str:
    text = texts.escape(title)
    box = f'viewBox="0 0 {width:.0f} {height:.0f}"{size}'
    name = f'role="img" aria-label="{text}"'
    # Screen readers read the title aloud, and browsers show it at the mouse pointer.
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} {name}><title>{text}</title>'


def _draw_panel(figure: Figure) -> tuple[str, float]:
    """Return a figure with its title above and its legend below, and the total height."""
    parts, y = [], 0.0
    for line in texts.wrap(figure.title, _TITLE_WIDTH):
        y += _TITLE_LINE
        parts.append(texts.write(line, texts.put(0, y - 4), width=_TITLE_WIDTH, style="title"))
    parts.append(f'<g transform="translate(0 {y + 4:.0f})">{figure.body}</g>')
    y += 4 + figure.height
    legend, height = _draw_legend(figure.legend, y)
    y += height
    parts += legend
    for line in texts.wrap(figure.note, WIDTH):
        y += _LINE
        parts.append(texts.write(line, texts.put(0, y - 4), width=WIDTH))
    return "\n".join(parts), y


def _draw_legend(lines: Sequence[Line], top: float) -> tuple[list[str], float]:
    """Draw the legend, in as many rows as the names of the lines need; also return its height."""
    parts, x, y = [], 0.0, top + _LINE
    for line in lines:
        room = min(texts.measure(line.name), WIDTH - _SWATCH)
        # A name that is longer than a row gets a separate row, which starts at x = 0.
        if x and x + _SWATCH + room > WIDTH:
            x, y = 0.0, y + _LINE
        parts.append(
            f'<path class="line {line.style}" d="M{texts.trim(x)} {texts.trim(y - 7)}h22"/>'
        )
        parts.append(texts.write(line.name, texts.put(x + _SWATCH, y - 3.5), width=room))
        x += _SWATCH + room + _BETWEEN
    return parts, y - top if lines else 0.0
