"""Steps per second of `Experiment.train`, all hooks on, against a bare session loop.

Both run the same graph on the same data: batch 64, three hidden layers, four heads, Adam. The
bare loop is `while True: session.run(train_op)`. Each round runs every side once; the table shows
medians over the rounds and their ratio to the bare loop.

    python -m benchmarks.overhead --rounds 5
"""

import argparse
import dataclasses
import functools
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf

from mtl import compat, experiment, features, heads, model, networks, spec
from mtl.data import pipeline
from mtl.files import storage
from mtl.optimization import optimizers, update
from mtl.runs import verbs

tf1 = tf.compat.v1

TASKS = ("a", "b", "c", "d")
SPEC = spec.Spec(features={"x": ("float32", (32,))}, labels=dict.fromkeys(TASKS, "int64"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomRows:
    """10,000 rows of noise, in memory."""

    def records(self, split):
        rng = np.random.default_rng(0)
        rows = {"x": rng.normal(size=(10_000, 32)).astype(np.float32)}
        labels = {task: rng.integers(0, 2, 10_000) for task in TASKS}
        return tf.data.Dataset.from_tensor_slices({**rows, **labels})

    def decode(self, batch, spec, with_labels):
        return batch

    def scan(self, split, spec):
        for row in range(10_000):
            yield f"row {row}", {}


def an_experiment(units: int, steps_per_call: int, steps: int) -> experiment.Experiment:
    """Three hidden layers of `units`, four binary heads."""
    mlp = networks.MLP(layers=[units] * 3)
    return experiment.Experiment(
        data=pipeline.Pipeline(source=RandomRows(), spec=SPEC, batch_size=64, cache=True),
        model=model.MultiTaskModel(
            columns=[features.Numeric(names=["x"], normalization="none")],
            network=networks.SharedBottom(trunk=mlp),
            heads=[heads.Binary(name=task) for task in TASKS],
            update=update.Update(optimizer=optimizers.Adam()),
        ),
        run=experiment.Run(
            train_steps=steps, checkpoint_steps=steps, steps_per_call=steps_per_call
        ),
    )


def bare_loop(units: int, steps: int) -> float:
    """Return steps per second of session calls that fetch the train op alone."""
    bare = an_experiment(units, 1, steps)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        dataset = bare.data.dataset("train", training=True, seed=1)
        iterator = tf1.data.make_initializable_iterator(dataset)
        spec = bare.model.model_fn(
            *iterator.get_next(),
            compat.estimator.ModeKeys.TRAIN,
            statistics=features.load_statistics(tempfile.mkdtemp()),
        )
        session.run([tf1.global_variables_initializer(), iterator.initializer])
        train_op = spec.train_op.op
        for _ in range(steps // 10):
            session.run(train_op)
        started = time.perf_counter()
        for _ in range(steps):
            session.run(train_op)
        return steps / (time.perf_counter() - started)


def plain_estimator(units: int, steps: int) -> float:
    """Return steps per second of `Estimator.train` as TensorFlow ships it, default hooks on."""
    plain, timer = an_experiment(units, 1, steps), Timer(steps // 10)
    with tempfile.TemporaryDirectory() as model_dir:
        model_fn = functools.partial(
            plain.model.model_fn, statistics=features.load_statistics(model_dir)
        )
        compat.estimator.Estimator(model_fn, model_dir).train(
            lambda: plain.data.dataset("train", training=True, seed=1),
            hooks=[timer],
            steps=steps + steps // 10,
        )
    return steps / timer.secs


class Timer(tf1.train.SessionRunHook):
    """Measures the time from the end of call `first` to the end of training."""

    def __init__(self, first: int):
        self._left = first

    def after_run(self, run_context, run_values):
        self._left -= 1
        if self._left == 0:
            self._started = time.perf_counter()

    def end(self, session):
        self.secs = time.perf_counter() - self._started


def trained(units: int, steps: int, steps_per_call: int) -> float:
    """Return steps per second between the first and the last summary of a whole training run."""
    warm_up = steps // 10 // 100 * 100
    with tempfile.TemporaryDirectory() as model_dir:
        verbs.train(an_experiment(units, steps_per_call, warm_up + steps), model_dir)
        times = {
            event.step: event.wall_time
            for file in storage.listed(model_dir, "events")
            for event in tf1.train.summary_iterator(file)
            if any(value.tag == "steps_per_sec" for value in event.summary.value)
        }
    first, last = warm_up, max(times)
    return (last - first) / (times[last] - times[first])


def main() -> None:
    """Print one table for each width."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each side is run")
    parser.add_argument(
        "--steps", type=int, default=3000, help="steps that are timed, after a tenth for warm-up"
    )
    options = parser.parse_args()
    if options.steps < 1000:
        parser.error("argument --steps: must be at least 1000")
    sides = {
        "bare session loop": bare_loop,
        "plain Estimator": plain_estimator,
        "steps_per_call = 1": lambda units, steps: trained(units, steps, 1),
        "steps_per_call = 10": lambda units, steps: trained(units, steps, 10),
        "steps_per_call = 100": lambda units, steps: trained(units, steps, 100),
    }
    for units in (64, 512):
        rounds = [
            {name: side(units, options.steps) for name, side in sides.items()}
            for _ in range(options.rounds)
        ]
        print(f"\n{units} units             steps/s   of the bare loop (least .. most)")
        for name in sides:
            speeds = [speeds[name] for speeds in rounds]
            ratios = [speeds[name] / speeds["bare session loop"] for speeds in rounds]
            print(
                f"{name:<22} {statistics.median(speeds):8.0f}"
                f"   {statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"
            )
        costs = [1000 / r["steps_per_call = 1"] - 1000 / r["steps_per_call = 100"] for r in rounds]
        print(
            f"A session call with its hooks and fetches costs {statistics.median(costs):.2f} ms "
            "over the steps in it."
        )


if __name__ == "__main__":
    main()
