"""Records the step at which a run failed, so that `launch.debug` can replay it.

with failures.keep_failure("runs/a", keep):       # writes runs/a/failure.json
    train()
failures.read_step("runs/a")                      # 1234, or None
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable, Iterator

from mtl import checks, distribution
from mtl.checkpoints import run_directory
from mtl.deferred import tf
from mtl.distribution import settings
from mtl.files import atomic
from mtl.optimization import finite

FILE = "failure.json"
# The gin binding, quoted for a shell, with which a replay uses one process and one device.
ONE_DEVICE = f"\"Distribution.strategy = '{distribution.ONE}'\""


def suggest_command(model_dir: str, step: int, tells_strategy: bool = False) -> str:
    """Return the command that replays a step.

    Args:
      model_dir: the folder of the run.
      step: the global step before the replayed step.
      tells_strategy: True adds a gin binding, so that the replay uses one process and one device.

    Returns:
      A line for a shell, in which `model_dir` is quoted if necessary.
    """
    command = f"python -m launch.debug --model_dir {shlex.quote(model_dir)} --step {step}"
    return f"{command} --gin_param {ONE_DEVICE}" if tells_strategy else command


@contextlib.contextmanager
def keep_failure(
    model_dir: str, keep: Callable[[], None], place: settings.Place | None = None
) -> Iterator[None]:
    """Record the step at which a loss or gradient is NaN or infinite and ends the run.

    Args:
      model_dir: the folder of the run.
      keep: a function that keeps the first checkpoint of the run, from which a replay starts; it is
        called before the step is recorded.
      place: the place of this process; None for a process with one device.

    Raises:
      UserError: the error of the run; if its step is known, with the command that replays the step.
    """
    path = os.path.join(model_dir, FILE)
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)
    try:
        yield
    except checks.UserError as error:
        step_in_error = finite.find_step(str(error))
        # If a bad record explains the failure, only `error.__cause__` names the step.
        step = finite.find_step(str(error.__cause__)) if step_in_error is None else step_in_error
        if step_in_error is not None:
            keep()
        if step is not None:
            atomic.write(path, json.dumps({"step": step, "error": str(error)}) + "\n")
        if step_in_error is None or (place and place.cluster):
            raise
        is_one = place is None or place.strategy == distribution.ONE
        command = suggest_command(model_dir, step_in_error, tells_strategy=not is_one)
        raise checks.UserError(f"{error} To see the op and the rows: {command}") from error


def read_step(model_dir: str) -> int | None:
    """Return the step at which a run failed; None if it did not fail, or continued afterwards.

    Raises:
      UserError: the record of the failure is damaged.
    """
    path = os.path.join(model_dir, FILE)
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path) as file:
        text = file.read()
    try:
        step = json.loads(text)["step"]
    except (ValueError, KeyError, TypeError):
        step = None
    if not isinstance(step, int):
        fix = "Delete this file, and set --step."
        raise checks.UserError(f"{path} must hold the step at which the run failed. {fix}")
    return step if step >= run_directory.step_of(model_dir) else None
