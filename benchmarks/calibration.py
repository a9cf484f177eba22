"""Measures the calibration error of a run with weighted positives on UCI Census-Income.

    python -m benchmarks.calibration

`gin_configs/experiments/census_income.gin` trains with `positive_weight = 5`. Each method of
`mtl.transfer.calibration` is fitted on the validation split, and measured on the test split.
"""

import argparse
import dataclasses
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import logging

from benchmarks import rows
from mtl import experiment as experiment_lib
from mtl import serving, verbs
from mtl.configs import config
from mtl.tools import calibration

GIN_FILE = "gin_configs/experiments/census_income.gin"
METHODS = {
    "Temperature": calibration.Temperature,
    "Platt": calibration.Platt,
    "Isotonic": calibration.Isotonic,
}
_KNOTS = 32
_METRICS = ("income/calibration_error", "income/calibration", "income/auc")


def make(steps: int | None, knots: int = 0) -> experiment_lib.Experiment:
    """Return the experiment, with the steps of the gin file unless `steps` is set."""
    bindings = [
        f'census_income_dir = "{rows.data_dir("census_income")}"',
        "income/heads.Binary.positive_weight = 5.0",
        f"income/heads.Binary.knots = {knots}",
    ]
    if steps is not None:
        bindings += [f"experiment.Run.train_steps = {steps}"]
    settings = config.load([GIN_FILE], bindings)
    return dataclasses.replace(settings, serving=serving.Serving(check_rows=0))


def measure(steps: int | None) -> dict[str, dict[str, float]]:
    """Train once, calibrate by each method, and return {method: {metric: test value}}."""
    with tempfile.TemporaryDirectory() as folder:
        plain, trained = make(steps), os.path.join(folder, "trained")
        data = dataclasses.replace(plain.data, eval_split="test")
        verbs.train(plain, trained)
        results = {"as trained": _take(verbs.evaluate(plain, trained, "test", "best"))}
        for name, kind in METHODS.items():
            refit = kind(source=os.path.join(trained, "best"), tasks=["income"], split="validation")
            settings = make(steps, _KNOTS if name == "Isotonic" else 0)
            calibrated = dataclasses.replace(settings, data=data, refit=refit)
            results[f"`{name}`"] = _take(verbs.train(calibrated, os.path.join(folder, name))[0])
    return results


def _take(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(metrics[name]) for name in _METRICS}


def show(results: dict[str, dict[str, float]]) -> str:
    """Return the table."""
    header = ["income", "calibration error", "sum of probabilities / positives", "AUC"]
    lines = [
        [name, *(f"{metrics[key]:.4f}" for key in _METRICS)] for name, metrics in results.items()
    ]
    return rows.markdown(header, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, help="training steps; by default as in the gin file")
    options = parser.parse_args(arguments)
    logging.set_verbosity(logging.ERROR)
    print(show(measure(options.steps)))


if __name__ == "__main__":
    rows.guard(main)
