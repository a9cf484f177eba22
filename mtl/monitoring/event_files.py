"""The scalars that a run wrote for TensorBoard, read back for its pictures.

for tag, step, value in event_files.read_scalars("runs/digits"): ...
"""

import contextlib
import math
from collections.abc import Iterator

import tensorflow as tf

from mtl.files import storage

tf1 = tf.compat.v1

Curves = dict[str, dict[int, float]]
"""{name: {step: value}}."""


def read_scalars(model_dir: str) -> Iterator[tuple[str, int, float]]:
    """Yield (tag, step, value) in the order of writing; values that are not finite are left out.

    A step that was written twice, as after a restore, comes twice: the last counts.
    """
    for path in storage.listed(model_dir, "events.out.tfevents."):
        for event in _read_events(path):
            for value in event.summary.value:
                if math.isfinite(value.simple_value):
                    yield value.tag, event.step, value.simple_value


def _read_events(path: str) -> Iterator[tf.compat.v1.Event]:
    """Yield the events of a file, up to where a run that was killed broke off."""
    with contextlib.suppress(tf.errors.DataLossError):
        yield from tf1.train.summary_iterator(path)
