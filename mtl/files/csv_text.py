"""Tables as CSV that people open in a spreadsheet: text of strangers in them is no formula.

text = csv_text.write([("task", "auc"), ("clicked", 0.75), ("=1+1", -0.5)])
csv_text.escape_formula("=1+1")               # "'=1+1"
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

# What makes a spreadsheet take a cell for a formula: OWASP, CSV Injection.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_SPECIAL = re.compile(r'[",\r\n]')
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.ASCII | re.IGNORECASE)


def write(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows, the header first, as CSV; numbers stay numbers, also those written as text."""
    return "".join(",".join(map(_tell, row)) + "\n" for row in rows)


def _tell(cell: Any) -> str:
    text = "" if cell is None else str(cell)
    if isinstance(cell, str) and not _NUMBER.fullmatch(cell):
        text = escape_formula(text)
    # Python's own writer leaves a bare carriage return without quotes, which ends a row.
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def escape_formula(text: str) -> str:
    """Return a text with an apostrophe before it if a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
