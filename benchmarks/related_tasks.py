"""How errors rise as tasks have less in common: the MMoE paper's experiment, with many seeds.

    python -m benchmarks.related_tasks --seeds 12 --steps 3000
    python -m benchmarks.related_tasks --sines 8
    python -m benchmarks.related_tasks --scale 0.3 --rows 10240 --steps 1200

The tasks are those of `mtl.datasets.related_tasks`, and the networks have the paper's sizes: 100
inputs, 8 experts of 16 units, towers of 8, and a shared bottom with as many parameters. They are
written in plain TensorFlow, apart from `mtl`. All seeds, correlations and rates of Adam train
together, as one compiled program. For each network and correlation the rate with the least error on
validation data is taken, and at each of four moments of training the least error up to it; the
table shows the error on test data. A network's rise is what its error rises from the highest
correlation to the lowest; the last columns compare the rises at the same seeds.
"""

import argparse
import itertools
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from benchmarks import networks, rows
from mtl.datasets import simulated

NETWORKS = ("shared bottom", "OMoE", "MMoE")
_DIMENSION, _EXPERTS, _UNITS, _TOWER, _TASKS = 100, 8, 16, 8, 2
_BATCH, _TESTED, _NOISE = 128, 4000, 0.1
_MOMENTS = 4

Tensors = Sequence[tf.Variable]


class Networks:
    """One network of each kind for each of N settings, whose weights have N in front."""

    def __init__(self, draws: Sequence[int]):
        # Settings of one seed start alike.
        self._draws = draws
        per_unit = _DIMENSION + 1 + _TASKS * _TOWER
        gates = _TASKS * _EXPERTS * _DIMENSION
        experts = (_DIMENSION + 1) * _EXPERTS * _UNITS + gates + _TASKS * _UNITS * _TOWER
        width = round(experts / per_unit)
        towers = {"shared bottom": width, "OMoE": _UNITS, "MMoE": _UNITS}
        wide = _EXPERTS * _UNITS
        self.weights: dict[str, Tensors] = {}
        for index, (name, inputs) in enumerate(towers.items()):
            random = [np.random.default_rng([index, draw]) for draw in draws]
            hidden = width if name == "shared bottom" else wide
            fan_out = width if name == "shared bottom" else _UNITS
            made = [
                _draw(random, (_DIMENSION, hidden), _DIMENSION + fan_out),
                tf.Variable(tf.zeros([len(draws), 1, hidden])),
                _draw(random, (_TASKS, inputs, _TOWER), inputs + _TOWER),
                tf.Variable(tf.zeros([len(draws), 1, _TASKS, _TOWER])),
                _draw(random, (_TASKS, _TOWER), 1 + _TOWER),
                tf.Variable(tf.zeros([len(draws), 1, _TASKS])),
            ]
            if name != "shared bottom":
                shape = (_DIMENSION, 1 if name == "OMoE" else _TASKS, _EXPERTS)
                made.append(_draw(random, shape, _DIMENSION + _EXPERTS))
            self.weights[name] = made

    def predict(self, name: str, x: tf.Tensor) -> tf.Tensor:
        """Return both tasks' predictions: [B, D] -> [N, B, 2]."""
        kernel, bias, tower, tower_bias, last, last_bias, *gate = self.weights[name]
        hidden = tf.nn.relu(tf.einsum("bd,ndh->nbh", x, kernel) + bias)
        if gate:
            experts = tf.reshape(hidden, [len(self._draws), -1, _EXPERTS, _UNITS])
            shares = tf.nn.softmax(tf.einsum("bd,ndge->nbge", x, gate[0]))
            shares = tf.broadcast_to(shares, [*experts.shape[:2], _TASKS, _EXPERTS])
            mixed = tf.einsum("nbke,nbeu->nbku", shares, experts)
            inside = tf.einsum("nbku,nkut->nbkt", mixed, tower)
        else:
            inside = tf.einsum("nbu,nkut->nbkt", hidden, tower)
        return tf.einsum("nbkt,nkt->nbk", tf.nn.relu(inside + tower_bias), last) + last_bias


def _draw(random: Sequence[np.random.Generator], shape: tuple[int, ...], fans: int) -> tf.Variable:
    """Return Glorot-uniform values, [N, *shape]."""
    limit = np.sqrt(6 / fans)
    return tf.Variable(np.float32([one.uniform(-limit, limit, shape) for one in random]))


class Adam:
    """Adam whose rate differs between settings."""

    def __init__(self, rates: Sequence[float], weights: Tensors):
        self._rates = tf.constant(rates, tf.float32)
        self._means = [tf.Variable(tf.zeros_like(weight)) for weight in weights]
        self._squares = [tf.Variable(tf.zeros_like(weight)) for weight in weights]
        self._weights = weights

    def move(self, gradients: Tensors, step: tf.Tensor) -> None:
        """Take a step, the first of which is number 1."""
        count = tf.cast(step, tf.float32)
        rates = self._rates * tf.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        slots = zip(self._weights, self._means, self._squares, gradients, strict=True)
        for weight, mean, square, gradient in slots:
            mean.assign(0.9 * mean + 0.1 * gradient)
            square.assign(0.999 * square + 0.001 * gradient**2)
            rate = tf.reshape(rates, [-1] + [1] * (len(weight.shape) - 1))
            weight.assign_sub(rate * mean / (tf.sqrt(square) + 1e-8))


