"""Sends tables of two sizes through statistics, a draft, training and scoring, and compares memory.

    python -m benchmarks.large_table --rows 5000000,50000000

For each size, a table of Parquet files is drawn and written: six numbers, and categories with 10,
1,000, 100,000 and 1,000,000 values. `launch.data` describes it, `launch.new` drafts a gin file for
two tasks, `launch.train` reads each row once, and `launch.predict` scores all rows into Parquet
files. Each command is a process of its own. A line for each command has its wall time, the time of
the processors, and the most memory that it took. A table of 50 million rows takes 3 GB on disk.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from absl import flags
from pyarrow import parquet

from benchmarks import rows

_ROWS = flags.DEFINE_list("rows", ["500000", "5000000"], "The numbers of rows of the tables.")
_BATCH = flags.DEFINE_integer("rows_per_batch", 4096, "The number of rows of a batch.", 1)
_WINDOW = flags.DEFINE_integer(
    "window",
    500_000,
    "The setting Arrow.window: the number of rows that are shuffled at a time.",
    1,
)

_FILES = 8
_GROUP = 65_536
_TEST_ROWS = 50_000
_CATEGORIES = {"device": 10, "shop": 1000, "article": 100_000, "user": 1_000_000}
_NUMBERS = 6


def draw_rows(count: int, seed: int) -> pa.Table:
    """Draw rows whose labels depend on the numbers and the categories."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(count, _NUMBERS)).astype(np.float32)
    # Squared uniform numbers make small ids frequent, as in logs.
    ids = {
        name: (size * rng.random(count) ** 2).astype(np.int64) for name, size in _CATEGORIES.items()
    }
    odds = numbers[:, 0] - numbers[:, 1] + np.sin(ids["shop"]) + np.cos(ids["article"])
    columns = {f"x{index}": pa.array(numbers[:, index]) for index in range(_NUMBERS)}
    for name, values in ids.items():
        columns[name] = pc.binary_join_element_wise(name, pa.array(values).cast(pa.string()), " ")
    columns["clicked"] = pa.array((odds + rng.logistic(size=count) > 1).astype(np.int64))
    columns["amount"] = pa.array((odds + rng.normal(size=count)).astype(np.float32))
    return pa.table(columns)


def write_files(folder: pathlib.Path, count: int) -> None:
    """Write a table of training rows to several files, and a table of test rows, group by group."""
    for index in range(_FILES):
        left, group = count // _FILES, 0
        with parquet.ParquetWriter(folder / f"train-{index}.parquet", _schema()) as writer:
            while left > 0:
                writer.write_table(draw_rows(min(left, _GROUP), seed=10_000 * index + group))
                left, group = left - _GROUP, group + 1
    parquet.write_table(draw_rows(_TEST_ROWS, seed=10**9), folder / "test.parquet")


def _schema() -> pa.Schema:
    return draw_rows(1, seed=0).schema


def run(name: str, folder: pathlib.Path, count: int, *args: str) -> str:
    """Run a command in a folder, print a line with its cost, and return what it printed."""
    environ = {**os.environ, "PYTHONPATH": os.getcwd(), "TF_CPP_MIN_LOG_LEVEL": "2"}
    with open(folder / f"{name}.log", "w+") as log:
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", f"launch.{name}", *args], cwd=folder, env=environ, stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        log.seek(0)
        printed = log.read()
    if status:
        raise SystemExit(f"Error: launch.{name} ended with {status}:\n{printed[-2000:]}")
    cpu, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20
    speed = count / wall
    print(
        f"{count:>11,}  {name:<8}{wall:>9.0f}{cpu:>9.0f}{speed:>11,.0f}{memory:>8.2f}", flush=True
    )
    return printed


def measure(count: int, folder: pathlib.Path) -> None:
    """Print the lines of a table with `count` rows."""
    write_files(folder, count)
    files = "train-*.parquet"
    run("data", folder, count, files, "--output", "page.html")
    tasks = ("--task", "clicked", "--task", "amount")
    run("new", folder, count, "--data", files, "--test", "test.parquet", "--out", "a.gin", *tasks)
    steps = count // _BATCH.value
    settings = {
        "Pipeline.batch_size": _BATCH.value,
        "Arrow.window": _WINDOW.value,
        "Run.train_steps": steps,
        "Run.checkpoint_steps": steps,
    }
    params = [f"--gin_param={name} = {value}" for name, value in settings.items()]
    trained = run("train", folder, count, "--gin_file", "a.gin", "--model_dir", "run", *params)
    auc = re.findall(r"auc +(\d\.\d+)", trained)
    run(
        "predict", folder, count, "--model_dir", "run", "--input", files, "--output", "scored/",
        "--output_format", "parquet", "--batch_size", str(_BATCH.value),
    )  # fmt: skip
    scored = sum(
        parquet.read_metadata(path).num_rows for path in (folder / "scored").glob("*.parquet")
    )
    print(f"{count:>11,}  AUC of {auc[-1]} on {_TEST_ROWS:,} test rows, {scored:,} rows are scored")


def main() -> None:
    """Print a table."""
    print("       rows  command   wall, s   CPU, s     rows/s      GB")
    for text in _ROWS.value:
        with tempfile.TemporaryDirectory() as folder:
            measure(int(text), pathlib.Path(folder))


if __name__ == "__main__":
    rows.run(main)
