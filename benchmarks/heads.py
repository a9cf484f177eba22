"""Compares four special heads with simple heads, on UCI Census-Income.

    python -m benchmarks.heads --seeds 3
    python -m benchmarks.heads --seeds 3 --task weeks

- weeks: how many of the 52 weeks of a year a person worked. Rows with 52 weeks are censored,
  because the work may continue. `Survival` is compared with `Regression`, by the concordance of the
  predicted time.
- dividends: an amount that is 0 for nine rows of ten. `WeightedLogistic` is compared with
  `Regression` and `ZeroInflatedLogNormal`, by the share of all dividends that belongs to the tenth
  of the rows with the highest predictions.
- signs: four labels, of which several may be true. `MultiLabel` is compared with four `Binary`
  heads, by the mean AUC.
- kinds: five categorical columns. `CategoricalMixture` with 8 latent classes is compared with a
  single class, for which the columns are independent, by the mean log-likelihood of a row in nats.

Every fifth row is a test row. All networks have the same trunk; differences are paired by seed.
"""

import argparse
import functools
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from absl import logging

import mtl
from benchmarks import rows
from mtl import experiment, features, heads, model, networks, serving, spec, verbs
from mtl.data import frames, pipeline
from mtl.datasets.census_income import builder
from mtl.optimization import optimizers, schedules, update

_NUMBERS = ("age", "wage-per-hour", "persons-worked-for-employer")
_TEXTS = (
    *("class-of-worker", "industry-code", "occupation-code", "education", "major-occupation"),
    *("race", "sex", "tax-filer-status", "household-summary", "citizenship", "year"),
)
_KINDS = ("education", "marital-status", "household-summary", "sex", "tax-filer-status")
_SIGNS = ("rich", "married", "invests", "moved")
_BOUNDARIES = (4, 8, 12, 16, 20, 26, 32, 38, 44, 51)
_STEPS, _BATCH = 1500, 512

# {task: {name: its heads}}. Each name is compared with the first name of the task.
HEADS: dict[str, dict[str, Sequence[Any]]] = {
    "weeks": {
        "Survival": [heads.Survival(name="weeks", event="stopped", boundaries=_BOUNDARIES)],
        "Regression": [heads.Regression(name="weeks")],
    },
    "dividends": {
        "WeightedLogistic": [heads.WeightedLogistic(name="dividends", negatives="all")],
        "Regression": [heads.Regression(name="dividends")],
        "ZeroInflatedLogNormal": [heads.ZeroInflatedLogNormal(name="dividends")],
    },
    "signs": {
        "MultiLabel": [heads.MultiLabel(name="signs", classes=list(_SIGNS))],
        "four Binary": [heads.Block(head=heads.Binary, tasks=list(_SIGNS))],
    },
}


def read_rows() -> pd.DataFrame:
    """Return all rows with the labels of all tasks."""
    path = os.path.join(rows.data_dir("census_income"), "census-income.test.gz")
    table = pd.read_csv(path, names=list(builder.COLUMNS), skipinitialspace=True, dtype=str)
    whole = {name: table[name].astype(int) for name in builder.NUMBERS}
    table = table.assign(**whole)
    signs = {
        "rich": table["income"].str.startswith("50000+"),
        "married": table["marital-status"].str.startswith("Married"),
        "invests": (table["dividends"] > 0) | (table["capital-gains"] > 0),
        "moved": table["same-house-last-year"] == "No",
    }
    signs = {name: values.astype(int) for name, values in signs.items()}
    labels = {
        "weeks": table["weeks-worked"].astype(float),
        "stopped": (table["weeks-worked"] < 52).astype(int),
        "dividends": table["dividends"].astype(float),
        "signs": list(np.stack(list(signs.values()), axis=1)),
    }
    return table[[*_NUMBERS, *_TEXTS, "marital-status"]].assign(**labels, **signs)


