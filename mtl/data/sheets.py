"""Reads spreadsheets (.xlsx, .xls, .ods) as tables of texts, like cells of a CSV file.

table = sheets.read_sheet("book.xlsx", "/tmp/copy", "Prices")   # a pa.Table of strings

The first row names the columns. `pip install 'multitask-estimator[excel]'` brings python-calamine.
"""

from __future__ import annotations

import datetime
import functools
import importlib.util
import logging
import re
import zipfile
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from mtl import checks, versions

_log = logging.getLogger(__name__)

ENDINGS = (".xlsx", ".xls", ".ods")
# Matches a formula cell without a value in an .xlsx file; the value of a text may be empty.
_FORMULA = re.compile(
    rb'<c r="([A-Z]+[0-9]+)"(?![^>]*t="str")[^>]*><f[^>]*(?:/>|>[^<]*</f>)(?:<v */>|<v></v>)?</c>'
)
# Spreadsheets are exact for whole numbers below this number.
_EXACT = 1e15


def read_sheet(path: str, copy: str, sheet: str) -> tuple[str, pa.Table]:
    """Return the name of a sheet, and the sheet as a table of texts; empty cells are null.

    Args:
      path: the file, for errors.
      copy: the path of the local copy to open.
      sheet: the name of the sheet; "" is the first sheet that is not hidden.

    Raises:
      UserError: the package is absent, the file is damaged, or the sheet is not a plain table.
    """
    calamine = _import(path)
    try:
        with open(copy, "rb") as file:
            book = calamine.CalamineWorkbook.from_filelike(file)
            name = _choose(path, calamine, book, sheet)
            worksheet = book.get_sheet_by_name(name)
            rows = worksheet.to_python(skip_empty_area=True)
            merged_ranges = getattr(worksheet, "merged_cell_ranges", None) or []
    except calamine.CalamineError as error:
        reason = " ".join(str(error).split())
        raise checks.UserError(f"{path} cannot be read as a spreadsheet: {reason}.") from error
    where = f"{path} sheet {name!r}"
    _warn_of_formulas(path, copy)
    for first, last in merged_ranges:
        cells = f"{_name_cell(*first)}:{_name_cell(*last)}"
        fix = "Unmerge the cells, and fill each cell: only the first of merged cells has a value."
        checks.fail(where, "have no merged cells", cells, fix)
    return name, _to_table(where, rows, worksheet.start or (0, 0))


def _import(path: str) -> Any:
    if importlib.util.find_spec("python_calamine") is None:
        fix = f"{versions.how_to_get('excel')} brings it."
        raise checks.UserError(f"{path} is a spreadsheet, which needs python-calamine. {fix}")
    import python_calamine

    return python_calamine


def _choose(path: str, calamine: Any, book: Any, sheet: str) -> str:
    if sheet:
        checks.one_of(f"{path}: the sheet", sheet, book.sheet_names)
        return sheet
    visible = calamine.SheetVisibleEnum.Visible, calamine.SheetTypeEnum.WorkSheet
    visible_names = [
        info.name for info in book.sheets_metadata if (info.visible, info.typ) == visible
    ]
    checks.require(
        bool(visible_names), path, "have a sheet that is not hidden", list(book.sheet_names)
    )
    if len(visible_names) > 1:
        _tell(path, visible_names[0], ", ".join(visible_names[1:]))
    return visible_names[0]


@functools.cache
def _tell(path: str, sheet: str, others: str) -> None:
    """Warn once that other sheets of a file are not read."""
    message = "%s: sheet %r is read. Arrow.sheet, or launch.new --sheet, chooses another sheet: %s."
    _log.warning(message, path, sheet, others)


@functools.cache
def _warn_of_formulas(path: str, copy: str) -> None:
    """Warn once if a formula has no stored value, as in a file that a Python package wrote."""
    if not zipfile.is_zipfile(copy):  # An .xls file is not a ZIP archive.
        return
    with zipfile.ZipFile(copy) as archive:
        names = [name for name in archive.namelist() if name.startswith("xl/worksheets/")]
        cells = [_FORMULA.search(archive.read(name)) for name in names]
    cell = next(filter(None, cells), None)
    if cell:
        message = "%s: the formula in cell %s has no stored value, so it counts as missing. %s"
        fix = "Save the file in a spreadsheet program, which computes the formula."
        _log.warning(message, path, cell.group(1).decode(), fix)


def _to_table(where: str, rows: Sequence[Sequence[Any]], start: tuple[int, int]) -> pa.Table:
    texts = [list(map(_to_text, row)) for row in rows]
    checks.require(bool(texts), where, "name the columns in its first row", "an empty sheet")
    names, body = texts[0], texts[1:]
    # Spreadsheets number their rows from 1, and the header is the first row.
    for number, row in enumerate(body, start[0] + 2):
        fix = "Delete the row, or the rows below it, if they are not of the table."
        checks.require(
            any(cell is not None for cell in row), where, "have no empty row", f"row {number}", fix
        )
    columns = {}
    for number, (name, cells) in enumerate(zip(names, zip(*texts, strict=True), strict=True)):
        at = _name_cell(start[0], start[1] + number)
        is_empty = all(cell is None for cell in cells)
        checks.require(name is not None or is_empty, where, f"name the column in cell {at}", "")
        checks.require(name not in columns, where, f"name each column once, also in {at}", name)
        if name is not None:
            columns[name] = pa.array(cells[1:], pa.string())
    return pa.table(columns)


def _to_text(value: Any) -> str | None:
    """Convert a cell to the text that a CSV file would hold; None if the cell is empty."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < _EXACT else repr(value)
    return str(value)


def _name_cell(row: int, column: int) -> str:
    """Return the name of a cell, such as "B7", given the row and column from 0."""
    # The columns A to Z, AA, AB, ... are numbers with digits from 1 to 26, without 0.
    letters, rest = "", column + 1
    while rest:
        rest, letter = divmod(rest - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return f"{letters}{row + 1}"
