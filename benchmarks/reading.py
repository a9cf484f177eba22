"""How fast sources feed training, and what a checkpoint of their state takes.

One table of 8 numbers, 16 texts and a label, as a CSV, a TFRecord and a Parquet file, a dataset of
tensorflow-datasets and rows in memory. Each side reads it as training does, shuffled and in batches
of 512. Beside them stand two ways that tf.data offers: examples as `as_dataset` gives them, parsed
one by one, and rows that are chosen one by one, as `Dataset.filter` does. All sides take turns in a
round; the table shows the medians of rows a second and of the processor's time for a row. The
second table shows the state of the input that a checkpoint holds, and the seconds to write it.

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
# Sources that `Pipeline.cache` also decodes once into memory.
_KEPT = ("Csv", "TfRecord")
_ARROW = ("Arrow", "Arrow, windows of a fifth")


def draw_table(num_rows: int) -> dict[str, np.ndarray]:
    """Return {field: [N]}."""
    draw = np.random.default_rng(0)
    table = {name: draw.normal(size=num_rows).astype(np.float32).round(3) for name in NUMBERS}
    words = np.array([f"category_{index}" for index in range(1000)], object)
    table |= {name: words[draw.integers(0, 1000, num_rows)] for name in TEXTS}
    return {**table, "label": draw.integers(0, 2, num_rows)}


class Drawn(tensorflow_datasets.core.GeneratorBasedBuilder):
    """The table as a dataset of tensorflow-datasets."""

    VERSION = tensorflow_datasets.core.Version("1.0.0")
    table: Mapping[str, np.ndarray] = {}

    def _info(self):
        features = tensorflow_datasets.features
        kinds = {name: features.Scalar(np.float32) for name in NUMBERS}
        kinds |= {name: features.Text() for name in TEXTS}
        described = features.FeaturesDict({**kinds, "label": features.Scalar(np.int64)})
        return self.dataset_info_from_configs(features=described, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for index, values in enumerate(zip(*self.table.values(), strict=True)):
            yield index, dict(zip(self.table, values, strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneByOne(subset.Subset):
    """Chooses the rows of a split in a function of TensorFlow that is called for each row."""

    def records(self, split: str) -> tf.data.Dataset:
        numbered = self.source.records(self.split).enumerate()
        return numbered.filter(lambda number, _: self._takes(split, number)).map(lambda _, r: r)


class Parsed(tfds.Tfds):
    """Reads examples as tensorflow-datasets hands them out."""

    _stored: Any = {}


def build_sources(folder: str, num_rows: int) -> dict[str, Any]:
    """Write the table in every format, and return {side: source}."""
    table, path = draw_table(num_rows), pathlib.Path(folder)
    lines = zip(*(values.tolist() for values in table.values()), strict=True)
    header = ",".join(table) + "\n"
    (path / "a.csv").write_text(header + "".join(",".join(map(str, row)) + "\n" for row in lines))
    with tf.io.TFRecordWriter(str(path / "a.tfrecord")) as writer:
        for row in zip(*table.values(), strict=True):
            writer.write(SPEC.serialize(dict(zip(table, row, strict=True))))
    parquet.write_table(pa.table(table), path / "a.parquet", row_group_size=-(-num_rows // 40))
    Drawn.pkg_dir_path, Drawn.table = path, table
    of_file: dict[str, Any] = {"data_dir": folder}
    lines_of = csv.Csv(files={"train": "a.csv"}, **of_file)
    prepared: dict[str, Any] = {"name": f"{Drawn.__module__}.Drawn", **of_file}
    return {
        "Csv": lines_of,
        "TfRecord": tfrecord.TfRecord(files={"train": "a.tfrecord"}, **of_file),
        "Arrow": arrow.Arrow(files={"train": "a.parquet"}, **of_file),
        "Arrow, windows of a fifth": arrow.Arrow(
            files={"train": "a.parquet"}, window=num_rows // 5, **of_file
        ),
        "Tfds": tfds.Tfds(**prepared),
        "Tfds, parsed one by one": Parsed(**prepared),
        "Frames": frames.Frames(splits={"train": table}),
        "Subset of Csv": subset.Subset(source=lines_of, share=0.9),
        "Subset of Csv, chosen one by one": OneByOne(source=lines_of, share=0.9),
    }


def feed(source: Any, cache: bool = False) -> pipeline.Pipeline:
    """Return the data as a run reads it."""
    return pipeline.Pipeline(source=source, spec=SPEC, batch_size=BATCH, cache=cache)


def measure_reading(data: pipeline.Pipeline) -> tuple[float, float]:
    """Return rows a second, and the microseconds of the processor for a row."""
    batches = iter(data.dataset("train", training=True, seed=1))
    for _ in range(20):  # The buffer is filled.
        next(batches)
    before, started = os.times(), time.perf_counter()
    for _ in range(_BATCHES):
        next(batches)
    took, after, count = time.perf_counter() - started, os.times(), _BATCHES * BATCH
    used = after.user + after.system - before.user - before.system
    return count / took, 1e6 * used / count


def measure_state(data: pipeline.Pipeline, num_rows: int) -> tuple[float, float]:
    """Return the MB of the input's state in the second pass, and the seconds to write it."""
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
        took = time.perf_counter() - started
        size = sum(os.path.getsize(entry.path) for entry in os.scandir(folder))
    return size / 1e6, took


def time_all(measure: Callable[[Any], tuple], sides: Mapping[str, Any], rounds: int) -> dict:
    """Return {side: the medians of what it measures}; the sides take turns."""
    found = [{name: measure(side) for name, side in sides.items()} for _ in range(rounds)]
    return {name: np.median([each[name] for each in found], axis=0) for name in sides}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sources = build_sources(folder, args.rows)
        sides = {name: feed(source) for name, source in sources.items()}
        kept = {f"{name}, kept in memory": feed(sources[name], cache=True) for name in _KEPT}
        sides |= kept
        read = time_all(measure_reading, sides, args.rounds)
        lines = [[name, f"{speed:,.0f}", f"{used:.0f}"] for name, (speed, used) in read.items()]
        print(rows.markdown(["source", "rows a second", "us of the processor a row"], lines))
        named = {name: measure_state(sides[name], args.rows) for name in ("Csv", *kept, *_ARROW)}
        lines = [[name, f"{size:.4f}", f"{took:.2f}"] for name, (size, took) in named.items()]
        print("\n" + rows.markdown(["state of the input", "MB", "s"], lines))


if __name__ == "__main__":
    main()
