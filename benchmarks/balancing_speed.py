"""Compares the step time of every surgery with equal weighting, also for LibMTL and torchjd.

Steps run as in training, many in a session call, on an MLP (128 inputs, six layers of 512 units,
batch 256 or 64) and on a convnet (batch 64), with a binary head for each of 2, 4, 8 and 16 tasks.
All variants of a table are timed in turns, with the same number of threads. A ratio compares two
times of a round, and the table shows median and range over the rounds. After the ratio of a peer
library, the table shows the peer's time divided by our time. A backward pass takes about twice as
long as a forward pass, so a step with T backward passes should take (1 + 2T)/3 times as long. The
way "all built" computes the gradient of each task for every variable. The way "exact" leaves out
gradients whose inner products are cheaper to compute directly. In "single passes", the backward
passes of the tasks run one after the other. --memory adds the peak memory of the tensors of a step,
measured in separate processes.

    python -m benchmarks.balancing_speed --rounds 5 --peer_python torch_env/bin/python
    python -m benchmarks.balancing_speed --tasks 16 --ways exact "all built" --memory
    python -m benchmarks.balancing_speed --tasks 16 --ways exact "single passes"

The peers run in another Python (`pip install torch torchjd[full] && pip install --no-deps LibMTL`).
Without --peer_python, only `mtl` is measured, and a line says so.
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
# Methods that store gradients, methods that need more than the losses, and methods that use single
# coordinates.
EXACT_ONLY = ("MoCo", "DBMTL", "ExcessMTL")
NEEDS_MORE = ("Clipped", "MoDo", "SDMGrad", "PCD")
BY_COORDINATE = ("GradDrop", "TrimmedMean")
METHODS = [name for name in methods.__all__ if name not in NEEDS_MORE]
DEFAULT = ["MGDA", "PCGrad", "CAGrad", "UPGrad", "NashMTL"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    """A column that passes a field on unchanged."""

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
        # Fetch the monitors, like a training run, so that TensorFlow computes them.
        self._fetches = (result.step, result.values)
        return {}

    def __call__(self, steps: int) -> float:
        """Return the mean seconds of a step, over some steps."""
        started, end = time.perf_counter(), self._step + steps
        while self._step < end:
            self._step, _ = self._session.run(self._fetches, {self._until: end})
        return (time.perf_counter() - started) / steps

    def trace(self) -> tf.compat.v1.RunMetadata:
        """Take a training step, and return TensorFlow's trace of all ops in the step."""
        metadata, feed = tf1.RunMetadata(), {self._until: self._step + 1}
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        self._step, _ = self._session.run(self._fetches, feed, options, metadata)
        return metadata

    def close(self) -> None:
        """Free the memory of the session."""
        self._session.close()


def a_model(network: str, num_tasks: int, part: types.Surgery) -> model.MultiTaskModel:
    """Return a model of a shared trunk, a binary head for each task, and Adam."""
    return model.MultiTaskModel(
        columns=[Given()],
        network=networks.SharedBottom(trunk=TRUNKS[network]),
        heads=[heads.Binary(name=f"task_{task}") for task in range(num_tasks)],
        update=update.Update(optimizer=optimizers.Adam()),
        surgery=part,
    )


def noise(network: str, num_tasks: int) -> tf.data.Dataset:
    """Return a data set that repeats one batch."""
    rng, shape = np.random.default_rng(0), INPUTS[network]
    inputs = {"x": rng.normal(size=shape).astype(np.float32)}
    labels = {f"task_{task}": rng.integers(0, 2, shape[0]) for task in range(num_tasks)}
    return tf.data.Dataset.from_tensors((inputs, labels)).cache().repeat()


def build_steps(network: str, num_tasks: int, way: str, part: types.Surgery, threads: int) -> Steps:
    """Return the training steps of one variant."""
    side_model = a_model(network, num_tasks, part)
    batches = functools.partial(noise, network, num_tasks)
    with LEFT_OUT.get(way, contextlib.nullcontext)():
        return Steps(side_model, batches, threads)


