"""Rows of cells as lines of text, with columns below each other.

lines = aligned.align_columns([("task", "loss"), ("click", "0.31")], right=[1])
"""

from collections.abc import Collection, Iterable, Sequence


def align_columns(rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return a line for each row; the columns `right`, such as numbers, end below each other."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
