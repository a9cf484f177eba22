"""Checkpoints: which is the best, and whether one fits the model.

from mtl.monitoring import checkpoints
checkpoints.Best.metric = "digit/accuracy"
checkpoints.Best.patience = 5
"""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mtl import averaging, checks, checksums, compat, patterns
from mtl.compat import shards, zeros_saver
from mtl.monitoring import run_directory

tf1 = tf.compat.v1


def fitting(model_fn: Callable[..., Any], checkpoint: str | None) -> Callable[..., Any]:
    """`model_fn`, refusing `checkpoint` before anything is restored if it does not fit its graph.

    Training needs a place for every saved variable; other modes leave out the optimizer's. A run
    of a version whose averages knew no decays of rows goes on from averages that are as of now.
    """
    if checkpoint is None:
        return model_fn
    saved = dict(tf.train.list_variables(checkpoint))

    def checked(features: Any, labels: Any, mode: str) -> compat.estimator.EstimatorSpec:
        spec = model_fn(features, labels, mode)
        wanted = {patterns.name(v): shards.whole_shape(v) for v in tf1.global_variables()}
        is_training = mode == compat.estimator.ModeKeys.TRAIN
        used = {name: saved[name] for name in saved if is_training or name in wanted}
        lacking = {name for name in wanted if averaging.is_decay(name) and name not in saved}
        require_same(checkpoint, used, {name: wanted[name] for name in wanted.keys() - lacking})
        if lacking:
            zeros_saver.add(lacking)
        return spec

    return checked


def require_same(
    checkpoint: str, saved: Mapping[str, Sequence[int]], wanted: Mapping[str, Sequence[int]]
) -> None:
    """Raises a UserError that names the first variable in which `saved` and `wanted` differ."""
    both = sorted(set(saved) & set(wanted))
    problems = [
        f"{name!r} has shape {list(saved[name])} there and {list(wanted[name])} here"
        for name in both
        if list(saved[name]) != list(wanted[name])
    ]
    problems += [f"it lacks {name!r}" for name in sorted(set(wanted) - set(saved))]
    problems += [f"it also holds {name!r}" for name in sorted(set(saved) - set(wanted))]
    if problems:
        others = f" ({len(problems) - 1} more differ)" if len(problems) > 1 else ""
        # An optimizer names its variables "<variable>/<slot>", and those of its own without a "/".
        names = {name.rpartition("/")[0] for name in set(saved) ^ set(wanted)}
        is_optimizers = names <= {*both, ""} and problems[0].startswith("it ")
        what = "optimizer" if is_optimizers else "architecture"
        raise checks.UserError(
            f"checkpoint {checkpoint} is of another {what}: {problems[0]}{others}. "
            "Choose another --model_dir, or train with the config.gin that lies beside it."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best:
    """Which checkpoint is the best, and when to stop looking for a better one.

    Attributes:
      metric: an evaluation metric, such as "digit/accuracy". "average_loss", the sum over the tasks
        of theirs, counts every row alike; "loss" is Estimator's mean over batches.
      higher_is_better: False for losses and errors.
      patience: stop after so many evaluations in a row without a better one; None never stops.
    """

    metric: str = "average_loss"
    higher_is_better: bool = False
    patience: int | None = None

    def __post_init__(self):
        if self.patience is not None:
            checks.at_least("Best.patience", self.patience, 1)

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether `value` beats `best`; NaN never does."""
        if best is None or math.isnan(best):
            return not math.isnan(value)
        return value > best if self.higher_is_better else value < best


class BestKeeper:
    """Keeps the best checkpoint in `<model_dir>/best`; the record outlives restarts.

    `<model_dir>/best/best.json` holds {metric, higher_is_better, last_step, evaluations_since},
    and {value, step, checkpoint} of the best once there is one.
    """

    def __init__(self, best: Best, model_dir: str):
        self._best, self._dir = best, os.path.join(model_dir, "best")
        self._goal = {"metric": best.metric, "higher_is_better": best.higher_is_better}

    def read(self) -> dict[str, Any]:
        """The record, or {} before the first evaluation or after the goal was changed."""
        path = os.path.join(self._dir, "best.json")
        if not tf.io.gfile.exists(path):
            return {}
        record = checksums.read_json(
            path, "Delete it: the next evaluation is then the best so far."
        )
        return record if self._goal.items() <= record.items() else {}

    @property
    def last_step(self) -> int:
        """The step of the last evaluation, 0 before the first."""
        return self.read().get("last_step", 0)

    def should_stop(self) -> bool:
        """Whether `patience` evaluations in a row were no better."""
        patience = self._best.patience
        return patience is not None and self.read().get("evaluations_since", 0) >= patience

    def is_best(self, metrics: Mapping[str, Any]) -> bool:
        """Whether an evaluation is a new one, and better than all before."""
        is_new = int(metrics["global_step"]) > self.last_step
        return is_new and self._best.is_better(
            float(metrics[self._best.metric]), self.read().get("value")
        )

    def update(self, checkpoint: str, metrics: Mapping[str, Any]) -> None:
        """Takes in an evaluation, and its checkpoint if that is the best."""
        record, step = self.read(), int(metrics["global_step"])
        if step <= self.last_step:
            return
        tf.io.gfile.makedirs(self._dir)
        since = record.get("evaluations_since", 0) + 1
        if self.is_best(metrics):
            value, since = float(metrics[self._best.metric]), 0
            record |= {"value": value, "step": step, "checkpoint": self._keep(checkpoint)}
        record |= {**self._goal, "last_step": step, "evaluations_since": since}
        run_directory.write(os.path.join(self._dir, "best.json"), checksums.sealed(record))

    def _keep(self, checkpoint: str) -> str:
        name = os.path.basename(checkpoint)
        older = tf.io.gfile.glob(os.path.join(self._dir, "model.ckpt-*"))
        for file in tf.io.gfile.glob(checkpoint + ".*"):
            kept = os.path.join(self._dir, os.path.basename(file))
            tf.io.gfile.copy(file, kept, overwrite=True)
        # What latest_checkpoint reads. TensorFlow would write the whole path where it is absolute.
        run_directory.write(
            os.path.join(self._dir, "checkpoint"), f'model_checkpoint_path: "{name}"\n'
        )
        for file in older:
            if not os.path.basename(file).startswith(name + "."):
                tf.io.gfile.remove(file)
        return name


class BestExporter(compat.estimator.Exporter):
    """Keeps the best checkpoint and exports it, once, as `<model_dir>/export/best/<version>`."""

    def __init__(self, keeper: BestKeeper, export: Callable[[Any, str, str], str | None]):
        self._keeper, self._export = keeper, export

    @property
    def name(self):
        return "best"

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        exported = None
        if self._keeper.is_best(eval_result):
            exported = self._export(estimator, export_path, checkpoint_path)
        # Last, so that a run that is killed before it exports the best once more.
        self._keeper.update(checkpoint_path, eval_result)
        return exported
