"""Writes CSV files in which spreadsheet programs cannot mistake a text for a formula.

text = csv_text.write([("task", "auc"), ("clicked", 0.75), ("=1+1", -0.5)])
csv_text.escape_formula("=1+1")               # "'=1+1"
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

# Spreadsheet programs read cells with these first characters as formulas: OWASP, CSV Injection.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_SPECIAL = re.compile(r'[",\r\n]')
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.ASCII | re.IGNORECASE)


def write(rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as CSV, with an apostrophe before texts that look like formulas.

    Args:
      rows: the rows, of which the first is the header. None becomes an empty cell. A text that is a
        number, such as "-0.5", gets no apostrophe.

    Returns:
      The text of the file, in which every row ends with a line feed.
    """
    return "".join(",".join(map(_write_cell, row)) + "\n" for row in rows)


def _write_cell(cell: Any) -> str:
    text = "" if cell is None else str(cell)
    if isinstance(cell, str) and not _NUMBER.fullmatch(cell):
        text = escape_formula(text)
    # Python's csv writer does not quote a bare carriage return, which would end a row.
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def escape_formula(text: str) -> str:
    """Put an apostrophe in front of a text that a spreadsheet program would read as a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
