"""Measures steps per second of every strategy on this processor, and computes limits of workers.

For each strategy, the benchmark compares `verbs.train`, with all hooks, with a bare loop of
`session.run` on the same graph, devices and data: three hidden layers, four heads, Adam, and 64
rows in each step over all replicas. In graph mode, only an Estimator can run synchronous workers,
so the bare loop of workers is an Estimator without hooks that write files. "waiting" is the share
of the bare loop's time in which a step waits for its batch. The two programs of a row run one after
the other, `--side_rounds` times, and the table shows medians. --parameters trains nothing: it
computes the efficiency of up to 512 workers.

    python -m benchmarks.scaling --side_steps 500
    python -m benchmarks.scaling --parameters 1e8 --gigabytes_per_sec 25 --step_secs 0.4
"""

import contextlib
import dataclasses
import functools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import app, flags

from benchmarks import overhead
from launch import cluster as launch_cluster
from mtl import compat, distribution, experiment, features, verbs
from mtl.distribution import tf_config
from mtl.files import storage
from mtl.model import graph_options

tf1 = tf.compat.v1

_STEPS = flags.DEFINE_integer(
    "side_steps", 500, "The number of timed steps, after 100 warm-up steps."
)
_UNITS = flags.DEFINE_integer("units", 512, "The units of each of the three hidden layers.")
_SIDE = flags.DEFINE_string("side", None, "Only measure this program, in this process.")
_MODEL_DIR = flags.DEFINE_string("side_dir", None, "The folder of the training of --side.")
_PARAMETERS = flags.DEFINE_float("parameters", None, "Number of parameters of a computed model.")
_GIGABYTES = flags.DEFINE_float("gigabytes_per_sec", 25.0, "The bandwidth of a machine's link.")
_STEP_SECS = flags.DEFINE_float(
    "step_secs", 0.4, "Seconds of a step of the whole batch on one worker."
)

_ROUNDS = flags.DEFINE_integer("side_rounds", 3, "The number of runs of each program.", 1)

_WARM_UP = 100
_ROW = "{:<22} {:>8} {:>10} {:>10} {:>8} {:>8}"

# {strategy: (workers, parameter servers)}
_SIDES = {
    distribution.ONE: (1, 0),
    distribution.MIRRORED: (1, 0),
    distribution.WORKERS: (2, 0),
    distribution.SERVERS: (1, 1),
}
_STRATEGIES = flags.DEFINE_multi_enum(
    "strategy", list(_SIDES), list(_SIDES), "The strategy to measure; may be repeated."
)


def efficiency(
    workers: int, parameters: float, gigabytes_per_sec: float, step_secs: float
) -> tuple[float, float]:
    """Compute the limits of synchronous workers that divide a batch.

    A ring of N workers sends 2 (N - 1) / N times the gradients, of 4 bytes for each parameter.

    Args:
      workers: the number of workers, each on its own machine.
      parameters: the number of parameters of the model.
      gigabytes_per_sec: the bandwidth of the link of each machine.
      step_secs: the seconds of a step of the whole batch on a single worker.

    Returns:
      The seconds of a step, and the share of them without communication.
    """
    compute = step_secs / workers
    bytes_sent = 8 * parameters * (workers - 1) / workers
    secs = compute + bytes_sent / (gigabytes_per_sec * 1e9)
    return secs, compute / secs


def _place(strategy: str) -> distribution.Distribution:
    devices = ["/cpu:0", "/cpu:1"] if strategy == distribution.MIRRORED else []
    return distribution.Distribution(strategy=strategy, devices=devices)


