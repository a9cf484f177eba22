"""Writes the summary of a run: its metrics, its folders, and the next commands.

print(summary.of_training("runs/digits", {"sign/auc": 0.9, "global_step": 900}, 900, "mtl"))
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl import aligned
from mtl.checkpoints import run_directory
from mtl.deferred import tf
from mtl.files import storage
from mtl.monitoring import doubts, metrics_file
from mtl.variables import pruned

_CELLS = 3


# The endings of metrics that warn of errors in other metrics. A metric whose name ends so is hidden
# if the metric is 0.
_WARNINGS = ("nan_predictions", "_error_bound")


def _list_commands(model_dir: str, has_best: bool, model_name: str) -> list[str]:
    """Return commands for the next steps after a training."""
    checkpoint = "best" if has_best else "latest"
    export = storage.make_absolute(os.path.join(model_dir, "export", checkpoint))
    python = shlex.quote(_find_python())
    folder, mount = map(shlex.quote, (model_dir, f"{export}:/models/{model_name}"))
    return [
        f"{python} -m tensorboard.main --logdir {folder}",
        f"{python} -m launch.report --model_dir {folder}",
        f"{python} -m launch.predict --model_dir {folder} --checkpoint {checkpoint}",
        f"{python} -m launch.evaluate --model_dir {folder} --checkpoint {checkpoint}",
        f"{python} -m launch.serve --model_dir {folder}",
        f"docker run -p 8501:8501 -v {mount} -e {shlex.quote(f'MODEL_NAME={model_name}')} "
        "tensorflow/serving",
    ]


def metrics_table(metrics: Mapping[str, float]) -> str:
    """Format metrics as a text with a block for each task and slice; undefined metrics are n/a.

    Estimator's `loss`, a mean over batches, is left out if there is an `average_loss`, a mean over
    rows.

    Args:
      metrics: {metric: value}.
    """
    blocks = []
    # The block with metrics of all tasks together, whose name is "", comes last.
    by_task = _tell_by_task(metrics).items()
    for task, cells in sorted(by_task, key=lambda item: (not item[0], item[0])):
        rows = [cells[start : start + _CELLS] for start in range(0, len(cells), _CELLS)]
        blocks += [f"  {task or 'all tasks'}", *(f"    {''.join(row).rstrip()}" for row in rows)]
    return "\n".join(blocks)


def _tell_by_task(metrics: Mapping[str, float]) -> dict[str, list[str]]:
    """Return {task, or "task, slice": texts of its metrics}; "" stands for all tasks."""
    by_task: dict[str, list[str]] = {}
    hidden = {"global_step", "loss"} if "average_loss" in metrics else {"global_step"}
    for name in sorted(metrics.keys() - hidden):
        whole, _, of_rows = name.partition("@")  # A slice's name follows "@".
        if whole.endswith(_WARNINGS) and not metrics[name] > 0:
            continue
        task, _, metric = whole.partition("/") if "/" in whole else ("", "", whole)
        task += f", {of_rows}" if of_rows else ""
        value = shorten(metrics[name])
        by_task.setdefault(task, []).append(f"{metric:<20} {value:<12}")
    return by_task


def compare_metrics(found: Mapping[str, Mapping[str, float]], shown: Sequence[str]) -> str:
    """Format the metrics of several evaluations as a table.

    Args:
      found: {name of an evaluation: {metric: value}}.
      shown: the names of the metrics, which are the columns.
    """
    lines = [["", *shown]]
    for name, metrics in found.items():
        lines.append([name, *(shorten(metrics[metric]) for metric in shown)])
    return "\n".join(f"  {line}" for line in aligned.align_columns(lines))


def describe_evaluation(
    metrics: Mapping[str, float], shown: Sequence[str], best: str, is_best: bool
) -> str:
    """Describe an evaluation in one line.

    Args:
      metrics: {metric: value}, with `global_step`.
      shown: the names of the metrics to show in the line.
      best: the name of the metric that chooses the best checkpoint, which is also shown.
      is_best: True if this evaluation is the best so far.
    """
    texts = []
    for name in dict.fromkeys([*shown, best]):
        value = "n/a" if math.isnan(metrics[name]) else f"{metrics[name]:.5g}"
        texts.append(f"{name} {value}" + " (best so far)" * (is_best and name == best))
    return f"step {metrics['global_step']} evaluated: {', '.join(texts)}"


def shorten(value: float) -> str:
    """Format a metric in at most 11 characters, for terminals and pages; NaN becomes n/a."""
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    # With four decimals, a small number would become 0.0000.
    if 0 < abs(value) < 0.00005:
        return f"{value:.1e}"
    return f"{value:.4f}" if abs(value) < 99_999.99995 else f"{value:.4e}"


def exactly(value: Any) -> str:
    """Format a number with all its digits, like JSON."""
    return str(int(value)) if isinstance(value, int | np.integer) else repr(float(value))


def of_training(model_dir: str, metrics: Mapping[str, float], steps: int, model_name: str) -> str:
    """Return the summary that a training prints at its end.

    Args:
      model_dir: the folder of the run.
      metrics: the last held-out metrics, with `global_step`.
      steps: the number of steps that this call has trained.
      model_name: the name for TensorFlow Serving.
    """
    best, last = _find_last(os.path.join(model_dir, "best")), _find_last(model_dir)
    cut = pruned.count_weights(last) if last else None
    places = {
        "weights cut": cut and _describe_cut(*cut),
        **(_describe_tables(last) if last else {}),
        "checkpoint": last,
        "best checkpoint": best,
        "export": _find_newest(os.path.join(model_dir, "export", "latest")),
        # Show a best export only if there is a best checkpoint, because exports of an earlier run
        # may remain.
        "best export": best and _find_newest(os.path.join(model_dir, "export", "best")),
        "event files": model_dir,
        "all metrics": os.path.join(model_dir, metrics_file.NAME),
        "profile": _describe_profile(model_dir),
        "configuration": os.path.join(model_dir, "config.gin"),
    }
    warnings = doubts.read_all_doubts(model_dir)
    commands = _list_commands(model_dir, bool(best), model_name)
    return "\n".join(
        [
            "",
            f"Trained {steps} steps, up to step {metrics['global_step']}. Held-out metrics:",
            "",
            metrics_table(metrics),
            "",
            *(f"  Warning: {line}" for line in warnings),
            *([""] if warnings else []),
            *(f"  {name:<16} {path}" for name, path in places.items() if path),
            "",
            "Next:",
            *(f"  {command}" for command in commands),
        ]
    )


def _describe_profile(model_dir: str) -> str | None:
    """Return the headline and the path of the last profile of a run; None without a profile."""
    folder = os.path.join(model_dir, "profile")
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    times = {name: tf.io.gfile.stat(os.path.join(folder, name)).mtime_nsec for name in names}
    last = max((n for n in names if n.endswith(".json")), key=lambda n: times[n], default=None)
    if last is None:
        return None
    with tf.io.gfile.GFile(os.path.join(folder, last)) as file:
        try:
            headline = json.loads(file.read())["headline"]
        except (ValueError, KeyError, TypeError):  # A damaged profile must not stop the summary.
            return None
    return f"{headline} ({os.path.join(folder, last.removesuffix('.json'))}.txt)"


def _describe_cut(cut: int, total: int, num_packed: int) -> str:
    return (
        f"{100 * cut / total:.1f}% of {total:,} pruned: {4 * total:,} bytes, {num_packed:,} packed"
    )


def _describe_tables(checkpoint: str) -> dict[str, str]:
    """Return {growing table: a text with the number of its keys and its capacity}."""
    shapes = dict(tf.train.list_variables(checkpoint))
    tables = [name.removesuffix("/keys") for name in shapes if name.endswith("/keys")]
    sizes = {table: f"{table}/size" for table in tables if f"{table}/size" in shapes}
    return {
        f"table {table.removeprefix('features/')}": (
            f"{int(tf.train.load_variable(checkpoint, size)):,} keys of "
            f"{math.prod(shapes[f'{table}/keys']):,}"
        )
        for table, size in sizes.items()
    }


def _find_last(directory: str) -> str | None:
    return next(reversed(run_directory.list_checkpoints(directory)), None)


def _find_newest(directory: str) -> str | None:
    versions = tf.io.gfile.listdir(directory) if tf.io.gfile.exists(directory) else []
    # Object stores list the names of folders with a slash at the end.
    numbers = [version.rstrip("/") for version in versions if version.rstrip("/").isdigit()]
    return os.path.join(directory, max(numbers, key=int)) if numbers else None


def _find_python() -> str:
    """Return the command that starts this Python: `python`, or a path if `python` is another."""
    path = shutil.which("python")
    return (
        "python"
        if path and os.path.samefile(path, sys.executable)
        else os.path.relpath(sys.executable)
    )
