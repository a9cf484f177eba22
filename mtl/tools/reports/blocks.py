"""Defines the building blocks of pages: tables, figures, matrices, commands.

blocks.Section("data", "Data", [blocks.Table(["split", "rows"], [["train", 1437]])])
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl.tools.drawing import figures as figures_lib
from mtl.tools.reports import baselines


class Marked(NamedTuple):
    """A cell with the best value of its row."""

    value: Any


class Quiet(NamedTuple):
    """A less important cell."""

    value: Any


class Right(NamedTuple):
    """A right-aligned cell of text, such as a number with its sign."""

    text: str


class Bar(NamedTuple):
    """A number in [0, 1] that the page also draws as a bar."""

    value: float


class Table(NamedTuple):
    """Rows of cells below a caption. Cells are text, numbers, or special cells of this module."""

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""


class Figures(NamedTuple):
    """Pictures side by side."""

    figures: Sequence[figures_lib.Figure]
    title: str = ""


class Matrix(NamedTuple):
    """Counts by row and column, each coloured by its share of its row."""

    title: str
    names: Sequence[str]
    counts: np.ndarray


class Text(NamedTuple):
    """A paragraph. With the mood "warning" it stands out; with "note" it is less visible."""

    text: str
    mood: str = ""


class Heading(NamedTuple):
    """A title within a section."""

    text: str


class Commands(NamedTuple):
    """Shell commands: pairs of a purpose and a command."""

    lines: Sequence[tuple[str, str]]


class Verdicts(NamedTuple):
    """A card for the verdict on each task."""

    verdicts: Sequence[baselines.Verdict]


class Side(NamedTuple):
    """Blocks in a narrow column beside blocks in a wide column, if there is room."""

    narrow: Sequence[Any]
    wide: Sequence[Any]


class Fold(NamedTuple):
    """Blocks that are hidden until a click on the title."""

    title: str
    blocks: Sequence[Any]


class Section(NamedTuple):
    """A part of the page with a title."""

    key: str
    title: str
    blocks: Sequence[Any]


class Page(NamedTuple):
    """A whole page.

    Attributes:
      title: the title of the page.
      state: a word or two, such as "finished".
      mood: "good", "warning" or "".
      lead: the lines under the title.
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
    """Return a line if not all items are shown, else [].

    Args:
      shown: the number of items on the page.
      total: the number of all items.
      what: the items and a verb, such as "tasks are".
    """
    # Without this line, a part would look like the whole.
    return [Text(f"{shown} of {total} {what} shown.", "note")] if shown < total else []
