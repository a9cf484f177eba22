"""Compares groups of tasks that affinities propose with the best groups of all possible groups.

    python -m benchmarks.affinity --seeds 4               # 64 runs a seed, stored in runs/affinity
    python -m benchmarks.affinity --design functions
    python -m benchmarks.affinity --cost                  # the time of a step with measurements

Six simulated regression tasks form three pairs. The tasks of a pair depend on the same four hidden
functions of x, and different pairs have no function in common. In the design `outcomes`, the tasks
of a pair are the same sum of these functions with different noise. In the design `functions`, each
task is a different sum of these functions. The trunk has only four units, so tasks with different
functions compete for the units. Each seed draws new functions, rows and initial weights.

One run with all tasks measures affinities. Then a network is trained for each of the 63 sets of
tasks. The loss of a grouping is the sum over all tasks of the task's test loss in its group. `best`
is the grouping with the lowest mean loss over the seeds. Differences from `best` are paired by
seed, with standard errors.
"""

import argparse
import dataclasses
import itertools
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import rows
from mtl import experiment, features, heads, model, networks, serving, spec, verbs
from mtl.balancing import surgery
from mtl.data import pipeline
from mtl.monitoring import event_files
from mtl.optimization import optimizers, update
from mtl.runs import evaluation
from mtl.tools import affinity
from mtl.tools.drawing import affinity_picture
from mtl.tools.reports import grouping

TASKS = tuple(f"{pair}{number}" for pair in "abc" for number in (1, 2))
_INPUTS, _FUNCTIONS = 16, 4
_ROWS = {"train": 5000, "test": 2000}
_STEPS, _BATCH = 600, 100
_EVERY = 10
_NOISE = 0.3
DESIGNS = ("outcomes", "functions")

Groups = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
    """A source of three pairs of regression tasks, in one of `DESIGNS`."""

    seed: int
    design: str

    def make(self, split: str) -> dict[str, np.ndarray]:
        """Return the rows of a split."""
        functions = np.random.default_rng([self.seed, 0])
        random = np.random.default_rng([self.seed, 1 + list(_ROWS).index(split)])
        x = random.normal(size=(_ROWS[split], _INPUTS))
        fields = {"x": x.astype(np.float32)}
        for first in range(0, len(TASKS), 2):
            kernel = functions.normal(size=(_INPUTS, _FUNCTIONS))
            hidden = np.tanh(x @ kernel * 2 / _INPUTS**0.5)
            common = _draw_direction(functions)
            for task in TASKS[first : first + 2]:
                weights = common if self.design == "outcomes" else _draw_direction(functions)
                clean = hidden @ weights
                fields[task] = (clean + _NOISE * random.normal(size=len(x))).astype(np.float32)
        return fields

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split one by one."""
        return tf.data.Dataset.from_tensor_slices(self.make(split))

    def decode(self, batch: Any, spec: spec.Spec, with_labels: bool) -> dict[str, Any]:
        """Return the fields of a batch."""
        return {name: batch[name] for name in (spec.fields if with_labels else spec.features)}

    def scan(self, split: str, spec: spec.Spec) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the rows of a split in plain Python."""
        columns = {
            name: of.tolist() for name, of in self.make(split).items() if name in spec.fields
        }
        for number, values in enumerate(zip(*columns.values(), strict=True)):
            yield f"{split} row {number}", dict(zip(columns, values, strict=True))


def _draw_direction(random: np.random.Generator) -> np.ndarray:
    direction = random.normal(size=_FUNCTIONS)
    return direction / np.linalg.norm(direction)


def make(
    tasks: Sequence[str], seed: int, design: str, is_measured: bool = False, **settings: Any
) -> experiment.Experiment:
    """Return the experiment that trains some of the tasks."""
    part = affinity.TaskAffinity(every_steps=_EVERY) if is_measured else surgery.Sum()
    run = {"train_steps": _STEPS, "checkpoint_steps": _STEPS, "summary_steps": _EVERY}
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=Pairs(seed=seed, design=design),
            spec=spec.Spec(
                features={"x": ("float32", (_INPUTS,))}, labels=dict.fromkeys(tasks, "float32")
            ),
            batch_size=_BATCH,
        ),
        model=model.MultiTaskModel(
            columns=[features.Numeric(names=["x"], normalization="none")],
            network=networks.SharedBottom(
                trunk=networks.MLP(layers=[settings.pop("units", _FUNCTIONS)], activation="tanh")
            ),
            heads=[heads.Regression(name=task) for task in tasks],
            update=update.Update(optimizer=optimizers.Adam(learning_rate=0.01)),
            surgery=part,
        ),
        run=experiment.Run(**{**run, "seed": seed, **settings}),
        serving=serving.Serving(check_rows=0),
    )


def train(
    tasks: Sequence[str], seed: int, design: str, is_measured: bool = False
) -> dict[str, Any]:
    """Train some of the tasks; return their test losses, and the affinities {step: value}."""
    settings = make(tasks, seed, design, is_measured)
    with tempfile.TemporaryDirectory() as folder:
        # Skip exports, because they take longer than the training.
        with mock.patch.object(evaluation.Evaluator, "__call__", return_value={}):
            verbs.train(settings, folder)
        metrics = verbs.evaluate(settings, folder, "test")
        pairs = affinity_picture.group(event_files.read_record(folder).curves)
    return {
        "losses": {task: float(metrics[f"{task}/average_loss"]) for task in tasks},
        "affinities": [[*pair, list(points.items())] for pair, points in pairs.items()],
    }


