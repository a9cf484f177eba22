"""One pass over held-out rows: what the heads predict beside what is true, and the rows' fields.

seen = held_out.predict_rows(experiment, "runs/digits", "runs/digits/best/model.ckpt-750", 100_000)
seen.tasks["digit"].target, seen.tasks["digit"].predicted, seen.fields["age"]
"""

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mtl import experiment as experiment_lib
from mtl import types
from mtl.compat import eager
from mtl.data import pipeline
from mtl.runs import diagnosis, estimators, fitting

BINARY, CLASSES, NUMBER = "binary", "classes", "number"
_LEAST = 1e-7


class Rows(NamedTuple):
    """What a head says of each row, [N] each.

    Attributes:
      kind: "binary", "classes" or "number".
      target: the class id, or the number; 0 where the label is missing.
      predicted: the same as it is predicted.
      score: the probability of class 1 of a binary task, of the predicted class of several; the
        number itself.
      error: minus the logarithm of the probability of what is true, or the distance from it.
      weight: that of the label in the metrics; 0 where it is missing.
    """

    kind: str
    target: np.ndarray
    predicted: np.ndarray
    score: np.ndarray
    error: np.ndarray
    weight: np.ndarray


class Seen(NamedTuple):
    """What a pass saw.

    Attributes:
      rows: how many.
      is_whole: whether the split has no more.
      tasks: {task: what its head says}, of heads whose predictions have one of the kinds.
      fields: {feature of one value a row: its values, [N]}.
    """

    rows: int
    is_whole: bool
    tasks: dict[str, Rows]
    fields: dict[str, np.ndarray]


def predict_rows(
    experiment: experiment_lib.Experiment, model_dir: str, checkpoint: str, most_rows: int
) -> Seen:
    """Predict the first `most_rows` rows of the split that the run evaluates.

    Raises:
      UserError: the split cannot be read, or the checkpoint does not fit the settings.
    """
    data, model = experiment.data, experiment.model
    single = [name for name, field in data.spec.feature_fields.items() if not field.shape]
    labelled = [name for name, field in data.spec.label_fields.items() if not field.shape]
    keep = [*single, *labelled]
    limit = math.ceil(most_rows / data.batch_size)
    kept: dict[str, list[np.ndarray]] = {name: [] for name in single}
    found: dict[str, list[Rows]] = {}
    rows = batches = 0
    with diagnosis.explain_run_errors(data, model, checkpoint, data.eval_split):
        estimator = estimators.build_estimator(experiment, model_dir, checkpoint, keep)
        heads = model.fitted(fitting.load_statistics(model_dir)).heads
        predicted = estimator.predict(
            functools.partial(_batches, data.keep_fields(keep), limit + 1),
            checkpoint_path=checkpoint,
            yield_single_examples=False,
        )
        for batch in itertools.islice(predicted, limit):
            batches += 1
            rows += len(next(iter(batch.values())))
            for name in single:
                kept[name].append(batch[name])
            with eager.execute_eagerly():  # Between two batches Estimator's graph is the default.
                labels = {name: tf.constant(batch[name]) for name in labelled}
                for head in heads:
                    said = _read(head, batch, labels)
                    if said is not None:
                        found.setdefault(head.name, []).append(said)
        is_whole = batches < limit or next(predicted, None) is None
    return Seen(
        rows=rows,
        is_whole=is_whole,
        tasks={task: _join(parts) for task, parts in found.items()},
        fields={name: np.concatenate(parts) for name, parts in kept.items() if parts},
    )


def _batches(data: pipeline.Pipeline, limit: int) -> tf.data.Dataset:
    batches = data.one_pass(data.eval_split).take(limit)
    return batches.map(lambda features, labels: {**features, **labels})


def _read(head: types.Head, batch: Mapping[str, Any], labels: types.Tensors) -> Rows | None:
    """Return what a head says of a batch; None of one whose predictions are of no known kind."""
    if not isinstance(head, types.WeighingHead) or head.field not in labels:
        return None
    said = {
        name.removeprefix(f"{head.name}/"): value
        for name, value in batch.items()
        if name.startswith(f"{head.name}/")
    }
    target, present = (tensor.numpy() for tensor in head.targets(labels[head.field]))
    weight = head.row_weights(labels).numpy()
    if target.ndim != 1 or present.ndim != 1:
        return None
    target = np.where(present, target, 0)
    if "class_id" in said and "probability" in said:
        score = said["probability"]
        true = np.where(target > 0.5, score, 1 - score)
        return _rows(BINARY, target, said["class_id"], score, true, weight)
    if "class_id" in said and "probabilities" in said:
        probabilities, ids = said["probabilities"], target.astype(int)
        chosen = said["class_id"]
        score = np.take_along_axis(probabilities, chosen[:, np.newaxis], 1)[:, 0]
        true = np.take_along_axis(probabilities, ids[:, np.newaxis], 1)[:, 0]
        return _rows(CLASSES, target, chosen, score, true, weight)
    if "value" in said and said["value"].ndim == 1:
        value = np.asarray(said["value"], np.float64)
        error = np.abs(value - target)
        return Rows(NUMBER, target.astype(np.float64), value, value, error, weight)
    return None


def _rows(
    kind: str, target: Any, predicted: Any, score: Any, true: Any, weight: np.ndarray
) -> Rows:
    error = -np.log(np.maximum(np.asarray(true, np.float64), _LEAST))
    return Rows(kind, target.astype(np.int64), predicted, np.asarray(score), error, weight)


def _join(parts: list[Rows]) -> Rows:
    columns = zip(*(part[1:] for part in parts), strict=True)
    return Rows(parts[0].kind, *(np.concatenate(column) for column in columns))
