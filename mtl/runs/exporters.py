"""Defines the exporters that Estimator calls after each evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mtl import checkpoints
from mtl.deferred import compat


class EachEvaluation(compat.estimator.Exporter):
    """Exports every evaluated checkpoint to `<model_dir>/export/latest/<version>`."""

    name = "latest"

    def __init__(self, export: Callable[..., str | None]):
        self._export = export

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        return self._export(estimator, export_path, checkpoint_path)


class BestExporter(compat.estimator.Exporter):
    """Exports a new best checkpoint to `<model_dir>/export/best/<version>`, and records it.

    Args:
      keeper: the record of the best checkpoint.
      export: writes an export, and returns its path.
      measured_on: returns a description of the rows and settings of the evaluation.
    """

    def __init__(
        self,
        keeper: checkpoints.BestKeeper,
        export: Callable[[Any, str, str], str | None],
        measured_on: Callable[[], Mapping[str, Any]] = dict,
    ):
        self._keeper, self._export, self._measured_on = keeper, export, measured_on

    @property
    def name(self):
        return "best"

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        path = None
        if self._keeper.is_best(eval_result):
            path = self._export(estimator, export_path, checkpoint_path)
        # Record the best checkpoint after its export: if the run is killed during the export, the
        # next start exports the checkpoint again.
        self._keeper.update(checkpoint_path, eval_result, self._measured_on())
        return path
