"""Compares the step times of networks with those of an MLP of equal FLOPs, and of Keras models.

Steps run as in training, many in a session call, on 128 inputs and two binary tasks, with Adam. All
networks are timed in turns, with the same number of threads. A ratio compares two times of a round,
and the table shows medians and ranges.

    python -m benchmarks.networks_speed --rounds 7

The first layer of the MLP of equal FLOPs has as many units as the first layers of all experts
together. Its second layer has as many units as the second layer of one expert. So the MLP computes
the same matrix products as the experts, without gates. The Keras models have the same equations,
are built from common layers (experts in a Python loop), and are trained by `fit`. The Keras models
run on Keras 3 if `tf.keras` is Keras 3, and else on tf-keras. The transformer reads the inputs as
16 columns of 8 numbers.
"""

import argparse
import statistics
import time
import unittest.mock
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from benchmarks import balancing_speed
from mtl import heads, model, networks, types
from mtl.compat import keras as keras_lib
from mtl.networks import gates
from mtl.optimization import optimizers, update
from mtl.step import outlets

INPUTS, EXPERTS, EXPERT, TOWER, LEVEL = 128, 8, (256, 128), (64,), (128,)
TASKS = ("task_0", "task_1")
COLUMNS, TOKEN, ATTENTION_HEADS, BLOCKS, HIDDEN = 16, 32, 4, 2, 42
CROSSES, DEEP = 3, (256, 128)


class Cut:
    """Columns that divide a field: each column passes on a part of the field."""

    columns = {f"x_{index}": ("x",) for index in range(COLUMNS)}

    def accumulators(self):
        """Return no accumulators, since these columns need no statistics of the data."""
        return {}

    def __call__(self, features, fitted):
        """Cut [B, INPUTS] into columns of equal width."""
        del fitted
        return dict(zip(self.columns, tf.split(features["x"], COLUMNS, axis=1), strict=True))


def build_networks() -> dict[str, types.Network]:
    """Return {name: network} for all timed networks."""
    tower, expert = networks.MLP(layers=TOWER), networks.MLP(layers=EXPERT)
    wide = networks.MLP(layers=[EXPERTS * EXPERT[0], EXPERT[1]])
    ple = networks.PLE(experts=[networks.MLP(layers=LEVEL)] * 2, tower=tower)
    return {
        "one MLP of equal FLOPs": networks.SharedBottom(trunk=wide, tower=tower),
        "MMoE, 8 experts": networks.MMoE(expert=expert, num_experts=EXPERTS, tower=tower),
        "DSelect-k of 8 experts": networks.MMoE(
            expert=expert, num_experts=EXPERTS, tower=tower, gate=gates.DSelectK()
        ),
        "PLE, 2 levels": ple,
        "DCN-v2": networks.SharedBottom(
            trunk=networks.Parallel(
                trunks=[networks.Cross(num_layers=CROSSES), networks.MLP(layers=DEEP)]
            ),
            tower=tower,
        ),
        "FT-Transformer": networks.SharedBottom(
            trunk=networks.FTTransformer(
                dimension=TOKEN,
                num_heads=ATTENTION_HEADS,
                num_blocks=BLOCKS,
                attention_dropout=0.0,
                feed_forward_dropout=0.0,
            ),
            tower=tower,
        ),
    }


def build_steps(network: types.Network, batch: tuple, threads: int) -> balancing_speed.Steps:
    """Return training steps of a network with two binary heads."""
    trunk = getattr(network, "trunk", None)
    is_cut = isinstance(trunk, networks.FTTransformer)
    mtl_model = model.MultiTaskModel(
        columns=[Cut() if is_cut else balancing_speed.Given()],
        network=network,
        heads=[heads.Binary(name=task) for task in TASKS],
        update=update.Update(optimizer=optimizers.Adam()),
    )
    return balancing_speed.Steps(
        mtl_model, lambda: tf.data.Dataset.from_tensors(batch).cache().repeat(), threads
    )


class KerasSteps:
    """Training steps of a functional Keras model with the equations of a network of `mtl`."""

    def __init__(self, kind: str, batch: tuple):
        keras = tf.keras
        inputs = keras.Input([INPUTS], name="x")
        dense = keras.layers.Dense

        def mlp(hidden, sizes: Sequence[int]):
            for size in sizes:
                hidden = dense(size, activation="relu")(hidden)
            return hidden

        def mix(gate_inputs, experts):
            weights = dense(len(experts), activation="softmax", use_bias=False)(gate_inputs)
            products = [
                keras.layers.Multiply()([weights[:, index : index + 1], expert])
                for index, expert in enumerate(experts)
            ]
            return keras.layers.Add()(products)

        if kind == "MMoE":
            experts = [mlp(inputs, EXPERT) for _ in range(EXPERTS)]
            mixed = [mix(inputs, experts) for _ in TASKS]
        elif kind == "DCN-v2":
            crossed = inputs
            for _ in range(CROSSES):
                product = keras.layers.Multiply()([inputs, dense(INPUTS)(crossed)])
                crossed = keras.layers.Add()([product, crossed])
            joined = keras.layers.Concatenate()([crossed, mlp(inputs, DEEP)])
            mixed = [joined] * len(TASKS)
        elif kind == "FT-Transformer":
            mixed = [_build_transformer(keras, inputs)] * len(TASKS)
        else:
            # The inputs of each task's experts, followed by the inputs of the shared experts.
            level_inputs = [inputs] * (len(TASKS) + 1)
            for level in range(2):
                groups = [[mlp(values, LEVEL) for _ in range(2)] for values in level_inputs]
                mixed = [mix(level_inputs[t], groups[t] + groups[-1]) for t in range(len(TASKS))]
                if level == 0:
                    experts = [expert for group in groups for expert in group]
                    level_inputs = [*mixed, mix(level_inputs[-1], experts)]
        outputs = {
            task: dense(1, activation="sigmoid", name=task)(mlp(tower_input, TOWER))
            for task, tower_input in zip(TASKS, mixed, strict=True)
        }
        self._model = keras.Model(inputs, outputs)
        losses = dict.fromkeys(TASKS, "binary_crossentropy")
        self._model.compile(optimizer=keras.optimizers.Adam(), loss=losses)
        features, labels = batch
        columns = {task: value[:, np.newaxis] for task, value in labels.items()}
        self._data = tf.data.Dataset.from_tensors((features["x"], columns)).cache().repeat()
        self(2)

    def __call__(self, steps: int) -> float:
        """Return the mean seconds of a step, over some steps."""
        started = time.perf_counter()
        self._model.fit(self._data, steps_per_epoch=steps, epochs=1, verbose=0)
        return (time.perf_counter() - started) / steps


