"""What a page is made of, whatever it tells: tables, figures, matrices, commands.

blocks.Section("data", "Data", [blocks.Table(["split", "rows"], [["train", 1437]])])
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl.reports import baselines
from mtl.reports import figures as figures_lib


class Marked(NamedTuple):
    """A cell that is better than the others of its row."""

    value: Any


class Quiet(NamedTuple):
    """A cell that is there for completeness."""

    value: Any


class Right(NamedTuple):
    """A cell of text that stands at the right, such as a number with its sign."""

    text: str


class Bar(NamedTuple):
    """A number in [0, 1] that is also drawn."""

    value: float


class Table(NamedTuple):
    """Rows of cells: text, numbers, or one of the cells above; `caption` stands above it."""

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
    """A paragraph; a `mood` of "warning" stands out, one of "note" steps back."""

    text: str
    mood: str = ""


class Heading(NamedTuple):
    """A title within a section."""

    text: str


class Commands(NamedTuple):
    """What to type, each after what it is for."""

    lines: Sequence[tuple[str, str]]


class Verdicts(NamedTuple):
    """A card for each task."""

    verdicts: Sequence[baselines.Verdict]


class Side(NamedTuple):
    """Blocks in a narrow column beside others in a wide one, where there is room."""

    narrow: Sequence[Any]
    wide: Sequence[Any]


class Fold(NamedTuple):
    """Blocks that open on a click."""

    title: str
    blocks: Sequence[Any]


class Section(NamedTuple):
    """A part of the page with a title of its own."""

    key: str
    title: str
    blocks: Sequence[Any]


class Page(NamedTuple):
    """A whole page.

    Attributes:
      title: of the page.
      state: a word or two on it, such as "finished".
      mood: "good", "warning" or "".
      lead: the lines under the title.
      sections: in their order.
      left_out: what has no section, and why.
    """

    title: str
    state: str
    mood: str
    lead: Sequence[str]
    sections: Sequence[Section]
    left_out: Sequence[str]


def say_cut(shown: int, total: int, what: str) -> list[Text]:
    """Return a line where less is shown than there is, else none."""
    return [Text(f"{shown} of {total} {what} shown.", "note")] if shown < total else []
