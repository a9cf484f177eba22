"""Restricted Boltzmann machines of digits: exact log-likelihoods of held-out rows.

    python -m benchmarks.rbm --seeds 3

The images are those that come along, 1,437 to train on and 360 held out; a pixel is on from 8 of
16. With 12 hidden units the likelihood is exact: Z is a sum over 4,096 states. Ours is
`networks.RBM` as `launch.train` trains it, with persistent chains and with CD-1. Theirs is
scikit-learn's BernoulliRBM, which has persistent chains too, with the better of two learning rates
on held-out rows. More is better, in nats of a row. AUC tells how well the likelihood separates
held-out rows from rows of pixels that are drawn one by one, each from another held-out image.
"""

import argparse
import dataclasses
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import rows
from mtl import checks, experiment, features, heads, model, networks, serving, spec, types
from mtl.data import pipeline, tfds
from mtl.optimization import optimizers, schedules, update
from mtl.runs import verbs

UNITS = 12
_STEPS, _BATCH, _RATE, _CHAINS = 10000, 100, 0.01, 500
# {how: chains, Gibbs steps}
_OURS = {"ours, persistent chains": (_CHAINS, 1), "ours, CD-1": (0, 1)}
_INDEPENDENT, _THEIRS = "independent pixels", "scikit-learn"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrays(types.Source):
    """Rows of one field `x`, and of a label that nothing reads.

    Attributes:
      splits: {split: [N, D] float32}.
    """

    splits: Any = dataclasses.field(repr=False)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split."""
        values = self.splits[split]
        return tf.data.Dataset.from_tensor_slices({"x": values, "none": np.zeros(len(values))})

    def decode(self, batch: Any, spec: spec.Spec, with_labels: bool) -> dict[str, tf.Tensor]:
        """Decode a batch."""
        labels = {"none": tf.cast(batch["none"], tf.float32)} if with_labels else {}
        return {"x": batch["x"], **labels}

    def scan(self, split: str, spec: spec.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield the rows one by one."""
        for index, row in enumerate(self.splits[split]):
            yield f"{split} row {index}", {"x": row.tolist(), "none": 0.0}


@functools.cache
def read() -> dict[str, np.ndarray]:
    """Return {split: [N, 64] of 0 and 1}."""
    source = tfds.Tfds(name="mtl.data.digits.builder.Digits")
    images = {
        split: np.stack([row["image"].ravel() for row in source.records(split).as_numpy_iterator()])
        for split in ("train", "test")
    }
    return {split: (own >= 8).astype(np.float32) for split, own in images.items()}


def compute_log_likelihoods(
    values: np.ndarray, kernel: np.ndarray, hidden_bias: np.ndarray, visible_bias: np.ndarray
) -> np.ndarray:
    """Return the log-likelihoods of rows, [N, D] of 0 and 1 -> [N], by all states of hidden units.

    Args:
      values: the rows.
      kernel: [D, H].
      hidden_bias: [H].
      visible_bias: [D].
    """
    numbers = np.arange(2 ** len(hidden_bias))
    states = (numbers[:, np.newaxis] >> np.arange(len(hidden_bias)) & 1).astype(np.float64)
    sums = np.logaddexp(0, states @ kernel.T.astype(np.float64) + visible_bias).sum(1)
    log_partition = np.logaddexp.reduce(states @ hidden_bias + sums)
    hidden = np.logaddexp(0, values.astype(np.float64) @ kernel + hidden_bias).sum(1)
    return values @ visible_bias.astype(np.float64) + hidden - log_partition


def measure_independent() -> dict[str, float]:
    """Return the nats of a row of each split where every pixel is on by its share, smoothed."""
    splits, started = read(), time.perf_counter()
    share = (splits["train"].sum(0) + 1) / (len(splits["train"]) + 2)
    seconds = time.perf_counter() - started
    found = _measure(lambda own: own @ np.log(share) + (1 - own) @ np.log1p(-share))
    return {**found, "seconds": seconds}


def _measure(compute: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
    """Return the nats of a row of each split, and the AUC, of [N, 64] -> log-likelihoods [N]."""
    random, test = np.random.default_rng(0), read()["test"]
    # Each pixel is on as often as in images, and independently of the others.
    others = compute(random.permuted(test, axis=0))
    scores = np.concatenate([compute(test), others])
    labels = np.repeat([1, 0], [len(test), len(others)])
    nats = {split: float(compute(own).mean()) for split, own in read().items()}
    return {**nats, "auc": rows.compute_auc(labels, scores)}


def _measure_machine(*values: np.ndarray) -> dict[str, float]:
    return _measure(lambda own: compute_log_likelihoods(own, *values))


def fit(seed: int) -> dict[str, float]:
    """Return the same by scikit-learn, of the better of two learning rates on held-out rows."""
    from sklearn import neural_network

    found = []
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
        found.append({**nats, "seconds": seconds})
    return max(found, key=lambda one: one["test"])


def train(chains: int, steps: int, seed: int) -> dict[str, float]:
    """Return the same by ours."""
    splits = read()
    made = experiment.Experiment(
        data=pipeline.Pipeline(
            source=Arrays(splits=splits),
            spec=spec.Spec(
                features={"x": ("float32", splits["train"].shape[1:])}, labels={"none": "float32"}
            ),
            batch_size=_BATCH,
            shuffle_buffer=len(splits["train"]),
            cache=True,
        ),
        model=model.MultiTaskModel(
            columns=[features.Numeric(names=["x"], normalization="none")],
            network=networks.SharedBottom(
                trunk=networks.RBM(units=UNITS, chains=chains, steps=steps, output="free_energy")
            ),
            heads=[heads.Score(name="usual")],
            update=update.Update(
                optimizer=optimizers.Adam(learning_rate=schedules.Cosine(value=_RATE))
            ),
        ),
        run=experiment.Run(train_steps=_STEPS, checkpoint_steps=_STEPS, seed=seed),
        serving=serving.Serving(check_rows=0),
    )
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        verbs.train(made, folder)
        seconds = time.perf_counter() - started
        saved = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
        names = ("hidden_0/kernel", "hidden_0/bias", "visible/bias")
        values = [saved.get_tensor(f"network/trunk/{name}") for name in names]
    return {**_measure_machine(*values), "seconds": seconds}


def compare(seeds: int, out: str) -> str:
    """Measure what is missing, and return the table."""
    sides = {_INDEPENDENT: lambda seed: measure_independent(), _THEIRS: fit}
    for name, (chains, steps) in _OURS.items():
        sides[name] = functools.partial(train, chains, steps)
    lines = []
    for side, measure in sides.items():
        results = []
        for seed in range(1, seeds + 1):
            path = os.path.join(out, f"{side.replace(' ', '_')}_{seed}.json")
            results.append(rows.kept(path, functools.partial(measure, seed)))
            print(f"{side}, seed {seed}: {results[-1]}", flush=True)
        means = {key: statistics.mean(one[key] for one in results) for key in results[0]}
        each = ", ".join(f"{one['test']:.2f}" for one in results)
        numbers = [f"{means['auc']:.3f}", f"{means['seconds']:.0f}"]
        lines.append([side, f"{means['train']:.2f}", f"{means['test']:.2f}", each, *numbers])
    return rows.markdown(["side", "training", "held out", "by seed", "AUC", "seconds"], lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="runs/rbm", help="where results are kept")
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    checks.at_least("--seeds", args.seeds, 1)
    print(compare(args.seeds, args.out))


if __name__ == "__main__":
    try:
        main()
    except checks.UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
