"""The step time of every transform of the gradient, as a ratio to the plain step.

    python -m benchmarks.gradients --rounds 5 --rows 10000 10000000

A dense network (three layers of 512 on 256 rows) and a looked-up table of some sizes, of which the
batch has 256 rows. The parts on the dense network take turns within a round, and so do
the tables of one part; the table shows medians of the rounds, and what a step on the largest takes
beside the smallest: when only as many of its rows are ever looked up as the smallest has, which
tells what its size costs, and when all are, whose rows are in no cache.
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
# Not for tables: what costs as much as the table is large, which their docstrings say.
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


def _table(rows: int, used: int) -> tf.Tensor:
    """Return the loss of a batch that looks up some of the first `used` rows."""
    table = tf1.get_variable("table", [rows, _DIMENSION], initializer=tf1.zeros_initializer())
    seed = tf.stack([tf.cast(tf1.train.get_global_step(), tf.int32), 0])
    ids = tf.random.stateless_uniform([_BATCH], seed, 0, used, tf.int32)
    return tf.reduce_mean((tf.nn.embedding_lookup(table, ids) - 1) ** 2)


class _Steps:
    """Steps of one part, in the graph's loop, ready to be timed."""

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
        """Seconds a step."""
        start, end = time.perf_counter(), self._done + steps
        while self._done < end:
            self._done, _ = self._session.run(self._fetches, {self._until: end})
        return (time.perf_counter() - start) / steps

    def close(self) -> None:
        """Free its memory."""
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
    """Medians over rounds of the seconds a step, of parts and losses that take turns."""
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
        "--parts", nargs="+", default=list(PARTS), help="the first is the plain step"
    )
    options = parser.parse_args()
    names, (few, many) = options.parts, options.rows
    dense = _measured([(name, _dense) for name in names], options.rounds, options.steps)
    # One part at a time: a table of ten million rows and its state take gigabytes.
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
            own = _measured([(name, of) for of in tables], options.rounds, options.steps)
            plain = own if plain is None else plain
            cells = [f"{ratio:.2f}" for ratio in (own[0] / plain[0], *own[1:] / own[0])]
        print(f"| {name} | {secs / dense[0]:.2f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
