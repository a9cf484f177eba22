"""Writes the section on partial dependence: a plot for each field and task, and a table.

section = dependence_section.tell_dependence(explanation)
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mtl.tools.drawing import bar_charts, figures, line_charts
from mtl.tools.explaining import dependence, explanation, inputs
from mtl.tools.reports import blocks

_MOST_CLASSES = 8

_DEPENDENCE = (
    "The mean prediction over all rows, after one field is set to the same value in all rows; thin "
    "lines are single rows. Other fields keep their values, even if no real row has this "
    "combination."
)


def tell_dependence(explained: explanation.Explanation) -> list[Any]:
    """Return the parts of a page that show how predictions change with single fields.

    Args:
      explained: the explanation that the section shows.

    Returns:
      The blocks of the section; [] without partial dependence.
    """
    parts: list[Any] = [blocks.Text(_DEPENDENCE)] if explained.dependences else []
    for result in explained.dependences:
        tasks = list(result.means)
        pictures = [_draw_dependence(explained, result, task) for task in tasks]
        parts.append(blocks.Figures(pictures, result.field))
        header = ["value", "rows", *_list_outputs(explained, tasks)]
        rows = [
            [
                inputs.tell_value(value),
                result.counts[place],
                *itertools.chain(*(_cut_classes(result.means[t][place]) for t in tasks)),
            ]
            for place, value in enumerate(result.grid)
        ]
        parts.append(blocks.Fold(f"{result.field} as a table", [blocks.Table(header, rows)]))
    return parts


def _cut_classes(values: np.ndarray) -> list[float]:
    return [float(value) for value in values[:_MOST_CLASSES]]


def _list_outputs(result: explanation.Explanation, tasks: Sequence[str]) -> list[str]:
    headers = []
    for task in tasks:
        names, kind = result.outputs[task]
        # If a head has a single number with the name of its kind, the name of the task is enough.
        task_headers = [task] if list(names) == [kind] else [f"{task} {name}" for name in names]
        headers += task_headers[:_MOST_CLASSES]
    return headers


def _draw_dependence(
    explained: explanation.Explanation, result: dependence.Dependence, task: str
) -> figures.Figure:
    (names, kind), means = explained.outputs[task], result.means[task]
    title = task if list(names) == [kind] else f"{task}, {kind}"
    title += f" of {names[0]}" if len(names) == 1 and list(names) != [kind] else ""
    if not result.is_number:
        return _draw_bars(title, kind, names, result.grid, means)
    shown_names = list(names)[:_MOST_CLASSES]
    note = (
        f"{len(shown_names)} of {len(names)} classes shown."
        if len(shown_names) < len(names)
        else ""
    )
    across = [float(value) for value in result.grid]
    lines = {
        str(name): list(zip(across, map(float, means[:, k]), strict=True))
        for k, name in enumerate(shown_names)
    }
    # Draw lines of single rows only for a head with one number: K classes
    # would need K times as many.
    behind = []
    if len(names) == 1:
        behind = [
            list(zip(across, map(float, result.lines[task][:, s, 0]), strict=True))
            for s in range(result.lines[task].shape[1])
        ]
    picture = line_charts.draw(title, lines, result.field, kind, behind=behind, from_zero=False)
    return picture._replace(note=note)


def _draw_bars(
    title: str, kind: str, names: Sequence[str], grid: np.ndarray, means: np.ndarray
) -> figures.Figure:
    """Draw bars for the class whose mean prediction changes most with the value of the field."""
    # `means` is [G, K]; K bars beside each of the G values would not fit.
    most = int(np.argmax(np.ptp(means, 0)))
    bars = [
        bar_charts.Bar(inputs.tell_value(value), float(mean))
        for value, mean in zip(grid, means[:, most], strict=True)
    ]
    if len(names) == 1:
        return bar_charts.draw(title, bars, f"mean {kind}")
    note = "This class is shown because the field changes its mean most."
    return bar_charts.draw(f"{title} of {names[most]}", bars, f"mean {kind}", note)
