"""Compares the time of several ways to look up the tokens of many columns in vocabularies.

    python -m benchmarks.lookups --columns 40 --rounds 60

Each column is a field of 512 strings with a vocabulary of 10,000 tokens. All ways give the same
positions in the vocabularies, except the hash alone, which only shows the least possible work. A
perfect hash finds a candidate for each token without a search, and compares the texts of token and
candidate.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import features, rows
from mtl import checks

tf1 = tf.compat.v1

Find = Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]]

_SIZE = 10_000
_GROUPS, _SLOTS, _HASHES = 1 << 12, 1 << 15, 1 << 62
_WORDS = np.array([b"%d" % token for token in range(_SIZE)], object)


def _create_table() -> tf.lookup.StaticHashTable:
    places = tf.range(_SIZE, dtype=tf.int64)
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(_WORDS), places), _SIZE
    )


def _hash(columns: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.strings.to_hash_bucket_fast(tokens, _SIZE) for tokens in columns]


def _share(columns: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    table = _create_table()
    return [table.lookup(tokens) for tokens in columns]


def _find_apart(columns: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [_create_table().lookup(tokens) for tokens in columns]


def _find_perfectly(columns: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    steps, slots = _fit_perfect_hash()
    arrays = {"words": _WORDS, "steps": steps, "slots": slots}
    variables = {
        name: tf1.get_variable(name, initializer=values, trainable=False).read_value()
        for name, values in arrays.items()
    }

    def find(tokens: tf.Tensor) -> tf.Tensor:
        hashes = tf.strings.to_hash_bucket_fast(tokens, _HASHES)
        step = tf.gather(variables["steps"], tf.bitwise.bitwise_and(hashes, _GROUPS - 1))
        slot = tf.bitwise.bitwise_and(tf.bitwise.right_shift(hashes, 24) + step, _SLOTS - 1)
        place = tf.gather(variables["slots"], slot)
        return tf.where(tf.equal(tf.gather(variables["words"], place), tokens), place, _SIZE)

    return [find(tokens) for tokens in columns]


def _fit_perfect_hash() -> tuple[np.ndarray, np.ndarray]:
    """Return steps for groups of hashes, with a different slot for each word, and the slots."""
    with tf.Graph().as_default(), tf1.Session() as session:
        hashes = session.run(tf.strings.to_hash_bucket_fast(tf.constant(_WORDS), _HASHES))
    groups: list[list[int]] = [[] for _ in range(_GROUPS)]
    for place, word_hash in enumerate(hashes):
        groups[word_hash % _GROUPS].append(place)
    steps, slots = np.zeros(_GROUPS, np.int64), np.full(_SLOTS, -1)
    for group in sorted(range(_GROUPS), key=lambda group: -len(groups[group])):
        while True:
            group_slots = [((int(hashes[p]) >> 24) + steps[group]) % _SLOTS for p in groups[group]]
            if len(set(group_slots)) == len(group_slots) and (slots[group_slots] < 0).all():
                break
            steps[group] += 1
        slots[group_slots] = groups[group]
    return steps, np.maximum(slots, 0)


def _join(find: Find) -> Find:
    def joined(columns: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        return tf.split(find([tf.concat(columns, 0)])[0], len(columns))

    return joined


WAYS: dict[str, Find] = {
    "a hash alone, for each column": _hash,
    "a table that all columns share": _share,
    "a table for each column": _find_apart,
    "one table, the columns joined": _join(_share),
    "a perfect hash, for each column": _find_perfectly,
    "a perfect hash, the columns joined": _join(_find_perfectly),
}


class Side:
    """A graph that finds the tokens of all columns in one of `WAYS`, and a session."""

    def __init__(self, find: Find, columns: int):
        with tf.Graph().as_default():
            fields = features.draw_fields(columns, 1)
            tokens = [
                tf1.get_variable(f"given/{name}", initializer=array, trainable=False).read_value()
                for name, array in fields.items()
            ]
            self.places = find(tokens)
            stores = [
                tf1.get_variable(f"found/{number}", array.shape, array.dtype).assign(array).op
                for number, array in enumerate(self.places)
            ]
            config = tf1.ConfigProto(inter_op_parallelism_threads=2, intra_op_parallelism_threads=2)
            self.session = tf1.Session(config=config)
            self.session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
            self._call = self.session.make_callable(tf.group(*stores))

    def __call__(self, steps: int) -> float:
        """Return the mean milliseconds of a step, over some steps."""
        started = time.perf_counter()
        for _ in range(steps):
            self._call()
        return 1000 * (time.perf_counter() - started) / steps


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    for name in ("columns", "rounds"):
        checks.at_least(f"--{name}", getattr(args, name), 1)
    sides = {name: Side(find, args.columns) for name, find in WAYS.items()}
    times = rows.take_turns(sides, args.rounds, 20)
    lines = [
        [name, f"{min(milliseconds):.2f}", f"{statistics.median(milliseconds):.2f}"]
        for name, milliseconds in times.items()
    ]
    print(rows.markdown(["", "least ms", "median"], lines))


if __name__ == "__main__":
    rows.guard(main)
