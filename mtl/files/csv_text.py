"""Writes tables as CSV for spreadsheets, so that no text becomes a formula.

text = csv_text.write([("task", "auc"), ("clicked", 0.75), ("=1+1", -0.5)])
csv_text.escape_formula("=1+1")               # "'=1+1"
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

# A spreadsheet takes a cell with one of these beginnings for a formula: OWASP, CSV Injection.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_SPECIAL = re.compile(r'[",\r\n]')
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.ASCII | re.IGNORECASE)


def write(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV, the header first; a text that is a number stays a number."""
    return "".join(",".join(map(_write_cell, row)) + "\n" for row in rows)


def _write_cell(cell: Any) -> str:
    text = "" if cell is None else str(cell)
    if isinstance(cell, str) and not _NUMBER.fullmatch(cell):
        text = escape_formula(text)
    # Python's csv writer does not quote a bare carriage return, which ends a row.
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def escape_formula(text: str) -> str:
    """Return a text, with an apostrophe in front if a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
