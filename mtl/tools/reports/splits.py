"""Counts rows, labels and missing values in a split, or in a sample of the split.

facts = splits.look_at(experiment, "train", most_rows=100_000)
facts.rows, facts.tasks["digit"].labelled, facts.missing["job"]
"""

from __future__ import annotations

import collections
import math
from typing import Any, NamedTuple

import numpy as np

from mtl import experiment as experiment_lib
from mtl import spec as spec_lib
from mtl import types
from mtl.deferred import tf
from mtl.heads import base
from mtl.runs import diagnosis
from mtl.tools.explaining import drawn_rows

_MOST_CLASSES = 1000


class Labels(NamedTuple):
    """Counts and statistics of the labels that a task has in a split.

    Attributes:
      labelled: the number of rows that have a label with a weight above 0.
      counts: {class: number of rows}; {} if the task has more than 1000 classes. A row with several
        labels may count for several classes.
      classes: the number of classes; 0 if labels are numbers.
      largest: the most frequent class and its number of rows; None if no row has a class.
      mean: the mean of the labels; None if labels are classes.
      spread: the standard deviation of the labels; None if labels are classes.
    """

    labelled: int
    counts: dict[str, int]
    classes: int
    largest: tuple[str, int] | None
    mean: float | None
    spread: float | None


class Facts(NamedTuple):
    """Counts of rows, labels and missing values in a split.

    Attributes:
      split: the name of the split.
      rows: the number of rows that were read.
      total: the number of rows in the split.
      tasks: {task: counts of its labels} in the rows that were read.
      missing: {field: the number of rows in which the field has no value or its default value}.
    """

    split: str
    rows: int
    total: int
    tasks: dict[str, Labels]
    missing: dict[str, int]


def look_at(experiment: experiment_lib.Experiment, split: str, most_rows: int) -> Facts:
    """Count rows, labels and missing values in a split, or in a random sample of `most_rows` rows.

    Args:
      experiment: the experiment of the run.
      split: the name of the split.
      most_rows: the largest number of rows to read.

    Raises:
      UserError: the split cannot be read.
    """
    data, model = experiment.data, experiment.model
    counters = [LabelCounter(head) for head in model.heads if isinstance(head, types.WeighingHead)]
    # The head that reads a label decides which values stand for a missing label, such as -1 for a
    # class.
    of_labels = {head.field: head for head in model.heads if isinstance(head, base.Labelled)}
    missing: collections.Counter[str] = collections.Counter()
    fields = data.spec.fields
    rows = 0
    with diagnosis.explain_run_errors(data, model, None, split):
        sample = drawn_rows.draw(data, split, most_rows, experiment.run.seed)
        for features, labels in drawn_rows.keep(data, split, sample).one_pass(split):
            for name, values in {**features, **labels}.items():
                count, count_missing = _count_missing(fields[name], values, of_labels.get(name))
                missing[name] += count_missing
            rows += count
            for counter in counters:
                counter.see(labels)
    labels_of_tasks = {counter.task: counter.tell() for counter in counters}
    return Facts(
        split, rows, sample.total, labels_of_tasks, {name: missing[name] for name in fields}
    )


def _count_missing(
    field: spec_lib.Field, values: Any, head: base.Labelled | None
) -> tuple[int, int]:
    """Return the number of rows, and the number of rows whose value is missing or the default.

    If the field is the label of a head, the head decides which of its values are missing.
    """
    if isinstance(values, tf.RaggedTensor):
        # An empty list counts as missing, and so does a value that stands for a missing label.
        values = (
            values if head is None else tf.ragged.boolean_mask(values, head.are_present(values))
        )
        lengths = values.row_lengths().numpy()
        return len(lengths), int((lengths == 0).sum())
    array = values.numpy()
    is_missing = np.zeros(array.shape, bool)
    if array.dtype.kind == "f":
        is_missing |= np.isnan(array)
    # Texts are bytes in the array. An empty text means that the value is missing.
    elif array.dtype == object:
        is_missing |= array == b""
    if head is not None:
        is_missing |= ~head.are_present(values).numpy()
    if field.default is not None:
        default = field.default
        is_missing |= array == (default.encode() if isinstance(default, str) else default)
    # A row with several values counts as missing only if all its values are missing.
    return len(array), int(is_missing.reshape(len(array), -1).all(1).sum())


class LabelCounter:
    """Counts the labels of a task.

    Args:
      head: the head of the task, a `types.WeighingHead`.
    """

    def __init__(self, head: Any):
        self.task, self._head = head.name, head
        # A map has a class for each pixel instead of each row, so its classes are not counted.
        is_dense = types.read_member(head, types.MapHead, "is_dense")
        self._names = () if is_dense else types.read_member(head, types.ClassHead, "class_names")
        self._labelled = 0
        self._counts: collections.Counter[int] = collections.Counter()
        self._number, self._mean, self._squares = 0, 0.0, 0.0

    def see(self, labels: types.Tensors) -> None:
        """Count the labels of a batch.

        Args:
          labels: {field: eager tensor}. If the label field of the head is missing, nothing is
            counted.
        """
        if self._head.field not in labels:
            return
        weights = self._head.row_weights(labels).numpy()
        self.add(
            weights, *(tensor.numpy() for tensor in self._head.targets(labels[self._head.field]))
        )

    def add(self, weights: np.ndarray, targets: np.ndarray, present: np.ndarray) -> None:
        """Count the labels of a batch of B rows.

        Args:
          weights: the weights of the rows, [B].
          targets: class ids or numbers [B], or 0 and 1 for each class [B, C].
          present: True for labels that are not missing, [B, ...].
        """
        is_counted = weights > 0
        self._labelled += int(is_counted.sum())
        # For several labels in a row, targets are 0 or 1, [B, C].
        if targets.ndim == 2 and targets.shape[1] == len(self._names):
            is_known = present.reshape(len(targets), -1) & is_counted[:, np.newaxis]
            hits = (targets > 0.5) & is_known
            self._counts.update(hits.nonzero()[1].tolist())
        # For one class in a row, targets are ids, [B].
        elif targets.ndim == 1 and self._names:
            self._counts.update(targets[is_counted & present].astype(int).tolist())
        elif targets.ndim == 1:
            self._join(targets[is_counted & present].astype(np.float64))

    def _join(self, numbers: np.ndarray) -> None:
        """Update the mean and the sum of squared deviations with more numbers, [M]."""
        if not len(numbers):
            return
        mean, number = float(numbers.mean()), self._number + len(numbers)
        difference = mean - self._mean
        self._squares += float(np.square(numbers - mean).sum())
        # The squared deviations of each part are relative to the mean of this part, so add a term
        # for the distance between the two means.
        self._squares += difference**2 * self._number * len(numbers) / number
        self._mean += difference * len(numbers) / number
        self._number = number

    def tell(self) -> Labels:
        """Return the counts and statistics of all labels so far."""
        names, totals = self._names, self._counts
        is_few = len(names) <= _MOST_CLASSES
        counts = {name: totals[place] for place, name in enumerate(names)} if is_few else {}
        largest = None
        if totals:
            # Of equally frequent classes, use the class with the lowest id, whatever the order of
            # rows is.
            place = max(totals, key=lambda place: (totals[place], -place))
            largest = (names[place], totals[place])
        mean = spread = None
        if self._number:
            mean, spread = self._mean, math.sqrt(self._squares / self._number)
        return Labels(self._labelled, counts, len(names), largest, mean, spread)
