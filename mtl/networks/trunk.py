"""What a trunk is, and how trunks join inputs.

Trunk: callable(inputs {column: [B, D] or [B, H, W, C]}, training) -> [B, H]
hidden = trunk.join_columns("MLP", inputs)                     # [B, sum of D]
hidden = trunk.dense_layers(hidden, (128, 64), "relu", 0.1, False, training)
"""

import math
from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from mtl import checks, layers, types


class Trunk(Protocol):
    """A network body that knows no tasks."""

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Build the trunk: {column: [B, D] or [B, H, W, C]} -> [B, H]."""


def check_settings(
    kind: str, sizes: Sequence[int], activation: str, dropout: float, batch_norm: bool
) -> None:
    """Fail unless the settings of `dense_layers` are good."""
    check_sizes(f"{kind}.layers", sizes)
    checks.one_of(f"{kind}.activation", activation, layers.ACTIVATIONS)
    checks.rate(f"{kind}.dropout", dropout)
    checks.is_a(f"{kind}.batch_norm", batch_norm, bool, "be True or False")


def check_sizes(where: str, sizes: Sequence[int]) -> None:
    """Fail unless `sizes` is a list of whole numbers above zero."""
    checks.is_a(where, sizes, (list, tuple), "be a list of sizes")
    for size in sizes:
        checks.is_a(where, size, int, "hold whole numbers")
        checks.positive(where, size)


def join_images(kind: str, inputs: types.Tensors) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Stack all images to [B, H, W, sum of C], and return the other columns beside them."""
    found = {column: value for column, value in inputs.items() if value.shape.rank == 4}
    others = {column: value for column, value in inputs.items() if column not in found}
    fix = "Give it an Image column, or use MLP."
    checks.require(bool(found), f"{kind} inputs", "hold an image", list(inputs), fix)
    shapes = {column: tuple(value.shape[1:3]) for column, value in found.items()}
    same = len(set(shapes.values())) == 1 and None not in next(iter(shapes.values()))
    checks.require(same, f"{kind} inputs", "be images of one known height and width", shapes)
    return tf.concat(list(found.values()), axis=3), others


def join_columns(kind: str, inputs: types.Tensors) -> tf.Tensor:
    """Flatten every input and join them in the order given: {column: [B, ...]} -> [B, D]."""
    checks.require(len(inputs) > 0, f"{kind} inputs", "hold a column", list(inputs))
    flattened = []
    for column, value in inputs.items():
        shape = value.shape[1:]
        fix = f"Column {column!r} has that shape."
        checks.require(shape.is_fully_defined(), f"{kind} inputs", "have a fixed shape", shape, fix)
        flat = shape.rank == 1
        flattened.append(value if flat else tf.reshape(value, [-1, math.prod(shape)]))
    return tf.concat(flattened, axis=1)


def dense_layers(
    hidden: tf.Tensor,
    sizes: Sequence[int],
    activation: str,
    dropout: float,
    batch_norm: bool,
    training: bool,
) -> tf.Tensor:
    """Stack dense layers, [B, D] -> [B, sizes[-1]], in the scopes hidden_0, hidden_1, ...

    The norm comes before the activation.
    """
    for index, size in enumerate(sizes):
        name = f"hidden_{index}"
        hidden = layers.dense(hidden, size, name, use_bias=not batch_norm)
        if batch_norm:
            hidden = layers.batch_norm(hidden, f"{name}_norm", training)
        hidden = layers.ACTIVATIONS[activation](hidden)
        hidden = layers.dropout(hidden, dropout, f"{name}_dropout", training)
    return hidden
