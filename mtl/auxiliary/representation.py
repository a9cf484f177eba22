"""Tools of losses on the representation: reading it, layers on top, corrupted columns.

vectors = representation.read("Contrastive", "shared", activations)          # [B, H]
vectors = representation.stack_layers(vectors, (64, 32))                     # the last one linear
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
      at: "shared" for all outputs that the tasks share, joined, or a task, for its tower.
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
    """A loss of rows with replaced columns; `columns` names those that may be replaced."""

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
            moved = dataclasses.replace(space, inputs=changed)
            changed = moved.apply(moved.draw_normal(f"{name}/noise", noise))
        return changed


def check_share(where: str, share: float) -> None:
    """Fail unless the value is a number in [0, 1]."""
    checks.is_a(where, share, (int, float), "be a number in [0, 1]")
    checks.require(0 <= share <= 1, where, "be in [0, 1]", share)


def read(where: str, at: str, activations: types.Activations) -> tf.Tensor:
    """Return the representation of rows, [B, H] float32; several outputs are joined.

    Args:
      where: the name of the setting, for errors.
      at: "shared", or a task.
      activations: the outputs of a pass.

    Raises:
      UserError: the network shares no output between its tasks.
    """
    if at != _SHARED:
        return activations.towers[at]
    found = getattr(activations.towers, "shared", ())
    fix = "Name a task there, whose tower is read."
    checks.require(bool(found), where, "be a task where the network shares no output", at, fix)
    return trunk.join_columns(where, {str(n): values for n, values in enumerate(found)})


def stack_layers(vectors: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
    """Stack dense layers with ReLU between them, [B, H] -> [B, sizes[-1]]; the last is linear."""
    for index, size in enumerate(sizes):
        activation = tf.nn.relu if index + 1 < len(sizes) else tf.identity
        vectors = layers.dense(vectors, size, f"layer_{index}", activation)
    return vectors


def require_rows(where: str, values: tf.Tensor) -> None:
    """Fail if a pass has a single row."""
    rule = "have two rows at least in each slice and replica: it compares rows with each other"
    checks.require(values.shape[0] != 1, where, rule, values.shape[0])


def _replace(name: str, values: tf.Tensor, share: float, replacement: str, where: str) -> tf.Tensor:
    """Replace a column, [B, ...], in a share of the rows: by another row's column, or by 0."""
    rows = perturbations.count_rows(values)
    drawn = draws.draw_rows(name, rows, 2)
    is_replaced = proof.declare(drawn[:, 0] < share)
    is_replaced = tf.reshape(is_replaced, [rows] + [1] * (values.shape.rank - 1))
    if replacement == "zero":
        return tf.where(is_replaced, tf.zeros_like(values), values)
    require_rows(where, values)
    # Every other row is equally likely; float32 may round the product up to `rows - 1`.
    apart = tf.minimum(tf.cast(drawn[:, 1] * tf.cast(rows - 1, tf.float32), tf.int32), rows - 2)
    # 1 + apart lies in [1, rows - 1]: no row is its own partner.
    partners = (tf.range(rows) + 1 + apart) % rows
    return tf.where(is_replaced, tf.gather(values, partners), values)
