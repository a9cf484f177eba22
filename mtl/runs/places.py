"""Finds the file and line of rows in a batch, such as `data/train.csv line 331`.

places.find_places(data, [{"row": 5, "age": 41.0}])       # {5: "data/train.csv line 331"}
"""

import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from mtl.data import pipeline
from mtl.spec import fields as fields_lib

_SECS = 10.0


def find_places(
    data: pipeline.Pipeline, rows: Sequence[Mapping[str, Any]], secs: float = _SECS
) -> dict[int, str]:
    """Find the files and lines of rows in the training split.

    The split is read record by record, for at most `secs`. A row and a record match if they have
    the same values in all fields; the first match counts. A row that lacks a field of the spec is
    left out, because its other fields may match many records.

    Args:
      data: the pipeline of the run.
      rows: {field: value} of each row, with the row's number in the batch as "row".
      secs: the time limit in seconds.

    Returns:
      {number of the row in the batch: its file and line}, for rows that were found within the time
      limit.
    """
    fields = data.spec.fields
    numbers: dict[Hashable, list[int]] = {}
    for row in rows:
        numbers.setdefault(_make_key(row, fields), []).append(row["row"])
    numbers.pop(None, None)  # Leave out rows that lack a field.
    if not numbers:
        return {}
    places: dict[int, str] = {}
    end = time.monotonic() + secs
    for place, values in data.source.scan(data.train_split, data.spec):
        if len(places) == len(rows) or time.monotonic() > end:
            break
        if not isinstance(values, str):
            for number in numbers.get(_make_key(values, fields), ()):
                places.setdefault(number, place)
    return places


def _make_key(row: Mapping[str, Any], fields: Mapping[str, fields_lib.Field]) -> Hashable:
    try:
        return tuple(_make_value(row[name], field.dtype) for name, field in fields.items())
    except (KeyError, TypeError, ValueError):
        return None


def _make_value(value: Any, dtype: str) -> Hashable:
    if dtype != "string":
        return np.ravel(np.asarray(value, dtype)).tobytes()
    texts = np.ravel(np.asarray(value, object))
    return tuple(t.decode(errors="replace") if isinstance(t, bytes) else str(t) for t in texts)
