"""Describes how the files of a run write values, so that an export can read files without the run.

entries = file_settings.describe(experiment.data.source)    # JSON values, for model.json
source = file_settings.restore(entries)                     # for new files with such values
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from mtl.data import arrow, csv

_log = logging.getLogger(__name__)

CELL_SETTINGS = (
    "missing",
    "missing_in",
    "number_forms",
    "list_delimiter",
    "item_delimiter",
    "weight_delimiter",
)
"""The settings of `csv.Csv` that say how a text is read, in files of every format."""

_FILES = {"input": ""}


def list_inner(source: Any) -> list[Any]:
    """Return the innermost sources of nested sources, which read files; a `Mixture` has several."""
    parts = getattr(source, "sources", None)
    if isinstance(parts, Mapping):
        return [inner for part in parts.values() for inner in list_inner(part)]
    inner = getattr(source, "source", None)
    return [source] if inner is None else list_inner(inner)


def describe(source: Any) -> list[dict[str, Any]]:
    """Describe the settings by which the sources of a run read texts.

    The columns of the files, and the delimiter between them, are left out: the header of another
    file may differ.

    Args:
      source: the source of a run.

    Returns:
      The distinct settings, as JSON values, without settings that have their defaults. The returned
      list is empty if all sources have the defaults, and has several entries if sources differ.
    """
    entries: list[dict[str, Any]] = []
    for inner in list_inner(source):
        cells = inner if isinstance(inner, csv.Csv) else getattr(inner, "cells", None)
        if isinstance(cells, csv.Csv):
            # JSON turns tuples into lists, as in entries that were read from a file.
            entry = json.loads(json.dumps(_list_changes(cells)))
            entries += [entry] if entry not in entries else []
    return entries if any(entries) else []


def restore(entries: Sequence[Mapping[str, Any]]) -> arrow.Arrow | None:
    """Return a source with the settings that `describe` has returned, without files.

    Args:
      entries: the entries of `describe`; [] for an export of an earlier version.

    Returns:
      The source; None if the run's source has the default settings, or if the sources of the run
      differ, which logs a warning.
    """
    if len(entries) > 1:
        _log.warning(
            "The sources of the run write missing values, lists or numbers in different ways; this "
            "command reads them by the defaults of csv.Csv. Use --model_dir, or tf.Examples."
        )
    if len(entries) != 1:
        return None
    return arrow.Arrow(files=_FILES, cells=csv.Csv(files=_FILES, **entries[0]))


def _list_changes(cells: csv.Csv) -> dict[str, Any]:
    """Return the settings of cells that differ from their defaults."""
    plain, settings = csv.Csv(files=_FILES), {n: getattr(cells, n) for n in CELL_SETTINGS}
    return {name: value for name, value in settings.items() if value != getattr(plain, name)}
