"""Writes TensorBoard items: some once at the start of a training, others at due steps.

hook = writing.Writing(result, model_dir, start)     # start: the items written once
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import deferred
from mtl.deferred import tf, tf1
from mtl.files import atomic
from mtl.step import training_loop
from mtl.tools.tensorboard import once

with deferred.imports():
    from mtl.monitoring import hooks

FILE = "tensorboard.json"


class Writing(hooks.StepHook):
    """Writes the summaries of TensorBoard items, at their steps or before the first step.

    A run that continues writes an item of its start, such as the graph, again only if the item has
    changed.

    Args:
      result: the result of a training step.
      model_dir: the folder of the run.
      start: the items to write once at the start, {item: a function from the time in seconds to the
        event of the item}.
    """

    def __init__(
        self,
        result: training_loop.StepResult,
        model_dir: str,
        start: Mapping[str, Callable[[float], tf.compat.v1.Event]],
    ):
        super().__init__(result)
        self._model_dir, self._start = model_dir, start

    def begin(self):
        self._writer = hooks.open_writer(self._model_dir)

    def after_create_session(self, session, coord):
        step = int(session.run(tf1.train.get_global_step()))
        self._write_start(step)

    def choose_more(self, step):
        # Without items of training steps, a step has no output `due`.
        return () if self._result.due is None else (self._result.due,)

    def on_step(self, run_context, step: int, values: np.ndarray, due: bytes = b"") -> None:
        """Write the summaries of the TensorBoard items that a step has computed."""
        if due:
            self._writer.add_summary(keep_whole(tf1.Summary.FromString(due)), step)
            self._writer.flush()

    def _write_start(self, step: int) -> None:
        path = os.path.join(self._model_dir, FILE)
        # A run that starts at step 0 writes all items, even if the folder has the file of an
        # earlier run.
        old_checksums = _read_file(path) if step else {}
        new_checksums = {}
        for item, make in self._start.items():
            # Use the time 0 for the checksum, so that the checksum is the same if the run
            # continues.
            new_checksums[item] = zlib.crc32(make(0).SerializeToString(deterministic=True))
            if old_checksums.get(item) != new_checksums[item]:
                event = make(time.time())
                # With step 0 instead, TensorBoard would assume a restart, and hide earlier events
                # of later steps.
                event.step = step
                self._writer.add_event(event)
        self._writer.flush()
        if new_checksums != old_checksums:
            atomic.write(path, json.dumps(new_checksums, indent=1))


class Session(tf.compat.v1.train.SessionRunHook):
    """Writes the metrics of each evaluation and the end of the run for HParams.

    In the list of hooks, this hook must come after hooks that evaluate.

    Args:
      model_dir: the folder of the run.
      metrics: a function that returns the metrics of the last evaluation; None before the first
        evaluation.
      names: the names of the metrics that HParams shows.
    """

    def __init__(
        self,
        model_dir: str,
        metrics: Callable[[], Mapping[str, Any] | None],
        names: Sequence[str],
    ):
        self._model_dir, self._metrics, self._names = model_dir, metrics, names
        self._evaluated: int | None = None

    def after_run(self, run_context, run_values):
        self._write_metrics()

    def end(self, session):
        # TensorFlow calls `end` after early stopping, but not after an interruption.
        self._write_metrics()
        self._write(once.end_session(), int(session.run(tf1.train.get_global_step())))

    def _write_metrics(self) -> None:
        metrics = self._metrics()
        if metrics is not None and metrics["global_step"] != self._evaluated:
            self._evaluated = int(metrics["global_step"])
            summary = once.write_metrics(metrics, self._names)
            self._write(keep_whole(summary), self._evaluated)

    def _write(self, summary: tf.compat.v1.Summary, step: int) -> None:
        writer = tf1.summary.FileWriterCache.get(self._model_dir)
        writer.add_summary(summary, step)
        writer.flush()


def keep_whole(summary: tf.compat.v1.Summary) -> tf.compat.v1.Summary:
    """Return a summary without empty histograms and scalars that are not finite.

    TensorBoard would draw an empty histogram as a bar at the largest float.
    """
    clean_summary = tf1.Summary()
    for value in summary.value:
        kind = value.WhichOneof("value")
        is_empty = kind == "histo" and value.histo.num == 0
        is_broken = kind == "simple_value" and not np.isfinite(value.simple_value)
        if not is_empty and not is_broken:
            clean_summary.value.add().CopyFrom(value)
    return clean_summary


def _read_file(path: str) -> dict[str, Any]:
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path, "rb") as file:
        try:
            content = json.loads(file.read())
        # If tensorboard.json is damaged, write all items of the start again. Deeply nested JSON
        # raises a RecursionError.
        except (ValueError, RecursionError):
            return {}
    return content if isinstance(content, dict) else {}
