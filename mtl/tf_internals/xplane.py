"""Reads the files of TensorFlow's profiler, whose protocol buffers are not public.

for plane in xplane.read("runs/a/plugins/profile/2026_11_24"):
    for line in plane.lines:                                  # a thread, or a stream of a GPU
        for event in line.events:                             # name, start and end in ps, stats
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from mtl import deferred
from mtl.deferred import tf

with deferred.imports():
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

_ENDING = ".xplane.pb"


class Event(NamedTuple):
    """An event of a thread or a stream.

    Attributes:
      name: the name of the event.
      start: the time at which the event starts, in picoseconds.
      end: the time at which the event ends, in picoseconds.
      stats: {name of a statistic: its value}.
    """

    name: str
    start: int
    end: int
    stats: dict[str, Any]


class Plane(NamedTuple):
    """A device, with its threads or streams.

    Attributes:
      name: the name of the device, such as "/host:CPU".
      lines: (name, events in order) for each thread or stream.
    """

    name: str
    lines: list[tuple[str, list[Event]]]


def read(folder: str) -> Iterator[Plane]:
    """Yield the planes (devices) in all profiler files of a folder."""
    for name in sorted(tf.io.gfile.listdir(folder)):
        if name.endswith(_ENDING):
            with tf.io.gfile.GFile(os.path.join(folder, name), "rb") as file:
                space = xplane_pb2.XSpace.FromString(file.read())
            for plane in space.planes:
                yield Plane(
                    plane.name, [(line.name, _read_line(plane, line)) for line in plane.lines]
                )


def _read_line(plane: Any, line: Any) -> list[Event]:
    names = {key: value.name for key, value in plane.event_metadata.items()}
    first, events = line.timestamp_ns * 1000, []
    for event in line.events:
        start = first + event.offset_ps
        stats = {
            plane.stat_metadata[s.metadata_id].name: _read_value(plane, s) for s in event.stats
        }
        events.append(Event(names[event.metadata_id], start, start + event.duration_ps, stats))
    return events


def _read_value(plane: Any, stat: Any) -> Any:
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind) if kind else None
    # The profiler stores a repeated text only once, among the names of statistics.
    return plane.stat_metadata[value].name if kind == "ref_value" else value
