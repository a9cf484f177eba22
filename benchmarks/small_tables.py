"""Compares small embedding tables by AUC on simulated impressions, bytes, and the time of a step.

    python -m benchmarks.small_tables --seeds 3

Each row is an impression of an item on a site to a user. The frequencies of ids follow a power law.
The logit of a click is the sum of an effect of each id and of the inner product of hidden vectors
of user and item. So rare ids matter, and the best possible AUC is known. A run reads each row once.
Tables named "small" have an eighth of the bytes of a table with a row for each id. The remaining
lines of the table compare the memory of optimizers. The printed table shows the test AUC, the
paired difference to the full table with its standard error, and the bytes of tables and of the
optimizer's state. Step times are ratios to the full table: medians of the ratios of all rounds.
"""

import argparse
import dataclasses
import functools
import itertools
import os
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import balancing_speed, rows
from mtl import checks, experiment, features, heads, model, networks, serving, spec, types, verbs
from mtl.data import pipeline
from mtl.features import embeddings
from mtl.optimization import optimizers, update

tf1 = tf.compat.v1

SIZES = {"user": 20_000, "item": 10_000, "site": 2_000}
ROWS = {"train": 200_000, "test": 40_000}
FULL = "a row for each id"
_WIDTH, _SHARE, _BATCH, _HIDDEN = 16, 8, 512, 4
_SKEW = 1.05
_STEPS = ROWS["train"] // _BATCH


@dataclasses.dataclass(frozen=True, kw_only=True)
class Impressions(types.Source):
    """Rows with skewed ids, and clicks with known probabilities.

    Attributes:
      seed: the seed of the effects of ids, and of the rows.
    """

    seed: int

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split."""
        return tf.data.Dataset.from_tensor_slices(draw(self.seed, split)[0])

    def decode(self, batch: Any, spec: spec.Spec, with_labels: bool) -> dict[str, tf.Tensor]:
        """Return the fields of a batch."""
        return {name: batch[name] for name in (spec.fields if with_labels else spec.features)}

    def scan(self, split: str, spec: spec.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield the rows one by one."""
        columns, _ = draw(self.seed, split)
        for row in range(ROWS[split]):
            yield f"{split} row {row}", {name: columns[name][row].item() for name in spec.fields}