def _build_transformer(keras, inputs):
    """Return the output [B, TOKEN] of an FT-Transformer that consists of Keras layers."""
    layers = keras.layers

    class Tokens(layers.Layer):
        """Cuts the inputs into columns, projects each column, and puts a learned token in front."""

        def build(self, shape):
            width = shape[-1] // COLUMNS
            self.kernel = self.add_weight(name="kernel", shape=[COLUMNS, width, TOKEN])
            self.bias = self.add_weight(name="bias", shape=[COLUMNS, TOKEN])
            self.learned = self.add_weight(name="learned", shape=[1, 1, TOKEN])

        def call(self, values):
            columns = tf.reshape(values, [-1, COLUMNS, values.shape[-1] // COLUMNS])
            tokens = tf.einsum("bfd,fdt->bft", columns, self.kernel) + self.bias
            learned = tf.tile(self.learned, [tf.shape(values)[0], 1, 1])
            return tf.concat([learned, tokens], axis=1)

    class Gate(layers.Layer):
        """Multiplies the first half of the units by the rectified second half."""

        def call(self, values):
            first, second = tf.split(values, 2, axis=-1)
            return first * tf.nn.relu(second)

    class First(layers.Layer):
        """Returns the first token."""

        def call(self, values):
            return values[:, 0]

    hidden = Tokens()(inputs)
    for block in range(BLOCKS):
        scaled = layers.LayerNormalization(epsilon=1e-5)(hidden) if block else hidden
        attention = layers.MultiHeadAttention(ATTENTION_HEADS, TOKEN // ATTENTION_HEADS)
        hidden = layers.Add()([hidden, attention(scaled, scaled)])
        scaled = layers.LayerNormalization(epsilon=1e-5)(hidden)
        outputs = layers.Dense(TOKEN)(Gate()(layers.Dense(2 * HIDDEN)(scaled)))
        hidden = layers.Add()([hidden, outputs])
    return layers.ReLU()(layers.LayerNormalization(epsilon=1e-5)(First()(hidden)))


def measure(sides: dict[str, Callable[[int], float]], rounds: int, steps: int) -> dict:
    """Time the networks in turns, and return {name: seconds of a step in each round}."""
    for side in sides.values():
        side(5)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            times[name].append(side(steps))
    return times


def print_table(times: dict[str, list[float]], pairs: Sequence[tuple[str, str]]) -> None:
    """Print the median time of each network, and the ratios of pairs of networks."""
    print("| side | ms a step |\n| -- | -- |")
    for name, secs in times.items():
        print(f"| {name} | {1000 * statistics.median(secs):.2f} |")
    print("\n| ratio | median | least | most |\n| -- | -- | -- | -- |")
    for side, base in pairs:
        ratios = [a / b for a, b in zip(times[side], times[base], strict=True)]
        low, high = min(ratios), max(ratios)
        print(f"| {side} / {base} | {statistics.median(ratios):.2f} | {low:.2f} | {high:.2f} |")


def main() -> None:
    """Time all networks, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    features = {"x": rng.normal(size=[args.batch_size, INPUTS]).astype(np.float32)}
    labels = {task: rng.integers(0, 2, args.batch_size) for task in TASKS}
    batch = (features, labels)
    sides: dict[str, Callable[[int], float]] = {
        name: build_steps(network, batch, args.threads)
        for name, network in build_networks().items()
    }
    with unittest.mock.patch.object(outlets, "add_scalars_where_due"):
        sides["MMoE that shows no gates"] = build_steps(
            build_networks()["MMoE, 8 experts"], batch, args.threads
        )
    for kind in ("MMoE", "PLE", "DCN-v2", "FT-Transformer"):
        sides[f"{kind} in Keras"] = KerasSteps(kind, batch)
    print(f"TensorFlow {tf.__version__}, Keras {keras_lib.in_use()}, {args.threads} threads\n")
    times = measure(sides, args.rounds, args.steps)
    print_table(
        times,
        [
            ("MMoE, 8 experts", "one MLP of equal FLOPs"),
            ("DSelect-k of 8 experts", "one MLP of equal FLOPs"),
            ("MMoE, 8 experts", "MMoE that shows no gates"),
            ("MMoE, 8 experts", "MMoE in Keras"),
            ("PLE, 2 levels", "PLE in Keras"),
            ("DCN-v2", "DCN-v2 in Keras"),
            ("FT-Transformer", "FT-Transformer in Keras"),
        ],
    )


if __name__ == "__main__":
    main()
