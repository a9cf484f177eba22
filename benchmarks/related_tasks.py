"""Repeats the MMoE paper's experiment on related tasks, with many seeds.

    python -m benchmarks.related_tasks --seeds 12 --steps 3000
    python -m benchmarks.related_tasks --sines 8
    python -m benchmarks.related_tasks --scale 0.3 --rows 10240 --steps 1200

The experiment measures by how much errors rise if tasks have less in common. The tasks come from
`mtl.datasets.related_tasks`, and the networks have the sizes of the paper: 100 inputs, 8 experts of
16 units, towers of 8 units, and a shared bottom with as many parameters as MMoE. The networks use
plain TensorFlow, without `mtl`. All seeds, correlations and learning rates of Adam train together
in one compiled program. At each of four moments of training, the table shows test errors. For each
network and correlation, validation data choose the learning rate and one of the moments so far. The
rise of a network is its error at the lowest correlation minus its error at the highest. The last
columns compare the rises of two networks with the same seeds.
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
    """A network of each kind for each of N settings, with weights of shape [N, ...].

    Args:
      draws: the seed of the weights for each setting; settings with the same seed start from equal
        weights.
    """

    def __init__(self, draws: Sequence[int]):
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
            weights = [
                _draw(random, (_DIMENSION, hidden), _DIMENSION + fan_out),
                tf.Variable(tf.zeros([len(draws), 1, hidden])),
                _draw(random, (_TASKS, inputs, _TOWER), inputs + _TOWER),
                tf.Variable(tf.zeros([len(draws), 1, _TASKS, _TOWER])),
                _draw(random, (_TASKS, _TOWER), 1 + _TOWER),
                tf.Variable(tf.zeros([len(draws), 1, _TASKS])),
            ]
            if name != "shared bottom":
                shape = (_DIMENSION, 1 if name == "OMoE" else _TASKS, _EXPERTS)
                weights.append(_draw(random, shape, _DIMENSION + _EXPERTS))
            self.weights[name] = weights

    def predict(self, name: str, x: tf.Tensor) -> tf.Tensor:
        """Return the predictions of two tasks, [N, B, 2], for inputs [B, D]."""
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
    return tf.Variable(np.float32([rng.uniform(-limit, limit, shape) for rng in random]))


class Adam:
    """Adam with a learning rate for each setting."""

    def __init__(self, rates: Sequence[float], weights: Tensors):
        self._rates = tf.constant(rates, tf.float32)
        self._means = [tf.Variable(tf.zeros_like(weight)) for weight in weights]
        self._squares = [tf.Variable(tf.zeros_like(weight)) for weight in weights]
        self._weights = weights

    def move(self, gradients: Tensors, step: tf.Tensor) -> None:
        """Take a step; the number of the first step is 1."""
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
    """Return a function that draws rows: (seed, number, B) -> x [B, D] and labels [N, B, 2]."""
    directions = [
        scale * simulated.draw_directions(seed, _DIMENSION, correlation)
        for correlation, seed, _ in settings
    ]
    weights = tf.constant(np.float32(directions))

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
    """Train the networks of all settings together.

    Args:
      settings: (correlation, seed, learning rate) of each of N settings.
      steps: the steps of the training.
      num_rows: the number of training rows; 0 for new rows at each step.
      scale: a factor of the sums that the labels depend on.
      sines: the number of sine waves in the labels.

    Returns:
      {network: RMSE of validation and test [2, N]} at each of four moments.
    """
    read = make_reader(settings, scale, sines)
    nets = Networks([seed for _, seed, _ in settings])
    optimizers = {
        name: Adam([rate for *_, rate in settings], nets.weights[name]) for name in NETWORKS
    }

    @tf.function(jit_compile=True)
    def move(step: tf.Tensor, number: tf.Tensor) -> None:
        x, labels = read(0, number, _BATCH)
        for name in NETWORKS:
            with tf.GradientTape() as tape:
                errors = (nets.predict(name, x) - labels) ** 2
                loss = tf.reduce_sum(tf.reduce_mean(errors, axis=1))
            optimizers[name].move(tape.gradient(loss, nets.weights[name]), step)

    @tf.function(jit_compile=True)
    def measure(seed: int) -> dict[str, tf.Tensor]:
        x, labels = read(seed, tf.constant(0), _TESTED)
        return {
            name: tf.sqrt(tf.reduce_mean((nets.predict(name, x) - labels) ** 2, axis=[1, 2]))
            for name in NETWORKS
        }

    moments = []
    num_batches = num_rows // _BATCH or steps
    for step in range(steps):
        move(tf.constant(step + 1), tf.constant(step % num_batches))
        if (step + 1) % (steps // _MOMENTS) == 0:
            validated, tested = measure(2), measure(4)
            moments.append({name: np.stack([validated[name], tested[name]]) for name in NETWORKS})
    return moments


def choose(moments: Sequence[Mapping[str, np.ndarray]], shape: tuple[int, int, int]) -> dict:
    """Choose the learning rate and the moment with the least error on validation data.

    Args:
      moments: the errors of all moments so far, as of `train`.
      shape: the numbers of correlations, seeds and rates.

    Returns:
      {network: test RMSE [correlations, seeds]}.
    """
    test_errors = {}
    for name in NETWORKS:
        # [moments, validation and test, correlations, seeds, rates]
        errors = np.stack([moment[name] for moment in moments]).reshape(-1, 2, *shape)
        by_choice = np.moveaxis(errors, (0, 4), (3, 4))  # [2, correlations, seeds, moments, rates]
        by_choice = by_choice.reshape(2, *shape[:2], -1)
        best = by_choice[0].mean(axis=1).argmin(axis=-1)  # [correlations]
        test_errors[name] = np.stack([by_choice[1, c, :, at] for c, at in enumerate(best)])
    return test_errors


def describe(values: np.ndarray) -> str:
    """Return the mean over seeds and its standard error as text."""
    mean, error = networks.mean_and_error(values.tolist())
    return f"{mean:+.3f} ± {error:.3f}"


def table(errors: Mapping[str, np.ndarray], correlations: Sequence[float]) -> str:
    """Return the table: errors and rise of each network, and differences between rises."""
    rises = {
        name: by_correlation[0] - by_correlation[-1] for name, by_correlation in errors.items()
    }
    lines = []
    for name, by_correlation in errors.items():
        means = [f"{of_seeds.mean():.3f}" for of_seeds in by_correlation]
        differences = [
            describe(rises[name] - rises[other])
            if NETWORKS.index(other) < NETWORKS.index(name)
            else ""
            for other in NETWORKS[:-1]
        ]
        lines.append([name, *means, describe(rises[name]), *differences])
    header = [f"{value:g}" for value in correlations]
    return rows.markdown(["", *header, "rise", *(f"minus {n}'s" for n in NETWORKS[:-1])], lines)


def main() -> None:
    """Print a table at each moment of the training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--correlations", default="0,0.5,1")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rates", default="0.001,0.003,0.01", help="learning rates of Adam")
    parser.add_argument("--rows", type=int, default=0, help="training rows; 0 draws them anew")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--sines", type=int, default=4)
    args = parser.parse_args()
    correlations = [float(value) for value in args.correlations.split(",")]
    rates = [float(value) for value in args.rates.split(",")]
    settings = list(itertools.product(correlations, range(args.seeds), rates))
    moments = train(settings, args.steps, args.rows, args.scale, args.sines)
    for moment in range(1, _MOMENTS + 1):
        errors = choose(moments[:moment], (len(correlations), args.seeds, len(rates)))
        print(f"\n{moment * (args.steps // _MOMENTS)} steps, test RMSE by correlation\n")
        print(table(errors, correlations), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    rows.guard(main)
