"""Measures costs of balancing other than backward passes: large tables, and monitors.

--parts tables: the step time with an embedding table of 10 million rows, relative to a table of 10
thousand, for the plain sum and for surgeries (dimension 16, LazyAdam, four tasks, batch 256).
--parts telemetry: the step time of a surgery with monitors, relative to the same surgery without
monitors, on the MLP of `benchmarks.balancing_speed`, over multiples of 100 steps.

    python -m benchmarks.balancing_costs --rounds 5
"""

import argparse
import dataclasses
import functools
import statistics
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from benchmarks import balancing_speed
from mtl import features, heads, model, networks, types
from mtl.balancing import methods, monitored, surgery
from mtl.optimization import optimizers, update

ROWS = (10_000, 10_000_000)
TASKS = ("a", "b", "c", "d")
SURGERIES = {
    "Sum": surgery.Sum(),
    "PCGrad": surgery.Combine(method=methods.PCGrad()),
    "UPGrad": surgery.Combine(method=methods.UPGrad()),
    "NashMTL": surgery.Combine(method=methods.NashMTL()),
    "MGDA on the representation": surgery.Combine(method=methods.MGDA(), on="representation"),
    "MGDA every 10 steps": surgery.Combine(method=methods.MGDA(), every_steps=10),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Silent:
    """A surgery without monitors, so that TensorFlow does not compute the monitored values."""

    surgery: types.Surgery

    def __call__(self, *args):
        return self.surgery(*args)[0], {}


def looked_up(rows: int, part: types.Surgery) -> model.MultiTaskModel:
    """Return a model of four tasks whose input is the mean of eight embedding vectors."""
    return model.MultiTaskModel(
        columns=[features.Identity(names=["item"], size=rows, dimension=16)],
        network=networks.SharedBottom(trunk=networks.MLP(layers=[512] * 6)),
        heads=[heads.Binary(name=task) for task in TASKS],
        update=update.Update(optimizer=optimizers.LazyAdam()),
        surgery=part,
    )


def lookups(rows: int) -> tf.data.Dataset:
    """Return a hundred batches of 256 examples with eight ids each."""
    rng = np.random.default_rng(0)
    ids = {"item": rng.integers(0, rows, [100, 256, 8])}
    labels = {task: rng.integers(0, 2, [100, 256]) for task in TASKS}
    return tf.data.Dataset.from_tensor_slices((ids, labels)).cache().repeat()


def tables(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table of step times with large embedding tables."""
    yield "| surgery | 10 thousand rows | 10 million rows | ratio |\n|---|---|---|---|"
    for name, part in SURGERIES.items():
        timed = {
            rows: balancing_speed.Steps(
                looked_up(rows, part), functools.partial(lookups, rows), options.threads
            )
            for rows in ROWS
        }
        times = balancing_speed.medians(
            timed, lambda _: ROWS[0], lambda _: 10, options.rounds, options.secs
        )
        few, many = (f"{times[rows][0] * 1000:.2f} ms" for rows in ROWS)
        yield f"| {name} | {few} | {many} | {statistics.median(times[ROWS[1]][1]):.2f} |"
        for steps in timed.values():
            steps.close()


def telemetry(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table of step times with monitors."""
    exact = surgery.Combine(method=methods.PCGrad())
    cheap = surgery.Combine(method=methods.PCGrad(), on="representation")
    pairs = {
        "Monitored every 100 steps": (surgery.Sum(), monitored.Monitored(every_steps=100)),
        "Monitored on parameters": (
            surgery.Sum(),
            monitored.Monitored(every_steps=100, on="parameters"),
        ),
        "Combine": (Silent(surgery=exact), exact),
        "Combine on the representation": (Silent(surgery=cheap), cheap),
    }
    yield f"| tasks | {' | '.join(pairs)} |\n|---|{'---|' * len(pairs)}"
    for num_tasks in options.tasks:
        data = functools.partial(balancing_speed.noise, "mlp", num_tasks)
        timed = {
            (name, has_monitors): balancing_speed.Steps(
                balancing_speed.a_model("mlp", num_tasks, part), data, options.threads
            )
            for name, sides in pairs.items()
            for has_monitors, part in enumerate(sides)
        }
        times = balancing_speed.medians(
            timed,
            base=lambda key: (key[0], 0),
            multiple=lambda key: 100 if key[0].startswith("Monitored") else 1,
            rounds=options.rounds,
            secs_each=options.secs,
        )
        ratios = [f"{statistics.median(times[name, 1][1]):.3f}" for name in pairs]
        yield f"| {num_tasks} | {' | '.join(ratios)} |"
        for steps in timed.values():
            steps.close()


PARTS = {"tables": tables, "telemetry": telemetry}


def main() -> None:
    """Print a table for each part."""
    parser = balancing_speed.arguments(__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args()
    for part in options.parts:
        print(f"\n{part}\n")
        for line in PARTS[part](options):
            print(line, flush=True)


if __name__ == "__main__":
    main()
