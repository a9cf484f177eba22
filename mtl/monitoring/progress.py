"""Shows the progress of a run: a bar on a terminal, otherwise a log line every 10 seconds.

progress.Progress(result, last_step=1000, batch_size=64, losses=["income", "never_married"])
with progress.tell_while(lambda: "exporting step 1000"):     # work between steps, or after them
    ...

"waiting" is the share of the time in which steps wait for batches. If steps wait for a large share
of the time, the input pipeline slows the run down.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tqdm

from mtl import deferred
from mtl.deferred import tf1
from mtl.step import training_loop

with deferred.imports():
    from mtl.monitoring import hooks

_log = logging.getLogger(__name__)

_LOG_SECS = 10.0
_LINE_TASKS = 8
# Formats of tqdm: `_WIDE` has all fields; `_NARROW` lacks elapsed time and steps per second.
_WIDE = "{l_bar}{bar}{r_bar}"
_NARROW = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{remaining} left{postfix}]"
# A text may grow by this number of columns before tqdm shows it, because tqdm updates the rate.
_SPARE_COLUMNS = 2


@contextlib.contextmanager
def tell_while(describe: Callable[[], str]) -> Iterator[None]:
    """Log the current work about every 10 seconds in a `with` block.

    Args:
      describe: returns a description of the work, such as "exporting step 1000".
    """
    end_event, start = threading.Event(), time.perf_counter()

    def tell() -> None:
        while not end_event.wait(_LOG_SECS):
            _log.info("Still %s, after %.0f s", describe(), time.perf_counter() - start)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end_event.set()
        thread.join()


class Progress(hooks.StepHook):
    """Shows the step, the time left, examples per second, the share of waiting time, and losses.

    On a terminal, the hook shows a bar as wide as the terminal; otherwise it logs a line about
    every 10 seconds. The log record of each line has the numbers as `fields`, for `--json_log`.

    Args:
      result: the tensors that a training step computes, such as its losses.
      last_step: the step at which the run ends.
      batch_size: the number of rows of a step, over all replicas.
      losses: the names of the losses to show beside their sum.
    """

    def __init__(
        self,
        result: training_loop.StepResult,
        last_step: int,
        batch_size: int,
        losses: Sequence[str] = (),
    ):
        super().__init__(result)
        self._last_step, self._batch_size = last_step, batch_size
        self._loss = result.names.index("loss")
        # The loss of a single task equals the sum, so it is not shown twice.
        names = losses if len(losses) > 1 else ()
        self._losses = {name: result.names.index(f"{name}/loss") for name in names}

    def after_create_session(self, session, coord):
        self._first = self._step = int(session.run(tf1.train.get_global_step()))
        self._logged = time.perf_counter()
        self._bar = tqdm.tqdm(
            total=self._last_step,
            initial=self._first,
            unit="step",
            # Hide the bar if the log lines of mtl are hidden.
            disable=not (sys.stderr.isatty() and _log.isEnabledFor(logging.INFO)),
            dynamic_ncols=True,
            leave=False,
        )

    def on_step(self, run_context, step, values):
        is_logged = time.perf_counter() - self._logged > _LOG_SECS or step == self._last_step
        if is_logged or not self._bar.disable:
            self._show_step(step, self._describe(step, values), is_logged)
        self._step = step

    def _show_step(self, step: int, fields: dict[str, Any], is_logged: bool) -> None:
        if not self._bar.disable:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns - _SPARE_COLUMNS
            self._bar.bar_format, words = self._fit_words(step, fields, columns)
            self._bar.set_postfix_str(words, refresh=False)
            self._bar.update(step - self._step)
        if is_logged:
            self._logged = time.perf_counter()
            # If a bar shows the numbers, write the line only to log files, such as the file of
            # --json_log.
            level = logging.INFO if self._bar.disable else logging.DEBUG
            line = "step %d of %d, %s, %.0f s left"
            details = (step, self._last_step, self._tell(fields, _LINE_TASKS), fields["secs_left"])
            _log.log(level, line, *details, extra={"fields": fields})

    def _describe(self, step: int, values: np.ndarray) -> dict[str, Any]:
        """Return the numbers to show, {name: number}."""
        steps_per_sec = (step - self._first) / self.time.secs
        fields: dict[str, Any] = {"step": step, "loss": float(values[self._loss])}
        fields["losses"] = {name: float(values[at]) for name, at in self._losses.items()}
        fields["examples_per_sec"] = steps_per_sec * self._batch_size
        if self.time.waited_secs is not None:
            fields["input_wait_share"] = self.time.waited_secs / self.time.secs
        return {**fields, "secs_left": (self._last_step - step) / steps_per_sec}

    def _fit_words(self, step: int, fields: dict[str, Any], columns: int) -> tuple[str, str]:
        """Return the format of the progress bar, and the longest text that fits beside the bar."""
        loss = {"loss": fields["loss"], "losses": {}}
        speed = {**loss, "examples_per_sec": fields["examples_per_sec"]}
        tasks = min(len(self._losses), _LINE_TASKS)
        # List the texts from the longest to the shortest, and show the first text that fits.
        choices = [(_WIDE, fields, number) for number in range(tasks, -1, -1)]
        choices += [(_NARROW, shown_fields, 0) for shown_fields in (fields, speed, loss)]
        # Without `ncols`, tqdm makes a bar of ten columns, the smallest that is allowed.
        state = {**self._bar.format_dict, "n": step, "ncols": None}
        for bar, shown_fields, number in choices:
            words = self._tell(shown_fields, number)
            line = tqdm.tqdm.format_meter(**state | {"bar_format": bar, "postfix": words})
            if len(line) <= columns:
                return bar, words
        return _NARROW, ""

    def _tell(self, fields: dict[str, Any], num_tasks: int) -> str:
        """Return `fields` as text, with the losses of the first `num_tasks` tasks."""
        texts = []
        if "examples_per_sec" in fields:
            texts.append(f"{fields['examples_per_sec']:,.0f} examples/s")
        if "input_wait_share" in fields:
            texts.append(f"waiting {fields['input_wait_share']:.0%}")
        texts.append(f"loss {fields['loss']:.4g}")
        losses = list(fields["losses"].items())
        # If the sum is finite, a NaN means that the batch of the step has no label of the task.
        absent = "(no label)" if math.isfinite(fields["loss"]) else "nan"
        texts += [
            f"{name} {absent if math.isnan(loss) else f'{loss:.4g}'}"
            for name, loss in losses[:num_tasks]
        ]
        more = len(losses) - num_tasks
        return ", ".join(texts + [f"{more} more"] * (0 < more < len(losses)))

    def end(self, session):
        self._bar.close()