class Peers:
    """Measures LibMTL and torchjd, which run in another process."""

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
        """Return the mean seconds of a step; NaN if the peer lacks the method or fails."""
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
    """Yield {(project, method, way): a function from a number of steps to seconds of a step}."""
    ours = {
        ("mtl", name, way): build_steps(network, num_tasks, way, part, threads)
        for name, way, part in parts(names, [way for way in ways if way in WAYS])
    }
    theirs = {
        (peer, name, way): functools.partial(
            peers, peer=peer, network=network, tasks=num_tasks, method=name, way=way
        )
        for peer, of_peer in (PEER_WAYS if peers else {}).items()
        for name in (("Sum", *names) if peer == "torchjd" else names)
        for way in (("exact",) if name == "Sum" else [way for way in of_peer if way in ways])
    }
    yield {**ours, **theirs}
    for steps in ours.values():
        steps.close()


def parts(
    names: Sequence[str], ways: Sequence[str] = tuple(WAYS)
) -> Iterator[tuple[str, str, types.Surgery]]:
    """Yield the plain sum, and every method in every way that the method allows."""
    yield "Sum", "exact", surgery.Sum()
    for name in names:
        for way in ways:
            by_coordinate = name in BY_COORDINATE and way == "every 10 steps"
            if not by_coordinate and (not WAYS.get(way) or name not in EXACT_ONLY):
                part = surgery.Combine(method=getattr(methods, name)(), **WAYS[way])
                yield name, way, part


def medians(timed: dict, base: Callable, multiple: Callable, rounds: int, secs_each: float) -> dict:
    """Time all variants in turns, for several rounds.

    Args:
      timed: {variant: a function from a number of steps to seconds of a step}.
      base: a function from a variant to the variant in the denominator of the ratio.
      multiple: a function from a variant to a number that must divide the number of timed steps.
      rounds: the number of timings of every variant.
      secs_each: the approximate seconds of a timing.

    Returns:
      {variant: (median of the seconds of a step, sorted ratios of all rounds)}.
    """
    counts = {}
    for key, steps in timed.items():
        unit = multiple(key)
        steps(max(2, unit))
        rate = steps(max(2, unit))
        counts[key] = unit if math.isnan(rate) else math.ceil(secs_each / rate / unit) * unit
    times = [{key: timed[key](counts[key]) for key in timed} for _ in range(rounds)]
    return {
        key: (
            statistics.median(secs[key] for secs in times),
            sorted(secs[key] / secs[base(key)] for secs in times),
        )
        for key in timed
    }


def table(
    num_tasks: int, names: Sequence[str], ways: Sequence[str], timings: dict
) -> Iterator[str]:
    """Yield a row for each method, with ratios to the plain sum of the same project.

    After the ratio of a peer library, the row shows the peer's time divided by our time.
    """
    columns = [("mtl", way) for way in ways if way in WAYS]
    peers = PEER_WAYS if ("torchjd", "Sum", "exact") in timings else {}
    columns += [(peer, way) for peer, of_peer in peers.items() for way in of_peer if way in ways]
    bounds = {BUILT: f" (by arithmetic {(1 + 2 * num_tasks) / 3:.1f})"}
    bounds["every 10 steps"] = f" (aim {1 + 0.12 * num_tasks:.2f})"
    titles = [
        way + bounds.get(way, "") if p == "mtl" else f"{p}, {way} (its time / ours)"
        for p, way in columns
    ]
    yield f"| {num_tasks} tasks | {' | '.join(titles)} |"
    yield "|---|" + "---|" * len(columns)
    for name in names:
        cells = [_cell(timings, project, name, way) for project, way in columns]
        yield f"| {name} | {' | '.join(cells)} |"


def _cell(timings: dict, project: str, name: str, way: str) -> str:
    secs, ratios = timings.get((project, name, way), (math.nan, [math.nan]))
    if math.isnan(secs):
        return "-"
    cell = f"{statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}"
    ours = timings.get(("mtl", name, "exact" if way == AUTOGRAM else way))
    return cell if project == "mtl" or not ours else f"{cell} ({secs / ours[0]:.2f})"


