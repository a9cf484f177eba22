"""Measures how much time each item of `tensorboard.TensorBoard` adds to a step or an evaluation.

For each item, a run trains on the digits. In each round, all runs continue for some steps, so that
a busy machine slows all runs equally. The table shows the least time of a step over all rounds,
which other work of the machine affects least. First, items of training steps are written every 100
steps, the default, and then at every step, which shows the cost of writing.

    python -m benchmarks.tensorboard                            # four minutes on two cores
    python -m benchmarks.tensorboard --rounds 5 --steps 800
"""

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import tensorflow as tf

from mtl import checkpoints, experiment, features, heads, model, networks, spec, types, verbs
from mtl.data import pipeline, tfds
from mtl.distribution import interruption
from mtl.optimization import update
from mtl.runs import evaluation, observers
from mtl.tools import attached, tensorboard
from mtl.tools.tensorboard import settings

tf1 = tf.compat.v1

OFF = "off"


def make(
    shown: tensorboard.TensorBoard | None, last_step: int, every: int, steps: int, **run: Any
) -> experiment.Experiment:
    """Return the experiment of the digits, with three tasks on a small convolutional network.

    Args:
      shown: the items that TensorBoard shows; None for no items.
      last_step: the steps of the whole training.
      every: the steps between summaries.
      steps: the steps between checkpoints.
      **run: further settings of `Run`.
    """
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=tfds.Tfds(name="mtl.datasets.digits.builder.Digits"),
            spec=spec.Spec(
                features={"image": ("uint8", (8, 8, 1))},
                labels={"digit": "int64", "parity": "int64", "loops": "int64"},
            ),
            batch_size=64,
            shuffle_buffer=2000,
            cache=True,
        ),
        model=model.MultiTaskModel(
            columns=[features.Image(names=["image"], greatest=16.0)],
            network=networks.SharedBottom(
                trunk=networks.Convnet(filters=[32, 64], layers=[128]),
                tower=networks.MLP(layers=[32]),
            ),
            heads=[
                heads.MultiClass(name="digit", classes=10),
                heads.Binary(name="parity"),
                heads.Ordinal(name="loops", classes=3),
            ],
            update=update.Update(),
        ),
        run=experiment.Run(
            train_steps=last_step,
            checkpoint_steps=steps,
            summary_steps=every,
            keep_checkpoints=1,
            **run,
        ),
        best=checkpoints.Best(),
        tensorboard=shown,
    )


def find_speed(directory: str, from_step: int) -> float:
    """Read the summaries after step `from_step`, and return the least seconds of a step."""
    secs = []
    for name in sorted(os.listdir(directory)):
        if name.startswith("events."):
            for event in tf1.train.summary_iterator(os.path.join(directory, name)):
                secs += [
                    1 / value.simple_value
                    for value in event.summary.value
                    if value.tag == "steps_per_sec" and event.step > from_step
                ]
    return min(secs)


def time_steps(
    items: Mapping[str, Callable[[int, int, int], experiment.Experiment]],
    steps: int,
    rounds: int,
    every: int,
) -> dict[str, float]:
    """Time the steps of runs that take turns.

    Args:
      items: {item: a function that builds an experiment}; its arguments are the last step, the
        steps between summaries, and the steps of a round.
      steps: the steps of a round.
      rounds: the number of rounds.
      every: the steps between summaries.

    Returns:
      {item: seconds of a step}.
    """
    with tempfile.TemporaryDirectory() as folder:
        times: dict[str, list[float]] = {name: [] for name in items}
        for turn in range(1, rounds + 1):
            for name, build in items.items():
                directory, last = os.path.join(folder, name), turn * steps
                made = build(last, every, steps)
                # Neither evaluations nor exports are measured.
                with mock.patch.object(evaluation.Evaluator, "__call__", return_value={}):
                    verbs.train(made, directory)
                # The first summary after a start includes the time of tracing.
                times[name].append(find_speed(directory, last - steps + steps // 4))
    return {name: min(secs) for name, secs in times.items()}


def time_evaluations(names: list[str], rounds: int) -> dict[str, float]:
    """Return {item: median seconds of an evaluation with the item}; OFF means no items."""
    times: dict[str, list[float]] = {name: [] for name in (OFF, *names)}
    with tempfile.TemporaryDirectory() as directory:
        verbs.train(make(None, 10, 10, 10), directory)
        for _ in range(rounds):
            for name, secs in times.items():
                shown = None if name == OFF else tensorboard.TensorBoard(**{name: True})
                secs.append(_time_evaluation(make(shown, 10, 10, 10), directory))
    return {name: statistics.median(secs) for name, secs in times.items()}


def _time_evaluation(made: experiment.Experiment, directory: str) -> float:
    place = made.distribution.find_place()
    run = types.ObservedRun(experiment=made, model_dir=directory, place=place)
    stopping = interruption.Interruption()
    opened = observers.open_all(run, attached.list_observers(made))
    evaluator = evaluation.Evaluator(made, directory, stopping, opened)
    with mock.patch.object(evaluation.Evaluator, "_export"):
        started = time.perf_counter()
        evaluator(os.path.join(directory, "model.ckpt-10"))
        return time.perf_counter() - started


def report(title: str, times: dict[str, float]) -> None:
    """Print the table of {item: seconds}, with ratios to the time without items."""
    plain_secs = times[OFF]
    print(f"\n{title}\n\n| item | ms | more than without items |\n| -- | -- | -- |")
    for name, secs in times.items():
        print(f"| {name} | {1000 * secs:.2f} | {100 * (secs / plain_secs - 1):+.1f}% |")


def main() -> None:
    """Time steps and evaluations, and print three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="steps of each run in a round")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    items = {OFF: None, "defaults": tensorboard.TensorBoard()}
    items |= {n: tensorboard.TensorBoard(**{n: True}) for n in settings.OF_STEPS}
    everything = tensorboard.TensorBoard(**dict.fromkeys(settings.OF_STEPS, True))
    items["all of them"] = everything
    steps, rounds = arguments.steps, arguments.rounds
    builds = {name: functools.partial(make, shown) for name, shown in items.items()}
    report("Time of a step, with items every 100 steps", time_steps(builds, steps, rounds, 100))
    few = {name: build for name, build in builds.items() if name != "defaults"}
    report("Time of a step, with items at every step", time_steps(few, max(steps // 10, 20), 1, 1))
    report("Time of an evaluation", time_evaluations(list(settings.OF_EVALUATIONS), rounds))


if __name__ == "__main__":
    main()
