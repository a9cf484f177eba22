"""Metrics of several tasks as one number, to choose the best checkpoint by.

from mtl.model import combined
model.MultiTaskModel.combined_metrics = [@combined.MeanGain()]
combined.MeanGain.baselines = {"income/auc": 0.896, "never_married/auc": "runs/never_married"}
checkpoints.Best.metric = "mean_gain"

Baselines that are read from a run are kept in `<model_dir>/statistics`, so that a metric means the
same for all checkpoints, whatever becomes of that run.
"""

import abc
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import tensorflow as tf

from mtl import checks, types
from mtl.files import checksums, storage
from mtl.monitoring import event_files

_FILE = "baselines.json"
_FIX = "Copy it back, or start again in another --model_dir."
_RULE = "map metrics of tasks to numbers, or to folders of runs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Combined(types.CombinedMetric, abc.ABC):
    """What metrics share that compare several others with baselines.

    Attributes:
      baselines: {"<task>/<metric>": a number, or the folder of a run}. Of a run, it is the value in
        the evaluation of its best checkpoint, or of its last where none is the best; it is read
        once, when training starts.
      name: of the metric.
    """

    baselines: Mapping[str, float | str]
    name: str

    def __post_init__(self):
        where = f"{type(self).__name__}.baselines"
        checks.mapping(where, self.baselines, _RULE)
        checks.require(bool(self.baselines), where, "hold a metric", self.baselines)
        for metric, value in self.baselines.items():
            checks.is_a(f"{where}[{metric!r}]", value, (int, float, str), _RULE)
            if not isinstance(value, str):
                self.check_baseline(f"{where}[{metric!r}]", value)
        checks.scope_name(f"{type(self).__name__}.name", self.name)

    @property
    def metrics(self) -> Sequence[str]:
        """The metrics that have a baseline."""
        return list(self.baselines)

    @property
    def numbers(self) -> Mapping[str, float]:
        """The baselines, once they are read."""
        return cast(Mapping[str, float], self.baselines)

    def check_baseline(self, where: str, value: float) -> None:
        """Fail unless a metric can be compared with this number."""
        checks.number(where, value)

    def fitted(self, statistics: types.Statistics) -> "Combined":
        """Return the same with numbers for all baselines, those that the run keeps or new ones."""
        kept = _read(statistics.path(_FILE)).get(self.name, {})
        if kept.get("given") == self.baselines:
            return dataclasses.replace(self, baselines=kept["values"])
        return dataclasses.replace(self, baselines=self._find_values())

    def _find_values(self) -> dict[str, float]:
        """Return the baselines as numbers."""
        where = f"{type(self).__name__}.baselines"
        return {
            metric: _read_result(f"{where}[{metric!r}]", given, metric)
            if isinstance(given, str)
            else given
            for metric, given in self.baselines.items()
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanGain(Combined):
    """`mean over tasks of the mean over its metrics of (m - b) / |b|`, with - for what should fall.

    Delta_m of K. Maninis, I. Radosavovic and I. Kokkinos, "Attentive Single-Tasking of Multiple
    Tasks", CVPR 2019, arXiv:1904.08918, where baselines b are those of networks of one task each;
    here it is a share, 0.02 where theirs is 2%. Where a baseline is below 0, its sign is left out.
    """

    name: str = "mean_gain"

    def check_baseline(self, where: str, value: float) -> None:
        """Fail if there is no share of the baseline."""
        super().check_baseline(where, value)
        checks.require(value != 0, where, "not be 0, of which nothing is a share", value)

    def combine(self, values: types.Tensors, directions: Mapping[str, bool]) -> tf.Tensor:
        """Return the mean gain, {metric: scalar} -> a scalar; NaN where a metric is."""
        gains: dict[str, list[tf.Tensor]] = {}
        for metric, baseline in self.numbers.items():
            gain = (values[metric] - baseline) / abs(baseline)
            of_task = gains.setdefault(metric.partition("/")[0], [])
            of_task.append(gain if directions[metric] else -gain)
        return tf.reduce_mean([tf.reduce_mean(of_task) for of_task in gains.values()])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hypervolume(Combined):
    """`prod max(0, m - b)`, with b - m for what should fall: the volume between m and b.

    The hypervolume of one point by the reference point b: E. Zitzler and L. Thiele, "Multiobjective
    Evolutionary Algorithms: A Comparative Case Study and the Strength Pareto Approach", 1999. It is
    0 as soon as one metric is no better than its baseline, so that no task can pay for another one.
    Choose baselines that every usable checkpoint beats, such as an AUC of 0.5. Units of metrics
    change it by a factor, and so never which checkpoint is the best.
    """

    name: str = "hypervolume"

    def combine(self, values: types.Tensors, directions: Mapping[str, bool]) -> tf.Tensor:
        """Return the volume, {metric: scalar} -> a scalar; NaN where a metric is."""
        gains = tf.stack(
            [
                values[metric] - baseline if directions[metric] else baseline - values[metric]
                for metric, baseline in self.numbers.items()
            ]
        )
        return tf.reduce_prod(tf.where(gains < 0, tf.zeros_like(gains), gains))


def build_metrics(
    parts: Sequence[types.CombinedMetric],
    metrics: types.Metrics,
    find_direction: Callable[[str], bool | None],
) -> types.Metrics:
    """Build {name: (value, update)} of metrics that read those of tasks.

    Raises:
      UserError: there is no such metric of a task, or it has no order.
    """
    found = {}
    for part in parts:
        where = f"a metric of {type(part).__name__} {part.name!r}"
        directions = {}
        for metric in part.metrics:
            checks.one_of(where, metric, metrics)
            higher = find_direction(metric)
            if higher is None:
                checks.fail(where, "be one of which higher or lower values are better", metric)
            directions[metric] = higher
        value = part.combine({metric: metrics[metric][0] for metric in directions}, directions)
        found[part.name] = (value, tf.group(*{metrics[metric][1] for metric in directions}))
    return found


def keep_baselines(parts: Sequence[types.CombinedMetric], directory: str, is_new: bool) -> None:
    """Keep the baselines of a run that starts; those of one that goes on have to be the same.

    Raises:
      UserError: they are not, or cannot be read from a run.
    """
    own = [part for part in parts if isinstance(part, Combined)]
    path = os.path.join(directory, _FILE)
    if is_new and tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)
    kept = _read(path)
    for part in own:
        before = kept.get(part.name, {}).get("given", part.baselines)
        where, rule = f"{type(part).__name__}.baselines", "be as when the run was started"
        fix = f"They were {before}."
        checks.require(before == part.baselines, where, rule, dict(part.baselines), fix)
    new = {part.name: part for part in own if part.name not in kept}
    if new:
        given = {name: {"given": dict(part.baselines)} for name, part in new.items()}
        found = {name: {**given[name], "values": part._find_values()} for name, part in new.items()}
        checksums.write_json(path, {**kept, **found})


def _read(path: str) -> dict[str, Any]:
    return checksums.read_json(path, _FIX) if tf.io.gfile.exists(path) else {}


def _read_result(where: str, model_dir: str, metric: str) -> float:
    """Return a metric of a run at its best checkpoint, or at its last where none is the best.

    Raises:
      UserError: the folder holds no such evaluation, or the metric is NaN or infinite there.
    """
    storage.require_plain(where, model_dir)
    curves, broken = event_files.read_record(os.path.join(model_dir, "eval"))
    rule = "be a number, or the folder of a run that was evaluated"
    checks.require(bool(curves), where, rule, model_dir)
    checks.one_of(f"{where}: a metric of {model_dir}", metric, sorted(curves))
    best = os.path.join(model_dir, "best", "best.json")
    steps = {step for points in curves.values() for step in points}
    steps |= {step for points in broken.values() for step in points}
    step = _read(best).get("step", max(steps))
    rule = f"be of a run whose {metric} at step {step} is a number"
    checks.require(step in curves[metric], where, rule, model_dir)
    return curves[metric][step]
