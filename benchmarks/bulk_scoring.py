"""Compares the speed of `scoring.score_shards`, from files to files, with the bare SavedModel.

The bare SavedModel runs in a loop over tensors that are parsed in advance; its outputs are not
used. `scoring.score_shards` reads, parses, predicts and writes, with the same export in batches of
the same size. Each round runs every variant once. The table shows medians over the rounds. Ratios
compare with the bare loop of the same round, by wall time and by processor time. Separate rows for
reading, parsing and formatting show where `scoring.score_shards` spends its processor time.

    python -m benchmarks.bulk_scoring --rounds 5
"""

import csv
import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import flags

from benchmarks import overhead, rows
from mtl import networks, verbs
from mtl.tools import scoring

tf1 = tf.compat.v1

_ROWS = flags.DEFINE_integer("rows", 100_000, "The number of rows in all files together.", 1)
_BATCH = flags.DEFINE_integer("rows_per_batch", 512, "The number of rows of a batch.", 1)
_UNITS = flags.DEFINE_list(
    "units",
    ["64", "512", "1024-512-256", "2048"],
    "Widths of the hidden layers; a single width stands for three layers.",
)
_CONCURRENCY = flags.DEFINE_integer(
    "batches_at_a_time", 4, "Batches that `scoring.score_shards` scores at the same time.", 1
)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "The number of timings of each variant.", 1)
_SIGNATURE = flags.DEFINE_string(
    "signature", "serving_default", "The signature: 12 outputs of four tasks; `a` has 3 outputs."
)

_FILES = 4
# (input format, output format). Predictions for TFRecords are also written as text, because people
# read them.
_FORMATS = (("tfrecord", "tfrecord"), ("tfrecord", "jsonl"), ("csv", "csv"), ("jsonl", "jsonl"))


class Cost(NamedTuple):
    """The microseconds that a row takes: wall time, and time of all processors."""

    wall: float
    cpu: float


def export(units: str, folder: str) -> str:
    """Return a SavedModel of four heads after a few steps of training."""
    layers = [int(width) for width in units.split("-")]
    trunk = networks.MLP(layers=layers if len(layers) > 1 else layers * 3)
    settings = overhead.an_experiment(layers[0], steps_per_call=10, steps=10)
    shared = dataclasses.replace(settings.model, network=networks.SharedBottom(trunk=trunk))
    settings = dataclasses.replace(settings, model=shared)
    verbs.train(settings, os.path.join(folder, "run"))
    return verbs.export(settings, os.path.join(folder, "run"), os.path.join(folder, "export"))


def write_inputs(folder: str) -> list[bytes]:
    """Write the rows to files of every format, and return them as examples."""
    values = np.random.default_rng(0).normal(size=(_ROWS.value, 32)).astype(np.float32)
    examples = [overhead.SPEC.serialize({"x": row}) for row in values]
    for index in range(_FILES):
        path = os.path.join(folder, f"in-{index}")
        with tf.io.TFRecordWriter(path + ".tfrecord") as writer:
            for example in examples[index::_FILES]:
                writer.write(example)
        some = values[index::_FILES].tolist()
        with open(path + ".jsonl", "w") as file:
            file.writelines(json.dumps({"x": row}) + "\n" for row in some)
        with open(path + ".csv", "w", newline="") as file:
            csv.writer(file).writerows([["x"], *(["|".join(map(str, row))] for row in some)])
    return examples


def stages(path: str, examples: Sequence[bytes]) -> dict[str, Callable[[], None]]:
    """Return a function that runs the bare model on parsed tensors, and one that only parses."""
    session = tf1.Session(graph=tf.Graph())
    with session.graph.as_default():
        signature = tf1.saved_model.load(session, ["serve"], path).signature_def[_SIGNATURE.value]
        (parsing,) = (op for op in session.graph.get_operations() if op.type == "ParseExampleV2")
    parse = session.make_callable(parsing.outputs, [signature.inputs["examples"].name])
    outputs = [info.name for info in signature.outputs.values()]
    predict = session.make_callable(outputs, list(parsing.outputs))
    starts = range(0, len(examples), _BATCH.value)
    batches = [np.array(examples[start : start + _BATCH.value], object) for start in starts]
    parsed_batches = [parse(batch) for batch in batches]
    return {
        "bare": lambda: _exhaust(predict(*tensors) for tensors in parsed_batches),
        "parsing": lambda: _exhaust(map(parse, batches)),
    }


def _exhaust(results) -> None:
    for _ in results:
        pass


def scored(
    model: scoring.SavedModel, folder: str, input_format: str, output_format: str
) -> Callable[[], None]:
    """Return a function that scores the files of a folder into a new folder."""
    reader = scoring.Reader(spec=overhead.SPEC, batch_size=_BATCH.value)
    paths = reader.find([os.path.join(folder, f"in-*.{input_format}")])

    def run() -> None:
        with tempfile.TemporaryDirectory() as output:
            plan = scoring.plan_shards(paths, output, output_format)
            scoring.score_shards(plan, reader, model, _CONCURRENCY.value)

    return run


def reading(folder: str) -> Callable[[], None]:
    """Return a function that only reads the TFRecord files."""
    reader = scoring.Reader(spec=None, batch_size=_BATCH.value)
    paths = reader.find([os.path.join(folder, "in-*.tfrecord")])
    return lambda: _exhaust(reader.chunks(paths))


def formatting(model: scoring.SavedModel, examples: Sequence[bytes], name: str):
    """Return a function that only formats predictions as lines or records."""
    starts = range(0, len(examples), _BATCH.value)
    outputs = [model(examples[start : start + _BATCH.value]) for start in starts]
    return lambda: _exhaust(map(scoring.find_maker(name), outputs))


def cost(run: Callable[[], None]) -> Cost:
    """Run a function, and return its cost for each row."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Cost(1e6 * wall / _ROWS.value, 1e6 * cpu / _ROWS.value)


def measure(units: str) -> None:
    """Print a row for each variant and each stage."""
    with tempfile.TemporaryDirectory() as folder:
        path, examples = export(units, folder), write_inputs(folder)
        model = scoring.SavedModel(path, _SIGNATURE.value)
        sides = stages(path, examples)
        for input_format, output_format in _FORMATS:
            sides[f"{input_format} to {output_format}"] = scored(
                model, folder, input_format, output_format
            )
        sides["reading"] = reading(folder)
        sides |= {f"making {name}": formatting(model, examples, name) for name in scoring.FORMATS}
        for run in sides.values():
            run()
        rounds = [{name: cost(run) for name, run in sides.items()} for _ in range(_ROUNDS.value)]
    for name in sides:
        _print(units, name, rounds)


def _print(units: str, name: str, rounds: Sequence[Mapping[str, Cost]]) -> None:
    wall, cpu = (statistics.median(costs[name][i] for costs in rounds) for i in (0, 1))
    ratios = [costs["bare"].wall / costs[name].wall for costs in rounds]
    of_cpu = statistics.median(costs["bare"].cpu / costs[name].cpu for costs in rounds)
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"
    is_whole = name == "bare" or " to " in name
    tail = f"  {ratio:<22} {of_cpu:.2f}" if is_whole else ""
    print(f"{units:>12}  {name:<22} {1e6 / wall:9.0f} {cpu:8.2f}{tail}", flush=True)


def main() -> None:
    """Print a table."""
    print("                                             CPU us   of the bare SavedModel, by")
    print("       units  side                    rows/s  a row   clock (least .. most)  CPU")
    for units in _UNITS.value:
        measure(units)


if __name__ == "__main__":
    rows.run(main)
