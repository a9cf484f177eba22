"""Trains the models of `mtl` for `benchmarks.clients_speed`, by `verbs.train` with all hooks.

The rows come from arrays in memory or from CSV files, depending on `case["input"]`.
"""

import dataclasses
import tempfile
from collections.abc import Iterator
from typing import Any

import answering
import numpy as np
import tensorflow as tf

from mtl import experiment, features, heads, model, networks, spec, types, verbs
from mtl.data import csv, pipeline
from mtl.distribution import resources, settings
from mtl.files import storage
from mtl.optimization import optimizers, update


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrays(types.Source):
    """Rows in memory.

    Attributes:
      splits: {split: integers [rows, columns]}.
      names: the names of the columns.
    """

    splits: dict[str, np.ndarray]
    names: tuple[str, ...]

    def records(self, split: str) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self.splits[split])

    def decode(self, batch: Any, spec: spec.Spec, with_labels: bool) -> dict[str, tf.Tensor]:
        values = tf.unstack(tf.cast(batch, tf.int64), len(self.names), axis=1)
        return dict(zip(self.names, values, strict=True))

    def scan(self, split: str, spec: spec.Spec) -> Iterator[tuple[str, dict[str, int]]]:
        for index, row in enumerate(self.splits[split].tolist()):
            yield f"row {index}", dict(zip(self.names, row, strict=True))


def build_network(case: dict) -> types.Network:
    """Return the network with the settings of the case."""
    expert, tower = networks.MLP(layers=case["expert"]), networks.MLP(layers=case["tower"])
    if case["network"] == "MMoE":
        return networks.MMoE(expert=expert, num_experts=case["num_experts"], tower=tower)
    return networks.PLE(
        experts=[expert] * case["levels"],
        num_specific=case["num_specific"],
        num_shared=case["num_shared"],
        tower=tower,
    )


def build_source(case: dict) -> types.Source:
    """Return the source of the rows of the case."""
    if case["input"] == "CSV":
        return csv.Csv(files=case["csv"])
    ids, labels, test_ids, test_labels = answering.load_arrays(case)
    splits = {"train": np.hstack([ids, labels]), "test": np.hstack([test_ids, test_labels])}
    return Arrays(splits=splits, names=(*case["tables"], *case["tasks"]))


def build_experiment(case: dict) -> experiment.Experiment:
    """Return the experiment with the settings of the case, and with a summary for each epoch."""
    tasks, rows = case["tasks"], case["train_rows"]
    steps = rows // case["batch_size"]
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=build_source(case),
            spec=spec.Spec(
                features=dict.fromkeys(case["tables"], "int64"),
                labels=dict.fromkeys(tasks, "int64"),
            ),
            batch_size=case["batch_size"],
            # Other libraries also keep arrays in memory.
            cache=case["input"] == "arrays",
        ),
        model=model.MultiTaskModel(
            columns=[
                features.Identity(
                    names=[field],
                    size=size,
                    dimension=case["width"],
                    initial_stddev=case["initial_stddev"],
                )
                for field, size in case["tables"].items()
            ],
            network=build_network(case),
            heads=[heads.Binary(name=task) for task in tasks],
            update=update.Update(
                optimizer=getattr(optimizers, case["optimizer"])(learning_rate=case["rate"])
            ),
        ),
        run=experiment.Run(
            train_steps=steps * case["epochs"],
            checkpoint_steps=steps * case["epochs"],
            summary_steps=steps,
            seed=case["seed"],
        ),
        distribution=settings.Distribution(
            resources=resources.Resources(
                intra_op_threads=case["threads"], inter_op_threads=case["threads"]
            )
        ),
    )


def train(case: dict) -> tuple[float, np.ndarray]:
    """Return the seconds of all epochs but the first, and the probabilities of the test rows."""
    made = build_experiment(case)
    with tempfile.TemporaryDirectory() as model_dir:
        verbs.train(made, model_dir)
        times = {
            event.step: event.wall_time
            for file in storage.listed(model_dir, "events")
            for event in tf.compat.v1.train.summary_iterator(file)
            if any(value.tag == "steps_per_sec" for value in event.summary.value)
        }
        rows = list(verbs.predict(made, model_dir))
    probabilities = [[row[f"{task}/probability"] for task in case["tasks"]] for row in rows]
    return times[max(times)] - times[made.run.summary_steps], np.array(probabilities)


def main() -> None:
    """Answer all cases of the standard input."""
    answering.answer_cases(train)


if __name__ == "__main__":
    main()
