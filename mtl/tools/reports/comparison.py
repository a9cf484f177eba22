"""Compares runs by their settings, the metrics of their best checkpoints, speed and size.

result = comparison.compare({"a": run_a, "b": run_b})
result.metrics["digit/accuracy"]["a"], result.best_of("digit/accuracy")
result.pairs                                  # paired differences of groups with the same seeds
"""

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mtl import checks
from mtl import experiment as experiment_lib
from mtl.checkpoints import flat_settings
from mtl.heads import metrics as metrics_lib
from mtl.tools.reports import record

_SHOWN = 5
_OF_HEAD = re.compile(r"model\.heads\[(?P<task>[^\]]*)\]\.?(?P<name>.*)")
# Settings of heads that choose, group, label or weigh the rows of all metrics.
_OF_ROWS = {
    "boundaries",
    "classes",
    "empty_is_missing",
    "event",
    "field",
    "group",
    "ignored",
    "item",
    "label",
    "missing",
    "negative",
    "positive",
    "weight",
    "within",
}
# Settings of heads that do not enter the loss.
_NOT_IN_LOSS = {"calibration_slices", "prior", "shots", "threshold"}


class Pair(NamedTuple):
    """The mean difference between two groups of runs that have the same seeds.

    Attributes:
      metric: the name of the metric.
      first: the runs of the first group, in the order of their seeds.
      second: the runs of the second group, in the order of their seeds.
      difference: the metric of the second group minus the metric of the first group, averaged over
        seeds.
      error: the standard error of the difference.
      left_out: the seeds for which one of the groups has no run or an undefined metric.
    """

    metric: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    difference: float
    error: float
    left_out: tuple[int, ...] = ()


class Group(NamedTuple):
    """A group of runs that differ only in their seed, with one run for each seed.

    Attributes:
      metric: the name of the metric.
      runs: the runs in which the metric has a value.
      mean: the mean of the metric over `runs`; NaN without runs.
      error: the standard error of the mean; NaN for fewer than two runs.
      left_out: the runs in which the metric is undefined.
    """

    metric: str
    runs: tuple[str, ...]
    mean: float
    error: float
    left_out: tuple[str, ...] = ()


