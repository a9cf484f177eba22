"""Writes the sections of a report that show scalars of a run: curves, balancing and gates."""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from mtl.heads import metrics as metrics_lib
from mtl.monitoring import event_files
from mtl.tools.drawing import balancing_picture, figures, gates_picture, line_charts
from mtl.tools.reports import baselines, blocks, record, row_sections

_MOST_METRICS = 2
_MOST_PAIRS = 20
_MOST_WEIGHTS = 100
_OF_ALL = {
    "loss": "loss of all tasks",
    "learning_rate": "learning rate",
    "gradient_norm": "norm of the gradient",
}


def tell_curves(run: record.Run, verdicts: Sequence[baselines.Verdict]) -> list | str:
    """Return a section with curves of the losses and main metrics.

    Args:
      run: the run whose curves are drawn.
      verdicts: comparisons with trivial models, which determine the tasks to draw.

    Returns:
      The blocks of the section; for a run without curves, a text that says why the section is left
      out.
    """
    tasks = row_sections.choose_tasks(run, verdicts)
    task_figures = [(task, pictures) for task in tasks if (pictures := draw_task(run, task))]
    overall = _draw_overall(run)
    if not task_figures and not overall:
        return "the event files are gone, or hold no recorded step."
    line = (
        "Training losses come from single batches: if a batch has no label of a task, the task's "
        "training loss is 0; with a Mixture, its curve leaves out the step. The horizontal axis is "
        "the step."
    )
    if run.best_step is not None:
        line += f" The dotted line is the best checkpoint, at step {run.best_step:,}."
    parts: list = [blocks.Text(line, "note"), *row_sections.say_chosen(run, tasks)]
    parts += [blocks.Figures(pictures, task) for task, pictures in task_figures]
    if overall:
        parts.append(blocks.Figures(overall, "all tasks"))
    return parts


def draw_task(run: record.Run, task: str) -> list[figures.Figure]:
    """Draw curves of a task's loss and most informative metrics.

    Args:
      run: the run whose curves are drawn.
      task: the name of the task.

    Returns:
      A figure of the loss, and figures of at most two metrics; [] if the run has no curves of the
      task.
    """
    best, evaluations = run.best_step, run.evaluations.curves
    losses = {
        "training": run.training.curves.get(f"{task}/loss", {}),
        "held out": evaluations.get(f"{task}/average_loss", {}),
    }
    pictures = []
    if any(losses.values()):
        pictures.append(line_charts.draw_curves("loss", losses, "loss", best))
    for metric in main_metrics(run, task)[:_MOST_METRICS]:
        curve = evaluations.get(f"{task}/{metric}")
        if curve:
            title = f"{metric}, held out"
            pictures.append(line_charts.draw_curves(title, {metric: curve}, metric, best))
    return pictures


def main_metrics(run: record.Run, task: str) -> list[str]:
    """Return the metrics of a task for a report, from the most to the least informative.

    Metrics are left out if neither higher nor lower values are better.

    Args:
      run: the run that has trained the task.
      task: the name of the task.

    Returns:
      The names of the metrics without the task, such as "accuracy".
    """
    head = run.experiment.model.heads_by_task[task]
    prefix = f"{task}/"
    task_metrics = [n.removeprefix(prefix) for n in run.evaluations.curves if n.startswith(prefix)]
    names = [name for name, _ in metrics_lib.find_directions(head, task_metrics)]
    left_out = ("average_loss", "nan_predictions")
    # Leave out metrics of slices of the rows, which would fill the page.
    names = [name for name in names if not metrics_lib.split_slice(name)[1]]
    # A name with a slash belongs to a metric of a single class.
    return [n for n in names if n not in left_out and "/" not in n and "error_bound" not in n]


