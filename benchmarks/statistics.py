"""How long the statistics of a table take, beside pandas and the pass of a run's own statistics.

A table of numbers, texts and two labels, as a CSV and a Parquet file. `launch.data` describes all
columns: moments, quantiles, distinct and frequent values. pandas does so by `describe` and
`value_counts`. `fit_columns` is the pass of a new run, which learns means, deviations and
vocabularies of the same columns. All sides take turns in a round of one process; the table shows
the median of the wall time, its share of the pass on the CSV file, and the processor's time.

    python -m benchmarks.statistics                            # 200,000 x 27 and 2 million x 40
    python -m benchmarks.statistics --rows 200000 --rounds 5

With --distinct, one column of so many different texts is described; the peak of memory is shown.

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

# {rows: (numbers, texts)}
SIZES = {200_000: (13, 12), 2_000_000: (20, 18)}
_WORDS = (10, 100, 1000, 10_000, 100_000)
_CHUNK = 100_000


def write_table(folder: str, num_rows: int, num_numbers: int, num_texts: int) -> tuple[str, str]:
    """Write the table, and return the paths of CSV and Parquet."""
    paths = str(pathlib.Path(folder) / "a.csv"), str(pathlib.Path(folder) / "a.parquet")
    draw = np.random.default_rng(0)
    words = {size: np.array([f"word_{n}" for n in range(size)], object) for size in _WORDS}
    writers: list[object] = []
    for start in range(0, num_rows, _CHUNK):
        size = min(_CHUNK, num_rows - start)
        some = {
            f"number_{n}": draw.normal(size=size).astype(np.float32) for n in range(num_numbers)
        }
        for n in range(num_texts):
            known = words[_WORDS[n % len(_WORDS)]]
            some[f"text_{n}"] = known[(draw.random(size) ** 2 * len(known)).astype(int)]
        some |= {f"label_{n}": draw.integers(0, 2, size) for n in range(2)}
        part = pa.table(some)
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
    """Learn the statistics of a run, as before its first step."""
    numbers = [f"number_{n}" for n in range(num_numbers)]
    texts = [f"text_{n}" for n in range(num_texts)]
    fields = {**dict.fromkeys(numbers, "float32"), **dict.fromkeys(texts, "string")}
    kind = csv.Csv if path.endswith(".csv") else arrow.Arrow
    data = pipeline.Pipeline(
        source=kind(files={"train": path}),
        spec=spec.Spec(features=fields, labels={"label_0": "int64", "label_1": "int64"}),
    )
    learned = [features.Numeric(names=numbers), features.Categorical(names=texts)]
    with tempfile.TemporaryDirectory() as folder:
        batches = data.in_large_batches("train").one_pass("train")
        features.fit_columns(learned, batches, folder)


def measure_sides(sides: dict[str, Callable[[], None]], rounds: int) -> dict[str, tuple]:
    """Return {side: (median of the wall time, of the processor's time)} in seconds."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            gc.collect()
            before, started = os.times(), time.perf_counter()
            side()
            wall, after = time.perf_counter() - started, os.times()
            used = after.user + after.system - before.user - before.system
            taken[name].append((wall, used))
    return {
        name: tuple(map(statistics.median, zip(*own, strict=True))) for name, own in taken.items()
    }


def compare_sides(num_rows: int, rounds: int) -> None:
    """Print a table of all sides for one size."""
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
        measured = measure_sides(sides, rounds)
    base = measured["fit_columns, CSV"][0]
    print(f"\n{num_rows:,} rows x {num_numbers + num_texts + 2} columns")
    print(f"{'':<24}{'seconds':>9}{'share':>7}{'processor':>11}")
    for name, (wall, used) in measured.items():
        print(f"{name:<24}{wall:>9.2f}{wall / base:>7.2f}{used:>11.2f}")


def measure_distinct(count: int) -> None:
    """Print seconds and the peak of memory of a column of so many different texts."""
    column = columns.Text(columns.Limits.share(1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    for start in range(0, count, 1 << 17):
        numbers = np.arange(start, min(start + (1 << 17), count))
        # A tenth of the rows is one of 1,000 values.
        numbers[::10] = -(numbers[::10] % 1000)
        column.add(pa.array(numbers).cast(pa.string()))
    found = column.finish("text")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    taken = time.perf_counter() - started
    lost = found.texts.lost if found.texts is not None else 0
    print(f"{count:,} texts: {taken:.0f} s, {grown / 1024:,.0f} MB more")
    print(f"  {found.distinct:,} distinct of {count - count // 10 + 1000:,}; counts lack {lost:,}")
    print(f"  the most frequent: {found.list_frequent(3)}")


def main() -> None:
    """Measure the sizes that the arguments name."""
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
