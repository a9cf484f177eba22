"""Formats a table as lines of text with aligned columns.

lines = aligned.align_columns([("task", "loss"), ("click", "0.31")], right=[1])
"""

from collections.abc import Collection, Iterable, Sequence


def align_columns(rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return a line of text for each row of a table, with aligned columns.

    Args:
      rows: the cells of each row; all rows have the same number of cells.
      right: the indices of the columns that are aligned to the right, such as numbers.
    """
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
