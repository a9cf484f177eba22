"""Returns fields of the input rows, such as an id, together with the predictions of the rows.

model_fn = kept_fields.keep_fields(model_fn, ["id"], spec.features)
rows = kept_fields.restore_rows(estimator.predict(...))   # {"id": b"r7", "income/probability": 0.2}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks, spec
from mtl.deferred import compat, tf

# An Estimator cannot return ragged tensors, so lists are padded, and later cut to their length.
_LENGTH = "\0length"
# The number of values of each item in a list of lists; shorter lists are padded with -1.
_COUNTS = "\0counts"


def keep_fields(
    model_fn: Callable[..., Any], names: Sequence[str], own: Collection[str]
) -> Callable[..., Any]:
    """Return a `model_fn` whose predictions begin with fields of the input rows.

    The original `model_fn` gets only the features in `own`, so the added fields do not change
    predictions.

    Args:
      model_fn: takes features, labels and a mode, and returns an EstimatorSpec.
      names: the fields to return; an empty list returns `model_fn` itself.
      own: the names of the features that the model reads.
    """

    def keeping(features: Any, labels: Any, mode: str) -> compat.estimator.EstimatorSpec:
        inputs = {name: values for name, values in features.items() if name in own}
        estimator_spec, fields = model_fn(inputs, labels, mode), {}
        for name in names:
            require_no_output(name, estimator_spec.predictions)
            values = features[name]
            counts = features.get(spec.counts_name(name))
            if counts is not None:
                fields[name + _COUNTS] = counts.to_tensor(-1)
            if isinstance(values, tf.RaggedTensor):
                fields[name + _LENGTH] = values.row_lengths()
                values = values.to_tensor()
            fields[name] = values
        return estimator_spec._replace(predictions={**fields, **estimator_spec.predictions})

    return keeping if names else model_fn


def restore_rows(predicted: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Cut the lists in predicted rows to their length, because an Estimator pads lists.

    Args:
      predicted: {field or prediction: value} for each row, from a `model_fn` of `keep_fields`; this
        function changes these dictionaries.

    Yields:
      The rows, without the entries that hold the lengths of lists.
    """
    for row in predicted:
        for name in [name for name in row if name.endswith(_LENGTH)]:
            length = row.pop(name)
            field = name.removesuffix(_LENGTH)
            row[field] = row[field][:length]
        for name in [name for name in row if name.endswith(_COUNTS)]:
            counts = row.pop(name)
            field = name.removesuffix(_COUNTS)
            row[field] = split_items(row[field], counts[counts >= 0])
        yield row


def split_items(values: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Split the values of a list of lists, [N], into items of `counts` values, [L]."""
    ends = np.cumsum(counts)
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]


def read_batch(batch: Mapping[str, Any], name: str) -> tf.Tensor | tf.RaggedTensor:
    """Convert a field in a batch of predictions back to the tensor that the input had.

    Args:
      batch: {name: [B, ...]}, predictions as arrays.
      name: a field that `keep_fields` has added to the predictions.

    Returns:
      A tensor [B, ...], ragged if the field is a list.
    """
    values, lengths = tf.constant(batch[name]), batch.get(name + _LENGTH)
    return values if lengths is None else tf.RaggedTensor.from_tensor(values, lengths)


def stack_column(values: Sequence[Any]) -> Sequence[Any] | np.ndarray:
    """Return the values of a column as an array, unless the values are texts or differ in shape.

    Args:
      values: the value of each of R rows, as arrays, scalars, bytes or lists of arrays.

    Returns:
      An array [R, ...]. If integers are missing, such as labels: a list with None for missing
      values. For texts, lists of lists, and values of different shapes: the argument `values`
      itself.
    """
    is_unequal = any(isinstance(value, bytes | list) for value in values)
    if is_unequal or len(set(map(np.shape, values))) > 1:
        return values
    array = np.stack(values)
    is_whole = array.ndim == 1 and array.dtype.kind == "i"
    if not is_whole or not (array == spec.MISSING["int64"]).any():
        return array
    return [None if value == spec.MISSING["int64"] else value for value in array.tolist()]


def require_no_output(name: str, outputs: Iterable[str]) -> None:
    """Fail if a field has the name of a prediction, which would replace the field.

    Args:
      name: the name of the field.
      outputs: the names of the predictions of the model.

    Raises:
      UserError: a prediction has the name of the field.
    """
    fix = "The model has a prediction of this name."
    checks.require(name not in outputs, "--keep", "name no prediction", name, fix)
