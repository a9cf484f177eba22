"""AdaTT: every task has experts, and each task weighs the experts of all tasks.

networks.AdaTT.experts = [@level_0/networks.MLP(), @level_1/networks.MLP()]
networks.AdaTT.num_native = 2
networks.AdaTT.tower = @tower/networks.MLP()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.layers import precision
from mtl.networks import expert_groups, gates, trunk

_SHARED = "shared"


@checks.dataclass
class AdaTT(types.Network):
    """Adaptive task-to-task fusion: each task has experts, and weighs all tasks' experts.

    At level l, task t gets
    `h[l][t] = sum_(s, e) g[l][t, s, e] f[l][s, e](h[l-1][s]) + sum_e v[l][t, e] f[l][t, e]`. D. Li
    et al., "AdaTT: Adaptive Task-to-Task Fusion Network for Multitask Learning in Recommendations",
    KDD 2023, arXiv:2304.04959. At each level, every task has native experts f. The gate g of a task
    weighs the experts of all tasks. A linear combination of the task's native experts is added,
    whose initial weights v are equal and sum to 1; in the authors' code, the initial weights are
    random. Shared experts form another group, which is treated like a task at all levels except the
    last (the general form of the paper).

    Attributes:
      experts: a trunk for each level, in order; variables in `level_<l>/task_<task>/expert_<i>` and
        `level_<l>/shared/expert_<i>`.
      num_native: the number of experts of a task at each level, at least 1.
      num_shared: the number of shared experts at each level; 0 for none.
      tower: the trunk on each task's output h of the last level; variables in `tower_<task>`.
        Without a tower (None), the head reads the output h.
      gate: weighs experts; variables in `level_<l>/task_<task>/gate` and `level_<l>/shared/gate`.
    """

    ordered_variables = "^network/.*/gate/"
    experts: Annotated[Sequence[trunk.Trunk], trunk.check_trunks]
    num_native: checks.Count = 2
    num_shared: checks.Natural = 0
    tower: Annotated[trunk.Trunk | None, trunk.check_tower] = None
    gate: Annotated[gates.Gate, checks.Part("gates.Softmax", arguments=4)] = gates.Softmax()

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        `Towers.shared` holds all experts of the last level.
        """
        counts = {f"task_{task}": self.num_native for task in tasks}
        counts |= {_SHARED: self.num_shared} if self.num_shared else {}
        inputs_of_groups = dict.fromkeys(counts, trunk.join_columns("AdaTT", inputs))
        for level, expert in enumerate(self.experts):
            # Experts of the first level read columns, which may be images.
            columns = inputs if level == 0 else None
            is_last = level == len(self.experts) - 1
            with tf1.variable_scope(f"level_{level}"):
                experts = expert_groups.build_experts(
                    expert, inputs_of_groups, counts, training, columns
                )
                all_experts, shared = precision.share_output(
                    tf.concat(list(experts.values()), axis=1)
                )
                sizes = list(counts.values())
                experts = dict(zip(counts, tf.split(all_experts, sizes, axis=1), strict=True))
                inputs_of_groups = {
                    group: self._fuse_experts(group, inputs_of_groups, experts, training)
                    for group in counts
                    # At the last level, no tower reads the output of the shared group.
                    if group != _SHARED or not is_last
                }
        mixtures = [inputs_of_groups[f"task_{task}"] for task in tasks]
        return types.Towers(
            trunk.build_towers(self.tower, mixtures, tasks, training), shared=[shared]
        )

    def _fuse_experts(
        self, group: str, inputs: types.Tensors, experts: types.Tensors, training: bool
    ) -> tf.Tensor:
        """Add the mixture of all groups' experts and the mixture of the group's experts: [B, H]."""
        mixture = expert_groups.mix_experts(
            self.gate, group, inputs, experts, list(experts), training
        )
        native = experts[group]
        count = native.shape[1]
        if count == 1:  # The weight of a single expert would only scale the output.
            return mixture + native[:, 0]
        start = tf1.constant_initializer(1 / count)
        weights = tf1.get_variable(f"{group}/native", [count], native.dtype, start)
        return mixture + tf.linalg.matvec(native, weights, transpose_a=True)
