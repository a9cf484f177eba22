"""Finds the settings of a run's source that also apply to other files with rows of the run.

settings = run_source.find_csv(experiment.data.source)       # for CSV files
settings = run_source.find_arrow(experiment.data.source)     # for Parquet files and spreadsheets
settings = run_source.find_json_lines(experiment.data.source)        # for JSON lines
cells = run_source.find_cells(experiment.data.source)        # for DataFrames

A text has the same meaning in files of all formats. The settings of the run's `csv.Csv` for lists,
missing values and forms of numbers also apply to spreadsheets, and the settings `arrow.Arrow.cells`
of the run also apply to CSV files.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from mtl import checks
from mtl.data import arrow, csv, file_settings, frames, json_lines, stored_rows

_Source = TypeVar("_Source")
_WITH_CELLS = (
    csv.Csv,
    arrow.Arrow,
    frames.Frames,
    stored_rows.StoredRows,
    json_lines.JsonLines,
)


def find_settings(source: Any, kind: type[_Source]) -> _Source | None:
    """Return the source of a run that has a given class; parts such as `Splits` wrap sources.

    Args:
      source: the source of a run.
      kind: the class, such as `csv.Csv`.

    Returns:
      The source, whose `files` are the files of the training; None if no source has the class
      `kind`.

    Raises:
      UserError: a `Mixture` has several sources of the class, whose settings differ.
    """
    sources = [inner for inner in file_settings.list_inner(source) if isinstance(inner, kind)]
    return _choose(sources, _drop_files)


def find_csv(source: Any) -> csv.Csv:
    """Return the settings for a CSV file: the run's `csv.Csv`, or else its `Arrow.cells`.

    Args:
      source: the source of a run, or None.

    Raises:
      UserError: a `Mixture` has sources with different settings.
    """
    return find_settings(source, csv.Csv) or find_cells(source)


def find_arrow(source: Any) -> arrow.Arrow:
    """Return settings for tables: the run's `Arrow`, or an `Arrow` with the run's cell settings.

    Args:
      source: the source of a run, or None.

    Raises:
      UserError: a `Mixture` has sources with different settings.
    """
    settings = find_settings(source, arrow.Arrow)
    return settings or arrow.Arrow(files={"input": ""}, cells=find_cells(source))


def find_json_lines(source: Any) -> json_lines.JsonLines:
    """Return the settings for JSON lines: the run's `JsonLines`, or else the settings of its cells.

    Args:
      source: the source of a run, or None.
    """
    settings = find_settings(source, json_lines.JsonLines)
    cells = None
    # If sources read texts differently, ignore their settings: JSON can hold numbers and null
    # without texts.
    with contextlib.suppress(checks.UserError):
        cells = _find_own_cells(source)
    return settings or json_lines.JsonLines(files={"input": ""}, cells=cells)


def find_cells(source: Any) -> csv.Csv:
    """Return the settings by which a run reads texts, such as the marks of missing values.

    Args:
      source: the source of a run, or None.

    Raises:
      UserError: a `Mixture` has sources with different settings.
    """
    return _find_own_cells(source) or frames.PLAIN_CSV


def _find_own_cells(source: Any) -> csv.Csv | None:
    """Return the settings by which a run reads texts; None if the run has none."""
    cells = [
        inner if isinstance(inner, csv.Csv) else inner.cells
        for inner in file_settings.list_inner(source)
        if isinstance(inner, _WITH_CELLS)
    ]
    return _choose([one for one in cells if one is not None], _take_cell_settings)


def _choose(sources: list[_Source], describe: Callable[[Any], Any]) -> _Source | None:
    """Return the first source; fail unless the descriptions of all sources are equal."""
    descriptions = [describe(source) for source in sources]
    for other in descriptions[1:]:
        differing = [name for name in other if other[name] != descriptions[0].get(name)]
        if differing:
            name = differing[0]
            raise checks.UserError(
                f"The sources of the run differ in {type(sources[0]).__name__}.{name}, "
                f"{descriptions[0].get(name)!r} and {other[name]!r}, so it is not clear how to "
                "read further rows. Write the rows as JSON lines or tf.Examples."
            )
    return sources[0] if sources else None


def _drop_files(source: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(source)]
    return {name: getattr(source, name) for name in names if name not in ("files", "data_dir")}


def _take_cell_settings(cells: csv.Csv) -> dict[str, Any]:
    return {name: getattr(cells, name) for name in file_settings.CELL_SETTINGS}
