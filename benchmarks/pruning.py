"""Compares methods of pruning on LeNet-300-100, by test accuracy at 90, 95, 98 and 99% sparsity.

    python -m benchmarks.pruning --seeds 3
    python -m benchmarks.pruning --units --seeds 3
    python -m benchmarks.pruning --tasks --seeds 3
    python -m benchmarks.pruning --cost

The data are MNIST's 10,000 test digits: 8,000 random digits for training, and 2,000 for tests.
Training takes 15 epochs of SGD with a momentum of 0.9, a rate of 0.1 with cosine decay, batches of
100 and an L2 penalty of 1e-4. The sparsity is the share of zeros in all three layers, including the
layer of the head. Gradual pruning cuts every 40 steps, from step 160 to 70% of the run. `--units`
cuts whole units after 10 epochs, and compares the results with networks of the smaller size that
train from scratch. `--tasks` prunes a trunk of 200 and 100 units for two tasks: the digit of an
image, and the slant of another image. The inputs are these two images side by side, at half their
height and width. `--cost` prints the time of a step with fixed masks, and of a step that changes
masks.
"""

import argparse
import functools
import gzip
import os
import pathlib
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import balancing_speed, rows
from mtl import checks, heads, model, networks
from mtl.model import graph_options
from mtl.optimization import optimizers, regularization, schedules, update
from mtl.sparsity import (
    criteria,
    densities,
    granularity,
    pruning,
    pruning_schedules,
    regrowth,
)
from mtl.variables import pruned

tf1 = tf.compat.v1

_BATCH, _EPOCHS, _TRAIN = 100, 15, 8000
_STEPS = _EPOCHS * _TRAIN // _BATCH
_END = round(0.7 * _STEPS)
_KERNELS = ("^network/.*/kernel$", "^head/digit/.*kernel$")
LAYERS = (300, 100)
_ALL = {"patterns": _KERNELS, "cuts_heads": True}
_TASK_STEPS, _TASK_LAYERS = 1200, (200, 100)
_SHARED = ("network/trunk/hidden_0/kernel", "network/trunk/hidden_1/kernel")
KEPT = (0.5, 0.25, 0.125)
SPARSITIES = (0.9, 0.95, 0.98, 0.99)
_ERK = densities.ErdosRenyiKernel()


def _gradually(density: Any, **settings: Any) -> dict[str, Any]:
    schedule = pruning_schedules.Cubic(begin_step=160, end_step=_END, every_steps=40)
    return {"schedule": schedule, "density": density, **settings}


def _at_start(density: Any, criterion: Any, **settings: Any) -> dict[str, Any]:
    schedule = pruning_schedules.OneShot()
    return {"schedule": schedule, "density": density, "criterion": criterion, **settings}


def _regrown(by: str) -> dict[str, Any]:
    swaps = regrowth.Regrowth(until_step=round(0.75 * _STEPS), every_steps=50, by=by)
    gradient = pruning.DENSE if by == regrowth.GRADIENT else pruning.STOPPED
    return _at_start(_ERK, criteria.Random(), regrowth=swaps, gradient=gradient)


WAYS: Mapping[str, dict[str, Any]] = {
    "gradual magnitude, uniform": _gradually(densities.Uniform()),
    "gradual magnitude, global": _gradually(densities.Global(floor=0.001)),
    "gradual magnitude, ERK": _gradually(_ERK),
    "gradual Taylor, global": _gradually(
        densities.Global(floor=0.001), criterion=criteria.Taylor()
    ),
    "gradual movement, ERK": _gradually(_ERK, criterion=criteria.Movement()),
    "gradual Wanda, ERK": _gradually(_ERK, criterion=criteria.Wanda()),
    "straight-through magnitude, ERK": _gradually(_ERK, gradient=pruning.STRAIGHT_THROUGH),
    "SNIP, global": _at_start(densities.Global(floor=0.001), criteria.Snip()),
    "RigL, ERK": _regrown(regrowth.GRADIENT),
    "SET, ERK": _regrown(regrowth.RANDOM),
    "static random, ERK": _at_start(_ERK, criteria.Random()),
    "static random, uniform": _at_start(densities.Uniform(), criteria.Random()),
}


TASK_WAYS: Mapping[str, dict[str, Any]] = {
    "SNIP of the summed losses": _at_start(densities.Global(floor=0.001), criteria.Snip()),
    "sum of the tasks' scores": _at_start(
        densities.Global(floor=0.001), criteria.TaskSaliency(combine="sum")
    ),
    "union of the tasks' choices": _at_start(
        densities.Global(floor=0.001), criteria.TaskSaliency()
    ),
    "gradual magnitude": _gradually(densities.Global(floor=0.001)),
}


