"""Which evaluated checkpoint is the best, and how long to wait for a better one.

from mtl import checkpoints
checkpoints.Best.metric = "digit/accuracy"
checkpoints.Best.patience = 5

Which direction is better is known of every metric that a head declares in `directions`.
"""

import dataclasses
import math
import os
import re
import types
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from mtl import checks, compat
from mtl.checkpoints import run_directory
from mtl.files import atomic, checksums, storage

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best:
    """Which checkpoint is the best, and when to stop looking for a better one.

    Attributes:
      metric: an evaluation metric, such as "digit/accuracy", or one of several tasks, such as
        "mean_gain" of `MultiTaskModel.combined_metrics`. "average_loss", the sum over the tasks
        of theirs, counts every row alike; "loss" is Estimator's mean over batches.
      higher_is_better: of the metric; None where it is known, as of losses and all metrics that the
        head declares in `directions`. A mean, say, has no direction unless it is set here.
      patience: stop after so many evaluations in a row without a better one; None never stops.
    """

    metric: str = "average_loss"
    higher_is_better: bool | None = None
    patience: int | None = None

    def __post_init__(self):
        checks.is_a("Best.metric", self.metric, str, "name an evaluation metric")
        if self.higher_is_better is not None:
            rule = "be True, False or None"
            checks.is_a("Best.higher_is_better", self.higher_is_better, bool, rule)
        if self.patience is not None:
            checks.whole("Best.patience", self.patience, 1)

    def with_direction(self, known: bool | None) -> "Best":
        """Return the same with the direction of its metric; `known` is None if no head declares it.

        Raises:
          UserError: the setting contradicts it.
        """
        if known is None:
            return self
        rule = f"be {known} for {self.metric!r}, or left out"
        fits = self.higher_is_better in (known, None)
        checks.require(fits, "Best.higher_is_better", rule, self.higher_is_better)
        return dataclasses.replace(self, higher_is_better=known)

    def require_direction(self) -> None:
        """Fail where neither a head nor the setting tells which values are better."""
        rule = f"be True or False for {self.metric!r}, whose direction its head does not declare"
        checks.require(self.higher_is_better is not None, "Best.higher_is_better", rule, None)

    def is_better(self, value: float, best: float | None) -> bool:
        """Return True if `value` beats `best`; NaN never does."""
        if best is None or math.isnan(best):
            return not math.isnan(value)
        return value > best if self.higher_is_better else value < best