def trained(strategy: str, steps: int, model_dir: str) -> float:
    """Train a whole run; return steps per second between its first and last summary."""
    steps_per_call = experiment.Run.steps_per_call  # With a strategy, a call is 1 step.
    settings = overhead.an_experiment(_UNITS.value, steps_per_call, _WARM_UP + steps)
    verbs.train(dataclasses.replace(settings, distribution=_place(strategy)), model_dir)
    times = {
        event.step: event.wall_time
        for file in storage.listed(model_dir, "events")
        for event in tf1.train.summary_iterator(file)
        if any(value.tag == "steps_per_sec" for value in event.summary.value)
    }
    first, last = min(times), max(times)
    return (last - first) / (times[last] - times[first])


def bare(strategy: str, steps: int) -> tuple[float, float]:
    """Run a bare loop of session calls that fetch the train op.

    Returns:
      Steps per second, and the share of the time in which steps wait for their input.
    """
    settings = _place(strategy)
    place = settings.find_place()
    tf_strategy, config = settings.build_strategy(place)
    an_experiment = overhead.an_experiment(_UNITS.value, 1, steps)
    server = place.cluster and tf.distribute.Server(
        place.cluster.jobs, place.cluster.job, place.cluster.index
    )
    if place.job == tf_config.SERVER:
        server.join()

    def model_fn(batch):
        spec = an_experiment.model.model_fn(
            *batch,
            compat.estimator.ModeKeys.TRAIN,
            options=graph_options.GraphOptions(
                statistics=features.load_statistics(tempfile.mkdtemp())
            ),
        )
        return spec.train_op

    device = server and tf1.train.replica_device_setter(
        cluster=place.cluster.jobs, worker_device=f"/job:{place.cluster.job}"
    )
    with tf.Graph().as_default(), tf1.device(device), contextlib.ExitStack() as stack:
        if tf_strategy:
            stack.enter_context(tf_strategy.scope())
        tf1.train.create_global_step()
        size = an_experiment.data.batch_size // place.replicas
        dataset = an_experiment.data.dataset("train", training=True, seed=1, batch_size=size)
        if tf_strategy:
            iterator = tf_strategy.make_input_fn_iterator(lambda _: dataset)
            batch, wait_secs = _waiting(iterator.get_next, tf_strategy.experimental_local_results)
            replica_steps = tf_strategy.extended.call_for_each_replica(model_fn, args=(batch,))
            train_op, start = tf_strategy.group(replica_steps), iterator.initialize()
        else:
            iterator = tf1.data.make_initializable_iterator(dataset)
            batch, wait_secs = _waiting(iterator.get_next, lambda value: [value])
            train_op, start = model_fn(batch).op, iterator.initializer
        session = stack.enter_context(tf1.Session(server.target if server else "", config=config))
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        session.run(start)
        for _ in range(_WARM_UP):
            session.run([train_op, wait_secs])
        started = time.perf_counter()
        waits = [session.run([train_op, wait_secs])[1] for _ in range(steps)]
        secs = time.perf_counter() - started
        return steps / secs, sum(waits) / secs


def _waiting(
    get_next: Callable[[], Any], of_replicas: Callable[[Any], Sequence[tf.Tensor]]
) -> tuple[Any, tf.Tensor]:
    """Return a batch, and the seconds until the batch is ready."""
    started = tf.timestamp()
    with tf.control_dependencies([started]):
        batch = get_next()
    parts = [part for value in tf.nest.flatten(batch) for part in of_replicas(value)]
    with tf.control_dependencies(parts):
        return batch, tf.timestamp() - started


class _Timer(tf1.train.SessionRunHook):
    """Measures the seconds between the end of a session call and the end of the last one.

    Args:
      first: the number of the call at whose end the time starts.

    Attributes:
      secs: the seconds, once the training is over.
    """

    def __init__(self, first: int):
        self._calls_left = first

    def after_run(self, run_context, run_values):
        self._calls_left -= 1
        if self._calls_left == 0:
            self._started = time.perf_counter()

    def end(self, session):
        self.secs = time.perf_counter() - self._started


