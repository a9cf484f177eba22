"""Writes the report of a clip audit: a table of the samples, figures of the run, plots and a page.

path = report.write("runs/digits/clip_audit/training", settings)        # .../summary.md
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np

from mtl import checks
from mtl.deferred import tf
from mtl.files import atomic
from mtl.tools.clip_audit import audit as audit_lib
from mtl.tools.clip_audit import statistics, tables, visits
from mtl.tools.drawing import bar_charts, figures, line_charts

_FROZEN = (
    "The forward pass is as in evaluation, so that examples do not affect each other: batch norm "
    "uses its averages (frozen statistics), and dropout is off. The norms belong to gradients of "
    "the weighted sum of the losses, including auxiliary losses, before surgery, regularisation "
    "and clipping."
)
FILES = ("samples.parquet", "samples.csv", "batches.csv", "plots.svg", "summary.md")
# A label with more than `_MOST_CLASSES` values counts as a number, so the page leaves out its table
# and its bars.
_MOST_CLASSES, _MOST_SAMPLES = 40, 20


def write(directory: str, settings: audit_lib.Settings, others: Sequence[str] = ()) -> str:
    """Write `samples.parquet`, `samples.csv`, `batches.csv`, `plots.svg` and `summary.md`.

    Args:
      directory: the folder of an audit, with the records of visits in `parts`.
      settings: the settings of the audit.
      others: the folders of other audits of the same samples, to measure how well their norms
        agree.

    Returns:
      The path of `summary.md`.

    Raises:
      UserError: the folder holds no audit.
    """
    record = visits.read(directory)
    checks.require(bool(record[0]), "clip audit", "have visited a sample", directory)
    samples = statistics.of_samples(*record, settings.first_visits)
    tables.write_parquet(os.path.join(directory, "samples.parquet"), samples)
    tables.write_csv(os.path.join(directory, "samples.csv"), samples)
    tables.write_csv(os.path.join(directory, "batches.csv"), record[1])
    picture = figures.lay_out("Clip audit", _draw_panels(samples, record[1]))
    _write_text(directory, "plots.svg", picture)
    page = _write_page(samples, record, settings, {other: read_samples(other) for other in others})
    return _write_text(directory, "summary.md", page)


def read_samples(directory: str) -> dict[str, np.ndarray]:
    """Read the table of the samples that an audit has written.

    Args:
      directory: the folder of the audit.

    Returns:
      {column: [S]}, with a row for each of S samples; `statistics.of_samples` describes the
      columns.

    Raises:
      UserError: the table is missing.
    """
    path = os.path.join(directory, "samples.parquet")
    if not tf.io.gfile.exists(path):
        fix = "Run launch.clip_audit there first."
        checks.fail("--compare", "hold the samples.parquet of an audit", directory, fix)
    return tables.read_parquet(path)


def _write_text(directory: str, name: str, text: str) -> str:
    path = os.path.join(directory, name)
    atomic.write(path, text)
    return path


def _list_tasks(samples: tables.Columns) -> list[str]:
    # Every measured task has a column `label/<task>`, even if its values are NaN.
    prefix = "label/"
    return [name.removeprefix(prefix) for name in samples if name.startswith(prefix)]


def _write_page(
    samples: tables.Columns,
    record: tuple[tables.Columns, tables.Columns],
    settings: audit_lib.Settings,
    others: Mapping[str, tables.Columns],
) -> str:
    batches = record[1]
    steps = f"{batches['step'].min()} to {batches['step'].max()}"
    numbers = statistics.of_run(*record, samples)
    parts = [
        "# Clip audit",
        f"Steps {steps}. {_FROZEN} {_tell_threshold(settings)}",
        _write_table(
            ["figure", "value"], [[name, _write_number(x)] for name, x in numbers.items()]
        ),
        "## Samples with the largest mean norm",
        _tell_largest(samples),
        "All samples: samples.csv, samples.parquet. Plots: plots.svg.",
        "## Layers",
        _tell_layers(batches),
        *(part for task in _list_tasks(samples) for part in _tell_classes(samples, task)),
    ]
    if others:
        rows = [[o, _write_number(statistics.agreement(samples, t))] for o, t in others.items()]
        parts += ["## Agreement with other runs", _write_table(["run", "rank correlation"], rows)]
    return "\n\n".join(parts) + "\n"


def _tell_threshold(settings: audit_lib.Settings) -> str:
    if settings.max_norm is not None:
        return f"The threshold is {settings.max_norm:g}, for examples and for batches."
    return (
        f"A threshold is the {settings.percentile:g}th percentile of the norms in the "
        f"{settings.window} batches before; the first batch has no threshold."
    )


def _tell_largest(samples: tables.Columns) -> str:
    names = ["norm/mean/all", "share_above", "shrink", "share_in_clipped_batches", "blame"]
    tasks = _list_tasks(samples)
    names += [f"{column}/{task}" for task in tasks for column in ("label", "prediction")]
    header = ["id", "visits", *names]
    count = min(_MOST_SAMPLES, len(samples["id"]))
    return _write_table(
        header, [[_write_number(samples[name][row]) for name in header] for row in range(count)]
    )


def _tell_layers(batches: tables.Columns) -> str:
    """Return a table of the examples' norms by layer, in the first and last quarter of batches."""
    # Round up, so that fewer than four batches still have a first and a last quarter.
    quarter = math.ceil(len(batches["batch"]) / 4)
    rows = [
        [name.removeprefix("layer/"), *map(_write_number, _average_ends(values, quarter))]
        for name, values in batches.items()
        if name.startswith("layer/")
    ]
    return _write_table(["layer", "mean norm, first quarter", "last quarter"], rows)