class BestKeeper:
    """Keeps the best checkpoint in `<model_dir>/best`; the record outlives restarts.

    `<model_dir>/best/best.json` holds {metric, higher_is_better, last_step, evaluations_since,
    steps_since}, the number and the steps of the evaluations that were no better than the best,
    `measured_on`, a description of the rows and the settings that all these values belong to, and
    {value, step, checkpoint} of the best once there is one.
    """

    def __init__(self, best: Best, model_dir: str, from_step: int = 0):
        """Keep the best of the evaluations from a step on; earlier ones are no candidates."""
        self._best, self._dir = best, os.path.join(model_dir, "best")
        self._from_step = from_step
        self._path = os.path.join(self._dir, "best.json")
        self._goal = {"metric": best.metric, "higher_is_better": bool(best.higher_is_better)}

    def read(self) -> dict[str, Any]:
        """Return the record, or {} before the first evaluation or after the goal was changed."""
        if not tf.io.gfile.exists(self._path):
            return {}
        record = checksums.read_json(
            self._path, "Delete it: the next evaluation is then the best so far."
        )
        return record if self._goal.items() <= record.items() else {}

    def rewind(self, step: int) -> None:
        """Forget the evaluations of later steps, which a run that goes on from here does not know.

        They are of another training, or are trained once more. A best among them is the best no
        longer: the next one to be evaluated takes its place, and exactly trained again it comes
        back. A record of an older version does not tell the steps: patience begins anew.
        """
        record = self.read()
        if record.get("last_step", 0) <= step:
            return
        steps = [since for since in record.get("steps_since", []) if since <= step]
        best_step = record.get("step", 0)
        last_step = max([best_step, *steps])
        if best_step > step or not last_step:
            # Nothing names the weights any more; they go when the next best comes.
            for name in ("best.json", "checkpoint"):
                if tf.io.gfile.exists(os.path.join(self._dir, name)):
                    tf.io.gfile.remove(os.path.join(self._dir, name))
            return
        since = {"evaluations_since": len(steps), "steps_since": steps}
        self._write({**record, "last_step": last_step, **since})

    @property
    def checkpoint(self) -> str | None:
        """The path of the best checkpoint, None before the first."""
        name = self.read().get("checkpoint")
        return None if name is None else os.path.join(self._dir, name)

    def renew(self, measured_on: Mapping[str, Any], value: float | None, is_other: bool) -> None:
        """Take over the value of the best checkpoint, measured on other rows or settings.

        Args:
          measured_on: what describes them.
          value: the new value; None if there is no best checkpoint.
          is_other: True if it cannot be compared with those before. Patience then begins anew, and
            checkpoints after the best may be evaluated once more.
        """
        record = {**self.read(), "measured_on": dict(measured_on)}
        if value is not None:
            record["value"] = value
        else:
            for name in ("value", "step", "checkpoint"):
                record.pop(name, None)
        if is_other:
            since: dict[str, Any] = {"evaluations_since": 0, "steps_since": []}
            record |= {"last_step": record.get("step", 0), **since}
        self._write(record)

    @property
    def last_step(self) -> int:
        """The step of the last evaluation, 0 before the first."""
        return self.read().get("last_step", 0)

    def should_stop(self) -> bool:
        """Return True if `patience` evaluations in a row were no better."""
        patience = self._best.patience
        return patience is not None and self.read().get("evaluations_since", 0) >= patience

    def is_best(self, metrics: Mapping[str, Any]) -> bool:
        """Return True if an evaluation is new, and better than all before; with a NaN it never is.

        Not even by a metric that knows nothing of the predictions that are NaN.
        """
        step = int(metrics["global_step"])
        is_new = step > self.last_step and step >= self._from_step
        has_nan = any(
            name.endswith("/nan_predictions") and value > 0 for name, value in metrics.items()
        )
        return (
            is_new
            and not has_nan
            and self._best.is_better(float(metrics[self._best.metric]), self.read().get("value"))
        )

    def update(
        self,
        checkpoint: str,
        metrics: Mapping[str, Any],
        measured_on: Mapping[str, Any] = types.MappingProxyType({}),
    ) -> None:
        """Take in an evaluation, and its checkpoint if that is the best."""
        record, step = self.read(), int(metrics["global_step"])
        if step <= self.last_step:
            return
        tf.io.gfile.makedirs(self._dir)
        since, steps = record.get("evaluations_since", 0), record.get("steps_since", [])
        if step >= self._from_step:
            since, steps = since + 1, [*steps, step]
        if self.is_best(metrics):
            value, since, steps = float(metrics[self._best.metric]), 0, []
            record |= {"value": value, "step": step, "checkpoint": self._keep(checkpoint)}
        record |= {**self._goal, "last_step": step}
        if measured_on:
            record["measured_on"] = dict(measured_on)
        self._write({**record, "evaluations_since": since, "steps_since": steps})

    def _write(self, record: Mapping[str, Any]) -> None:
        atomic.write(self._path, checksums.add_checksum(record))

    def _keep(self, checkpoint: str) -> str:
        name = os.path.basename(checkpoint)
        older = {
            found.group()
            for path in storage.listed(self._dir, "model.ckpt-")
            if (found := re.match(r".*/model\.ckpt-\d+(?=\.)", path))
        }
        for file in storage.listed(*os.path.split(f"{checkpoint}.")):
            kept = os.path.join(self._dir, os.path.basename(file))
            tf.io.gfile.copy(file, kept, overwrite=True)
            storage.sync([kept])
        # What latest_checkpoint reads. TensorFlow would write the whole path where it is absolute.
        atomic.write(os.path.join(self._dir, "checkpoint"), f'model_checkpoint_path: "{name}"\n')
        for path in older:
            # One that is read is removed when the next best comes.
            if os.path.basename(path) != name:
                run_directory.remove_checkpoint(path)
        return name


class BestExporter(compat.estimator.Exporter):
    """Keeps the best checkpoint and exports it, once, as `<model_dir>/export/best/<version>`.

    Args:
      keeper: the record of the best.
      export: writes an export.
      measured_on: describes what the evaluation was measured on.
    """

    def __init__(
        self,
        keeper: BestKeeper,
        export: Callable[[Any, str, str], str | None],
        measured_on: Callable[[], Mapping[str, Any]] = dict,
    ):
        self._keeper, self._export, self._measured_on = keeper, export, measured_on

    @property
    def name(self):
        return "best"

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        exported = None
        if self._keeper.is_best(eval_result):
            exported = self._export(estimator, export_path, checkpoint_path)
        # Last, so that a run that is killed before it exports the best once more.
        self._keeper.update(checkpoint_path, eval_result, self._measured_on())
        return exported
