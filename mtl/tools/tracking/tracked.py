"""Reports the scalars of training steps to trackers.

tracked.Tracked(result, every_steps=100, batch_size=64, log=reporters.log)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from mtl import deferred
from mtl.deferred import tf1

with deferred.imports():
    from mtl.monitoring import hooks


class Tracked(hooks.StepHook):
    """Reports all scalars of a step, and the speed of training, every `every_steps` steps.

    Args:
      result: the result of a training step, with its scalars.
      every_steps: the number of steps between two reports.
      batch_size: the number of rows in a step, of all replicas together.
      log: a function that gets "train", the step and {name: value}. The function `log` must return
        at once.
    """

    def __init__(
        self,
        result,
        every_steps: int,
        batch_size: int,
        log: Callable[[str, int, Mapping[str, float]], None],
    ):
        super().__init__(result)
        self._every, self._batch_size, self._log = every_steps, batch_size, log

    def after_create_session(self, session, coord):
        step = session.run(tf1.train.get_global_step())
        self._last = (step, dataclasses.replace(self.time))

    def on_step(self, run_context, step, values):
        last, last_time = self._last
        # A session call may run several steps. Report if the call has reached or passed a multiple
        # of `every_steps`.
        if step // self._every == last // self._every:
            return
        self._last = (step, dataclasses.replace(self.time))
        # The seconds since the last report, without the time of evaluations and checkpoints.
        secs = self.time.secs - last_time.secs
        speed = (step - last) / secs
        scalars = dict(zip(self._result.names, values.tolist(), strict=True))
        scalars |= {"steps_per_sec": speed, "examples_per_sec": speed * self._batch_size}
        if self.time.waited_secs is not None:
            scalars["input_wait_share"] = (self.time.waited_secs - last_time.waited_secs) / secs
        self._log("train", step, scalars)
