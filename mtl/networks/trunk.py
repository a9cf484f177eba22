"""The protocol of trunks (network bodies), and helpers for inputs and copies of trunks.

Trunk: callable(inputs {column: [B, D] or [B, H, W, C]}, training) -> [B, H], or a map [B, H, W, C]
hidden = trunk.join_columns("MLP", inputs)                     # [B, sum of D]
hidden = trunk.dense_layers(hidden, (128, 64), "relu", 0.1, False, training)
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol

from mtl import checks, layers, types
from mtl.deferred import tf
from mtl.variables import stacks


class Trunk(Protocol):
    """A network body that does not depend on the tasks."""

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Build the trunk: {column: [B, D] or [B, H, W, C]} -> [B, H], or a map [B, H, W, C]."""


class StackingTrunk(Trunk, Protocol):
    """A trunk that can build equal copies together, with the variables of all copies stacked."""

    @property
    @abc.abstractmethod
    def can_stack(self) -> bool:
        """True if `build_stack` supports the settings of the trunk."""

    @abc.abstractmethod
    def build_stack(self, inputs: types.Tensors, scopes: Sequence[str]) -> list[tf.Tensor]:
        """Build a copy of the trunk in each of T scopes, with the variables of all copies stacked.

        Stacks get the same initial values as separate variables; see `mtl.variables.stacks`.

        Args:
          inputs: the columns {column: [B, ...]} that all copies read.
          scopes: T variable scopes, relative to the current scope.

        Returns:
          The outputs of the T copies, [B, H] each.
        """


def group_tasks(tasks: Sequence[str]) -> list[list[str]]:
    """Split tasks into groups that are built together.

    Args:
      tasks: the names of the tasks.

    Returns:
      A single group of all tasks; within `stacks.separate_tasks`, a group for each task.
    """
    return [[task] for task in tasks] if stacks.are_separate() else [list(tasks)]


def build_towers(
    tower: Trunk | None, inputs: Sequence[tf.Tensor], tasks: Sequence[str], training: bool
) -> dict[str, tf.Tensor]:
    """Build a tower for each task, in the scope `tower_<task>`.

    Args:
      tower: the trunk that is built for each task; None returns the inputs.
      inputs: the input [B, D] of each of the T towers, in the order of the tasks.
      tasks: the names of the T tasks.
      training: True in a training step.

    Returns:
      The outputs of the towers, {task: [B, H]}.
    """
    if tower is None:
        return dict(zip(tasks, inputs, strict=True))
    inputs_by_task = dict(zip(tasks, inputs, strict=True))
    towers: dict[str, tf.Tensor] = {}
    for group in group_tasks(tasks):
        scopes = [f"tower_{task}" for task in group]
        outputs = build_copies(tower, [inputs_by_task[task] for task in group], scopes, training)
        towers |= zip(group, outputs, strict=True)
    return towers


def build_copies(
    part: Trunk,
    inputs: types.Tensors | Sequence[tf.Tensor],
    scopes: Sequence[str],
    training: bool,
) -> list[tf.Tensor]:
    """Build a copy of a trunk in each of N scopes.

    If the trunk has a method `build_copies(inputs, scopes, training)`, this method builds all
    copies.

    Args:
      part: the trunk that is copied.
      inputs: the columns {column: [B, ...]} that all copies read, or a separate input [B, D] for
        each copy.
      scopes: the variable scope of each copy.
      training: True in a training step.

    Returns:
      The outputs of the N copies, [B, H] each.
    """
    at_once = getattr(part, "build_copies", None)
    # A single copy would not profit from a joint matrix product.
    if at_once is not None and len(scopes) > 1:
        return at_once(inputs, scopes, training)
    outputs = []
    for index, scope in enumerate(scopes):
        copy_inputs = inputs if isinstance(inputs, Mapping) else {"inputs": inputs[index]}
        with tf.compat.v1.variable_scope(scope):
            outputs.append(part(copy_inputs, training))
    return outputs


