"""Describes how the files of a run write rows, so that an export can read files without the run.

entries = file_settings.describe(experiment.data.source)    # JSON values, for model.json
source = file_settings.restore(entries)                     # for new files with such rows
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping, Sequence
from typing import Any

from mtl.data import arrow, csv

_LEFT_OUT = ("files", "data_dir", "window")  # They belong to the files of the training.
_FILES = {"input": ""}


def list_inner(source: Any) -> list[Any]:
    """Return the innermost of nested sources, which describe files: several for a `Mixture`."""
    parts = getattr(source, "sources", None)
    if isinstance(parts, Mapping):
        return [inner for part in parts.values() for inner in list_inner(part)]
    inner = getattr(source, "source", None)
    return [source] if inner is None else list_inner(inner)


def describe(source: Any) -> list[dict[str, Any]]:
    """Describe the settings by which the sources of a run read texts, lists and missing values.

    Args:
      source: the source of a run.

    Returns:
      An entry for each source of text or tables, as JSON values: {"csv": settings}, {"arrow":
      settings}, or {"cells": settings} for rows from memory. Settings with default values are left
      out; [] if all settings have their defaults.
    """
    entries: list[dict[str, Any]] = []
    for inner in list_inner(source):
        if isinstance(inner, csv.Csv):
            entries.append({"csv": _list_changes(inner)})
        elif isinstance(inner, arrow.Arrow):
            changes = _list_changes(inner)
            entries.append({"arrow": {**changes, "cells": _list_changes(inner.cells)}})
        elif isinstance(getattr(inner, "cells", None), csv.Csv):
            entries.append({"cells": _list_changes(inner.cells)})
    # Lists in place of tuples, so that entries are equal to entries that were read from a file.
    defaults = ({"csv": {}}, {"arrow": {"cells": {}}}, {"cells": {}})
    return [] if all(entry in defaults for entry in entries) else json.loads(json.dumps(entries))


def restore(entries: Sequence[Mapping[str, Any]]) -> Any:
    """Return a source with the settings that `describe` has returned, without files.

    Args:
      entries: the entries of `describe`; [] for an export of an earlier version.
    """
    sources: dict[int, Any] = {}
    for number, entry in enumerate(entries):
        [(kind, settings)] = entry.items()
        if kind == "csv":
            sources[number] = csv.Csv(files=_FILES, **settings)
        else:
            of_files = settings if kind == "arrow" else {"cells": settings}
            cells = csv.Csv(files=_FILES, **of_files["cells"])
            sources[number] = arrow.Arrow(files=_FILES, **{**of_files, "cells": cells})
    return types.SimpleNamespace(sources=sources)


def _list_changes(source: Any) -> dict[str, Any]:
    """Return the settings of a source that differ from their defaults."""
    changes = {}
    for field in dataclasses.fields(source):
        value = getattr(source, field.name)
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        if field.name not in (*_LEFT_OUT, "cells") and value != default:
            changes[field.name] = value
    return changes
