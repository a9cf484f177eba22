"""Compares the export formats of a checkpoint by size, latency and numerical difference.

for result in export_comparison.compare_formats(experiment, "runs/digits", checkpoint):
    print(result.name, result.size, result.gzipped, result.milliseconds, result.difference)
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from mtl import checks, serving
from mtl import experiment as experiment_lib
from mtl.deferred import tf
from mtl.runs import estimators
from mtl.serving import loaded, metadata
from mtl.tools.runtimes import added, frozen, onnx, portable, tflite

# Requests are timed in rounds of 0.1 s. The median over the rounds ignores disturbed rounds.
_ROUNDS, _SECONDS = 5, 0.1
_EXTRA = "assets.extra"  # The folder of a SavedModel for warm-up requests and metadata.

Run = Callable[[Mapping[str, np.ndarray]], Any]


class Format(NamedTuple):
    """The measured size and latency of an export format.

    Attributes:
      name: the name of the format.
      size: the size of the export in bytes.
      gzipped: the size of the export in bytes, after each file is compressed separately.
      milliseconds: {rows of a request: median time on one thread}.
      difference: the largest difference between an output of the export and the same output of the
        Estimator; ONNX and TensorFlow Lite are compared with the SavedModel instead.
      problem: the error if this export failed; "" otherwise.
    """

    name: str
    size: int = 0
    gzipped: int = 0
    milliseconds: Mapping[int, float] = {}
    difference: float = 0.0
    problem: str = ""


def compare_formats(
    experiment: experiment_lib.Experiment, model_dir: str, checkpoint: str
) -> Iterator[Format]:
    """Export a checkpoint in each format to a temporary folder, and measure size and latency.

    Args:
      experiment: the settings of the run.
      model_dir: the folder of the run.
      checkpoint: the checkpoint to export.

    Yields:
      The measurements of each format; if an export fails, its `problem` has the error, and nothing
      is measured.
    """
    parts: dict[str, Any] = {
        "SavedModel, as trained": serving.AsTrained(),
        "SavedModel": serving.Optimized(),
        "SavedModel, float16": serving.Optimized(weights="float16"),
        "SavedModel, int8": serving.Optimized(weights="int8"),
    }
    with tempfile.TemporaryDirectory() as scratch:
        paths: dict[str, str] = {}
        for number, (name, part) in enumerate(parts.items()):
            export = functools.partial(_export_part, experiment, model_dir, checkpoint, part)
            folder = os.path.join(scratch, str(number))
            yield _try_format(
                name, functools.partial(_measure_saved_model, name, export, folder, paths)
            )
        smallest = paths.get("SavedModel")
        if smallest is None:
            return
        path = os.path.join(scratch, "model")
        yield _try_format("ONNX", lambda: _measure_onnx(smallest, f"{path}.onnx"))
        for weights in tflite.KINDS:
            name = f"TensorFlow Lite, {weights}"
            measure = functools.partial(_measure_tflite, name, smallest, f"{path}.tflite", weights)
            yield _try_format(name, measure)


def _try_format(name: str, measure: Callable[[], Format]) -> Format:
    try:
        return measure()
    except checks.UserError as error:
        return Format(name, problem=str(error))


def _export_part(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    checkpoint: str,
    part: Any,
    folder: str,
) -> str:
    settings = dataclasses.replace(experiment.serving, optimized=part)
    experiment_of_format = dataclasses.replace(experiment, serving=settings)
    estimator = estimators.build_exported(experiment_of_format, model_dir, checkpoint)
    exporter = estimators.build_exporter(
        experiment_of_format, model_dir, added.choose_files(settings, is_converted=True)
    )
    return exporter(estimator, folder, checkpoint)


def _measure_saved_model(
    name: str, export: Callable[[str], str], folder: str, paths: dict[str, str]
) -> Format:
    paths[name] = path = export(folder)
    signature, requests = frozen.find_requests(path)
    # Use one thread for each format, because the runtimes have different thread pools.
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
    )
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], path)
        model = loaded.Loaded(session, meta_graph)
        signature_def = model.signatures[signature]
        fetches = [info.name for info in signature_def.outputs.values()]
        feeds = {key: info.name for key, info in signature_def.inputs.items()}
        call = session.make_callable(fetches, list(feeds.values()))
        times = _time_requests(lambda request: call(*(request[key] for key in feeds)), requests)
    files = [os.path.join(at, file) for at, _, names in os.walk(path) for file in names]
    # Leave out warm-up requests and copies for other runtimes, which are not part of the model.
    left_out = [f"{os.sep}{folder}{os.sep}" for folder in (_EXTRA, portable.FOLDER)]
    files = [file for file in files if not any(part in file for part in left_out)]
    # The export has measured the difference of its predictions from the checkpoint's, unless
    # `Serving.check_rows` is 0.
    difference = metadata.read_metadata(path).get("difference", float("nan"))
    return Format(name, *_count_bytes(files), times, difference)


def _measure_onnx(directory: str, path: str) -> Format:
    _, runtime = onnx.require()
    difference = onnx.write_onnx(directory, path)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    times = _time_requests(lambda request: session.run(None, request), _list_requests(directory))
    return Format("ONNX", *_count_bytes([path]), times, difference)


def _measure_tflite(name: str, directory: str, path: str, weights: str) -> Format:
    difference = tflite.write_tflite(directory, path, weights)
    with open(path, "rb") as file:
        run = tflite.make_runner(file.read())
    times = _time_requests(run, _list_requests(directory))
    return Format(name, *_count_bytes([path]), times, difference)


def _list_requests(directory: str) -> frozen.Requests:
    """Return example requests for the signature that other formats are converted from."""
    with frozen.load_intact(directory) as source:
        return source.requests


def _count_bytes(files: list[str]) -> tuple[int, int]:
    """Return the total bytes of files, before and after compression."""
    size = packed = 0
    for path in files:
        with open(path, "rb") as file:
            data = file.read()
        size, packed = size + len(data), packed + len(gzip.compress(data, 9))
    return size, packed


def _time_requests(run: Run, requests: frozen.Requests) -> dict[int, float]:
    """Return {rows of a request: the median time in milliseconds}."""
    medians = {}
    for request in requests:
        # Do not time the first call, which allocates memory and prepares kernels.
        run(request)
        rounds = []
        for _ in range(_ROUNDS):
            count, start = 0, time.perf_counter()
            while (passed := time.perf_counter() - start) < _SECONDS or not count:
                run(request)
                count += 1
            rounds.append(1000 * passed / count)
        medians[len(next(iter(request.values())))] = statistics.median(rounds)
    return medians
