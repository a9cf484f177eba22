"""Measures exact log-likelihoods of restricted Boltzmann machines on held-out digits.

    python -m benchmarks.rbm --seeds 3
    python -m benchmarks.rbm --labels 100

The images are the digits of this repository, 1,437 to train on and 360 held out. A pixel counts as
on if its value is at least 8 of 16. With 12 hidden units the likelihood is exact, because the
partition function Z is a sum over 4,096 states. `networks.RBM` trains as in `launch.train`, with
persistent chains and with CD-1. scikit-learn's BernoulliRBM also has persistent chains.
BernoulliRBM trains with two learning rates, and the table shows the result that is better on
held-out rows. The log-likelihood is in nats per row; higher is better. AUC measures how well the
likelihood separates held-out rows from made-up rows. Each pixel of a made-up row comes from another
random held-out image.

`--labels 100` compares two classifiers with 100 labelled images: one starts from random values, the
other from the hidden layer of an RBM of 128 units that was trained on all training images.
"""

import argparse
import dataclasses
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import digits, rows
from mtl import (
    checks,
    experiment,
    features,
    heads,
    model,
    networks,
    serving,
    spec,
    transfer,
    types,
    verbs,
)
from mtl.data import pipeline
from mtl.optimization import optimizers, schedules, update

UNITS = 12
_STEPS, _BATCH, _RATE, _CHAINS, _WIDTH = 10000, 100, 0.01, 500, 128
# {row of the table: (chains, Gibbs steps)}
_OURS = {"ours, persistent chains": (_CHAINS, 1), "ours, CD-1": (0, 1)}
_INDEPENDENT, _THEIRS = "independent pixels", "scikit-learn"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrays(types.Source):
    """Rows of a field `x` and a label `digit`.

    Attributes:
      splits: {split: {field: values [N, ...]}}.
    """

    splits: Any = dataclasses.field(repr=False)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split."""
        return tf.data.Dataset.from_tensor_slices(self.splits[split])

    def decode(self, batch: Any, spec: spec.Spec, with_labels: bool) -> dict[str, tf.Tensor]:
        """Return the fields of a batch."""
        return {name: batch[name] for name in (spec.fields if with_labels else spec.features)}

    def scan(self, split: str, spec: spec.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield the rows one by one."""
        fields = self.splits[split]
        for index in range(len(fields["x"])):
            row = {name: values[index].tolist() for name, values in fields.items()}
            yield f"{split} row {index}", row


@functools.cache
def read_fields() -> dict[str, dict[str, np.ndarray]]:
    """Return {split: {"x": [N, 64] of 0 and 1, "digit": [N]}}."""
    return {
        split: {"x": np.float32(pixels >= 8), "digit": labels}
        for split, (pixels, labels) in digits.read().items()
    }


def read() -> dict[str, np.ndarray]:
    """Return {split: [N, 64] of 0 and 1}."""
    return {split: fields["x"] for split, fields in read_fields().items()}


def compute_log_likelihoods(
    values: np.ndarray, kernel: np.ndarray, hidden_bias: np.ndarray, visible_bias: np.ndarray
) -> np.ndarray:
    """Compute exact log-likelihoods of rows, by a sum over all states of the hidden units.

    Args:
      values: the rows, [N, D] of 0 and 1.
      kernel: the weights, [D, H].
      hidden_bias: the biases of the hidden units, [H].
      visible_bias: the biases of the visible units, [D].

    Returns:
      The log-likelihoods in nats, [N].
    """
    numbers = np.arange(2 ** len(hidden_bias))
    states = (numbers[:, np.newaxis] >> np.arange(len(hidden_bias)) & 1).astype(np.float64)
    sums = np.logaddexp(0, states @ kernel.T.astype(np.float64) + visible_bias).sum(1)
    log_partition = np.logaddexp.reduce(states @ hidden_bias + sums)
    hidden = np.logaddexp(0, values.astype(np.float64) @ kernel + hidden_bias).sum(1)
    return values @ visible_bias.astype(np.float64) + hidden - log_partition


def measure_independent() -> dict[str, float]:
    """Measure a model of independent pixels, with smoothed shares from the training rows."""
    splits, started = read(), time.perf_counter()
    share = (splits["train"].sum(0) + 1) / (len(splits["train"]) + 2)
    seconds = time.perf_counter() - started
    figures = _measure(lambda x: x @ np.log(share) + (1 - x) @ np.log1p(-share))
    return {**figures, "seconds": seconds}


