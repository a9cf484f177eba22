"""Plain and optimised exports side by side: size, load time, latency, throughput, quality.

python -m benchmarks.serving --experiment digits_shared_bottom
python -m benchmarks.serving --experiment adult_shared_bottom
# Trains once, into runs/serving/<experiment>; requests are serialized tf.Examples, on this machine.
"""

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

from benchmarks import rows
from launch import config
from mtl import experiment as experiment_lib
from mtl import serving
from mtl.serving import loaded
from mtl.serving import rows as rows_lib

EXPERIMENT = flags.DEFINE_string("experiment", "digits_shared_bottom", "A file of experiments/.")
CALLS = flags.DEFINE_integer("calls", 300, "Calls of each batch size that are timed.")

_BATCHES = (1, 32, 256)
_VARIANTS: Mapping[str, Any] = {
    "plain": None,
    "optimised": serving.Optimized(),
    "float16": serving.Optimized(weights="float16"),
    "int8": serving.Optimized(weights="int8"),
}


def main() -> None:
    """Prints a markdown table."""
    folder = os.path.join(rows.output("serving"), EXPERIMENT.value)
    run = _experiment()
    run.train(os.path.join(folder, "run"))
    held_out = rows_lib.read(
        lambda: run.data.dataset(
            run.data.eval_split, training=False, seed=1, with_labels=False
        ).map(lambda features, labels: features),
        run.data.spec,
        10**9,
    )
    labels = _labels(run)
    header = ["export", "size, KiB", "load, ms"]
    header += [f"batch {n}: p50 / p99, ms" for n in _BATCHES] + ["rows/s at 256"]
    lines = []
    for name, optimized in _VARIANTS.items():
        settings = dataclasses.replace(run.serving, optimized=optimized)
        exporting = dataclasses.replace(run, serving=settings)
        path = exporting.export(os.path.join(folder, "run"), os.path.join(folder, name), "best")
        cells, quality = _measured(path, held_out, labels)
        lines.append([name, *cells, *[f"{value:.4f}" for value in quality.values()]])
    print(rows.markdown([*header, *quality], lines))


def _experiment() -> experiment_lib.Experiment:
    name = EXPERIMENT.value
    params = [f'adult_dir = "{rows.data_dir("adult")}"'] if name.startswith("adult") else []
    return config.load([f"gin_configs/experiments/{name}.gin"], params)


def _labels(run: experiment_lib.Experiment) -> dict[str, np.ndarray]:
    """{task: the class ids of the evaluation split} of tasks with classes."""
    found = []
    for _, labels in run.data.dataset(run.data.eval_split, training=False, seed=1):
        found.append(
            {
                head.name: head.targets(labels[head.field])[0].numpy()
                for head in run.model.heads
                if hasattr(head, "class_names")
            }
        )
    return {task: np.concatenate([batch[task] for batch in found]) for task in found[0]}


def _measured(
    path: str, held_out: rows_lib.Rows, labels: Mapping[str, np.ndarray]
) -> tuple[list[str], dict[str, float]]:
    """The cells of an export, and its accuracy on each task."""
    size = sum(tf.io.gfile.stat(file).length for file in _model_files(path))
    with loaded.loaded(path):
        pass  # What the first model of a process sets up, and files that were not read yet.
    start = time.perf_counter()
    with loaded.loaded(path) as model:
        load = time.perf_counter() - start
        examples = held_out.examples()
        outputs = model(["serving_default"], examples)
        cells = [f"{size / 1024:,.0f}", f"{1000 * load:.0f}"]
        for batch in _BATCHES:
            secs = _latencies(model, examples[:batch])
            p50, p99 = np.percentile(secs, [50, 99])
            cells.append(f"{1000 * p50:.2f} / {1000 * p99:.2f}")
    accuracies = {
        f"{task} accuracy": float((outputs["serving_default", f"{task}/class_id"] == ids).mean())
        for task, ids in labels.items()
    }
    return [*cells, f"{_BATCHES[-1] / p50:,.0f}"], accuracies


def _latencies(model: loaded.Loaded, examples: list[bytes]) -> list[float]:
    """Seconds of each call, as a server makes it: prepared once, all outputs fetched."""
    signature = model.signatures["serving_default"]
    fetches = [info.name for info in signature.outputs.values()]
    call = model.session.make_callable(fetches, [signature.inputs["examples"].name])
    given, secs = np.array(examples, object), []
    for _ in range(20 + CALLS.value):
        start = time.perf_counter()
        call(given)
        secs.append(time.perf_counter() - start)
    return secs[20:]


def _model_files(path: str) -> Iterator[str]:
    yield os.path.join(path, "saved_model.pb")
    for folder in ("variables", "assets"):
        yield from tf.io.gfile.glob(os.path.join(path, folder, "*"))


if __name__ == "__main__":
    rows.run(main)
