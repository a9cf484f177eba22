"""Writes the items of a training for TensorBoard: some once at its start, others at due steps.

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
    """Writes the summaries that are due in a step, and some items before the first step.

    A continued run writes an item of the start only if the item has changed.

    Args:
      result: the result of the step.
      model_dir: the folder of the run.
      start: {item: a function that makes its event from the time in seconds}.
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
        # A run without items of training steps has no such output.
        return () if self._result.due is None else (self._result.due,)

    def on_step(self, run_context, step: int, values: np.ndarray, due: bytes = b"") -> None:
        """Write the summaries that were due."""
        if due:
            self._writer.add_summary(keep_whole(tf1.Summary.FromString(due)), step)
            self._writer.flush()

    def _write_start(self, step: int) -> None:
        path = os.path.join(self._model_dir, FILE)
        # A run that starts anew writes everything, even over the file of an earlier run.
        before = _read_file(path) if step else {}
        after = {}
        for item, make in self._start.items():
            # With time 0, the checksums of a run and of its continuation are equal.
            after[item] = zlib.crc32(make(0).SerializeToString(deterministic=True))
            if before.get(item) != after[item]:
                event = make(time.time())
                # With step 0, TensorBoard would assume a restart, and hide later events.
                event.step = step
                self._writer.add_event(event)
        self._writer.flush()
        if after != before:
            atomic.write(path, json.dumps(after, indent=1))


class Session(tf.compat.v1.train.SessionRunHook):
    """Writes for HParams the metrics of each evaluation, and the end of the run.

    It must come after the hooks that evaluate.

    Args:
      model_dir: the folder of the run.
      metrics: returns the metrics of the last evaluation, None before the first.
      chosen: the metrics that HParams shows.
    """

    def __init__(
        self,
        model_dir: str,
        metrics: Callable[[], Mapping[str, Any] | None],
        chosen: Sequence[str],
    ):
        self._model_dir, self._metrics, self._chosen = model_dir, metrics, chosen
        self._evaluated: int | None = None

    def after_run(self, run_context, run_values):
        self._write_metrics()

    def end(self, session):
        # An interrupted run does not get here, but a run that stopped early does.
        self._write_metrics()
        self._write(once.end_session(), int(session.run(tf1.train.get_global_step())))

    def _write_metrics(self) -> None:
        metrics = self._metrics()
        if metrics is not None and metrics["global_step"] != self._evaluated:
            self._evaluated = int(metrics["global_step"])
            summary = once.write_metrics(metrics, self._chosen)
            self._write(keep_whole(summary), self._evaluated)

    def _write(self, summary: tf.compat.v1.Summary, step: int) -> None:
        writer = tf1.summary.FileWriterCache.get(self._model_dir)
        writer.add_summary(summary, step)
        writer.flush()


def keep_whole(summary: tf.compat.v1.Summary) -> tf.compat.v1.Summary:
    """Return a summary without empty histograms and scalars that are not finite.

    TensorBoard draws an empty histogram as a bar at the largest number.
    """
    whole = tf1.Summary()
    for value in summary.value:
        kind = value.WhichOneof("value")
        is_empty = kind == "histo" and value.histo.num == 0
        is_broken = kind == "simple_value" and not np.isfinite(value.simple_value)
        if not is_empty and not is_broken:
            whole.value.add().CopyFrom(value)
    return whole


def _read_file(path: str) -> dict[str, Any]:
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path, "rb") as file:
        try:
            content = json.loads(file.read())
        # If the file is damaged, all items are written again. Deep nesting is a RecursionError.
        except (ValueError, RecursionError):
            return {}
    return content if isinstance(content, dict) else {}
