"""Tools of losses on the representation: reading it, layers on top, corrupted columns.

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
    """A loss of the network's representation of a row.

    Attributes:
      at: "shared" for the joined outputs that all tasks share, or a task for its tower.
    """

    at: Annotated[str, checks.Is(str, "be 'shared', or a task")] = _SHARED

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Fail unless the task exists."""
        super().check(heads)
        checks.one_of(self._where("at"), self.at, [_SHARED, *base.list_towers(heads)])

    def _read(self, activations: types.Activations) -> tf.Tensor:
        return read(self._where("at"), self.at, activations)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfCorruption(moved_inputs.OfColumns, OfRepresentation):
    """A loss of rows with replaced columns; only `columns` may be replaced."""

    are_rows_apart: ClassVar[bool] = False

    def _corrupt(
        self,
        name: str,
        activations: types.Activations,
        share: float,
        replacement: str = "row",
        noise: float = 0.0,
    ) -> dict[str, tf.Tensor]:
        """Return the encoded columns with a share of them replaced, and with noise."""
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
      where: the name of the setting, for errors.
      share: the value.

    Raises:
      UserError: the value is not a number, or not in [0, 1].
    """
    checks.is_a(where, share, (int, float), "be a number in [0, 1]")
    checks.require(0 <= share <= 1, where, "be in [0, 1]", share)


def read(where: str, at: str, activations: types.Activations) -> tf.Tensor:
    """Read the representation of rows.

    Args:
      where: the name of the setting, for errors.
      at: "shared" for the outputs that the tasks share, joined if there are several, or a task.
      activations: the outputs of a pass.

    Returns:
      float32 [B, H].

    Raises:
      UserError: the network shares no output between its tasks.
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
      vectors: [B, H].
      sizes: the units of each layer; may be empty.

    Returns:
      [B, sizes[-1]]; the vectors themselves without sizes.
    """
    for index, size in enumerate(sizes):
        activation = tf.nn.relu if index + 1 < len(sizes) else tf.identity
        vectors = layers.dense(vectors, size, f"layer_{index}", activation)
    return vectors


def require_rows(where: str, values: tf.Tensor) -> None:
    """Fail if a pass has a single row."""
    rule = "have at least two rows in each slice and replica, as it compares rows"
    checks.require(values.shape[0] != 1, where, rule, values.shape[0])


def _replace(name: str, values: tf.Tensor, share: float, replacement: str, where: str) -> tf.Tensor:
    """Replace a column, [B, ...], in a share of the rows: by another row's column, or by 0."""
    rows = perturbations.count_rows(values)
    numbers = draws.draw_rows(name, rows, 2)
    is_replaced = proof.declare(numbers[:, 0] < share)
    is_replaced = tf.reshape(is_replaced, [rows] + [1] * (values.shape.rank - 1))
    if replacement == "zero":
        return tf.where(is_replaced, tf.zeros_like(values), values)
    require_rows(where, values)
    # Every other row is equally likely; float32 may round the product up to `rows - 1`.
    offset = tf.minimum(tf.cast(numbers[:, 1] * tf.cast(rows - 1, tf.float32), tf.int32), rows - 2)
    # 1 + offset lies in [1, rows - 1]: no row is its own partner.
    partners = (tf.range(rows) + 1 + offset) % rows
    return tf.where(is_replaced, tf.gather(values, partners), values)
