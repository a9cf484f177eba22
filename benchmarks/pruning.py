"""Ways to prune LeNet-300-100 on the digits at hand: accuracy at 90, 95, 98 and 99% sparsity.

    python -m benchmarks.pruning --seeds 3
    python -m benchmarks.pruning --units --seeds 3
    python -m benchmarks.pruning --tasks --seeds 3
    python -m benchmarks.pruning --cost

8,000 of the 10,000 test digits of MNIST, drawn at random, train and 2,000 test, for 15 epochs of
SGD with a momentum of 0.9, a rate of 0.1 on a cosine, batches of 100 and an L2 penalty of 1e-4. The
sparsity is over all three layers, that of the head among them. Gradual ways cut from step 160 to
70% of the run, every 40 steps. `--units` cuts whole units after 10 epochs, and trains networks of
that size from scratch beside them. `--tasks` prunes a trunk of 200 and 100 units for two tasks: the
digit of one image, and the slant of another beside it, both of half the height and width. `--cost`
prints what masks cost a step, and what a change costs.
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
    """Return the 10,000 images, [N, 784] in [0, 1], and their digits, int64 [N]."""
    folder = pathlib.Path(rows.data_dir("mnist"))
    images, digits = (
        np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=offset)
        for name, offset in (("t10k-images-idx3-ubyte.gz", 16), ("t10k-labels-idx1-ubyte.gz", 8))
    )
    # The first half of the file was written by other people than the second one.
    order = np.random.default_rng(0).permutation(len(digits))
    images = images.reshape([-1, 784]).astype(np.float32) / 255
    return images[order], digits[order].astype(np.int64)


def a_model(
    parts: Sequence[pruning.Pruning], layers: Sequence[int] = LAYERS
) -> model.MultiTaskModel:
    """Return a network of this size, by default LeNet-300-100, with these parts."""
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
    """Train; return the test accuracy in percent, and the share of weights that are 0."""
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
    """Return accuracy and sparsity by NumPy, of the values of all variables."""
    zeros = total = 0
    for layer in ("network/trunk/hidden_0", "network/trunk/hidden_1", "head/digit/logits"):
        kernel = values[f"{layer}/kernel"]
        kernel = kernel * values.get(pruned.mask_name(f"{layer}/kernel"), 1)
        x = np.maximum(x, 0) @ kernel + values[f"{layer}/bias"]
        zeros, total = zeros + (kernel == 0).sum(), total + kernel.size
    return {"accuracy": 100 * float((x.argmax(1) == digits).mean()), "sparsity": zeros / total}


def prune(way: str, sparsity: float) -> list[pruning.Pruning]:
    """Return the parts of a way; none for 0."""
    return [pruning.Pruning(sparsity=sparsity, **_ALL, **WAYS[way])] if sparsity else []


def compare(ways: Sequence[str], seeds: Sequence[int], out: str) -> str:
    """Train what is missing, and return the table of test accuracies."""

    def run(way: str, sparsity: float, seed: int) -> dict[str, float]:
        path = os.path.join(out, way.replace(" ", "_"), f"{sparsity:g}_seed_{seed}.json")
        return rows.kept(path, lambda: train(prune(way, sparsity), seed))

    lines, started = [], time.perf_counter()
    dense = [run("dense", 0, seed)["accuracy"] for seed in seeds]
    for way in ways:
        line = [way]
        for sparsity in SPARSITIES:
            found = [run(way, sparsity, seed) for seed in seeds]
            off = max(abs(one["sparsity"] - sparsity) for one in found)
            checks.require(off < 1e-3, way, f"reach a sparsity of {sparsity}", found)
            line.append(cell([one["accuracy"] for one in found]))
        lines.append(line)
        print(f"{way}: {', '.join(line[1:])} ({time.perf_counter() - started:.0f} s)", flush=True)
    header = ["test accuracy, %", *(f"{100 * sparsity:g}%" for sparsity in SPARSITIES)]
    return f"dense {cell(dense)}\n\n{rows.markdown(header, lines)}"


def compare_units(seeds: Sequence[int], out: str) -> str:
    """Train what is missing, and return the table of networks that keep a share of their units."""
    ways: dict[str, Any] = {
        "units at random": criteria.Random(),
        "units of the smallest weights": criteria.Magnitude(),
        "units of the smallest Taylor scores": criteria.Taylor(),
    }
    schedule = pruning_schedules.OneShot(step=_STEPS * 10 // _EPOCHS)
    common = {"granularity": granularity.Units(), "density": densities.Uniform()}
    lines = [[way] for way in (*ways, "a network of this size from scratch")]
    for kept in KEPT:
        for line in lines:
            parts, layers = [], [round(kept * size) for size in LAYERS]
            if line[0] in ways:
                settings = {"sparsity": 1 - kept, "criterion": ways[line[0]], **common}
                parts, layers = [pruning.Pruning(schedule=schedule, **settings)], LAYERS
            found = []
            for seed in seeds:
                path = os.path.join(out, line[0].replace(" ", "_"), f"{kept:g}_seed_{seed}.json")
                one = rows.kept(path, functools.partial(train, parts, seed, layers))
                found.append(one["accuracy"])
            line.append(cell(found))
            print(f"{line[0]}, {kept:.1%}: {line[-1]}", flush=True)
    header = ["test accuracy, %, of units kept", *(f"{kept:.1%}" for kept in KEPT)]
    return rows.markdown(header, lines)


@functools.cache
def read_pairs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pairs of images [N, 392], the digit of the first, and the slant of the second [N].

    The slant is the covariance of row and column by the variance of the row, standardised.
    """
    images, digits = read_digits()
    small = images.reshape([-1, 14, 2, 14, 2]).mean(axis=(2, 4))
    other = small[np.random.default_rng(1).permutation(len(small))]
    mass = other / other.sum(axis=(1, 2), keepdims=True)
    row, column = np.mgrid[:14, :14].astype(float)
    mean_row, mean_column = ((mass * own).sum(axis=(1, 2)) for own in (row, column))
    variance = (mass * row**2).sum(axis=(1, 2)) - mean_row**2
    slant = ((mass * row * column).sum(axis=(1, 2)) - mean_row * mean_column) / variance
    slant = (slant - slant[:_TRAIN].mean()) / slant[:_TRAIN].std()
    pairs = np.concatenate([small.reshape([-1, 196]), other.reshape([-1, 196])], axis=1)
    return pairs.astype(np.float32), digits, slant.astype(np.float32)


