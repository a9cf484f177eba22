"""Compares Gaussian mixtures that are trained by gradient descent with scikit-learn's EM.

    python -m benchmarks.mixtures --seeds 3
    python -m benchmarks.mixtures --seeds 3 --floor      # a bound of the scales, without noise

The measure is the negative log-likelihood of a test row in nats. Both mixtures have 8 components
and read the same standardised numbers: the first 5 principal components of the digits in this
package, and the numeric columns of UCI Adult in MTL_DATA_DIR. `heads.GaussianMixture` of `mtl`
trains like in `launch.train`, with 40 starts or 1 start, and with noise of 0.1. scikit-learn's
`GaussianMixture(n_init=10)` adds `reg_covar`, the square of this noise, to all variances. Lower
nats are better. The difference is the value of `mtl` minus scikit-learn's value, paired by seed.
"""

import argparse
import dataclasses
import functools
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import digits, rows
from mtl import checks, experiment, features, heads, model, networks, serving, spec, types, verbs
from mtl.data import csv, pipeline
from mtl.optimization import optimizers, schedules, update

DATA = ("digits", "Adult")
COVARIANCES = {"diagonal": "diag", "full": "full"}
STARTS = (40, 1)
_COMPONENTS, _NOISE, _STEPS, _BATCH, _RATE, _PRINCIPAL = 8, 0.1, 2000, 256, 0.1, 5
_SPREAD = 0.5
_LEAST = 0.01  # A bound far below the noise, without effect on the scales.
# {column: its place in a line}
_ADULT = {
    "age": 0,
    "education-num": 4,
    "hours-per-week": 12,
    "capital-gain": 10,
    "capital-loss": 11,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrays(types.Source):
    """A source of rows with the field `x`.

    Attributes:
      splits: {split: [N, D] float32}.
    """

    splits: Any = dataclasses.field(repr=False)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split."""
        return tf.data.Dataset.from_tensor_slices({"x": self.splits[split]})

    def decode(self, batch: Any, spec: spec.Spec, with_labels: bool) -> dict[str, tf.Tensor]:
        """Decode a batch."""
        return {"x": batch["x"]}

    def scan(self, split: str, spec: spec.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield the rows one by one."""
        for index, row in enumerate(self.splits[split]):
            yield f"{split} row {index}", {"x": row.tolist()}


@functools.cache
def read(name: str) -> dict[str, np.ndarray]:
    """Return {split: numbers [N, D]}, standardised by moments of the training split."""
    splits = _read_digits() if name == "digits" else _read_adult()
    mean, stddev = splits["train"].mean(0), splits["train"].std(0)
    return {
        split: ((numbers - mean) / stddev).astype(np.float32) for split, numbers in splits.items()
    }


def _read_digits() -> dict[str, np.ndarray]:
    """Return the first principal components of the images."""
    images = {split: np.float64(pixels) for split, (pixels, _) in digits.read().items()}
    mean = images["train"].mean(0)
    _, _, axes = np.linalg.svd(images["train"] - mean, full_matrices=False)
    return {split: (pixels - mean) @ axes[:_PRINCIPAL].T for split, pixels in images.items()}


def _read_adult() -> dict[str, np.ndarray]:
    """Return the numeric columns, with logarithms of sums of money."""
    columns = [f"column_{number}" for number in range(15)]
    for name, number in _ADULT.items():
        columns[number] = name
    source = csv.Csv(
        files={"train": "adult.data.gz", "test": "adult.test.gz"},
        data_dir=rows.data_dir("adult"),
        columns=columns,
        comment="|",
    )
    fields = spec.Spec(features=dict.fromkeys(_ADULT, "float32"), labels={})
    splits = {}
    for split in ("train", "test"):
        batch = next(
            source.records(split)
            .batch(10**6)
            .map(lambda lines: source.decode(lines, fields, False))
            .as_numpy_iterator()
        )
        numbers = np.stack([batch[name] for name in _ADULT], axis=1).astype(np.float64)
        numbers[:, 3:] = np.log1p(numbers[:, 3:])
        splits[split] = numbers
    return splits


def train(
    name: str, covariance: str, starts: int, seed: int, is_floor: bool = False
) -> dict[str, float]:
    """Train the mixture of `mtl`; return the mean nats of a row of each split, and the seconds."""
    splits = read(name)
    settings = experiment.Experiment(
        data=pipeline.Pipeline(
            source=Arrays(splits=splits),
            spec=spec.Spec(features={"x": ("float32", splits["train"].shape[1:])}, labels={}),
            batch_size=_BATCH,
            shuffle_buffer=len(splits["train"]),
            cache=True,
        ),
        model=model.MultiTaskModel(
            columns=[features.Numeric(names=["x"], normalization="none")],
            network=networks.SharedBottom(trunk=networks.MLP(layers=[])),
            heads=[
                heads.GaussianMixture(
                    name="x",
                    num_components=_COMPONENTS,
                    num_starts=starts,
                    covariance=covariance,
                    min_scale=_NOISE if is_floor else _LEAST,
                    initial_spread=_SPREAD,
                    noise=0.0 if is_floor else _NOISE,
                )
            ],
            update=update.Update(
                optimizer=optimizers.Adam(learning_rate=schedules.Cosine(value=_RATE))
            ),
        ),
        run=experiment.Run(train_steps=_STEPS, checkpoint_steps=_STEPS, seed=seed),
        serving=serving.Serving(check_rows=0),
    )
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        verbs.train(settings, folder)
        seconds = time.perf_counter() - started
        nats = {
            split: float(verbs.evaluate(settings, folder, split, "latest")["x/average_loss"])
            for split in splits
        }
    return {**nats, "seconds": seconds}


def fit(name: str, covariance: str, seed: int) -> dict[str, float]:
    """Fit scikit-learn's mixture; return the mean nats of a row of each split, and the seconds."""
    from sklearn import mixture

    splits, started = read(name), time.perf_counter()
    theirs = mixture.GaussianMixture(
        _COMPONENTS,
        covariance_type=COVARIANCES[covariance],
        n_init=10,
        max_iter=500,
        reg_covar=_NOISE**2,
        random_state=seed,
    )
    theirs.fit(splits["train"])
    seconds = time.perf_counter() - started
    return {
        **{split: -theirs.score(numbers) for split, numbers in splits.items()},
        "seconds": seconds,
    }


def compare(seeds: int, out: str, is_floor: bool = False) -> str:
    """Measure results that are not stored yet, and return the table."""
    lines = []
    for name, covariance in itertools.product(DATA, COVARIANCES):
        results = {}
        for starts, seed in itertools.product((0, *STARTS), range(1, seeds + 1)):
            ending = "_floor" * (is_floor and starts > 0)
            path = os.path.join(out, f"{name}_{covariance}_{starts}_{seed}{ending}.json")
            measure = (
                functools.partial(train, name, covariance, starts, seed, is_floor)
                if starts
                else functools.partial(fit, name, covariance, seed)
            )
            result = rows.load_or_measure(path, measure)
            results.setdefault(starts, []).append(result)
            print(f"{name}, {covariance}, starts {starts}, seed {seed}: {result}", flush=True)
        for starts, runs in results.items():
            side = f"ours, {starts} start{'s' * (starts > 1)}" if starts else "scikit-learn"
            means = {key: statistics.mean(run[key] for run in runs) for key in runs[0]}
            differences = [
                rows.describe_difference(*([run[split] for run in of] for of in (runs, results[0])))
                for split in ("train", "test")
            ]
            numbers = [f"{means[split]:.4f}" for split in ("train", "test")]
            cells = [*numbers, *(differences if starts else ["", ""])]
            lines.append([name, covariance, side, *cells, f"{means['seconds']:.0f}"])
    header = ["data", "covariance", "side", "training", "held out"]
    header += ["training, difference", "held out, difference", "seconds"]
    return rows.markdown(header, lines)


def main() -> None:
    """Measure results that are not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="runs/mixtures", help="the folder of results")
    floor = "bound the scales by 0.1, without noise"
    parser.add_argument("--floor", action="store_true", help=floor)
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    checks.at_least("--seeds", args.seeds, 1)
    print(compare(args.seeds, args.out, args.floor))


if __name__ == "__main__":
    rows.guard(main)
