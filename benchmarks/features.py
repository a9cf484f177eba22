"""Many columns of ids, beside tf.feature_column: forward, backward and SGD in one session call.

    python -m benchmarks.features --columns 40 --rounds 9
    python -m benchmarks.features --columns 300 --kind hashed
    python -m benchmarks.features --values 5              # of each field, as a ragged list

Each column is a field of strings with a table of 10,000 rows of 8 numbers, batch 512. The loss is
the mean square of all columns, joined. Both sides take turns in one run; a ratio is taken within a
round, and once more of the least times of all rounds, which other work on the machine changes
least. "bare" looks up given ids in as many tables and moves these: what no side can do without.
--serving leaves the gradient and SGD out.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import rows
from mtl import checks, features

tf1 = tf.compat.v1

_SIZE, _WIDTH, _BATCH = 10_000, 8, 512
KINDS = ("vocabulary", "hashed")


def draw_fields(columns: int, values: int) -> dict[str, Any]:
    """Return {field: strings [B]}, or as many values for each row in the mean."""
    rng, found = np.random.default_rng(0), {}
    for number in range(columns):
        lengths = None if values == 1 else rng.integers(0, 2 * values, _BATCH)
        count = _BATCH if lengths is None else lengths.sum()
        tokens = np.array([b"%d" % token for token in rng.integers(0, _SIZE, count)], object)
        found[f"f{number}"] = tokens if lengths is None else (tokens, lengths)
    return found


class Side:
    """A graph with what one side computes, and a session."""

    def __init__(self, build: Callable[[dict[str, Any]], tf.Tensor], given: Any, trains: bool):
        with tf.Graph().as_default() as graph:
            fields = {}
            for name, values in given.items():
                if isinstance(values, tuple):
                    # Variables: to feed 300 fields costs more than to encode them.
                    flat, lengths = (_keep(f"{name}_{i}", own) for i, own in enumerate(values))
                    fields[name] = tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)
                else:
                    fields[name] = _keep(name, values)
            loss = tf.reduce_mean(tf.square(build(fields)))
            variables = [v for v in tf1.trainable_variables() if v.dtype != tf.string]
            optimizer = tf1.train.GradientDescentOptimizer(0.1)
            self._op = optimizer.minimize(loss, var_list=variables) if trains else loss
            self.num_ops = len(graph.get_operations())
            config = tf1.ConfigProto(inter_op_parallelism_threads=2, intra_op_parallelism_threads=2)
            self._session = tf1.Session(config=config)
            first = [tf1.global_variables_initializer(), tf1.tables_initializer()]
            self._session.run(first)
            self._call = self._session.make_callable(self._op)

    def __call__(self, steps: int) -> float:
        """Return the milliseconds a step, over so many."""
        started = time.perf_counter()
        for _ in range(steps):
            self._call()
        return 1000 * (time.perf_counter() - started) / steps


def _keep(name: str, values: np.ndarray) -> tf.Tensor:
    """Return values that a graph reads anew in each call, so that it folds nothing."""
    return tf1.get_variable(f"given/{name}", initializer=values, trainable=False).read_value()


def build_ours(kind: str, directory: str) -> Callable[[dict[str, Any]], tf.Tensor]:
    """Return what encodes the fields by our columns."""

    def build(fields: dict[str, Any]) -> tf.Tensor:
        names = list(fields)
        if kind == "hashed":
            part: Any = features.Hashed(names=names, num_buckets=_SIZE, dimension=_WIDTH)
        else:
            path = f"{directory}/vocabulary.txt"
            part = features.Categorical(names=names, vocabulary=path, dimension=_WIDTH)
        encoded = features.encode_columns([part], fields, features.load_statistics(""))
        return tf.concat(list(encoded.values()), axis=1)

    return build


def build_theirs(kind: str, directory: str) -> Callable[[dict[str, Any]], tf.Tensor]:
    """Return what encodes the fields by tf.feature_column."""
    lib = tf.feature_column

    def build(fields: dict[str, Any]) -> tf.Tensor:
        made = []
        for name in fields:
            if kind == "hashed":
                ids = lib.categorical_column_with_hash_bucket(name, _SIZE)
            else:
                path = f"{directory}/vocabulary.txt"
                ids = lib.categorical_column_with_vocabulary_file(name, path, num_oov_buckets=1)
            made.append(lib.embedding_column(ids, _WIDTH))
        given = {
            n: v.to_sparse() if isinstance(v, tf.RaggedTensor) else v for n, v in fields.items()
        }
        return tf1.feature_column.input_layer(given, made)

    return build


def build_bare(fields: dict[str, Any]) -> tf.Tensor:
    """Look up ids that are given in as many tables."""
    rng, found = np.random.default_rng(1), []
    for name, values in fields.items():
        table = tf1.get_variable(f"bare/{name}", [_SIZE, _WIDTH])
        if isinstance(values, tf.RaggedTensor):
            flat = values.flat_values
            ids = _keep(f"{name}_ids", rng.integers(0, _SIZE, flat.shape[0]))
            rows_of = values.with_flat_values(tf.gather(table, ids))
            found.append(tf.reduce_sum(rows_of, axis=1))
        else:
            found.append(tf.gather(table, _keep(f"{name}_ids", rng.integers(0, _SIZE, _BATCH))))
    return tf.concat(found, axis=1)


def compare(
    kinds: Sequence[str], columns: int, values: int, trains: bool, rounds: int, steps: int = 100
) -> str:
    """Return the table of milliseconds and ratios."""
    given = draw_fields(columns, values)
    with tempfile.TemporaryDirectory() as directory:
        with open(f"{directory}/vocabulary.txt", "w") as file:
            file.writelines(f"{token}\n" for token in range(_SIZE))
        sides = {"bare": Side(build_bare, given, trains)}
        for kind in kinds:
            sides[f"ours, {kind}"] = Side(build_ours(kind, directory), given, trains)
            sides[f"feature_column, {kind}"] = Side(build_theirs(kind, directory), given, trains)
        times = rows.take_turns(sides, rounds, steps)
    lines = []
    for name, own in times.items():
        base = times.get(f"feature_column, {name.partition(', ')[2]}", [])
        cells = [f"{statistics.median(own):.2f}", f"{min(own):.2f}", f"{sides[name].num_ops:,}"]
        if name.startswith("ours"):
            ratios = sorted(a / b for a, b in zip(own, base, strict=True))
            cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
            cells.append(f"{min(own) / min(base):.2f}")
        lines.append([name, *cells, *[""] * (5 - len(cells))])
    header = ["", "ms a step", "least", "ops of the graph", "of feature_column", "of the least"]
    return rows.markdown(header, lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--values", type=int, default=1, help="of each field in the mean")
    parser.add_argument("--kind", default="", help=f"one of {', '.join(KINDS)}; both by default")
    parser.add_argument("--serving", action="store_true", help="without gradient and SGD")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=100, help="of a round")
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    if args.kind:
        checks.one_of("--kind", args.kind, KINDS)
    for name in ("columns", "values", "rounds", "steps"):
        checks.at_least(f"--{name}", getattr(args, name), 1)
    kinds = [args.kind] if args.kind else KINDS
    print(compare(kinds, args.columns, args.values, not args.serving, args.rounds, args.steps))


if __name__ == "__main__":
    rows.guard(main)
