"""Compares the time of a step on an embedding table by Adam, TensorFlow's Adam and LazyAdam.

    python -m benchmarks.table_updates --rounds 20

Each step looks up 256 rows of 16 numbers and updates them by the gradient of a sum of squares. Both
versions of Adam also update all other rows; LazyAdam does not. The optimizers take turns of ten
steps. A ratio compares two consecutive turns, and the printed table shows median and range of the
ratios.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from benchmarks import rows
from mtl.optimization import optimizers

tf1 = tf.compat.v1

_LOOKED_UP, _WIDTH, _STEPS = 256, 16, 10
_OURS, _PLAIN, _LAZY = "Adam", "TensorFlow's Adam", "LazyAdam"

MakeOptimizer = Callable[[tf.Tensor], tf.compat.v1.train.Optimizer]
SIDES: dict[str, MakeOptimizer] = {
    _OURS: optimizers.Adam(),
    _PLAIN: tf1.train.AdamOptimizer,
    _LAZY: optimizers.LazyAdam(),
}


class Side:
    """A session that trains an embedding table.

    Args:
      make_optimizer: returns the optimizer for a learning rate.
      num_rows: the rows of the table.

    Attributes:
      session: the session, with initialized variables.
    """

    def __init__(self, make_optimizer: MakeOptimizer, num_rows: int):
        with tf.Graph().as_default() as graph:
            tf1.set_random_seed(1)
            table = tf1.get_variable("table", [num_rows, _WIDTH], use_resource=True)
            ids = tf.random.uniform([_LOOKED_UP], maxval=num_rows, dtype=tf.int32)
            loss = tf.reduce_sum(tf.square(tf.gather(table, ids) - 1))
            self._step = make_optimizer(tf.constant(0.01)).minimize(loss)
            self._weights = table.read_value()
            self.session = tf1.Session(graph=graph)
            self.session.run(tf1.global_variables_initializer())

    def __call__(self, steps: int) -> float:
        """Train for some steps, and return the mean seconds of a step."""
        start = time.perf_counter()
        for _ in range(steps):
            self.session.run(self._step)
        return (time.perf_counter() - start) / steps

    def read_table(self) -> np.ndarray:
        """Return the weights of the table, [num_rows, 16]."""
        return self.session.run(self._weights)


def compare(sizes: Sequence[int], rounds: int) -> str:
    """Return a table with a line for each number of rows."""
    lines = []
    for size in sizes:
        sides = {name: Side(make, size) for name, make in SIDES.items()}
        times = rows.take_turns(sides, rounds, _STEPS, warm_up=_STEPS)
        line = [f"{size:,}", f"{statistics.median(times[_OURS]) * 1e3:.2f}"]
        for name in (_PLAIN, _LAZY):
            ratios = [a / b for a, b in zip(times[name], times[_OURS], strict=True)]
            spread = f"({min(ratios):.3f} to {max(ratios):.3f})"
            line += [
                f"{statistics.median(times[name]) * 1e3:.2f}",
                f"{statistics.median(ratios):.3f} {spread}",
            ]
        lines.append(line)
    header = ["rows", f"{_OURS}, ms"]
    for name in (_PLAIN, _LAZY):
        header += [f"{name}, ms", f"{name} / {_OURS}"]
    return rows.markdown(header, lines)


def main() -> None:
    """Time all optimizers, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="timings of each optimizer")
    parser.add_argument("--sizes", type=int, nargs="+", default=[5_000, 100_000, 1_000_000])
    options = parser.parse_args()
    print(compare(options.sizes, options.rounds))


if __name__ == "__main__":
    main()
