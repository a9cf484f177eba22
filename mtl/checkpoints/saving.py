"""Saves checkpoints together with the state of the input, so that a run can resume exactly.

votes = saving.Votes(interruption, shared=False)
hook = saving.Saving(result, model_dir, saved=None, every=(500, None), inputs=inputs, votes=votes,
                     evaluate=evaluate, keep=3, evaluated=lambda: math.inf)
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from typing import Any

from mtl import checks
from mtl.checkpoints import input_state, run_directory
from mtl.deferred import tf, tf1
from mtl.distribution import interruption as interruption_lib
from mtl.step import replicas, training_loop

_log = logging.getLogger(__name__)

ALL_CHECKPOINTS = 2**31 - 1
"""The limit of kept checkpoints for savers, because `Saving` removes old checkpoints itself."""


class Votes:
    """Lets synchronous processes decide together whether to go on, stop or end.

    The processes vote by an op in the training step, so all of them stop at the same step.

    Args:
      interruption: records a request to stop this process.
      shared: True if there are several processes; each step then sums a vote over the processes.
    """

    def __init__(self, interruption: interruption_lib.Interruption, shared: bool):
        self._interruption = interruption
        self._vote = self._sum = None
        if shared:
            self._vote = tf1.placeholder_with_default(tf.zeros([]), [], name="vote")
            self._sum = replicas.sum_over_replicas(self._vote)

    def args(self, step: tf.Tensor) -> tf.compat.v1.train.SessionRunArgs:
        """Return the tensors that a call of `Session.run` fetches and feeds for the vote to stop.

        Args:
          step: the global step after the call, a scalar.

        Returns:
          Arguments that fetch [step]. With several processes, the arguments also fetch the number
          of processes that vote to stop: [step, sum of the votes].
        """
        if self._vote is None:
            return tf1.train.SessionRunArgs([step])
        vote = float(self._interruption.requested)
        return tf1.train.SessionRunArgs([step, self._sum], {self._vote: vote})

    def stops(self, fetched: list[Any]) -> bool:
        """Return True if a request to stop any of the processes interrupts the training.

        Args:
          fetched: the values of the tensors that the result of `args` fetches.
        """
        return self._interruption.requested if self._vote is None else bool(fetched[1])

    def decide_end(self, session: tf.compat.v1.Session, ends: bool) -> bool:
        """Return True if any of the processes ends the training; each process must make this call.

        Args:
          session: the session of the training.
          ends: True if this process ends the training.
        """
        return ends if self._vote is None else bool(session.run(self._sum, {self._vote: ends}))

    def leave(self, step: int) -> None:
        """End this process after its checkpoint is saved.

        Args:
          step: the global step of the checkpoint, for the log.

        Raises:
          SystemExit: always.
        """
        self._interruption.leave(f"at step {step}, which is saved")


class Saving(tf.compat.v1.train.SessionRunHook):
    """Saves a checkpoint at the first step, at regular intervals, and at the end.

    The state of the input is saved before the checkpoint, so every checkpoint has a state of the
    input. After a request to stop, the run finishes the current step, saves and ends.

    Args:
      result: the tensors that a training step computes, such as its losses.
      model_dir: the folder of the checkpoints.
      saved: the checkpoint that training continues from; None for a new run.
      every: the interval between checkpoints, (steps, seconds), of which one is None.
      inputs: saves and restores the state of the input of this process.
      votes: decides when to stop.
      evaluate: a function that is called with each checkpoint of a trained step, and returns True
        to end the training.
      keep: how many of the latest checkpoints to keep.
      evaluated: returns the last evaluated step; checkpoints of later steps are kept, too.
      before: a function that is called with the step before the checkpoint of this step is written,
        to save additional state.
      is_chief: True if this process writes the checkpoints. Other processes also save, to a
        temporary folder, because a saved value may be a sum over all processes.
    """

    def __init__(  # noqa: PLR0913  Callers name the arguments.
        self,
        result: training_loop.StepResult,
        model_dir: str,
        *,
        saved: str | None,
        every: tuple[int | None, float | None],
        inputs: input_state.InputState,
        votes: Votes,
        evaluate: Callable[[str], bool],
        keep: int,
        evaluated: Callable[[], float],
        before: Callable[[int], None] = lambda step: None,
        is_chief: bool = True,
    ):
        self._result, self._dir, self._saved = result, model_dir, saved
        self._every, self._timer = every[0], tf1.train.SecondOrStepTimer(every[1], every[0])
        self._inputs, self._votes, self._evaluate = inputs, votes, evaluate
        self._keep, self._evaluated = keep, evaluated
        self._before, self._is_chief = before, is_chief

    def after_create_session(self, session, coord):
        step = int(session.run(tf1.train.get_global_step(session.graph)))
        is_saved = self._saved and run_directory.step_in_name(self._saved) == step
        # A session that replaces a failed session starts from the last checkpoint: do not save
        # again.
        is_again = self._timer.last_triggered_step() is not None
        if not (is_saved or is_again):
            self._save(session, step)
        elif not self._inputs.restore(session, step):
            message = "Step %d was saved without the state of its input: the order starts anew."
            _log.info(message, step)
        self._timer.update_last_triggered_step(step)

    def before_run(self, run_context):
        return self._votes.args(self._result.step)

    def after_run(self, run_context, run_values):
        step, session = int(run_values.results[0]), run_context.session
        if self._votes.stops(run_values.results):
            if step != self._timer.last_triggered_step():
                self._save(session, step)
            self._votes.leave(step)
        if self._is_due(step):
            ends = self._evaluate(self._save(session, step))
            if self._votes.decide_end(session, ends):
                run_context.request_stop()

    def end(self, session):
        step = int(session.run(tf1.train.get_global_step(session.graph)))
        if step != self._timer.last_triggered_step():
            self._evaluate(self._save(session, step))

    def _is_due(self, step: int) -> bool:
        last = self._timer.last_triggered_step()
        if self._every:
            return step // self._every > last // self._every
        return step != last and self._timer.should_trigger_for_step(step)

    def _save(self, session: tf.compat.v1.Session, step: int) -> str:
        """Save a checkpoint, and return its path; a crash does not damage the last checkpoint."""
        (saver,) = session.graph.get_collection(tf1.GraphKeys.SAVERS)
        self._timer.update_last_triggered_step(step)
        try:
            self._before(step)
            self._inputs.save(session, step)
            if not self._is_chief:
                with tempfile.TemporaryDirectory() as scratch:
                    saver.save(session, os.path.join(scratch, "model.ckpt"), global_step=step)
                return ""
            self._inputs.wait(step)
            prefix = os.path.join(self._dir, "model.ckpt")
            path = saver.save(session, prefix, global_step=step, write_state=False)
            run_directory.add_checkpoint(path, self._keep, self._evaluated())
        except (tf.errors.OpError, OSError) as error:
            raise self._describe_unsaved(step, error) from error
        finally:
            kept_steps = map(run_directory.step_in_name, run_directory.list_checkpoints(self._dir))
            self._inputs.keep([*kept_steps, step])
        return path

    def _describe_unsaved(self, step: int, error: Exception) -> checks.UserError:
        last = run_directory.list_checkpoints(self._dir)
        reason = run_directory.shorten_error(error)
        rest = f"The last checkpoint is {last[-1]}." if last else "There is no checkpoint yet."
        return checks.UserError(
            f"the checkpoint of step {step} cannot be written to {self._dir}: {reason}. {rest}"
        )
