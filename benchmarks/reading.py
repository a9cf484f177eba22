"""Measures the speed of sources in training, and the size of their state in checkpoints.

The same table of 8 numbers, 16 texts and a label is stored as a CSV, a TFRecord and a Parquet file,
as a dataset of tensorflow-datasets, and in memory. Each source reads the table like in training,
shuffled and in batches of 512. Two further variants read by plain tf.data: `as_dataset` parses
single examples, and `Dataset.filter` chooses single rows. All variants are timed in turns. The
first table shows medians of the rows per second and of the processor time for a row. The second
table shows the size of the input's state in a checkpoint, and the seconds to write it.

    python -m benchmarks.reading --rows 100000 --rounds 5
"""

import argparse
import dataclasses
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
import tensorflow_datasets
from pyarrow import parquet

from benchmarks import rows
from mtl import spec as spec_lib
from mtl.data import arrow, csv, frames, pipeline, subset, tfds, tfrecord

tf1 = tf.compat.v1

NUMBERS = [f"number_{index}" for index in range(8)]
TEXTS = [f"text_{index}" for index in range(16)]
SPEC = spec_lib.Spec(
    features={**dict.fromkeys(NUMBERS, "float32"), **dict.fromkeys(TEXTS, "string")},
    labels={"label": "int64"},
)
BATCH, _BATCHES = 512, 100
# These sources are also timed with `Pipeline.cache`, which decodes all rows once and keeps them in
# memory.
_CACHED = ("Csv", "TfRecord")
_NUMBERED = ("Arrow", "Arrow, windows of a fifth", "TfRecord, windows of a fifth")


def draw_table(num_rows: int) -> dict[str, np.ndarray]:
    """Return a random table, {field: values [N]}."""
    draw = np.random.default_rng(0)
    table = {name: draw.normal(size=num_rows).astype(np.float32).round(3) for name in NUMBERS}
    words = np.array([f"category_{index}" for index in range(1000)], object)
    table |= {name: words[draw.integers(0, 1000, num_rows)] for name in TEXTS}
    return {**table, "label": draw.integers(0, 2, num_rows)}


