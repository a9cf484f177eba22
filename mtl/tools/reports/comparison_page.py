"""Turns a comparison of runs into an HTML page with tables and curves.

page = comparison_page.describe(comparison)
"""

import math
from collections.abc import Sequence

from mtl.checkpoints import flat_settings
from mtl.tools.drawing import figures, line_charts
from mtl.tools.reports import blocks, comparison, curve_sections

_MOST_TASKS = 20


def describe(result: comparison.Comparison, order: Sequence[str] = ()) -> blocks.Page:
    """Return a page that describes a comparison of runs.

    Args:
      result: the comparison of the runs.
      order: the names of the runs that the page shows first, in this order; all other runs follow.
    """
    names = [*order, *(name for name in result.runs if name not in order)]
    parts = [
        ("runs", "Runs", _tell_runs(result, names)),
        ("metrics", "Metrics of the best checkpoints", _tell_metrics(result, names)),
        ("seeds", "Same settings, other seeds", _tell_seeds(result)),
        ("settings", "Settings that differ", _tell_settings(result, names)),
        ("curves", "Curves", _draw_curves(result, names)),
        ("figures", "Speed and size", _tell_figures(result, names)),
    ]
    return blocks.Page(
        title=", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else ""),
        state=f"{len(names)} runs",
        mood="",
        lead=["The best value of each metric is green."],
        # A text in place of a list of blocks is the reason why the section is left out.
        sections=[blocks.Section(*part) for part in parts if not isinstance(part[2], str)],
        left_out=[f"{title}: {why}" for _, title, why in parts if isinstance(why, str)],
    )


def _tell_runs(result: comparison.Comparison, names: Sequence[str]) -> list:
    rows = []
    for name in names:
        run = result.runs[name]
        best = "none" if run.best_step is None else run.best_step
        rows.append([name, run.model_dir, run.state[0], best])
    return [blocks.Table(["run", "folder", "state", "best step"], rows)]


def _tell_metrics(result: comparison.Comparison, names: Sequence[str]) -> list | str:
    if not result.metrics:
        return "no run is evaluated yet."
    mains = result.main_metrics
    ordered = [metric for metric in result.directions if metric not in mains]
    tables: list = [_tabulate_metrics(result, mains, names)]
    if ordered:
        tables.append(
            blocks.Fold(f"{len(ordered)} more metrics", [_tabulate_metrics(result, ordered, names)])
        )
    return tables


def _tabulate_metrics(
    result: comparison.Comparison, metrics: Sequence[str], names: Sequence[str]
) -> blocks.Table:
    rows = []
    for metric in metrics:
        best, values = result.best_of(metric), result.metrics[metric]
        row: list = [metric]
        for name in names:
            value = values.get(name, math.nan)
            row.append(blocks.Marked(value) if name in best else value)
        rows.append(row)
    return blocks.Table(["metric", *names], rows)


def _tell_seeds(result: comparison.Comparison) -> list | str:
    notes = [
        comparison.describe_rows(result),
        comparison.describe_losses(result, list(result.metrics)),
        *comparison.list_repeats(result),
    ]
    repeats = [blocks.Text(line, "note") for line in notes if line]
    if not result.groups:
        return repeats or "no two runs differ by Run.seed alone."
    groups = [
        [entry.metric, comparison.describe_runs(entry), entry.mean, entry.error]
        for entry in result.groups
    ]
    tables: list = [blocks.Table(["metric", "runs", "mean", "standard error"], groups), *repeats]
    pairs = [
        [
            entry.metric,
            ", ".join(entry.second),
            ", ".join(entry.first) + comparison.describe_left_out(entry),
            entry.difference,
            entry.error,
        ]
        for entry in result.pairs
    ]
    if pairs:
        header = ["metric", "runs", "minus these runs", "mean difference", "standard error"]
        tables.append(blocks.Table(header, pairs, "Differences of runs with the same seed"))
    return tables


def _tell_settings(result: comparison.Comparison, names: Sequence[str]) -> list | str:
    if not result.differing:
        return "the runs have the same settings."
    cuts = {setting: flat_settings.cut_apart(row) for setting, row in result.differing.items()}
    rows = [[setting, *(row[n] for n in names)] for setting, row in cuts.items()]
    return [blocks.Table(["setting", *names], rows)]


def _draw_curves(result: comparison.Comparison, names: Sequence[str]) -> list | str:
    # All runs have the same tasks, so the tasks of the first run determine the metrics to draw.
    first_run = result.runs[names[0]]
    groups: list = []
    tasks = first_run.experiment.model.tasks
    shown_tasks = tasks[:_MOST_TASKS]
    for task in shown_tasks:
        main = curve_sections.main_metrics(first_run, task)[:1]
        tags = [(f"{task}/average_loss", "loss, held out")]
        tags += [(f"{task}/{metric}", f"{metric}, held out") for metric in main]
        figures_or_none = [_overlay_curves(result, names, tag, title, False) for tag, title in tags]
        figures_or_none.insert(
            0, _overlay_curves(result, names, f"{task}/loss", "loss, training", True)
        )
        pictures = [figure for figure in figures_or_none if figure]
        if pictures:
            groups.append(blocks.Figures(pictures, task))
    if not groups:
        return "no run has event files."
    return [*groups, *blocks.say_cut(len(shown_tasks), len(tasks), "tasks are")]


def _overlay_curves(
    result: comparison.Comparison, names: Sequence[str], tag: str, title: str, is_training: bool
) -> figures.Figure | None:
    curves = {}
    for name in names:
        run = result.runs[name]
        source = run.training if is_training else run.evaluations
        # Include runs without a curve, so that a run has the same colour in all pictures.
        curves[name] = source.curves.get(tag, {})
    if not any(curves.values()):
        return None
    return line_charts.draw_curves(title, curves, tag.rpartition("/")[2].replace("_", " "))


def _tell_figures(result: comparison.Comparison, names: Sequence[str]) -> list | str:
    if not result.figures:
        return "no run has a checkpoint yet."
    rows = []
    for figure, values in result.figures.items():
        cells = [
            blocks.Right(
                f"{values[name]:,}" if isinstance(values[name], int) else f"{values[name]:,.1f}"
            )
            if name in values
            else blocks.Right("n/a")
            for name in names
        ]
        rows.append([figure.replace("_", " "), *cells])
    note = "Speeds are medians over a run. Compare only runs on the same machine."
    return [blocks.Table(["what", *names], rows), blocks.Text(note, "note")]