def make_reader(
    settings: Sequence[tuple[float, int, float]], scale: float, sines: int
) -> Callable[[int, tf.Tensor, int], tuple[tf.Tensor, tf.Tensor]]:
    """Return what draws rows: (seed, number, B) -> x [B, D] and labels [N, B, 2]."""
    found = [
        scale * simulated.draw_directions(seed, _DIMENSION, correlation)
        for correlation, seed, _ in settings
    ]
    weights = tf.constant(np.float32(found))

    def read(seed: int, number: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
        x = tf.random.stateless_normal([count, _DIMENSION], [seed, number])
        noise = tf.random.stateless_normal([count, _TASKS], [seed + 1, number])
        sums = tf.einsum("bd,ndk->nbk", x, weights)
        waves = [tf.sin((index + 1.0) * sums + float(index**2)) for index in range(sines)]
        return x, sums + tf.add_n([*waves, tf.zeros_like(sums)]) + _NOISE * noise

    return read


def train(
    settings: Sequence[tuple[float, int, float]],
    steps: int,
    num_rows: int,
    scale: float,
    sines: int,
) -> list[dict[str, np.ndarray]]:
    """Return {network: RMSE of validation and of test [2, N]} at some moments of a training."""
    read = make_reader(settings, scale, sines)
    made = Networks([seed for _, seed, _ in settings])
    optimizers = {
        name: Adam([rate for *_, rate in settings], made.weights[name]) for name in NETWORKS
    }

    @tf.function(jit_compile=True)
    def move(step: tf.Tensor, number: tf.Tensor) -> None:
        x, labels = read(0, number, _BATCH)
        for name in NETWORKS:
            with tf.GradientTape() as tape:
                errors = (made.predict(name, x) - labels) ** 2
                loss = tf.reduce_sum(tf.reduce_mean(errors, axis=1))
            optimizers[name].move(tape.gradient(loss, made.weights[name]), step)

    @tf.function(jit_compile=True)
    def measure(seed: int) -> dict[str, tf.Tensor]:
        x, labels = read(seed, tf.constant(0), _TESTED)
        return {
            name: tf.sqrt(tf.reduce_mean((made.predict(name, x) - labels) ** 2, axis=[1, 2]))
            for name in NETWORKS
        }

    seen = []
    num_batches = num_rows // _BATCH or steps
    for step in range(steps):
        move(tf.constant(step + 1), tf.constant(step % num_batches))
        if (step + 1) % (steps // _MOMENTS) == 0:
            validated, tested = measure(2), measure(4)
            seen.append({name: np.stack([validated[name], tested[name]]) for name in NETWORKS})
    return seen


def choose(seen: Sequence[Mapping[str, np.ndarray]], shape: tuple[int, int, int]) -> dict:
    """Return {network: test RMSE [correlations, seeds]} of the best rate and moment so far."""
    found = {}
    for name in NETWORKS:
        # [moments, validation and test, correlations, seeds, rates]
        errors = np.stack([moment[name] for moment in seen]).reshape(-1, 2, *shape)
        by_choice = np.moveaxis(errors, (0, 4), (3, 4))  # [2, correlations, seeds, moments, rates]
        by_choice = by_choice.reshape(2, *shape[:2], -1)
        best = by_choice[0].mean(axis=1).argmin(axis=-1)  # [correlations]
        found[name] = np.stack([by_choice[1, place, :, at] for place, at in enumerate(best)])
    return found


def tell(values: np.ndarray) -> str:
    """Return a mean over seeds and its standard error."""
    mean, error = networks.mean_and_error(values.tolist())
    return f"{mean:+.3f} ± {error:.3f}"


def table(errors: Mapping[str, np.ndarray], correlations: Sequence[float]) -> str:
    """Return a line for each network: its errors, its rise, and what that is beside others'."""
    rises = {name: found[0] - found[-1] for name, found in errors.items()}
    lines = []
    for name, found in errors.items():
        means = [f"{row.mean():.3f}" for row in found]
        beside = [
            tell(rises[name] - rises[other]) if NETWORKS.index(other) < NETWORKS.index(name) else ""
            for other in NETWORKS[:-1]
        ]
        lines.append([name, *means, tell(rises[name]), *beside])
    correlated = [f"{value:g}" for value in correlations]
    return rows.markdown(["", *correlated, "rise", *(f"less {n}'s" for n in NETWORKS[:-1])], lines)


def main() -> None:
    """Print a table at each moment of the training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--correlations", default="0,0.5,1")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rates", default="0.001,0.003,0.01", help="of Adam")
    parser.add_argument("--rows", type=int, default=0, help="of training; 0 for new ones each step")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--sines", type=int, default=4)
    args = parser.parse_args()
    correlations = [float(value) for value in args.correlations.split(",")]
    rates = [float(value) for value in args.rates.split(",")]
    settings = list(itertools.product(correlations, range(args.seeds), rates))
    seen = train(settings, args.steps, args.rows, args.scale, args.sines)
    for moment in range(1, _MOMENTS + 1):
        errors = choose(seen[:moment], (len(correlations), args.seeds, len(rates)))
        print(f"\n{moment * (args.steps // _MOMENTS)} steps, test RMSE by correlation\n")
        print(table(errors, correlations), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    rows.guard(main)