def _average_ends(values: np.ndarray, count: int) -> tuple[float, float]:
    return float(np.nanmean(values[:count])), float(np.nanmean(values[-count:]))


def _tell_classes(samples: tables.Columns, task: str) -> list[str]:
    """Return the section of a task: its mean loss, and a table if the task has few classes."""
    losses = ", ".join(
        f"{name} {_write_number(statistics.average(samples[f'{name}/{task}/all']))}"
        for name in ("loss", "el2n")
    )
    classes = statistics.by_class(samples, task)
    title = [f"## Task {task}", f"Over all visits: mean {losses}."]
    if not 0 < len(classes) <= _MOST_CLASSES:
        return title
    rows = [[_write_number(label), *map(_write_number, row)] for label, row in classes.items()]
    return [*title, _write_table(["label", "samples", "mean norm", "share above"], rows)]


def _draw_panels(samples: tables.Columns, batches: tables.Columns) -> list[figures.Figure]:
    # Sort again, because `nan_to_num` replaces the NaN at the end of the table by 0.
    norms = np.sort(np.nan_to_num(samples["norm/mean/all"]))[::-1]
    curves = {name: _list_points(batches[name]) for name in ("norm", "threshold")}
    # The first batch has no threshold, so a run with a single batch has no curve of thresholds.
    of_batches = {name: points for name, points in curves.items() if points}
    layers = {
        name.removeprefix("layer/"): _list_points(values)
        for name, values in batches.items()
        if name.startswith("layer/")
    }
    charts = [
        ("mean norm of samples, by rank", {"norm": _list_points(norms)}, "rank", "mean norm"),
        ("gradient norm of batches", of_batches, "batch", "norm"),
        ("mean norm of examples, by layer", layers, "batch", "mean norm"),
    ]
    panels = [line_charts.draw(*chart, may_be_log=True) for chart in charts]
    for task in _list_tasks(samples):
        shares = _clipped_shares(samples, task)
        if 1 < len(shares) <= _MOST_CLASSES:
            title = f"share of visits above the threshold, by label of {task}"
            panels.append(bar_charts.draw(title, shares, "share of visits"))
    return panels


def _clipped_shares(samples: tables.Columns, task: str) -> list[bar_charts.Bar]:
    """Return {label: share of gradient norms above the clipping threshold}, without NaN."""
    shares = {label: share for label, (_, _, share) in statistics.by_class(samples, task).items()}
    return [
        bar_charts.Bar(_write_number(label), share)
        for label, share in sorted(shares.items())
        if not math.isnan(share)
    ]


def _list_points(values: np.ndarray) -> line_charts.Points:
    return [(place, float(x)) for place, x in enumerate(values) if np.isfinite(x)]


def _write_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    # Ids of samples may hold any text, so escape the characters of a table.
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    lines = [header, ["---"] * len(header), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _write_number(value: object) -> str:
    if isinstance(value, float | np.floating):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return str(value)
