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


# Metrics that warn of errors in others; they are hidden while they are 0.
_WARNINGS = ("nan_predictions", "_error_bound")


def _list_commands(model_dir: str, has_best: bool, model_name: str) -> list[str]:
    """Return commands that can follow on a run."""
    checkpoint = "best" if has_best else "latest"
    served = storage.make_absolute(os.path.join(model_dir, "export", checkpoint))
    python = shlex.quote(_find_python())
    folder, mount = map(shlex.quote, (model_dir, f"{served}:/models/{model_name}"))
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
    """Return a block for each task and slice, its metrics side by side; n/a if undefined.

    Estimator's `loss`, a mean over batches, is left out beside `average_loss`, the same over rows.
    """
    blocks = []
    # The metrics of all tasks, whose name is empty, come last.
    for task, cells in sorted(_tell_by_task(metrics).items(), key=lambda one: (not one[0], one[0])):
        rows = [cells[start : start + _CELLS] for start in range(0, len(cells), _CELLS)]
        blocks += [f"  {task or 'all tasks'}", *(f"    {''.join(row).rstrip()}" for row in rows)]
    return "\n".join(blocks)


def _tell_by_task(metrics: Mapping[str, float]) -> dict[str, list[str]]:
    """Return {task, maybe with a slice: its metrics}; metrics of all tasks are under ""."""
    by_task: dict[str, list[str]] = {}
    left_out = {"global_step", "loss"} if "average_loss" in metrics else {"global_step"}
    for name in sorted(metrics.keys() - left_out):
        whole, _, of_rows = name.partition("@")  # A slice follows "@".
        if whole.endswith(_WARNINGS) and not metrics[name] > 0:
            continue
        task, _, metric = whole.partition("/") if "/" in whole else ("", "", whole)
        task += f", {of_rows}" if of_rows else ""
        value = shorten(metrics[name])
        by_task.setdefault(task, []).append(f"{metric:<20} {value:<12}")
    return by_task


def compare_metrics(found: Mapping[str, Mapping[str, float]], shown: Sequence[str]) -> str:
    """Return a table of the metrics `shown`, a row for each {name: metrics}."""
    lines = [["", *shown]]
    lines += [[name, *(shorten(metrics[own]) for own in shown)] for name, metrics in found.items()]
    return "\n".join(f"  {line}" for line in aligned.align_columns(lines))


def describe_evaluation(
    metrics: Mapping[str, float], shown: Sequence[str], best: str, is_best: bool
) -> str:
    """Return a line on an evaluation: the metrics `shown`, and `best`, which picks the best one.

    Args:
      metrics: {metric: value}, with `global_step`.
      shown: the names of metrics to show.
      best: the name of the metric that picks the best checkpoint.
      is_best: True if this evaluation is the best so far.
    """
    told = []
    for name in dict.fromkeys([*shown, best]):
        value = "n/a" if math.isnan(metrics[name]) else f"{metrics[name]:.5g}"
        told.append(f"{name} {value}" + " (best so far)" * (is_best and name == best))
    return f"step {metrics['global_step']} evaluated: {', '.join(told)}"


def shorten(value: float) -> str:
    """Return a metric in few characters, as terminals and pages show it; n/a if undefined.

    It has at most 11 characters, and `metrics_table` relies on this.
    """
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    # Four decimals would show 0.0000.
    if 0 < abs(value) < 0.00005:
        return f"{value:.1e}"
    return f"{value:.4f}" if abs(value) < 99_999.99995 else f"{value:.4e}"


def exactly(value: Any) -> str:
    """Return a number with all its digits, as JSON writes it."""
    return str(int(value)) if isinstance(value, int | np.integer) else repr(float(value))


def of_training(model_dir: str, metrics: Mapping[str, float], steps: int, model_name: str) -> str:
    """Return the summary of a run of `steps` steps; `model_name` is the name for serving.

    Args:
      model_dir: the folder of the run.
      metrics: the last held-out metrics, with `global_step`.
      steps: the steps that this call has trained.
      model_name: the name for serving.
    """
    best, last = _find_last(os.path.join(model_dir, "best")), _find_last(model_dir)
    cut = pruned.count_weights(last) if last else None
    places = {
        "weights cut": cut and _describe_cut(*cut),
        **(_describe_tables(last) if last else {}),
        "checkpoint": last,
        "best checkpoint": best,
        "export": _find_newest(os.path.join(model_dir, "export", "latest")),
        # A run that starts anew keeps old exports, as a server may still serve them.
        "best export": best and _find_newest(os.path.join(model_dir, "export", "best")),
        "event files": model_dir,
        "all metrics": os.path.join(model_dir, metrics_file.NAME),
        "profile": _describe_profile(model_dir),
        "configuration": os.path.join(model_dir, "config.gin"),
    }
    told = doubts.read_all_doubts(model_dir)
    commands = _list_commands(model_dir, bool(best), model_name)
    return "\n".join(
        [
            "",
            f"Trained {steps} steps, up to step {metrics['global_step']}. Held-out metrics:",
            "",
            metrics_table(metrics),
            "",
            *(f"  Warning: {line}" for line in told),
            *([""] if told else []),
            *(f"  {name:<16} {path}" for name, path in places.items() if path),
            "",
            "Next:",
            *(f"  {command}" for command in commands),
        ]
    )


def _describe_profile(model_dir: str) -> str | None:
    """Return the headline of the last profile of a run, and its path."""
    folder = os.path.join(model_dir, "profile")
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    found = {name: tf.io.gfile.stat(os.path.join(folder, name)).mtime_nsec for name in names}
    last = max((n for n in names if n.endswith(".json")), key=lambda n: found[n], default=None)
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
    """Return how full the growing tables are, by name."""
    shapes = dict(tf.train.list_variables(checkpoint))
    tables = [name.removesuffix("/keys") for name in shapes if name.endswith("/keys")]
    sizes = {own: f"{own}/size" for own in tables if f"{own}/size" in shapes}
    return {
        f"table {own.removeprefix('features/')}": (
            f"{int(tf.train.load_variable(checkpoint, size)):,} keys of "
            f"{math.prod(shapes[f'{own}/keys']):,}"
        )
        for own, size in sizes.items()
    }


def _find_last(directory: str) -> str | None:
    return next(reversed(run_directory.list_checkpoints(directory)), None)


def _find_newest(directory: str) -> str | None:
    versions = tf.io.gfile.listdir(directory) if tf.io.gfile.exists(directory) else []
    # Object stores list folders with a slash at the end.
    numbered = [version.rstrip("/") for version in versions if version.rstrip("/").isdigit()]
    return os.path.join(directory, max(numbered, key=int)) if numbered else None


def _find_python() -> str:
    """Return the command of this Python: `python` if that finds it, else its path."""
    path = shutil.which("python")
    return (
        "python"
        if path and os.path.samefile(path, sys.executable)
        else os.path.relpath(sys.executable)
    )
