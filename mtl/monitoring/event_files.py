"""Reads the scalars that a run wrote for TensorBoard, to draw pictures and reports.

record = event_files.read_record("runs/digits")
record.curves["loss"][100], record.broken                # 0.31, {"loss": {740}}
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import NamedTuple

from mtl.deferred import tf, tf1
from mtl.files import storage

Curves = dict[str, dict[int, float]]
"""{name: {step: value}}."""


class Record(NamedTuple):
    """The scalars of a folder; for steps that were trained again, only the last values.

    Attributes:
      curves: {tag of a scalar: {step: value}}, with finite values.
      broken: {tag: steps at which the value was NaN or infinite}.
    """

    curves: Curves
    broken: dict[str, set[int]]


def read_record(directory: str) -> Record:
    """Return all scalars of a folder; if a step was written twice, the last value counts.

    Returns:
      The scalars; an empty record if the folder has no event files.
    """
    record = Record({}, {})
    # Sorted names are in the order of time, because a name contains the second in which the file
    # was created.
    for path in storage.listed(directory, "events.out.tfevents."):
        for event in _read_events(path):
            if event.session_log.status == tf1.SessionLog.START:
                _forget_from(record, event.step)
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    _add_value(record, value.tag, event.step, value.simple_value)
    return record


def _add_value(record: Record, tag: str, step: int, value: float) -> None:
    record.curves.setdefault(tag, {}).pop(step, None)
    if math.isfinite(value):
        record.curves[tag][step] = value
        record.broken.get(tag, set()).discard(step)
    else:
        record.broken.setdefault(tag, set()).add(step)


def _forget_from(record: Record, first: int) -> None:
    """Remove steps from `first` on, which a continued run has trained again."""
    for points in record.curves.values():
        for step in [step for step in points if step >= first]:
            del points[step]
    for steps in record.broken.values():
        steps.difference_update([step for step in steps if step >= first])


def _read_events(path: str) -> Iterator[tf.compat.v1.Event]:
    """Yield the events of a file; stop at an event that a killed run has written only in part."""
    with contextlib.suppress(tf.errors.DataLossError):
        yield from tf1.train.summary_iterator(path)
