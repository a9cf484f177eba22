"""A separate network for each task: the baseline for all other networks.

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
    """A separate network for each task, on the same columns.

    `h[task] = trunk[task](x)`. Tasks share only the columns, such as embedding tables. To share no
    variables at all, train a separate run for each head.

    Attributes:
      trunk: the trunk of each task; variables in `tower_<task>`.
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
