"""Hard parameter sharing: a trunk that all tasks share, with a tower for each task.

networks.SharedBottom.trunk = @networks.MLP()
networks.SharedBottom.tower = @tower/networks.MLP()
tower/networks.MLP.layers = [32]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, cast

from mtl import checks, types
from mtl.deferred import tf
from mtl.layers import precision
from mtl.networks import trunk as trunk_lib
from mtl.variables import stacks


@checks.dataclass
class SharedBottom:
    """Hard parameter sharing: a trunk that all tasks share, with a tower for each task.

    `h[task] = tower[task](trunk(x))`. R. Caruana, "Multitask Learning", Machine Learning 28, 1997.

    Attributes:
      trunk: the trunk of all tasks; variables in `trunk`.
      tower: the trunk of each tower, on the output of `trunk`; variables in `tower_<task>`. Without
        a tower (None), the heads read the output of `trunk`.
    """

    trunk: Annotated[trunk_lib.Trunk, checks.Part("networks.MLP", arguments=2)]
    tower: Annotated[trunk_lib.Trunk | None, trunk_lib.check_tower] = None

    @property
    def is_entrywise(self) -> bool:
        """True for a `SharedBottom`, False for a subclass; see `types.EntrywisePart`."""
        return type(self) is SharedBottom

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Run trunk and towers, {column: [B, D] or [B, H, W, C]} -> {task: [B, H]}.

        `Towers.shared` holds the trunk's output.
        """
        with tf.compat.v1.variable_scope("trunk"):
            hidden, shared = precision.share_output(self.trunk(inputs, training))
        tower = self.tower
        if stacks.are_stacked(len(tasks)) and getattr(tower, "can_stack", False):
            tower = cast(trunk_lib.StackingTrunk, tower)
            scopes = [f"tower_{task}" for task in tasks]
            outputs = tower.build_stack({"trunk": hidden}, scopes)
            return types.Towers(dict(zip(tasks, outputs, strict=True)), shared=[shared])
        towers = {task: self._apply_tower(hidden, task, training) for task in tasks}
        return types.Towers(towers, shared=[shared])

    def _apply_tower(self, hidden: tf.Tensor, task: str, training: bool) -> tf.Tensor:
        if self.tower is None:
            return hidden
        with tf.compat.v1.variable_scope(f"tower_{task}"):
            return self.tower({"trunk": hidden}, training)