def choose_rows(task: str, table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of a task, {split: rows}; the task `weeks` leaves out people without work."""
    is_test = np.arange(len(table)) % 5 == 4
    is_used = (table["weeks"] > 0) if task == "weeks" else np.ones(len(table), bool)
    return {"train": table[is_used & ~is_test], "test": table[is_used & is_test]}


def make(task: str, name: str, splits: Mapping[str, pd.DataFrame], seed: int, steps: int) -> Any:
    """Return the experiment that trains a task with one kind of heads."""
    if task == "kinds":
        fields, labels = dict.fromkeys(_KINDS, "string"), {}
        columns: list[Any] = [features.Categorical(names=list(_KINDS), dimension=None)]
        sizes = [splits["train"][field].nunique() + 1 for field in sorted(_KINDS)]
        count = 1 if name == "one class" else 8
        tasks: Sequence[Any] = [
            heads.CategoricalMixture(name="kinds", sizes=sizes, num_components=count)
        ]
        trunk = networks.MLP(layers=[])
    else:
        fields = {**dict.fromkeys(_NUMBERS, "int64"), **dict.fromkeys(_TEXTS, "string")}
        labels = {
            "weeks": {"weeks": "float32", "stopped": "int64"},
            "dividends": {"dividends": "float32"},
            "signs": {"signs": ("int64", (len(_SIGNS),)), **dict.fromkeys(_SIGNS, "int64")},
        }[task]
        columns = [
            features.Numeric(names=list(_NUMBERS)),
            features.Categorical(names=list(_TEXTS), dimension=8),
        ]
        tasks, trunk = HEADS[task][name], networks.MLP(layers=[64, 32])
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=frames.Frames(splits=splits),
            spec=spec.Spec(features=fields, labels=labels, keys=()),
            batch_size=_BATCH,
        ),
        model=model.MultiTaskModel(
            columns=columns,
            network=networks.SharedBottom(trunk=trunk),
            heads=tasks,
            update=update.Update(
                optimizer=optimizers.LazyAdam(learning_rate=0.005),
                schedule=schedules.Cosine(value=1.0, decay_steps=steps),
            ),
        ),
        run=experiment.Run(train_steps=steps, checkpoint_steps=steps, seed=seed),
        serving=serving.Serving(check_rows=0),
    )


def score(
    task: str, settings: Any, model_dir: str, metrics: Mapping[str, float], test: pd.DataFrame
) -> float:
    """Return the measure of a task on the test rows."""
    if task == "kinds":
        return float(metrics["kinds/log_likelihood"])
    if task == "signs":
        names = [name for name in metrics if name.endswith("/auc") and "@" not in name]
        return statistics.mean(float(metrics[name]) for name in names)
    values = np.asarray(
        mtl.load(model_dir, experiment=settings).predict(test)[f"{task}/value"], float
    ).ravel()
    if task == "dividends":
        amounts, highest = test["dividends"].to_numpy(), np.argsort(-values, kind="stable")
        return float(amounts[highest[: len(test) // 10]].sum() / amounts.sum())
    return compute_concordance(values, test["weeks"].to_numpy(), test["stopped"].to_numpy() == 1)


def compute_concordance(values: np.ndarray, times: np.ndarray, is_event: np.ndarray) -> float:
    """Return the concordance: the share of comparable pairs that are predicted in the right order.

    Args:
      values: predicted times, [N].
      times: [N].
      is_event: False for censored rows, [N].
    """
    right = pairs = 0.0
    for time in np.unique(times[is_event]):
        early, late = values[is_event & (times == time)], np.sort(values[times > time])
        below = np.searchsorted(late, early, "left")  # Later rows with a shorter prediction.
        not_above = np.searchsorted(late, early, "right")
        right += (len(late) - (below + not_above) / 2).sum()
        pairs += len(early) * len(late)
    return right / pairs


def measure(task: str, name: str, seed: int, steps: int) -> float:
    """Train once; return the measure of the task."""
    splits = choose_rows(task, read_rows())
    with tempfile.TemporaryDirectory() as folder:
        settings = make(task, name, splits, seed, steps)
        metrics, _ = verbs.train(settings, folder)
        return score(task, settings, folder, metrics, splits["test"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    kinds = {**HEADS, "kinds": {"8 classes": (), "one class": ()}}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=_STEPS)
    parser.add_argument("--task", action="append", choices=list(kinds), help="all by default")
    parser.add_argument("--output", default=os.path.join("runs", "heads"))
    options = parser.parse_args(arguments)
    logging.set_verbosity(logging.ERROR)
    lines = []
    for task in options.task or kinds:
        results: dict[str, list[float]] = {name: [] for name in kinds[task]}
        for seed in range(1, options.seeds + 1):
            for name, values in results.items():
                path = f"{task}, {name}, {options.steps} steps, seed {seed}.json"
                once = functools.partial(measure, task, name, seed, options.steps)
                values.append(rows.load_or_measure(os.path.join(options.output, path), once))
        first = next(iter(results.values()))
        for name, values in results.items():
            difference = "" if values is first else rows.describe_difference(first, values)
            lines.append([task, f"`{name}`", f"{statistics.mean(values):.4f}", difference])
    print(rows.markdown(["task", "heads", "measure", "first minus this"], lines))


if __name__ == "__main__":
    rows.guard(main)
