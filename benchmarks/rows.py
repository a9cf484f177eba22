"""Helps benchmarks: balancing methods, stored results, data folders, timing and tables.

files = rows.methods(["cagrad", "famo"])                    # {name: gin file}; all methods for []
folder = rows.output("balancing")                           # the flag, or runs/balancing
result = rows.load_or_measure("runs/cagrad.json", measure)  # measured unless the file exists
print(rows.markdown(["method", "AUC"], [["cagrad", "0.902"]]))
"""

import json
import os
import pathlib
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import app, flags, logging

from mtl import checks
from mtl.files import atomic

METHODS = flags.DEFINE_list("methods", [], "Files of gin_configs/balancing; all by default.")
OUTPUT = flags.DEFINE_string("output", None, "Folder of results; runs/<benchmark> by default.")

_FOLDER = pathlib.Path(__file__).parent.parent / "gin_configs" / "balancing"
# "fixed" and "scheduled" need a weight for each task. "monitored" and "affinity" do not change the
# balancing.
_NO_METHODS = ("fixed", "scheduled", "monitored", "affinity")


def methods(names: Sequence[str] = ()) -> dict[str, str]:
    """Return {name: gin file} of some methods, or of all in `gin_configs/balancing`, `equal` first.

    Raises:
      UserError: a name has no file.
    """
    paths = {path.stem: str(path) for path in sorted(_FOLDER.glob("*.gin"))}
    paths = {name: paths[name] for name in paths if name not in _NO_METHODS}
    for name in names:
        checks.one_of("--methods", name, paths)
    return {name: paths[name] for name in names or sorted(paths, key=lambda n: (n != "equal", n))}


def output(benchmark: str) -> str:
    """Return the folder of the results of a benchmark."""
    return OUTPUT.value or os.path.join("runs", benchmark)


def load_or_measure(path: str, measure: Callable[[], Any]) -> Any:
    """Return the result of `measure`, and store it in a JSON file.

    If the file exists, the stored result is returned, so a stopped benchmark can continue.
    """
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        result = measure()
        atomic.write(path, json.dumps(result, indent=1))
    with open(path) as file:
        return json.load(file)


def data_dir(name: str) -> str:
    """Return the folder of a data set, below MTL_DATA_DIR or below ../shared/data.

    Raises:
      UserError: the folder does not exist.
    """
    root = os.environ.get("MTL_DATA_DIR", str(_FOLDER.parents[2] / "shared" / "data"))
    folder = os.path.join(root, name)
    fix = "Set the environment variable MTL_DATA_DIR to the folder of all data sets."
    checks.require(os.path.isdir(folder), f"the data set {name}", "be a folder", folder, fix)
    return folder


def compute_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the AUC of scores [N] for labels [N] of 0 and 1; pairs of equal scores count half."""
    order = np.argsort(scores, kind="stable")
    _, first, counts = np.unique(scores[order], return_index=True, return_counts=True)
    ranks = np.repeat(first + (counts + 1) / 2, counts)
    positive = labels[order] == 1
    pairs_above = ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return float(pairs_above / (positive.sum() * (~positive).sum()))


def take_turns(
    sides: Mapping[str, Callable[[int], float]],
    rounds: int,
    steps: int | Callable[[str], int],
    warm_up: int = 20,
) -> dict[str, list[float]]:
    """Time variants in turns, so that other work of the machine slows all variants equally.

    Args:
      sides: {name: a function from a number of steps to the seconds of a step}.
      rounds: the number of timings of each variant.
      steps: the steps of a timing, or a function from the name of a variant to its steps.
      warm_up: the steps of each variant before the first round.

    Returns:
      {name: seconds of a step in each round}.
    """
    for side in sides.values():
        side(warm_up)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            times[name].append(side(steps(name) if callable(steps) else steps))
    return times


def describe_difference(values: Sequence[float], bases: Sequence[float], digits: int = 4) -> str:
    """Return the mean of paired differences with its standard error, as `+0.0123 ± 0.0004`."""
    differences = [value - base for value, base in zip(values, bases, strict=True)]
    count = len(differences)
    error = statistics.stdev(differences) / count**0.5 if count > 1 else float("nan")
    return f"{statistics.mean(differences):+.{digits}f} ± {error:.{digits}f}"


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)) + " |"
        for cells in (header, rule, *lines)
    )


def run(main: Callable[[], None]) -> None:
    """Parse the flags and run a benchmark; a user error prints a line and exits with code 2."""

    def guarded(_) -> None:
        logging.set_verbosity(logging.ERROR)
        guard(main)

    app.run(guarded)


def guard(main: Callable[[], None]) -> None:
    """Run a benchmark; a user error prints a line and exits with code 2."""
    try:
        main()
    except checks.UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
