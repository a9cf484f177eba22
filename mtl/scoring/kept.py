"""Fields of a split that come back with its predictions, through the graph that makes them.

model_fn = kept.keep_fields(model_fn, ["id"], spec.features)    # of an Estimator, in prediction
rows = kept.restore_rows(estimator.predict(...))          # {"id": b"r7", "income/probability": 0.2}
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mtl import checks, compat, spec

# An Estimator predicts no ragged tensors: rows of a list are filled up, and cut again.
_LENGTH = "\0length"


def keep_fields(
    model_fn: Callable[..., Any], names: Sequence[str], own: Collection[str]
) -> Callable[..., Any]:
    """Return `model_fn` whose predictions come behind these fields of the same rows.

    It sees its `own` features alone: what is kept changes no prediction.
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
    """Yield what an Estimator with such a `model_fn` predicts, with lists as long as they were."""
    for row in predicted:
        for name in [name for name in row if name.endswith(_LENGTH)]:
            length = row.pop(name)
            field = name.removesuffix(_LENGTH)
            row[field] = row[field][:length]
        yield row


def read_batch(batch: Mapping[str, Any], name: str) -> tf.Tensor | tf.RaggedTensor:
    """Return a kept field of a batch of predictions as the tensor that it was."""
    values, lengths = tf.constant(batch[name]), batch.get(name + _LENGTH)
    return values if lengths is None else tf.RaggedTensor.from_tensor(values, lengths)


def stack_column(values: Sequence[Any]) -> Sequence[Any] | np.ndarray:
    """Return the values of rows as one array, where they have one shape and are no text.

    An integer that is absent, as a label may be, is None.
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
    """Fail if a field has the name of a prediction, which would take its place."""
    fix = "The model gives a prediction of this name."
    checks.require(name not in outputs, "--keep", "name no prediction", name, fix)
