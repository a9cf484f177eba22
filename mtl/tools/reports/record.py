"""Reads the results of a run from the folder of the run.

run = record.read_run(experiment, "runs/digits")
run.best_step, run.metrics["digit/accuracy"], run.is_training
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtl import checks
from mtl import experiment as experiment_lib
from mtl.checkpoints import lock, run_directory
from mtl.deferred import tf
from mtl.files import checksums, storage
from mtl.monitoring import doubts, event_files
from mtl.variables import pruned

_FIX = "Delete this file: the next evaluation then counts as the best so far."
_SPEEDS = ("steps_per_sec", "examples_per_sec")
# The largest number of changed fields in a warning.
_MOST_CHANGED = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """The results of a run, from the files in its folder.

    Attributes:
      experiment: the settings of the run.
      model_dir: the folder of the run.
      training: the scalars that training steps have written.
      evaluations: the scalars that evaluations have written.
      best: the content of `best.json`; {} before the first evaluation.
      step: the step of the last checkpoint.
      is_training: True if a process trains in the folder now.
      doubts: warnings about the run that make its results doubtful.
    """

    experiment: experiment_lib.Experiment
    model_dir: str
    training: event_files.Record
    evaluations: event_files.Record
    best: Mapping[str, Any]
    step: int
    is_training: bool
    doubts: list[str]

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return run_directory.name_run(self.model_dir)

    @property
    def state(self) -> tuple[str, str]:
        """The progress of the run in a few words, and its mood: "good" or "warning"."""
        last_step = self.experiment.run.train_steps
        if self.is_training:
            return f"still training, step {self.step:,} of {last_step:,}", "warning"
        if self.step >= last_step:
            return "finished", "good"
        patience = self.experiment.best.patience
        # A run that early stopping has ended is also complete.
        if patience is not None and self.best.get("evaluations_since", 0) >= patience:
            return f"ended early, at step {self.step:,} of {last_step:,}", "good"
        return f"stopped at step {self.step:,} of {last_step:,}", "warning"

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint; None before the first best checkpoint."""
        return self.best.get("step")

    @property
    def shown_step(self) -> int | None:
        """The step whose metrics a report shows: the best step, else the last evaluated step."""
        return self.last_evaluated if self.best_step is None else self.best_step

    @functools.cached_property
    def evaluated_steps(self) -> set[int]:
        """The steps at which the run was evaluated."""
        # If all values of an evaluation are NaN, only `broken` has the step of the evaluation.
        finite = (step for points in self.evaluations.curves.values() for step in points)
        return {*finite, *(step for steps in self.evaluations.broken.values() for step in steps)}

    @functools.cached_property
    def last_evaluated(self) -> int | None:
        """The step of the last evaluation; None without evaluations."""
        return max(self.evaluated_steps, default=None)

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        """{metric: value} at the step `shown_step`; NaN for a value that was not finite."""
        return self.metrics_at(self.shown_step)

    def metrics_at(self, step: int | None) -> dict[str, float]:
        """Return {metric: value} at a step; NaN for a value that was not finite.

        Args:
          step: a step at which the run was evaluated; for other steps and for None, the dictionary
            is empty.
        """
        finite = {
            n: points[step] for n, points in self.evaluations.curves.items() if step in points
        }
        broken = {n: math.nan for n, steps in self.evaluations.broken.items() if step in steps}
        return {**finite, **broken}

    def describe_change(self, rows: int, hashes: Mapping[str, str]) -> str:
        """Return a warning if the best value was measured on other rows, else "".

        Args:
          rows: the number of rows that the evaluation split has now.
          hashes: {field and type: the number of rows, and their hash}, as in `best.json`.
        """
        description = self.best.get("measured_on", {})
        measured = re.match(r"\d+", str(description.get("rows", "")))
        old_hashes = description.get("fields", {})
        changed = [field for field, new in hashes.items() if old_hashes.get(field, new) != new]
        if measured and int(measured[0]) != rows:
            change = (
                f"{rows:,} rows now, but the metrics were measured on {int(measured[0]):,} rows"
            )
        elif changed:
            names = ", ".join(field.rpartition(" ")[0] for field in changed[:_MOST_CHANGED])
            more = ", ..." * (len(changed) > _MOST_CHANGED)
            change = f"other values now than when the metrics were measured ({names}{more})"
        else:
            return ""
        return (
            f"Split {self.experiment.data.eval_split!r} has {change}: pictures and counts show "
            "other rows than the metrics. launch.evaluate prints the metrics of the new rows."
        )

    @functools.cached_property
    def checkpoint(self) -> str | None:
        """The path of the best checkpoint, or else of the latest one; None without checkpoints."""
        for folder in (os.path.join(self.model_dir, "best"), self.model_dir):
            paths = run_directory.list_checkpoints(folder)
            # A checkpoint that is being written or deleted lacks files.
            if paths and run_directory.is_checkpoint(paths[-1]):
                return paths[-1]
        return None

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Return a context in which a running training cannot delete the report's checkpoint."""
        with contextlib.ExitStack() as stack:
            if self.checkpoint:
                stack.enter_context(run_directory.hold_checkpoint(self.model_dir, self.checkpoint))
            yield

    @functools.cached_property
    def speeds(self) -> dict[str, float]:
        """{name: median over the run} for the scalars `steps_per_sec` and `examples_per_sec`."""
        curves = {name: self.training.curves.get(name, {}) for name in _SPEEDS}
        return {
            # Use the median, because a mean would include pauses, such as the first call of the
            # session.
            name: statistics.median(points.values())
            for name, points in curves.items()
            if points
        }

    @functools.cached_property
    def export(self) -> dict[str, Any]:
        """The path, kind, size and `model.json` content of the newest export; {} without exports.

        If a best checkpoint exists, an export of the kind "best" is preferred, because other
        exports may come from an earlier run in the same folder.
        """
        kinds = ("latest",) if self.best_step is None else ("best", "latest")
        return _read_export(self.model_dir, kinds)


