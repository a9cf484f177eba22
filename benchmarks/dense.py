"""Maps of classes, depth and normals: a network a task, one for all, or MTAN; with and without
balancing.

    python -m benchmarks.dense --seeds 3

It trains `gin_configs/experiments/scenes_unet.gin` for --steps steps and tests the last checkpoint
on 300 other scenes. `gain` is the mean over tasks of the relative improvement on a network for each
task, of the same seed: over the tasks' metrics, in percent (K.-K. Maninis, I. Radosavovic,
I. Kokkinos, "Attentive Single-Tasking of Multiple Tasks", 2019, arXiv:1904.08918). Results lie in
--output; those that are there are not measured again.
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
_STEPS = flags.DEFINE_integer("steps", 300, "Of a run.", allow_override=True)

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
# {task: {metric: whether higher is better}}
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
    """Train one row, and return its metrics on the test split, and its seconds."""
    paths = list_files(network, balancing)
    steps = _STEPS.value
    params = [f"Run.seed = {seed}", f"Run.train_steps = {steps}", f"Run.checkpoint_steps = {steps}"]
    made, started = config.load(paths, [*params, "Serving.check_rows = 0"]), time.perf_counter()
    with tempfile.TemporaryDirectory() as model_dir:
        metrics, _ = verbs.train(made, model_dir)
    found = {f"{t}/{m}": float(metrics[f"{t}/{m}"]) for t, own in METRICS.items() for m in own}
    return {**found, "seconds": time.perf_counter() - started}


def compute_gain(found: Mapping[str, float], base: Mapping[str, float]) -> float:
    """Return the mean over tasks of the mean relative improvement of their metrics, in percent."""
    tasks = []
    for task, metrics in METRICS.items():
        own = []
        for metric, is_higher in metrics.items():
            name = f"{task}/{metric}"
            change = (found[name] - base[name]) / base[name]
            own.append(change if is_higher else -change)
        tasks.append(statistics.mean(own))
    return 100 * statistics.mean(tasks)


def build_table(results: Mapping[tuple[str, str], Sequence[Mapping[str, float]]]) -> str:
    """{row: metrics by seed} -> a Markdown table."""
    bases, lines = results[ROWS[0]], []
    for (network, balancing), found in results.items():
        gains = [compute_gain(own, base) for own, base in zip(found, bases, strict=True)]
        is_base = found is bases
        apart = rows.describe_difference(gains, [0.0] * len(gains), digits=1)
        means = [statistics.mean(own[name] for own in found) for name in _SHOWN]
        shown = [f"{100 * means[0]:.1f}", f"{means[1]:.3f}", f"{means[2]:.1f}"]
        lines.append([network, balancing, *shown, "" if is_base else apart])
    header = ["network", "balancing", "mIoU", "depth error", "angle", "gain"]
    return rows.markdown(header, lines)


def main() -> None:
    """Measure what is missing, and print the table."""
    checks.at_least("--seeds", _SEEDS.value, 1)
    results: dict[tuple[str, str], list[dict[str, float]]] = {row: [] for row in ROWS}
    for seed, row in itertools.product(range(1, _SEEDS.value + 1), ROWS):
        path = os.path.join(rows.output("dense"), f"{' '.join(row)}, seed {seed}.json")
        found = rows.kept(path, functools.partial(measure, *row, seed))
        results[row].append(found)
        told = ", ".join(f"{name} {found[name]:.3f}" for name in _SHOWN)
        print(f"seed {seed}, {' '.join(row)}: {told} ({found['seconds']:.0f} s)", flush=True)
    print(build_table(results))


if __name__ == "__main__":
    rows.run(main)
