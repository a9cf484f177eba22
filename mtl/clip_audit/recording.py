"""The audit of a run while it is trained; nothing happens without settings.

recording = recording.Recording(experiment.clip_audit, "runs/digits")
recording.start(first_step)          # then `observer` in the graph, `save` with every checkpoint
recording.write()                    # runs/digits/clip_audit/training
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from mtl import checks, types
from mtl import features as features_lib
from mtl.clip_audit import audit, measures, observing, report, visits
from mtl.data import pipeline

if TYPE_CHECKING:
    from mtl import model as model_lib


class Recording:
    """Records every example of every step.

    Args:
      settings: None records nothing.
      model_dir: of the run.
    """

    def __init__(self, settings: audit.ClipAudit | None, model_dir: str):
        self._settings = settings
        self._directory = os.path.join(model_dir, "clip_audit", "training")
        self._record: visits.Record | None = None

    def number_rows(self, data: pipeline.Pipeline, is_alone: bool) -> pipeline.Pipeline:
        """Return the data that is trained on.

        Raises:
          UserError: several devices or processes train.
        """
        if self._settings is None:
            return data
        rule = "be left out where several devices or processes train"
        fix = "launch.clip_audit audits the run once it is trained."
        checks.require(is_alone, "Experiment.clip_audit", rule, self._settings, fix)
        return self._settings.number_rows(data)

    def start(self, step: int) -> None:
        """Go on from a global step; remove what was recorded of later ones."""
        if self._settings:
            self._record = visits.Record(self._directory, self._settings, step)

    def list_extensions(
        self, model: "model_lib.MultiTaskModel", statistics: features_lib.Statistics
    ) -> list[types.MakeExtension]:
        """Return the extensions of `MultiTaskModel.model_fn` that record a step."""
        if self._settings is None or self._record is None:
            return []
        return [observing.Observing(self._settings.make_observer(model, statistics, self._record))]

    def record_step(self, ids: tf.Tensor, measure: Callable[[], measures.Measured]) -> None:
        """Have UPDATE_OPS record the batch of a step that `measure` measures."""
        if self._record:
            audit.record_step(self._record, ids, measure)

    def save(self, step: int) -> None:
        """Write what was recorded, before the checkpoint of a step."""
        if self._record:
            self._record.save(step)

    def write(self) -> None:
        """Write the report, also of what an earlier process recorded."""
        if self._settings and (self._record or visits.are_there(self._directory)):
            report.write(self._directory, self._settings)