@functools.cache
def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the 10,000 images [N, 784] in [0, 1], and their digits [N]."""
    folder = pathlib.Path(rows.data_dir("mnist"))
    images, digits = (
        np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=offset)
        for name, offset in (("t10k-images-idx3-ubyte.gz", 16), ("t10k-labels-idx1-ubyte.gz", 8))
    )
    # Shuffle, because different people wrote the digits of the first and the second half of the
    # file.
    order = np.random.default_rng(0).permutation(len(digits))
    images = images.reshape([-1, 784]).astype(np.float32) / 255
    return images[order], digits[order].astype(np.int64)


def a_model(
    parts: Sequence[pruning.Pruning], layers: Sequence[int] = LAYERS
) -> model.MultiTaskModel:
    """Return a model with these layers (LeNet-300-100 by default) and these `Pruning` parts."""
    rate = schedules.Cosine(value=0.1, decay_steps=_STEPS)
    penalty = regularization.Regularization(l2=dict.fromkeys(_KERNELS, 1e-4))
    sgd = optimizers.Momentum(learning_rate=rate, momentum=0.9)
    return model.MultiTaskModel(
        columns=[balancing_speed.Given()],
        network=networks.SharedBottom(trunk=networks.MLP(layers=layers)),
        heads=[heads.MultiClass(name="digit", classes=10)],
        update=update.Update(optimizer=sgd, regularization=penalty),
        pruning=parts,
    )


def train(
    parts: Sequence[pruning.Pruning], seed: int, layers: Sequence[int] = LAYERS
) -> dict[str, float]:
    """Train a network; return the test accuracy in percent, and the share of weights that are 0."""
    images, digits = read_digits()
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(_TRAIN) for _ in range(_EPOCHS)])
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(seed)
        tf1.train.create_global_step()
        x, y = tf.constant(images[:_TRAIN]), tf.constant(digits[:_TRAIN])

        def take(index: tf.Tensor) -> Any:
            return {"x": tf.gather(x, index)}, {"digit": tf.gather(y, index)}

        batches = tf.data.Dataset.from_tensor_slices(order).batch(_BATCH, drop_remainder=True)
        iterator = tf1.data.make_initializable_iterator(batches.map(take).prefetch(2))
        steps = {"steps_per_call": _STEPS, "last_step": _STEPS, "due_every": (_STEPS,)}
        spec = a_model(parts, layers).model_fn(
            iterator, None, "train", options=graph_options.GraphOptions(statistics={}, loop=steps)
        )
        variables = {variable.name[:-2]: variable for variable in tf1.global_variables()}
        config = tf1.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
        with tf1.Session(graph=graph, config=config) as session:
            session.run([tf1.global_variables_initializer(), iterator.initializer])
            while session.run(spec.train_op) < _STEPS:
                pass
            values = session.run(variables)
    return score(values, images[_TRAIN:], digits[_TRAIN:])


def score(values: Mapping[str, np.ndarray], x: np.ndarray, digits: np.ndarray) -> dict[str, float]:
    """Compute accuracy and sparsity by NumPy.

    Args:
      values: {variable: its values}.
      x: the images, [N, 784].
      digits: the labels, [N].

    Returns:
      {"accuracy": percent, "sparsity": the share of weights that are 0}.
    """
    zeros = total = 0
    for layer in ("network/trunk/hidden_0", "network/trunk/hidden_1", "head/digit/logits"):
        kernel = values[f"{layer}/kernel"]
        kernel = kernel * values.get(pruned.mask_name(f"{layer}/kernel"), 1)
        x = np.maximum(x, 0) @ kernel + values[f"{layer}/bias"]
        zeros, total = zeros + (kernel == 0).sum(), total + kernel.size
    return {"accuracy": 100 * float((x.argmax(1) == digits).mean()), "sparsity": zeros / total}


def prune(way: str, sparsity: float) -> list[pruning.Pruning]:
    """Return the `Pruning` parts of a method; none for a sparsity of 0."""
    return [pruning.Pruning(sparsity=sparsity, **_ALL, **WAYS[way])] if sparsity else []


def compare(ways: Sequence[str], seeds: Sequence[int], out: str) -> str:
    """Measure results that are not stored yet, and return the table of test accuracies."""

    def run(way: str, sparsity: float, seed: int) -> dict[str, float]:
        path = os.path.join(out, way.replace(" ", "_"), f"{sparsity:g}_seed_{seed}.json")
        return rows.load_or_measure(path, lambda: train(prune(way, sparsity), seed))

    lines, started = [], time.perf_counter()
    dense = [run("dense", 0, seed)["accuracy"] for seed in seeds]
    for way in ways:
        line = [way]
        for sparsity in SPARSITIES:
            results = [run(way, sparsity, seed) for seed in seeds]
            error = max(abs(result["sparsity"] - sparsity) for result in results)
            checks.require(error < 1e-3, way, f"reach a sparsity of {sparsity}", results)
            line.append(cell([result["accuracy"] for result in results]))
        lines.append(line)
        print(f"{way}: {', '.join(line[1:])} ({time.perf_counter() - started:.0f} s)", flush=True)
    header = ["test accuracy, %", *(f"{100 * sparsity:g}%" for sparsity in SPARSITIES)]
    return f"dense {cell(dense)}\n\n{rows.markdown(header, lines)}"


def compare_units(seeds: Sequence[int], out: str) -> str:
    """Measure results that are not stored yet, and return the table of smaller networks."""
    ways: dict[str, Any] = {
        "units at random": criteria.Random(),
        "units of the smallest weights": criteria.Magnitude(),
        "units of the smallest Taylor scores": criteria.Taylor(),
    }
    schedule = pruning_schedules.OneShot(step=_STEPS * 10 // _EPOCHS)
    common = {"granularity": granularity.Units(), "density": densities.Uniform()}
    lines = [[way] for way in (*ways, "a network of this size from scratch")]
    for share in KEPT:
        for line in lines:
            parts, layers = [], [round(share * size) for size in LAYERS]
            if line[0] in ways:
                settings = {"sparsity": 1 - share, "criterion": ways[line[0]], **common}
                parts, layers = [pruning.Pruning(schedule=schedule, **settings)], LAYERS
            accuracies = []
            for seed in seeds:
                path = os.path.join(out, line[0].replace(" ", "_"), f"{share:g}_seed_{seed}.json")
                result = rows.load_or_measure(path, functools.partial(train, parts, seed, layers))
                accuracies.append(result["accuracy"])
            line.append(cell(accuracies))
            print(f"{line[0]}, {share:.1%}: {line[-1]}", flush=True)
    header = ["test accuracy, %, by the share of units", *(f"{share:.1%}" for share in KEPT)]
    return rows.markdown(header, lines)


@functools.cache
def read_pairs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pairs of images [N, 392], digits [N] of the first and slants [N] of the second image.

    A slant is the covariance of row and column divided by the variance of the row, standardised.
    """
    images, digits = read_digits()
    small = images.reshape([-1, 14, 2, 14, 2]).mean(axis=(2, 4))
    other = small[np.random.default_rng(1).permutation(len(small))]
    mass = other / other.sum(axis=(1, 2), keepdims=True)
    row, column = np.mgrid[:14, :14].astype(float)
    mean_row, mean_column = ((mass * place).sum(axis=(1, 2)) for place in (row, column))
    variance = (mass * row**2).sum(axis=(1, 2)) - mean_row**2
    slant = ((mass * row * column).sum(axis=(1, 2)) - mean_row * mean_column) / variance
    slant = (slant - slant[:_TRAIN].mean()) / slant[:_TRAIN].std()
    pairs = np.concatenate([small.reshape([-1, 196]), other.reshape([-1, 196])], axis=1)
    return pairs.astype(np.float32), digits, slant.astype(np.float32)


