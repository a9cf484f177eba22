"""Compares the step time of many columns of ids in `mtl` and in tf.feature_column.

    python -m benchmarks.features --columns 40 --rounds 9
    python -m benchmarks.features --columns 300 --kind hashed
    python -m benchmarks.features --values 5              # of each field, as a ragged list
    python -m benchmarks.features --rows 50000            # both sides read rows in memory

Each column is a field of strings with a table of 10,000 rows of 8 numbers, and a batch has 512
rows. A step consists of the forward pass, the backward pass and an update by SGD. The loss is the
mean square of all columns. Both libraries take turns in one process. A ratio compares two times of
a round; another ratio compares the least times of all rounds, which other work on the machine
affects least. "bare" looks up ids in equally many tables and updates the tables, which is the least
work that any library has to do. --serving leaves out the backward pass and SGD.

With --rows, the time of a step includes reading: each library shuffles this many rows in memory,
`mtl` by `Pipeline.cache` with ids, and tf.feature_column by tf.data with texts. Without --rows, all
steps have the same rows in variables.
"""

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import rows
from mtl import checks, features, spec
from mtl.data import coded_rows, frames, pipeline

tf1 = tf.compat.v1

_SIZE, _WIDTH, _BATCH = 10_000, 8, 512
_BUFFER = 10_000
KINDS = ("vocabulary", "hashed")


def draw_fields(columns: int, values: int, count: int = _BATCH) -> dict[str, Any]:
    """Return {field: random strings}.

    Args:
      columns: the number of fields.
      values: the mean number of values of a row; 1 gives exactly one value for each row.
      count: the number of rows.

    Returns:
      Strings [count], or a pair of flat strings and lengths of rows if `values` is above 1.
    """
    rng, fields = np.random.default_rng(0), {}
    for number in range(columns):
        lengths = None if values == 1 else rng.integers(0, 2 * values, count)
        total = count if lengths is None else lengths.sum()
        tokens = np.array([b"%d" % token for token in rng.integers(0, _SIZE, total)], object)
        fields[f"f{number}"] = tokens if lengths is None else (tokens, lengths)
    return fields


def hold_fields(fields_of_rows: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    """Return a function that creates the fields of a graph, with the same values in each step."""

    def make() -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, values in fields_of_rows.items():
            if isinstance(values, tuple):
                # Hold the values in variables, because feeding 300 fields costs more time than
                # encoding them.
                flat, lengths = (_keep(f"{name}_{i}", array) for i, array in enumerate(values))
                fields[name] = tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)
            else:
                fields[name] = _keep(name, values)
        return fields

    return make