def _measure(compute: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
    """Return {split: mean nats of a row} and the AUC.

    Args:
      compute: a function from rows [N, 64] to log-likelihoods [N].
    """
    random, test = np.random.default_rng(0), read()["test"]
    # Each pixel is on as often as in the images, but independently of other pixels.
    noise = compute(random.permuted(test, axis=0))
    scores = np.concatenate([compute(test), noise])
    labels = np.repeat([1, 0], [len(test), len(noise)])
    nats = {split: float(compute(x).mean()) for split, x in read().items()}
    return {**nats, "auc": rows.compute_auc(labels, scores)}


def _measure_machine(*values: np.ndarray) -> dict[str, float]:
    return _measure(lambda x: compute_log_likelihoods(x, *values))


def fit(seed: int) -> dict[str, float]:
    """Train scikit-learn's RBM with two learning rates; return the figures of the better RBM."""
    from sklearn import neural_network

    figures = []
    for rate in (0.05, 0.01):
        theirs = neural_network.BernoulliRBM(
            UNITS, learning_rate=rate, batch_size=10, n_iter=200, random_state=seed
        )
        started = time.perf_counter()
        theirs.fit(read()["train"])
        seconds = time.perf_counter() - started
        nats = _measure_machine(
            theirs.components_.T, theirs.intercept_hidden_, theirs.intercept_visible_
        )
        figures.append({**nats, "seconds": seconds})
    return max(figures, key=lambda of_rate: of_rate["test"])


def _train(
    folder: str,
    trunk: Any,
    head: types.Head,
    seed: int,
    num_rows: int | None = None,
    **settings: Any,
) -> experiment.Experiment:
    """Train a trunk and a head on `num_rows` random training rows; None means all rows."""
    fields, labels = read_fields(), {}
    if num_rows:
        ids = np.random.default_rng(seed).permutation(len(fields["train"]["x"]))[:num_rows]
        train_fields = {name: values[ids] for name, values in fields["train"].items()}
        fields, labels = {**fields, "train": train_fields}, {"digit": "int64"}
    steps = _STEPS if num_rows is None else 1000
    settings_of_run = experiment.Experiment(
        data=pipeline.Pipeline(
            source=Arrays(splits=fields),
            spec=spec.Spec(
                features={"x": ("float32", fields["train"]["x"].shape[1:])}, labels=labels
            ),
            batch_size=min(_BATCH, num_rows or _BATCH),
            shuffle_buffer=len(fields["train"]["x"]),
            cache=True,
        ),
        model=model.MultiTaskModel(
            columns=[features.Numeric(names=["x"], normalization="none")],
            network=networks.SharedBottom(trunk=trunk),
            heads=[head],
            update=update.Update(
                optimizer=optimizers.Adam(learning_rate=schedules.Cosine(value=_RATE))
            ),
        ),
        run=experiment.Run(train_steps=steps, checkpoint_steps=steps, seed=seed),
        serving=serving.Serving(check_rows=0),
        **settings,
    )
    verbs.train(settings_of_run, folder)
    return settings_of_run


def train(chains: int, steps: int, seed: int) -> dict[str, float]:
    """Train `networks.RBM`, and return its nats, AUC and seconds."""
    part = networks.RBM(units=UNITS, chains=chains, steps=steps, output="free_energy")
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        _train(folder, part, heads.Score(name="usual"), seed)
        seconds = time.perf_counter() - started
        saved = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
        names = ("hidden_0/kernel", "hidden_0/bias", "visible/bias")
        values = [saved.get_tensor(f"network/trunk/{name}") for name in names]
    return {**_measure_machine(*values), "seconds": seconds}


def classify(num_labels: int, seed: int) -> dict[str, float]:
    """Return {"random" or "rbm", by the start of the classifier: held-out accuracy}."""
    layer = networks.MLP(layers=[_WIDTH], activation="sigmoid")
    head, accuracies = heads.MultiClass(name="digit", classes=10), {}
    with tempfile.TemporaryDirectory() as folder:
        part = networks.RBM(units=_WIDTH, output="free_energy")
        _train(f"{folder}/start", part, heads.Score(name="usual"), seed)
        start = transfer.WarmStart(source=f"{folder}/start", exclude=["^head/"])
        for name, settings in (("random", {}), ("rbm", {"warm_start": start})):
            settings_of_run = _train(f"{folder}/{name}", layer, head, seed, num_labels, **settings)
            metrics = verbs.evaluate(settings_of_run, f"{folder}/{name}", "test", "latest")
            accuracies[name] = float(metrics["digit/accuracy"])
    return accuracies


def compare_starts(num_labels: int, seeds: int, out: str) -> str:
    """Measure results that are not stored yet, and return the table of classifiers."""
    results = []
    for seed in range(1, seeds + 1):
        path = os.path.join(out, f"classify_{num_labels}_{seed}.json")
        results.append(rows.load_or_measure(path, functools.partial(classify, num_labels, seed)))
        print(f"{num_labels} labels, seed {seed}: {results[-1]}", flush=True)
    lines = [[name, ", ".join(f"{run[name]:.3f}" for run in results)] for name in ("random", "rbm")]
    return rows.markdown(["starts from", "accuracy by seed"], lines)


def compare(seeds: int, out: str) -> str:
    """Measure results that are not stored yet, and return the table of log-likelihoods."""
    sides = {_INDEPENDENT: lambda seed: measure_independent(), _THEIRS: fit}
    for name, (chains, steps) in _OURS.items():
        sides[name] = functools.partial(train, chains, steps)
    lines = []
    for side, measure in sides.items():
        results = []
        for seed in range(1, seeds + 1):
            path = os.path.join(out, f"{side.replace(' ', '_')}_{seed}.json")
            results.append(rows.load_or_measure(path, functools.partial(measure, seed)))
            print(f"{side}, seed {seed}: {results[-1]}", flush=True)
        means = {key: statistics.mean(run[key] for run in results) for key in results[0]}
        by_seed = ", ".join(f"{run['test']:.2f}" for run in results)
        numbers = [f"{means['auc']:.3f}", f"{means['seconds']:.0f}"]
        lines.append([side, f"{means['train']:.2f}", f"{means['test']:.2f}", by_seed, *numbers])
    return rows.markdown(["side", "training", "held out", "by seed", "AUC", "seconds"], lines)


def main() -> None:
    """Measure results that are not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--labels", type=int, help="labelled images of classifiers to compare")
    parser.add_argument("--out", default="runs/rbm", help="the folder of results")
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    checks.at_least("--seeds", args.seeds, 1)
    if args.labels is None:
        print(compare(args.seeds, args.out))
        return
    checks.at_least("--labels", args.labels, 10)
    print(compare_starts(args.labels, args.seeds, args.out))


if __name__ == "__main__":
    rows.guard(main)
