"""Reports the scalars of a training to trackers, as for TensorBoard.

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
    """Reports all scalars of a step, and the speed, every `every_steps` steps.

    Args:
      result: the result of the step.
      every_steps: steps between two reports.
      batch_size: rows of a step, of all replicas together.
      log: a function that returns at once; called with "train", the step and {name: value}.
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
        last, then = self._last
        # A session call of several steps may pass a multiple of `every_steps`, and is due then.
        if step // self._every == last // self._every:
            return
        self._last = (step, dataclasses.replace(self.time))
        # The time since the last report, without evaluations and saving.
        secs = self.time.secs - then.secs
        speed = (step - last) / secs
        scalars = dict(zip(self._result.names, values.tolist(), strict=True))
        scalars |= {"steps_per_sec": speed, "examples_per_sec": speed * self._batch_size}
        if self.time.waited_secs is not None:
            scalars["input_wait_share"] = (self.time.waited_secs - then.waited_secs) / secs
        self._log("train", step, scalars)
