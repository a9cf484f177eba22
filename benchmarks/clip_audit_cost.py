"""Measures the time of a step with the clip audit, or with clipped examples, as ratios.

    python -m benchmarks.clip_audit_cost --rounds 5

The networks are three layers of 512 units on images of 28 by 28 pixels, a convnet with and without
batch norm, and three layers of 512 units on 12 embedding tables. Each network runs with one and two
tasks and batches of 256. All variants are timed in turns, and the table shows medians over the
rounds. Batch norm mixes examples, so networks with batch norm have no row for clipped examples.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf

from benchmarks import rows
from mtl import compat, features, heads, model, networks
from mtl.balancing import example_clipping
from mtl.model import graph_options
from mtl.optimization import optimizers, update
from mtl.runs import fitting
from mtl.tools import clip_audit
from mtl.tools.clip_audit import numbered, observing, visits

tf1 = tf.compat.v1

_FIELDS, _IDS = 12, 10_000
_TIED = "convnet with batch norm"


def _networks() -> dict[str, tuple[list, networks.SharedBottom]]:
    """Return {row: (columns, network)}."""
    names = [f"id_{field}" for field in range(_FIELDS)]
    wide = networks.SharedBottom(trunk=networks.MLP(layers=[512, 512, 512]))
    images = [features.Image(names=["image"])]
    ids = [features.Identity(names=names, size=_IDS, dimension=16)]
    return {
        "512, 512, 512 on images": (images, wide),
        _TIED: (images, networks.SharedBottom(trunk=networks.Convnet())),
        "convnet without": (
            images,
            networks.SharedBottom(trunk=networks.Convnet(batch_norm=False)),
        ),
        "12 tables of 10,000 rows": (ids, wide),
    }


def _batch(size: int, tasks: int) -> tuple[dict, dict]:
    rng = np.random.default_rng(0)
    inputs = {f"id_{field}": rng.integers(0, _IDS, size) for field in range(_FIELDS)}
    inputs["image"] = rng.integers(0, 255, [size, 28, 28, 1]).astype(np.uint8)
    inputs[numbered.ROW] = np.arange(size)
    return inputs, {f"task_{task}": rng.integers(0, 10, size) for task in range(tasks)}


class _Steps:
    """Steps of a model, with or without an audit, ready to be timed."""

    def __init__(self, made: model.MultiTaskModel, batch: tuple, folder: str, is_audited: bool):
        statistics_ = fitting.load_statistics(folder)
        audit = clip_audit.ClipAudit()
        record = visits.Record(folder, audit)
        observe = audit.make_observer(made, statistics_, record) if is_audited else None
        with tf.Graph().as_default():
            tf1.train.create_global_step()
            dataset = tf.data.Dataset.from_tensors(batch).repeat()
            inputs = tf1.data.make_one_shot_iterator(dataset).get_next()
            mode = compat.estimator.ModeKeys.TRAIN
            extensions = [observing.Observing(observe)] if observe else []
            made_spec = made.model_fn(
                *inputs,
                mode,
                options=graph_options.GraphOptions(statistics=statistics_, extensions=extensions),
            )
            self._session = tf1.Session()
            self._session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
            self._step = self._session.make_callable(made_spec.train_op)

    def secs(self, steps: int) -> float:
        """Return the mean seconds of a step."""
        start = time.perf_counter()
        for _ in range(steps):
            self._step()
        return (time.perf_counter() - start) / steps


def _model(name: str, tasks: int) -> model.MultiTaskModel:
    columns, network = _networks()[name]
    return model.MultiTaskModel(
        columns=columns,
        network=network,
        heads=[heads.MultiClass(name=f"task_{task}", classes=10) for task in range(tasks)],
        update=update.Update(optimizer=optimizers.LazyAdam()),
    )


def _row(name: str, tasks: int, options: argparse.Namespace) -> list[str]:
    plain_model, batch = _model(name, tasks), _batch(options.batch_size, tasks)
    clipping = example_clipping.ExampleClipping(max_norm=1.0)
    kinds = [(plain_model, False), (plain_model, True)]
    if name != _TIED:
        kinds.append((dataclasses.replace(plain_model, surgery=clipping), False))
    with tempfile.TemporaryDirectory() as folder:
        sides = [_Steps(kind, batch, folder, is_audited) for kind, is_audited in kinds]
        for side in sides:
            side.secs(3)
        secs = [[side.secs(options.steps) for side in sides] for _ in range(options.rounds)]
    plain, *other_times = map(statistics.median, zip(*secs, strict=True))
    ratios = [f"{other / plain:.2f}" for other in other_times]
    return [name, str(tasks), f"{1000 * plain:.2f}", *ratios, *["-"] * (2 - len(ratios))]


def main() -> None:
    """Time all variants, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--networks", nargs="+", default=list(_networks()))
    options = parser.parse_args()
    lines = [_row(name, tasks, options) for name in options.networks for tasks in (1, 2)]
    header = ["network", "tasks", "plain step, ms", "with the audit", "examples clipped"]
    print(rows.markdown(header, lines))


if __name__ == "__main__":
    main()
