"""Compares growing, fixed and hashed embedding tables on a stream whose ids change.

    python -m benchmarks.tables --seeds 3
    python -m benchmarks.tables --speed --keys 10000000

The first command trains in a single pass over 200,000 rows. At any time, 2,000 of 22,000 ids are in
use; new ids replace old ids over the stream. Test rows have the newest ids. The printed table shows
the AUC, and the paired difference, with its standard error, to the growing table that evicts by
age. The table also shows the bytes of each embedding table, and the share of ids in use that have
no row or share their row with other ids.

--speed fills a growing table with keys, and times training steps with 4,096 new keys and with 4,096
known keys. --speed also times the tables of `tf.lookup.experimental`, as maps from the same keys to
row numbers.
"""

import argparse
import dataclasses
import functools
import itertools
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import rows
from mtl import checks, experiment, features, heads, model, networks, serving, spec, types, verbs
from mtl.data import pipeline
from mtl.features import key_table
from mtl.optimization import optimizers, update

tf1 = tf.compat.v1

_ROWS, _IN_USE, _NEW = 200_000, 2_000, 20_000
_SMALL, _LARGE, _WIDTH = 4_096, 32_768, 8
_BASELINE = "growing, evicts by age"
_SPEC = spec.Spec(features={"item": "int64"}, labels={"click": "int64"})


@dataclasses.dataclass(frozen=True)
class Stream(types.Source):
    """A source of rows in the order of time; the newest ids are the most frequent."""

    seed: int

    def draw(self, split: str) -> dict[str, np.ndarray]:
        """Return {field: values [N]} of a split."""
        is_train = split == "train"
        rng = np.random.default_rng([self.seed, is_train])
        effects = np.random.default_rng([self.seed, 2]).normal(0, 1.5, _IN_USE + _NEW)
        count = _ROWS if is_train else _ROWS // 10
        time_of = np.arange(count) / count if is_train else np.ones(count)
        newest = _IN_USE + (time_of * (_NEW - 1)).astype(np.int64)
        item = newest - (_IN_USE * rng.random(count) ** 2).astype(np.int64)
        click = rng.random(count) < 1 / (1 + np.exp(-effects[item]))
        return {"item": item, "click": click.astype(np.int64), "effect": effects[item]}

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split."""
        fields = self.draw(split)
        return tf.data.Dataset.from_tensor_slices({n: fields[n] for n in ("item", "click")})

    def decode(self, batch: Any, spec: spec.Spec, with_labels: bool) -> dict[str, tf.Tensor]:
        """Return the fields of a batch."""
        return {name: batch[name] for name in (spec.fields if with_labels else spec.features)}

    def scan(self, split: str, spec: spec.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield the rows of a split."""
        fields = self.draw(split)
        for row in range(len(fields["item"])):
            yield f"row {row}", {name: int(fields[name][row]) for name in ("item", "click")}


