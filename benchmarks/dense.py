"""Compares networks for maps of classes, depth and normals, with and without balancing.

    python -m benchmarks.dense --seeds 3

The benchmark compares a separate network for each task, a shared network, and MTAN. Each run trains
`gin_configs/experiments/scenes_unet.gin` for --steps steps, and tests the last checkpoint on 300
other scenes. `gain` is the mean relative improvement over separate networks with the same seed, in
percent. The improvement of a task is the mean over its metrics (K.-K. Maninis, I. Radosavovic, I.
Kokkinos, "Attentive Single-Tasking of Multiple Tasks", 2019, arXiv:1904.08918). Results are stored
in --output, and are not measured again.
"""

import functools
import itertools
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence

from absl import flags

from benchmarks import rows
from mtl import checks, verbs
from mtl.configs import config

_SEEDS = flags.DEFINE_integer(
    "seeds", 3, "Runs of each row, paired by their seed.", allow_override=True
)
_STEPS = flags.DEFINE_integer("steps", 300, "Training steps of a run.", allow_override=True)

_FOLDER = pathlib.Path(__file__).parent.parent / "gin_configs"
_BASELINE = "a network a task"
_NETWORKS = {
    _BASELINE: "single_task_unet",
    "one network": "shared_bottom_unet",
    "MTAN": "mtan_of_maps",
}
ROWS: Sequence[tuple[str, str]] = [
    (_BASELINE, "equal"),
    ("one network", "equal"),
    ("one network", "uncertainty_weighting"),
    ("one network", "cagrad"),
    ("MTAN", "equal"),
]
# {task: {metric: True if higher is better}}
METRICS: Mapping[str, Mapping[str, bool]] = {
    "kind": {"miou": True, "pixel_accuracy": True},
    "depth": {"abs_error": False, "rel_error": False},
    "normal": {
        "mean_angle": False,
        "median_angle": False,
        "within_11_25": True,
        "within_22_5": True,
        "within_30": True,
    },
}
_SHOWN = ("kind/miou", "depth/abs_error", "normal/mean_angle")


def list_files(network: str, balancing: str) -> list[str]:
    """Return the gin files of a row."""
    names = ("experiments/scenes_unet", f"networks/{_NETWORKS[network]}", f"balancing/{balancing}")
    return [str(_FOLDER / f"{name}.gin") for name in names]


def measure(network: str, balancing: str, seed: int) -> dict[str, float]:
    """Train the experiment of a row; return test metrics and the seconds of the training."""
    paths = list_files(network, balancing)
    steps = _STEPS.value
    params = [f"Run.seed = {seed}", f"Run.train_steps = {steps}", f"Run.checkpoint_steps = {steps}"]
    settings, started = config.load(paths, [*params, "Serving.check_rows = 0"]), time.perf_counter()
    with tempfile.TemporaryDirectory() as model_dir:
        metrics, _ = verbs.train(settings, model_dir)
    results = {
        f"{t}/{m}": float(metrics[f"{t}/{m}"])
        for t, metric_names in METRICS.items()
        for m in metric_names
    }
    return {**results, "seconds": time.perf_counter() - started}


def compute_gain(metrics_of_run: Mapping[str, float], base: Mapping[str, float]) -> float:
    """Return the mean over tasks of the mean relative improvement of their metrics, in percent."""
    tasks = []
    for task, metrics in METRICS.items():
        changes = []
        for metric, is_higher in metrics.items():
            name = f"{task}/{metric}"
            change = (metrics_of_run[name] - base[name]) / base[name]
            changes.append(change if is_higher else -change)
        tasks.append(statistics.mean(changes))
    return 100 * statistics.mean(tasks)


def build_table(results: Mapping[tuple[str, str], Sequence[Mapping[str, float]]]) -> str:
    """Return a Markdown table of {row: metrics by seed}."""
    bases, lines = results[ROWS[0]], []
    for (network, balancing), runs in results.items():
        gains = [compute_gain(run, base) for run, base in zip(runs, bases, strict=True)]
        is_base = runs is bases
        difference = rows.describe_difference(gains, [0.0] * len(gains), digits=1)
        means = [statistics.mean(run[name] for run in runs) for name in _SHOWN]
        cells = [f"{100 * means[0]:.1f}", f"{means[1]:.3f}", f"{means[2]:.1f}"]
        lines.append([network, balancing, *cells, "" if is_base else difference])
    header = ["network", "balancing", "mIoU", "depth error", "angle", "gain"]
    return rows.markdown(header, lines)


def main() -> None:
    """Measure results that are not stored yet, and print the table."""
    checks.at_least("--seeds", _SEEDS.value, 1)
    results: dict[tuple[str, str], list[dict[str, float]]] = {row: [] for row in ROWS}
    for seed, row in itertools.product(range(1, _SEEDS.value + 1), ROWS):
        path = os.path.join(rows.output("dense"), f"{' '.join(row)}, seed {seed}.json")
        result = rows.load_or_measure(path, functools.partial(measure, *row, seed))
        results[row].append(result)
        summary = ", ".join(f"{name} {result[name]:.3f}" for name in _SHOWN)
        print(f"seed {seed}, {' '.join(row)}: {summary} ({result['seconds']:.0f} s)", flush=True)
    print(build_table(results))


if __name__ == "__main__":
    rows.run(main)
