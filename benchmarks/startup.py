"""Measures the seconds from a run's start to its first step, and from its last step to its end.

The benchmark starts three programs in turns, each in a new process: `import tensorflow` alone, a
run on the digits of the package, and a run that `launch.new` drafts for a table of 200,000 rows and
27 columns. The printed table shows medians over the rounds, and ranges; it also shows the seconds
to the first step in multiples of the import before and after the run. At its end, a run
evaluates, exports, and checks the exports. The table also shows the duration of this end in
multiples of the evaluation. --trees compares several checkouts of the repository.

    python -m benchmarks.startup --rounds 3 --trees . ../before
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np

from benchmarks import rows

_DIGITS = "gin_configs/experiments/digits_shared_bottom.gin"


def write_table(path: pathlib.Path, num_rows: int) -> None:
    """Write a table of 9 numbers, 16 categories of 3 to 2,000 values, and two labels."""
    draw = np.random.default_rng(0)
    sizes = [3, 5, 8, 12, 20, 40, 80, 100, 200, 400, 800, 1000, 2000, 5, 7, 9]
    columns = {f"number_{n}": draw.normal(size=num_rows).round(3).astype(str) for n in range(9)}
    for n, size in enumerate(sizes):
        columns[f"category_{n}"] = np.char.add("c", draw.integers(0, size, num_rows).astype(str))
    columns["bought"] = np.where(draw.random(num_rows) < 0.3, "yes", "no")
    columns["spent"] = draw.gamma(2.0, size=num_rows).round(2).astype(str)
    lines = map(",".join, zip(*columns.values(), strict=True))
    path.write_text("\n".join([",".join(columns), *lines]) + "\n")


def time_import() -> float:
    """Return the seconds of a Python process that only imports TensorFlow."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import tensorflow"], stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def time_lines(tree: str, command: Sequence[str], folder: str, steps: int) -> dict[str, float]:
    """Run some steps, with a checkpoint at each step, and note when each line is logged.

    Args:
      tree: the folder of the checkout.
      command: flags of `launch.train`.
      folder: the working directory.
      steps: the steps of the run.

    Returns:
      {the first three words of a line: seconds from the start}, and the "end" of the process.
    """
    module = [sys.executable, "-m", "launch.train", *command]
    bindings = [f"Run.train_steps = {steps}", "Run.checkpoint_steps = 1"]
    line_secs: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as model_dir:
        flags = [text for binding in bindings for text in ("--gin_param", binding)]
        start = time.perf_counter()
        process = subprocess.Popen(
            [*module, *flags, "--model_dir", os.path.join(model_dir, "run")],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.path.abspath(tree)},
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for line in process.stderr or ():
            line_secs[" ".join(line.split()[:3])] = time.perf_counter() - start
        if process.wait():
            raise SystemExit(f"{' '.join(module)} failed in {folder}.")
        return {**line_secs, "end": time.perf_counter() - start}


def time_run(name: str, tree: str, command: Sequence[str], folder: str) -> dict[str, float]:
    """Time a run: seconds to the first step, seconds of its end, and their multiples."""
    # Import before and after the run, because the speed of a shared machine changes.
    before = time_import()
    first = time_lines(tree, command, folder, 1)["step 1 of"]
    imports = statistics.fmean([before, time_import()])
    # The first export builds graphs. In a run of two steps, the first export follows the first
    # step.
    line_secs = time_lines(tree, command, folder, 2)
    last_step = line_secs["step 2 of"]
    end, evaluation = (line_secs[event] - last_step for event in ("end", "step 2 evaluated:"))
    return {
        f"{name}: import tensorflow": imports,
        f"{name}: first step": first,
        f"{name}: first step, in imports": first / imports,
        f"{name}: end": end,
        f"{name}: end, in evaluations": end / evaluation,
    }


def measure(tree: str, table: str) -> dict[str, float]:
    """Return {row of the table: seconds} of a round."""
    digits = ["--gin_file", _DIGITS]
    return {
        **time_run("digits", tree, digits, tree),
        **time_run("table", tree, ["--gin_file", "train.gin"], table),
    }


def main() -> None:
    """Measure all programs in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--trees", nargs="+", default=["."], help="checkouts to compare")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_table(pathlib.Path(folder) / "train.csv", options.rows)
        draft = ["--data", "train.csv", "--task", "bought", "--task", "spent"]
        environ = {**os.environ, "PYTHONPATH": os.getcwd()}
        new = [sys.executable, "-m", "launch.new", *draft]
        subprocess.run(new, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
        results: dict[str, list[dict[str, float]]] = {tree: [] for tree in options.trees}
        for _ in range(options.rounds):
            for tree in options.trees:
                results[tree].append(measure(tree, folder))
    lines = [
        [name, *(_tell([result[name] for result in results[tree]]) for tree in options.trees)]
        for name in results[options.trees[0]][0]
    ]
    print(rows.markdown(["", *options.trees], lines))


def _tell(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
