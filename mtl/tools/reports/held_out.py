"""Predicts held-out rows in one pass, and returns predictions, labels and fields of the rows.

seen = held_out.predict_rows(experiment, "runs/digits", "runs/digits/best/model.ckpt-750", 100_000)
seen.tasks["digit"].target, seen.tasks["digit"].predicted, seen.fields["age"]
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mtl import experiment as experiment_lib
from mtl import types
from mtl.data import pipeline
from mtl.deferred import tf
from mtl.heads import base
from mtl.runs import diagnosis, estimators, fitting, kept_fields
from mtl.tf_internals import eager
from mtl.tools.explaining import drawn_rows

BINARY, CLASSES, NUMBER = "binary", "classes", "number"
# A probability of 0 would have an infinite log loss, and so would the mean of its slice.
_LEAST = 1e-7
_UNLABELLED = ("log_density", "score")

_Kind = TypeVar("_Kind")


class Rows(NamedTuple):
    """The labels and predictions of a head for each row, [N] each.

    Attributes:
      kind: "binary", "classes" or "number".
      target: the true class id or number; 0 if the label is missing.
      predicted: the predicted class id or number.
      score: the probability of class 1 for a binary task, or of the predicted class for several
        classes; the predicted number itself.
      error: minus the logarithm of the true class's probability, or the distance of numbers.
      weight: the weight of the label in the metrics; 0 if the label is missing.
    """

    kind: str
    target: np.ndarray
    predicted: np.ndarray
    score: np.ndarray
    error: np.ndarray
    weight: np.ndarray


class Labels(NamedTuple):
    """The labels and predictions of a head with several labels a row.

    Attributes:
      entries: each label of each row, [N C], of kind "binary".
      errors: the mean error of each row, over its labels by their weights, [N].
      weights: the sum of the weights of each row, [N].
    """

    entries: Rows
    errors: np.ndarray
    weights: np.ndarray


class Unlabelled(NamedTuple):
    """The predictions of a head without a label: the name of its number, and the numbers, [N]."""

    name: str
    values: np.ndarray


class Seen(NamedTuple):
    """The results of a pass.

    Attributes:
      rows: how many rows were predicted.
      total: how many rows the split has.
      tasks: {task: its rows}, for heads with one label a row and a known kind of predictions.
      fields: {feature of one value a row: its values, [N]}.
      labels: {task: its labels}, for heads with several labels a row.
      unlabelled: {task: its predictions}, for densities and scores.
    """

    rows: int
    total: int
    tasks: dict[str, Rows]
    fields: dict[str, np.ndarray]
    labels: dict[str, Labels] = {}
    unlabelled: dict[str, Unlabelled] = {}

    @property
    def is_whole(self) -> bool:
        """True if all rows of the split were predicted."""
        return self.rows == self.total


def predict_rows(
    experiment: experiment_lib.Experiment, model_dir: str, checkpoint: str, most_rows: int
) -> Seen:
    """Predict the split that the run evaluates, or `most_rows` rows drawn from it.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      checkpoint: the path of the checkpoint.
      most_rows: how many rows are predicted at most.

    Raises:
      UserError: the split cannot be read, or the checkpoint does not fit the settings.
    """
    data, model = experiment.data, experiment.model
    # Slices need one value a row.
    single = [name for name, field in data.spec.feature_fields.items() if not field.shape]
    of_labels = _list_labels(experiment)
    keep = [*single, *of_labels]
    kept: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    found: dict[str, list[Any]] = collections.defaultdict(list)
    rows = 0
    with diagnosis.explain_run_errors(data, model, checkpoint, data.eval_split):
        drawn = drawn_rows.draw(data, data.eval_split, most_rows, experiment.run.seed)
        chosen = drawn_rows.keep(data, data.eval_split, drawn)
        estimator = estimators.build_estimator(experiment, model_dir, checkpoint, keep)
        heads = model.fitted(fitting.load_statistics(model_dir)).heads
        predicted = estimator.predict(
            functools.partial(_read_batches, chosen.keep_fields(keep)),
            checkpoint_path=checkpoint,
            yield_single_examples=False,
        )
        for batch in predicted:
            rows += len(next(iter(batch.values())))
            for name in single:
                kept[name].append(batch[name])
            with eager.execute_eagerly():  # Between batches, Estimator's graph is the default.
                labels = {name: kept_fields.read_batch(batch, name) for name in of_labels}
                for head in heads:
                    said = _read_head(head, batch, labels)
                    if said is not None:
                        found[head.name].append(said)
    joined = {task: _join_parts(parts) for task, parts in found.items()}
    return Seen(
        rows=rows,
        total=drawn.total,
        tasks=_keep_kind(joined, Rows),
        fields={name: np.concatenate(parts) for name, parts in kept.items()},
        labels=_keep_kind(joined, Labels),
        unlabelled=_keep_kind(joined, Unlabelled),
    )


def _keep_kind(found: Mapping[str, Any], kind: type[_Kind]) -> dict[str, _Kind]:
    return {task: own for task, own in found.items() if isinstance(own, kind)}


def _list_labels(experiment: experiment_lib.Experiment) -> list[str]:
    """Return the labels with one value a row, and the labels of heads with several."""
    fields = experiment.data.spec.label_fields
    several = [getattr(head, "field", None) for head in experiment.model.heads]
    return [name for name, field in fields.items() if not field.shape or name in several]


def _read_batches(data: pipeline.Pipeline) -> tf.data.Dataset:
    batches = data.one_pass(data.eval_split)
    return batches.map(lambda features, labels: {**features, **labels})


def _read_head(
    head: types.Head, batch: Mapping[str, Any], labels: types.Tensors
) -> Rows | Labels | Unlabelled | None:
    """Return the predictions of a head for a batch; None if their kind is unknown."""
    said = _select_entries(batch, f"{head.name}/")
    # Densities and scores learn without labels: only their numbers are shown.
    if not isinstance(head, (types.ExampleHead, base.Labelled)):
        for name in _UNLABELLED:
            if name in said:
                return Unlabelled(name, said[name])
    if not isinstance(head, types.WeighingHead) or head.field not in labels:
        return None
    target, present = (tensor.numpy() for tensor in head.targets(labels[head.field]))
    if target.ndim == 2 and {"probabilities", "multi_hot"} <= said.keys():
        return _read_labels(head, said, labels)
    # Maps have a label for each place, which this page does not show.
    if not target.ndim == present.ndim == 1:
        return None
    # A missing label may be -1 or NaN, which cannot be a place among the classes.
    return _read_rows(said, np.where(present, target, 0), head.row_weights(labels).numpy())


def _select_entries(batch: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries whose names begin with a prefix, without the prefix."""
    return {name.removeprefix(prefix): v for name, v in batch.items() if name.startswith(prefix)}