def _stale(seed: int) -> features.Categorical:
    """Return a column with the vocabulary of the first fifth of the stream."""
    early = np.unique(Stream(seed).draw("train")["item"][: _ROWS // 5])
    return features.Categorical(
        names=["item"], vocabulary=[str(item) for item in early], dimension=_WIDTH
    )


def _growing(**settings: Any) -> Callable[[int], types.Column]:
    return lambda seed: features.Growing(names=["item"], dimension=_WIDTH, **settings)


def _hashed(size: int) -> Callable[[int], types.Column]:
    return lambda seed: features.Hashed(names=["item"], dimension=_WIDTH, num_buckets=size)


TABLES: Mapping[str, Callable[[int], types.Column]] = {
    _BASELINE: _growing(capacity=_SMALL, eviction="age"),
    "growing, evicts by count": _growing(capacity=_SMALL, eviction="count"),
    "growing, evicts by norm": _growing(capacity=_SMALL, eviction="norm"),
    "growing, evicts by age, from the 2nd time on": _growing(
        capacity=_SMALL, eviction="age", min_count=2
    ),
    "growing, evicts nothing": _growing(capacity=_SMALL),
    "hashed, as large": _hashed(_SMALL),
    "vocabulary of the first fifth": _stale,
    "growing, room for all": _growing(capacity=_LARGE),
    "hashed, eight times as large": _hashed(_LARGE),
    "vocabulary of all": lambda seed: features.Categorical(
        names=["item"], dimension=_WIDTH, min_count=1
    ),
}


def train(name: str, seed: int) -> dict[str, float]:
    """Train a model; return test AUC, bytes, and the share of ids without a separate row."""
    settings = experiment.Experiment(
        data=pipeline.Pipeline(
            source=Stream(seed),
            spec=_SPEC,
            batch_size=256,
            shuffle_buffer=1,
        ),
        model=model.MultiTaskModel(
            columns=[TABLES[name](seed)],
            network=networks.SharedBottom(trunk=networks.MLP(layers=[16])),
            heads=[heads.Binary(name="click")],
            update=update.Update(optimizer=optimizers.LazyAdam(learning_rate=0.01)),
        ),
        run=experiment.Run(train_steps=_ROWS // 256, checkpoint_steps=_ROWS // 256, seed=seed),
        serving=serving.Serving(check_rows=0),
    )
    with tempfile.TemporaryDirectory() as folder:
        metrics, _ = verbs.train(settings, folder)
        latest = tf.train.latest_checkpoint(folder)
        shapes = dict(tf.train.list_variables(latest))
        table = next(name for name in shapes if name.endswith("/embedding"))
        in_use = np.unique(Stream(seed).draw("test")["item"])
        id_rows = _find_rows(name, seed, latest, in_use)
    _, places, counts = np.unique(id_rows, return_inverse=True, return_counts=True)
    return {
        "auc": float(metrics["click/auc"]),
        "bytes": 4 * int(np.prod(shapes[table])),
        "without": float(((counts[places] > 1) | (id_rows < 0)).mean()),
    }


def _find_rows(name: str, seed: int, latest: str, ids: np.ndarray) -> np.ndarray:
    """Return the table row of each id, [N]; -1 for unknown ids."""
    tokens = tf.constant([str(item) for item in ids])
    column = TABLES[name](seed)
    if isinstance(column, features.Growing):
        keys = key_table.make_keys(tokens)
        table_keys = tf.train.load_variable(latest, "features/growing_item/keys")
        table_rows, is_known = key_table.find_rows(tf.Variable(table_keys), keys)
        return np.where(is_known, table_rows, -1)
    if isinstance(column, features.Hashed):
        return tf.strings.to_hash_bucket_fast(tokens, column.num_buckets).numpy()
    vocabulary = set(
        column.vocabulary or [str(i) for i in np.unique(Stream(seed).draw("train")["item"])]
    )
    return np.array([int(item) if str(item) in vocabulary else -1 for item in ids])


def measure_truth(seed: int) -> float:
    """Return the test AUC of a model that knows the true effects of ids."""
    fields = Stream(seed).draw("test")
    return rows.compute_auc(fields["click"], fields["effect"])


def compare_tables(names: Sequence[str], seeds: Sequence[int], out: str) -> str:
    """Measure results that are not stored yet, and return the table."""
    results: dict[str, list[dict[str, float]]] = {}
    for seed, name in itertools.product(seeds, names):
        path = os.path.join(out, name.replace(" ", "_"), f"seed_{seed}.json")
        result = rows.load_or_measure(path, functools.partial(train, name, seed))
        results.setdefault(name, []).append(result)
        print(f"{name}, seed {seed}: AUC {result['auc']:.4f}", flush=True)
    lines = []
    for name, runs in results.items():
        aucs, baseline = ([run["auc"] for run in r] for r in (runs, results[_BASELINE]))
        difference = "" if name == _BASELINE else rows.describe_difference(aucs, baseline)
        percent = 100 * statistics.mean(run["without"] for run in runs)
        mean = f"{statistics.mean(aucs):.4f}"
        lines.append([name, mean, difference, f"{runs[0]['bytes']:,}", f"{percent:.1f}%"])
    truth = statistics.mean(map(measure_truth, seeds))
    lines.append(["the true effects", f"{truth:.4f}", "", "", ""])
    header = ["table", "AUC", "difference", "bytes", "ids without a row of their own"]
    return rows.markdown(header, lines)


class Filling:
    """A growing table that fills up, and tables of `tf.lookup.experimental` for comparison.

    Args:
      total: the number of keys at the end.
      is_alone: True leaves out the tables of `tf.lookup.experimental`.
    """

    def __init__(self, total: int, is_alone: bool):
        column = features.Growing(names=["item"], capacity=int(total / 0.75), dimension=_WIDTH)
        step = tf1.train.get_or_create_global_step()
        self._items = tf1.placeholder(tf.int64, [None])
        fields = {"item": self._items}
        encoded = features.encode_columns([column], fields, features.load_statistics(""))
        loss = tf.reduce_mean(encoded["growing_item"] ** 2)
        update = tf1.train.AdagradOptimizer(0.1).minimize(loss)
        with tf.control_dependencies([features.grow_tables([column], fields, update)]):
            self.step = step.assign_add(1, read_value=False)
        keys = key_table.make_keys(tf.strings.as_string(self._items))
        (table_keys,) = [v for v in tf1.global_variables() if v.op.name.endswith("/keys")]
        self.adds: dict[str, tf.Operation] = {}
        # Add up all rows, because TensorFlow would prune a lookup whose output is not used.
        ours = tf.reduce_sum(key_table.find_rows(table_keys, keys)[0])
        self.finds = {"hashing alone": tf.reduce_sum(keys), "ours": ours}
        self._session = tf1.Session()
        if not is_alone:
            self._build_peers(keys, 1 << (2 * total).bit_length())
        self._session.run(tf1.global_variables_initializer())

    def _build_peers(self, keys: tf.Tensor, buckets: int) -> None:
        lookup = tf.lookup.experimental
        dense = {"empty_key": -1, "deleted_key": -2, "initial_num_buckets": buckets}
        peers = {
            "MutableHashTable": lookup.MutableHashTable(tf.int64, tf.int64, -1),
            "DenseHashTable": lookup.DenseHashTable(tf.int64, tf.int64, -1, **dense),
        }
        for name, peer in peers.items():
            # The lookup finds known keys; a new key gets the next row.
            size = peer.size()
            fresh = tf.unique(tf.boolean_mask(keys, peer.lookup(keys) < 0))[0]
            rows_of = size + tf.range(tf.size(fresh, tf.int64), dtype=tf.int64)
            self.adds[name] = peer.insert(fresh, rows_of)
            self.finds[name] = tf.reduce_sum(peer.lookup(keys))

    def run(self, op: Any, items: np.ndarray) -> float:
        """Run an op on some items, and return the microseconds for an item."""
        started = time.perf_counter()
        self._session.run(op, {self._items: items})
        return 1e6 * (time.perf_counter() - started) / len(items)


def measure_speed(total: int, is_alone: bool, batch: int = 4096, repeats: int = 20) -> str:
    """Return the table of times as a growing table fills up.

    Args:
      total: the number of keys at the end.
      is_alone: True leaves out the tables of `tf.lookup.experimental`.
      batch: the keys of a step.
      repeats: the timed steps at each size.
    """
    rng, lines, num_keys = np.random.default_rng(0), [], 0
    with tf.Graph().as_default():
        table = Filling(total, is_alone)
        everything = tf.group(table.step, *table.adds.values())
        for mark in (total // 100, total // 10, total // 2, total):
            while num_keys < mark - repeats * batch:  # Larger batches fill the table faster.
                count = min(16 * batch, mark - repeats * batch - num_keys)
                table.run(everything, num_keys + np.arange(count))
                num_keys += count
            times: dict[str, list[float]] = {}
            for _ in range(repeats):
                new_keys = num_keys + np.arange(batch)
                known_keys = rng.integers(0, num_keys + 1, batch)
                adding = {f"{name}, new": op for name, op in table.adds.items()}
                for name, op in {"step, new": table.step, **adding}.items():
                    times.setdefault(name, []).append(table.run(op, new_keys))
                for name, op in {"step, known": table.step, **table.finds}.items():
                    times.setdefault(name, []).append(table.run(op, known_keys))
                num_keys += batch
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            medians = [f"{statistics.median(micros):.2f}" for micros in times.values()]
            lines.append([f"{num_keys:,}", *medians, f"{peak:.2f}"])
    return rows.markdown(["keys", *times, "peak GB"], lines)


def main() -> None:
    """Measure results that are not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tables", default="", help="rows of the table, separated by ;")
    parser.add_argument("--out", default="runs/tables", help="the folder of results")
    parser.add_argument("--speed", action="store_true", help="time a table that fills up instead")
    parser.add_argument("--keys", type=int, default=10_000_000, help="keys for --speed")
    parser.add_argument("--alone", action="store_true", help="for --speed: without other tables")
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    checks.at_least("--seeds", args.seeds, 1)
    checks.at_least("--keys", args.keys, 1_000_000)
    names = [name for name in args.tables.split(";") if name] or list(TABLES)
    for name in names:
        checks.one_of("--tables", name, TABLES)
    if args.speed:
        print(measure_speed(args.keys, args.alone))
    else:
        names = list(dict.fromkeys([_BASELINE, *names]))
        print(compare_tables(names, range(1, args.seeds + 1), args.out))


if __name__ == "__main__":
    rows.guard(main)
