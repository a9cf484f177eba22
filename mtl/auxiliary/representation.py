"""Base classes and functions for losses on the representation: layers, corrupted columns.

vectors = representation.read("Contrastive", "shared", activations)          # [B, H]
vectors = representation.stack_layers(vectors, (64, 32))                     # the last is linear
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from mtl import checks, layers, types
from mtl.auxiliary import base, moved_inputs, perturbations
from mtl.deferred import tf
from mtl.example_gradients import proof
from mtl.networks import trunk
from mtl.step import draws

_SHARED = "shared"
REPLACEMENTS = ("row", "zero")


@checks.dataclass
class OfRepresentation(base.Base):
    """The base class of losses that read the network's representation of a row.

    Attributes:
      at: "shared" for the outputs of the network that tasks share, or the name of a task for its
        tower.
    """

    at: Annotated[str, checks.Is(str, "be 'shared', or a task")] = _SHARED

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Check that the task exists.

        Raises:
          UserError: `at` is neither "shared" nor a task with a tower.
        """
        super().check(heads)
        checks.one_of(self._where("at"), self.at, [_SHARED, *base.list_towers(heads)])

    def _read(self, activations: types.Activations) -> tf.Tensor:
        return read(self._where("at"), self.at, activations)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfCorruption(moved_inputs.OfColumns, OfRepresentation):
    """The base class of losses that replace some columns of rows."""

    are_rows_apart: ClassVar[bool] = False

    def _corrupt(
        self,
        name: str,
        activations: types.Activations,
        share: float,
        replacement: str = "row",
        noise: float = 0.0,
    ) -> dict[str, tf.Tensor]:
        """Replace a share of the encoded columns, and add noise."""
        space = self.open_space(activations.inputs)
        changed = dict(activations.inputs)
        for column in space.columns if share else ():
            changed[column] = _replace(
                f"{name}/{column}", changed[column], share, replacement, self._where("columns")
            )
        if noise:
            changed_space = dataclasses.replace(space, inputs=changed)
            changed = changed_space.apply(changed_space.draw_normal(f"{name}/noise", noise))
        return changed


def check_share(where: str, share: float) -> None:
    """Check that a value is a number in [0, 1].

    Args:
      where: the name of the setting, for error messages.
      share: the value.

    Raises:
      UserError: the value is not a number, or not in [0, 1].
    """
    checks.is_a(where, share, (int, float), "be a number in [0, 1]")
    checks.require(0 <= share <= 1, where, "be in [0, 1]", share)


def read(where: str, at: str, activations: types.Activations) -> tf.Tensor:
    """Read the representation of rows.

    Args:
      where: the name of the setting, for error messages.
      at: "shared" for the outputs that tasks share, which are concatenated, or the name of a task.
      activations: the outputs of a forward pass.

    Returns:
      float32 [B, H].

    Raises:
      UserError: the network has no output that tasks share.
    """
    if at != _SHARED:
        return activations.towers[at]
    outputs = getattr(activations.towers, "shared", ())
    fix = "Name a task, whose tower is then read."
    checks.require(bool(outputs), where, "be a task, as the network shares no output", at, fix)
    return trunk.join_columns(where, {str(n): values for n, values in enumerate(outputs)})


def stack_layers(vectors: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
    """Stack dense layers with ReLU between them; the last layer is linear.

    Args:
      vectors: the inputs, [B, H].
      sizes: the units of each layer; [] for no layer.

    Returns:
      [B, sizes[-1]]; the inputs themselves if there is no layer.
    """
    for index, size in enumerate(sizes):
        activation = tf.nn.relu if index + 1 < len(sizes) else tf.identity
        vectors = layers.dense(vectors, size, f"layer_{index}", activation)
    return vectors


def require_rows(where: str, values: tf.Tensor) -> None:
    """Check that a forward pass has at least two rows.

    Args:
      where: the name of the part, for error messages.
      values: [B, ...]. If the number of rows B is unknown while the graph is built, nothing is
        checked.

    Raises:
      UserError: B is 1.
    """
    rule = "get at least two rows in each micro-batch and replica, because it compares rows"
    checks.require(values.shape[0] != 1, where, rule, values.shape[0])


def _replace(name: str, values: tf.Tensor, share: float, replacement: str, where: str) -> tf.Tensor:
    """Replace a column [B, ...] in a share of the rows, by the column of another row or by 0."""
    rows = perturbations.count_rows(values)
    numbers = draws.draw_rows(name, rows, 2)
    is_replaced = proof.declare(numbers[:, 0] < share)
    is_replaced = tf.reshape(is_replaced, [rows] + [1] * (values.shape.rank - 1))
    if replacement == "zero":
        return tf.where(is_replaced, tf.zeros_like(values), values)
    require_rows(where, values)
    # Each other row is drawn with the same probability. The minimum is taken because float32 may
    # round the product up to `rows - 1`.
    offset = tf.minimum(tf.cast(numbers[:, 1] * tf.cast(rows - 1, tf.float32), tf.int32), rows - 2)
    # 1 + offset is in [1, rows - 1], so a row is never its own partner.
    partners = (tf.range(rows) + 1 + offset) % rows
    return tf.where(is_replaced, tf.gather(values, partners), values)
