"""Measures the start of a run with many tasks, many columns, long vocabularies or many classes.

Each case trains a gin file with a CSV file for one step, in a separate process. The table shows
wall seconds and processor seconds until the step is done and saved, and the number of ops in the
training graph and its functions. The table also shows the peak memory up to this step, and up to
the end of the run, which evaluates and writes two exports.

    python -m benchmarks.many_parts --cases tasks=100,columns=2000
    python -m benchmarks.many_parts --cases tokens=2000000,classes=100000 --limit 300
"""

import json
import multiprocessing
import pathlib
import resource
import tempfile
import threading
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

from mtl import verbs
from mtl.configs import config

_ALL = (
    "tasks=100",
    "tasks=1000",
    "columns=200",
    "columns=2000",
    "tokens=2000000",
    "classes=100000",
)
_CASES = flags.DEFINE_list("cases", list(_ALL), "Cases such as tasks=100.")
_LIMIT = flags.DEFINE_integer("limit", 300, "The seconds after which a case is stopped.")
_ROWS = 1000

_COMMON = """
from __gin__ import dynamic_registration
from mtl import experiment
from mtl import features
from mtl import heads
from mtl import model
from mtl import spec
from mtl.data import csv
from mtl.data import pipeline
include "gin_configs/defaults.gin"
include "gin_configs/networks/shared_bottom_mlp.gin"

experiment.Experiment.data = @pipeline.Pipeline()
pipeline.Pipeline.source = @csv.Csv()
pipeline.Pipeline.spec = @spec.Spec()
experiment.Run.train_steps = 1
"""


def _written(kind: str, count: int, folder: pathlib.Path) -> pathlib.Path:
    """Write the data and the gin file of a case, and return the path of the gin file."""
    rng = np.random.default_rng(0)
    rows = 2 * count if kind == "tokens" else max(_ROWS, count if kind == "classes" else 0)
    columns = [f"x{number}" for number in range(count if kind == "columns" else 10)]
    tasks = [f"t{number}" for number in range(count if kind == "tasks" else 1)]
    text, label = [], "int64"
    if kind == "tokens":
        text = ["word"]
    with (folder / "rows.csv").open("w") as file:
        file.write(",".join([*columns, *text, *tasks]) + "\n")
        for row in range(rows):
            numbers = [f"{x:.3f}" for x in rng.normal(size=len(columns))]
            words = [f"word{row % count}"] if text else []
            high = count if kind == "classes" else 2
            labels = [str(label) for label in rng.integers(0, high, len(tasks))]
            file.write(",".join([*numbers, *words, *labels]) + "\n")
    head = "MultiClass" if kind == "classes" else "Binary"
    objects = ["@features.Numeric()"] + ["@features.Categorical()"] * len(text)
    lines = [
        _COMMON,
        f'csv.Csv.files = {{"train": "{folder}/rows.csv", "test": "{folder}/few.csv"}}',
        f"spec.Spec.features = {dict.fromkeys(columns, 'float32') | dict.fromkeys(text, 'string')}",
        f"spec.Spec.labels = {dict.fromkeys(tasks, label)}",
        f"model.MultiTaskModel.columns = [{', '.join(objects)}]",
        f"features.Numeric.names = {columns}",
        *(f"features.Categorical.names = {[name]}" for name in text),
        "model.MultiTaskModel.heads = [@heads.Block()]",
        f"heads.Block.head = @heads.{head}",
        f"heads.Block.tasks = {tasks}",
        *([f"heads.{head}.classes = {count}"] if kind == "classes" else []),
    ]
    with (folder / "rows.csv").open() as file:
        (folder / "few.csv").write_text("".join(next(file) for _ in range(_ROWS)))
    path = folder / "run.gin"
    path.write_text("\n".join(lines) + "\n")
    return path


def _peak() -> float:
    """Return the peak memory of this process in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _train(folder: pathlib.Path) -> None:
    """Train the run of a folder, and write measured values to a file as soon as they are known."""
    model_dir, measured, started = folder / "run", {}, time.perf_counter()

    def write(**values: float) -> None:
        measured.update(values)
        temporary = folder / "found.tmp"
        temporary.write_text(json.dumps(measured))
        temporary.replace(folder / "found.json")

    def watch() -> None:
        while not (model_dir / "model.ckpt-1.index").exists():
            time.sleep(0.05)
        write(first_step=time.perf_counter() - started, cpu=time.process_time(), peak=_peak())

    def on_start() -> None:
        write(built=time.perf_counter() - started)
        graph = tf.compat.v1.get_default_graph().as_graph_def()
        write(ops=len(graph.node) + sum(len(body.node_def) for body in graph.library.function))

    threading.Thread(target=watch, daemon=True).start()
    experiment = config.load([str(folder / "run.gin")])
    write(loaded=time.perf_counter() - started)
    verbs.train(experiment, str(model_dir), on_start)
    write(whole=time.perf_counter() - started, peak_of_all=_peak())


def _row(case: str, limit: int) -> str:
    kind, _, count = case.partition("=")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        _written(kind, int(count), folder)
        process = multiprocessing.get_context("spawn").Process(target=_train, args=(folder,))
        process.start()
        process.join(limit)
        if process.is_alive():
            process.kill()
            process.join()
        path = folder / "found.json"
        measured = json.loads(path.read_text()) if path.exists() else {}
    cells = [f"{case:<18}"]
    for key, form in _COLUMNS.items():
        cells.append(format(measured[key], form) if key in measured else "-".rjust(11))
    return " ".join(cells)


_COLUMNS = {
    "loaded": "11.1f",
    "built": "11.1f",
    "first_step": "11.1f",
    "cpu": "11.1f",
    "peak": "11.2f",
    "ops": "11,d",
    "whole": "11.1f",
    "peak_of_all": "11.2f",
}


def main(_) -> None:
    """Print a line for each case: seconds, GB and ops, or "-" after the limit."""
    print(f"{'':<18} {' '.join(f'{key:>11}' for key in _COLUMNS)}", flush=True)
    for case in _CASES.value:
        print(_row(case, _LIMIT.value), flush=True)


if __name__ == "__main__":
    app.run(main)
