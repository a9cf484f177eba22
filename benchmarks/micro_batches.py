"""Compares peak memory and time of a step with micro-batches and a step with the whole batch.

    python -m benchmarks.micro_batches --batch_size 8192

Each row of the table is measured in a separate process. Peak memory is the peak resident memory
minus the memory before the first step.
"""

import argparse
import resource
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

from mtl import compat, features, heads, model, networks
from mtl.balancing import methods, surgery
from mtl.model import graph_options
from mtl.optimization import optimizers, update

tf1 = tf.compat.v1

_TASKS = 4
_STEPS = 5
_SURGERIES = {
    "sum": surgery.Sum(),
    "PCGrad": surgery.Combine(method=methods.PCGrad()),
    "PCGrad on the representation": surgery.Combine(method=methods.PCGrad(), on="representation"),
}


def _step(part: str, batch_size: int, slices: int) -> tuple[tf.Operation, model.MultiTaskModel]:
    network = networks.SharedBottom(trunk=networks.MLP(layers=[512] * 6))
    mtl = model.MultiTaskModel(
        columns=[features.Numeric(names=["x"], normalization="none")],
        network=network,
        heads=[heads.Regression(name=f"task_{n}", label="y") for n in range(_TASKS)],
        update=update.Update(optimizer=optimizers.SGD(learning_rate=1e-3)),
        surgery=_SURGERIES[part],
    )
    spec = mtl.model_fn(
        {"x": tf.random.stateless_normal([batch_size, 128], [1, 2])},
        {"y": tf.random.stateless_normal([batch_size], [3, 4])},
        compat.estimator.ModeKeys.TRAIN,
        options=graph_options.GraphOptions(
            statistics=features.Statistics(directory="", entries={}), slices=slices
        ),
    )
    return spec.train_op


def _peak() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _measure(part: str, batch_size: int, slices: int) -> None:
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        train_op = _step(part, batch_size, slices)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            before, secs = _peak(), []
            for _ in range(_STEPS):
                start = time.perf_counter()
                session.run(train_op)
                secs.append(time.perf_counter() - start)
    print(_peak() - before, np.median(secs[1:]))


def main() -> None:
    """Measure all rows, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch_size", type=int, default=8192)
    parser.add_argument("--slices", type=int, nargs="+", default=[1, 4, 16])
    help_text = "only measure this row, in this process"
    parser.add_argument("--measure", nargs=2, metavar=("SURGERY", "SLICES"), help=help_text)
    options = parser.parse_args()
    if options.measure:
        return _measure(options.measure[0], options.batch_size, int(options.measure[1]))
    print("| surgery | slices | peak memory, MiB | step, ratio to one slice |\n|---|---|---|---|")
    for part in _SURGERIES:
        whole = None
        for slices in options.slices:
            command = [sys.executable, "-m", "benchmarks.micro_batches"]
            command += ["--batch_size", str(options.batch_size), "--measure", part, str(slices)]
            process = subprocess.run(command, capture_output=True, text=True, check=True)
            memory, secs = map(float, process.stdout.split())
            whole = whole or secs
            print(f"| {part} | {slices} | {memory:,.0f} | {secs / whole:.2f} |", flush=True)
    return None


if __name__ == "__main__":
    main()
