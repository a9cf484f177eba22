"""PLE: experts for each task and shared experts, in one or several levels.

networks.PLE.experts = [@level_0/networks.MLP(), @level_1/networks.MLP()]
networks.PLE.num_specific = 2
networks.PLE.num_shared = 2
networks.PLE.tower = @tower/networks.MLP()
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf1
from mtl.layers import precision
from mtl.networks import expert_groups, gates, trunk

_SHARED = "shared"


@checks.dataclass
class PLE(types.Network):
    """Progressive layered extraction (PLE), or customized gate control (CGC) with one level.

    H. Tang et al., "Progressive Layered Extraction (PLE): A Novel Multi-Task Learning Model for
    Personalized Recommendations", RecSys 2020, https://doi.org/10.1145/3383313.3412236.

    At each level, every task has `num_specific` experts, and all tasks share `num_shared` experts.
    The gate of a task weighs the task's experts and the shared experts. Every level except the last
    also has a shared gate, which weighs all experts. At the next level, the mixture of a task's
    gate is the input of the task's experts and gate, and the mixture of the shared gate is the
    input of the shared experts and gate. The first level reads the columns.

    Attributes:
      experts: a trunk for each level, in order; variables in `level_<l>/task_<task>/expert_<i>` and
        `level_<l>/shared/expert_<i>`.
      num_specific: the number of experts of a task at each level, at least 1.
      num_shared: the number of shared experts at each level, at least 1.
      tower: the trunk on each task's last mixture; variables in `tower_<task>`. Without a tower
        (None), the head reads the mixture of experts.
      gate: weighs experts; variables in `level_<l>/task_<task>/gate` and `level_<l>/shared/gate`.
    """

    experts: Annotated[
        Sequence[Annotated[trunk.Trunk, checks.Part("networks.MLP", arguments=2)]],
        checks.Filled("hold a level"),
    ]
    num_specific: checks.Count = 2
    num_shared: checks.Count = 2
    tower: Annotated[trunk.Trunk | None, trunk.check_tower] = None
    gate: Annotated[gates.Gate, checks.Part("gates.Softmax", arguments=4)] = gates.Softmax()

    @property
    def ordered_variables(self) -> str:
        """The shared gates of several levels, which weigh the experts in the order of the tasks."""
        return "^network/.*/shared/gate/" if len(self.experts) > 1 else ""

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        `Towers.shared` holds the shared experts of the last level.
        """
        counts = {**{f"task_{task}": self.num_specific for task in tasks}, _SHARED: self.num_shared}
        # {group of experts: the inputs of its experts and of its gate}.
        inputs_of_groups = dict.fromkeys(counts, trunk.join_columns("PLE", inputs))
        for level, expert in enumerate(self.experts):
            columns = inputs if level == 0 else None
            with tf1.variable_scope(f"level_{level}"):
                experts = expert_groups.build_experts(
                    expert, inputs_of_groups, counts, training, columns
                )
                experts[_SHARED], shared = precision.share_output(experts[_SHARED])
                # The last level has no shared gate, because no tower would read the shared mixture.
                is_last = level == len(self.experts) - 1
                inputs_of_groups = {
                    group: expert_groups.mix_experts(
                        self.gate,
                        group,
                        inputs_of_groups,
                        experts,
                        self._list_sources(group, counts),
                        training,
                    )
                    for group in counts
                    if group != _SHARED or not is_last
                }
        mixtures = [inputs_of_groups[f"task_{task}"] for task in tasks]
        return types.Towers(
            trunk.build_towers(self.tower, mixtures, tasks, training), shared=[shared]
        )

    def _list_sources(self, group: str, groups: Iterable[str]) -> list[str]:
        """List the groups of experts that the gate of a group weighs."""
        return list(groups) if group == _SHARED else [group, _SHARED]
