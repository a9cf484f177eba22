"""Writes the section on partial dependence: a picture for each field and task, and a table.

told = dependence_section.tell_dependence(found)
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
    "The mean prediction over all rows where a field has the same value in all of them; thin lines "
    "are single rows. Other fields stay as they are, also where no such row exists."
)


def tell_dependence(found: explanation.Explanation) -> list[Any]:
    """Return how predictions change with single fields."""
    told: list[Any] = [blocks.Text(_DEPENDENCE)] if found.dependences else []
    for one in found.dependences:
        tasks = list(one.means)
        drawn = [_draw_dependence(found, one, task) for task in tasks]
        told.append(blocks.Figures(drawn, one.field))
        header = ["value", "rows", *_list_outputs(found, tasks)]
        rows = [
            [
                inputs.tell_value(value),
                one.counts[place],
                *itertools.chain(*(_cut_classes(one.means[t][place]) for t in tasks)),
            ]
            for place, value in enumerate(one.grid)
        ]
        told.append(blocks.Fold(f"{one.field} as a table", [blocks.Table(header, rows)]))
    return told


def _cut_classes(values: np.ndarray) -> list[float]:
    return [float(value) for value in values[:_MOST_CLASSES]]


def _list_outputs(found: explanation.Explanation, tasks: Sequence[str]) -> list[str]:
    listed = []
    for task in tasks:
        names, kind = found.outputs[task]
        # The single number of a head has the name of its kind, which says nothing beside the task.
        own = [task] if list(names) == [kind] else [f"{task} {name}" for name in names]
        listed += own[:_MOST_CLASSES]
    return listed


def _draw_dependence(
    found: explanation.Explanation, one: dependence.Dependence, task: str
) -> figures.Figure:
    (names, kind), means = found.outputs[task], one.means[task]
    what = task if list(names) == [kind] else f"{task}, {kind}"
    what += f" of {names[0]}" if len(names) == 1 and list(names) != [kind] else ""
    if not one.is_number:
        return _draw_bars(what, kind, names, one.grid, means)
    few = list(names)[:_MOST_CLASSES]
    note = f"{len(few)} of {len(names)} classes shown." if len(few) < len(names) else ""
    across = [float(value) for value in one.grid]
    lines = {
        str(name): list(zip(across, map(float, means[:, k]), strict=True))
        for k, name in enumerate(few)
    }
    # Lines of single rows only fit one number: with K classes, they would be K times as many.
    behind = []
    if len(names) == 1:
        behind = [
            list(zip(across, map(float, one.lines[task][:, s, 0]), strict=True))
            for s in range(one.lines[task].shape[1])
        ]
    drawn = line_charts.draw(what, lines, one.field, kind, behind=behind, from_zero=False)
    return drawn._replace(note=note)


def _draw_bars(
    what: str, kind: str, names: Sequence[str], grid: np.ndarray, means: np.ndarray
) -> figures.Figure:
    """Draw bars of the class whose prediction the field changes most."""
    # [G, K]: bars show only one class, as a group of bars for each value would not fit.
    most = int(np.argmax(np.ptp(means, 0)))
    bars = [
        bar_charts.Bar(inputs.tell_value(value), float(mean))
        for value, mean in zip(grid, means[:, most], strict=True)
    ]
    if len(names) == 1:
        return bar_charts.draw(what, bars, f"mean {kind}")
    note = "The class whose mean the field moves most."
    return bar_charts.draw(f"{what} of {names[most]}", bars, f"mean {kind}", note)
