"""Writes the section on single predictions: attributions of fields, columns and pixels.

told = prediction_section.tell_predictions(found)
"""

import itertools
from collections.abc import Sequence
from typing import Any

from mtl.tools.drawing import bar_charts, figures, matrices
from mtl.tools.explaining import attributions, explanation, inputs, settings
from mtl.tools.reports import blocks

_MOST_COLUMNS = 12
_MOST_LISTED = 60
_MOST_PIXELS = 1024

_PREDICTIONS = (
    "Each field adds this much to a prediction, on the way from {baseline} to the row, by "
    "integrated gradients with {steps} points. A field's value is the sum over its encoded "
    "columns; a column of several fields, such as a cross, stands for all of them. The values add "
    "up to the difference between the two predictions, up to the residual."
)
_BASELINES = {settings.MEAN: "the mean of the encoded rows", settings.ZEROS: "zeros"}
_INCOMPLETE = (
    "The residual of a prediction exceeds 1% of its absolute attributions: do not rely on them. "
    "More --steps make it smaller if the model is smooth."
)


def tell_predictions(found: explanation.Explanation) -> list[Any]:
    """Return the attributions of the chosen predictions."""
    if not found.attributions:
        return []
    baseline = _BASELINES[found.asked.baseline]
    intro = _PREDICTIONS.format(baseline=baseline, steps=found.asked.steps)
    told: list[Any] = [blocks.Text(intro)]
    if not all(one.is_complete for one in found.attributions):
        told.append(blocks.Text(_INCOMPLETE, "warning"))
    for row, several in itertools.groupby(found.attributions, key=lambda one: one.row):
        every = list(several)
        told.append(blocks.Heading(f"Row {row}"))
        told.append(blocks.Figures([figure for one in every for figure in _draw_row(found, one)]))
        told.append(_tell_sums(every))
        details = [_tell_fields(found, row), *(_tell_columns(found, one) for one in every)]
        told.append(blocks.Fold(f"Row {row}: its fields, and each column", details))
    return told


def _tell_fields(found: explanation.Explanation, row: int) -> blocks.Table:
    own = {name for fields in found.fields.values() for name in fields}
    number = found.asked.rows.index(row)
    values = inputs.read_row(found.shown.features, number)
    cells = [[name, value] for name, value in values.items() if name in own]
    labels = inputs.read_row(found.shown.labels, number)
    cells += [[f"{name} (label)", value] for name, value in labels.items()]
    return blocks.Table(["field", "value"], cells)


def _draw_row(
    found: explanation.Explanation, one: attributions.Attribution
) -> list[figures.Figure]:
    """Draw the attribution of each field, and of each pixel of a small image."""
    # By size, whatever the sign: a field that lowers the prediction matters as much.
    order = sorted(_add_columns(found, one).items(), key=lambda item: -abs(item[1]))
    bars = [bar_charts.Bar(name, value) for name, value in order[:_MOST_COLUMNS]]
    left = [value for _, value in order[_MOST_COLUMNS:]]
    if left:
        # All bars together still add up to the difference of the predictions.
        bars.append(bar_charts.Bar(f"{len(left)} others", sum(left)))
    pixels = [
        matrices.draw_pixels(
            f"{_name_attribution(one)}: what pixels of {column} add", details.sum(-1)
        )
        for column, details in one.details.items()
        # [H, W, C]; a cell for each pixel of a photo would make a page of megabytes.
        if details.ndim == 3 and details.shape[0] * details.shape[1] <= _MOST_PIXELS
    ]
    # A bar for the only image would repeat the sum.
    if pixels and len(bars) == 1:
        return pixels
    title = f"{_name_attribution(one)}: what fields add"
    return [bar_charts.draw(title, bars, f"added to the {one.scale}"), *pixels]


def _add_columns(found: explanation.Explanation, one: attributions.Attribution) -> dict[str, float]:
    """Return the sums over the columns that are made of the same fields: {fields: sum}."""
    sums: dict[str, float] = {}
    for column, value in one.columns.items():
        name = " × ".join(found.fields[column])
        sums[name] = sums.get(name, 0.0) + value
    return sums


def _name_attribution(one: attributions.Attribution) -> str:
    return one.task if one.name == one.scale else f"{one.task}, {one.scale} of {one.name}"


def _tell_sums(several: Sequence[attributions.Attribution]) -> blocks.Table:
    header = ["prediction", "baseline", "all columns", "this row", "residual", "complete"]
    rows = [
        [
            _name_attribution(one),
            one.start,
            sum(one.columns.values()),
            one.value,
            one.residual,
            "yes" if one.is_complete else "no",
        ]
        for one in several
    ]
    return blocks.Table(header, rows)


def _tell_columns(found: explanation.Explanation, one: attributions.Attribution) -> blocks.Table:
    order = sorted(one.columns.items(), key=lambda item: -abs(item[1]))[:_MOST_LISTED]
    rows = [[name, ", ".join(found.fields[name]), value] for name, value in order]
    return blocks.Table(["column", "made of", "adds"], rows, _name_attribution(one))
