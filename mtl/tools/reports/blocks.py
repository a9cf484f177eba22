"""Defines the building blocks of HTML pages, such as tables, figures and commands.

blocks.Section("data", "Data", [blocks.Table(["split", "rows"], [["train", 1437]])])
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl.tools.drawing import figures as figures_lib
from mtl.tools.reports import baselines


class Marked(NamedTuple):
    """A table cell with the best value of its row."""

    value: Any


class Quiet(NamedTuple):
    """A table cell in a pale colour, for a less important value."""

    value: Any


class Right(NamedTuple):
    """A table cell with right-aligned text, such as a number with its sign."""

    text: str


class Bar(NamedTuple):
    """A table cell with a number in [0, 1], which is also drawn as a bar."""

    value: float


class Table(NamedTuple):
    """A table with a caption. Cells are texts, numbers, or special cells such as `Bar`."""

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""


class Figures(NamedTuple):
    """Pictures side by side."""

    figures: Sequence[figures_lib.Figure]
    title: str = ""


class Matrix(NamedTuple):
    """A matrix of counts, in which each cell is coloured by its share of the row."""

    title: str
    names: Sequence[str]
    counts: np.ndarray


class Text(NamedTuple):
    """A paragraph of text. The mood "warning" highlights the paragraph; "note" makes it pale."""

    text: str
    mood: str = ""


class Heading(NamedTuple):
    """A heading within a section."""

    text: str


class Commands(NamedTuple):
    """A list of shell commands, as pairs of a purpose and a command."""

    lines: Sequence[tuple[str, str]]


class Verdicts(NamedTuple):
    """A card for each task, which compares the model with a trivial model."""

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
    """A part of the page with a title."""

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
      sections: the sections in their order.
      left_out: a line for each missing section, with the reason.
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
      what: names the items, with a verb, such as "tasks are".
    """
    # Without the line, readers would take a part of the items for all items.
    return [Text(f"{shown} of {total} {what} shown.", "note")] if shown < total else []