def read_theirs(fields_of_rows: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    """Return a function that reads shuffled rows in memory by tf.data."""

    def make() -> dict[str, Any]:
        fields = {
            name: tf.RaggedTensor.from_row_lengths(*array) if isinstance(array, tuple) else array
            for name, array in fields_of_rows.items()
        }
        batches = tf.data.Dataset.from_tensor_slices(fields)
        batches = batches.shuffle(_BUFFER).repeat().batch(_BATCH, drop_remainder=True).prefetch(2)
        return _get_next(batches)

    return make


def read_ours(fields_of_rows: Mapping[str, Any], part: Any) -> Callable[[], dict[str, Any]]:
    """Return a function that reads shuffled rows in memory by `Pipeline`."""
    shapes = {
        name: (None,) if isinstance(array, tuple) else () for name, array in fields_of_rows.items()
    }
    lists = {
        name: np.split(array[0], np.cumsum(array[1])[:-1]) if isinstance(array, tuple) else array
        for name, array in fields_of_rows.items()
    }
    fields = {name: ("string", shape) for name, shape in shapes.items()}
    data = pipeline.Pipeline(
        source=frames.Frames(splits={"train": lists}),
        spec=spec.Spec(features=fields, labels={}),
        batch_size=_BATCH,
    )
    statistics = features.load_statistics("")
    encoders = {
        field: {column: functools.partial(part.find_ids, column, fitted=statistics)}
        for column, field in part.coded_columns.items()
    }
    coded = coded_rows.code_texts(data, encoders)
    return lambda: coded.unpack(_get_next(coded.dataset("train", training=True, seed=1))[0])


def _get_next(batches: tf.data.Dataset) -> Any:
    iterator = tf1.data.make_initializable_iterator(batches)
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


class Side:
    """The graph of one library, and a session."""

    def __init__(
        self,
        build: Callable[[dict[str, Any]], tf.Tensor],
        make: Callable[[], dict[str, Any]],
        trains: bool,
    ):
        with tf.Graph().as_default() as graph:
            fields = make()
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
        """Return the mean milliseconds of a step, over some steps."""
        started = time.perf_counter()
        for _ in range(steps):
            self._call()
        return 1000 * (time.perf_counter() - started) / steps


def _keep(name: str, values: np.ndarray) -> tf.Tensor:
    """Return values that a graph reads in each call, so that TensorFlow does not fold constants."""
    return tf1.get_variable(f"given/{name}", initializer=values, trainable=False).read_value()


def make_columns(kind: str, directory: str, names: Sequence[str]) -> Any:
    """Return the columns of `mtl`."""
    if kind == "hashed":
        return features.Hashed(names=names, num_buckets=_SIZE, dimension=_WIDTH)
    path = f"{directory}/vocabulary.txt"
    return features.Categorical(names=names, vocabulary=path, dimension=_WIDTH)


def build_ours(kind: str, directory: str) -> Callable[[dict[str, Any]], tf.Tensor]:
    """Return a function that encodes fields by the columns of `mtl`."""

    def build(fields: dict[str, Any]) -> tf.Tensor:
        part = make_columns(kind, directory, list(fields))
        encoded = features.encode_columns([part], fields, features.load_statistics(""))
        return tf.concat(list(encoded.values()), axis=1)

    return build


def build_theirs(kind: str, directory: str) -> Callable[[dict[str, Any]], tf.Tensor]:
    """Return a function that encodes fields by tf.feature_column."""
    lib = tf.feature_column

    def build(fields: dict[str, Any]) -> tf.Tensor:
        columns = []
        for name in fields:
            if kind == "hashed":
                ids = lib.categorical_column_with_hash_bucket(name, _SIZE)
            else:
                path = f"{directory}/vocabulary.txt"
                ids = lib.categorical_column_with_vocabulary_file(name, path, num_oov_buckets=1)
            columns.append(lib.embedding_column(ids, _WIDTH))
        inputs = {
            n: v.to_sparse() if isinstance(v, tf.RaggedTensor) else v for n, v in fields.items()
        }
        return tf1.feature_column.input_layer(inputs, columns)

    return build


def build_bare(fields: dict[str, Any]) -> tf.Tensor:
    """Look up random ids in one table for each column."""
    rng, columns = np.random.default_rng(1), []
    for name, values in fields.items():
        table = tf1.get_variable(f"bare/{name}", [_SIZE, _WIDTH])
        if isinstance(values, tf.RaggedTensor):
            flat = values.flat_values
            ids = _keep(f"{name}_ids", rng.integers(0, _SIZE, flat.shape[0]))
            rows_of = values.with_flat_values(tf.gather(table, ids))
            columns.append(tf.reduce_sum(rows_of, axis=1))
        else:
            columns.append(tf.gather(table, _keep(f"{name}_ids", rng.integers(0, _SIZE, _BATCH))))
    return tf.concat(columns, axis=1)


def compare(
    kinds: Sequence[str],
    columns: int,
    values: int,
    trains: bool,
    rounds: int,
    steps: int = 100,
    count: int | None = None,
) -> str:
    """Return the table of milliseconds and ratios.

    Args:
      kinds: some of `KINDS`.
      columns: the number of columns.
      values: the mean number of values of a field in a row.
      trains: True includes gradient and SGD.
      rounds: the number of rounds.
      steps: the steps of each library in a round.
      count: the number of rows in memory; None repeats one batch.
    """
    values_of_fields = draw_fields(columns, values, count or _BATCH)
    batch = values_of_fields if count is None else draw_fields(columns, values)
    with tempfile.TemporaryDirectory() as directory:
        with open(f"{directory}/vocabulary.txt", "w") as file:
            file.writelines(f"{token}\n" for token in range(_SIZE))
        sides = {"bare": Side(build_bare, hold_fields(batch), trains)}
        for kind in kinds:
            ours, theirs = hold_fields(batch), hold_fields(batch)
            if count is not None:
                ours = read_ours(
                    values_of_fields, make_columns(kind, directory, list(values_of_fields))
                )
                theirs = read_theirs(values_of_fields)
            sides[f"ours, {kind}"] = Side(build_ours(kind, directory), ours, trains)
            sides[f"feature_column, {kind}"] = Side(build_theirs(kind, directory), theirs, trains)
        times = rows.take_turns(sides, rounds, steps)
    lines = []
    for name, milliseconds in times.items():
        base = times.get(f"feature_column, {name.partition(', ')[2]}", [])
        cells = [
            f"{statistics.median(milliseconds):.2f}",
            f"{min(milliseconds):.2f}",
            f"{sides[name].num_ops:,}",
        ]
        if name.startswith("ours"):
            ratios = sorted(a / b for a, b in zip(milliseconds, base, strict=True))
            cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
            cells.append(f"{min(milliseconds) / min(base):.2f}")
        lines.append([name, *cells, *[""] * (5 - len(cells))])
    header = ["", "ms a step", "least", "ops of the graph", "of feature_column", "of the least"]
    return rows.markdown(header, lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument(
        "--values", type=int, default=1, help="mean number of values of a field in a row"
    )
    parser.add_argument("--kind", default="", help=f"{' or '.join(KINDS)}; all by default")
    parser.add_argument("--serving", action="store_true", help="leave out gradient and SGD")
    parser.add_argument(
        "--rows", type=int, help="number of rows in memory; without it, one batch repeats"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=100, help="steps of each library in a round")
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    if args.kind:
        checks.one_of("--kind", args.kind, KINDS)
    for name in ("columns", "values", "rounds", "steps"):
        checks.at_least(f"--{name}", getattr(args, name), 1)
    if args.rows is not None:
        checks.at_least("--rows", args.rows, _BATCH)
    kinds = [args.kind] if args.kind else KINDS
    sizes = (args.columns, args.values, not args.serving, args.rounds, args.steps, args.rows)
    print(compare(kinds, *sizes))


if __name__ == "__main__":
    rows.guard(main)
