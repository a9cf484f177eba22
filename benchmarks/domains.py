"""Measures gradient reversal on UCI Adult with a domain shift: AUC on a domain without labels.

    python -m benchmarks.domains --seeds 3
    python -m benchmarks.domains --seeds 3 --target random

The source domain has people who work in private companies. The target domain has all other people,
who earn more. With `--target random`, the target domain is a random half of all rows, with the same
share of incomes. In the target domain the measurements differ: ages are off by up to 10 years,
years of education have an offset, and a week has fewer hours. Only training rows of the source
domain have an income; in the target domain the cell is empty. The class of work is not a feature,
because it reveals the domain. `reversal` trains with gradient reversal, at each strength (`value`
of the schedule). `source only` trains without gradient reversal. `all labels` also trains without
gradient reversal, but on the true labels of all rows.

The mean AUC on 1,000 labelled rows of the target domain chooses the strength, or `source only`.
Training does not use these rows. Without labelled rows of the target domain, this choice is not
possible. The test split has the rows of the target domain in the official test file. Differences
are paired by seed, with standard errors.
"""

import argparse
import csv
import functools
import gzip
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
from absl import logging

from benchmarks import rows
from mtl import auxiliary, experiment, features, heads, model, networks, serving, spec, verbs
from mtl.data import csv as csv_source
from mtl.data import pipeline
from mtl.optimization import optimizers, schedules, update

STRENGTHS = (0.1, 0.3, 1.0, 3.0)
TARGETS = ("work", "random")
SOURCE, TARGET = "0", "1"
_RAW = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
)
_NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
_TEXTS = ("occupation", "race", "sex", "native-country")
_FIELDS = (*_NUMBERS, *_TEXTS, "income", "is_target")
_VALIDATION = 1000
_STEPS, _BATCH = 1500, 256


def write_splits(folder: str, target: str, labels_of_target: bool) -> dict[str, str]:
    """Write the splits as CSV files; return their names, {split: file}."""
    random = np.random.default_rng(0)
    train = list(_read("adult.data.gz", target, random))
    held_out = [row for row in train if row["is_target"] == TARGET][:_VALIDATION]
    held_out_ids = {id(row) for row in held_out}
    train = [row for row in train if id(row) not in held_out_ids]
    if not labels_of_target:
        train = [row | {"income": ""} if row["is_target"] == TARGET else row for row in train]
    test = [row for row in _read("adult.test.gz", target, random) if row["is_target"] == TARGET]
    files = {}
    for split, split_rows in (("train", train), ("validation", held_out), ("test", test)):
        files[split] = f"{split}.csv"
        with open(os.path.join(folder, files[split]), "w", newline="") as file:
            csv.writer(file).writerows([row[field] for field in _FIELDS] for row in split_rows)
    return files


def _read(name: str, target: str, random: np.random.Generator) -> Iterator[dict[str, str]]:
    """Yield the rows of an official file, with changed measurements in the target domain."""
    with gzip.open(os.path.join(rows.data_dir("adult"), name), "rt") as file:
        for cells in csv.reader(file, skipinitialspace=True):
            if len(cells) != len(_RAW):
                continue
            row = dict(zip(_RAW, cells, strict=True))
            row["income"] = row["income"].rstrip(".")
            by_work = target == "work"
            is_target = row["workclass"] != "Private" if by_work else random.random() < 0.5
            row["is_target"] = TARGET if is_target else SOURCE
            if row["is_target"] == TARGET:
                row["age"] = str(int(row["age"]) + int(random.integers(-10, 11)))
                row["education-num"] = str(int(row["education-num"]) + 4)
                row["hours-per-week"] = str(round(0.7 * int(row["hours-per-week"])))
            yield row


