"""Measures pruning of finished runs: in one cut by each criterion, and in rounds.

    python -m benchmarks.finished_pruning --seeds 3
    python -m benchmarks.finished_pruning --rounds 5 --seeds 3

The network is LeNet-300-100 on the digits of `benchmarks.pruning`, trained for 15 epochs. By
default, each criterion cuts weights of the layers before the head in one cut, without further
training. Criteria that read rows read 1,024 training rows. With --rounds, each round cuts the
smallest weights of all three layers, resets the other weights to their initial values, and trains
again. The controls train with shuffled masks, and with new initial weights.
"""

import argparse
import dataclasses
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import pruning as pruning_benchmark
from benchmarks import rows
from mtl import checks, experiment, serving, spec, verbs
from mtl.checkpoints import run_directory
from mtl.data import pipeline
from mtl.sparsity import criteria, densities, pruning, pruning_schedules
from mtl.tools.pruning import finished_pruning, tickets

_STEPS, _BATCH, _TRAIN = 1200, 100, 8000
_SPARSITIES = (0.5, 0.7, 0.8, 0.9)
_LAST = 0.97
_HIDDEN = ("^network/.*/kernel$",)
_ALL = {"patterns": (*_HIDDEN, "^head/digit/.*kernel$"), "cuts_heads": True}
_BY_UNIT = densities.Uniform(per_unit=True)
CRITERIA: Mapping[str, dict[str, Any]] = {
    "SparseGPT": {"criterion": criteria.SparseGpt()},
    "Wanda, per unit": {"criterion": criteria.Wanda(), "density": _BY_UNIT},
    "Taylor": {"criterion": criteria.Taylor()},
    "magnitude": {"criterion": criteria.Magnitude()},
    "random": {"criterion": criteria.Random()},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digits:
    """A source of digits in memory."""

    def records(self, split: str) -> tf.data.Dataset:
        """Return all records of a split."""
        images, digits = self._take(split)
        return tf.data.Dataset.from_tensor_slices({"x": images, "digit": digits})

    def decode(self, batch: Any, spec: Any, with_labels: bool) -> Any:
        """Return the fields of a batch."""
        return {name: batch[name] for name in (spec.fields if with_labels else spec.features)}

    def scan(self, split: str, spec: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield (place, values) of each record."""
        del spec
        for number, (image, digit) in enumerate(zip(*self._take(split), strict=True)):
            yield f"{split} {number}", {"x": image.tolist(), "digit": int(digit)}

    def _take(self, split: str) -> list[np.ndarray]:
        places = slice(0, _TRAIN) if split == "train" else slice(_TRAIN, None)
        return [values[places] for values in pruning_benchmark.read_digits()]


def an_experiment(
    seed: int,
    parts: Sequence[pruning.Pruning] = (),
    layers: Sequence[int] = pruning_benchmark.LAYERS,
) -> experiment.Experiment:
    """Return the experiment with these `Pruning` parts."""
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=Digits(),
            spec=spec.Spec(features={"x": ("float32", (784,))}, labels={"digit": "int64"}),
            batch_size=_BATCH,
            shuffle_buffer=_TRAIN,
        ),
        model=pruning_benchmark.a_model(parts, layers),
        run=experiment.Run(train_steps=_STEPS, checkpoint_steps=_STEPS, seed=seed),
        serving=serving.Serving(check_rows=0),
    )


def train_dense(seed: int, out: str) -> str:
    """Train the network once; return its folder."""
    folder = os.path.join(out, f"dense_{seed}")
    verbs.train(an_experiment(seed), folder)
    return folder


def score(folder: str) -> float:
    """Return the test accuracy of the latest checkpoint, in percent."""
    images, digits = pruning_benchmark.read_digits()
    reader = tf.train.load_checkpoint(run_directory.checkpoint_path(folder, "latest"))
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    return pruning_benchmark.score(values, images[_TRAIN:], digits[_TRAIN:])["accuracy"]


def prune_at_once(seed: int, out: str, name: str, sparsity: float) -> float:
    """Return the test accuracy of the network after the cut."""
    source = train_dense(seed, out)
    path = run_directory.checkpoint_path(source, "latest")
    settings = {"density": densities.Uniform(), "patterns": _HIDDEN, **CRITERIA[name]}
    once = pruning_schedules.OneShot()
    part = pruning.Pruning(sparsity=sparsity, schedule=once, **settings)
    settings_of_run = an_experiment(seed, [part])
    with tempfile.TemporaryDirectory() as folder:
        cut = finished_pruning.choose_cut(settings_of_run, source, path, rows=1024)
        finished_pruning.write_run(settings_of_run, source, path, cut, folder)
        return score(folder)


def compare_at_once(seeds: Sequence[int], out: str) -> str:
    """Return the table of test accuracies after a cut without further training."""
    lines = []
    for name in CRITERIA:
        line = [name]
        for sparsity in _SPARSITIES:
            accuracies = [
                rows.load_or_measure(
                    os.path.join(out, "at_once", f"{name}_{sparsity:g}_{seed}.json"),
                    functools.partial(prune_at_once, seed, out, name, sparsity),
                )
                for seed in seeds
            ]
            line.append(pruning_benchmark.cell(accuracies))
        lines.append(line)
        print(", ".join(line), flush=True)
    dense = [score(train_dense(seed, out)) for seed in seeds]
    header = ["test accuracy, %", *(f"{100 * sparsity:g}%" for sparsity in _SPARSITIES)]
    return f"dense {pruning_benchmark.cell(dense)}\n\n{rows.markdown(header, lines)}"


def find_tickets(seed: int, out: str, rounds: int) -> dict[str, list[float]]:
    """Return {way: test accuracies of all rounds, "sparsity": sparsities of the rounds}."""
    source, once = train_dense(seed, out), pruning_schedules.OneShot()
    part = pruning.Pruning(
        sparsity=_LAST, schedule=once, density=densities.Global(floor=0.001), **_ALL
    )
    folder = os.path.join(out, f"tickets_{seed}")
    accuracies: dict[str, list[float]] = {}
    for ticket in tickets.train_tickets(
        an_experiment(seed),
        an_experiment(seed, [part]),
        source,
        folder,
        rounds,
        0,
        tickets.CONTROLS,
    ):
        way = ticket.name.split("_", 2)[2] if ticket.name.count("_") > 1 else "ticket"
        accuracies.setdefault(way, []).append(score(ticket.model_dir))
        if way == "ticket":
            accuracies.setdefault("sparsity", []).append(ticket.sparsity)
    shutil.rmtree(folder)
    return accuracies


def compare_tickets(seeds: Sequence[int], out: str, rounds: int) -> str:
    """Return the table of lottery tickets and their controls."""
    results = []
    for seed in seeds:
        path = os.path.join(out, "tickets", f"{rounds}_{seed}.json")
        results.append(
            rows.load_or_measure(path, functools.partial(find_tickets, seed, out, rounds))
        )
        print(f"seed {seed}: {results[-1]}", flush=True)
    header = [
        "test accuracy, %",
        *(f"{100 * sparsity:.1f}%" for sparsity in results[0]["sparsity"]),
    ]
    lines = [
        [
            way,
            *(
                pruning_benchmark.cell(sparsity)
                for sparsity in zip(*(result[way] for result in results), strict=True)
            ),
        ]
        for way in ("ticket", *tickets.CONTROLS)
    ]
    return rows.markdown(header, lines)


def main() -> None:
    """Measure results that are not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=0, help="rounds of lottery tickets")
    parser.add_argument("--out", default="runs/finished_pruning", help="the folder of results")
    args = parser.parse_args()
    checks.at_least("--seeds", args.seeds, 1)
    seeds = range(1, args.seeds + 1)
    if args.rounds:
        print(compare_tickets(seeds, args.out, args.rounds))
    else:
        print(compare_at_once(seeds, args.out))


if __name__ == "__main__":
    rows.guard(main)
