"""Describes the numbers of a head that are explained: one for a row, or one for each class.

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
    """The K numbers that a head predicts for a row.

    Attributes:
      task: the task.
      names: K names, such as the classes.
      kind: the kind of `shown`, such as "probability" or "value".
      shown: readable numbers for partial dependence, [B, K].
      scale: the scale of `explained`: "logit", or the same as `kind`.
      explained: additive numbers for integrated gradients, [B, K].
    """

    task: str
    names: Sequence[str]
    kind: str
    shown: tf.Tensor
    scale: str
    explained: tf.Tensor


def describe_output(head: types.Head, logits: tf.Tensor) -> Output | None:
    """Return the predictions of a head as numbers, [B, C] -> [B, K]; None if they are not numbers.

    Probabilities are explained as logits if each class has a logit. Other numbers are explained
    directly: a value, the logarithm of a density, or a score.

    Args:
      head: the fitted head.
      logits: [B, C].
    """
    said = head.predictions(logits)
    classes = [str(name) for name in types.read_member(head, types.ClassHead, "class_names")]
    return (
        _describe_probability(head.name, said, logits, classes)
        or _describe_number(head.name, said)
        or _describe_classes(head.name, said, logits, classes)
    )


def _describe_probability(
    task: str, said: types.Tensors, logits: tf.Tensor, classes: Sequence[str]
) -> Output | None:
    name = next((name for name in _PROBABILITIES if name in said), None)
    # A probability of several logits has no single logit that stands for it.
    if name is None or logits.shape[-1] != 1:
        return None
    # A binary head predicts the probability of its last class, class 1.
    own = classes[-1:] or [name]
    return Output(task, own, "probability", _widen_values(said[name]), "logit", logits)


def _describe_number(task: str, said: types.Tensors) -> Output | None:
    for name in _NUMBERS:
        if name in said and said[name].dtype.is_floating and said[name].shape.rank in (1, 2):
            value = _widen_values(said[name])
            count = value.shape[1]
            if count is not None:
                own = [name] if count == 1 else [f"{name} {number}" for number in range(count)]
                return Output(task, own, name, value, name, value)
    return None


def _describe_classes(
    task: str, said: types.Tensors, logits: tf.Tensor, classes: Sequence[str]
) -> Output | None:
    many, size = said.get("probabilities"), logits.shape[-1]
    if many is None or many.shape.rank != 2 or many.shape[1] != size:
        return None
    own = classes if len(classes) == size else list(map(str, range(size)))
    return Output(task, own, "probability", many, "logit", logits)


def _widen_values(values: tf.Tensor) -> tf.Tensor:
    """Turn [B] into [B, 1]."""
    return values[:, tf.newaxis] if values.shape.rank == 1 else values
