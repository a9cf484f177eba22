"""Describes the predictions of a head as numbers to explain: one per row, or one per class.

output = outputs.describe_output(head, logits)
output.names, output.shown, output.explained          # ("a", "b"), [B, 2], [B, 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mtl import types
from mtl.deferred import tf

_NUMBERS = ("value", "predictions", "log_density", "score")
_PROBABILITIES = ("probability", "logistic")


class Output(NamedTuple):
    """The K numbers that a head predicts for each row of a batch.

    Attributes:
      task: the name of the task.
      names: the names of the K numbers, such as the classes.
      kind: the kind of the numbers in `shown`, such as "probability" or "value".
      shown: the numbers that partial dependence shows, such as probabilities, [B, K].
      scale: the scale of the numbers in `explained`: "logit", or the same as `kind`.
      explained: the numbers that integrated gradients divide into attributions, such as logits, [B,
        K].
    """

    task: str
    names: Sequence[str]
    kind: str
    shown: tf.Tensor
    scale: str
    explained: tf.Tensor


def describe_output(head: types.Head, logits: tf.Tensor) -> Output | None:
    """Return a head's predictions as numbers, [B, C] -> [B, K]; None if they are not numbers.

    A probability is explained by its logit, so the head needs a logit for each class. Numbers that
    are not probabilities, such as a value, the logarithm of a density or a score, are explained
    without a logit.

    Args:
      head: the fitted head.
      logits: the logits of the head, [B, C].
    """
    predictions = head.predictions(logits)
    classes = [str(name) for name in types.read_member(head, types.ClassHead, "class_names")]
    return (
        _describe_probability(head.name, predictions, logits, classes)
        or _describe_number(head.name, predictions)
        or _describe_classes(head.name, predictions, logits, classes)
    )


def _describe_probability(
    task: str, predictions: types.Tensors, logits: tf.Tensor, classes: Sequence[str]
) -> Output | None:
    name = next((name for name in _PROBABILITIES if name in predictions), None)
    # If a probability depends on several logits, no single logit explains it.
    if name is None or logits.shape[-1] != 1:
        return None
    # A binary head predicts the probability of its last class, class 1.
    names = classes[-1:] or [name]
    return Output(task, names, "probability", _widen_values(predictions[name]), "logit", logits)


def _describe_number(task: str, predictions: types.Tensors) -> Output | None:
    for name in _NUMBERS:
        if (
            name in predictions
            and predictions[name].dtype.is_floating
            and predictions[name].shape.rank in (1, 2)
        ):
            value = _widen_values(predictions[name])
            count = value.shape[1]
            if count is not None:
                names = [name] if count == 1 else [f"{name} {number}" for number in range(count)]
                return Output(task, names, name, value, name, value)
    return None


def _describe_classes(
    task: str, predictions: types.Tensors, logits: tf.Tensor, classes: Sequence[str]
) -> Output | None:
    probabilities, size = predictions.get("probabilities"), logits.shape[-1]
    if probabilities is None or probabilities.shape.rank != 2 or probabilities.shape[1] != size:
        return None
    names = classes if len(classes) == size else list(map(str, range(size)))
    return Output(task, names, "probability", probabilities, "logit", logits)


def _widen_values(values: tf.Tensor) -> tf.Tensor:
    """Reshape [B] to [B, 1]."""
    return values[:, tf.newaxis] if values.shape.rank == 1 else values