def read_run(experiment: experiment_lib.Experiment, model_dir: str) -> Run:
    """Read the results of a run from its folder.

    Args:
      experiment: the settings of the run.
      model_dir: the folder of the run, which stays unchanged.

    Raises:
      UserError: `best.json` or the list of checkpoints is damaged.
    """
    storage.require_plain("--model_dir", model_dir)
    run_directory.require_regular(model_dir)
    path = os.path.join(model_dir, "best", "best.json")
    return Run(
        experiment=experiment,
        model_dir=model_dir,
        training=event_files.read_record(model_dir),
        evaluations=event_files.read_record(os.path.join(model_dir, "eval")),
        best=checksums.read_json(path, _FIX) if tf.io.gfile.exists(path) else {},
        step=run_directory.step_of(model_dir),
        is_training=_is_training(model_dir),
        doubts=doubts.read_all_doubts(model_dir),
    )


def count_parameters(checkpoint: str) -> tuple[int, int]:
    """Count the parameters in a checkpoint, and the bytes of its files.

    Variables of an optimizer, whose names are `<variable>/<optimizer>`, do not count as parameters.

    Args:
      checkpoint: the path of the checkpoint.

    Returns:
      The number of parameters, and the bytes of all files of the checkpoint.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    shapes = reader.get_variable_to_shape_map()
    total = 0
    for name, shape in shapes.items():
        is_model = name.startswith(("features/", "network/", "head/"))
        is_state = name.rpartition("/")[0] in shapes or pruned.is_of_pruning(name)
        if is_model and not is_state:
            total += math.prod(shape)
    # The prefix ends in a dot, because "model.ckpt-1" would also match the files of step 10.
    files = storage.listed(*os.path.split(f"{checkpoint}."))
    return total, sum(tf.io.gfile.stat(file).length for file in files)


def _read_export(model_dir: str, kinds: Sequence[str]) -> dict[str, Any]:
    for kind in kinds:
        folder = os.path.join(model_dir, "export", kind)
        versions = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
        # Sort versions as numbers, without the slash that object stores append to folders.
        numbered = sorted((v.rstrip("/") for v in versions if v.rstrip("/").isdigit()), key=int)
        if numbered:
            path = os.path.join(folder, numbered[-1])
            return {**_describe_export(path), "kind": kind, "path": path, "bytes": _bytes_of(path)}
    return {}


def _describe_export(path: str) -> dict[str, Any]:
    file = os.path.join(path, "assets.extra", "model.json")
    if not tf.io.gfile.exists(file):
        return {}
    with tf.io.gfile.GFile(file, "rb") as stream:
        try:
            content = json.loads(stream.read())
        except ValueError:
            return {}
    return content if isinstance(content, dict) else {}


def _bytes_of(folder: str) -> int:
    return sum(
        tf.io.gfile.stat(os.path.join(parent, file)).length
        for parent, _, files in tf.io.gfile.walk(folder)
        for file in files
    )


def _is_training(model_dir: str) -> bool:
    try:
        # The lock is free if no training process runs, even after a process was killed.
        lock.require_free(model_dir)
    except checks.UserError:
        return True
    return False
