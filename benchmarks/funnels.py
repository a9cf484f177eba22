"""Measures bias and AUC of order probabilities, over all impressions of a simulated funnel.

    python -m benchmarks.funnels --seeds 3

Impressions come from `datasets.funnel.Funnel`, new impressions for each seed; about one in ten is
clicked. Models predict the probability of an order after a click for every impression of the test
split, clicked or not. The benchmark compares predicted and true probabilities. `bias` is the mean
prediction minus the mean true probability. `size of bias` is the absolute bias, averaged over the
seeds. `AUC` is the expected AUC of labels that are drawn by the true probabilities. All rows of the
table have a task for clicks, and differ in the loss for orders: `naive` has the loss of clicked
rows; `ESMM` has the loss of click and order together; `IPW` and `DR` have the losses of
`auxiliary.InversePropensity` and `auxiliary.DoublyRobust`; `ESCM2` adds the loss of ESMM to `IPW`
or `DR`. `all seen` trains on whether an order would follow a click, for every impression; only a
simulation knows this. Differences are paired by seed, with standard errors.
"""

import argparse
import functools
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from benchmarks import rows
from mtl import auxiliary, experiment, features, heads, model, networks, serving, spec, types, verbs
from mtl.data import pipeline
from mtl.datasets import funnel
from mtl.optimization import optimizers, update

METHODS = ("naive", "ESMM", "IPW", "DR", "ESCM2-IPW", "ESCM2-DR", "all seen")
NETWORKS = {"mlp": ([64], [32]), "linear": ([], [])}
_STEPS, _BATCH = 800, 512
_TRUE = "order_probability"


def make_heads(method: str) -> list[types.Head]:
    """Return the tasks of a method."""
    click = heads.Binary(name="click", prior=0.1)
    if method == "all seen":
        return [click, heads.Binary(name="order", label="would_order")]
    order = heads.Binary(name="order", within="click", has_loss=method == "naive")
    joint = heads.Joint(name="click_and_order", of=["click", "order"], label="order")
    return [click, order, *([joint] if method.startswith("ES") else [])]


def make_losses(method: str) -> list[types.AuxiliaryLoss]:
    """Return the auxiliary losses of a method."""
    tasks = {"task": "order", "propensity": "click"}
    if method.endswith("IPW"):
        return [auxiliary.InversePropensity(**tasks)]
    return [auxiliary.DoublyRobust(**tasks)] if method.endswith("DR") else []


def make(method: str, network: str, seed: int, train_rows: int) -> experiment.Experiment:
    """Return the experiment of a row of the table."""
    trunk, tower = NETWORKS[network]
    source = funnel.Funnel(rows={"train": train_rows, "test": 10_000}, seed=seed)
    fields = {
        name: dtype if not shape else (dtype, shape)
        for name, (dtype, shape) in source.fields.items()
    }
    inputs = {name: fields.pop(name) for name in ("x", "market")}
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=source,
            spec=spec.Spec(features=inputs, labels=fields),
            eval_split="test",
            batch_size=_BATCH,
            shuffle_buffer=1000,
            cache=True,
        ),
        model=model.MultiTaskModel(
            columns=[
                features.Numeric(names=["x"], normalization="none"),
                features.Categorical(names=["market"], dimension=4),
            ],
            network=networks.SharedBottom(
                trunk=networks.MLP(layers=trunk), tower=networks.MLP(layers=tower)
            ),
            heads=make_heads(method),
            update=update.Update(optimizer=optimizers.LazyAdam(learning_rate=0.002)),
            auxiliary_losses=make_losses(method),
        ),
        run=experiment.Run(
            train_steps=_STEPS, checkpoint_steps=_STEPS, summary_steps=_STEPS, seed=seed
        ),
        serving=serving.Serving(check_rows=0),
    )


def compare(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Return the bias of predicted probabilities, and their expected AUC for random labels."""
    order = np.argsort(predicted, kind="stable")
    true = true[order]
    # Count pairs of rows with the labels 1 and 0; equal predictions are rare.
    below = np.cumsum(1 - true) - (1 - true)
    pairs = true.sum() * (1 - true).sum() - (true * (1 - true)).sum()
    return {"bias": predicted.mean() - true.mean(), "auc": (true * below).sum() / pairs}


def measure(method: str, network: str, seed: int, train_rows: int) -> dict[str, float]:
    """Train once, and compare the predictions for all impressions with the true probabilities."""
    settings = make(method, network, seed, train_rows)
    with tempfile.TemporaryDirectory() as folder:
        verbs.train(settings, folder)
        predictions = list(verbs.predict(settings, folder, "test", keep=[_TRUE]))
    predicted, true = (
        np.array([row[name] for row in predictions], np.float64)
        for name in ("order/probability", _TRUE)
    )
    return {name: float(value) for name, value in compare(predicted, true).items()}


def show(results_of_methods: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Return the table of {method: results by seed}."""
    lines = []
    for method, results in results_of_methods.items():
        cells = [method, f"{statistics.mean(result['bias'] for result in results):+.4f}"]
        for name in ("bias", "auc"):
            values, base = (
                [abs(result[name]) for result in some]
                for some in (results, results_of_methods["naive"])
            )
            cells.append(f"{statistics.mean(values):.4f}")
            cells.append("" if method == "naive" else rows.describe_difference(values, base))
        lines.append(cells)
    header = ["method", "bias", "size of bias", "less naive", "AUC", "less naive"]
    return rows.markdown(header, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--output", default=os.path.join("runs", "funnels"))
    options = parser.parse_args(arguments)
    logging.set_verbosity(logging.ERROR)
    for network in options.networks:
        results: dict[str, list[dict[str, float]]] = {}
        for seed in range(1, options.seeds + 1):
            for method in dict.fromkeys(["naive", *options.methods]):
                path = os.path.join(
                    options.output, network, str(options.rows), f"{method} {seed}.json"
                )
                run = functools.partial(measure, method, network, seed, options.rows)
                results.setdefault(method, []).append(rows.load_or_measure(path, run))
        print(
            f"\n{network}, {options.rows:,} rows, {options.seeds} seeds:\n\n{show(results)}",
            flush=True,
        )


if __name__ == "__main__":
    rows.guard(main)
