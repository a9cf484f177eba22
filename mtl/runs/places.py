"""Finds the places of a batch's rows in their split, such as `data/train.csv line 331`.

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
    """Find the places of rows in the training split.

    The split is read record by record, for at most `secs`. The place of a row is the first record
    with the same values in all fields. A row that lacks a field of the spec gets no place, because
    its other fields may match many records.

    Args:
      data: the pipeline of the run.
      rows: {field: value} of each row, with the row's number in the batch as "row".
      secs: the time limit in seconds.

    Returns:
      {number of the row: its place}, for the rows that were found in time.
    """
    fields = data.spec.fields
    numbers: dict[Hashable, list[int]] = {}
    for row in rows:
        numbers.setdefault(_make_key(row, fields), []).append(row["row"])
    numbers.pop(None, None)  # Rows without a key match no record.
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
