"""Checks that a model can learn from the data: labels are present, and columns vary.

look = plausibility.Look(model, data, "train")
for batch in look.look_at(eager_pass.read(data, "train")): ...   # if there is a pass anyway
look.finish()                                           # reads as few batches as possible
look.require_labels()
look.describe_doubts()                                  # ["Field 'age' never varies ...", ...]

A split without labels is an error; other suspicious findings are only logged. Good data needs no
additional pass: the first batch shows that columns vary and labels exist, and texts are checked in
500 batches at most.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mtl import checks, types
from mtl import model as model_lib
from mtl import spec as spec_lib
from mtl.data import eager_pass, pipeline
from mtl.deferred import tf
from mtl.features import column as columns
from mtl.heads import base
from mtl.runs import diagnosis, label_tallies

_log = logging.getLogger(__name__)

# The largest number of batches that are read only for a warning. The search for the first label of
# a task may read all batches.
_MOST_BATCHES = 500
# Metrics on fewer rows than this are unreliable.
_FEW_ROWS = 10

# A text with one of these signs in a field of lists is probably a list that was not split.
_ODD_SIGNS = (b"\n ", b" \n", b"\n[", b"|")
_ODD = re.compile(rb"""\s.*|.*\s|\[(?:(['"]).*\1)?\]|.*\|.*""")

_Batch = tuple[types.Tensors, types.Tensors]


class Look:
    """Reads batches of a split until its labels and columns are no longer suspicious.

    Args:
      model: the model whose labels and columns are checked.
      data: the source of the rows.
      split: the name of the split.
      columns: True also checks the features.
      whole: False only checks that labels are present, and ignores their values.
    """

    def __init__(
        self,
        model: model_lib.MultiTaskModel,
        data: pipeline.Pipeline,
        split: str,
        columns: bool = True,
        whole: bool = True,
    ):
        self._data, self._split, self._tasks = data, split, len(model.heads)
        # An evaluation does not need the labels of losses that exist only in training.
        heads = [*model.heads, *(model.heads_of_losses if columns else ())]
        self._unlabelled = {head.name: head for head in heads}
        # {task: the label of all rows so far; None before the first row}. `_follow` removes tasks
        # whose labels vary.
        self._labels: dict[str, Any] = dict.fromkeys(self._unlabelled if whole else ())
        with_columns = columns and whole
        fields = _list_fields(model, data.spec) if with_columns else {}
        self._fields: dict[str, Any] = dict.fromkeys(fields)
        self._texts = {name for name, is_text in fields.items() if is_text}
        self._no_texts: dict[str, bytes] = {}
        self._odd_lists: dict[str, str] = {}
        self._heads = dict(self._unlabelled)
        self._missing = label_tallies.Missing(heads if whole else ())
        self.classes = label_tallies.Classes(model.heads if with_columns else ())
        self._rows = self._batches = 0
        self._is_whole = False

    @property
    def is_whole(self) -> bool:
        """True if all rows of the split were read."""
        return self._is_whole

    def describe_missing(self) -> list[str]:
        """Return lines with the number of missing labels in the rows so far, and the reasons."""
        return self._missing.describe(self._split, self._seen)

    @property
    def _seen(self) -> str:
        return "" if self._is_whole else f" (its first {self._rows:,} rows)"

    def look_at(self, batches: Iterable[_Batch]) -> Iterator[_Batch]:
        """Yield the batches of the split, after checking each batch.

        Args:
          batches: the batches (features, labels) of eager tensors, from the first batch of the
            split on. The end of `batches` counts as the end of the split.
        """
        for features, labels in batches:
            self._see(features, labels)
            yield features, labels
        self._is_whole = True

    def finish(self) -> None:
        """Read batches until all checks have passed, or the limit of batches is reached."""
        if self._is_whole or self._is_settled:
            return
        try:
            for _ in self.look_at(eager_pass.read(self._data, self._split)):
                if self._is_settled:
                    break
        except diagnosis.list_run_errors():
            # Ignore a bad record here: the code that later fails at the record reports it.
            self._unlabelled.clear()

    @property
    def _is_settled(self) -> bool:
        pending = self._labels or self._fields or self._texts or not self._batches
        return not self._unlabelled and (not pending or self._batches >= _MOST_BATCHES)

    def require_labels(self, every: bool = True) -> None:
        """Fail if the split lacks labels.

        Args:
          every: True requires a label of every task; False requires a label of one task.

        Raises:
          UserError: labels are missing; the error names a task and its field.
        """
        if len(self._unlabelled) < (1 if every else self._tasks):
            return
        head = next(iter(self._unlabelled.values()))
        subject = f"the labels of task {head.name!r}, field {_name_label(head)!r}"
        rule = f"be there in split {self._split!r}"
        weight = types.read_member(head, types.Head, "weight")
        fix = f"Or all weights, field {weight!r}, are 0." if weight else ""
        value = f"none in {self._rows} rows"
        checks.fail(subject, rule, value, fix)

    def describe_doubts(self) -> list[str]:
        """Return lines of warnings about checks that have not passed; no warning ends a run."""
        where = f"of split {self._split!r}{self._seen}"
        return [
            *self._describe_labels(where),
            *self._missing.describe_doubts(self._split, self._seen),
            *self._describe_fields(where),
            *self._describe_rows(),
        ]

    def _describe_labels(self, where: str) -> list[str]:
        absent = [
            f"Task {name!r} has no label in split {self._split!r}: its metrics there are n/a."
            for name in self._unlabelled
        ]
        return absent + [
            f"All labels of task {name!r}, field {_name_label(self._heads[name])!r}, are the same "
            f"in the rows {where}."
            for name, value in self._labels.items()
            if value is not None and name not in self._unlabelled
        ]

    def _describe_fields(self, where: str) -> list[str]:
        constant = [
            f"Field {name!r} never varies in the rows {where}: a model cannot learn from it."
            for name, value in self._fields.items()
            if value is not None and self._rows > 1
        ]
        no_texts = [
            f"Field {name!r} holds text that is not UTF-8, such as {text!r}. Is it latin-1?"
            for name, text in self._no_texts.items()
        ]
        odd = [
            f"Field {name!r}, a list of texts, holds {text!r} as one value, spaces "
            "included. A list is a|b in CSV, and ['a', 'b'] in Python and JSON."
            for name, text in self._odd_lists.items()
        ]
        return constant + no_texts + odd

    def _describe_rows(self) -> list[str]:
        """Return lines that warn of a split with few rows."""
        split, batch = self._split, self._data.batch_size
        if not self._is_whole:
            return []
        holds = f"Split {split!r} holds {self._rows} row{'s' * (self._rows != 1)}"
        if self._rows < batch and split == self._data.train_split:
            size = f"a batch (Pipeline.batch_size) {batch}"
            return [f"{holds}, and {size}: every batch holds rows more than once."]
        return [f"{holds}: its metrics are unreliable."] if self._rows < _FEW_ROWS else []

    def _see(self, features: types.Tensors, labels: types.Tensors) -> None:
        first_feature = next(iter(features.values()))
        rows = int(
            first_feature.nrows()
            if isinstance(first_feature, tf.RaggedTensor)
            else first_feature.shape[0]
        )
        if not self._batches and rows < self._data.batch_size:
            self._is_whole = True  # A smaller first batch is the whole split.
        self._rows, self._batches = self._rows + rows, self._batches + 1
        if labels:
            self._missing.see(labels)
            self.classes.see(labels)
        for name in list(self._unlabelled):
            if _is_labelled(self._unlabelled[name], labels):
                del self._unlabelled[name]
        for name in list(self._labels):
            _follow(self._labels, name, _read_targets(self._heads[name], labels))
        for name in list(self._fields):
            _follow(self._fields, name, _list_values(features[name]))
        for name in list(self._texts):
            self._see_texts(name, columns.flat(features[name]))

    def _see_texts(self, name: str, values: tf.Tensor) -> None:
        joined_texts = tf.strings.reduce_join(values, separator="\n").numpy()
        is_unchecked = self._data.spec.fields[name].is_ragged and name not in self._odd_lists
        if is_unchecked and (odd := _find_odd(joined_texts)):
            self._odd_lists[name] = odd
        text = _no_text(joined_texts, values)
        if text is not None:
            self._no_texts[name] = text
            self._texts.discard(name)


def look_at_labels(model: model_lib.MultiTaskModel, data: pipeline.Pipeline, split: str) -> Look:
    """Check the labels of a split before its evaluation; return the `Look` that has read them.

    Raises:
      UserError: no task has a label in the split.
    """
    look = Look(model, data.keep_labels(), split, columns=False)
    look.finish()
    look.require_labels(every=False)
    return look


def _list_fields(model: model_lib.MultiTaskModel, spec: spec_lib.Spec) -> dict[str, bool]:
    """Return {field that a column reads: True if it holds text}."""
    return {
        field: spec.fields[field].dtype == "string"
        and not types.read_member(column, types.Column, "reads_files")
        for column in model.columns
        for fields in column.columns.values()
        for field in fields
        if field in spec.features
    }


def _name_label(head: types.Head) -> str:
    return types.read_member(head, types.Head, "field")


def _is_labelled(head: types.Head, labels: types.Tensors) -> bool:
    try:
        are_apart = types.read_member(head, types.GroupHead, "are_rows_apart")
        if isinstance(head, base.Labelled) and not are_apart:
            # Check the labels of single rows, because a row may be compared with rows of other
            # batches.
            _, present = head.targets(head.label_of(labels))
            return bool(tf.reduce_any(head.weights(labels, present) > 0))
        return float(head.label_weight(labels)) > 0
    except diagnosis.list_run_errors():
        return True  # A wrong label counts as present: training or evaluation reports it.


def _read_targets(head: types.Head, labels: types.Tensors) -> list[Any] | None:
    """Return the targets of labels that are present; None if `head` does not tell which are."""
    if not isinstance(head, types.ExampleHead):
        return None
    try:
        targets, present = head.targets(labels[head.field])
        if isinstance(head, types.WeighingHead):  # A weight of 0 leaves a row out.
            counts = tf.reshape(head.row_weights(labels) > 0, [-1] + [1] * (present.shape.rank - 1))
            present &= counts
    except diagnosis.list_run_errors():
        return None
    mask = present.numpy()
    # A label may be a vector, which is present or missing as a whole.
    mask = np.broadcast_to(mask[(...,) + (np.newaxis,) * (targets.ndim - mask.ndim)], targets.shape)
    return targets.numpy()[mask].tolist()


def _list_values(values: tf.Tensor | tf.RaggedTensor) -> Iterable[Any]:
    """Convert rows to values that Python can compare, with NaN equal to NaN."""
    if isinstance(values, tf.RaggedTensor):
        return values.to_list()
    array = values.numpy()
    return array.tolist() if array.dtype == object else (row.tobytes() for row in array)


def _follow(same: dict[str, Any], name: str, values: Iterable[Any] | None) -> None:
    """Remove a task or a field from `same` once two rows have different values."""
    if values is None:
        del same[name]
        return
    for value in values:
        text = repr(value)
        if same[name] is None:
            same[name] = text
        elif same[name] != text:
            del same[name]
            return


def _no_text(joined_texts: bytes, values: tf.Tensor) -> bytes | None:
    """Return the first value that is not UTF-8; `joined_texts` are the values, a line each."""
    try:
        joined_texts.decode()
    except UnicodeDecodeError:
        return next(value for value in values.numpy().tolist() if _is_no_text(value))
    return None


def _find_odd(joined_texts: bytes) -> str:
    """Return the first text that looks like a list that was not split; "" if no text does.

    A text that was not split has white space at an end, brackets around it, or the character |
    inside.
    """
    # First search all joined texts at once, which is fast: suspicious texts are rare.
    around = b"\n" + joined_texts + b"\n"
    if not any(sign in around for sign in _ODD_SIGNS):
        return ""
    odd = next((value for value in joined_texts.split(b"\n") if _ODD.fullmatch(value)), b"")
    return odd.decode(errors="replace")


def _is_no_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return True
    return False