class Comparison(NamedTuple):
    """The comparison of several runs.

    Attributes:
      runs: {name: run} for all compared runs.
      differing: {setting: {run: value}} for the settings that differ between runs.
      metrics: {metric: {run: value at the best checkpoint}}. Runs without the metric are left out
        of {run: value}.
      directions: {metric: True if higher is better, False if lower is better}. Metrics are left out
        if neither higher nor lower values are better.
      figures: {name: {run: number}} for numbers such as the training speed and the size of the
        checkpoint.
      groups: for each main metric, each group of runs that differ only in their seed.
      pairs: for each main metric, the pairs of groups that have at least two seeds in common.
      repeats: {run: earlier run with the same settings and seed}. If two runs have the same
        settings and seed, the groups contain only the earlier run.
    """

    runs: Mapping[str, record.Run]
    differing: Mapping[str, Mapping[str, str]]
    metrics: Mapping[str, Mapping[str, float]]
    directions: Mapping[str, bool]
    figures: Mapping[str, Mapping[str, float]]
    groups: Sequence[Group]
    pairs: Sequence[Pair]
    repeats: Mapping[str, str]

    @property
    def main_metrics(self) -> list[str]:
        """The most informative metric of each task, and `Best.metric` of each run."""
        return _find_main_metrics(self.runs, self.metrics)

    @property
    def differing_rows(self) -> list[str]:
        """The fields in which the evaluated rows differ between runs.

        A field is only compared between runs that read the field with the same type, and that
        stored checksums of the rows of their evaluations.
        """
        checksums: dict[str, set[str]] = {}
        for run in self.runs.values():
            for field, rows in run.best.get("measured_on", {}).get("fields", {}).items():
                checksums.setdefault(field, set()).add(rows)
        # The keys are "<field> <type>", so fields of different types are never compared.
        return [field.rpartition(" ")[0] for field, rows in checksums.items() if len(rows) > 1]

    @property
    def differing_losses(self) -> list[str]:
        """The tasks whose losses may be defined differently, as settings of their heads differ."""
        return [task for task, names in self._differing_heads.items() if names - _NOT_IN_LOSS]

    @property
    def _differing_heads(self) -> dict[str, set[str]]:
        """For each task, the settings of its head that differ, such as "layers" for "layers[0]"."""
        found: dict[str, set[str]] = {}
        for match in filter(None, map(_OF_HEAD.match, self.differing)):
            names = found.setdefault(match["task"], set())
            names.add(re.split(r"[.\[]", match["name"], maxsplit=1)[0])
        return found

    def compares(self, metric: str) -> bool:
        """Return False if the runs may define a metric differently, or measure it on other rows."""
        # A metric of a single class, such as "digit/recall/3", has a second slash.
        task, _, kind = metrics_lib.split_slice(metric)[0].partition("/")
        if task == "average_loss":
            return not self.differing_losses
        if kind == "average_loss":
            return task not in self.differing_losses
        return not self._differing_heads.get(task, set()) & _OF_ROWS

    def best_of(self, metric: str) -> list[str]:
        """Return the names of the runs with the best value of a metric.

        Args:
          metric: a key of `metrics`.

        Returns:
          The names; [] if neither higher nor lower values are better, if all values are equal, or
          if the values cannot be compared: the runs were evaluated on different rows, or define a
          loss differently.
        """
        defined = {n: v for n, v in self.metrics[metric].items() if not math.isnan(v)}
        if metric not in self.directions or len(set(defined.values())) < 2:
            return []
        if self.differing_rows or not self.compares(metric):
            return []
        best = (max if self.directions[metric] else min)(defined.values())
        return [name for name, value in defined.items() if value == best]


def list_repeats(result: Comparison) -> list[str]:
    """Return a line for each run with the same settings and seed as an earlier run."""
    return [
        f"{name} has the same settings and seed as {first}: means contain only {first}."
        for name, first in result.repeats.items()
    ]


def describe_rows(result: Comparison) -> str:
    """Return a warning if the runs were evaluated on different rows, and "" otherwise."""
    fields = result.differing_rows
    if not fields:
        return ""
    more = f" and {len(fields) - _SHOWN} more" if len(fields) > _SHOWN else ""
    names = ", ".join(fields[:_SHOWN]) + more
    return (
        f"The runs were evaluated on different rows, which differ in {names}: values cannot be "
        "compared. Evaluate all runs on the same rows with launch.evaluate --split."
    )


def describe_losses(result: Comparison, metrics: Sequence[str]) -> str:
    """Return a warning if the runs may define some of the metrics differently, and "" otherwise."""
    names = [metric for metric in metrics if not result.compares(metric)]
    if not names:
        return ""
    return (
        f"Settings of the heads of {_list_tasks(result.differing_losses)} differ, and may change "
        f"the meaning of metrics: do not compare {_list_tasks(names)}."
    )


def describe_runs(group: Group) -> str:
    """Return a text with the runs of a group, and with the runs whose metric is undefined.

    Returns:
      A text such as "a, b; c undefined", or "none; c undefined" if no run has a value.
    """
    without = f"; {', '.join(group.left_out)} undefined" if group.left_out else ""
    return (", ".join(group.runs) or "none") + without


def describe_left_out(pair: Pair) -> str:
    """Return a text with the seeds that a pair of groups leaves out.

    Returns:
      A text such as "; without seeds 3, 4", which can follow the names of runs; "" if no seed is
      left out.
    """
    several = "s" * (len(pair.left_out) > 1)
    seeds = ", ".join(map(str, pair.left_out))
    return f"; without seed{several} {seeds}" if seeds else ""


