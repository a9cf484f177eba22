"""Measures metrics and exports of runs with pruning during training.

    python -m benchmarks.pruned_runs --data digits --seeds 3
    python -m benchmarks.pruned_runs --data adult --seeds 3
    python -m benchmarks.pruned_runs --data census_income --seeds 3
    python -m benchmarks.pruned_runs --exports

On the digits, pruning cuts weights in all kernels of the network: of convolutions, dense layers and
towers. On the other two data sets, pruning cuts rows of all embedding tables. The table shows
metrics of the best checkpoint. --exports trains LeNet-300-100, cuts single weights or whole units,
and prints bytes and latency of every format. The format ONNX needs `pip install '.[onnx]'`.
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
    """A data set of the benchmark.

    Attributes:
      file: the name of a gin file of gin_configs/experiments, without its ending.
      macro: the gin macro of the folder of the data; "" for none.
      prune: the name of a gin file of gin_configs/sparsity, without its ending.
      metric: the metric of the table; "" for the metrics of the digits.
      sparsities: the sparsity of each line of the table.
      params: gin bindings beside those of the file.
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
        # Without these bindings, the inputs would be one-hot, and there would be no table to prune.
        [f"features.{kind}.dimension = 8" for kind in ("Categorical", "Bucketized")],
    ),
}
_DIGITS = ("digit/accuracy", "parity/accuracy", "loops/accuracy")
_END = 840  # The step of the last cut, of 1,200 training steps.


def train(data: str, sparsity: float, seed: int) -> dict[str, float]:
    """Return {metric: value} of the best checkpoint of a run, on the evaluation split."""
    case = DATA[data]
    files = [str(_GIN / "experiments" / f"{case.file}.gin")]
    params = [f"experiment.Run.seed = {seed}", "Serving.check_rows = 0", *case.params]
    if case.macro:
        params.append(f"{case.macro} = {rows.data_dir(data)!r}")
    steps = config.load(files, params).run.train_steps
    if sparsity:
        files.append(str(_GIN / "sparsity" / f"{case.prune}.gin"))
        params += [f"Pruning.sparsity = {sparsity}", f"Cubic.end_step = {round(0.7 * steps)}"]
    with tempfile.TemporaryDirectory() as folder:
        metrics, _ = verbs.train(config.load(files, params), folder)
        if run_directory.find_latest(os.path.join(folder, "best")):
            metrics = verbs.evaluate(config.load(files, params), folder, checkpoint="best")
    names = [name for name in metrics if case.metric and name.endswith(f"/{case.metric}")]
    return {name: float(metrics[name]) for name in names or _DIGITS}


def compare_runs(data: str, seeds: Sequence[int], out: str) -> str:
    """Return the table of runs, with a line for each sparsity."""
    lines = []
    for sparsity in DATA[data].sparsities:
        results = [
            rows.load_or_measure(
                os.path.join(out, "tables", f"{data}_{sparsity:g}_{seed}.json"),
                functools.partial(train, data, sparsity, seed),
            )
            for seed in seeds
        ]
        cells = [_cell([run[name] for run in results]) for name in results[0]]
        lines.append([f"{100 * sparsity:g}%", *cells])
        print(", ".join(lines[-1]), flush=True)
    return rows.markdown(["cut", *results[0]], lines)


def export_cases() -> dict[str, list[pruning.Pruning]]:
    """Return {description of the cut: the parts that prune}."""
    gradually = pruning_schedules.Cubic(begin_step=160, end_step=_END, every_steps=40)
    cases: dict[str, list[pruning.Pruning]] = {"nothing": []}
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
            cases[f"{100 * sparsity:g}% of the weights, {name}"] = [part]
    for sparsity in (0.5, 0.75):
        part = pruning.Pruning(
            sparsity=sparsity,
            schedule=gradually,
            granularity=granularity.Units(),
            density=densities.Uniform(),
            criterion=criteria.Taylor(),
        )
        cases[f"{100 * sparsity:g}% of the units"] = [part]
    return cases


def compare_exports(layers: Sequence[int], batch_size: int) -> str:
    """Return the table of all export formats of each case.

    Args:
      layers: the units of each layer of the network.
      batch_size: the rows of the larger request that is timed.
    """
    lines = []
    for name, parts in export_cases().items():
        with tempfile.TemporaryDirectory() as folder:
            settings = finished_pruning.an_experiment(1, parts, layers)
            metrics, _ = verbs.train(settings, folder)
            path = run_directory.checkpoint_path(folder, "latest")
            lines.append([name, f"test accuracy {100 * metrics['digit/accuracy']:.1f}%"])
            print(", ".join(lines[-1]), flush=True)
            settings = dataclasses.replace(
                settings, serving=serving.Serving(warm_up_rows=batch_size)
            )
            for form in export_comparison.compare_formats(settings, folder, path):
                times = ", ".join(f"{millis:.3f}" for millis in form.milliseconds.values())
                cells = [f"{form.size:,}", f"{form.gzipped:,}", times]
                lines.append(["", form.name, *([form.problem] if form.problem else cells)])
                print("  ".join(lines[-1]), flush=True)
    header = ["cut", "format", "bytes", "gzipped", f"ms for 1 and {batch_size} rows"]
    return rows.markdown(header, [[*line, *[""] * (len(header) - len(line))] for line in lines])


def _cell(values: Sequence[float]) -> str:
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{np.mean(values):.4f} ± {error:.4f}"


def main() -> None:
    """Measure results that are not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits", help=f"one of {', '.join(DATA)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--exports", action="store_true", help="compare exports of LeNet instead")
    parser.add_argument("--layers", default="300,100", help="units of the layers for --exports")
    parser.add_argument("--rows", type=int, default=32, help="rows of a request for --exports")
    parser.add_argument("--out", default="runs/pruned_runs", help="the folder of results")
    args = parser.parse_args()
    checks.one_of("--data", args.data, DATA)
    checks.at_least("--seeds", args.seeds, 1)
    if args.exports:
        print(compare_exports([int(size) for size in args.layers.split(",")], args.rows))
    else:
        print(compare_runs(args.data, range(1, args.seeds + 1), args.out))


if __name__ == "__main__":
    rows.guard(main)