def train_tasks(parts: Sequence[pruning.Pruning], seed: int) -> dict[str, float]:
    """Train two tasks; return the accuracy in percent, R2, and the overlap of the tasks' masks."""
    x, digits, slant = read_pairs()
    order = np.random.default_rng(seed).integers(0, _TRAIN, [_TASK_STEPS, _BATCH])
    rate = schedules.Cosine(value=1e-3, decay_steps=_TASK_STEPS)
    two_tasks = model.MultiTaskModel(
        columns=[balancing_speed.Given()],
        network=networks.SharedBottom(trunk=networks.MLP(layers=_TASK_LAYERS)),
        heads=[heads.MultiClass(name="digit", classes=10), heads.Regression(name="slant")],
        update=update.Update(optimizer=optimizers.Adam(learning_rate=rate)),
        pruning=parts,
    )
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(seed)
        tf1.train.create_global_step()
        columns = [tf.constant(values[:_TRAIN]) for values in (x, digits, slant)]

        def take(index: tf.Tensor) -> Any:
            pairs, batch_digits, slants = (tf.gather(values, index) for values in columns)
            return {"x": pairs}, {"digit": batch_digits, "slant": slants}

        batches = tf.data.Dataset.from_tensor_slices(order).map(take).prefetch(2)
        iterator = tf1.data.make_initializable_iterator(batches)
        loop = {"steps_per_call": _TASK_STEPS, "last_step": _TASK_STEPS, "due_every": ()}
        spec = two_tasks.model_fn(
            iterator, None, "train", options=graph_options.GraphOptions(statistics={}, loop=loop)
        )
        variables = {variable.name[:-2]: variable for variable in tf1.global_variables()}
        session.run([tf1.global_variables_initializer(), iterator.initializer])
        while session.run(spec.train_op) < _TASK_STEPS:
            pass
        values = session.run(variables)
    x, digits, slant = x[_TRAIN:], digits[_TRAIN:], slant[_TRAIN:]
    for kernel in _SHARED:
        layer = kernel.removesuffix("/kernel")
        x = np.maximum(x @ values[kernel] + values[f"{layer}/bias"], 0)
    logits, prediction = (
        x @ values[f"head/{task}/logits/kernel"] + values[f"head/{task}/logits/bias"]
        for task in ("digit", "slant")
    )
    overlap = values.get("pruning/overlap_0", np.array([np.nan]))
    return {
        "accuracy": 100 * float((logits.argmax(1) == digits).mean()),
        "r2": 1 - float(np.square(prediction[:, 0] - slant).mean() / slant.var()),
        "overlap": float(overlap.mean()),
    }


