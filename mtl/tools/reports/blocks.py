"""Defines the building blocks of HTML pages, such as tables, figures and commands.

blocks.Section("data", "Data", [blocks.Table(["split", "rows"], [["train", 1437]])])
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl.tools.drawing import figures as figures_lib
from mtl.tools.reports import baselines


class Marked(NamedTuple):
    """A table cell that is highlighted, because it holds the best value of its row.

    Attributes:
      value: a text or a number.
    """

    value: Any


class Quiet(NamedTuple):
    """A table cell in a pale colour, for a less important value.

    Attributes:
      value: a text or a number.
    """

    value: Any


class Right(NamedTuple):
    """A table cell with right-aligned text, such as a number with its sign."""

    text: str


class Bar(NamedTuple):
    """A table cell that shows a share in percent, and also as a bar.

    Attributes:
      value: the share that the cell shows, in [0, 1].
    """

    value: float


class Table(NamedTuple):
    """A table with a header and a caption.

    Attributes:
      header: the titles of the columns.
      rows: the cells of each row, one for each column: texts, numbers, or special cells such as
        `Bar`.
      caption: a line of text above the table; "" for none.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""


class Figures(NamedTuple):
    """Pictures side by side.

    Attributes:
      figures: the pictures, from left to right.
      title: a heading above the pictures; "" for none.
    """

    figures: Sequence[figures_lib.Figure]
    title: str = ""


class Matrix(NamedTuple):
    """A confusion matrix, in which each cell is coloured by its share of the row.

    Attributes:
      title: a line of text above the matrix.
      names: the names of C classes.
      counts: the number of rows, or the sum of their weights, for each [true class, predicted
        class], [C, C].
    """

    title: str
    names: Sequence[str]
    counts: np.ndarray


class Text(NamedTuple):
    """A paragraph of text.

    Attributes:
      text: the text of the paragraph.
      mood: the look of the paragraph: "warning" for highlighted text, "note" for pale text, "" for
        normal text.
    """

    text: str
    mood: str = ""


class Heading(NamedTuple):
    """A heading within a section."""

    text: str


class Commands(NamedTuple):
    """A list of shell commands.

    Attributes:
      lines: pairs of a purpose and a command.
    """

    lines: Sequence[tuple[str, str]]


class Verdicts(NamedTuple):
    """Cards that compare the model with a trivial model, one card for each task.

    Attributes:
      verdicts: the comparisons of the model with trivial models, in the order of the cards.
    """

    verdicts: Sequence[baselines.Verdict]


class Side(NamedTuple):
    """A narrow column of blocks beside a wide column, if the window is wide enough."""

    narrow: Sequence[Any]
    wide: Sequence[Any]


class Fold(NamedTuple):
    """Blocks that stay hidden until the reader clicks on the title."""

    title: str
    blocks: Sequence[Any]


class Section(NamedTuple):
    """A part of the page with a title.

    Attributes:
      key: the id of the section in HTML, which no other section of the page has.
      title: the title of the section, which the menu of the page also shows.
      blocks: the content of the section, from top to bottom.
    """

    key: str
    title: str
    blocks: Sequence[Any]


class Page(NamedTuple):
    """A whole HTML page.

    Attributes:
      title: the title of the page.
      state: the state of the run in a word or two, such as "finished".
      mood: the colour of the state: "good", "warning" or "".
      lead: lines of text under the title.
      sections: the sections of the page, from top to bottom.
      left_out: a line for each section that the page lacks, with the reason.
    """

    title: str
    state: str
    mood: str
    lead: Sequence[str]
    sections: Sequence[Section]
    left_out: Sequence[str]


def say_cut(shown: int, total: int, what: str) -> list[Text]:
    """Return [a line that says how many items are shown], or [] if all are shown.

    Args:
      shown: the number of items on the page.
      total: the number of all items.
      what: the name of the items and a verb for the line, such as "tasks are".
    """
    # Without a line about left-out items, readers might believe that the page shows all items.
    return [Text(f"{shown} of {total} {what} shown.", "note")] if shown < total else []
