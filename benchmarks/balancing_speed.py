"""The step time of every surgery as a ratio to equal weighting, beside LibMTL and torchjd.

Training steps as users get them, many a session call, on an MLP (128 inputs, six layers of 512,
batch 256, or 64) and on a convnet (batch 64), with a binary head for each of 2, 4, 8 and 16 tasks.
All sides of a table take turns in one run, with the same number of threads; a ratio is taken within
a round, and the table shows the median and the range over the rounds, beside a peer's ratio its
time in times of ours. T exact backward passes cost (1 + 2T)/3 by arithmetic: that is "all built",
with a gradient of each task for every variable, where "exact" leaves out those that cost more than
their inner products. In "single passes" the passes of the tasks go back one by one. --memory adds
the peak of the tensors that a step holds, each in a process of its own.

    python -m benchmarks.balancing_speed --rounds 5 --peer_python torch_env/bin/python
    python -m benchmarks.balancing_speed --tasks 16 --ways exact "all built" --memory
    python -m benchmarks.balancing_speed --tasks 16 --ways exact "single passes"

The peers run in a Python of their own (`pip install torch torchjd[full] && pip install --no-deps
LibMTL`); without it only this project is measured, and the run says so.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from mtl import heads, model, networks, types
from mtl.balancing import methods, short_gradients, stacked_passes, surgery
from mtl.layers import precision as precision_lib
from mtl.model import graph_options
from mtl.optimization import optimizers, update
from mtl.step import training_loop

tf1 = tf.compat.v1

BUILT, SINGLE, AUTOGRAM = "all built", "single passes", "autogram"
WAYS = {
    "exact": {},
    BUILT: {},
    SINGLE: {},
    "representation": {"on": "representation"},
    "every 10 steps": {"every_steps": 10},
}
LEFT_OUT = {
    BUILT: functools.partial(
        mock.patch.object, short_gradients, "shorten_gradients", return_value=None
    ),
    SINGLE: functools.partial(mock.patch.dict, stacked_passes._RULES, clear=True),
}
PEER_WAYS = {
    "LibMTL": ("exact", "representation"),
    "torchjd": ("exact", AUTOGRAM, "representation"),
}
INPUTS = {"mlp": (256, 128), "mlp_64": (64, 128), "convnet": (64, 32, 32, 3)}
_MLP = networks.MLP(layers=[512] * 6)
TRUNKS = {
    "mlp": _MLP,
    "mlp_64": _MLP,
    "convnet": networks.Convnet(filters=[32, 64, 128], layers=[256], batch_norm=False),
}
# Methods that keep gradients, that need more than the losses, and that decide by coordinate.
EXACT_ONLY = ("MoCo", "DBMTL", "ExcessMTL")
NEEDS_MORE = ("Clipped", "MoDo", "SDMGrad", "PCD")
BY_COORDINATE = ("GradDrop", "TrimmedMean")
METHODS = [name for name in methods.__all__ if name not in NEEDS_MORE]
DEFAULT = ["MGDA", "PCGrad", "CAGrad", "UPGrad", "NashMTL"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    """A column that hands its field on as it is."""

    columns = {"x": ("x",)}

    def accumulators(self):
        return {}

    def __call__(self, features, fitted):
        del fitted
        return features


class Steps:
    """Training steps of a model, ready to be timed."""

    def __init__(
        self,
        a_model: model.MultiTaskModel,
        batches: Callable[[], tf.data.Dataset],
        threads: int = 2,
        precision: precision_lib.Precision = precision_lib.PLAIN,
    ):
        self._step = 0
        with tf.Graph().as_default():
            tf1.set_random_seed(1)
            tf1.train.create_global_step()
            self._until = tf1.placeholder(tf.int64, [])
            iterator = tf1.data.make_initializable_iterator(batches())
            steps = {"steps_per_call": 10_000, "last_step": self._until, "due_every": (10_000,)}
            hooks: dict[str, Any] = {"training_hooks": self._fetch, "precision": precision}
            a_model.model_fn(
                iterator,
                None,
                "train",
                options=graph_options.GraphOptions(statistics={}, loop=steps, **hooks),
            )
            self._session = tf1.Session(
                config=tf1.ConfigProto(
                    intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
                )
            )
            first = [tf1.global_variables_initializer(), tf1.tables_initializer()]
            self._session.run([*first, iterator.initializer])

    def _fetch(self, result: training_loop.StepResult) -> dict[str, Any]:
        # As in a run, so that the monitors are computed.
        self._fetches = (result.step, result.values)
        return {}

    def __call__(self, steps: int) -> float:
        """Seconds a step, over so many."""
        started, end = time.perf_counter(), self._step + steps
        while self._step < end:
            self._step, _ = self._session.run(self._fetches, {self._until: end})
        return (time.perf_counter() - started) / steps

    def trace(self) -> tf.compat.v1.RunMetadata:
        """Take a step, and return what TensorFlow tells of each op in it."""
        told, feed = tf1.RunMetadata(), {self._until: self._step + 1}
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        self._step, _ = self._session.run(self._fetches, feed, options, told)
        return told

    def close(self) -> None:
        """Free its memory."""
        self._session.close()


def a_model(network: str, num_tasks: int, part: types.Surgery) -> model.MultiTaskModel:
    """Return a shared trunk and a binary head for each task; Adam."""
    return model.MultiTaskModel(
        columns=[Given()],
        network=networks.SharedBottom(trunk=TRUNKS[network]),
        heads=[heads.Binary(name=f"task_{task}") for task in range(num_tasks)],
        update=update.Update(optimizer=optimizers.Adam()),
        surgery=part,
    )


def noise(network: str, num_tasks: int) -> tf.data.Dataset:
    """Return one batch, again and again."""
    rng, shape = np.random.default_rng(0), INPUTS[network]
    inputs = {"x": rng.normal(size=shape).astype(np.float32)}
    labels = {f"task_{task}": rng.integers(0, 2, shape[0]) for task in range(num_tasks)}
    return tf.data.Dataset.from_tensors((inputs, labels)).cache().repeat()


def build_steps(network: str, num_tasks: int, way: str, part: types.Surgery, threads: int) -> Steps:
    """Return the steps of one side."""
    own = a_model(network, num_tasks, part)
    batches = functools.partial(noise, network, num_tasks)
    with LEFT_OUT.get(way, contextlib.nullcontext)():
        return Steps(own, batches, threads)


class Peers:
    """LibMTL and torchjd, in a process of their own."""

    def __init__(self, python: str, threads: int):
        script = os.path.join(os.path.dirname(__file__), "balancing_speed_peers.py")
        self._process = subprocess.Popen(
            [python, script, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, steps: int, **case) -> float:
        """Seconds a step; NaN where the peer lacks the method or fails."""
        self._process.stdin.write(json.dumps({"steps": steps, **case}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("--peer_python ended: does it have torch, torchjd[full], LibMTL?")
        return json.loads(answer).get("secs", math.nan)

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def sides(
    network: str,
    num_tasks: int,
    names: Sequence[str],
    ways: Sequence[str],
    threads: int,
    peers: Peers | None,
) -> Iterator:
    """{(project, method, way): steps -> seconds a step}."""
    built = {
        ("mtl", name, way): build_steps(network, num_tasks, way, part, threads)
        for name, way, part in parts(names, [way for way in ways if way in WAYS])
    }
    asked = {
        (peer, name, way): functools.partial(
            peers, peer=peer, network=network, tasks=num_tasks, method=name, way=way
        )
        for peer, of_peer in (PEER_WAYS if peers else {}).items()
        for name in (("Sum", *names) if peer == "torchjd" else names)
        for way in (("exact",) if name == "Sum" else [way for way in of_peer if way in ways])
    }
    yield {**built, **asked}
    for steps in built.values():
        steps.close()


def parts(
    names: Sequence[str], ways: Sequence[str] = tuple(WAYS)
) -> Iterator[tuple[str, str, types.Surgery]]:
    """Yield every method in every way that it allows, and the plain sum."""
    yield "Sum", "exact", surgery.Sum()
    for name in names:
        for way in ways:
            by_coordinate = name in BY_COORDINATE and way == "every 10 steps"
            if not by_coordinate and (not WAYS.get(way) or name not in EXACT_ONLY):
                part = surgery.Combine(method=getattr(methods, name)(), **WAYS[way])
                yield name, way, part


def medians(timed: dict, base: Callable, multiple: Callable, rounds: int, secs_each: float) -> dict:
    """{key: (seconds a step, ratios to its base)} over rounds that interleave all.

    The seconds are the median; the ratios, within a round each, are sorted.

    Args:
      timed: {key: steps -> seconds a step}.
      base: key -> the key that its ratio is to.
      multiple: key -> what its number of steps is a multiple of.
      rounds: How often every key is timed.
      secs_each: About how long each timing takes.
    """
    counts = {}
    for key, steps in timed.items():
        unit = multiple(key)
        steps(max(2, unit))
        rate = steps(max(2, unit))
        counts[key] = unit if math.isnan(rate) else math.ceil(secs_each / rate / unit) * unit
    found = [{key: timed[key](counts[key]) for key in timed} for _ in range(rounds)]
    return {
        key: (
            statistics.median(secs[key] for secs in found),
            sorted(secs[key] / secs[base(key)] for secs in found),
        )
        for key in timed
    }


def table(num_tasks: int, names: Sequence[str], ways: Sequence[str], found: dict) -> Iterator[str]:
    """Yield a row for each method: ratios to the plain sum of the same project.

    Behind those of a peer, its time in times of ours.
    """
    columns = [("mtl", way) for way in ways if way in WAYS]
    peers = PEER_WAYS if ("torchjd", "Sum", "exact") in found else {}
    columns += [(peer, way) for peer, own in peers.items() for way in own if way in ways]
    bounds = {BUILT: f" (by arithmetic {(1 + 2 * num_tasks) / 3:.1f})"}
    bounds["every 10 steps"] = f" (aim {1 + 0.12 * num_tasks:.2f})"
    titles = [
        way + bounds.get(way, "") if p == "mtl" else f"{p}, {way} (its time / ours)"
        for p, way in columns
    ]
    yield f"| {num_tasks} tasks | {' | '.join(titles)} |"
    yield "|---|" + "---|" * len(columns)
    for name in names:
        cells = [_cell(found, project, name, way) for project, way in columns]
        yield f"| {name} | {' | '.join(cells)} |"


def _cell(found: dict, project: str, name: str, way: str) -> str:
    secs, ratios = found.get((project, name, way), (math.nan, [math.nan]))
    if math.isnan(secs):
        return "-"
    own = f"{statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}"
    ours = found.get(("mtl", name, "exact" if way == AUTOGRAM else way))
    return own if project == "mtl" or not ours else f"{own} ({secs / ours[0]:.2f})"


def measure_peak(network: str, num_tasks: int, name: str, way: str, threads: int) -> None:
    """Print the MiB of the tensors of a step that are there at the same time, at most.

    What a process takes from the system is more: it keeps memory for later tensors.
    """
    part = {(own, of): part for own, of, part in parts([name] * (name != "Sum"))}[name, way]
    steps = build_steps(network, num_tasks, way, part, threads)
    steps(3)
    records = [
        record
        for device in steps.trace().step_stats.dev_stats
        for op in device.node_stats
        for memory in op.memory
        for record in memory.allocation_records
    ]
    records.sort(key=lambda record: record.alloc_micros)
    held = itertools.accumulate(record.alloc_bytes for record in records)
    print(max(held) / 2**20)


def peaks(
    network: str, num_tasks: int, names: Sequence[str], ways: Sequence[str], threads: int
) -> Iterator[str]:
    """Yield a table of the peak memory of a step, each measured in a process of its own."""
    yield f"| {num_tasks} tasks, tensors of a step, MiB | {' | '.join(ways)} |"
    yield "|---|" + "---|" * len(ways)
    for name in ("Sum", *names):
        cells = []
        for way in ways if name != "Sum" else ["exact"]:
            command = [sys.executable, "-m", "benchmarks.balancing_speed", "--threads"]
            command += [str(threads), "--measure", network, str(num_tasks), name, way]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            cells.append(f"{float(done.stdout):.0f}")
        yield f"| {name} | {' | '.join(cells)} |"


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser of how often, how long and on how many tasks and threads is timed."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often every side is timed")
    parser.add_argument("--secs", type=float, default=0.5, help="about how long each timing takes")
    parser.add_argument("--tasks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--threads", type=int, default=2, help="of TensorFlow, and of the peers")
    return parser


def main() -> None:
    """Print a table for each network and number of tasks."""
    parser = arguments(__doc__)
    parser.add_argument("--networks", nargs="+", choices=list(TRUNKS), default=list(TRUNKS))
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, "all"], default=DEFAULT)
    ways = [*WAYS, AUTOGRAM]
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways)
    parser.add_argument("--memory", action="store_true", help="measures peak memory, too")
    parser.add_argument("--measure", nargs=4, help="peak memory of this one side, here")
    parser.add_argument("--peer_python", help="a Python that has torch, torchjd and LibMTL")
    options = parser.parse_args()
    if options.measure:
        network, num_tasks, name, way = options.measure
        return measure_peak(network, int(num_tasks), name, way, options.threads)
    ways = [way for way in options.ways if way in WAYS]
    names = METHODS if options.methods == ["all"] else options.methods
    peers = Peers(options.peer_python, options.threads) if options.peer_python else None
    if peers is None:
        print("LibMTL and torchjd are skipped: no --peer_python.")
    for network in options.networks:
        for num_tasks in options.tasks:
            with sides(network, num_tasks, names, options.ways, options.threads, peers) as timed:
                found = medians(
                    timed,
                    base=lambda key: (BASES[key[0]], "Sum", "exact"),
                    multiple=lambda key: 10 if key[-1] == "every 10 steps" else 1,
                    rounds=options.rounds,
                    secs_each=options.secs,
                )
            plain = [
                f"{project} {found[project, 'Sum', 'exact'][0] * 1000:.1f} ms"
                for project in ("mtl", "torchjd")
                if (project, "Sum", "exact") in found
            ]
            print(f"\n{network}; a step with equal weights: {', '.join(plain)}\n", flush=True)
            print("\n".join(table(num_tasks, names, options.ways, found)), flush=True)
            if options.memory:
                print()
                for line in peaks(network, num_tasks, names, ways, options.threads):
                    print(line, flush=True)
    if peers:
        peers.close()
    return None


# LibMTL without a method is the same plain PyTorch as torchjd.
BASES = {"mtl": "mtl", "torchjd": "torchjd", "LibMTL": "torchjd"}

if __name__ == "__main__":
    main()
