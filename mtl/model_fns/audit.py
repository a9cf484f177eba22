"""Runs the clip audit of `mtl.tools.clip_audit` in the training of any Estimator.

audit = model_fns.Audit(clip_audit.ClipAudit(), model_dir)
observe = audit.observe(losses_of, (features, labels), ids=features["row"])     # in model_fn
step = model_fns.build_step(losses, update=update.Update(), observe=observe)
estimator.train(input_fn, max_steps=1000, saving_listeners=[audit])
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

from mtl import checks, types
from mtl.checkpoints import run_directory
from mtl.deferred import tf
from mtl.model_fns import step as step_lib
from mtl.step import replicas
from mtl.tools.clip_audit import audit as audit_lib
from mtl.tools.clip_audit import brute_force, measures, recording

_log = logging.getLogger(__name__)


class Audit(tf.compat.v1.train.CheckpointSaverListener):
    """Records the norm of every example's gradient in every step.

    The report is written to `<model_dir>/clip_audit/training` when the training ends;
    docs/clipping.md describes the report. Values that need a head, such as EL2N, are NaN in the
    report.

    Args:
      settings: the settings of the audit. The audit's setting `key`, the field with the ids of the
        examples, is ignored, because `observe` gets the ids as an argument.
      model_dir: the folder of the Estimator.
    """

    def __init__(self, settings: audit_lib.Settings, model_dir: str):
        self._settings, self._dir = settings, model_dir
        self._recording = recording.Recording(settings, model_dir)
        self._saved_steps: list[int] = []

    def observe(
        self, losses_of: brute_force.Losses, batch: Any, ids: tf.Tensor
    ) -> step_lib.Observe:
        """Return a function that observes a step, for the argument `observe` of `build_step`.

        Args:
          losses_of: a function from rows, nested as `batch`, to {task: losses [B]}. The function
            builds the network a second time, in evaluation mode, so that rows do not affect each
            other.
          batch: the rows of the step, tensors [B, ...] in any nesting.
          ids: the ids of the examples, [B] int64 or string.

        Raises:
          UserError: the training has several replicas.
        """
        count = replicas.count()
        checks.require(count == 1, "Audit", "observe a training on one replica", count)
        self._recording.go_on_from(run_directory.step_of(self._dir))
        weakref.finalize(self, _tell_unsaved, self._saved_steps, self._dir)

        def observe(weights: types.Tensors) -> None:
            self._recording.record_step(
                ids, lambda: measures.measure_losses(losses_of, batch, weights)
            )

        return observe

    def before_save(self, session, global_step_value):
        """Write the records of all steps so far, before the checkpoint of this step is saved."""
        self._recording.save(int(global_step_value))
        self._saved_steps.append(int(global_step_value))

    def end(self, session, global_step_value):
        """Write the report at the end of the training."""
        self._recording.write_report()


def _tell_unsaved(saved_steps: list[int], model_dir: str) -> None:
    if not saved_steps:
        fix = "pass saving_listeners=[audit] to Estimator.train"
        _log.warning("The clip audit of %s has saved nothing: %s.", model_dir, fix)