class Drawn(tensorflow_datasets.core.GeneratorBasedBuilder):
    """The benchmark's table as a dataset of tensorflow-datasets."""

    VERSION = tensorflow_datasets.core.Version("1.0.0")
    table: Mapping[str, np.ndarray] = {}

    def _info(self):
        features = tensorflow_datasets.features
        kinds = {name: features.Scalar(np.float32) for name in NUMBERS}
        kinds |= {name: features.Text() for name in TEXTS}
        schema = features.FeaturesDict({**kinds, "label": features.Scalar(np.int64)})
        return self.dataset_info_from_configs(features=schema, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for index, values in enumerate(zip(*self.table.values(), strict=True)):
            yield index, dict(zip(self.table, values, strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneByOne(subset.Subset):
    """A source that chooses the rows of a split by `Dataset.filter`, with a call for each row."""

    def records(self, split: str) -> tf.data.Dataset:
        numbered = self.source.records(self.split).enumerate()
        return numbered.filter(lambda number, _: self._takes(split, number)).map(lambda _, r: r)


class Parsed(tfds.Tfds):
    """A source that reads examples after tensorflow-datasets has parsed them."""

    _stored: Any = {}


def build_sources(folder: str, num_rows: int) -> dict[str, Any]:
    """Write the table in every format, and return {name of the variant: source}."""
    table, path = draw_table(num_rows), pathlib.Path(folder)
    lines = zip(*(values.tolist() for values in table.values()), strict=True)
    header = ",".join(table) + "\n"
    (path / "a.csv").write_text(header + "".join(",".join(map(str, row)) + "\n" for row in lines))
    with tf.io.TFRecordWriter(str(path / "a.tfrecord")) as writer:
        for row in zip(*table.values(), strict=True):
            writer.write(SPEC.serialize(dict(zip(table, row, strict=True))))
    parquet.write_table(pa.table(table), path / "a.parquet", row_group_size=-(-num_rows // 40))
    Drawn.pkg_dir_path, Drawn.table = path, table
    place: dict[str, Any] = {"data_dir": folder}
    csv_source = csv.Csv(files={"train": "a.csv"}, **place)
    dataset: dict[str, Any] = {"name": f"{Drawn.__module__}.Drawn", **place}
    return {
        "Csv": csv_source,
        "TfRecord": tfrecord.TfRecord(files={"train": "a.tfrecord"}, **place),
        "TfRecord, windows of a fifth": tfrecord.TfRecord(
            files={"train": "a.tfrecord"}, window=num_rows // 5, **place
        ),
        "Arrow": arrow.Arrow(files={"train": "a.parquet"}, **place),
        "Arrow, windows of a fifth": arrow.Arrow(
            files={"train": "a.parquet"}, window=num_rows // 5, **place
        ),
        "Tfds": tfds.Tfds(**dataset),
        "Tfds, windows of a fifth": tfds.Tfds(**dataset, window=num_rows // 5),
        "Tfds, parsed one by one": Parsed(**dataset),
        "Frames": frames.Frames(splits={"train": table}),
        "Subset of Csv": subset.Subset(source=csv_source, share=0.9),
        "Subset of Csv, chosen one by one": OneByOne(source=csv_source, share=0.9),
    }


def feed(source: Any, cache: bool = False) -> pipeline.Pipeline:
    """Return the pipeline of a run that reads the source."""
    return pipeline.Pipeline(source=source, spec=SPEC, batch_size=BATCH, cache=cache)


def measure_reading(data: pipeline.Pipeline) -> tuple[float, float]:
    """Return rows per second, and the processor time for a row in microseconds."""
    batches = iter(data.dataset("train", training=True, seed=1))
    for _ in range(20):  # Fill the shuffle buffer first.
        next(batches)
    before, started = os.times(), time.perf_counter()
    for _ in range(_BATCHES):
        next(batches)
    secs, after, count = time.perf_counter() - started, os.times(), _BATCHES * BATCH
    processor_secs = after.user + after.system - before.user - before.system
    return count / secs, 1e6 * processor_secs / count


def measure_state(data: pipeline.Pipeline, num_rows: int) -> tuple[float, float]:
    """Return the MB of the input's state in the second epoch, and the seconds of writing it."""
    with (
        tf.Graph().as_default(),
        tf1.Session() as session,
        tempfile.TemporaryDirectory() as folder,
    ):
        iterator = tf1.data.make_initializable_iterator(
            data.dataset("train", training=True, seed=1)
        )
        saver = tf1.train.Saver([tf.data.experimental.make_saveable_from_iterator(iterator)])
        following = iterator.get_next()[1]["label"]
        session.run([iterator.initializer, tf1.tables_initializer()])
        for _ in range(num_rows // BATCH + 1):
            session.run(following)
        started = time.perf_counter()
        saver.save(session, os.path.join(folder, "state"), write_meta_graph=False)
        secs = time.perf_counter() - started
        size = sum(os.path.getsize(entry.path) for entry in os.scandir(folder))
    return size / 1e6, secs


def time_all(measure: Callable[[Any], tuple], sides: Mapping[str, Any], rounds: int) -> dict:
    """Measure all variants in turns.

    Args:
      measure: returns the figures of a variant.
      sides: {name: variant}.
      rounds: the number of measurements of each variant.

    Returns:
      {name: the median of each figure}.
    """
    results = [{name: measure(side) for name, side in sides.items()} for _ in range(rounds)]
    return {name: np.median([result[name] for result in results], axis=0) for name in sides}


def main() -> None:
    """Measure all sources, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sources = build_sources(folder, args.rows)
        sides = {name: feed(source) for name, source in sources.items()}
        cached = {f"{name}, kept in memory": feed(sources[name], cache=True) for name in _CACHED}
        sides |= cached
        speeds = time_all(measure_reading, sides, args.rounds)
        lines = [[name, f"{speed:,.0f}", f"{us:.0f}"] for name, (speed, us) in speeds.items()]
        print(rows.markdown(["source", "rows a second", "us of the processor a row"], lines))
        states = {
            name: measure_state(sides[name], args.rows)
            for name in ("Csv", "TfRecord", *cached, *_NUMBERED)
        }
        lines = [[name, f"{size:.4f}", f"{secs:.2f}"] for name, (size, secs) in states.items()]
        print("\n" + rows.markdown(["state of the input", "MB", "s"], lines))


if __name__ == "__main__":
    main()