def plain_estimator(strategy: str, steps: int) -> tuple[float, float]:
    """Train an Estimator that writes nothing in a cluster; return steps per second, and NaN.

    NaN takes the place of the share of waiting, which an Estimator does not show.
    """
    settings = _place(strategy)
    place = settings.find_place()
    an_experiment = overhead.an_experiment(_UNITS.value, 1, steps)
    timer = _Timer(_WARM_UP)

    def input_fn():
        size = an_experiment.data.batch_size // place.replicas
        return an_experiment.data.dataset("train", training=True, seed=1, batch_size=size)

    with tempfile.TemporaryDirectory() as folder:
        config = compat.estimator.RunConfig(
            train_distribute=settings.build_strategy(place)[0],
            save_checkpoints_steps=None,
            save_checkpoints_secs=None,
            save_summary_steps=None,
            log_step_count_steps=None,
        )
        model_fn = functools.partial(
            an_experiment.model.model_fn,
            options=graph_options.GraphOptions(statistics=features.load_statistics(folder)),
        )
        compat.estimator.train_and_evaluate(
            compat.estimator.Estimator(model_fn, folder, config),
            compat.estimator.TrainSpec(input_fn, _WARM_UP + steps, hooks=[timer]),
            compat.estimator.EvalSpec(input_fn),
        )
    return steps / timer.secs, float("nan")


def _measure(strategy: str, kind: str) -> list[float]:
    """Run a program in separate processes, and return the figures that the first process prints."""
    workers, servers = _SIDES[strategy]
    environments = launch_cluster.environments(workers, servers, evaluator=False)
    if workers + servers == 1:
        environments = {"alone": {}}
    with tempfile.TemporaryDirectory() as model_dir:
        flags_ = [f"--side={kind},{strategy}", f"--side_dir={model_dir}"]
        flags_ += [f"--side_steps={_STEPS.value}", f"--units={_UNITS.value}"]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.scaling", *flags_],
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
                stdout=subprocess.PIPE,
                text=True,
            )
            for environment in environments.values()
        ]
        figures = processes[0].communicate()[0].split()
        for process in processes[1:]:
            if kind == "bare" and servers:
                process.kill()  # A parameter server never ends.
            process.wait()
    return [float(value) for value in figures[-2:]]


def _side(kind: str, strategy: str) -> None:
    if kind == "ours":
        print(trained(strategy, _STEPS.value, _MODEL_DIR.value))
    else:
        loop = plain_estimator if strategy == distribution.WORKERS else bare
        print(*loop(strategy, _STEPS.value))


def _calculate() -> None:
    print(f"{'workers':>8} {'s/step':>10} {'speed-up':>10} {'efficiency':>10}")
    for workers in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        settings = _PARAMETERS.value, _GIGABYTES.value, _STEP_SECS.value
        secs, share = efficiency(workers, *settings)
        print(f"{workers:>8} {secs:>10.4f} {_STEP_SECS.value / secs:>10.1f} {share:>10.0%}")


def main(_) -> None:
    """Print the table of strategies, or the table of computed efficiencies."""
    if _PARAMETERS.value:
        _calculate()
        return
    if _SIDE.value:
        _side(*_SIDE.value.split(","))
        return
    print(_ROW.format("strategy", "replicas", "steps/s", "bare", "ratio", "waiting"))
    for strategy in _STRATEGIES.value:
        workers, _ = _SIDES[strategy]
        replicas = 2 if strategy == distribution.MIRRORED else workers
        rounds = [
            (_measure(strategy, "ours")[-1], *_measure(strategy, "bare"))
            for _ in range(_ROUNDS.value)
        ]
        ours, loop, waiting = map(statistics.median, zip(*rounds, strict=True))
        ratio = statistics.median(ours / loop for ours, loop, _ in rounds)
        share = "" if math.isnan(waiting) else f"{waiting:.1%}"
        row = f"{ours:.0f}", f"{loop:.0f}", f"{ratio:.2f}", share
        print(_ROW.format(strategy, replicas, *row), flush=True)


if __name__ == "__main__":
    app.run(main)