def _draw_overall(run: record.Run) -> list[figures.Figure]:
    """Draw curves of the total loss, the learning rate and the norm of the gradient."""
    pictures = []
    for tag, title in _OF_ALL.items():
        points = run.training.curves.get(tag, {})
        if points:
            # Draw the learning rate on a linear axis, because a logarithmic axis distorts
            # schedules.
            is_log = tag != "learning_rate"
            picture = line_charts.draw_curves(title, {tag: points}, title, run.best_step, is_log)
            pictures.append(picture)
    return pictures


def tell_balancing(run: record.Run) -> list | str:
    """Return a section about the loss weights and the gradients of tasks.

    Returns:
      The blocks of the section. The result is a text that says why the section is left out, if no
      scalar about balancing changes during the run, and all tasks have the same loss weight or no
      weight is known.
    """
    groups = balancing_picture.group(run.training.curves)
    moving = {
        key: curves
        for key, curves in groups.items()
        # Scalars that never change are described by a sentence or a table instead of a picture.
        if any(max(points.values()) > min(points.values()) for points in curves.values())
    }
    pictures = [balancing_picture.draw_group(*key, curves) for key, curves in moving.items()]
    parts: list = [blocks.Figures(pictures)] if pictures else []
    for (scope, kind), curves in groups.items():
        if kind == "surgery/cosine":
            parts += _tell_cosines(balancing_picture.tell_title(scope, kind), curves)
    return parts or _tell_fixed_weights(groups.get(("", "weight"), {}))


def _tell_fixed_weights(curves: event_files.Curves) -> list | str:
    rows = [[task, max(points.values())] for task, points in curves.items()]
    if not rows:
        return "the event files have no weights of tasks."
    if all(weight == rows[0][1] for _, weight in rows):
        return "all tasks have the same weight in all steps."
    return [blocks.Table(["task", "weight"], rows, "The weights do not change.")]


def _tell_cosines(title: str, curves: event_files.Curves) -> list:
    """Return a table of the cosines between gradients of tasks, and how often they are negative."""
    means = {pair: statistics.fmean(points.values()) for pair, points in curves.items() if points}
    rows = [
        [pair, means[pair], blocks.Bar(float(np.mean(np.asarray([*curves[pair].values()]) < 0)))]
        for pair in sorted(means, key=lambda pair: means[pair])
    ]
    caption = f"{title}: the mean over the run, and the share of summaries in conflict"
    shown_rows = rows[:_MOST_PAIRS]
    table = blocks.Table(["pair", "mean cosine", "in conflict"], shown_rows, caption)
    items = "pairs of tasks, those with the lowest cosines, are"
    return [table, *blocks.say_cut(len(shown_rows), len(rows), items)]


def tell_gates(run: record.Run) -> list | str:
    """Return a section about the weights of experts in each gate.

    Returns:
      The blocks of the section; without gates, a text that says why the section is left out.
    """
    weights, kinds = gates_picture.group(run.training.curves)
    if not weights:
        return "the network has no gates."
    rows = [row for gate, curves in weights.items() for row in _tell_gate(gate, curves)]
    shown_rows = rows[:_MOST_WEIGHTS]
    header = ["gate", "expert", "weight at the end", "weight at the start"]
    caption = "The mean weight that a gate gives to an expert."
    table: list = [
        blocks.Table(header, shown_rows, caption),
        *blocks.say_cut(len(shown_rows), len(rows), "weights are"),
    ]
    shown_gates = list(weights.items())[: row_sections.MOST_TASKS]
    pictures = [gates_picture.draw_gate(gate, curves) for gate, curves in shown_gates]
    # Add all pictures of `draw_kinds`: each picture shows all gates, so there are few pictures.
    pictures += gates_picture.draw_kinds(kinds)
    return [
        blocks.Figures(pictures),
        *blocks.say_cut(len(shown_gates), len(weights), "gates are"),
        blocks.Fold("The weights as a table", table),
    ]


def _tell_gate(gate: str, curves: Mapping[str, Mapping[int, float]]) -> list[list]:
    return [
        [gate, expert, points[max(points)], points[min(points)]]
        for expert, points in curves.items()
    ]
