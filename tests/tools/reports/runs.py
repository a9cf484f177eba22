"""Runs without training: settings of `tiny`, and scalars that are made up."""

import dataclasses

import numpy as np

from mtl import heads
from mtl.monitoring import event_files
from mtl.tools.reports import held_out, record
from tests import tiny


def make(name="runs/a", metrics=None, experiment=None, training=(), step=40, **best):
    """A run that was evaluated once, at step 40, and found `metrics`."""
    evaluations = {tag: {40: value} for tag, value in (metrics or {}).items()}
    return record.Run(
        experiment=experiment or tiny.make(),
        model_dir=name,
        training=event_files.Record(dict(training), {}),
        evaluations=event_files.Record(evaluations, {}),
        best={"step": 40, **best} if metrics else {},
        step=step,
        is_training=False,
        doubts=[],
    )


def seen_rows(tasks, count):
    """A pass over so many rows of binary tasks, with a field of ten values."""
    rng = np.random.default_rng(1)
    found = {}
    for task in tasks:
        target, score = rng.integers(0, 2, count), rng.random(count)
        error = -np.log(np.where(target, score, 1 - score))
        guessed = (score > 0.5).astype(int)
        found[task] = held_out.Rows("binary", target, guessed, score, error, np.ones(count))
    return held_out.Seen(count, count, found, {"job": rng.integers(0, 10, count)})


def of_many_tasks(tasks, evaluations, steps=10):
    """A run of binary tasks with so many evaluations of 12 metrics, and as many summaries."""
    made = tiny.make(train_steps=evaluations * steps)
    names = [f"task_{i}" for i in range(tasks)]
    own = [heads.Binary(name=name, label="sign") for name in names]
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, heads=own))
    rng, at = np.random.default_rng(0), [steps * (i + 1) for i in range(evaluations)]

    def curve():
        return dict(zip(at, rng.random(len(at)).tolist(), strict=True))

    metrics = ["auc", "pr_auc", "accuracy", "accuracy_baseline", "precision", "recall"]
    metrics += ["average_loss", "label_mean", "prediction_mean", "calibration"]
    metrics += ["calibration_error", "nan_predictions"]
    found = {f"{name}/{metric}": curve() for name in names for metric in metrics}
    trained = {f"{name}/loss": curve() for name in names}
    trained |= {f"weight/{name}": curve() for name in names}
    trained |= {tag: curve() for tag in ("loss", "learning_rate", "gradient_norm")}
    run = make(experiment=made, training=trained.items(), step=at[-1])
    evaluations = event_files.Record(found, {})
    return dataclasses.replace(run, evaluations=evaluations, best={"step": at[-1]})