def make(
    folder: str, files: dict[str, str], seed: int, strength: float | None
) -> experiment.Experiment:
    """Return the experiment with this strength of the reversal; None means no reversal."""
    reversal = auxiliary.GradientReversal(
        head=heads.Binary(name="is_target"), reversal=schedules.Sigmoid(value=strength or 1.0)
    )
    kinds = dict.fromkeys(_NUMBERS, "int64") | dict.fromkeys(_TEXTS, "string")
    rate = schedules.Cosine(value=0.002, decay_steps=_STEPS)
    most = 1_000_000
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=csv_source.Csv(files=files, data_dir=folder, columns=_FIELDS),
            spec=spec.Spec(features=kinds, labels={"income": "string", "is_target": "int64"}),
            eval_split="validation",
            batch_size=_BATCH,
            shuffle_buffer=40_000,
            cache=True,
        ),
        model=model.MultiTaskModel(
            columns=[
                features.Numeric(names=["age", "education-num", "hours-per-week"]),
                features.Numeric(names=["capital-gain", "capital-loss"], log=True),
                features.Categorical(names=list(_TEXTS)),
            ],
            network=networks.SharedBottom(
                trunk=networks.MLP(layers=[64, 32]), tower=networks.MLP(layers=[16])
            ),
            heads=[heads.Binary(name="income", positive=[">50K"])],
            update=update.Update(optimizer=optimizers.LazyAdam(learning_rate=rate)),
            auxiliary_losses=[] if strength is None else [reversal],
        ),
        run=experiment.Run(
            train_steps=_STEPS, checkpoint_steps=most, summary_steps=most, seed=seed
        ),
        serving=serving.Serving(check_rows=0),
    )


def measure(files_in: str, files: dict[str, str], seed: int, strength: float | None) -> dict:
    """Train once, and return {split: AUC on the target domain}."""
    with tempfile.TemporaryDirectory() as folder:
        settings = make(files_in, files, seed, strength)
        aucs = {"validation": float(verbs.train(settings, folder)[0]["income/auc"])}
        aucs["test"] = float(verbs.evaluate(settings, folder, "test", "latest")["income/auc"])
    return aucs


def measure_all(
    target: str,
    labels_of_target: bool,
    strengths: Sequence[float | None],
    seeds: Sequence[int],
    output: str,
) -> dict[str, list[dict[str, float]]]:
    """Return {method: results by seed}, measured or stored in a folder."""
    results: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = write_splits(folder, target, labels_of_target)
        for strength in strengths:
            name = "source only" if strength is None else f"reversal, {strength:g}"
            name = "all labels" if labels_of_target else name
            for seed in seeds:
                path = os.path.join(output, target, f"{name} {seed}.json")
                run = functools.partial(measure, folder, files, seed, strength)
                results.setdefault(name, []).append(rows.load_or_measure(path, run))
    return results


def show(results_of_methods: dict[str, list[dict[str, float]]]) -> str:
    """Return the table of {method: results by seed}."""
    plain = [result["test"] for result in results_of_methods["source only"]]
    lines = []
    for name, results in results_of_methods.items():
        means = [
            f"{statistics.mean(result[split] for result in results):.4f}"
            for split in ("validation", "test")
        ]
        aucs = [result["test"] for result in results]
        difference = "" if name == "source only" else rows.describe_difference(aucs, plain)
        lines.append([name, *means, difference])
    header = ["training", "AUC, validation", "AUC, test", "test, minus source only"]
    return rows.markdown(header, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--target", choices=TARGETS, default="work")
    parser.add_argument("--strengths", type=float, nargs="*", default=STRENGTHS)
    parser.add_argument("--output", default=os.path.join("runs", "domains"))
    options = parser.parse_args(arguments)
    logging.set_verbosity(logging.ERROR)
    seeds = range(1, options.seeds + 1)
    strengths = [None, *options.strengths]
    results = measure_all(options.target, False, strengths, seeds, options.output)
    results |= measure_all(options.target, True, [None], seeds, options.output)
    print(show(results))
    choices = [name for name in results if name != "all labels"]
    best = max(choices, key=lambda name: statistics.mean(r["validation"] for r in results[name]))
    print(f"\nChosen on the validation split: {best}.")


if __name__ == "__main__":
    rows.guard(main)
