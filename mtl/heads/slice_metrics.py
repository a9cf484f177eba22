"""Metrics of slices, such as the rows of a split with a certain value of a field.

slices = {"country": ["DE", "US"], "age": [(None, 30), (30, None)]}
slice_metrics.build_metrics(slices, heads, logits, features, labels)     # {"a/auc@country=DE": ...}

The metrics of a slice use only the logits and labels of the slice's rows. Heads that compare rows
with each other, such as `Ranking`, have no metrics of slices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mtl import types
from mtl.deferred import tf
from mtl.heads import base, metrics, together, values
from mtl.heads import slices as slices_lib


def build_metrics(
    slices: Mapping[str, Sequence[Any]],
    heads: Sequence[types.Head],
    logits: types.Tensors,
    features: types.Tensors,
    labels: types.Tensors,
) -> types.Metrics:
    """Build the metrics of each slice.

    The metrics of a slice without rows are NaN.

    Args:
      slices: {field: values}.
      heads: the fitted heads; heads that compare rows with each other get no metrics of slices.
      logits: {task: [B, C]}.
      features: {field: [B, ...]}.
      labels: {field: [B, ...]}; a label takes precedence over a feature of the same name.

    Returns:
      {"<task>/<metric>@<field>=<value>": (value, update)}.

    Raises:
      UserError: a field has several values in a row, or has another type than the values of its
        slices.
    """
    slice_metrics = {}
    # A ranking within a slice has fewer rows, so ranks would look better than over all rows.
    row_heads = [
        head for head in heads if types.read_member(head, types.GroupHead, "are_rows_apart")
    ]
    fields, where = {**features, **labels}, "MultiTaskModel.slices"
    for part in slices_lib.list_slices(slices):
        rows = slices_lib.find_rows(fields, part, where)
        if part.field in labels and part.is_range:
            rows &= _are_present(part.field, heads, labels)  # A missing label is in no range.
        slice_tensors = (_cut_fields(logits, rows), _cut_fields(labels, rows))
        for name, metric in together.build_metrics(row_heads, *slice_tensors).items():
            slice_metrics[f"{name}{metrics.SLICE}{part.name}"] = metric
    return slice_metrics


def list_empty(slices: Mapping[str, Sequence[Any]], values: Mapping[str, float]) -> list[str]:
    """List the slices in which no task has a labelled row, from the results of an evaluation.

    Args:
      slices: {field: values}.
      values: {"<task>/<metric>@<slice>": value}, the metrics of the slices; other metrics are
        ignored.

    Returns:
      The names of the slices without labelled rows, such as `country=DE`.
    """
    names = [part.name for part in slices_lib.list_slices(slices)]
    return [name for name in names if _is_empty(name, values)]


def _is_empty(name: str, values: Mapping[str, float]) -> bool:
    losses = _of_slice(values, "average_loss", name)
    has_nan = any(_of_slice(values, base.NAN_PREDICTIONS, name))
    return bool(losses) and all(map(math.isnan, losses)) and not has_nan


def _of_slice(values: Mapping[str, float], metric: str, name: str) -> list[float]:
    ending = f"/{metric}{metrics.SLICE}{name}"
    return [float(value) for metric, value in values.items() if metric.endswith(ending)]


def _are_present(field: str, heads: Sequence[types.Head], labels: types.Tensors) -> tf.Tensor:
    """Return a mask of the present labels of a field, as the head of the field defines them."""
    field_heads = [
        head for head in heads if isinstance(head, base.Labelled) and head.field == field
    ]
    return (
        field_heads[0].are_present(labels[field])
        if field_heads
        else values.are_ids_present(labels[field])
    )


def _cut_fields(fields: types.Tensors, rows: tf.Tensor) -> dict[str, tf.Tensor]:
    return {
        name: tf.ragged.boolean_mask(tensor, rows)
        if isinstance(tensor, tf.RaggedTensor)
        else tf.boolean_mask(tensor, rows)
        for name, tensor in fields.items()
    }