def compare_tasks(seeds: Sequence[int], out: str) -> str:
    """Return the table: accuracy of the first task, R2 of the second task, overlap of masks."""

    def run(way: str, sparsity: float) -> str:
        settings = TASK_WAYS.get(way)
        parts = [pruning.Pruning(sparsity=sparsity, **settings)] if settings else []
        results = []
        for seed in seeds:
            path = os.path.join(out, "tasks", f"{way}_{sparsity:g}_{seed}.json")
            results.append(rows.load_or_measure(path, functools.partial(train_tasks, parts, seed)))
        text = cell([result["accuracy"] for result in results])
        text += f"; {cell([result['r2'] for result in results], digits=3)}"
        overlap = statistics.mean(result["overlap"] for result in results)
        text += "" if np.isnan(overlap) else f"; {overlap:.2f}"
        print(f"{way}, {sparsity:.0%}: {text}", flush=True)
        return text

    dense = run("dense", 0)
    lines = [[way, *(run(way, sparsity) for sparsity in SPARSITIES[:3])] for way in TASK_WAYS]
    header = ["accuracy, %; R2; overlap", *(f"{100 * share:g}%" for share in SPARSITIES[:3])]
    return f"dense {dense}\n\n{rows.markdown(header, lines)}"


def cell(values: Sequence[float], digits: int = 1) -> str:
    """Return the mean as text, with its standard error if there are several values."""
    mean = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.{digits}f}"


def measure_cost(rounds: int) -> str:
    """Return the table of step times without masks, with fixed masks, and with changing masks."""
    never = pruning_schedules.OneShot(step=1 << 40)
    always = pruning_schedules.Cubic(end_step=1 << 40, every_steps=1)
    cases = {
        "none": [],
        "masks that stay": [{"schedule": never}],
        "masks that stay, dense gradient": [{"schedule": never, "gradient": pruning.DENSE}],
        "masks that stay, straight-through": [
            {"schedule": never, "gradient": pruning.STRAIGHT_THROUGH}
        ],
        "masks that change, ERK": [{"schedule": always}],
        "masks that change, global": [{"schedule": always, "density": densities.Global()}],
    }
    images, digits = read_digits()
    batch = ({"x": images[:_BATCH]}, {"digit": digits[:_BATCH]})
    steps = {
        name: balancing_speed.Steps(
            a_model([pruning.Pruning(sparsity=0.9, **_ALL, **settings) for settings in parts]),
            lambda: tf.data.Dataset.from_tensors(batch).cache().repeat(),
        )
        for name, parts in cases.items()
    }
    times = rows.take_turns(steps, rounds, lambda name: 10 if "change" in name else 200)
    lines = []
    for name, secs in times.items():
        ratios = sorted(a / b for a, b in zip(secs, times["none"], strict=True))
        median = statistics.median(ratios)
        lines.append([name, f"{1000 * statistics.median(secs):.2f}", f"{median:.2f}"])
        lines[-1].append(f"{ratios[0]:.2f} to {ratios[-1]:.2f}")
    return rows.markdown(["", "ms a step", "ratio to none", "range"], lines)


def main() -> None:
    """Measure results that are not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", default="", help="comma-separated; all by default")
    parser.add_argument("--out", default="runs/pruning", help="the folder of results")
    parser.add_argument("--units", action="store_true", help="cut whole units instead")
    parser.add_argument("--tasks", action="store_true", help="prune for two tasks instead")
    parser.add_argument("--cost", action="store_true", help="time steps instead")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of --cost")
    args = parser.parse_args()
    ways = [way for way in args.ways.split(",") if way] or list(WAYS)
    for way in ways:
        checks.one_of("--ways", way, WAYS)
    checks.at_least("--seeds", args.seeds, 1)
    seeds = range(1, args.seeds + 1)
    if args.cost:
        print(measure_cost(args.rounds))
    elif args.tasks:
        print(compare_tasks(seeds, args.out))
    elif args.units:
        print(compare_units(seeds, args.out))
    else:
        print(compare(ways, seeds, args.out))


if __name__ == "__main__":
    rows.guard(main)
