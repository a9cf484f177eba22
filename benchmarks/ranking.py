"""Measures ranking on simulated data: losses within queries, negatives of two towers, and memory.

    python -m benchmarks.ranking losses --seeds 3
    python -m benchmarks.ranking towers --seeds 3
    python -m benchmarks.ranking memory --rows 1000000

`losses` trains the example of `docs/ranking.md` with each ranking loss, and with the squared errors
of single rows on the same batches. The table shows the NDCG of the test queries at the last step.
`towers` trains the two towers of `click_stream_two_tower.gin` on 40,000 rows, and tests them on
10,000 rows. The table compares runs without log Q, with counted or streamed log Q, and with random
items as negatives. Differences to the first row of a table are paired by seed, with standard
errors. `memory` evaluates a ranking head on random rows. The table shows the seconds, and the
growth of the process's peak memory during the evaluation.
"""

import argparse
import csv
import functools
import itertools
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import rows
from mtl import checks, heads, verbs
from mtl.configs import config

tf1 = tf.compat.v1

_ROOT = pathlib.Path(__file__).parent.parent
POINTWISE = "pointwise"
LOSSES = {
    POINTWISE: ["MultiTaskModel.heads = [@heads.Regression()]", "Regression.name = 'grade'"],
    **{
        kind: [f"grade/heads.Ranking.loss_type = '{kind}'"]
        for kind in ("ranknet", "lambdarank", "softmax", "approx_ndcg")
    },
}
TOWERS = {
    "log Q": [],
    "no correction": ["heads.Retrieval.corrects_popularity = False"],
    "streamed Q": ["heads.Retrieval.frequency = @heads.StreamedFrequency()"],
    **{
        f"{num} drawn, power {power}": [
            "DrawnItems.features = ['item', 'category']",
            f"DrawnItems.num = {num}",
            f"DrawnItems.power = {power}",
        ]
        for num, power in ((256, 0.0), (256, 0.75), (256, 1.0))
    },
}
_TOWERS = _ROOT / "gin_configs" / "experiments" / "click_stream_two_tower.gin"
_DRAWN_ITEMS = _ROOT / "gin_configs" / "sampling" / "drawn_items.gin"
_ROWS = "ClickStream.rows = {'train': 40000, 'validation': 2000, 'test': 10000}"


def _train(
    paths: Sequence[pathlib.Path], params: Sequence[str], seed: int, steps: int, folder: str
) -> Any:
    """Train an experiment, and return it."""
    settings = [
        *(f"Run.{setting} = {steps}" for setting in ("train_steps", "checkpoint_steps")),
        f"Run.seed = {seed}",
        "Serving.check_rows = 0",
        "Best.metric = 'average_loss'",
    ]
    settings_of_run = config.load(list(map(str, paths)), [*params, *settings])
    verbs.train(settings_of_run, folder)
    return settings_of_run


def train_loss(loss: str, seed: int, steps: int) -> dict[str, float]:
    """Train with a loss, and return the metrics of the test split, {name: value}."""
    page = (_ROOT / "docs" / "ranking.md").read_text()
    code, gin = (re.search(rf"```{kind}\n(.*?)```", page, re.S)[1] for kind in ("python", "gin"))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "searches.gin").write_text(gin)
        subprocess.run([sys.executable, "-c", code], check=True, cwd=folder)
        files = {split: str(folder / f"{split}.csv") for split in ("train", "test")}
        params = [*LOSSES[loss], f"Csv.files = {files}"]
        run = str(folder / "run")
        settings = _train([folder / "searches.gin"], params, seed, steps, run)
        predicted = "grade/value" if loss == POINTWISE else "grade/score"
        scores = np.array([row[predicted] for row in verbs.predict(settings, run, "test")])
        with open(files["test"]) as file:
            table = list(csv.DictReader(file))
    queries = np.array([row["query"] for row in table])
    grades = np.array([float(row["grade"]) for row in table])
    cuts = {"ndcg": len(table), "ndcg_at_5": 5, "ndcg_at_1": 1}
    return {name: compute_ndcg(queries, scores, grades, k) for name, k in cuts.items()}


def compute_ndcg(keys: np.ndarray, scores: np.ndarray, labels: np.ndarray, k: int) -> float:
    """Return the mean NDCG at k of all groups with a label above 0, with exponential gains.

    Args:
      keys: the group of each row, [N].
      scores: the predicted scores, [N]; higher ranks first.
      labels: the relevance of each row, [N].
      k: the number of places that count.
    """
    ratios = []
    for key in np.unique(keys):
        is_in_group = keys == key
        gains = 2 ** labels[is_in_group] - 1
        discounts = np.where(np.arange(len(gains)) < k, 1 / np.log2(2 + np.arange(len(gains))), 0)
        if gains.any():
            best = (np.sort(gains)[::-1] * discounts).sum()
            order = np.argsort(-scores[is_in_group])
            ratios.append((gains[order] * discounts).sum() / best)
    return float(np.mean(ratios))


