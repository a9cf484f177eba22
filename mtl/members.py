"""What the processes of a cluster do beside the chief: work, hold parameters, evaluate.

with members.heartbeat(cluster, experiment, model_dir) as beat:
    members.serve(cluster, beat)                       # until the chief is done
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from mtl import cluster as cluster_lib
from mtl import compat, evaluation
from mtl.monitoring import heartbeat as heartbeat_lib
from mtl.monitoring import interruption as interruption_lib
from mtl.monitoring import run_directory

if TYPE_CHECKING:
    from mtl import experiment as experiment_lib

tf1 = tf.compat.v1

CHIEF, TRAINING = "chief-0", "training"
# How long a worker has to end by itself once the chief is done.
_GRACE_SECS = 5.0


class NoHeartbeat(contextlib.AbstractContextManager):
    """Of a process alone, which nobody waits for."""

    def __exit__(self, *error) -> None:
        pass

    def say(self, phase: str, **more: Any) -> None:
        pass


def heartbeat(
    cluster: cluster_lib.Cluster | None,
    experiment: "experiment_lib.Experiment",
    model_dir: str,
) -> heartbeat_lib.Heartbeat | NoHeartbeat:
    """The signs of life of this process, and its watch over others."""
    if cluster is None:
        return NoHeartbeat()
    timeout = experiment.distribution.timeout_secs
    return heartbeat_lib.Heartbeat(model_dir, cluster.name, cluster.watched, timeout)


def train(
    cluster: cluster_lib.Cluster | None,
    estimator: compat.estimator.Estimator,
    spec: compat.estimator.TrainSpec,
) -> None:
    """Trains; in a cluster beside the other processes."""
    if cluster is None:
        estimator.train(spec.input_fn, max_steps=spec.max_steps)
    else:
        unused = compat.estimator.EvalSpec(spec.input_fn)
        compat.estimator.train_and_evaluate(estimator, spec, unused)


def serve(cluster: cluster_lib.Cluster, beat: heartbeat_lib.Heartbeat) -> None:
    """Holds parameters until the chief is done."""
    server = tf.distribute.Server(cluster.jobs, cluster.job, cluster.index)
    while not beat.is_done(CHIEF):
        time.sleep(0.2)
    del server


def evaluate_all(
    evaluator: evaluation.Evaluator, model_dir: str, beat: heartbeat_lib.Heartbeat
) -> dict[str, Any]:
    """Evaluates every checkpoint once, until the chief is done and none is left."""
    beat.wait_for(CHIEF, TRAINING)
    while True:
        is_last = beat.is_done(CHIEF)
        for checkpoint in run_directory.saved(model_dir):
            if run_directory.step_in_name(checkpoint) > evaluator.keeper.last_step:
                evaluator(checkpoint)
        if is_last:
            return evaluator.metrics or {}
        time.sleep(0.5)


@contextlib.contextmanager
def ending_with_chief(beat: heartbeat_lib.Heartbeat) -> Iterator[None]:
    """Ends a worker that trains by itself after the chief is done, also where it has no session.

    The servers end with the chief, and a session that waits for them would do so for ever: that of
    a worker that started late, or that was in the middle of a step.
    """
    ended = threading.Event()

    def watch() -> None:
        while not beat.is_done(CHIEF):
            if ended.wait(0.2):
                return
        if not ended.wait(_GRACE_SECS):
            beat.leave()

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class Following(tf1.train.SessionRunHook):
    """Ends a worker that trains by itself once the chief is done, or when it is asked to stop."""

    def __init__(self, beat: heartbeat_lib.Heartbeat, interruption: interruption_lib.Interruption):
        self._beat, self._interruption = beat, interruption

    def after_run(self, run_context, run_values):
        if self._interruption.requested:
            self._interruption.leave("and left to the others")
        if self._beat.is_done(CHIEF):
            run_context.request_stop()