def _read_rows(said: Mapping[str, Any], target: np.ndarray, weight: np.ndarray) -> Rows | None:
    """Return the rows of a head with one label a row; None for an unknown kind of predictions."""
    if {"class_id", "probability"} <= said.keys():
        score = said["probability"]
        true = np.where(target > 0.5, score, 1 - score)
        return _rows(BINARY, target, said["class_id"], score, true, weight)
    if {"class_id", "probabilities"} <= said.keys():
        probabilities, ids = said["probabilities"], target.astype(int)
        chosen = said["class_id"]
        # [B, C] -> [B], the probability of each row's predicted class.
        score = np.take_along_axis(probabilities, chosen[:, np.newaxis], 1)[:, 0]
        true = np.take_along_axis(probabilities, ids[:, np.newaxis], 1)[:, 0]
        return _rows(CLASSES, target, chosen, score, true, weight)
    if "value" in said and said["value"].ndim == 1:
        value = np.asarray(said["value"], np.float64)
        error = np.abs(value - target)
        return Rows(NUMBER, target.astype(np.float64), value, value, error, weight)
    return None


def _read_labels(
    head: types.WeighingHead, said: Mapping[str, Any], labels: types.Tensors
) -> Labels:
    score = said["probabilities"]
    # Only targets and weights are needed, so any logits of this shape do.
    _, target, weight = head.examples(tf.zeros(score.shape), labels)
    target, weight = target.numpy(), weight.numpy()
    true = np.where(target > 0.5, score, 1 - score)
    # [B, C] -> [B C]: each label of a row is a binary task.
    flat = (x.reshape(-1) for x in (target, said["multi_hot"], score, true, weight))
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
    """Join the results of all batches, column by column."""
    # All parts of a task have the same class, as the head decides it.
    first, columns = parts[0], zip(*parts, strict=True)
    return type(first)(
        *(
            _join_parts(list(own))
            if isinstance(own[0], Rows)
            else own[0]
            if isinstance(own[0], str)
            else np.concatenate(own)
            for own in columns
        )
    )
