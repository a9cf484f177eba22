"""Metrics of some rows of a split: those in which a field has a value.

slices = {"country": ["DE", "US"], "age": [(None, 30), (30, None)]}
slices.build_metrics(slices, heads, logits, features, labels)     # {"income/auc@country=DE": ...}

The rows are cut out of logits and labels, so that what a head makes of them is what it makes of a
split that holds no others. Heads that compare rows with each other, such as `Ranking`, have none.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from mtl import checks, types
from mtl.heads import metrics, together, values

_RULE = "map fields to lists of their values"
_PAIR = "hold values, and pairs (from, to) of numbers or None"


def check(where: str, slices: Mapping[str, Sequence[Any]]) -> None:
    """Fail unless they are {field: values}."""
    checks.mapping(where, slices, _RULE)
    for field, given in slices.items():
        here = f"{where}[{field!r}]"
        checks.is_a(here, given, (list, tuple), "be a list of values")
        for value in given:
            checks.is_a(here, value, (str, int, float, list, tuple), _PAIR)
            if isinstance(value, (list, tuple)):
                checks.require(len(value) == 2, here, _PAIR, value)
                ends = [end for end in value if end is not None]
                checks.require(bool(ends), here, _PAIR, value)
                for end in ends:
                    checks.is_a(here, end, (int, float), _PAIR)
                checks.require(ends == sorted(set(ends)), here, "hold pairs that ascend", value)
        checks.unique(here, [_name(field, value) for value in given])


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
    fields = {**features, **labels}
    for field, given in slices.items():
        for value in given:
            rows = _find_rows(fields[field], field, value)
            if field in labels and isinstance(value, (list, tuple)):
                rows &= values.are_present(labels[field])  # A missing label is in no range.
            own = (_cut(logits, rows), _cut(labels, rows))
            for name, metric in together.build_metrics(apart, *own).items():
                found[f"{name}{metrics.SLICE}{_name(field, value)}"] = metric
    return found


def _find_rows(given: tf.Tensor, field: str, value: Any) -> tf.Tensor:
    """Return which rows have the value, bool [B]."""
    where = f"MultiTaskModel.slices[{field!r}]"
    is_single = isinstance(given, tf.Tensor) and given.shape.rank == 1
    checks.require(is_single, where, "be a field of one value in each example", given.shape)
    if not isinstance(value, (list, tuple)):
        held = values.as_held(given, [value], where, f"field {field!r}")
        return values.is_any(given, held)
    is_number = given.dtype.is_floating or given.dtype.is_integer
    checks.require(is_number, where, "be a field of numbers", given.dtype.name)
    low, high = value
    # The ends as the field holds them: 0.7 of 32 bits is another number than that of 64.
    kind = given.dtype if given.dtype.is_floating else tf.float64
    numbers = tf.cast(given, kind)
    from_low = numbers >= tf.constant(-math.inf if low is None else low, kind)  # NaN is in none.
    return from_low & (numbers < tf.constant(math.inf if high is None else high, kind))


def _cut(fields: types.Tensors, rows: tf.Tensor) -> dict[str, tf.Tensor]:
    return {
        name: tf.ragged.boolean_mask(given, rows)
        if isinstance(given, tf.RaggedTensor)
        else tf.boolean_mask(given, rows)
        for name, given in fields.items()
    }


def _name(field: str, value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return f"{field}={value}"
    low, high = ("" if end is None else f"{end:g}" for end in value)
    return f"{field}={low}..{high}"