def list_groupings(tasks: Sequence[str], models: int) -> Iterator[Groups]:
    """Yield all partitions of the tasks into at most `models` groups."""
    if not tasks:
        yield ()
        return
    if not models:
        return
    first, *other_tasks = tasks
    for size in range(len(other_tasks) + 1):
        for partners in itertools.combinations(other_tasks, size):
            remaining = [task for task in other_tasks if task not in partners]
            for groups in list_groupings(remaining, models - 1):
                yield ((first, *partners), *groups)


def add_losses(groups: Groups, losses: Mapping[tuple[str, ...], Mapping[str, float]]) -> float:
    """Return the loss of a grouping: the sum of all tasks' test losses in their groups."""
    return sum(losses[group][task] for group in groups for task in group)


def propose(results: Mapping[str, Any], models: int) -> Groups:
    """Return the groups that affinities propose."""
    pairs = {
        (task, other): dict(map(tuple, points)) for task, other, points in results["affinities"]
    }
    measured = grouping.Measured.from_pairs(pairs, TASKS)
    best = grouping.propose(measured, models)[0]
    return tuple(tuple(grouping.name_tasks(measured, group.trained)) for group in best.groups)


def compare(seeds: int, design: str) -> str:
    """Train all sets of tasks, and return the table of the groupings."""
    subsets = [
        tasks for size in range(1, len(TASKS) + 1) for tasks in itertools.combinations(TASKS, size)
    ]
    folder = os.path.join("runs", "affinity", design)
    measured, losses = [], []
    for seed in range(seeds):
        path = os.path.join(folder, f"all_{seed}.json")
        measured.append(
            rows.load_or_measure(path, lambda seed=seed: train(TASKS, seed, design, True))
        )
        of_sets = {}
        for tasks in subsets:
            path = os.path.join(folder, f"{'_'.join(tasks)}_{seed}.json")
            result = rows.load_or_measure(
                path, lambda tasks=tasks, seed=seed: train(tasks, seed, design)
            )
            of_sets[tasks] = result["losses"]
        losses.append(of_sets)
    header = ["models", "grouping", "groups", "sum of losses", "minus the best"]
    lines = [line for models in (2, 3) for line in _compare_groupings(models, measured, losses)]
    return rows.markdown([*header, "seeds where it is the best"], lines)


def _compare_groupings(
    models: int, measured: Sequence[Mapping[str, Any]], losses: Sequence[Mapping[Any, Any]]
) -> Iterator[list[str]]:
    """Yield the table's lines for groupings into at most `models` models."""
    groupings = list(list_groupings(TASKS, models))
    best = min(
        groupings, key=lambda groups: sum(add_losses(groups, set_losses) for set_losses in losses)
    )
    proposed = [propose(result, models) for result in measured]
    best_of_seeds = [
        min(groupings, key=lambda groups, set_losses=set_losses: add_losses(groups, set_losses))
        for set_losses in losses
    ]
    groups_of_seeds = {
        "best": [best] * len(losses),
        "proposed": proposed,
        "best of each seed": best_of_seeds,
        "all in one": [(TASKS,)] * len(losses),
    }
    sums = {
        name: [
            add_losses(group, set_losses) for group, set_losses in zip(groups, losses, strict=True)
        ]
        for name, groups in groups_of_seeds.items()
    }
    sums["mean of all"] = [
        statistics.mean(add_losses(g, set_losses) for g in groupings) for set_losses in losses
    ]
    for name, values in sums.items():
        groups = groups_of_seeds.get(name, [])
        members = "; ".join(" ".join(group) for group in groups[0]) if len(set(groups)) == 1 else ""
        difference = rows.describe_difference(values, sums["best"], 3)
        equal = f"{groups.count(best)} of {len(losses)}" if groups else ""
        yield [str(models), name, members, f"{statistics.mean(values):.3f}", difference, equal]


def measure_cost() -> str:
    """Return the table of step times with measured affinities, relative to times without."""
    lines = []
    for count in (2, 6):
        ratios = []
        for every in (1, 100):
            sides = {False: [], True: []}
            for is_measured in (False, True) * 3:
                sides[is_measured] += _time_steps(count, every, is_measured)
            ratios.append(statistics.median(sides[False]) / statistics.median(sides[True]))
        lines.append([str(count), *(f"{ratio:.2f}" for ratio in ratios)])
    return rows.markdown(["tasks", "every step", "every 100 steps"], lines)


def _time_steps(count: int, every: int, is_measured: bool) -> list[float]:
    """Train a trunk with 512 units, and return several measurements of steps per second."""
    steps = 200 if every == 1 else 1000
    run = {"train_steps": steps, "checkpoint_steps": steps, "summary_steps": every}
    settings = make(TASKS[:count], 0, DESIGNS[0], units=512, **run)
    if is_measured:
        part = affinity.TaskAffinity(every_steps=every)
        settings = dataclasses.replace(
            settings, model=dataclasses.replace(settings.model, surgery=part)
        )
    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.object(evaluation.Evaluator, "__call__", return_value={}):
            verbs.train(settings, folder)
        curve = event_files.read_record(folder).curves["steps_per_sec"]
    return list(curve.values())[1:]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4, help="the number of data sets")
    shared = "what the tasks of a pair share: the outcome, or only hidden functions"
    parser.add_argument("--design", choices=DESIGNS, default="outcomes", help=shared)
    parser.add_argument("--cost", action="store_true", help="only time steps")
    flags = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    print(measure_cost() if flags.cost else compare(flags.seeds, flags.design))


if __name__ == "__main__":
    rows.guard(main)
