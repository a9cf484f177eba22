"""Compares the step time of every part that changes gradients or updates with a plain step.

    python -m benchmarks.gradients --rounds 5 --rows 10000 10000000

The models are a dense network (three layers of 512 units on 256 rows), and a lookup of 256 rows in
tables of two sizes. All parts are timed in turns on the dense network. For each part, the tables of
both sizes are timed in turns. The result shows medians over the rounds. For tables, the result
compares a step on the large table with a step on the small table in two ways. If a step looks up
only as many rows of the large table as the small table has, the ratio shows the cost of the table's
size. If a step looks up random rows of the whole large table, the rows are not in the processor's
cache.
"""

import argparse
import functools
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from mtl import types
from mtl.optimization import (
    adaptive_clipping,
    clipping,
    lookahead,
    optimizers,
    transforms,
    update,
)
from mtl.step import training_loop
from mtl.variables import averaging, freezing, masks

tf1 = tf.compat.v1

_BATCH, _UNITS, _DIMENSION = 256, 512, 16
_ADAM, _GLOBAL = optimizers.LazyAdam(), clipping.GlobalNorm(max_norm=1.0)
# Parts that are not measured on tables, because their cost grows with the size of a table.
_WHOLE = ("masked entries",)

PARTS = {
    "plain": {},
    "clipping.Value": {"clipping": clipping.Value(max_value=1.0)},
    "clipping.Norm": {"clipping": clipping.Norm(max_norm=1.0)},
    "clipping.AverageNorm": {"clipping": clipping.AverageNorm(max_norm=1.0)},
    "clipping.GlobalNorm": {"clipping": _GLOBAL},
    "clipping.ByPattern": {"clipping": clipping.ByPattern(parts={"": _GLOBAL})},
    "AGC": {"clipping": adaptive_clipping.AGC()},
    "AutoClip": {"clipping": adaptive_clipping.AutoClip()},
    "Centralization": {"transforms": [transforms.Centralization()]},
    "Noise": {"transforms": [transforms.Noise()]},
    "Lookahead": {"optimizer": lookahead.Lookahead(optimizer=_ADAM)},
    "ExponentialAverage": {"average": averaging.ExponentialAverage()},
    "optimizers, rates by pattern": {"optimizers": {"": _ADAM}, "rates": {"": 0.5}},
    "skip if not finite": {"if_not_finite": "skip"},
    "zero if not finite": {"if_not_finite": "zero"},
    "masked entries": {},
}


def _dense() -> tf.Tensor:
    hidden = tf.random.stateless_normal([_BATCH, _UNITS], [1, 2])
    for layer in range(3):
        kernel = tf1.get_variable(f"kernel_{layer}", [_UNITS, _UNITS])
        hidden = tf.nn.relu(hidden @ kernel)
    return tf.reduce_mean(hidden**2)


def _table(rows: int, num_used: int) -> tf.Tensor:
    """Return the loss of a batch that looks up random rows among the first `num_used` rows."""
    table = tf1.get_variable("table", [rows, _DIMENSION], initializer=tf1.zeros_initializer())
    seed = tf.stack([tf.cast(tf1.train.get_global_step(), tf.int32), 0])
    ids = tf.random.stateless_uniform([_BATCH], seed, 0, num_used, tf.int32)
    return tf.reduce_mean((tf.nn.embedding_lookup(table, ids) - 1) ** 2)


class _Steps:
    """The steps of one part, in a loop of the graph, for timing."""

    def __init__(self, name: str, loss: Callable[[], tf.Tensor]):
        part = update.Update(**{"optimizer": _ADAM, **PARTS[name]})
        entries = {"": masks.Nonzero()} if name == "masked entries" else {}
        step_fn = freezing.Freezing(entries=entries).wrap_step(functools.partial(_step, part, loss))
        self._done = 0
        with tf.Graph().as_default():
            tf1.train.create_global_step()
            self._until = tf1.placeholder(tf.int64, [])
            iterator = tf1.data.make_one_shot_iterator(
                tf.data.Dataset.from_tensors((0, 0)).repeat()
            )
            result = training_loop.run_repeatedly(
                step_fn, iterator, steps_per_call=10**6, last_step=self._until, due_every=()
            )
            self._fetches = (result.step, result.values)
            self._session = tf1.Session()
            self._session.run(tf1.global_variables_initializer())

    def secs(self, steps: int) -> float:
        """Return the mean seconds of a step."""
        start, end = time.perf_counter(), self._done + steps
        while self._done < end:
            self._done, _ = self._session.run(self._fetches, {self._until: end})
        return (time.perf_counter() - start) / steps

    def close(self) -> None:
        """Free the memory of the session."""
        self._session.close()


def _step(
    part: update.Update, loss: Callable[[], tf.Tensor], features: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Operation, types.Tensors]:
    del features, labels
    value = loss()
    variables = tf1.trainable_variables()
    return part(tf.gradients(value, variables), variables, {"loss": value})


def _measured(
    pairs: Sequence[tuple[str, Callable[[], tf.Tensor]]], rounds: int, steps: int
) -> np.ndarray:
    """Time all pairs of a part and a loss in turns, and return the median seconds of a step."""
    sides = []
    for name, loss in pairs:
        sides.append(_Steps(name, loss))
        sides[-1].secs(3)
    secs = [[side.secs(steps) for side in sides] for _ in range(rounds)]
    for side in sides:
        side.close()
    return np.median(secs, axis=0)


def main() -> None:
    """Print a markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, nargs=2, default=[10_000, 10_000_000])
    parser.add_argument(
        "--parts", nargs="+", default=list(PARTS), help="parts to measure, the plain step first"
    )
    options = parser.parse_args()
    names, (few, many) = options.parts, options.rows
    dense = _measured([(name, _dense) for name in names], options.rounds, options.steps)
    # Measure one part at a time, because a table of ten million rows with its state takes
    # gigabytes.
    tables = [
        functools.partial(_table, *sizes) for sizes in ((few, few), (many, few), (many, many))
    ]
    columns = f"{few:,} rows, ratio | {many:,}, {few:,} of them used | all used"
    print(f"| part | dense, ratio | {columns} |")
    print("|---|---|---|---|---|")
    plain = None
    for name, secs in zip(names, dense, strict=True):
        cells = ["-"] * len(tables)
        if name not in _WHOLE:
            secs_of_tables = _measured(
                [(name, loss) for loss in tables], options.rounds, options.steps
            )
            plain = secs_of_tables if plain is None else plain
            cells = [
                f"{ratio:.2f}"
                for ratio in (secs_of_tables[0] / plain[0], *secs_of_tables[1:] / secs_of_tables[0])
            ]
        print(f"| {name} | {secs / dense[0]:.2f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
