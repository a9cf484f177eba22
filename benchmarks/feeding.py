"""Measures the time of a row from memory into a training step, beside other readers.

A table of 300,000 rows has 13 numbers, 10 texts, two lists of texts and two labels. Each side
shuffles the rows, and a loop of steps takes the batches and does nothing else. `mtl` reads in three
ways: a CSV file line by line, the decoded rows of this file in memory, and a Parquet file in
windows of a fifth of its rows, in row groups of a tenth. The last two give ids in place of texts;
all other sides give texts, which a step would still have to look up. tf.data, grain and pandas hold
the rows in memory; the batches of grain and pandas reach the loop by `Dataset.from_generator`. All
sides take turns in each round. A ratio is the time divided by the time of the first side in the
same round.

    python -m benchmarks.feeding --envs peers --before ../before

--before is a checkout of an earlier revision of this repository, whose `Csv` becomes the first
side. --envs is the folder of grain's environment, which the command creates; without --envs, grain
is left out.
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from benchmarks import clients_speed, rows

ROOT = clients_speed.ROOT
NUMBERS = [f"number_{index}" for index in range(13)]
TEXTS = [f"text_{index}" for index in range(10)]
LISTS = [f"list_{index}" for index in range(2)]
LABELS = ["first", "second"]
FEATURES = {
    **dict.fromkeys(NUMBERS, ("float32", ())),
    **dict.fromkeys(TEXTS, ("string", ())),
    **dict.fromkeys(LISTS, ("string", (None,))),
}
_OTHERS = ("tf.data", "pandas", "grain")
_GRAIN = ((clients_speed.TENSORFLOW, "grain", "pyarrow"),)


def write_table(folder: str, count: int) -> None:
    """Write train.csv and train.parquet with the same random rows."""
    draw = np.random.default_rng(0)
    words = np.array([f"category_{index}" for index in range(1000)], object)
    table = {name: draw.normal(size=count).astype(np.float32).round(3) for name in NUMBERS}
    table |= {name: words[draw.integers(0, 1000, count)] for name in TEXTS}
    lists = {}
    for name in LISTS:
        lengths = draw.integers(1, 6, count)
        flat = words[draw.integers(0, 1000, lengths.sum())]
        lists[name] = np.split(flat, np.cumsum(lengths)[:-1])
    labels = {name: draw.integers(0, 2, count) for name in LABELS}
    path = pathlib.Path(folder)
    everything = pa.table({**table, **{n: pa.array(v) for n, v in lists.items()}, **labels})
    parquet.write_table(everything, path / "train.parquet", row_group_size=-(-count // 10))
    joined = {name: ["|".join(values) for values in lists[name]] for name in LISTS}
    arrow_csv.write_csv(pa.table({**table, **joined, **labels}), path / "train.csv")


def list_sides(options: argparse.Namespace) -> dict[str, tuple[str, str, str]]:
    """Return {name of a side: (its Python, its checkout, the name in `run_feeding.SIDES`)}."""
    here = str(ROOT)
    sides = {}
    if options.before:
        sides["Csv, before"] = (sys.executable, os.path.abspath(options.before), "csv")
    sides |= {
        "Csv": (sys.executable, here, "csv"),
        "rows in memory": (sys.executable, here, "memory"),
        "windows of Parquet": (sys.executable, here, "windows"),
        "tf.data": (sys.executable, here, "tf.data"),
        "pandas": (sys.executable, here, "pandas"),
    }
    if options.envs:
        folder = pathlib.Path(options.envs).resolve() / "grain"
        sides["grain"] = (clients_speed.make_environment(folder, _GRAIN), here, "grain")
    return sides


def measure_all(
    sides: Mapping[str, tuple[str, str, str]], case: dict, options: argparse.Namespace, folder: str
) -> dict[tuple[str, int], list[float]]:
    """Return {(side, batch size): microseconds of a row in each round}."""
    results: dict[tuple[str, int], list[float]] = {}
    with contextlib.ExitStack() as stack:
        processes = {}
        for python, tree, _ in sides.values():
            if (python, tree) not in processes:
                side = clients_speed.Side(script="run_feeding.py", reads="")
                log = pathlib.Path(folder, f"{len(processes)}.log")
                process = clients_speed.Process(python, side, log, [tree])
                stack.callback(process.close)
                processes[python, tree] = process
        for batch_size in options.batch_sizes:
            for turn in range(1, options.rounds + 1):
                for name, (python, tree, kind) in sides.items():
                    # The other libraries take much longer for a row.
                    count = options.rows_per_round // (6 if kind in _OTHERS else 1)
                    steps = max(10, count // batch_size)
                    answer = processes[python, tree].train(
                        {**case, "side": kind, "batch_size": batch_size, "steps": steps}
                    )
                    if "why" in answer:
                        raise SystemExit(f"{name}, batches of {batch_size}: {answer['why']}")
                    results.setdefault((name, batch_size), []).append(answer["us"])
                    place = f"batch {batch_size}, round {turn} of {options.rounds}"
                    print(f"{place}: {name} {answer['us']:.2f} us", file=sys.stderr, flush=True)
    return results


def main() -> None:
    """Print a table with the time of a row at each batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", help="the folder of grain's environment")
    parser.add_argument("--before", help="a checkout of an earlier revision")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rows_per_round", type=int, default=200_000)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[128, 512, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_table(folder, options.rows)
        case = {
            "folder": folder,
            "features": FEATURES,
            "labels": dict.fromkeys(LABELS, ("int64", ())),
            "window": options.rows // 5,
        }
        sides = list_sides(options)
        results = measure_all(sides, case, options, folder)
    first = next(iter(sides))
    lines = []
    for name in sides:
        line = [name]
        for batch_size in options.batch_sizes:
            times, firsts = results[name, batch_size], results[first, batch_size]
            ratio = statistics.median(a / b for a, b in zip(times, firsts, strict=True))
            line.append(f"{statistics.median(times):.2f} ({ratio:.2f})")
        lines.append(line)
    print(f"Microseconds of a row, and the ratio to {first}, medians of {options.rounds} rounds:\n")
    print(rows.markdown(["side", *(f"batch {size}" for size in options.batch_sizes)], lines))


if __name__ == "__main__":
    main()
