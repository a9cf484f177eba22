"""Records a profile of the session calls that run some training steps.

profiling = hook.Profiling((100, 110), "runs/a", settings)
due_at = profiling.due_at                          # steps at which session calls have to end
training_hooks = [profiling.build_hook(result)]
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Sequence
from typing import Any

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.files import atomic
from mtl.step import training_loop
from mtl.tools.profiling import advice, memory, op_times, profile, table, words

_log = logging.getLogger(__name__)

FOLDER = "profile"
# The folder of a run in which TensorBoard's plug-in looks for profiles.
_RAW = os.path.join("plugins", "profile")


class Profiling:
    """The profile of some steps of a run.

    A separate session call traces each op and each tensor in the last step of the profile. Tracing
    is slow, so the measured times leave out the last step.

    Args:
      between: the global steps at which the profile begins and ends.
      model_dir: the folder of the run.
      settings: the settings of the run that `advice.advise` may suggest to change.
      traces_ops: True to trace the ops in the last step of the profile.
    """

    def __init__(
        self,
        between: Sequence[int],
        model_dir: str,
        settings: advice.Settings,
        traces_ops: bool = True,
    ):
        self.begin, self.end = between
        self.model_dir, self.settings = model_dir, settings
        self.traces_ops = traces_ops
        self._hook: _Hook | None = None

    @property
    def due_at(self) -> tuple[int, ...]:
        """The global steps at which a session call must end."""
        # The session call between the last two steps traces the ops.
        return (self.begin, self.end - 1, self.end)

    def build_hook(self, result: training_loop.StepResult) -> _Hook:
        """Return the hook for a session, which must come before all other hooks of the session."""
        self._hook = _Hook(self, result)
        return self._hook

    def close(self) -> None:
        """Discard the profile if training ends before the last profiled step."""
        if self._hook is not None:
            self._hook.stop(save=False)

    @property
    def name(self) -> str:
        """The path of the profile's table, without the file extension."""
        return os.path.join(self.model_dir, FOLDER, f"step_{self.begin}_{self.end}")


class _Hook(tf.compat.v1.train.SessionRunHook):
    """Starts and stops TensorFlow's profiler, and marks each session call in the profile."""

    def __init__(self, profiling: Profiling, result: training_loop.StepResult):
        self._profiling, self._result = profiling, result
        self._graph = tf1.get_default_graph()
        # Find the phases of ops only when the profile is written: a run may end without a profile.
        self._attribution = functools.cache(lambda: words.Attribution(self._graph))
        self._is_active = self._is_done = False
        self._calls, self._timed = 0, 0
        self._trace: Any = None
        self._metadata: Any = None

    def after_create_session(self, session, coord):
        self.stop(save=False)  # If a session was lost while it was profiled, drop the profile.
        self._step = int(session.run(tf1.train.get_global_step(session.graph)))
        begin, end = self._profiling.begin, self._profiling.end
        if self._step > begin and not self._is_done:
            self._is_done = True
            # An earlier process of this run may have written the profile already.
            if not tf.io.gfile.exists(f"{self._profiling.name}.txt"):
                line = "No profile of steps %d to %d: training goes on from step %d"
                _log.warning(line, begin, end, self._step)

    def before_run(self, run_context):
        if self._step == self._profiling.begin and not (self._is_active or self._is_done):
            self._start_profiler()
        # Fetch the global step at the end of the call, which shows how many steps the call took.
        args = tf1.train.SessionRunArgs(self._result.step)
        if self._is_active:
            self._trace = tf.profiler.experimental.Trace(profile.CALL, step_num=self._step)
            self._trace.__enter__()
            if self._is_last and self._profiling.traces_ops:
                # Record the times of CPU ops and the allocations of memory.
                options = tf1.RunOptions(trace_level=tf1.RunOptions.SOFTWARE_TRACE)
                return args._replace(options=options)
        return args

    @property
    def _is_last(self) -> bool:
        return self._step >= self._profiling.end - 1

    def after_run(self, run_context, run_values):
        step, is_last = int(run_values.results), self._is_last
        if self._is_active:
            self._trace.__exit__(None, None, None)
            self._trace = None
            if is_last and self._profiling.traces_ops:
                self._metadata = run_values.run_metadata
            else:
                self._calls += 1
                self._timed += step - self._step
            if step >= self._profiling.end:
                self.stop(save=True)
                self._write()
        self._step = step

    def _start_profiler(self) -> None:
        try:
            tf.profiler.experimental.start(self._profiling.model_dir)
        except (tf.errors.AlreadyExistsError, tf.errors.UnavailableError) as error:
            rule = "be None while another profiler runs in this process"
            raise checks.UserError(
                f"Run.profile must {rule}, got [{self._profiling.begin}, {self._profiling.end}]."
            ) from error
        self._is_active = True

    def stop(self, save: bool) -> None:
        """Stop the profiler if it runs, and save its files if `save` is True."""
        if self._trace is not None:
            self._trace.__exit__(None, None, None)
            self._trace = None
        if self._is_active:
            self._is_active, self._is_done = False, True
            tf.profiler.experimental.stop(save=save)

    def _write(self) -> None:
        """Write the profile as a table and as JSON, and log the table."""
        profiling = self._profiling
        folder = os.path.join(profiling.model_dir, _RAW)
        # TensorFlow's profiler names folders after the time, so the last name is the newest.
        raw = os.path.join(folder, max(tf.io.gfile.listdir(folder)).rstrip("/"))
        find = self._attribution().find
        usage, timed = None, []
        if self._metadata is not None:
            usage, timed = (
                memory.find_peak(self._metadata, find),
                op_times.read(self._metadata, find),
            )
        count = (profiling.begin, self._timed, self._calls)
        result = profile.read(raw, self._attribution(), *count, timed, usage)
        lines = advice.advise(result, profiling.settings)
        text = table.write_table(result, lines)
        tf.io.gfile.makedirs(os.path.dirname(profiling.name))
        atomic.write(f"{profiling.name}.txt", text)
        atomic.write(f"{profiling.name}.json", json.dumps(table.to_json(result, lines), indent=1))
        _log.info("%s\nProfile: %s.txt, and for TensorBoard %s", text, profiling.name, raw)
