"""Computes predictions for held-out rows, and collects labels and fields of the rows.

seen = held_out.predict_rows(experiment, "runs/digits", "runs/digits/best/model.ckpt-750", 100_000)
seen.tasks["digit"].target, seen.tasks["digit"].predicted, seen.fields["age"]
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mtl import deferred, types
from mtl import experiment as experiment_lib
from mtl.data import pipeline
from mtl.deferred import tf
from mtl.heads import base
from mtl.runs import diagnosis, estimators, fitting, kept_fields
from mtl.tf_internals import eager
from mtl.tools.explaining import drawn_rows

with deferred.imports():
    from mtl.runs import measured

BINARY, CLASSES, NUMBER = "binary", "classes", "number"
# The least probability in log losses. The log loss of a probability of 0 would be infinite.
_LEAST = 1e-7
_UNLABELLED = ("log_density", "score")

# The hashes of all fields of each row; lists and images are hashed, but not returned.
_HASHES = "\0hashes"

_Kind = TypeVar("_Kind")


class Rows(NamedTuple):
    """The labels and predictions of a head for N rows. All arrays have the shape [N].

    Attributes:
      kind: "binary", "classes" or "number".
      target: the true class id or number; 0 if the label is missing.
      predicted: the predicted class id or number.
      score: the probability of class 1 for a binary task, the probability of the predicted class
        for several classes, or the predicted number.
      error: for classes, minus the logarithm of the predicted probability of the true class; for
        numbers, the absolute difference between prediction and label.
      weight: the weight of the label in the metrics; 0 if the label is missing.
    """

    kind: str
    target: np.ndarray
    predicted: np.ndarray
    score: np.ndarray
    error: np.ndarray
    weight: np.ndarray


class Labels(NamedTuple):
    """The labels and predictions of a head with C labels in each of N rows.

    Attributes:
      entries: the C labels of all N rows. Each of the N C labels has an entry, like a row of a
        binary head.
      errors: the mean error over the labels of each row, weighted by the label weights, [N].
      weights: the sum of the label weights in each row, [N].
    """

    entries: Rows
    errors: np.ndarray
    weights: np.ndarray


class Unlabelled(NamedTuple):
    """The predictions of a head without labels for N rows.

    Attributes:
      name: the name of the prediction: "log_density" or "score".
      values: the predictions, [N].
    """

    name: str
    values: np.ndarray


class Seen(NamedTuple):
    """The predictions, labels and fields of held-out rows.

    Attributes:
      rows: the number of rows that were predicted.
      total: the number of rows in the split.
      tasks: {task: labels and predictions}, for heads with one label in each row that predict
        classes or numbers.
      fields: {feature: its values in the N rows, [N]}, for features with one value in each row.
      labels: {task: labels and predictions}, for heads with several labels in each row.
      unlabelled: {task: predictions}, for heads that predict densities or scores without labels.
      hashes: {field and type: the number of rows, and their hash}, as in `best.json`; {} if the
        rows are a sample.
    """

    rows: int
    total: int
    tasks: dict[str, Rows]
    fields: dict[str, np.ndarray]
    labels: dict[str, Labels] = {}
    unlabelled: dict[str, Unlabelled] = {}
    hashes: Mapping[str, str] = {}

    @property
    def is_whole(self) -> bool:
        """True if all rows of the split were predicted."""
        return self.rows == self.total


def predict_rows(
    experiment: experiment_lib.Experiment, model_dir: str, checkpoint: str, most_rows: int
) -> Seen:
    """Predict the evaluation split of a run, or a random sample of `most_rows` rows.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      checkpoint: the path of the checkpoint.
      most_rows: the largest number of rows to predict.

    Raises:
      UserError: the split cannot be read, or the checkpoint does not fit the settings.
    """
    data, model = experiment.data, experiment.model
    scalar_names = _list_scalars(experiment)
    label_names = _list_labels(experiment)
    keep = [*scalar_names, *label_names]
    values_of: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    parts_of: dict[str, list[Any]] = collections.defaultdict(list)
    rows, hashes = 0, measured.Rows()
    with diagnosis.explain_run_errors(data, model, checkpoint, data.eval_split):
        sample = drawn_rows.draw(data, data.eval_split, most_rows, experiment.run.seed)
        sample_data = drawn_rows.keep(data, data.eval_split, sample)
        estimator = estimators.build_estimator(experiment, model_dir, checkpoint, [*keep, _HASHES])
        heads = model.fitted(fitting.load_statistics(model_dir)).heads
        batches = estimator.predict(
            functools.partial(_read_batches, sample_data, hashes),
            checkpoint_path=checkpoint,
            yield_single_examples=False,
        )
        for batch in batches:
            rows += len(batch[_HASHES])
            hashes.add(batch[_HASHES])
            for name in scalar_names:
                values_of[name].append(batch[name])
            with eager.execute_eagerly():  # The default graph is Estimator's.
                labels = {name: kept_fields.read_batch(batch, name) for name in label_names}
                for head in heads:
                    parts_of[head.name].append(_read_head(head, batch, labels))
    results = {task: _join_parts(parts) for task, parts in parts_of.items()}
    return Seen(
        rows=rows,
        total=sample.total,
        tasks=_keep_kind(results, Rows),
        fields={name: np.concatenate(parts) for name, parts in values_of.items()},
        labels=_keep_kind(results, Labels),
        unlabelled=_keep_kind(results, Unlabelled),
        hashes=hashes.describe_fields() if rows == sample.total else {},
    )


def _list_scalars(experiment: experiment_lib.Experiment) -> list[str]:
    """Return the names of features with one value in each row, which can form slices."""
    fields = experiment.data.spec.feature_fields
    return [name for name, field in fields.items() if not field.shape]


def _keep_kind(results: Mapping[str, Any], kind: type[_Kind]) -> dict[str, _Kind]:
    return {task: result for task, result in results.items() if isinstance(result, kind)}


def _list_labels(experiment: experiment_lib.Experiment) -> list[str]:
    """Return the names of labels with one value in each row, and of labels that a head reads."""
    fields = experiment.data.spec.label_fields
    several = [getattr(head, "field", None) for head in experiment.model.heads]
    return [name for name, field in fields.items() if not field.shape or name in several]


def _read_batches(data: pipeline.Pipeline, hashes: measured.Rows) -> tf.data.Dataset:
    """Return the batches of the evaluation split, {field: [B, ...]}, with hashes of the rows."""

    def join(features: types.Tensors, labels: types.Tensors) -> types.Tensors:
        fields = {**features, **labels}
        return {**fields, _HASHES: hashes.hash_fields(fields)}

    return data.one_pass(data.eval_split).map(join)


def _read_head(
    head: types.Head, batch: Mapping[str, Any], labels: types.Tensors
) -> Rows | Labels | Unlabelled | None:
    """Return a head's labels and predictions for a batch; None if a report cannot show them."""
    predictions = _select_entries(batch, f"{head.name}/")
    # Heads of densities and scores have no labels, so a report shows only their predictions.
    if not isinstance(head, (types.ExampleHead, base.Labelled)):
        for name in _UNLABELLED:
            if name in predictions:
                return Unlabelled(name, predictions[name])
    if not isinstance(head, types.WeighingHead) or head.field not in labels:
        return None
    target, present = (tensor.numpy() for tensor in head.targets(labels[head.field]))
    if target.ndim == 2 and {"probabilities", "multi_hot"} <= predictions.keys():
        return _read_labels(head, predictions, labels)
    # Heads of maps have a label for each pixel, which a report does not show.
    if not target.ndim == present.ndim == 1:
        return None
    # Set missing labels to 0, because they may be -1 or NaN, which cannot be an index of a class.
    return _read_rows(predictions, np.where(present, target, 0), head.row_weights(labels).numpy())


