"""Makes a page of a comparison: tables, and the curves of all runs in common pictures.

whole = comparison_page.describe(found)
"""

import math
from collections.abc import Sequence

from mtl.checkpoints import flat_settings
from mtl.tools.drawing import figures, line_charts
from mtl.tools.reports import blocks, comparison, curve_sections

_MOST_TASKS = 20


def describe(found: comparison.Comparison, order: Sequence[str] = ()) -> blocks.Page:
    """Return the page, with the runs in this order; further runs come last."""
    # `order` lacks runs without the metric.
    names = [*order, *(name for name in found.runs if name not in order)]
    built = [
        ("runs", "Runs", _tell_runs(found, names)),
        ("metrics", "Metrics of the best checkpoints", _tell_metrics(found, names)),
        ("seeds", "Same settings, other seeds", _tell_seeds(found)),
        ("settings", "Settings that differ", _tell_settings(found, names)),
        ("curves", "Curves", _draw_curves(found, names)),
        ("figures", "Speed and size", _tell_figures(found, names)),
    ]
    return blocks.Page(
        title=", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else ""),
        state=f"{len(names)} runs",
        mood="",
        lead=["The better value of each metric stands out in green."],
        # A text in place of blocks says why a section is left out.
        sections=[blocks.Section(*one) for one in built if not isinstance(one[2], str)],
        left_out=[f"{title}: {why}" for _, title, why in built if isinstance(why, str)],
    )


def _tell_runs(found: comparison.Comparison, names: Sequence[str]) -> list:
    rows = []
    for name in names:
        run = found.runs[name]
        best = "none" if run.best_step is None else run.best_step
        rows.append([name, run.model_dir, run.state[0], best])
    return [blocks.Table(["run", "folder", "state", "best step"], rows)]


def _tell_metrics(found: comparison.Comparison, names: Sequence[str]) -> list | str:
    if not found.metrics:
        return "no run is evaluated yet."
    mains = found.main_metrics
    ordered = [metric for metric in found.directions if metric not in mains]
    told: list = [_tabulate_metrics(found, mains, names)]
    if ordered:
        told.append(
            blocks.Fold(f"{len(ordered)} more metrics", [_tabulate_metrics(found, ordered, names)])
        )
    return told


def _tabulate_metrics(
    found: comparison.Comparison, metrics: Sequence[str], names: Sequence[str]
) -> blocks.Table:
    rows = []
    for metric in metrics:
        best, values = found.best_of(metric), found.metrics[metric]
        row: list = [metric]
        for name in names:
            value = values.get(name, math.nan)
            row.append(blocks.Marked(value) if name in best else value)
        rows.append(row)
    return blocks.Table(["metric", *names], rows)


def _tell_seeds(found: comparison.Comparison) -> list | str:
    notes = [comparison.describe_rows(found), *comparison.list_repeats(found)]
    repeats = [blocks.Text(line, "note") for line in notes if line]
    if not found.groups:
        return repeats or "no two runs differ by Run.seed alone."
    groups = [
        [one.metric, comparison.describe_runs(one), one.mean, one.error] for one in found.groups
    ]
    told: list = [blocks.Table(["metric", "runs", "mean", "standard error"], groups), *repeats]
    pairs = [
        [
            one.metric,
            ", ".join(one.second),
            ", ".join(one.first) + comparison.describe_left_out(one),
            one.difference,
            one.error,
        ]
        for one in found.pairs
    ]
    if pairs:
        header = ["metric", "these", "minus these", "mean difference", "standard error"]
        told.append(blocks.Table(header, pairs, "Differences of runs with the same seed"))
    return told


def _tell_settings(found: comparison.Comparison, names: Sequence[str]) -> list | str:
    if not found.differing:
        return "the runs have the same settings."
    cuts = {setting: flat_settings.cut_apart(row) for setting, row in found.differing.items()}
    rows = [[setting, *(row[n] for n in names)] for setting, row in cuts.items()]
    return [blocks.Table(["setting", *names], rows)]


def _draw_curves(found: comparison.Comparison, names: Sequence[str]) -> list | str:
    # All runs have the same tasks: the first one tells the metrics to draw.
    first = found.runs[names[0]]
    told: list = []
    tasks = first.experiment.model.tasks
    few = tasks[:_MOST_TASKS]
    for task in few:
        main = curve_sections.main_metrics(first, task)[:1]
        tags = [(f"{task}/average_loss", "loss, held out")]
        tags += [(f"{task}/{metric}", f"{metric}, held out") for metric in main]
        drawn = [_overlay_curves(found, names, tag, title, False) for tag, title in tags]
        drawn.insert(0, _overlay_curves(found, names, f"{task}/loss", "loss, training", True))
        pictures = [figure for figure in drawn if figure]
        if pictures:
            told.append(blocks.Figures(pictures, task))
    if not told:
        return "no run has event files."
    return [*told, *blocks.say_cut(len(few), len(tasks), "tasks are")]


def _overlay_curves(
    found: comparison.Comparison, names: Sequence[str], tag: str, title: str, is_training: bool
) -> figures.Figure | None:
    curves = {}
    for name in names:
        run = found.runs[name]
        source = run.training if is_training else run.evaluations
        # Also without a curve, so that a run has the same colour in each picture.
        curves[name] = source.curves.get(tag, {})
    if not any(curves.values()):
        return None
    return line_charts.draw_curves(title, curves, tag.rpartition("/")[2].replace("_", " "))


def _tell_figures(found: comparison.Comparison, names: Sequence[str]) -> list | str:
    if not found.figures:
        return "no run has a checkpoint yet."
    rows = []
    for what, values in found.figures.items():
        told = [
            blocks.Right(
                f"{values[name]:,}" if isinstance(values[name], int) else f"{values[name]:,.1f}"
            )
            if name in values
            else blocks.Right("n/a")
            for name in names
        ]
        rows.append([what.replace("_", " "), *told])
    note = "Speeds are medians over a run, on whatever machine it ran."
    return [blocks.Table(["what", *names], rows), blocks.Text(note, "note")]