def train_towers(name: str, seed: int, steps: int) -> dict[str, float]:
    """Train two towers, and return the metrics of the test split, {name: value}."""
    with tempfile.TemporaryDirectory() as folder:
        files = [_TOWERS, _DRAWN_ITEMS] if "drawn" in name else [_TOWERS]
        settings = _train(files, [*TOWERS[name], _ROWS], seed, steps, folder)
        metrics = verbs.evaluate(settings, folder, "test")
    names = ("recall_at_10", "recall_at_50", "mrr")
    return {metric: float(metrics[f"clicked/{metric}"]) for metric in names}


def compare(
    kinds: Mapping[str, Sequence[str]],
    train: Callable[[str, int, int], dict[str, float]],
    seeds: Sequence[int],
    steps: int,
    out: str,
) -> str:
    """Measure results that are not stored yet, and return the table.

    Args:
      kinds: {row of the table: gin bindings}; differences refer to the first row.
      train: returns the metrics of a row, a seed and a number of steps.
      seeds: the seeds of the runs.
      steps: the steps of a run.
      out: the folder of results.
    """
    results: dict[str, list[dict[str, float]]] = {}
    for seed, name in itertools.product(seeds, kinds):
        path = os.path.join(out, f"{name.replace(' ', '_')}_{steps}_{seed}.json")
        result = rows.load_or_measure(path, functools.partial(train, name, seed, steps))
        results.setdefault(name, []).append(result)
        print(name, seed, {metric: round(value, 4) for metric, value in result.items()}, flush=True)
    first = next(iter(kinds))
    metrics = list(results[first][0])
    lines = []
    for name, runs in results.items():
        line = [name]
        for metric in metrics:
            values, baseline = ([run[metric] for run in r] for r in (runs, results[first]))
            difference = "" if name == first else rows.describe_difference(values, baseline)
            line += [f"{statistics.mean(values):.4f}", difference]
        lines.append(line)
    header = ["", *itertools.chain(*((metric, "difference") for metric in metrics))]
    return rows.markdown(header, lines)


def measure_memory(count: int, group_rows: int, batch_size: int = 4096) -> str:
    """Return the table of memory and time of the metrics of a ranking head."""
    random = np.random.default_rng(0)
    head = heads.Ranking(name="y", group="query", loss_type="softmax")
    with tf.Graph().as_default(), tf1.Session() as session:
        scores = tf1.placeholder(tf.float32, [None, 1])
        labels = {name: tf1.placeholder(tf.int64, [None]) for name in ("y", "query")}
        metrics = head.metrics(scores, labels)
        update = [update_op for _, update_op in metrics.values()]
        values = [value for value, _ in metrics.values()]

        def add(first: int) -> None:
            size = min(batch_size, count - first)
            keys = (first + np.arange(size)) // group_rows
            label_feed = {labels["y"]: random.integers(0, 3, size), labels["query"]: keys}
            session.run(update, {scores: random.normal(size=(size, 1)), **label_feed})

        session.run(tf1.local_variables_initializer())
        add(0)
        session.run(values)
        session.run(tf1.local_variables_initializer())
        before, started = _peak(), time.perf_counter()
        for first in range(0, count, batch_size):
            add(first)
        batches_end = time.perf_counter()
        session.run(values)
        durations = (batches_end - started, time.perf_counter() - batches_end)
    line = [str(count), f"{_peak() - before:.0f}", *(f"{secs:.1f}" for secs in durations)]
    return rows.markdown(["rows", "MB more", "s of batches", "s of the metrics"], [line])


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure results that are not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["losses", "towers", "memory"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="steps of a training")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows for `memory`")
    parser.add_argument("--group_rows", type=int, default=20, help="rows of a group for `memory`")
    parser.add_argument("--out", default="runs/ranking", help="the folder of results")
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    checks.at_least("--seeds", args.seeds, 1)
    seeds = range(1, args.seeds + 1)
    if args.what == "memory":
        print(measure_memory(args.rows, args.group_rows))
    elif args.what == "losses":
        print(compare(LOSSES, train_loss, seeds, args.steps, args.out))
    else:
        print(compare(TOWERS, train_towers, seeds, args.steps, args.out))


if __name__ == "__main__":
    rows.guard(main)
