"""Compares encoders of histories by their AUC on simulated clicks, and by the time of a step.

    python -m benchmarks.sequences --seeds 3
    python -m benchmarks.sequences --speed --rounds 7

The first command trains `gin_configs/experiments/click_stream.gin` with each encoder. The table
shows the test AUC of the checkpoint that is best on validation data, and the paired difference to
the mean of all events with its standard error. The last line of the table shows the AUC of the true
probabilities. A model can have a higher AUC only by chance.

--speed times training steps of a task with DIN over 100 items, and compares them with a functional
Keras model of the same equations that is trained by `fit`. The models are timed in turns, and a
ratio compares two times of a round. Lists have exactly 100 items, or between 0 and 100 items. The
Keras model pads and masks shorter lists.
"""

import argparse
import functools
import itertools
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import balancing_speed, rows
from mtl import checks, features, heads, histories, model, networks, verbs
from mtl.compat import keras as keras_lib
from mtl.configs import config
from mtl.datasets import click_stream
from mtl.optimization import optimizers, update

_FILE = pathlib.Path(__file__).parent.parent / "gin_configs" / "experiments" / "click_stream.gin"
_BASELINE = "mean of all events"
ENCODERS = {
    _BASELINE: ["@histories.Pooling()"],
    "the last event": ["@histories.Pooling()", "histories.Pooling.kind = 'last'"],
    "GRU": ["@histories.GRU()"],
    "convolution": ["@histories.Convolution()"],
    "transformer": ["@histories.Transformer()"],
    "transformer with the target (BST)": [
        "@histories.Transformer()",
        "histories.Transformer.joins_target = True",
    ],
    "target attention (DIN)": ["@histories.TargetAttention()"],
    "target attention with softmax": [
        "@histories.TargetAttention()",
        "histories.TargetAttention.normalization = 'softmax'",
    ],
    "interest evolution (DIEN)": ["@histories.InterestEvolution()"],
    "interest evolution with next event": [
        "@histories.InterestEvolution()",
        "histories.InterestEvolution.next_event_weight = 1.0",
    ],
    "interest evolution with next event 0.1": [
        "@histories.InterestEvolution()",
        "histories.InterestEvolution.next_event_weight = 0.1",
    ],
    "hashed attention (SDIM)": ["@histories.HashedAttention()"],
}
# Hashed attention needs events as wide as the target, so events get no embedding of their place.
_NARROW = {"hashed attention (SDIM)": ["clicks/features.History.place_dimension = None"]}
TASKS = ("click", "purchase")
_ITEMS, _TABLE, _WIDTH, _BATCH = 100, 10_000, 16, 512
_ATTENTION, _TRUNK = (64, 32), (128, 64)


def train(name: str, seed: int) -> dict[str, float]:
    """Return {task: AUC of the test split, "seconds": the time of the run}."""
    encoder, *further_bindings = ENCODERS[name]
    params = [
        f"clicks/features.History.encoder = {encoder}",
        *further_bindings,
        *_NARROW.get(name, []),
    ]
    settings = config.load([str(_FILE)], [*params, f"Run.seed = {seed}", "Serving.check_rows = 0"])
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        verbs.train(settings, folder)
        metrics = verbs.evaluate(settings, folder, "test", "best")
    aucs = {task: float(metrics[f"{task}/auc"]) for task in TASKS}
    return {**aucs, "seconds": time.perf_counter() - started}


def measure_truth() -> dict[str, float]:
    """Return {task: AUC of the true probabilities} on the test split."""
    stream = click_stream.ClickStream()
    (batch,) = stream.records("test").batch(stream.rows["test"]).as_numpy_iterator()
    return {task: rows.compute_auc(batch[task], batch[f"{task}_probability"]) for task in TASKS}


def compare_encoders(names: Sequence[str], seeds: Sequence[int], out: str) -> str:
    """Measure results that are not stored yet, and return the table."""
    results: dict[str, list[dict[str, float]]] = {}
    for seed, name in itertools.product(seeds, names):
        path = os.path.join(out, name.replace(" ", "_"), f"seed_{seed}.json")
        result = rows.load_or_measure(path, functools.partial(train, name, seed))
        results.setdefault(name, []).append(result)
        aucs = ", ".join(f"{task} {result[task]:.4f}" for task in TASKS)
        print(f"{name}, seed {seed}: {aucs} ({result['seconds']:.0f} s)", flush=True)
    lines = []
    for name, runs in results.items():
        line = [name]
        for task in TASKS:
            values, baseline = ([run[task] for run in r] for r in (runs, results[_BASELINE]))
            line.append(f"{statistics.mean(values):.4f}")
            line.append("" if name == _BASELINE else rows.describe_difference(values, baseline))
        lines.append(line)
    truth = measure_truth()
    lines.append(["the true probabilities", f"{truth[TASKS[0]]:.4f}", "", f"{truth[TASKS[1]]:.4f}"])
    header = ["encoder", *itertools.chain(*((f"{task} AUC", "difference") for task in TASKS))]
    return rows.markdown(header, [[*line, *[""] * (5 - len(line))] for line in lines])


def draw_batch(is_full: bool) -> tuple[dict[str, Any], np.ndarray]:
    """Return {"item": ids [B], "items": a list of B lists of ids}, and labels [B]."""
    rng = np.random.default_rng(0)
    lengths = np.full(_BATCH, _ITEMS) if is_full else rng.integers(0, _ITEMS + 1, _BATCH)
    lists = [rng.integers(0, _TABLE, length) for length in lengths]
    items = rng.integers(0, _TABLE, _BATCH)
    return {"item": items, "items": lists}, rng.integers(0, 2, _BATCH).astype(np.float32)


