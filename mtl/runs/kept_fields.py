"""Passes fields of rows through the graph of predictions, to return both together.

model_fn = kept_fields.keep_fields(model_fn, ["id"], spec.features)
rows = kept_fields.restore_rows(estimator.predict(...))   # {"id": b"r7", "income/probability": 0.2}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks, spec
from mtl.deferred import compat, tf

# An Estimator cannot predict ragged tensors: lists are padded, and cut again.
_LENGTH = "\0length"


def keep_fields(
    model_fn: Callable[..., Any], names: Sequence[str], own: Collection[str]
) -> Callable[..., Any]:
    """Return `model_fn` with these fields of the same rows before its predictions.

    `model_fn` gets only its `own` features: kept fields do not change predictions.

    Args:
      model_fn: gives predictions from features, labels and a mode.
      names: the fields to return; none returns `model_fn` itself.
      own: the features that the model reads.
    """

    def keeping(features: Any, labels: Any, mode: str) -> compat.estimator.EstimatorSpec:
        given = {name: values for name, values in features.items() if name in own}
        made, fields = model_fn(given, labels, mode), {}
        for name in names:
            require_no_output(name, made.predictions)
            values = features[name]
            if isinstance(values, tf.RaggedTensor):
                fields[name + _LENGTH] = values.row_lengths()
                values = values.to_tensor()
            fields[name] = values
        return made._replace(predictions={**fields, **made.predictions})

    return keeping if names else model_fn


def restore_rows(predicted: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the predictions of such a `model_fn`; lists have their original length."""
    for row in predicted:
        for name in [name for name in row if name.endswith(_LENGTH)]:
            length = row.pop(name)
            field = name.removesuffix(_LENGTH)
            row[field] = row[field][:length]
        yield row


def read_batch(batch: Mapping[str, Any], name: str) -> tf.Tensor | tf.RaggedTensor:
    """Return a kept field of a batch of predictions as a tensor like the input.

    Args:
      batch: {name: [B, ...]} of predictions as arrays.
      name: a kept field; the length of its lists stands beside it.
    """
    values, lengths = tf.constant(batch[name]), batch.get(name + _LENGTH)
    return values if lengths is None else tf.RaggedTensor.from_tensor(values, lengths)


def stack_column(values: Sequence[Any]) -> Sequence[Any] | np.ndarray:
    """Return the values of rows as one array if they share a shape and are not text.

    An absent integer, such as a missing label, is None.
    """
    is_text = any(isinstance(value, bytes) for value in values)
    if is_text or len(set(map(np.shape, values))) > 1:
        return values
    array = np.stack(values)
    is_whole = array.ndim == 1 and array.dtype.kind == "i"
    if not is_whole or not (array == spec.MISSING["int64"]).any():
        return array
    return [None if value == spec.MISSING["int64"] else value for value in array.tolist()]


def require_no_output(name: str, outputs: Iterable[str]) -> None:
    """Fail if a field has the name of a prediction, which would replace it."""
    fix = "The model gives a prediction of this name."
    checks.require(name not in outputs, "--keep", "name no prediction", name, fix)