def stack_vectors(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Stack the outputs of experts or stages.

    Args:
      vectors: N of [B, H].

    Returns:
      The stacked vectors, [B, N, H].

    Raises:
      UserError: an output is a map [B, H, W, C], and not a vector.
    """
    for vector in vectors:
        fix = "SharedBottom, SingleTask and MTAN take trunks that return maps."
        where, rule = "an expert or a stage that is mixed with others", "return vectors, [B, H]"
        checks.require(vector.shape.rank == 2, where, rule, tuple(vector.shape), fix)
    return tf.stack(vectors, axis=1)


def check_trunks(where: str, trunks: Sequence[Trunk]) -> None:
    """Check a setting that holds trunks.

    Args:
      where: the name of the setting, used in error messages.
      trunks: the value of the setting, which should be a list of trunks.

    Raises:
      UserError: `trunks` is not a list, is empty, or has an entry that is not a trunk.
    """
    checks.is_a(where, trunks, (list, tuple), "be a list of trunks")
    checks.require(len(trunks) > 0, where, "hold a trunk", trunks)
    for part in trunks:
        checks.require_part(where, part, "networks.MLP", arguments=2)


def check_tower(where: str, tower: Trunk | None) -> None:
    """Fail unless `tower` is a trunk or None."""
    if tower is not None:
        checks.require_part(where, tower, "networks.MLP", arguments=2)


def check_sizes(where: str, sizes: Sequence[int]) -> None:
    """Check a setting that holds the sizes of layers.

    Args:
      where: the name of the setting, used in error messages.
      sizes: the value of the setting, which may be empty.

    Raises:
      UserError: `sizes` is not a list of whole numbers above 0.
    """
    checks.is_a(where, sizes, (list, tuple), "be a list of sizes")
    for size in sizes:
        checks.is_a(where, size, int, "hold whole numbers")
        checks.positive(where, size)


Sizes = Annotated[Sequence[int], check_sizes]
"""Sizes of layers."""

SomeSizes = Annotated[Sequence[int], check_sizes, checks.Filled("hold a size")]
"""Sizes of one or more layers."""

Activation = Annotated[str, checks.OneOf(layers.ACTIVATIONS)]
"""A name in `mtl.layers.ACTIVATIONS`."""


def join_images(kind: str, inputs: types.Tensors) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Stack all images along their channels, and separate all other columns.

    Args:
      kind: the class that reads the columns, used in error messages.
      inputs: {column: an image [B, H, W, C], or a value of another shape}.

    Returns:
      The images, stacked to [B, H, W, sum of C], and all other columns.

    Raises:
      UserError: there is no image, or the sizes of images differ or are unknown.
    """
    images = {column: value for column, value in inputs.items() if value.shape.rank == 4}
    vectors = {column: value for column, value in inputs.items() if column not in images}
    fix = "Add an Image column, or use MLP."
    checks.require(bool(images), f"{kind} inputs", "hold an image", list(inputs), fix)
    shapes = {column: tuple(value.shape[1:3]) for column, value in images.items()}
    is_same = len(set(shapes.values())) == 1 and None not in next(iter(shapes.values()))
    checks.require(is_same, f"{kind} inputs", "be images of the same known size", shapes)
    return tf.concat(list(images.values()), axis=3), vectors


def join_maps(kind: str, inputs: types.Tensors) -> tf.Tensor:
    """Stack images along their channels.

    Args:
      kind: the class that reads the images, used in error messages.
      inputs: {column: [B, H, W, C]}.

    Returns:
      The joint image, [B, H, W, sum of C].

    Raises:
      UserError: there is no image, a column is not an image, or the sizes of images differ or are
        unknown.
    """
    images, vectors = join_images(kind, inputs)
    fix = "A vector cannot be part of a feature map."
    checks.require(not vectors, f"{kind} inputs", "all be images", list(vectors), fix)
    return images


def join_columns(kind: str, inputs: types.Tensors) -> tf.Tensor:
    """Flatten all columns, and concatenate them in the order of the inputs.

    Args:
      kind: the class that reads the columns, used in error messages.
      inputs: {column: [B, ...]}; all sizes except B are known.

    Returns:
      The joint vectors, [B, D].

    Raises:
      UserError: there is no column, or the shape of a column is unknown.
    """
    checks.require(len(inputs) > 0, f"{kind} inputs", "hold a column", list(inputs))
    vectors = []
    for column, value in inputs.items():
        shape = value.shape[1:]
        fix = f"Column {column!r} has that shape."
        checks.require(shape.is_fully_defined(), f"{kind} inputs", "have a fixed shape", shape, fix)
        is_vector = shape.rank == 1
        vectors.append(value if is_vector else tf.reshape(value, [-1, math.prod(shape)]))
    return tf.concat(vectors, axis=1)


def dense_layers(
    hidden: tf.Tensor,
    sizes: Sequence[int],
    activation: str,
    dropout: float,
    batch_norm: bool,
    training: bool,
) -> tf.Tensor:
    """Stack dense layers in the scopes hidden_0, hidden_1, ...

    Args:
      hidden: the inputs of the first layer, [B, D].
      sizes: the numbers of units of the layers; without layers, `hidden` is returned.
      activation: a name in `layers.ACTIVATIONS`.
      dropout: the rate after each activation, in [0, 1).
      batch_norm: True applies batch norm before the activation.
      training: True in a training step.

    Returns:
      The output of the last layer, [B, sizes[-1]].
    """
    for index, size in enumerate(sizes):
        name = f"hidden_{index}"
        # Batch norm subtracts the mean, so a bias would have no effect.
        hidden = layers.dense(hidden, size, name, use_bias=not batch_norm)
        hidden = finish_layer(hidden, name, activation, dropout, batch_norm, training)
    return hidden


def finish_layer(
    hidden: tf.Tensor, name: str, activation: str, dropout: float, batch_norm: bool, training: bool
) -> tf.Tensor:
    """Apply batch norm, activation and dropout to the output of a linear layer.

    Args:
      hidden: the output of the linear layer, [B, ..., H].
      name: the name of the layer, for the scopes of its parts.
      activation: a name in `layers.ACTIVATIONS`.
      dropout: the rate, in [0, 1).
      batch_norm: True applies batch norm first.
      training: True in a training step.

    Returns:
      The output of the layer, in the shape of `hidden`.
    """
    if batch_norm:
        hidden = layers.batch_norm(hidden, f"{name}_norm", training)
    hidden = layers.ACTIVATIONS[activation](hidden)
    return layers.dropout(hidden, dropout, f"{name}_dropout", training)