def build_steps(is_full: bool) -> balancing_speed.Steps:
    """Return steps of `mtl`, with lists of 100 items, or of 0 to 100 items."""
    inputs, labels = draw_batch(is_full)

    def repeat() -> tf.data.Dataset:
        lengths = [len(items) for items in inputs["items"]]
        lists: Any = np.stack(inputs["items"]) if is_full else None
        if lists is None:
            lists = tf.RaggedTensor.from_row_lengths(np.concatenate(inputs["items"]), lengths)
        batch = ({"item": inputs["item"], "items": lists}, {"click": labels})
        return tf.data.Dataset.from_tensors(batch).cache().repeat()

    common = {"size": _TABLE, "dimension": _WIDTH, "table": "items"}
    history = features.History(
        name="clicks",
        events=[features.Identity(names=["items"], **common)],
        encoder=histories.TargetAttention(layers=_ATTENTION),
        target=["identity_item"],
    )
    made = model.MultiTaskModel(
        columns=[features.Identity(names=["item"], **common), history],
        network=networks.SharedBottom(trunk=networks.MLP(layers=_TRUNK)),
        heads=[heads.Binary(name="click")],
        update=update.Update(optimizer=optimizers.LazyAdam(learning_rate=1e-3)),
    )
    return balancing_speed.Steps(made, repeat)


class KerasSteps:
    """Training steps of a functional Keras model with the same equations, on padded lists."""

    def __init__(self, is_full: bool):
        keras = tf.keras
        dense = keras.layers.Dense
        item = keras.Input([1], name="item", dtype="int64")
        items = keras.Input([_ITEMS], name="items", dtype="int64")
        is_event = keras.Input([_ITEMS, 1], name="is_event")
        table = keras.layers.Embedding(_TABLE + 1, _WIDTH)
        target, events = table(item), table(items)
        spread = keras.layers.UpSampling1D(_ITEMS)(target)
        difference = keras.layers.Subtract()([spread, events])
        product = keras.layers.Multiply()([spread, events])
        hidden = keras.layers.Concatenate()([events, spread, difference, product])
        for units in _ATTENTION:
            hidden = dense(units, activation="sigmoid")(hidden)
        weights = keras.layers.Multiply()([dense(1)(hidden), is_event])
        summed = keras.layers.Dot(axes=1)([weights, events])
        hidden = keras.layers.Flatten()(keras.layers.Concatenate()([target, summed]))
        for units in _TRUNK:
            hidden = dense(units, activation="relu")(hidden)
        output = dense(1, activation="sigmoid")(hidden)
        self._model = keras.Model([item, items, is_event], output)
        self._model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="binary_crossentropy")
        batch, labels = draw_batch(is_full)
        lengths = np.array([len(row_items) for row_items in batch["items"]])
        padded = np.zeros([_BATCH, _ITEMS], np.int64)
        for row, row_items in enumerate(batch["items"]):
            padded[row, : len(row_items)] = row_items
        mask = (np.arange(_ITEMS) < lengths[:, np.newaxis]).astype(np.float32)
        inputs = {
            "item": batch["item"][:, np.newaxis],
            "items": padded,
            "is_event": mask[:, :, np.newaxis],
        }
        data = tf.data.Dataset.from_tensors((inputs, labels[:, np.newaxis]))
        self._data = data.cache().repeat()
        self(2)

    def __call__(self, steps: int) -> float:
        """Return the mean seconds of a step, over some steps."""
        started = time.perf_counter()
        self._model.fit(self._data, steps_per_epoch=steps, epochs=1, verbose=0)
        return (time.perf_counter() - started) / steps


def measure_speed(rounds: int) -> str:
    """Return the table of step times."""
    keras_lib.in_use()
    sides = {
        "ours, lists of 100": build_steps(is_full=True),
        "Keras, lists of 100": KerasSteps(is_full=True),
        "ours, 0 to 100, ragged": build_steps(is_full=False),
        "Keras, 0 to 100, padded": KerasSteps(is_full=False),
    }
    times = rows.take_turns(sides, rounds, 50)
    names = list(sides)
    pairs = [(names[0], names[1]), (names[2], names[3]), (names[2], names[0])]
    lines = []
    for first, second in pairs:
        ratios = sorted(a / b for a, b in zip(times[first], times[second], strict=True))
        medians = [f"{1000 * statistics.median(times[name]):.2f}" for name in (first, second)]
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append([f"{first} : {second}", *medians, ratio])
    return rows.markdown(["", "ms a step", "ms a step", "ratio"], lines)


def main() -> None:
    """Measure results that are not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--encoders", default="", help="comma-separated; all by default")
    parser.add_argument("--out", default="runs/sequences", help="the folder of results")
    parser.add_argument("--speed", action="store_true", help="time steps instead")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of --speed")
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    names = [name for name in args.encoders.split(",") if name] or list(ENCODERS)
    for name in names:
        checks.one_of("--encoders", name, ENCODERS)
    checks.at_least("--seeds", args.seeds, 1)
    if args.speed:
        print(measure_speed(args.rounds))
    else:
        names = list(dict.fromkeys([_BASELINE, *names]))
        print(compare_encoders(names, range(1, args.seeds + 1), args.out))


if __name__ == "__main__":
    rows.guard(main)