def require_same_tasks(runs: Mapping[str, record.Run]) -> None:
    """Fail unless all runs have the same tasks.

    Raises:
      UserError: two runs have different tasks.
    """
    (first, first_run), *other_runs = runs.items()
    for name, other in other_runs:
        first_runs, second_runs = (sorted(run.experiment.model.tasks) for run in (first_run, other))
        if first_runs != second_runs:
            raise checks.UserError(
                f"the runs must have the same tasks: {first} has {_list_tasks(first_runs)}, "
                f"{name} has {_list_tasks(second_runs)}."
            )


def _list_tasks(tasks: Sequence[str]) -> str:
    return ", ".join(tasks[:10]) + (f" and {len(tasks) - 10} more" if len(tasks) > 10 else "")


def compare(runs: Mapping[str, record.Run]) -> Comparison:
    """Compare runs.

    The heads of the first run determine the main metrics of all runs, and whether higher or lower
    values of a metric are better.

    Args:
      runs: {name: run}, at least one run.
    """
    metrics = _turn_figures({name: run.metrics for name, run in runs.items()})
    directions = _find_directions(metrics, runs)
    experiments = {name: run.experiment for name, run in runs.items()}
    groups, repeats = _group_by_seed(experiments)
    # Skip metrics for which neither higher nor lower is better, because a difference would not show
    # which group is better.
    mains = [metric for metric in _find_main_metrics(runs, metrics) if metric in directions]
    return Comparison(
        runs=runs,
        differing=flat_settings.compare(experiments),
        metrics=metrics,
        directions=directions,
        figures=_measure_runs(runs),
        groups=[
            _average_group(metric, group, metrics[metric]) for metric in mains for group in groups
        ],
        pairs=[pair for metric in mains for pair in _list_pairs(metric, groups, metrics[metric])],
        repeats=repeats,
    )


