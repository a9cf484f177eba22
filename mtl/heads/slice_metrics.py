"""Metrics of some rows of a split: those in which a field has a value.

slices = {"country": ["DE", "US"], "age": [(None, 30), (30, None)]}
slice_metrics.build_metrics(slices, heads, logits, features, labels)     # {"a/auc@country=DE": ...}

The rows are cut out of logits and labels, so that what a head makes of them is what it makes of a
split that holds no others. Heads that compare rows with each other, such as `Ranking`, have none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from mtl import types
from mtl.heads import metrics, together, values
from mtl.heads import slices as slices_lib


def build_metrics(
    slices: Mapping[str, Sequence[Any]],
    heads: Sequence[types.Head],
    logits: types.Tensors,
    features: types.Tensors,
    labels: types.Tensors,
) -> types.Metrics:
    """Build the metrics of each slice, {"<task>/<metric>@<field>=<value>": (value, update)}.

    {task: [B, C]}, {field: [B, ...]} and {field: [B, ...]}. A metric without rows is NaN.

    Raises:
      UserError: a field holds several values, or values of another type.
    """
    found = {}
    # A head that compares rows would compare those of the slice alone: of fewer, all rank higher.
    apart = [head for head in heads if types.read_member(head, types.Head, "are_rows_apart")]
    fields, where = {**features, **labels}, "MultiTaskModel.slices"
    for one in slices_lib.list_slices(slices):
        rows = slices_lib.find_rows(fields, one, where)
        if one.field in labels and one.is_range:
            rows &= values.are_present(labels[one.field])  # A missing label is in no range.
        own = (_cut(logits, rows), _cut(labels, rows))
        for name, metric in together.build_metrics(apart, *own).items():
            found[f"{name}{metrics.SLICE}{one.name}"] = metric
    return found


def _cut(fields: types.Tensors, rows: tf.Tensor) -> dict[str, tf.Tensor]:
    return {
        name: tf.ragged.boolean_mask(given, rows)
        if isinstance(given, tf.RaggedTensor)
        else tf.boolean_mask(given, rows)
        for name, given in fields.items()
    }
