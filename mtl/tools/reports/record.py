"""Reads the results of a run from its folder.

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

_FIX = "Delete it: the next evaluation is then the best so far."
_SPEEDS = ("steps_per_sec", "examples_per_sec")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """The facts about a run that do not need its data.

    Attributes:
      experiment: its settings.
      model_dir: its folder.
      training: the scalars of its steps.
      evaluations: the scalars of the evaluations of its checkpoints.
      best: the content of `best.json`; {} before the first evaluation.
      step: the last saved step.
      is_training: True if a process trains in the folder now.
      doubts: reasons to doubt its result.
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
        """The name of its folder."""
        return run_directory.name_run(self.model_dir)

    @property
    def state(self) -> tuple[str, str]:
        """The progress in a few words, and its mood: "good" or "warning"."""
        last = self.experiment.run.train_steps
        if self.is_training:
            return f"still training, step {self.step:,} of {last:,}", "warning"
        if self.step >= last:
            return "finished", "good"
        patience = self.experiment.best.patience
        # A run that stopped early is as complete as one that took all steps.
        if patience is not None and self.best.get("evaluations_since", 0) >= patience:
            return f"ended early, at step {self.step:,} of {last:,}", "good"
        return f"stopped at step {self.step:,} of {last:,}", "warning"

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint; None without one."""
        return self.best.get("step")

    @property
    def shown_step(self) -> int | None:
        """The step whose evaluation is shown: of the best checkpoint, or else the last one."""
        return self.last_evaluated if self.best_step is None else self.best_step

    @functools.cached_property
    def evaluated_steps(self) -> set[int]:
        """The steps of the evaluations."""
        # An evaluation whose values are all NaN has points only in `broken`.
        finite = (step for points in self.evaluations.curves.values() for step in points)
        return {*finite, *(step for steps in self.evaluations.broken.values() for step in steps)}

    @functools.cached_property
    def last_evaluated(self) -> int | None:
        """The step of the last evaluation."""
        return max(self.evaluated_steps, default=None)

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics at `shown_step`; NaN if a value was not finite."""
        return self.metrics_at(self.shown_step)

    def metrics_at(self, step: int | None) -> dict[str, float]:
        """Return the metrics of a step; {} without an evaluation."""
        found = {n: points[step] for n, points in self.evaluations.curves.items() if step in points}
        broken = {n: math.nan for n, steps in self.evaluations.broken.items() if step in steps}
        return {**found, **broken}

    @functools.cached_property
    def checkpoint(self) -> str | None:
        """The best checkpoint, or else the latest one; None before the first."""
        # The numbers of the page belong to the best checkpoint.
        for folder in (os.path.join(self.model_dir, "best"), self.model_dir):
            paths = run_directory.list_checkpoints(folder)
            # A checkpoint that is just being written or deleted lacks files.
            if paths and run_directory.is_checkpoint(paths[-1]):
                return paths[-1]
        return None

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Keep a training from deleting the checkpoint, if one exists, within the block."""
        with contextlib.ExitStack() as held:
            if self.checkpoint:
                held.enter_context(run_directory.hold_checkpoint(self.model_dir, self.checkpoint))
            yield

    @functools.cached_property
    def speeds(self) -> dict[str, float]:
        """The medians of steps and examples per second."""
        curves = {name: self.training.curves.get(name, {}) for name in _SPEEDS}
        return {
            # A mean would count pauses, such as the first call.
            name: statistics.median(points.values())
            for name, points in curves.items()
            if points
        }

    @functools.cached_property
    def export(self) -> dict[str, Any]:
        """Path, kind, bytes and the content of `model.json` of the newest export; {} without one.

        If a best checkpoint exists, its export is taken: a run that starts anew keeps old exports.
        """
        kinds = ("latest",) if self.best_step is None else ("best", "latest")
        return _read_export(self.model_dir, kinds)


def read_run(experiment: experiment_lib.Experiment, model_dir: str) -> Run:
    """Read the facts about a run from its folder.

    Args:
      experiment: the settings of the run.
      model_dir: its folder, which stays unchanged.

    Raises:
      UserError: its record of the best, or its checkpoint, is damaged.
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
    """Return the number of parameters of the model, and the bytes of a checkpoint.

    Variables of an optimizer are named `<variable>/<optimizer>`, and do not count as parameters.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    shapes = reader.get_variable_to_shape_map()
    total = 0
    for name, shape in shapes.items():
        is_model = name.startswith(("features/", "network/", "head/"))
        is_state = name.rpartition("/")[0] in shapes or pruned.is_of_pruning(name)
        if is_model and not is_state:
            total += math.prod(shape)
    # With the dot: "model.ckpt-1" is also the beginning of "model.ckpt-10".
    files = storage.listed(*os.path.split(f"{checkpoint}."))
    return total, sum(tf.io.gfile.stat(file).length for file in files)


def _read_export(model_dir: str, kinds: Sequence[str]) -> dict[str, Any]:
    for kind in kinds:
        folder = os.path.join(model_dir, "export", kind)
        versions = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
        # By number, not by letters; object stores list folders with a slash.
        numbered = sorted((v.rstrip("/") for v in versions if v.rstrip("/").isdigit()), key=int)
        if numbered:
            path = os.path.join(folder, numbered[-1])
            return {**_describe_export(path), "kind": kind, "path": path, "bytes": _bytes_of(path)}
    return {}


def _describe_export(path: str) -> dict[str, Any]:
    file = os.path.join(path, "assets.extra", "model.json")
    if not tf.io.gfile.exists(file):
        return {}
    with tf.io.gfile.GFile(file, "rb") as opened:
        try:
            found = json.loads(opened.read())
        except ValueError:
            return {}
    return found if isinstance(found, dict) else {}


def _bytes_of(folder: str) -> int:
    return sum(
        tf.io.gfile.stat(os.path.join(parent, file)).length
        for parent, _, files in tf.io.gfile.walk(folder)
        for file in files
    )


def _is_training(model_dir: str) -> bool:
    try:
        # A lock tells a training that runs from one that was killed.
        lock.require_free(model_dir)
    except checks.UserError:
        return True
    return False
