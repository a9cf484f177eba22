"""Compares the time of a table's statistics with pandas and with the first pass of a run.

A table of numbers, texts and two labels is stored as a CSV and a Parquet file. `launch.data`
describes all columns: moments, quantiles, distinct and frequent values. pandas describes the
columns by `describe` and `value_counts`. `fit_columns` is the first pass of a new run, which learns
means, deviations and vocabularies of the same columns. All programs are timed in turns, in one
process. The printed table shows medians of the wall time, the ratio to `fit_columns` on the CSV
file, and the processor time.

    python -m benchmarks.statistics                            # 200,000 x 27 and 2 million x 40
    python -m benchmarks.statistics --rows 200000 --rounds 5

--distinct describes a single column with that number of different texts, and prints the peak
memory.

    python -m benchmarks.statistics --distinct 100000000
"""

import argparse
import gc
import os
import pathlib
import resource
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from mtl import features, spec
from mtl.data import arrow, csv, pipeline
from mtl.tools.statistics import columns, gathering, tables

# {rows: (columns of numbers, columns of texts)}
SIZES = {200_000: (13, 12), 2_000_000: (20, 18)}
_WORDS = (10, 100, 1000, 10_000, 100_000)
_CHUNK = 100_000


def write_table(folder: str, num_rows: int, num_numbers: int, num_texts: int) -> tuple[str, str]:
    """Write the table, and return the paths of the CSV and the Parquet file."""
    paths = str(pathlib.Path(folder) / "a.csv"), str(pathlib.Path(folder) / "a.parquet")
    draw = np.random.default_rng(0)
    words = {size: np.array([f"word_{n}" for n in range(size)], object) for size in _WORDS}
    writers: list[object] = []
    for start in range(0, num_rows, _CHUNK):
        size = min(_CHUNK, num_rows - start)
        chunk = {
            f"number_{n}": draw.normal(size=size).astype(np.float32) for n in range(num_numbers)
        }
        for n in range(num_texts):
            vocabulary = words[_WORDS[n % len(_WORDS)]]
            ids = (draw.random(size) ** 2 * len(vocabulary)).astype(int)
            chunk[f"text_{n}"] = vocabulary[ids]
        chunk |= {f"label_{n}": draw.integers(0, 2, size) for n in range(2)}
        part = pa.table(chunk)
        if not writers:
            plain = arrow_csv.WriteOptions(quoting_style="none")
            writers = [
                arrow_csv.CSVWriter(paths[0], part.schema, write_options=plain),
                parquet.ParquetWriter(paths[1], part.schema),
            ]
        for writer in writers:
            writer.write_table(part)
    for writer in writers:
        writer.close()
    return paths


def describe_files(path: str) -> None:
    """Describe a file as `launch.data` does."""
    dataset = gathering.describe(tables.open_table("the file", [path]))
    for column in dataset.columns.values():
        column.list_frequent(50)
        assert column.distinct
        if column.numbers is not None:
            column.numbers.find_quantiles([0.0, 0.25, 0.5, 0.75, 1.0])


def describe_by_pandas(path: str) -> None:
    """Describe a file by pandas."""
    frame = pd.read_csv(path) if path.endswith(".csv") else pd.read_parquet(path)
    frame.describe()
    for name in frame:
        if not pd.api.types.is_float_dtype(frame[name]):
            frame[name].value_counts()


def fit_columns(path: str, num_numbers: int, num_texts: int) -> None:
    """Learn the statistics of the columns, as a run does before its first step."""
    numbers = [f"number_{n}" for n in range(num_numbers)]
    texts = [f"text_{n}" for n in range(num_texts)]
    fields = {**dict.fromkeys(numbers, "float32"), **dict.fromkeys(texts, "string")}
    kind = csv.Csv if path.endswith(".csv") else arrow.Arrow
    data = pipeline.Pipeline(
        source=kind(files={"train": path}),
        spec=spec.Spec(features=fields, labels={"label_0": "int64", "label_1": "int64"}),
    )
    model_columns = [features.Numeric(names=numbers), features.Categorical(names=texts)]
    with tempfile.TemporaryDirectory() as folder:
        batches = data.in_large_batches("train").one_pass("train")
        features.fit_columns(model_columns, batches, folder)


def measure_sides(sides: dict[str, Callable[[], None]], rounds: int) -> dict[str, tuple]:
    """Return {program: (median wall time, median processor time)} in seconds."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            gc.collect()
            before, started = os.times(), time.perf_counter()
            side()
            wall, after = time.perf_counter() - started, os.times()
            processor = after.user + after.system - before.user - before.system
            times[name].append((wall, processor))
    return {
        name: tuple(map(statistics.median, zip(*pairs, strict=True)))
        for name, pairs in times.items()
    }


def compare_sides(num_rows: int, rounds: int) -> None:
    """Print the table of all programs for a number of rows."""
    num_numbers, num_texts = SIZES[num_rows]
    with tempfile.TemporaryDirectory() as folder:
        paths = write_table(folder, num_rows, num_numbers, num_texts)
        sides: dict[str, Callable[[], None]] = {}
        for path in paths:
            kind = "CSV" if path.endswith(".csv") else "Parquet"
            sides[f"launch.data, {kind}"] = lambda path=path: describe_files(path)
            sides[f"pandas, {kind}"] = lambda path=path: describe_by_pandas(path)
            sides[f"fit_columns, {kind}"] = lambda path=path: fit_columns(
                path, num_numbers, num_texts
            )
        times = measure_sides(sides, rounds)
    base = times["fit_columns, CSV"][0]
    print(f"\n{num_rows:,} rows x {num_numbers + num_texts + 2} columns")
    print(f"{'':<24}{'seconds':>9}{'share':>7}{'processor':>11}")
    for name, (wall, processor) in times.items():
        print(f"{name:<24}{wall:>9.2f}{wall / base:>7.2f}{processor:>11.2f}")


def measure_distinct(count: int) -> None:
    """Print seconds and peak memory of a column with `count` different texts."""
    column = columns.Text(columns.Limits.share(1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    for start in range(0, count, 1 << 17):
        numbers = np.arange(start, min(start + (1 << 17), count))
        # A tenth of the rows has one of 1,000 frequent values.
        numbers[::10] = -(numbers[::10] % 1000)
        column.add(pa.array(numbers).cast(pa.string()))
    summary = column.finish("text")
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    secs = time.perf_counter() - started
    error = summary.texts.lost if summary.texts is not None else 0
    distinct = f"{summary.distinct:,} distinct of {count - count // 10 + 1000:,}"
    print(f"{count:,} texts: {secs:.0f} s, {growth / 1024:,.0f} MB more")
    print(f"  {distinct}; each count of a value is too low by at most {error:,}")
    print(f"  the most frequent: {summary.list_frequent(3)}")


def main() -> None:
    """Run the comparison for each number of rows in the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, choices=list(SIZES), action="append", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--distinct", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.distinct:
        measure_distinct(arguments.distinct)
        return
    for num_rows in arguments.rows or SIZES:
        compare_sides(num_rows, arguments.rounds)


if __name__ == "__main__":
    main()
