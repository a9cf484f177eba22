"""Chooses the best evaluated checkpoint, and stops a training that no longer improves.

from mtl import checkpoints
checkpoints.Best.metric = "digit/accuracy"
checkpoints.Best.patience = 5

A head declares in `directions` whether higher values of its metrics are better.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import types
from collections.abc import Mapping
from typing import Annotated, Any

from mtl import checks
from mtl.checkpoints import run_directory
from mtl.deferred import tf
from mtl.files import atomic, checksums, storage


@checks.dataclass
class Best:
    """Chooses the best checkpoint by a metric, and stops a training that no longer improves.

    Attributes:
      metric: an evaluation metric, such as "digit/accuracy", or a metric of several tasks, such as
        "mean_gain" of `MultiTaskModel.combined_metrics`. "average_loss" is the sum of the tasks'
        mean losses over all rows; "loss" is Estimator's mean over batches, which may differ in
        size.
      higher_is_better: True if higher values of the metric are better. Set `higher_is_better` for
        metrics without a declared direction, such as a mean. If `higher_is_better` is None, the
        head declares the direction in `directions`; lower losses are better.
      patience: training stops after this number of evaluations without a new best checkpoint; None
        trains up to the last step.
    """

    metric: Annotated[str, checks.Is(str, "name an evaluation metric")] = "average_loss"
    higher_is_better: bool | None = None
    patience: checks.Count | None = None

    def with_direction(self, known: bool | None) -> Best:
        """Return a copy of the settings with the direction of the metric.

        Args:
          known: the direction that a head declares, True if higher values are better; None if no
            head declares a direction.

        Raises:
          UserError: `higher_is_better` contradicts the declared direction.
        """
        if known is None:
            return self
        rule = f"be {known} for {self.metric!r}, or left out"
        fits = self.higher_is_better in (known, None)
        checks.require(fits, "Best.higher_is_better", rule, self.higher_is_better)
        return dataclasses.replace(self, higher_is_better=known)

    def require_direction(self) -> None:
        """Fail if neither a head nor `higher_is_better` says whether higher values are better."""
        rule = f"be True or False for {self.metric!r}, whose direction its head does not declare"
        checks.require(self.higher_is_better is not None, "Best.higher_is_better", rule, None)

    def is_better(self, value: float, best: float | None) -> bool:
        """Return True if `value` is better than `best`.

        Args:
          value: the value of a new evaluation; NaN is never better.
          best: the best value of the metric so far. Every value except NaN is better than None and
            NaN.
        """
        if best is None or math.isnan(best):
            return not math.isnan(value)
        return value > best if self.higher_is_better else value < best


class BestKeeper:
    """Copies the best checkpoint to `<model_dir>/best`, and records the evaluations in a file.

    The record of the evaluations, `<model_dir>/best/best.json`, has the keys {metric,
    higher_is_better, last_step, evaluations_since, steps_since}. `evaluations_since` and
    `steps_since` are the number and the steps of the evaluations after the best evaluation.
    `measured_on` describes the rows and the settings of the evaluations. {value, step, checkpoint}
    describe the best checkpoint, if there is one.

    Args:
      best: the settings that name the metric and the patience.
      model_dir: the folder of the run.
      from_step: evaluations of earlier steps are recorded, but never count as the best.
    """

    def __init__(self, best: Best, model_dir: str, from_step: int = 0):
        self._best, self._dir = best, os.path.join(model_dir, "best")
        self._from_step = from_step
        self._path = os.path.join(self._dir, "best.json")
        self._goal = {"metric": best.metric, "higher_is_better": bool(best.higher_is_better)}

    def read(self) -> dict[str, Any]:
        """Return the record; {} before the first evaluation, or if `Best.metric` has changed."""
        record = self._read_file()
        return record if self._goal.items() <= record.items() else {}

    def describe_other_goal(self) -> str:
        """Return a warning if the best checkpoint was chosen by another metric, else ""."""
        record = self._read_file()
        if not record or self._goal.items() <= record.items():
            return ""
        return (
            f"The best checkpoint of this run has {_spell_goal(record)}, but Best now asks for "
            f"{_spell_goal(self._goal)}: the next evaluation replaces the checkpoint."
        )

    def _read_file(self) -> dict[str, Any]:
        if not tf.io.gfile.exists(self._path):
            return {}
        fix = "Delete the file: the next evaluation is then the best so far."
        return checksums.read_json(self._path, fix)

    def rewind(self, step: int) -> None:
        """Forget evaluations of later steps, because the run trains these steps again.

        If the best checkpoint belongs to a step after `step`, the next evaluated checkpoint becomes
        the best. Records of old versions lack the steps of the evaluations, so the count of
        `Best.patience` starts anew.

        Args:
          step: the last step whose evaluations are kept.
        """
        record = self.read()
        if record.get("last_step", 0) <= step:
            return
        steps = [since for since in record.get("steps_since", []) if since <= step]
        best_step = record.get("step", 0)
        last_step = max([best_step, *steps])
        if best_step > step or not last_step:
            # Remove only the records: the weights stay until the next best checkpoint replaces
            # them.
            for name in ("best.json", "checkpoint"):
                if tf.io.gfile.exists(os.path.join(self._dir, name)):
                    tf.io.gfile.remove(os.path.join(self._dir, name))
            return
        since = {"evaluations_since": len(steps), "steps_since": steps}
        self._write({**record, "last_step": last_step, **since})

    @property
    def checkpoint(self) -> str | None:
        """The path of the best checkpoint; None if there is none yet."""
        name = self.read().get("checkpoint")
        return None if name is None else os.path.join(self._dir, name)

    def renew(self, measured_on: Mapping[str, Any], value: float | None, is_other: bool) -> None:
        """Set the value of the best checkpoint, after its evaluation on other rows or settings.

        Args:
          measured_on: a description of the rows and settings of the new evaluation.
          value: the value of the metric in the new evaluation; None if the files of the best
            checkpoint are missing.
          is_other: True if the value cannot be compared with earlier values. If `is_other` is True,
            the count of `Best.patience` starts anew, and checkpoints after the best may be
            evaluated again.
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
        """The step of the last evaluation; 0 before the first evaluation."""
        return self.read().get("last_step", 0)

    def should_stop(self) -> bool:
        """Return True if the last `Best.patience` evaluations did not beat the best value."""
        patience = self._best.patience
        return patience is not None and self.read().get("evaluations_since", 0) >= patience

    def is_best(self, metrics: Mapping[str, Any]) -> bool:
        """Return True if an evaluation is of a new step, and better than all earlier evaluations.

        An evaluation with NaN in predictions is never the best, even if the metric ignores NaN.

        Args:
          metrics: {name: value} of the evaluation, with "global_step" and `Best.metric`.
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
        """Record an evaluation, and copy its checkpoint to `<model_dir>/best` if it is the best.

        Args:
          checkpoint: the path of the evaluated checkpoint, without the endings of its files.
          metrics: {name: value} of the evaluation, with "global_step" and `Best.metric`. An
            evaluation of a step that is not later than `last_step` is ignored.
          measured_on: a description of the rows and settings of the evaluation; with an empty
            description, the description in the record does not change.
        """
        record, step = self.read(), int(metrics["global_step"])
        # After a restart, the last checkpoint may be evaluated again.
        if step <= self.last_step:
            return
        tf.io.gfile.makedirs(self._dir)
        since, steps = record.get("evaluations_since", 0), record.get("steps_since", [])
        # Steps before `from_step` cannot be the best, so `Best.patience` does not count them.
        if step >= self._from_step:
            since, steps = since + 1, [*steps, step]
        if self.is_best(metrics):
            value, since, steps = float(metrics[self._best.metric]), 0, []
            record |= {
                "value": value,
                "step": step,
                "checkpoint": self._keep_checkpoint(checkpoint),
            }
        record |= {**self._goal, "last_step": step}
        if measured_on:
            record["measured_on"] = dict(measured_on)
        self._write({**record, "evaluations_since": since, "steps_since": steps})

    def _write(self, record: Mapping[str, Any]) -> None:
        atomic.write(self._path, checksums.add_checksum(record))

    def _keep_checkpoint(self, checkpoint: str) -> str:
        name = os.path.basename(checkpoint)
        older = {
            match.group()
            for path in storage.listed(self._dir, "model.ckpt-")
            if (match := re.match(r".*/model\.ckpt-\d+(?=\.)", path))
        }
        for file in storage.listed(*os.path.split(f"{checkpoint}.")):
            copy = os.path.join(self._dir, os.path.basename(file))
            tf.io.gfile.copy(file, copy, overwrite=True)
            storage.sync([copy])
            # Give the copy the time of the checkpoint, which decides whether an export is newer
            # than the checkpoint.
            if storage.is_local(copy):
                times = os.stat(file)
                os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
        # Write the file that `tf.train.latest_checkpoint` reads. TensorFlow itself would write
        # an absolute path into the file `checkpoint`.
        atomic.write(os.path.join(self._dir, "checkpoint"), f'model_checkpoint_path: "{name}"\n')
        for path in older:
            # A checkpoint that another process is reading stays until the next best checkpoint is
            # copied.
            if os.path.basename(path) != name:
                run_directory.remove_checkpoint(path)
        return name


def _spell_goal(goal: Mapping[str, Any]) -> str:
    return f"the {'highest' if goal.get('higher_is_better') else 'lowest'} {goal.get('metric')}"