def _select_entries(batch: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries of a batch whose names begin with a prefix; the keys lose the prefix."""
    return {name.removeprefix(prefix): v for name, v in batch.items() if name.startswith(prefix)}


def _read_rows(
    predictions: Mapping[str, Any], target: np.ndarray, weight: np.ndarray
) -> Rows | None:
    """Return the rows of a head with one label in each row; None for other kinds of predictions."""
    if {"class_id", "probability"} <= predictions.keys():
        score = predictions["probability"]
        true = np.where(target > 0.5, score, 1 - score)
        return _rows(BINARY, target, predictions["class_id"], score, true, weight)
    if {"class_id", "probabilities"} <= predictions.keys():
        probabilities, ids = predictions["probabilities"], target.astype(int)
        class_ids = predictions["class_id"]
        # [B, C] -> [B]: the probability of the predicted class in each row.
        score = np.take_along_axis(probabilities, class_ids[:, np.newaxis], 1)[:, 0]
        true = np.take_along_axis(probabilities, ids[:, np.newaxis], 1)[:, 0]
        return _rows(CLASSES, target, class_ids, score, true, weight)
    if "value" in predictions and predictions["value"].ndim == 1:
        value = np.asarray(predictions["value"], np.float64)
        error = np.abs(value - target)
        return Rows(NUMBER, target.astype(np.float64), value, value, error, weight)
    return None


def _read_labels(
    head: types.WeighingHead, predictions: Mapping[str, Any], labels: types.Tensors
) -> Labels:
    score = predictions["probabilities"]
    # `examples` needs logits, but zeros are enough, because only its targets and weights are used.
    _, target, weight = head.examples(tf.zeros(score.shape), labels)
    target, weight = target.numpy(), weight.numpy()
    true = np.where(target > 0.5, score, 1 - score)
    # [B, C] -> [B C]: each label of a row is a binary task.
    flat = (x.reshape(-1) for x in (target, predictions["multi_hot"], score, true, weight))
    entries = _rows(BINARY, *flat)
    total = weight.sum(1)
    errors = np.where(weight > 0, entries.error.reshape(weight.shape) * weight, 0).sum(1)  # [B]
    return Labels(entries, np.divide(errors, total, where=total > 0, out=0 * errors), total)


def _rows(
    kind: str, target: Any, predicted: Any, score: Any, true: Any, weight: np.ndarray
) -> Rows:
    error = -np.log(np.maximum(np.asarray(true, np.float64), _LEAST))
    return Rows(kind, target.astype(np.int64), predicted, np.asarray(score), error, weight)


def _join_parts(parts: list[Any]) -> Any:
    """Concatenate the labels and predictions of a task over all batches, attribute by attribute.

    Return None if a report cannot show the task; all entries of `parts` are then None.
    """
    # The results of all batches have the same class, because the head determines the class.
    if parts[0] is None:
        return None
    first, columns = parts[0], zip(*parts, strict=True)
    return type(first)(
        *(
            _join_parts(list(column))
            if isinstance(column[0], Rows)
            else column[0]
            if isinstance(column[0], str)
            else np.concatenate(column)
            for column in columns
        )
    )
