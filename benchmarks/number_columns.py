"""Compares columns for numbers on UCI Adult by the test AUC of two tasks, and by the mean gain.

    python -m benchmarks.number_columns --seeds 3

All runs train `gin_configs/experiments/adult_shared_bottom.gin`, with texts as `Categorical`
columns. For each row of the table, a different class of columns reads the five numbers. The metrics
come from the last checkpoint and the official test file. `combined.MeanGain` compares each run with
the run of `Numeric` of the same seed.
"""

import argparse
import dataclasses
import functools
import os
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import logging

from benchmarks import rows
from mtl import experiment as experiment_lib
from mtl import features, serving, verbs
from mtl.configs import config
from mtl.model import combined

GIN_FILE = "gin_configs/experiments/adult_shared_bottom.gin"
_TEXTS = ("workclass", "education", "occupation", "race", "sex", "native-country")
_NUMBERS, _MONEY = ("age", "education-num", "hours-per-week"), ("capital-gain", "capital-loss")
_WIDTH = 8
_METRICS = ("income/auc", "never_married/auc")

COLUMNS = {
    "Numeric": features.Numeric,
    "Bucketized": functools.partial(features.Bucketized, boundaries=20, dimension=_WIDTH),
    "PiecewiseLinear": functools.partial(features.PiecewiseLinear, dimension=_WIDTH),
    "Periodic": functools.partial(features.Periodic, dimension=_WIDTH, sigma=0.1),
    "AutoDis": functools.partial(features.AutoDis, dimension=_WIDTH),
}


def list_columns(name: str) -> list[Any]:
    """Return the columns of a run that reads its numbers by the column `name`."""
    kind = COLUMNS[name]
    # No logarithms here: buckets of equal frequency would be the same.
    money = {} if name == "Bucketized" else {"log": True}
    return [
        kind(names=list(_NUMBERS)),
        kind(names=list(_MONEY), prefix="money", **money),
        features.Categorical(names=list(_TEXTS), dimension=_WIDTH),
    ]


def make(name: str, seed: int, steps: int, baseline: str | None) -> experiment_lib.Experiment:
    """Return the experiment; `baseline` is the folder of the run that the mean gain refers to."""
    bindings = [
        f'adult_dir = "{rows.data_dir("adult")}"',
        f"experiment.Run.seed = {seed}",
        f"experiment.Run.train_steps = {steps}",
        f"experiment.Run.checkpoint_steps = {steps}",
    ]
    settings = config.load([GIN_FILE], bindings)
    gains = [combined.MeanGain(baselines=dict.fromkeys(_METRICS, baseline))] if baseline else []
    model = dataclasses.replace(settings.model, columns=list_columns(name), combined_metrics=gains)
    return dataclasses.replace(settings, model=model, serving=serving.Serving(check_rows=0))


def measure(seed: int, steps: int) -> dict[str, dict[str, float]]:
    """Train once with each kind of column, and return {column: {metric: value}}."""
    with tempfile.TemporaryDirectory() as folder:
        results: dict[str, dict[str, float]] = {}
        for name in COLUMNS:
            baseline = os.path.join(folder, "Numeric") if results else None
            settings = make(name, seed, steps, baseline)
            metrics, _ = verbs.train(settings, os.path.join(folder, name))
            results[name] = {key: float(metrics[key]) for key in _METRICS}
            results[name]["mean_gain"] = float(metrics.get("mean_gain", 0.0))
    return results


def show(results: Sequence[dict[str, dict[str, float]]]) -> str:
    """Return the table of the results of several seeds."""
    lines = []
    for name in COLUMNS:
        aucs = [statistics.mean(run[name][metric] for run in results) for metric in _METRICS]
        gains = [run[name]["mean_gain"] for run in results]
        spread = f"{min(gains):+.2%} to {max(gains):+.2%}"
        lines.append([f"`{name}`", *(f"{auc:.4f}" for auc in aucs), spread])
    return rows.markdown(["column", *_METRICS, "mean gain, least to most"], lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure results that are not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--output", default=os.path.join("runs", "number_columns"))
    options = parser.parse_args(arguments)
    logging.set_verbosity(logging.ERROR)
    results = [
        rows.load_or_measure(
            os.path.join(options.output, f"{options.steps} steps, seed {seed}.json"),
            functools.partial(measure, seed, options.steps),
        )
        for seed in range(1, options.seeds + 1)
    ]
    print(show(results))


if __name__ == "__main__":
    rows.guard(main)
