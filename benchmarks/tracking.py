"""Measures the time of a step with trackers that hang, fail or are slow, and after a profile.

No tracker has a server. Runs train on the digits, with one step or with many steps in a session
call. Runs of all kinds take turns. Steps after step 100 are timed, including the time between two
session calls, in which trackers get their reports. A profile that ended before step 100 should cost
nothing. The table shows the fastest 50 consecutive steps, which other work of the machine disturbs
least, and the processor time of the training thread.

    python -m benchmarks.tracking
    python -m benchmarks.tracking --timed_runs 9 --summary_steps 1
"""

import dataclasses
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import flags

from benchmarks import rows
from mtl import types
from mtl.configs import config
from mtl.runs import training
from mtl.tools import attached

_REPEATS = flags.DEFINE_integer("timed_runs", 5, "The number of runs of each kind.")
_STEPS = flags.DEFINE_integer("timed_steps", 1000, "The number of timed steps of a run.")
_EVERY = flags.DEFINE_integer("summary_steps", 10, "The steps between two reports.")
_FIRST, _STRETCH = 100, 50
_GIN = "gin_configs/experiments/digits_shared_bottom.gin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faulty(types.Tracker):
    """A tracker that hangs, raises errors, or takes 50 ms for each report."""

    fault: str
    flush_secs: float = 0.1

    def start(self, run: types.RunDescription) -> "FaultyRun":
        if self.fault == "hangs":
            threading.Event().wait()
        return FaultyRun(self.fault)


class FaultyRun(types.TrackedRun):
    """The tracked run of a tracker that hangs, raises errors, or is slow."""

    run_id = "none"

    def __init__(self, fault: str):
        self._fault = fault

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._fault == "raises":
            raise ConnectionError("no server")
        time.sleep(0.05)


class _Clock(tf.compat.v1.train.SessionRunHook):
    """Records the time at the end of each session call."""

    def __init__(self, result: Any):
        self._result = result
        self._times: list[tuple[int, float, float]] = []

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(self._result.step)

    def after_run(self, run_context, run_values):
        now = (time.perf_counter(), time.thread_time())
        self._times.append((int(run_values.results), *now))

    def measure(self) -> tuple[float, float]:
        """Return the microseconds of a step in the fastest stretch, and of this thread per step."""
        times = [time for time in self._times if time[0] >= _FIRST]
        ends = {step // _STRETCH: (step, secs) for step, secs, _ in times}
        stretches = [
            (after[1] - before[1]) / (after[0] - before[0])
            for before, after in itertools.pairwise(ends.values())
        ]
        of_thread = (times[-1][2] - times[0][2]) / (times[-1][0] - times[0][0])
        return 1e6 * min(stretches), 1e6 * of_thread


class _Timed(training.Training):
    """A training with a clock, without evaluations and exports."""

    def _build_hooks(self, *args):
        hooks = super()._build_hooks(*args)
        self.clock = _Clock(args[-1])
        hooks["training_chief_hooks"].insert(0, self.clock)
        return hooks

    def _checkpoint_evaluator(self, evaluator):
        return lambda checkpoint: False


def _measure(
    steps_per_call: int, trackers: list[types.Tracker], profile: Any
) -> tuple[float, float]:
    made = config.load([_GIN], ["Run.checkpoint_steps = 1000000"])
    run = dataclasses.replace(
        made.run,
        train_steps=_FIRST + _STEPS.value,
        steps_per_call=steps_per_call,
        summary_steps=_EVERY.value,
        profile=profile,
    )
    with tempfile.TemporaryDirectory() as folder:
        made = dataclasses.replace(made, run=run, trackers=trackers)
        # Attach observers like `verbs.train`: without observers, neither trackers nor the profile
        # would run.
        timed = _Timed(made, folder, lambda: None, observers=attached.list_observers(made))
        timed.run()
        return timed.clock.measure()


def main() -> None:
    """Time all kinds of runs in turn, and print a table."""
    kinds: dict[str, tuple[list[types.Tracker], Any]] = {"none": ([], None)}
    for fault in ("hangs", "raises", "is slow"):
        kinds[f"a tracker {fault}"] = ([Faulty(fault=fault)], None)
    kinds["a profile before"] = ([], [2, 4])
    header = ("", "steps a call", "us a step", "us of the thread")
    print("{:<24} {:>12} {:>10} {:>16}".format(*header), flush=True)
    for steps_per_call in (1, 100):
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for _ in range(_REPEATS.value):
            for name, (trackers, profile) in kinds.items():
                results[name].append(_measure(steps_per_call, trackers, profile))
        for name, times in results.items():
            best = min(wall for wall, _ in times)
            thread = statistics.median(of_thread for _, of_thread in times)
            print(f"{name:<24} {steps_per_call:>12} {best:>10.0f} {thread:>16.0f}", flush=True)


if __name__ == "__main__":
    rows.run(main)
