"""Several runs side by side: settings that differ, metrics of the best checkpoints, speed, size.

found = comparison.compare({"a": run_a, "b": run_b})
found.metrics["digit/accuracy"]["a"], found.best_of("digit/accuracy")
found.pairs                                   # paired differences where seeds repeat
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mtl import checks
from mtl.reports import record, settings


class Pair(NamedTuple):
    """How far two groups of runs are apart that have the same seeds.

    Attributes:
      metric: what is compared.
      first: the runs of one group, in the order of their seeds.
      second: those of the other.
      difference: the mean over the seeds of second - first.
      error: the standard error of that mean.
    """

    metric: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    difference: float
    error: float


class Group(NamedTuple):
    """Runs that differ by their seed alone: the mean of a metric, and its standard error."""

    metric: str
    runs: tuple[str, ...]
    mean: float
    error: float


class Comparison(NamedTuple):
    """What several runs come to.

    Attributes:
      runs: {name: run}.
      differing: {setting: {run: value}}.
      metrics: {metric: {run: value at its best checkpoint}}; a run lacks what it did not measure.
      directions: {metric: whether higher is better}, of metrics that have an order.
      figures: {what: {run: number}}: speed and size.
      groups: of runs that differ by their seed alone, by metric.
      pairs: of groups with the same seeds, by metric.
    """

    runs: Mapping[str, record.Run]
    differing: Mapping[str, Mapping[str, str]]
    metrics: Mapping[str, Mapping[str, float]]
    directions: Mapping[str, bool]
    figures: Mapping[str, Mapping[str, float]]
    groups: Sequence[Group]
    pairs: Sequence[Pair]

    @property
    def main_metrics(self) -> list[str]:
        """The most telling metric of each task, and what the runs choose their best by."""
        run = next(iter(self.runs.values()))
        names = run.experiment.model.find_main_metrics(self.metrics)
        chosen = [one.experiment.best.metric for one in self.runs.values()]
        return [name for name in dict.fromkeys([*names, *chosen]) if name in self.metrics]

    def best_of(self, metric: str) -> list[str]:
        """Return the runs with the best value; none where there is no order, or all are alike."""
        known = {n: v for n, v in self.metrics[metric].items() if not math.isnan(v)}
        if metric not in self.directions or len(set(known.values())) < 2:
            return []
        best = (max if self.directions[metric] else min)(known.values())
        return [name for name, value in known.items() if value == best]


def require_same_tasks(runs: Mapping[str, record.Run]) -> None:
    """Fail unless all runs have the same tasks.

    Raises:
      UserError: by two runs that have not.
    """
    (first, one), *others = runs.items()
    for name, other in others:
        ours, theirs = (sorted(run.experiment.model.tasks) for run in (one, other))
        if ours != theirs:
            raise checks.UserError(
                f"the runs must have the same tasks: {first} has {_listed(ours)}, "
                f"{name} has {_listed(theirs)}."
            )


def _listed(tasks: Sequence[str]) -> str:
    return ", ".join(tasks[:10]) + (f" and {len(tasks) - 10} more" if len(tasks) > 10 else "")


def compare(runs: Mapping[str, record.Run]) -> Comparison:
    """Compare runs of the same tasks."""
    metrics: dict[str, dict[str, float]] = {}
    for name, run in runs.items():
        for metric, value in run.metrics.items():
            metrics.setdefault(metric, {})[name] = value
    model = next(iter(runs.values())).experiment.model
    known = {metric: model.find_direction(metric) for metric in metrics}
    directions = {metric: higher for metric, higher in known.items() if higher is not None}
    experiments = {name: run.experiment for name, run in runs.items()}
    groups = [group for group in settings.group_by_seed(experiments) if len(group) > 1]
    by_seed = [{runs[name].experiment.run.seed: name for name in group} for group in groups]
    ordered = [metric for metric in metrics if metric in directions]
    return Comparison(
        runs=runs,
        differing=settings.compare(experiments),
        metrics=metrics,
        directions=directions,
        figures=_measure(runs),
        groups=[
            found for m in ordered for group in groups if (found := _average(m, group, metrics[m]))
        ],
        pairs=[
            pair
            for metric in ordered
            for first, second in itertools.combinations(by_seed, 2)
            if (pair := _pair(metric, first, second, metrics[metric]))
        ],
    )


def _average(metric: str, group: Sequence[str], values: Mapping[str, float]) -> Group | None:
    if any(math.isnan(values.get(name, math.nan)) for name in group):
        return None
    known = [values[name] for name in group]
    return Group(metric, tuple(group), statistics.fmean(known), _standard_error(known))


def _pair(
    metric: str, first: Mapping[int, str], second: Mapping[int, str], values: Mapping[str, float]
) -> Pair | None:
    """Return the mean difference over the seeds that both have; None of fewer than two."""
    seeds = [
        seed
        for seed in sorted(first.keys() & second.keys())
        if not any(math.isnan(values.get(one[seed], math.nan)) for one in (first, second))
    ]
    if len(seeds) < 2:
        return None
    ours, theirs = (tuple(group[seed] for seed in seeds) for group in (first, second))
    differences = [values[b] - values[a] for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(differences)
    return Pair(metric, ours, theirs, mean, _standard_error(differences))


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def _measure(runs: Mapping[str, record.Run]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, run in runs.items():
        measured = dict(run.speeds)
        if run.checkpoint:
            measured["parameters"], measured["checkpoint_bytes"] = record.count_parameters(
                run.checkpoint
            )
        export = record.read_export(run.model_dir)
        if export:
            measured["export_bytes"] = export["bytes"]
        for what, value in measured.items():
            found.setdefault(what, {})[name] = value
    return found


def sort_by(found: Comparison, metric: str) -> list[str]:
    """Return the runs that have a metric, the best first.

    Raises:
      UserError: no run has it, or it has no order.
    """
    checks.one_of("--metric", metric, sorted(found.metrics) or ["(none is evaluated)"])
    rule = "be a metric of which a higher or a lower value is better"
    checks.require(metric in found.directions, "--metric", rule, metric)
    values = {n: v for n, v in found.metrics[metric].items() if not math.isnan(v)}
    return sorted(values, key=lambda name: values[name], reverse=found.directions[metric])
