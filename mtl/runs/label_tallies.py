"""Counts missing labels, and finds classes without rows, in batches that other code reads.

missing = label_tallies.Missing(heads)
for features, labels in batches: missing.see(labels)
missing.describe("train", "")            # ["The label of task 'age' is missing in 3 of ...", ...]

classes = label_tallies.Classes(heads)              # the classes without a row so far
label_tallies.describe_untrained(classes, model.heads, data, True)  # ["Task 'kind' has ..."]
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mtl import spec, types
from mtl.data import eager_pass, pipeline
from mtl.deferred import tf
from mtl.heads import base
from mtl.runs import diagnosis

_ABSENT = {"f": "absent or nan", "i": "absent", "O": "absent or empty"}
# The largest number of batches that are read only for a warning.
_MOST_BATCHES = 500
# If more than this share of the lists are empty, empty lists may stand for missing labels.
_MANY_EMPTY = 0.2
# The largest number of classes that a warning names; the warning only counts further classes.
_LISTED = 5


class Missing:
    """Counts the rows without a label, for each task and each reason.

    Args:
      heads: the heads of the tasks; heads that do not derive from `base.Labelled` are left out.
    """

    def __init__(self, heads: Sequence[types.Head]):
        self._heads = {head.name: head for head in heads if isinstance(head, base.Labelled)}
        self._counts = {name: collections.Counter[str]() for name in self._heads}
        # {task whose labels are whole numbers: number of rows with -1, and the smallest label}.
        self._below_zero = {name: (0, 0) for name, head in self._heads.items() if not head.has_ids}
        # {task: number of empty lists that mean that no class applies}.
        self._empty = collections.Counter[str]()
        self._rows = 0

    def see(self, labels: types.Tensors) -> None:
        """Count the rows of a batch and their missing labels.

        Args:
          labels: {field: [B, ...]} of eager tensors.
        """
        self._rows += int(types.count_rows(labels))
        for name, head in self._heads.items():
            label = labels.get(head.field)
            if isinstance(label, tf.RaggedTensor) and hasattr(head, "empty_is_missing"):
                self._see_lists(head, label)
            if not isinstance(label, tf.Tensor):
                continue
            values = label.numpy()
            self._counts[name].update(_count_missing(head, values))
            if name in self._below_zero and values.dtype.kind == "i":
                rows, minimum = self._below_zero[name]
                # The smallest int64 marks an absent label.
                present = values[values > spec.MISSING["int64"]]
                minimum = min(minimum, *present[present < 0].tolist(), 0)
                self._below_zero[name] = (rows + int((values == spec.NO_ID).sum()), minimum)

    def _see_lists(self, head: Any, lists: tf.RaggedTensor) -> None:
        is_absent = tf.reduce_any(~head.are_present(lists), axis=1)
        counts = {"absent": is_absent, "empty": tf.equal(lists.row_lengths(), 0)}
        rows = {reason: int(tf.math.count_nonzero(mask)) for reason, mask in counts.items()}
        if not head.empty_is_missing:
            self._empty[head.name] += rows.pop("empty")
        self._counts[head.name].update(rows)

    def describe(self, split: str, seen: str) -> list[str]:
        """Return a line for each task with missing labels.

        Args:
          split: the name of the split.
          seen: a text about the part of the split that was read; "" for all rows.
        """
        lines = []
        for name, counts in self._counts.items():
            rows_by_reason = {reason: rows for reason, rows in counts.items() if rows}
            if rows_by_reason:
                total = sum(rows_by_reason.values())
                reasons = ", ".join(f"{rows:,} {reason}" for reason, rows in rows_by_reason.items())
                lines.append(
                    f"{self._name_label(name)} is missing in {total:,} of {self._rows:,} rows "
                    f"({total / self._rows:.1%}) of split {split!r}{seen}: {reasons}"
                )
        return lines

    def describe_doubts(self, split: str, seen: str) -> list[str]:
        """Return a line for each task with values that may mark missing labels.

        Two values may mark missing labels: -1, if no other label is negative; and an empty list, if
        many lists are empty.

        Args:
          split: the name of the split.
          seen: a text about the part of the split that was read; "" for all rows.
        """
        many = [name for name, rows in self._empty.items() if rows > _MANY_EMPTY * self._rows]
        empty = [
            f"{self._name_label(name)} is an empty list, no class, in {self._empty[name]:,} of "
            f"{self._rows:,} rows ({self._empty[name] / self._rows:.1%}) of split {split!r}{seen}. "
            "If an empty list marks a missing label, set MultiLabel.empty_is_missing = True."
            for name in many
        ]
        return empty + [
            f"{self._name_label(name)} is -1 in {rows:,} of {self._rows:,} rows of split {split!r}"
            f"{seen}, and no other number there is below 0: -1 counts as a number. If it marks a "
            f"missing label, set {type(self._heads[name]).__name__}.missing = [-1]."
            for name, (rows, minimum) in self._below_zero.items()
            if minimum == spec.NO_ID and spec.NO_ID not in self._heads[name].missing
        ]

    def _name_label(self, task: str) -> str:
        return f"The label of task {task!r}, field {self._heads[task].field!r},"


def _count_missing(head: base.Labelled, label: np.ndarray) -> dict[str, int]:
    """Return {reason for a missing label: number of rows} for the label values [B, ...] of rows."""
    values = label.reshape(len(label), -1)
    absent = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    if values.dtype.kind != "f":
        absent = values == (b"" if values.dtype == object else spec.MISSING["int64"])
    marks = [*head.missing]
    if values.dtype.kind == "i" and head.leaves_out_minus_one:
        marks.append(spec.NO_ID)
    masks = {_ABSENT[values.dtype.kind]: absent}
    for mark in marks:
        masks[f"are {mark!r}"] = values == (mark.encode() if isinstance(mark, str) else mark)
    # A vector counts as missing only if all its values are missing, maybe for different reasons.
    if values.shape[1] == 1:
        return {reason: int(mask.sum()) for reason, mask in masks.items()}
    is_missing = np.logical_or.reduce(list(masks.values())).all(axis=1)
    return {"without any value": int(is_missing.sum())}


class Classes:
    """Collects the classes of each task that have no row so far.

    Args:
      heads: the heads of the tasks; tasks without classes are left out.
    """

    def __init__(self, heads: Sequence[types.Head]):
        self._heads = {
            head.name: head
            for head in heads
            if isinstance(head, types.ExampleHead)
            and types.read_member(head, types.ClassHead, "class_names")
        }
        self.unseen = {
            name: set(range(len(types.read_member(head, types.ClassHead, "class_names"))))
            for name, head in self._heads.items()
        }

    def see(self, labels: types.Tensors) -> None:
        """Remove the classes of a batch from the classes without a row.

        Args:
          labels: {field: [B, ...]} of eager tensors.
        """
        for name, unseen in self.unseen.items():
            if unseen:
                unseen.difference_update(count_classes(self._heads[name], labels))


def count_classes(head: Any, labels: types.Tensors) -> collections.Counter[int]:
    """Count the rows of a batch, or the pixels of label maps, for each class id.

    Args:
      head: a head with classes.
      labels: {field: [B, ...]} of eager tensors.

    Returns:
      {class id: number of rows or pixels}; empty if the labels cannot be read.
    """
    try:
        targets, present = (part.numpy() for part in head.targets(labels[head.field]))
        if isinstance(head, types.WeighingHead):
            counts = head.row_weights(labels).numpy() > 0
            present = present & counts.reshape([-1, *[1] * (present.ndim - 1)])
    except KeyError:
        return collections.Counter()
    except diagnosis.list_run_errors():
        return collections.Counter()
    is_of_places = types.read_member(head, types.MapHead, "is_dense")
    # A row may have several classes: targets [B, C] are then 0 or 1.
    if targets.ndim == 2 and not is_of_places:
        return collections.Counter(np.nonzero((targets > 0.5) & present)[1].tolist())
    ids, counts = np.unique(targets[present].astype(np.int64), return_counts=True)
    return collections.Counter(dict(zip(ids.tolist(), counts.tolist(), strict=True)))


def describe_untrained(
    classes: Classes, heads: Sequence[types.Head], data: pipeline.Pipeline, is_whole: bool
) -> list[str]:
    """Return a warning for each task that is evaluated on classes without a row in training.

    The labels of the held-out split are read only if a class has no row in training.

    Args:
      classes: the classes without a row in the training split so far.
      heads: the heads of the tasks.
      data: the pipeline with the training split and the evaluation split.
      is_whole: True if `classes` has counted the whole training split.
    """
    heads_to_check = [head for head in heads if classes.unseen.get(head.name)]
    if not heads_to_check:
        return []
    counts_by_task = _count_split(heads_to_check, data)

    def list_untrained() -> dict[str, dict[int, int]]:
        return {
            name: {i: rows for i, rows in counts.items() if i in classes.unseen[name]}
            for name, counts in counts_by_task.items()
        }

    # If only a part of the training split was read, read on while an evaluated class has no row.
    for labels in () if is_whole else _read_labels(data, data.train_split):
        if not any(list_untrained().values()):
            break
        classes.see(labels)
    untrained_counts = list_untrained()
    return [
        _describe(head, counts, data)
        for head in heads_to_check
        if (counts := untrained_counts[head.name])
    ]


def _count_split(
    heads: Sequence[types.Head], data: pipeline.Pipeline
) -> dict[str, collections.Counter[int]]:
    """Return {task: {class: number of rows}} of the held-out split."""
    counts = {head.name: collections.Counter[int]() for head in heads}
    for labels in _read_labels(data, data.eval_split):
        for head in heads:
            counts[head.name] += count_classes(head, labels)
    return counts


def _describe(head: types.Head, rows: dict[int, int], data: pipeline.Pipeline) -> str:
    names = types.read_member(head, types.ClassHead, "class_names")
    examples = ", ".join(f"{names[i]!r} ({n:,})" for i, n in sorted(rows.items())[:_LISTED])
    more = f" and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
    return (
        f"Task {head.name!r} has classes in split {data.eval_split!r} without a row in split "
        f"{data.train_split!r}, which it cannot learn: {examples}{more}."
    )


def _read_labels(data: pipeline.Pipeline, split: str) -> Any:
    """Yield the labels of a split by batch; stop at a bad record, which training reports."""
    batches = eager_pass.read(data.keep_labels().in_large_batches(split), split)
    try:
        for _, labels in itertools.islice(batches, _MOST_BATCHES):
            yield labels
    except diagnosis.list_run_errors():
        return
