"""One pass over held-out rows: what the heads predict beside what is true, and the rows' fields.

seen = held_out.predict_rows(experiment, "runs/digits", "runs/digits/best/model.ckpt-750", 100_000)
seen.tasks["digit"].target, seen.tasks["digit"].predicted, seen.fields["age"]
"""

import collections
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from mtl import experiment as experiment_lib
from mtl import types
from mtl.compat import eager
from mtl.data import drawn_rows, pipeline
from mtl.heads import base
from mtl.runs import diagnosis, estimators, fitting
from mtl.scoring import kept as kept_lib

BINARY, CLASSES, NUMBER = "binary", "classes", "number"
_LEAST = 1e-7
_UNLABELLED = ("log_density", "score")

_Kind = TypeVar("_Kind")


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


class Labels(NamedTuple):
    """What a head of several labels a row says.

    Attributes:
      entries: each label of each row, [N C], of kind "binary".
      errors: the mean error of each row, over its labels by their weights, [N].
      weights: the sum of the weights of each row, [N].
    """

    entries: Rows
    errors: np.ndarray
    weights: np.ndarray


class Unlabelled(NamedTuple):
    """What a head without a label says: the name of its number, and the number of each row, [N]."""

    name: str
    values: np.ndarray


class Seen(NamedTuple):
    """What a pass saw.

    Attributes:
      rows: how many.
      total: how many the split has.
      tasks: {task: what its head says}, of heads whose predictions have one of the kinds.
      fields: {feature of one value a row: its values, [N]}.
      labels: {task: what its head says}, of heads of several labels a row.
      unlabelled: {task: what its head says}, of densities and scores.
    """

    rows: int
    total: int
    tasks: dict[str, Rows]
    fields: dict[str, np.ndarray]
    labels: dict[str, Labels] = {}
    unlabelled: dict[str, Unlabelled] = {}

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the split were seen."""
        return self.rows == self.total


def predict_rows(
    experiment: experiment_lib.Experiment, model_dir: str, checkpoint: str, most_rows: int
) -> Seen:
    """Predict the split that the run evaluates, or `most_rows` that are drawn over it.

    Raises:
      UserError: the split cannot be read, or the checkpoint does not fit the settings.
    """
    data, model = experiment.data, experiment.model
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
            functools.partial(_batches, chosen.keep_fields(keep)),
            checkpoint_path=checkpoint,
            yield_single_examples=False,
        )
        for batch in predicted:
            rows += len(next(iter(batch.values())))
            for name in single:
                kept[name].append(batch[name])
            with eager.execute_eagerly():  # Between two batches Estimator's graph is the default.
                labels = {name: kept_lib.read_batch(batch, name) for name in of_labels}
                for head in heads:
                    said = _read(head, batch, labels)
                    if said is not None:
                        found[head.name].append(said)
    joined = {task: _join(parts) for task, parts in found.items()}
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
    """Return the labels of one value a row, and those of heads of several."""
    fields = experiment.data.spec.label_fields
    several = [getattr(head, "field", None) for head in experiment.model.heads]
    return [name for name, field in fields.items() if not field.shape or name in several]


def _batches(data: pipeline.Pipeline) -> tf.data.Dataset:
    batches = data.one_pass(data.eval_split)
    return batches.map(lambda features, labels: {**features, **labels})


def _read(
    head: types.Head, batch: Mapping[str, Any], labels: types.Tensors
) -> Rows | Labels | Unlabelled | None:
    """Return what a head says of a batch; None of one whose predictions are of no known kind."""
    said = _select(batch, f"{head.name}/")
    if not isinstance(head, (types.ExampleHead, base.Labelled)):
        for name in _UNLABELLED:
            if name in said:
                return Unlabelled(name, said[name])
    if not isinstance(head, types.WeighingHead) or head.field not in labels:
        return None
    target, present = (tensor.numpy() for tensor in head.targets(labels[head.field]))
    if target.ndim == 2 and {"probabilities", "multi_hot"} <= said.keys():
        return _read_labels(head, said, labels)
    if not target.ndim == present.ndim == 1:
        return None
    return _read_rows(said, np.where(present, target, 0), head.row_weights(labels).numpy())


def _select(batch: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return what begins with a prefix, under the rest of its name."""
    return {name.removeprefix(prefix): v for name, v in batch.items() if name.startswith(prefix)}


def _read_rows(said: Mapping[str, Any], target: np.ndarray, weight: np.ndarray) -> Rows | None:
    """Return what a head of one label a row says; None if its predictions are of no known kind."""
    if {"class_id", "probability"} <= said.keys():
        score = said["probability"]
        true = np.where(target > 0.5, score, 1 - score)
        return _rows(BINARY, target, said["class_id"], score, true, weight)
    if {"class_id", "probabilities"} <= said.keys():
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


def _read_labels(
    head: types.WeighingHead, said: Mapping[str, Any], labels: types.Tensors
) -> Labels:
    score = said["probabilities"]
    _, target, weight = head.examples(tf.zeros(score.shape), labels)
    target, weight = target.numpy(), weight.numpy()
    true = np.where(target > 0.5, score, 1 - score)
    flat = (x.reshape(-1) for x in (target, said["multi_hot"], score, true, weight))
    entries = _rows(BINARY, *flat)
    total = weight.sum(1)
    errors = np.where(weight > 0, entries.error.reshape(weight.shape) * weight, 0).sum(1)
    return Labels(entries, np.divide(errors, total, where=total > 0, out=0 * errors), total)


def _rows(
    kind: str, target: Any, predicted: Any, score: Any, true: Any, weight: np.ndarray
) -> Rows:
    error = -np.log(np.maximum(np.asarray(true, np.float64), _LEAST))
    return Rows(kind, target.astype(np.int64), predicted, np.asarray(score), error, weight)


def _join(parts: list[Any]) -> Any:
    """Return what was read of all batches, joined column by column."""
    first, columns = parts[0], zip(*parts, strict=True)
    return type(first)(
        *(
            _join(list(own))
            if isinstance(own[0], Rows)
            else own[0]
            if isinstance(own[0], str)
            else np.concatenate(own)
            for own in columns
        )
    )
