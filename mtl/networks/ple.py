"""Experts of single tasks beside shared ones, in one level or several.

networks.PLE.experts = [@level_0/networks.MLP(), @level_1/networks.MLP()]
networks.PLE.num_specific = 2
networks.PLE.num_shared = 2
networks.PLE.tower = @tower/networks.MLP()
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from mtl import checks, types
from mtl.layers import precision
from mtl.networks import gates, trunk

tf1 = tf.compat.v1

_SHARED = "shared"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PLE(types.Network):
    """Progressive layered extraction; with one level it is CGC, customized gate control.

    H. Tang et al., "Progressive Layered Extraction (PLE): A Novel Multi-Task Learning Model for
    Personalized Recommendations", RecSys 2020, https://doi.org/10.1145/3383313.3412236.

    At each level a task has `num_specific` experts, and all share `num_shared` more. The gate of a
    task weighs its own experts and the shared ones; the shared gate, which the last level does
    without, weighs all of them. A group (a task, or the shared one) feeds what its gate gave to its
    experts and its gate at the next level; at the first level all of them see the columns.

    Attributes:
      experts: one for each level, from the first; variables in
        `level_<l>/task_<task>/expert_<i>` and `level_<l>/shared/expert_<i>`.
      num_specific: the experts of a task at each level, at least 1.
      num_shared: the shared experts at each level, at least 1.
      tower: built for each task on the last mixture; variables in `tower_<task>`. None hands the
        mixture to the head.
      gate: weighs experts; variables in `level_<l>/task_<task>/gate` and `level_<l>/shared/gate`.
    """

    experts: Sequence[trunk.Trunk]
    num_specific: int = 2
    num_shared: int = 2
    tower: trunk.Trunk | None = None
    gate: gates.Gate = gates.Softmax()

    def __post_init__(self):
        checks.is_a("PLE.experts", self.experts, (list, tuple), "be a list, an expert a level")
        checks.require(len(self.experts) > 0, "PLE.experts", "hold a level", self.experts)
        for expert in self.experts:
            checks.require_part("PLE.experts", expert, "networks.MLP", arguments=2)
        checks.whole("PLE.num_specific", self.num_specific, 1)
        checks.whole("PLE.num_shared", self.num_shared, 1)
        trunk.check_tower("PLE.tower", self.tower)
        checks.require_part("PLE.gate", self.gate, "gates.Softmax", arguments=4)

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        The shared experts of the last level are what tasks share.
        """
        groups = [*(f"task_{task}" for task in tasks), _SHARED]
        joined = trunk.join_columns("PLE", inputs)
        given = dict.fromkeys(groups, joined)  # What the experts and the gate of a group see.
        for level, expert in enumerate(self.experts):
            is_last = level == len(self.experts) - 1
            with tf1.variable_scope(f"level_{level}"):
                first = inputs if level == 0 else None
                found = self._experts(expert, first, given, training)
                found[_SHARED], shared = precision.share_output(found[_SHARED])
                given = {
                    group: self._mixed(group, given[group], found, training)
                    for group in (groups[:-1] if is_last else groups)
                }
        mixed = [given[group] for group in groups[:-1]]
        return types.Towers(trunk.build_towers(self.tower, mixed, tasks, training), shared=[shared])

    def _experts(
        self,
        expert: trunk.Trunk,
        columns: types.Tensors | None,
        given: types.Tensors,
        training: bool,
    ) -> dict[str, tf.Tensor]:
        """Build the experts of every group: {group: [B, D]} -> {group: [B, E, H]}.

        Args:
          expert: one of them.
          columns: what all of them see at the first level; None at the others.
          given: what each group sees.
          training: as for the network.
        """
        found: dict[str, tf.Tensor] = {}
        # Under a surgery the groups of tasks are built by themselves, and so is the shared one.
        for together in trunk.group_tasks(list(given)):
            owners = [group for group in together for _ in range(self._count(group))]
            scopes = [f"{g}/expert_{i}" for g in together for i in range(self._count(g))]
            inputs = columns if columns is not None else [given[owner] for owner in owners]
            made = iter(trunk.build_copies(expert, inputs, scopes, training))
            for group in together:
                found[group] = tf.stack([next(made) for _ in range(self._count(group))], axis=1)
        return found

    def _count(self, group: str) -> int:
        return self.num_shared if group == _SHARED else self.num_specific

    def _mixed(
        self, group: str, inputs: tf.Tensor, found: types.Tensors, training: bool
    ) -> tf.Tensor:
        """Weigh the experts that a group sees: its own and the shared ones, [B, H]."""
        seen = list(found) if group == _SHARED else [group, _SHARED]
        experts = tf.concat([found[other] for other in seen], axis=1)
        names = [f"{other}_{index}" for other in seen for index in range(self._count(other))]
        scopes = [f"{group}/gate"]
        return gates.build_mixtures(self.gate, inputs, experts, scopes, names, training)[0]
