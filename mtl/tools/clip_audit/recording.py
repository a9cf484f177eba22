"""Records a clip audit of a run while the run trains.

recording = recording.Recording(experiment.clip_audit, "runs/digits")
recording.go_on_from(first_step)     # then extensions in the graph, `save` with every checkpoint
recording.write_results()            # runs/digits/clip_audit/training
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from mtl import checks, deferred, distribution, types
from mtl import features as features_lib
from mtl.data import pipeline
from mtl.deferred import tf
from mtl.tools.clip_audit import audit, measures, observing, report, visits

with deferred.imports():
    from mtl.monitoring import progress

if TYPE_CHECKING:
    from mtl import model as model_lib


class Recording(types.RunObserver):
    """Records the gradient norm of every example in every training step.

    Args:
      settings: the settings of the audit.
      model_dir: the folder of the run.
    """

    def __init__(self, settings: audit.Settings, model_dir: str):
        self._settings = settings
        self._directory = os.path.join(model_dir, "clip_audit", "training")
        self._record: visits.Record | None = None

    def change_data(self, data: pipeline.Pipeline) -> pipeline.Pipeline:
        """Return a pipeline with numbered rows; the numbers identify samples."""
        return self._settings.number_rows(data)

    def go_on_from(self, step: int) -> None:
        """Continue the record from a global step, and remove the records of later steps."""
        self._record = visits.Record(self._directory, self._settings, step)

    def list_extensions(
        self, model: model_lib.MultiTaskModel, statistics: features_lib.Statistics
    ) -> list[types.MakeExtension]:
        """Return the extensions that record a training step; [] before a call of `go_on_from`."""
        if self._record is None:
            return []
        return [observing.Observing(self._settings.make_observer(model, statistics, self._record))]

    def record_step(self, ids: tf.Tensor, measure: Callable[[], measures.Measured]) -> None:
        """Add an op to UPDATE_OPS that records the batch of a training step.

        Args:
          ids: the ids of the samples, [B] int64 or string.
          measure: a function that adds ops to the graph which measure the batch, and returns the
            measurements.
        """
        if self._record:
            audit.record_step(self._record, ids, measure)

    def save(self, step: int) -> None:
        """Write the records added since the last call; called before a checkpoint is saved."""
        if self._record:
            self._record.save(step)

    def write_results(self) -> None:
        """Write the report of the audit, and log a line if writing takes long."""
        with progress.tell_while(lambda: "writing the report of the clip audit"):
            self.write_report()

    def write_report(self) -> None:
        """Write the report of the audit, including the records of earlier processes."""
        # A process that has trained no step still writes the report of earlier steps.
        if self._record or visits.are_there(self._directory):
            report.write(self._directory, self._settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipAudit(audit.Settings):
    """Records the gradient norm of every example at every visit, and norms above a threshold.

    The norms come from a forward pass as in evaluation, with the weights before the training step.
    In this pass, examples do not influence each other: batch norm uses its moving averages, and
    dropout is off. The measured gradient belongs to the weighted sum of the losses of tasks and
    auxiliary losses, before surgery, regularisation and clipping. See docs/clipping.md.
    """

    def __call__(self, run: types.ObservedRun) -> Recording:
        """Return the observer that records the training steps of a run.

        Raises:
          UserError: several devices or processes train the run.
        """
        rule = "be left out if several devices or processes train"
        fix = "launch.clip_audit audits the run once it is trained."
        # Several replicas would write different rows into the same files.
        is_alone = run.place.strategy == distribution.ONE
        checks.require(is_alone, "Experiment.clip_audit", rule, self, fix)
        return Recording(self, run.model_dir)
