"""What the benchmarks of balancing share: the methods, results that are kept, tables.

files = rows.methods(["cagrad", "famo"])                    # {name: gin file}; all of them for []
folder = rows.output("balancing")                           # the flag, or runs/balancing
result = rows.kept("runs/x/cagrad.json", measure)           # measured once
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
OUTPUT = flags.DEFINE_string("output", None, "Where results lie; runs/<benchmark> by default.")

_FOLDER = pathlib.Path(__file__).parent.parent / "gin_configs" / "balancing"
# The first two need weights for the tasks at hand, the others only look on.
_NO_METHODS = ("fixed", "scheduled", "monitored", "affinity")


def methods(names: Sequence[str] = ()) -> dict[str, str]:
    """{name: gin file}: the ones named, or every file of `gin_configs/balancing`, `equal` first.

    Raises:
      UserError: on a name without a file.
    """
    found = {path.stem: str(path) for path in sorted(_FOLDER.glob("*.gin"))}
    found = {name: found[name] for name in found if name not in _NO_METHODS}
    for name in names:
        checks.one_of("--methods", name, found)
    return {name: found[name] for name in names or sorted(found, key=lambda n: (n != "equal", n))}


def output(benchmark: str) -> str:
    """Return the folder of its results."""
    return OUTPUT.value or os.path.join("runs", benchmark)


def kept(path: str, measure: Callable[[], Any]) -> Any:
    """Return what `measure` gave, from a JSON file once it is there: a benchmark can go on."""
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        result = measure()
        atomic.write(path, json.dumps(result, indent=1))
    with open(path) as file:
        return json.load(file)


def data_dir(name: str) -> str:
    """Return the folder of a data set: in MTL_DATA_DIR, or in ../shared/data.

    Raises:
      UserError: if there is none.
    """
    root = os.environ.get("MTL_DATA_DIR", str(_FOLDER.parents[2] / "shared" / "data"))
    folder = os.path.join(root, name)
    fix = "Set the environment variable MTL_DATA_DIR to the folder that holds it."
    checks.require(os.path.isdir(folder), f"the data set {name}", "be a folder", folder, fix)
    return folder


def compute_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the AUC of scores [N] for labels of 0 and 1 [N]; equal scores count half."""
    order = np.argsort(scores, kind="stable")
    _, first, counts = np.unique(scores[order], return_index=True, return_counts=True)
    ranks = np.repeat(first + (counts + 1) / 2, counts)
    positive = labels[order] == 1
    above = ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return float(above / (positive.sum() * (~positive).sum()))


def take_turns(
    sides: Mapping[str, Callable[[int], float]],
    rounds: int,
    steps: int | Callable[[str], int],
    warm_up: int = 20,
) -> dict[str, list[float]]:
    """Time sides in turns, so that what else the machine does strikes all of them alike.

    Args:
      sides: {name: so many steps -> seconds a step}.
      rounds: how often each side is timed.
      steps: of a round, of all sides or by the name of one.
      warm_up: steps of each side before the first round.

    Returns:
      {name: seconds a step, one for each round}.
    """
    for side in sides.values():
        side(warm_up)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            times[name].append(side(steps(name) if callable(steps) else steps))
    return times


def describe_difference(found: Sequence[float], others: Sequence[float], digits: int = 4) -> str:
    """Return the mean of paired differences with its standard error, `+0.0123 ± 0.0004`."""
    apart = [one - other for one, other in zip(found, others, strict=True)]
    error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
    return f"{statistics.mean(apart):+.{digits}f} ± {error:.{digits}f}"


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table, with its columns aligned in the text as well."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)) + " |"
        for cells in (header, rule, *lines)
    )


def run(main: Callable[[], None]) -> None:
    """Run a benchmark's `main` once its flags are parsed; mistakes are one line, exit code 2."""

    def guarded(_) -> None:
        logging.set_verbosity(logging.ERROR)
        guard(main)

    app.run(guarded)


def guard(main: Callable[[], None]) -> None:
    """Run a benchmark's `main`; mistakes are one line, exit code 2."""
    try:
        main()
    except checks.UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
