"""Renders a page as a single HTML file, without scripts and without links to other files.

html = page.render(blocks.Page(...))
"""

import functools
import pathlib
from typing import Any

import jinja2
import markupsafe
import numpy as np

from mtl.monitoring import summary
from mtl.tools.drawing import figures, texts
from mtl.tools.reports import blocks

# A matrix writes the names of its columns vertically if the longest name has more than
# `_MOST_LETTERS` characters, and if the length of this name times the number of columns exceeds
# `_MOST_LETTERS_IN_ALL`.
_MOST_LETTERS, _MOST_LETTERS_IN_ALL = 6, 48
_FOLDER = pathlib.Path(__file__).with_name("templates")


def render(page: blocks.Page) -> str:
    """Return a page as HTML that is also valid XML."""
    return _make_environment().get_template("page.html.jinja").render(page=page)


@functools.cache
def _make_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        # A misspelt name in a template must raise an error instead of leaving a cell empty.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Before values are escaped, replace characters that XML forbids.
        finalize=_clean_text,
    )
    environment.filters.update(short=shorten, exact=summary.exactly, percent=_write_percent)
    environment.tests.update(
        crowded=_is_crowded, real=is_number, right=_is_right, of_kind=_is_of_kind
    )
    environment.globals.update(cells=_list_cells, figure_style=figures.STYLE)
    return environment


def is_number(value: Any) -> bool:
    """Return True if the value of a cell is a number."""
    # Exclude bool, because True is an int in Python.
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_of_kind(item: Any, kind: str) -> bool:
    """Return True if `kind` is the name of the class of a block or a cell, such as "Table"."""
    return type(item).__name__ == kind


def _is_right(cell: Any) -> bool:
    """Return True if a cell is right-aligned."""
    if isinstance(cell, blocks.Marked | blocks.Quiet):
        return is_number(cell.value)
    return isinstance(cell, blocks.Right | blocks.Bar) or is_number(cell)


def shorten(value: Any) -> str:
    """Return a number as text.

    Args:
      value: the number. Integers keep all digits, with commas between thousands; other numbers get
        as many digits as in the output of `launch.evaluate`.
    """
    return f"{value:,}" if isinstance(value, int | np.integer) else summary.shorten(float(value))


def _is_crowded(matrix: blocks.Matrix) -> bool:
    """Return True if the names of a matrix's columns must be written vertically."""
    longest = max(map(len, matrix.names), default=0)
    return longest > _MOST_LETTERS and len(matrix.names) * longest > _MOST_LETTERS_IN_ALL


def _write_percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _list_cells(matrix: blocks.Matrix) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return the rows of a matrix as (name, cells), with the count and the share of each cell."""
    totals = matrix.counts.sum(axis=1)
    return [
        (name, [(float(c), float(c / total) if total else 0.0) for c in row])
        for name, row, total in zip(matrix.names, matrix.counts, totals, strict=True)
    ]


def _clean_text(value: Any) -> Any:
    # Markup is SVG or HTML that this package has made, without forbidden characters.
    is_text = isinstance(value, str) and not isinstance(value, markupsafe.Markup)
    return texts.replace_unprintable(value) if is_text else value
