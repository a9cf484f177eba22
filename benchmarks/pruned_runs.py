"""Runs of gin files, pruned while they train: a convnet, rows of tables, and what is exported.

    python -m benchmarks.pruned_runs --data digits --seeds 3
    python -m benchmarks.pruned_runs --data adult --seeds 3
    python -m benchmarks.pruned_runs --data census_income --seeds 3
    python -m benchmarks.pruned_runs --exports

Of the digits all kernels of the network are cut, those of convolutions, of dense layers and of
towers, and of the other two the rows of all tables. The table
shows metrics of the best checkpoint. --exports trains LeNet-300-100 with single weights or whole
units cut, and prints bytes and latency in every format; ONNX needs `pip install '.[onnx]'`.
"""

import argparse
import dataclasses
import functools
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks import finished_pruning, rows
from mtl import checks, serving, verbs
from mtl.checkpoints import run_directory
from mtl.configs import config
from mtl.sparsity import criteria, densities, granularity, pruning, pruning_schedules
from mtl.tools.exports import export_comparison

_GIN = pathlib.Path(__file__).parent.parent / "gin_configs"


class Data(NamedTuple):
    """A gin file, the macro of its data, how it is pruned, what is compared, and sparsities.

    `params` are bindings beside those of the file.
    """

    file: str
    macro: str
    prune: str
    metric: str
    sparsities: Sequence[float]
    params: Sequence[str] = ()


_ROWS = (0.0, 0.5, 0.75, 0.9)
DATA = {
    "digits": Data("digits_shared_bottom", "", "gradual", "", (0.0, 0.8, 0.9, 0.95, 0.98)),
    "adult": Data("adult_shared_bottom", "adult_dir", "table_rows", "auc", _ROWS),
    "census_income": Data(
        "census_income",
        "census_income_dir",
        "table_rows",
        "auc",
        _ROWS,
        # The file has one-hot inputs, and no table.
        [f"features.{kind}.dimension = 8" for kind in ("Categorical", "Bucketized")],
    ),
}
_DIGITS = ("digit/accuracy", "parity/accuracy", "loops/accuracy")
_END = 840  # Of 1,200 steps: where the last weight is cut.


def train(data: str, sparsity: float, seed: int) -> dict[str, float]:
    """Return {metric: value} of the best checkpoint of a run, on the split that the file tests."""
    own = DATA[data]
    files = [str(_GIN / "experiments" / f"{own.file}.gin")]
    params = [f"experiment.Run.seed = {seed}", "Serving.check_rows = 0", *own.params]
    if own.macro:
        params.append(f"{own.macro} = {rows.data_dir(data)!r}")
    steps = config.load(files, params).run.train_steps
    if sparsity:
        files.append(str(_GIN / "sparsity" / f"{own.prune}.gin"))
        params += [f"Pruning.sparsity = {sparsity}", f"Cubic.end_step = {round(0.7 * steps)}"]
    with tempfile.TemporaryDirectory() as folder:
        metrics, _ = verbs.train(config.load(files, params), folder)
        if run_directory.find_latest(os.path.join(folder, "best")):
            metrics = verbs.evaluate(config.load(files, params), folder, checkpoint="best")
    names = [name for name in metrics if own.metric and name.endswith(f"/{own.metric}")]
    return {name: float(metrics[name]) for name in names or _DIGITS}


def compare_runs(data: str, seeds: Sequence[int], out: str) -> str:
    """Return the table of runs, a line for each sparsity."""
    lines = []
    for sparsity in DATA[data].sparsities:
        found = [
            rows.kept(
                os.path.join(out, "tables", f"{data}_{sparsity:g}_{seed}.json"),
                functools.partial(train, data, sparsity, seed),
            )
            for seed in seeds
        ]
        cells = [_cell([one[name] for one in found]) for name in found[0]]
        lines.append([f"{100 * sparsity:g}%", *cells])
        print(", ".join(lines[-1]), flush=True)
    return rows.markdown(["cut", *found[0]], lines)


def export_cases() -> dict[str, list[pruning.Pruning]]:
    """Return {what is cut: the part that cuts it}."""
    gradually = pruning_schedules.Cubic(begin_step=160, end_step=_END, every_steps=40)
    found: dict[str, list[pruning.Pruning]] = {"nothing": []}
    for sparsity in (0.9, 0.98):
        for name, density in (
            ("ERK", densities.ErdosRenyiKernel()),
            ("uniform", densities.Uniform()),
        ):
            part = pruning.Pruning(
                sparsity=sparsity,
                schedule=gradually,
                density=density,
                patterns=("^network/.*/kernel$", "^head/digit/.*kernel$"),
                cuts_heads=True,
            )
            found[f"{100 * sparsity:g}% of the weights, {name}"] = [part]
    for sparsity in (0.5, 0.75):
        part = pruning.Pruning(
            sparsity=sparsity,
            schedule=gradually,
            granularity=granularity.Units(),
            density=densities.Uniform(),
            criterion=criteria.Taylor(),
        )
        found[f"{100 * sparsity:g}% of the units"] = [part]
    return found


def compare_exports(layers: Sequence[int], batch_size: int) -> str:
    """Return the table of formats of each case: a network of these layers, so many rows at once."""
    lines = []
    for name, parts in export_cases().items():
        with tempfile.TemporaryDirectory() as folder:
            made = finished_pruning.an_experiment(1, parts, layers)
            metrics, _ = verbs.train(made, folder)
            path = run_directory.checkpoint_path(folder, "latest")
            lines.append([name, f"test accuracy {100 * metrics['digit/accuracy']:.1f}%"])
            print(", ".join(lines[-1]), flush=True)
            made = dataclasses.replace(made, serving=serving.Serving(warm_up_rows=batch_size))
            for one in export_comparison.compare_formats(made, folder, path):
                times = ", ".join(f"{own:.3f}" for own in one.milliseconds.values())
                told = [f"{one.size:,}", f"{one.gzipped:,}", times]
                lines.append(["", one.name, *([one.problem] if one.problem else told)])
                print("  ".join(lines[-1]), flush=True)
    header = ["cut", "format", "bytes", "gzipped", f"ms for 1 and {batch_size} rows"]
    return rows.markdown(header, [[*line, *[""] * (len(header) - len(line))] for line in lines])


def _cell(values: Sequence[float]) -> str:
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{np.mean(values):.4f} ± {error:.4f}"


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits", help=f"one of {', '.join(DATA)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--exports", action="store_true", help="compare exports of LeNet instead")
    parser.add_argument("--layers", default="300,100", help="of --exports")
    parser.add_argument("--rows", type=int, default=32, help="of the larger request of --exports")
    parser.add_argument("--out", default="runs/pruned_runs", help="where results are kept")
    args = parser.parse_args()
    checks.one_of("--data", args.data, DATA)
    checks.at_least("--seeds", args.seeds, 1)
    if args.exports:
        print(compare_exports([int(size) for size in args.layers.split(",")], args.rows))
    else:
        print(compare_runs(args.data, range(1, args.seeds + 1), args.out))


if __name__ == "__main__":
    rows.guard(main)
