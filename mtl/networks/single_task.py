"""Separate networks on shared columns: the baseline for every other network.

networks.SingleTask.trunk = @networks.MLP()
networks.MLP.layers = [128, 64, 32]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf
from mtl.networks import trunk


@checks.dataclass
class SingleTask(types.Network):
    """h[task] = trunk[task](x): a separate network for each task, on the same columns.

    Tasks still share embedding tables. To share nothing at all, train a run for each head.

    Attributes:
      trunk: built once for each task; variables in `tower_<task>`.
    """

    trunk: Annotated[trunk.Trunk, checks.Part("networks.MLP", arguments=2)]

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}; `Towers.shared` is empty."""
        towers: dict[str, tf.Tensor] = {}
        for group in trunk.group_tasks(tasks):
            scopes = [f"tower_{task}" for task in group]
            outputs = trunk.build_copies(self.trunk, inputs, scopes, training)
            towers |= zip(group, outputs, strict=True)
        return types.Towers(towers)
