"""Compares the steps per second of `verbs.train`, with all hooks, with a bare session loop.

Both loops run the same graph on the same data: batches of 64 rows, three hidden layers, four heads,
Adam. The bare loop is `while True: session.run(train_op)`. The two loops take turns of 100 steps in
one process, so that other work of the machine slows both loops equally. A ratio compares two
consecutive turns. The table shows the median ratio with its 95% interval by bootstrap, and the
range of the middle 80% of the ratios.

    python -m benchmarks.overhead --turns 60
"""

import argparse
import dataclasses
import functools
import tempfile
import threading
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from mtl import compat, experiment, features, heads, model, networks, spec, types, verbs
from mtl.data import pipeline
from mtl.model import graph_options
from mtl.optimization import optimizers, update

tf1 = tf.compat.v1

_STEPS = 100  # The number of training steps in a turn.
TASKS = ("a", "b", "c", "d")
SPEC = spec.Spec(features={"x": ("float32", (32,))}, labels=dict.fromkeys(TASKS, "int64"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomRows:
    """A source of 10,000 rows of noise, in memory."""

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
    """Return an experiment with three hidden layers of `units`, and four binary heads."""
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


class Turns:
    """Lets two threads, "bare" and "trained", take steps in turns.

    Args:
      steps: the steps of a turn.

    Attributes:
      secs: {side: seconds of each turn}.
      is_over: True stops the bare loop after its turn.
    """

    def __init__(self, steps: int):
        self._steps = steps
        self._may_go = {"bare": threading.Semaphore(0), "trained": threading.Semaphore(1)}
        self.secs: dict[str, list[float]] = {"bare": [], "trained": []}
        self.is_over = False

    def start(self, side: str) -> None:
        """Wait for the turn of this loop."""
        self._may_go[side].acquire()
        self._started, self._steps_left = time.perf_counter(), self._steps

    def count(self, side: str, steps: int = 1) -> None:
        """Count steps, and pass the turn on after enough of them."""
        self._steps_left -= steps
        if self._steps_left > 0:
            return
        self.secs[side].append(time.perf_counter() - self._started)
        self.hand_over(side)
        self.start(side)

    def hand_over(self, side: str) -> None:
        """Start the turn of the other loop."""
        self._may_go["bare" if side == "trained" else "trained"].release()


class Counting(tf1.train.SessionRunHook):
    """Counts the steps of a training run, and lets the run take turns with the bare loop.

    Args:
      turns: the turns of both sides.
      step: the global step after a session call; None if every call makes a single step.
    """

    def __init__(self, turns: Turns, step: tf.Tensor | None = None):
        self._turns, self._step = turns, step
        self._last: int | None = None

    def before_run(self, run_context):
        return None if self._step is None else tf1.train.SessionRunArgs(self._step)

    def after_run(self, run_context, run_values):
        step = (self._last or 0) + 1 if self._step is None else int(run_values.results)
        if self._last is None:  # The first call is slow, since it optimizes the graph.
            self._turns.start("trained")
        else:
            self._turns.count("trained", step - self._last)
        self._last = step


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakingTurns(types.Hook):
    """A hook that lets a run take turns; it needs the step only at the end of a turn."""

    turns: Turns
    every_steps: int = _STEPS

    def __call__(self, steps):
        return Counting(self.turns, steps.step)


def run_bare_loop(units: int, turns: Turns) -> None:
    """Train by session calls that fetch only the train op, until the turns are over."""
    bare = an_experiment(units, 1, 1)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        dataset = bare.data.dataset("train", training=True, seed=1)
        iterator = tf1.data.make_initializable_iterator(dataset)
        spec = bare.model.model_fn(
            *iterator.get_next(),
            compat.estimator.ModeKeys.TRAIN,
            options=graph_options.GraphOptions(
                statistics=features.load_statistics(tempfile.mkdtemp())
            ),
        )
        session.run([tf1.global_variables_initializer(), iterator.initializer])
        train_op = spec.train_op.op
        session.run(train_op)
        turns.start("bare")
        while not turns.is_over:
            session.run(train_op)
            turns.count("bare")


def train_plain(units: int, steps: int, turns: Turns) -> None:
    """Train by `Estimator.train` of TensorFlow with its default hooks."""
    plain = an_experiment(units, 1, steps)
    with tempfile.TemporaryDirectory() as model_dir:
        model_fn = functools.partial(
            plain.model.model_fn,
            options=graph_options.GraphOptions(statistics=features.load_statistics(model_dir)),
        )
        compat.estimator.Estimator(model_fn, model_dir).train(
            lambda: plain.data.dataset("train", training=True, seed=1),
            hooks=[Counting(turns)],
            steps=steps,
        )


def train_whole(units: int, steps: int, turns: Turns, steps_per_call: int) -> None:
    """Train a run with all its hooks."""
    settings = an_experiment(units, steps_per_call, steps)
    settings = dataclasses.replace(settings, hooks=[TakingTurns(turns=turns)])
    with tempfile.TemporaryDirectory() as model_dir:
        verbs.train(settings, model_dir)


def measure(side: Callable[..., None], units: int, num_turns: int) -> Turns:
    """Run a training in turns with the bare loop, and return the times."""
    turns = Turns(_STEPS)
    bare = threading.Thread(target=run_bare_loop, args=[units, turns])
    bare.start()
    # The first turn is a warm-up. The last turn does not count, because it contains the end of
    # training.
    side(units, (num_turns + 2) * _STEPS, turns)
    turns.is_over = True
    turns.hand_over("trained")
    bare.join()
    return turns


def describe_ratios(turns: Turns, num_turns: int) -> str:
    """Return a line with the steps per second of both loops, and the ratios of their speeds."""
    sides = (turns.secs["trained"], turns.secs["bare"])
    ours, bare = (np.array(secs[1 : num_turns + 1]) for secs in sides)
    ratios = bare / ours
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, [2000, len(ratios)]), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    least, most = np.quantile(ratios, [0.1, 0.9])
    speeds = [_STEPS / np.median(secs) for secs in (ours, bare)]
    return (
        f"{speeds[0]:8.0f} {speeds[1]:8.0f}   {np.median(ratios):.2f} ({low:.2f} to {high:.2f})"
        f"   {least:.2f} to {most:.2f}"
    )


def main() -> None:
    """Print a table for each width of the layers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=60, help="timed turns of each loop")
    parser.add_argument("--units", type=int, nargs="+", default=[64, 512])
    options = parser.parse_args()
    sides = {
        "plain Estimator": train_plain,
        **{
            f"steps_per_call = {count}": functools.partial(train_whole, steps_per_call=count)
            for count in (1, 10, 100)
        },
    }
    for units in options.units:
        print(f"\n{units} units              steps/s     bare   ratio (95%)             middle 80%")
        for name, side in sides.items():
            turns = measure(side, units, options.turns)
            print(f"{name:<22} {describe_ratios(turns, options.turns)}", flush=True)


if __name__ == "__main__":
    main()
