"""Combines metrics of several tasks into one number, such as for the choice of the best checkpoint.

from mtl.model import combined
model.MultiTaskModel.combined_metrics = [@combined.MeanGain()]
combined.MeanGain.baselines = {"income/auc": 0.896, "never_married/auc": "runs/never_married"}
checkpoints.Best.metric = "mean_gain"

When a run starts, it copies baselines from other runs into `<model_dir>/statistics`, so all
checkpoints of the run are compared with the same baselines, even if the other runs change.
"""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast

from mtl import checks, types
from mtl.deferred import tf
from mtl.files import checksums, storage
from mtl.monitoring import event_files

_FILE = "baselines.json"
_FIX = "Copy it back, or start again in another --model_dir."
_RULE = "map metrics of tasks to numbers, or to folders of runs"


@checks.dataclass
class Combined(types.CombinedMetric, abc.ABC):
    """The base class of metrics that compare metrics of tasks with baselines.

    Attributes:
      baselines: {"<task>/<metric>": a number, or the folder of a run}. For the folder of a run, the
        baseline is the metric at the run's best checkpoint, or at the last checkpoint if the run
        does not mark its best one. The folder of a run is read once, when training starts.
      name: the name of the combined metric.
    """

    baselines: Annotated[
        Mapping[str, float | str], checks.Map(_RULE), checks.Filled("hold a metric")
    ]
    name: checks.Name

    def __post_init__(self):
        where = f"{type(self).__name__}.baselines"
        for metric, value in self.baselines.items():
            checks.is_a(f"{where}[{metric!r}]", value, (int, float, str), _RULE)
            if not isinstance(value, str):
                self.check_baseline(f"{where}[{metric!r}]", value)

    @property
    def metrics(self) -> Sequence[str]:
        """The names of the metrics that have a baseline."""
        return list(self.baselines)

    @property
    def numbers(self) -> Mapping[str, float]:
        """The baselines as numbers; valid on a copy that `fitted` has returned."""
        return cast(Mapping[str, float], self.baselines)

    def check_baseline(self, where: str, value: float) -> None:
        """Fail unless a number can be a baseline.

        Args:
          where: the name of the setting, for error messages.
          value: the number.

        Raises:
          UserError: the number is NaN or infinite, or the combined metric does not allow the number
            as a baseline.
        """
        checks.number(where, value)

    def fitted(self, statistics: types.Statistics) -> Combined:
        """Return a copy of the metric in which every baseline is a number.

        The numbers come from the file that `keep_baselines` wrote in the run; if the file is
        missing or has other baselines, the numbers are read from the named runs now.

        Args:
          statistics: the statistics of the run, in whose folder the file is.

        Raises:
          UserError: a baseline names a folder without an evaluated run, or the run has no number
            for the metric.
        """
        record = _read_file(statistics.path(_FILE)).get(self.name, {})
        if record.get("given") == self.baselines:
            return dataclasses.replace(self, baselines=record["values"])
        return dataclasses.replace(self, baselines=self._find_values())

    def _find_values(self) -> dict[str, float]:
        """Return all baselines as numbers; a folder is replaced by its run's metric."""
        where = f"{type(self).__name__}.baselines"
        return {
            metric: _read_result(f"{where}[{metric!r}]", baseline, metric)
            if isinstance(baseline, str)
            else baseline
            for metric, baseline in self.baselines.items()
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanGain(Combined):
    """The mean over tasks of a task's mean gain `(m - b) / |b|`, for metrics m with baselines b.

    If lower values of a metric are better, the gain of the metric is negated. The mean gain is the
    Delta_m of Maninis et al., "Attentive Single-Tasking of Multiple Tasks", CVPR 2019,
    arXiv:1904.08918. In the paper, the baseline b of a metric m comes from a network for a single
    task. A mean gain of 0.02 means 2%. Division by the absolute value of a baseline keeps the sign
    of the gain right if the baseline is negative.
    """

    name: str = "mean_gain"
    higher_is_better = True

    def check_baseline(self, where: str, value: float) -> None:
        """Raise a UserError if a baseline is 0, because a gain is divided by its baseline."""
        super().check_baseline(where, value)
        checks.require(value != 0, where, "not be 0, as a gain is divided by it", value)

    def combine(self, values: types.Tensors, directions: Mapping[str, bool]) -> tf.Tensor:
        """Compute the mean gain of the tasks.

        Args:
          values: {metric: scalar}, for each metric with a baseline.
          directions: {metric: True if a higher value is better}.

        Returns:
          The mean gain, a scalar: 0 if all metrics equal their baselines; NaN if a metric is NaN.
        """
        gains: dict[str, list[tf.Tensor]] = {}
        for metric, baseline in self.numbers.items():
            gain = (values[metric] - baseline) / abs(baseline)
            of_task = gains.setdefault(metric.partition("/")[0], [])
            of_task.append(gain if directions[metric] else -gain)
        return tf.reduce_mean([tf.reduce_mean(of_task) for of_task in gains.values()])


def build_metrics(
    parts: Sequence[types.CombinedMetric],
    metrics: types.Metrics,
    find_direction: Callable[[str], bool | None],
) -> types.Metrics:
    """Build the combined metrics from the metrics of tasks.

    Args:
      parts: the combined metrics.
      metrics: {metric of a task: (value, update)}.
      find_direction: metric -> True if higher values are better; None if unknown.

    Returns:
      {name of a combined metric: (value, update)}.

    Raises:
      UserError: a metric does not exist, its better direction is unknown, or a combined metric is
        not a scalar tensor.
    """
    combined_metrics = {}
    for part in parts:
        where = f"a metric of {type(part).__name__} {part.name!r}"
        directions = {}
        for metric in part.metrics:
            checks.one_of(where, metric, metrics)
            higher = find_direction(metric)
            if higher is None:
                checks.fail(where, "be a metric with a better direction", metric)
            directions[metric] = higher
        values = {metric: metrics[metric][0] for metric in directions}
        try:
            value = part.combine(values, directions)
        except KeyError as error:
            missing = next(iter(error.args), None)
            if missing not in metrics or missing in values:
                raise
            rule, fix = "list each metric that combine reads", f"Add {missing!r}."
            checks.fail(f"{type(part).__name__}.metrics", rule, list(values), fix)
        rule = f"return a scalar tensor, the metric {part.name!r}"
        is_scalar = isinstance(value, tf.Tensor) and value.shape.is_compatible_with([])
        checks.require(is_scalar, f"{type(part).__name__}.combine", rule, value)
        updates = {metrics[metric][1] for metric in directions}
        combined_metrics[part.name] = (value, tf.group(*updates))
    return combined_metrics


def keep_baselines(parts: Sequence[types.CombinedMetric], directory: str, is_new: bool) -> None:
    """Write the baselines of a new run; check that a continued run has the same baselines.

    Args:
      parts: the combined metrics; parts without baselines are ignored.
      directory: the folder of the run's statistics.
      is_new: True replaces the baselines of an earlier run in the folder.

    Raises:
      UserError: the baselines have changed, or cannot be read from a run.
    """
    with_baselines = [part for part in parts if isinstance(part, Combined)]
    path = os.path.join(directory, _FILE)
    if is_new and tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)
    records = _read_file(path)
    for part in with_baselines:
        before = records.get(part.name, {}).get("given", part.baselines)
        where, rule = f"{type(part).__name__}.baselines", "be as when the run was started"
        fix = f"They were {before}."
        checks.require(before == part.baselines, where, rule, dict(part.baselines), fix)
    new_records = {
        part.name: {"given": dict(part.baselines), "values": part._find_values()}
        for part in with_baselines
        if part.name not in records
    }
    if new_records:
        checksums.write_json(path, {**records, **new_records})


def _read_file(path: str) -> dict[str, Any]:
    return checksums.read_json(path, _FIX) if tf.io.gfile.exists(path) else {}


def _read_result(where: str, model_dir: str, metric: str) -> float:
    """Read a metric of a run at its best checkpoint, or at its last checkpoint if there is no best.

    Raises:
      UserError: the run was not evaluated, or the metric is missing, NaN or infinite.
    """
    storage.require_plain(where, model_dir)
    curves, broken = event_files.read_record(os.path.join(model_dir, "eval"))
    rule = "be a number, or the folder of a run that was evaluated"
    checks.require(bool(curves), where, rule, model_dir)
    checks.one_of(f"{where}: a metric of {model_dir}", metric, sorted(curves))
    best = os.path.join(model_dir, "best", "best.json")
    steps = {step for points in curves.values() for step in points}
    steps |= {step for points in broken.values() for step in points}
    step = _read_file(best).get("step", max(steps))
    rule = f"be of a run whose {metric} at step {step} is a number"
    checks.require(step in curves[metric], where, rule, model_dir)
    return curves[metric][step]