@functools.lru_cache(maxsize=4)
def draw(seed: int, split: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the rows of a split {field: values [N]}, and their true probabilities [N]."""
    effects = np.random.default_rng(seed)
    rng = np.random.default_rng([seed, list(ROWS).index(split)])
    fields, logits, hidden = {}, np.full(ROWS[split], -1.0), []
    for name, size in SIZES.items():
        share = np.arange(1, size + 1) ** -_SKEW
        # A permutation hides the frequency of an id from the model.
        ids = effects.permutation(size)[rng.choice(size, ROWS[split], p=share / share.sum())]
        logits += effects.normal(size=size)[ids]
        hidden.append(effects.normal(size=[size, _HIDDEN])[ids] / _HIDDEN**0.5)
        fields[name] = ids.astype(np.int64)
    logits += 1.5 * (hidden[0] * hidden[1]).sum(1)
    probabilities = 1 / (1 + np.exp(-logits))
    click = (rng.random(ROWS[split]) < probabilities).astype(np.int64)
    return {**fields, "click": click}, probabilities


@dataclasses.dataclass(frozen=True)
class Kind:
    """The settings of a line of the table.

    Attributes:
      make: a function from a field and its number of ids to the column.
      tables: the optimizer of the embedding tables.
    """

    make: Callable[[str, int], types.Column]
    tables: Any = optimizers.LazyAdam(learning_rate=0.005)


def _identity(field: str, size: int, **settings: Any) -> types.Column:
    return features.Identity(names=[field], size=size, dimension=_WIDTH, **settings)


def _half(field: str, size: int) -> types.Column:
    return _identity(field, size, storage="bfloat16")


def _hashed(field: str, size: int) -> types.Column:
    return features.Hashed(names=[field], num_buckets=size // _SHARE, dimension=_WIDTH)


def _pairs(combine: str) -> Callable[[str, int], types.Column]:
    def make(field: str, size: int) -> types.Column:
        small = embeddings.QuotientRemainder(num_remainders=_SHARE + 1, combine=combine)
        return _identity(field, size, embedding=small)

    return make


def _several(field: str, size: int) -> types.Column:
    return _identity(field, size, embedding=embeddings.MultiHash(num_buckets=size // _SHARE))


def _unified(field: str, size: int) -> types.Column:
    del size
    total = 2 * sum(SIZES.values()) // _SHARE  # The table has twice as many rows of half the width.
    return features.Unified(names=[field], num_buckets=total, dimension=_WIDTH // 2)


def _mixed(field: str, size: int) -> types.Column:
    small = embeddings.MixedDimensions(ends=[size // 60, size // 8], dimensions=[_WIDTH, 4, 1])
    return features.Categorical(names=[field], min_count=1, dimension=_WIDTH, embedding=small)


# The loss is a mean over the batch, so gradients of rows are small. With the default accumulator of
# 0.1, their squares would have no effect, and Adagrad would act like SGD.
_ADAGRAD = optimizers.Adagrad(learning_rate=0.05, initial_accumulator=1e-6)
_ROW_WISE = optimizers.RowWiseAdagrad(learning_rate=0.05, initial_accumulator=1e-6)
KINDS: Mapping[str, Kind] = {
    FULL: Kind(_identity),
    "the same in bfloat16": Kind(_half),
    "the same, Adagrad": Kind(_identity, _ADAGRAD),
    "the same, row-wise Adagrad": Kind(_identity, _ROW_WISE),
    "the same, row-wise Adagrad, bfloat16": Kind(_half, _ROW_WISE),
    "small: one hash": Kind(_hashed),
    "small: quotient times remainder": Kind(_pairs("multiply")),
    "small: quotient plus remainder": Kind(_pairs("add")),
    "small: two hashes": Kind(_several),
    "small: unified, two lookups": Kind(_unified),
    "small: mixed dimensions": Kind(_mixed),
}


def make_model(kind: Kind) -> model.MultiTaskModel:
    """Return the model of a kind."""
    return model.MultiTaskModel(
        columns=[kind.make(field, size) for field, size in SIZES.items()],
        network=networks.SharedBottom(trunk=networks.MLP(layers=[64, 32])),
        heads=[heads.Binary(name="click")],
        update=update.Update(
            optimizer=optimizers.LazyAdam(learning_rate=0.002),
            optimizers={"^features/": kind.tables},
        ),
    )


def train(name: str, seed: int) -> dict[str, float]:
    """Train a model; return the test AUC, and the bytes of tables and of the optimizer's state."""
    settings = experiment.Experiment(
        data=pipeline.Pipeline(
            source=Impressions(seed=seed),
            spec=spec.Spec(features=dict.fromkeys(SIZES, "int64"), labels={"click": "int64"}),
            batch_size=_BATCH,
            shuffle_buffer=1,
        ),
        model=make_model(KINDS[name]),
        run=experiment.Run(train_steps=_STEPS, checkpoint_steps=_STEPS, seed=seed),
        serving=serving.Serving(check_rows=0),
    )
    with tempfile.TemporaryDirectory() as folder:
        verbs.train(settings, folder)
        metrics = verbs.evaluate(settings, folder, "test", "latest")
        reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
        sizes = {
            name: int(np.prod(shape)) * reader.get_variable_to_dtype_map()[name].size
            for name, shape in reader.get_variable_to_shape_map().items()
        }
    in_columns = {name: size for name, size in sizes.items() if name.startswith("features/")}
    state = [key for key in in_columns if key.rpartition("/")[0] in in_columns]
    state_size = sum(in_columns[key] for key in state)
    return {
        "auc": float(metrics["click/auc"]),
        "tables": sum(in_columns.values()) - state_size,
        "state": state_size,
    }


def measure_speed(names: Sequence[str], rounds: int) -> dict[str, float]:
    """Return {kind: the median ratio of its step time to the step time of the full table}."""
    fields, _ = draw(1, "train")

    def batches() -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices(fields).batch(_BATCH).take(100)

        def split(batch: Any) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
            return {name: batch[name] for name in SIZES}, {"click": batch["click"]}

        return data.map(split).cache().repeat()

    def plain(kind: Kind) -> model.MultiTaskModel:
        made = make_model(kind)
        columns = [
            dataclasses.replace(column, vocabulary=list(range(SIZES[column.names[0]])))
            if isinstance(column, features.Categorical)
            else column
            for column in made.columns
        ]
        return dataclasses.replace(made, columns=columns)

    sides = {name: balancing_speed.Steps(plain(KINDS[name]), batches) for name in names}
    times = rows.take_turns(sides, rounds, 100, warm_up=30)
    return {
        name: statistics.median(a / b for a, b in zip(secs, times[FULL], strict=True))
        for name, secs in times.items()
    }


def measure_truth(seed: int) -> float:
    """Return the AUC of the true probabilities on the test split."""
    columns, probabilities = draw(seed, "test")
    return rows.compute_auc(columns["click"], probabilities)


def compare(names: Sequence[str], seeds: Sequence[int], rounds: int, out: str) -> str:
    """Measure results that are not stored yet, and return the table."""
    results: dict[str, list[dict[str, float]]] = {}
    for seed, name in itertools.product(seeds, names):
        path = os.path.join(out, re.sub(r"\W+", "_", name), f"seed_{seed}.json")
        results.setdefault(name, []).append(
            rows.load_or_measure(path, functools.partial(train, name, seed))
        )
        print(f"{name}, seed {seed}: {results[name][-1]}", flush=True)
    ratios = rows.load_or_measure(
        os.path.join(out, "speed.json"), functools.partial(measure_speed, names, rounds)
    )
    lines = []
    for name, runs in results.items():
        aucs, full = ([run["auc"] for run in r] for r in (runs, results[FULL]))
        lines.append(
            [
                name,
                f"{statistics.mean(aucs):.4f}",
                "" if name == FULL else rows.describe_difference(aucs, full),
                f"{runs[0]['tables'] / 1e3:,.0f}",
                f"{runs[0]['state'] / 1e3:,.0f}",
                f"{ratios[name]:.2f}",
            ]
        )
    truth = statistics.mean(map(measure_truth, seeds))
    lines.append(["the true probabilities", f"{truth:.4f}", "", "", "", ""])
    header = ["tables", "AUC", "difference", "kB of tables", "kB of state", "step time"]
    return rows.markdown(header, lines)


def main() -> None:
    """Measure results that are not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of timed steps")
    parser.add_argument("--out", default="runs/small_tables", help="the folder of results")
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    checks.at_least("--seeds", args.seeds, 1)
    checks.at_least("--rounds", args.rounds, 1)
    print(compare(list(KINDS), range(1, args.seeds + 1), args.rounds, args.out))


if __name__ == "__main__":
    rows.guard(main)
