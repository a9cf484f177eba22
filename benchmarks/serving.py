"""Compares plain and optimised exports: size, load time, latency, throughput and quality.

    python -m benchmarks.serving --experiment digits_shared_bottom
    python -m benchmarks.serving --experiment adult_shared_bottom

An experiment is trained once, in runs/serving/<experiment>. Requests are serialized tf.Examples.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

from benchmarks import rows
from mtl import experiment as experiment_lib
from mtl import serving, verbs
from mtl.configs import config
from mtl.files import storage
from mtl.serving import loaded
from mtl.serving import rows as rows_lib

EXPERIMENT = flags.DEFINE_string(
    "experiment", "digits_shared_bottom", "A file of gin_configs/experiments."
)
CALLS = flags.DEFINE_integer("calls", 300, "Timed calls of each batch size.")

_BATCHES = (1, 32, 256)
_VARIANTS: Mapping[str, Any] = {
    "plain": None,
    "optimised": serving.Optimized(),
    "float16": serving.Optimized(weights="float16"),
    "int8": serving.Optimized(weights="int8"),
}


def main() -> None:
    """Train the experiment if needed, and print a table of its exports."""
    folder = os.path.join(rows.output("serving"), EXPERIMENT.value)
    run = _experiment()
    verbs.train(run, os.path.join(folder, "run"))
    held_out = rows_lib.read_rows(
        lambda: run.data.dataset(
            run.data.eval_split, training=False, seed=1, with_labels=False
        ).map(lambda features, labels: features),
        run.data.spec,
        10**9,
    )
    paths = {}
    for name, optimized in _VARIANTS.items():
        settings = dataclasses.replace(run.serving, optimized=optimized)
        exporting = dataclasses.replace(run, serving=settings)
        paths[name] = verbs.export(
            exporting, os.path.join(folder, "run"), f"{folder}/{name}", "best"
        )
    print(_table(paths, held_out.examples, _labels(run)))


def _table(
    paths: Mapping[str, str], examples: list[bytes], labels: Mapping[str, np.ndarray]
) -> str:
    cells = {name: [_size(path), _load_time(path)] for name, path in paths.items()}
    header = ["export", "size, KiB", "load, ms"]
    with contextlib.ExitStack() as stack:
        models = {name: stack.enter_context(loaded.load_export(paths[name])) for name in paths}
        for batch in _BATCHES:
            header.append(f"batch {batch}: p50 / p99, ms")
            for name, secs in _latencies(models, examples[:batch]).items():
                p50, p99 = np.percentile(secs, [50, 99])
                cells[name].append(f"{1000 * p50:.2f} / {1000 * p99:.2f}")
                if batch == _BATCHES[-1]:
                    cells[name].append(f"{batch / p50:,.0f}")
        for name, model in models.items():
            outputs = model(["serving_default"], examples)
            for task, ids in labels.items():
                predicted = outputs["serving_default", f"{task}/class_id"]
                cells[name].append(f"{(predicted == ids).mean():.4f}")
    header += [f"rows/s at {_BATCHES[-1]}", *(f"{task} accuracy" for task in labels)]
    return rows.markdown(header, [[name, *cells[name]] for name in paths])


def _experiment() -> experiment_lib.Experiment:
    name = EXPERIMENT.value
    params = [f'adult_dir = "{rows.data_dir("adult")}"'] if name.startswith("adult") else []
    return config.load([f"gin_configs/experiments/{name}.gin"], params)


def _labels(run: experiment_lib.Experiment) -> dict[str, np.ndarray]:
    """Return {task: class ids [N] of the evaluation split} of tasks with classes."""
    batches = []
    for _, labels in run.data.dataset(run.data.eval_split, training=False, seed=1):
        batches.append(
            {
                head.name: head.targets(labels[head.field])[0].numpy()
                for head in run.model.heads
                if hasattr(head, "class_names")
            }
        )
    return {task: np.concatenate([batch[task] for batch in batches]) for task in batches[0]}


def _size(path: str) -> str:
    return f"{sum(tf.io.gfile.stat(file).length for file in _model_files(path)) / 1024:,.0f}"


def _load_time(path: str) -> str:
    secs = []
    # The first load is not counted: it reads files from disk and sets up parts of TensorFlow.
    for _ in range(4):
        start = time.perf_counter()
        with loaded.load_export(path):
            secs.append(time.perf_counter() - start)
    return f"{1000 * np.median(secs[1:]):.0f}"


def _latencies(
    models: Mapping[str, loaded.Loaded], examples: list[bytes]
) -> dict[str, list[float]]:
    """Return {export: seconds of each call}; the exports take turns.

    As in a server, each call fetches all outputs through a prepared callable.
    """
    calls, secs, request = {}, {name: [] for name in models}, np.array(examples, object)
    for name, model in models.items():
        signature = model.signatures["serving_default"]
        fetches = [info.name for info in signature.outputs.values()]
        calls[name] = model.session.make_callable(fetches, [signature.inputs["examples"].name])
    for _ in range(20 + CALLS.value):
        for name, call in calls.items():
            start = time.perf_counter()
            call(request)
            secs[name].append(time.perf_counter() - start)
    return {name: values[20:] for name, values in secs.items()}


def _model_files(path: str) -> Iterator[str]:
    yield os.path.join(path, "saved_model.pb")
    for folder in ("variables", "assets"):
        yield from storage.listed(os.path.join(path, folder))


if __name__ == "__main__":
    rows.run(main)