def _turn_figures(of_runs: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Turn {run: {figure: number}} into {figure: {run: number}}."""
    by_figure: dict[str, dict[str, float]] = {}
    for name, numbers in of_runs.items():
        for figure, number in numbers.items():
            by_figure.setdefault(figure, {})[name] = number
    return by_figure


def _find_main_metrics(
    runs: Mapping[str, record.Run], metrics: Mapping[str, Mapping[str, float]]
) -> list[str]:
    # Ask only the first run for its metrics, because all runs have the same tasks, or at least the
    # same --metric.
    model = next(iter(runs.values())).experiment.model
    best_metrics = [run.experiment.best.metric for run in runs.values()]
    names = dict.fromkeys([*model.find_main_metrics(metrics), *best_metrics])
    return [name for name in names if name in metrics]


def _find_directions(metrics: Iterable[str], runs: Mapping[str, record.Run]) -> dict[str, bool]:
    directions = {metric: _find_direction(metric, runs) for metric in metrics}
    return {metric: higher for metric, higher in directions.items() if higher is not None}


def _find_direction(metric: str, runs: Mapping[str, record.Run]) -> bool | None:
    """Return True if a head or `Best` says that higher values are better; None if it is unknown."""
    direction = next(iter(runs.values())).experiment.model.find_direction(metric)
    if direction is not None:
        return direction
    best = [run.experiment.best for run in runs.values()]
    # If runs disagree, the better direction is unknown.
    directions = {settings.higher_is_better for settings in best if settings.metric == metric} - {
        None
    }
    return directions.pop() if len(directions) == 1 else None


def _group_by_seed(
    experiments: Mapping[str, experiment_lib.Experiment],
) -> tuple[list[dict[int, str]], dict[str, str]]:
    """Return groups of runs that differ only in their seed, and runs that repeat a seed.

    If two runs of a group have the same seed, the second run is left out, because it does not show
    how results depend on the seed.

    Returns:
      {seed: first run} for each group of at least two seeds, and {repeated run: first run}.
    """
    groups: list[dict[int, str]] = []
    repeats: dict[str, str] = {}
    for group in flat_settings.group_by_seed(experiments):
        by_seed: dict[int, str] = {}
        for name in group:
            # If several runs have the same seed, use the first run in the order of the arguments.
            first = by_seed.setdefault(experiments[name].run.seed, name)
            if first != name:
                repeats[name] = first
        groups.append(by_seed)
    return [group for group in groups if len(group) > 1], repeats


def _average_group(metric: str, group: Mapping[int, str], values: Mapping[str, float]) -> Group:
    names = [name for name in group.values() if not math.isnan(values.get(name, math.nan))]
    left_out = tuple(name for name in group.values() if name not in names)
    numbers = [values[name] for name in names]
    mean = statistics.fmean(numbers) if numbers else math.nan
    return Group(metric, tuple(names), mean, _standard_error(numbers), left_out)


def _list_pairs(
    metric: str, groups: Sequence[Mapping[int, str]], values: Mapping[str, float]
) -> list[Pair]:
    # Compare all pairs of groups, in the order of the arguments.
    pairs = (_pair_groups(metric, *couple, values) for couple in itertools.combinations(groups, 2))
    return [pair for pair in pairs if pair]


def _pair_groups(
    metric: str, first: Mapping[int, str], second: Mapping[int, str], values: Mapping[str, float]
) -> Pair | None:
    """Return the mean difference between two groups; None for fewer than two common seeds."""
    all_seeds = sorted(first.keys() | second.keys())
    seeds = [
        seed
        for seed in all_seeds
        # A seed counts if both groups have a run with this seed and with a defined value.
        if not any(
            math.isnan(values.get(group.get(seed, ""), math.nan)) for group in (first, second)
        )
    ]
    if len(seeds) < 2:
        return None
    first_runs, second_runs = (tuple(group[seed] for seed in seeds) for group in (first, second))
    # Subtract seed by seed, so that common effects of a seed, such as the order of rows, cancel
    # out.
    differences = [values[b] - values[a] for a, b in zip(first_runs, second_runs, strict=True)]
    mean = statistics.fmean(differences)
    left_out = tuple(seed for seed in all_seeds if seed not in seeds)
    return Pair(metric, first_runs, second_runs, mean, _standard_error(differences), left_out)


def _standard_error(values: Sequence[float]) -> float:
    # A single value has no standard error.
    if len(values) < 2:
        return math.nan
    return statistics.stdev(values) / math.sqrt(len(values))


def _measure_runs(runs: Mapping[str, record.Run]) -> dict[str, dict[str, float]]:
    by_run: dict[str, dict[str, float]] = {}
    for name, run in runs.items():
        figures = by_run[name] = dict(run.speeds)
        if run.checkpoint:
            # `holding` keeps a running training from deleting the checkpoint while its parameters
            # are counted.
            with run.holding():
                sizes = record.count_parameters(run.checkpoint)
            figures["parameters"], figures["checkpoint_bytes"] = sizes
        if run.export:
            figures["export_bytes"] = run.export["bytes"]
    return _turn_figures(by_run)


def sort_by(result: Comparison, metric: str) -> list[str]:
    """Return the names of the runs that have a metric, from the best to the worst.

    Args:
      result: the comparison of the runs.
      metric: the name of the metric.

    Raises:
      UserError: no run has the metric, or neither higher nor lower values are better.
    """
    # The error lists the existing metrics, or "(none is evaluated)".
    checks.one_of("--metric", metric, sorted(result.metrics) or ["(none is evaluated)"])
    rule = "be a metric for which higher or lower values are better"
    checks.require(metric in result.directions, "--metric", rule, metric)
    values = {n: v for n, v in result.metrics[metric].items() if not math.isnan(v)}
    return sorted(values, key=lambda name: values[name], reverse=result.directions[metric])