def measure_peak(network: str, num_tasks: int, name: str, way: str, threads: int) -> None:
    """Print the peak memory of the tensors of a step in MiB.

    The process itself uses more memory, because TensorFlow reserves memory for later tensors.
    """
    part = {(n, w): part for n, w, part in parts([name] * (name != "Sum"))}[name, way]
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
    sizes = itertools.accumulate(record.alloc_bytes for record in records)
    print(max(sizes) / 2**20)


def peaks(
    network: str, num_tasks: int, names: Sequence[str], ways: Sequence[str], threads: int
) -> Iterator[str]:
    """Yield a table of the peak memory of a step, measured in a separate process for each cell."""
    yield f"| {num_tasks} tasks, tensors of a step, MiB | {' | '.join(ways)} |"
    yield "|---|" + "---|" * len(ways)
    for name in ("Sum", *names):
        cells = []
        for way in ways if name != "Sum" else ["exact"]:
            command = [sys.executable, "-m", "benchmarks.balancing_speed", "--threads"]
            command += [str(threads), "--measure", network, str(num_tasks), name, way]
            process = subprocess.run(command, capture_output=True, text=True, check=True)
            cells.append(f"{float(process.stdout):.0f}")
        yield f"| {name} | {' | '.join(cells)} |"


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser of the flags for rounds, seconds, tasks and threads."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="timings of each variant")
    parser.add_argument("--secs", type=float, default=0.5, help="approximate seconds of a timing")
    parser.add_argument("--tasks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--threads", type=int, default=2, help="threads of each variant")
    return parser


def main() -> None:
    """Print a table for each network and number of tasks."""
    parser = arguments(__doc__)
    parser.add_argument("--networks", nargs="+", choices=list(TRUNKS), default=list(TRUNKS))
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, "all"], default=DEFAULT)
    ways = [*WAYS, AUTOGRAM]
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways)
    parser.add_argument("--memory", action="store_true", help="also measure peak memory")
    parser.add_argument("--measure", nargs=4, help="only measure the peak memory of this variant")
    parser.add_argument("--peer_python", help="a Python with torch, torchjd and LibMTL")
    options = parser.parse_args()
    if options.measure:
        network, num_tasks, name, way = options.measure
        return measure_peak(network, int(num_tasks), name, way, options.threads)
    ways = [way for way in options.ways if way in WAYS]
    names = METHODS if options.methods == ["all"] else options.methods
    peers = Peers(options.peer_python, options.threads) if options.peer_python else None
    if peers is None:
        print("LibMTL and torchjd are skipped: --peer_python is not set.")
    for network in options.networks:
        for num_tasks in options.tasks:
            with sides(network, num_tasks, names, options.ways, options.threads, peers) as timed:
                times = medians(
                    timed,
                    base=lambda key: (BASES[key[0]], "Sum", "exact"),
                    multiple=lambda key: 10 if key[-1] == "every 10 steps" else 1,
                    rounds=options.rounds,
                    secs_each=options.secs,
                )
            plain = [
                f"{project} {times[project, 'Sum', 'exact'][0] * 1000:.1f} ms"
                for project in ("mtl", "torchjd")
                if (project, "Sum", "exact") in times
            ]
            print(f"\n{network}; a step with equal weights: {', '.join(plain)}\n", flush=True)
            print("\n".join(table(num_tasks, names, options.ways, times)), flush=True)
            if options.memory:
                print()
                for line in peaks(network, num_tasks, names, ways, options.threads):
                    print(line, flush=True)
    if peers:
        peers.close()
    return None


# Without a balancing method, LibMTL and torchjd run the same plain PyTorch step.
BASES = {"mtl": "mtl", "torchjd": "torchjd", "LibMTL": "torchjd"}

if __name__ == "__main__":
    main()
