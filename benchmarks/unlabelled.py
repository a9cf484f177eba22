"""Measures losses that read no label, by the test AUC of income on UCI Adult with few labels.

    python -m benchmarks.unlabelled --seeds 5
    python -m benchmarks.unlabelled --seeds 5 --labels 1000

Training uses all 32,561 training rows, but only some rows have an income. `Contrastive` compares
two views of a row, and `Reconstruction` predicts columns that were replaced. Each loss trains in
addition to the loss of the labels, with several weights. Rows of the table are paired by seed,
which determines the rows with labels and the first weights. The test split is the official test
file. The table shows all weights; no weight is chosen.
"""

import argparse
import functools
import os
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from absl import logging

from benchmarks import rows
from mtl import auxiliary, experiment, features, heads, model, networks, serving, spec, verbs
from mtl.data import frames, pipeline
from mtl.optimization import optimizers, schedules, update

_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
)
_NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
_TEXTS = ("workclass", "education", "occupation", "race", "sex", "native-country")
_STEPS, _BATCH = 1000, 512

LOSSES: dict[str, Sequence[Any]] = {
    "labels alone": [],
    **{f"Contrastive, {w}": [auxiliary.Contrastive(weight=w)] for w in (0.1, 0.3, 1.0)},
    **{f"Reconstruction, {w}": [auxiliary.Reconstruction(weight=w)] for w in (0.3, 1.0, 3.0)},
}


def read_rows(name: str, test: bool) -> pd.DataFrame:
    """Return the rows of an official file."""
    path = os.path.join(rows.data_dir("adult"), name)
    # The test file starts with a comment line, and its incomes end with a full stop.
    table = pd.read_csv(path, names=list(_COLUMNS), skipinitialspace=True, skiprows=int(test))
    return table.assign(income=table["income"].str.startswith(">50K").astype(int))


def make(name: str, labels: int, seed: int, steps: int) -> experiment.Experiment:
    """Return the experiment with an auxiliary loss and this number of labels."""
    train, test = read_rows("adult.data.gz", False), read_rows("adult.test.gz", True)
    stays = np.zeros(len(train), bool)
    stays[np.random.default_rng(seed).permutation(len(train))[:labels]] = True
    train = train.assign(income=train["income"].where(stays, -1))
    fields = {**dict.fromkeys(_NUMBERS, "int64"), **dict.fromkeys(_TEXTS, "string")}
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=frames.Frames(splits={"train": train, "test": test}),
            spec=spec.Spec(features=fields, labels={"income": "int64"}),
            batch_size=_BATCH,
        ),
        model=model.MultiTaskModel(
            columns=[
                features.Numeric(names=list(_NUMBERS)),
                features.Categorical(names=list(_TEXTS), dimension=8),
            ],
            network=networks.SharedBottom(trunk=networks.MLP(layers=[64, 32], dropout=0.2)),
            heads=[heads.Binary(name="income")],
            auxiliary_losses=LOSSES[name],
            update=update.Update(
                optimizer=optimizers.LazyAdam(learning_rate=0.002),
                schedule=schedules.Cosine(value=1.0, decay_steps=steps),
            ),
        ),
        run=experiment.Run(train_steps=steps, checkpoint_steps=steps, seed=seed),
        serving=serving.Serving(check_rows=0),
    )


def measure(name: str, labels: int, seed: int, steps: int) -> float:
    """Train once, and return the AUC on the test rows."""
    with tempfile.TemporaryDirectory() as folder:
        metrics, _ = verbs.train(make(name, labels, seed, steps), folder)
    return float(metrics["income/auc"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--labels", type=int, default=300)
    parser.add_argument("--steps", type=int, default=_STEPS)
    parser.add_argument("--output", default=os.path.join("runs", "unlabelled"))
    options = parser.parse_args(arguments)
    logging.set_verbosity(logging.ERROR)
    results: dict[str, list[float]] = {name: [] for name in LOSSES}
    for seed in range(1, options.seeds + 1):
        for name, aucs in results.items():
            path = f"{name}, {options.labels} labels, {options.steps} steps, seed {seed}.json"
            once = functools.partial(measure, name, options.labels, seed, options.steps)
            aucs.append(rows.load_or_measure(os.path.join(options.output, path), once))
    plain = results["labels alone"]
    lines = [
        [name, f"{statistics.mean(aucs):.4f}", rows.describe_difference(aucs, plain)]
        for name, aucs in results.items()
    ]
    print(rows.markdown(["loss, weight", "test AUC", "minus labels alone"], lines))


if __name__ == "__main__":
    rows.guard(main)