def train_tasks(parts: Sequence[pruning.Pruning], seed: int) -> dict[str, float]:
    """Train two tasks; return accuracy in percent, R2, and the overlap of the tasks' choices."""
    x, digits, slant = read_pairs()
    order = np.random.default_rng(seed).integers(0, _TRAIN, [_TASK_STEPS, _BATCH])
    rate = schedules.Cosine(value=1e-3, decay_steps=_TASK_STEPS)
    made = model.MultiTaskModel(
        columns=[balancing_speed.Given()],
        network=networks.SharedBottom(trunk=networks.MLP(layers=_TASK_LAYERS)),
        heads=[heads.MultiClass(name="digit", classes=10), heads.Regression(name="slant")],
        update=update.Update(optimizer=optimizers.Adam(learning_rate=rate)),
        pruning=parts,
    )
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(seed)
        tf1.train.create_global_step()
        rows_of = [tf.constant(own[:_TRAIN]) for own in (x, digits, slant)]

        def take(index: tf.Tensor) -> Any:
            own = [tf.gather(values, index) for values in rows_of]
            return {"x": own[0]}, {"digit": own[1], "slant": own[2]}

        batches = tf.data.Dataset.from_tensor_slices(order).map(take).prefetch(2)
        iterator = tf1.data.make_initializable_iterator(batches)
        loop = {"steps_per_call": _TASK_STEPS, "last_step": _TASK_STEPS, "due_every": ()}
        spec = made.model_fn(
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
    logits, price = (
        x @ values[f"head/{task}/logits/kernel"] + values[f"head/{task}/logits/bias"]
        for task in ("digit", "slant")
    )
    overlap = values.get("pruning/overlap_0", np.array([np.nan]))
    return {
        "accuracy": 100 * float((logits.argmax(1) == digits).mean()),
        "r2": 1 - float(np.square(price[:, 0] - slant).mean() / slant.var()),
        "overlap": float(overlap.mean()),
    }


def compare_tasks(seeds: Sequence[int], out: str) -> str:
    """Return the table of two tasks: accuracy of the first, R2 of the second, and overlap."""

    def run(way: str, sparsity: float) -> str:
        settings = TASK_WAYS.get(way)
        parts = [pruning.Pruning(sparsity=sparsity, **settings)] if settings else []
        found = []
        for seed in seeds:
            path = os.path.join(out, "tasks", f"{way}_{sparsity:g}_{seed}.json")
            found.append(rows.kept(path, functools.partial(train_tasks, parts, seed)))
        error = statistics.stdev(one["r2"] for one in found) / len(found) ** 0.5
        told = cell([one["accuracy"] for one in found])
        told += f"; {statistics.mean(one['r2'] for one in found):.3f} ± {error:.3f}"
        overlap = statistics.mean(one["overlap"] for one in found)
        told += "" if np.isnan(overlap) else f"; {overlap:.2f}"
        print(f"{way}, {sparsity:.0%}: {told}", flush=True)
        return told

    dense = run("dense", 0)
    lines = [[way, *(run(way, sparsity) for sparsity in SPARSITIES[:3])] for way in TASK_WAYS]
    header = ["accuracy, %; R2; overlap", *(f"{100 * own:g}%" for own in SPARSITIES[:3])]
    return f"dense {dense}\n\n{rows.markdown(header, lines)}"


def cell(values: Sequence[float]) -> str:
    """Return the mean, with its standard error where there is one."""
    mean = f"{statistics.mean(values):.1f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.1f}"


def measure_cost(rounds: int) -> str:
    """Return the time of a step with masks, and of one that changes them, beside a plain one."""
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
    one = ({"x": images[:_BATCH]}, {"digit": digits[:_BATCH]})
    steps = {
        name: balancing_speed.Steps(
            a_model([pruning.Pruning(sparsity=0.9, **_ALL, **own) for own in parts]),
            lambda: tf.data.Dataset.from_tensors(one).cache().repeat(),
        )
        for name, parts in cases.items()
    }
    times = rows.take_turns(steps, rounds, lambda name: 10 if "change" in name else 200)
    lines = []
    for name, own in times.items():
        ratios = sorted(a / b for a, b in zip(own, times["none"], strict=True))
        median = statistics.median(ratios)
        lines.append([name, f"{1000 * statistics.median(own):.2f}", f"{median:.2f}"])
        lines[-1].append(f"{ratios[0]:.2f} to {ratios[-1]:.2f}")
    return rows.markdown(["", "ms a step", "ratio to none", "range"], lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", default="", help="comma-separated; all by default")
    parser.add_argument("--out", default="runs/pruning", help="where results are kept")
    parser.add_argument("--units", action="store_true", help="cut whole units instead")
    parser.add_argument("--tasks", action="store_true", help="prune for two tasks instead")
    parser.add_argument("--cost", action="store_true", help="time steps instead")
    parser.add_argument("--rounds", type=int, default=9, help="of --cost")
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
