"""Writes the section on single predictions: the attributions of fields, columns and pixels.

section = prediction_section.tell_predictions(explanation)
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
    "columns; a column of several fields, such as a cross, has one value for all of them. The "
    "values and the residual add up to the difference between the prediction for the row and the "
    "prediction for {baseline}."
)
_BASELINES = {settings.MEAN: "the mean of the encoded rows", settings.ZEROS: "zeros"}
_INCOMPLETE = (
    "The residual of a prediction exceeds 1% of the sum of its absolute attributions: do not rely "
    "on these attributions. If the model is smooth, more --steps make the residual smaller."
)


def tell_predictions(explained: explanation.Explanation) -> list[Any]:
    """Return the parts of a page with the plots and tables of all attributions.

    Args:
      explained: the explanation that the section shows.

    Returns:
      The blocks of the section; [] without attributions.
    """
    if not explained.attributions:
        return []
    baseline = _BASELINES[explained.asked.baseline]
    intro = _PREDICTIONS.format(baseline=baseline, steps=explained.asked.steps)
    parts: list[Any] = [blocks.Text(intro)]
    if not all(attribution.is_complete for attribution in explained.attributions):
        parts.append(blocks.Text(_INCOMPLETE, "warning"))
    for row, group in itertools.groupby(
        explained.attributions, key=lambda attribution: attribution.row
    ):
        row_attributions = list(group)
        parts.append(blocks.Heading(f"Row {row}"))
        parts.append(
            blocks.Figures(
                [
                    figure
                    for attribution in row_attributions
                    for figure in _draw_row(explained, attribution)
                ]
            )
        )
        parts.append(_tell_sums(row_attributions))
        details = [
            _tell_fields(explained, row),
            *(_tell_columns(explained, attribution) for attribution in row_attributions),
        ]
        parts.append(blocks.Fold(f"Row {row}: its fields, and each column", details))
    return parts


def _tell_fields(result: explanation.Explanation, row: int) -> blocks.Table:
    column_fields = {name for fields in result.fields.values() for name in fields}
    number = result.asked.rows.index(row)
    values = inputs.read_row(result.shown.features, number)
    cells = [[name, value] for name, value in values.items() if name in column_fields]
    labels = inputs.read_row(result.shown.labels, number)
    cells += [[f"{name} (label)", value] for name, value in labels.items()]
    return blocks.Table(["field", "value"], cells)


def _draw_row(
    result: explanation.Explanation, attribution: attributions.Attribution
) -> list[figures.Figure]:
    """Draw the attribution of each field, and of each pixel of a small image."""
    # Sort by absolute value, because a field that lowers the prediction matters as much.
    order = sorted(_add_columns(result, attribution).items(), key=lambda item: -abs(item[1]))
    bars = [bar_charts.Bar(name, value) for name, value in order[:_MOST_COLUMNS]]
    others = [value for _, value in order[_MOST_COLUMNS:]]
    if others:
        # Add one bar for all other fields, so that the bars add up to the sum of all attributions.
        bars.append(bar_charts.Bar(f"{len(others)} others", sum(others)))
    pixels = [
        matrices.draw_pixels(
            f"{_name_attribution(attribution)}: what pixels of {column} add", details.sum(-1)
        )
        for column, details in attribution.details.items()
        # Draw only small images, [H, W, C]: a cell for each pixel of a photo would take megabytes.
        if details.ndim == 3 and details.shape[0] * details.shape[1] <= _MOST_PIXELS
    ]
    # If the only column is an image, the bar of this column would only repeat the sum.
    if pixels and len(bars) == 1:
        return pixels
    title = f"{_name_attribution(attribution)}: what fields add"
    return [bar_charts.draw(title, bars, f"added to the {attribution.scale}"), *pixels]


def _add_columns(
    result: explanation.Explanation, attribution: attributions.Attribution
) -> dict[str, float]:
    """Add up the attributions of columns that read the same fields: {fields: sum}."""
    sums: dict[str, float] = {}
    for column, value in attribution.columns.items():
        name = " × ".join(result.fields[column])
        sums[name] = sums.get(name, 0.0) + value
    return sums


def _name_attribution(attribution: attributions.Attribution) -> str:
    return (
        attribution.task
        if attribution.name == attribution.scale
        else f"{attribution.task}, {attribution.scale} of {attribution.name}"
    )


def _tell_sums(attributions_of_row: Sequence[attributions.Attribution]) -> blocks.Table:
    header = ["prediction", "baseline", "all columns", "this row", "residual", "complete"]
    rows = [
        [
            _name_attribution(attribution),
            attribution.start,
            sum(attribution.columns.values()),
            attribution.value,
            attribution.residual,
            "yes" if attribution.is_complete else "no",
        ]
        for attribution in attributions_of_row
    ]
    return blocks.Table(header, rows)


def _tell_columns(
    result: explanation.Explanation, attribution: attributions.Attribution
) -> blocks.Table:
    order = sorted(attribution.columns.items(), key=lambda item: -abs(item[1]))[:_MOST_LISTED]
    rows = [[name, ", ".join(result.fields[name]), value] for name, value in order]
    return blocks.Table(["column", "made of", "adds"], rows, _name_attribution(attribution))
