"""Embeddings of each task beside shared ones, kept apart by stopped gradients.

networks.STEM.own = {"click": ["click_*"], "order": ["order_*"]}
networks.STEM.expert = @networks.MLP()
model.MultiTaskModel.columns = [
    @features.Categorical(), @click/features.Categorical(), @order/features.Categorical()]
click/features.Categorical.prefix = "click"
order/features.Categorical.prefix = "order"
"""

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from mtl import checks, types
from mtl.layers import precision
from mtl.networks import expert_groups, fields, gates, trunk

_SHARED = "shared"


@dataclasses.dataclass(frozen=True, kw_only=True)
class STEM(types.Network):
    """h[t] = tower[t](sum_e g[t, e] f[e](x[group of e])), where other tasks' f have no gradient.

    L. Su et al., "STEM: Unleashing the Power of Embeddings for Multi-task Recommendation", AAAI
    2024, arXiv:2308.13537. Each task has columns of its own, with tables of their own, beside the
    shared columns. A group of experts reads those of each task, and one more the shared columns.
    The gate of a task weighs the experts of all groups. Its loss moves its own experts and the
    shared ones, and the columns that these read: "all forward, task-specific backward".

    The gate of the paper sees the sum of a task's own and the shared embeddings. Here it sees both,
    joined, as their widths may differ; a linear gate of the sum is one of these.

    Attributes:
      expert: built in each group; variables in `task_<task>/expert_<i>` and `shared/expert_<i>`.
      own: {task: its columns}, by name, where `*` stands for anything. All other columns are
        shared. A task's columns come from a second column object of the same fields, with another
        prefix.
      num_specific: the experts of a task, at least 1.
      num_shared: the shared experts, at least 1.
      tower: built for each task on its mixture; variables in `tower_<task>`. None hands the mixture
        to the head.
      gate: weighs the experts; variables in `task_<task>/gate`.
    """

    expert: trunk.Trunk
    own: Mapping[str, Sequence[str]]
    num_specific: int = 1
    num_shared: int = 1
    tower: trunk.Trunk | None = None
    gate: gates.Gate = gates.Softmax()

    def __post_init__(self):
        checks.require_part("STEM.expert", self.expert, "networks.MLP", arguments=2)
        checks.mapping("STEM.own", self.own, "be {task: its columns}")
        for task, patterns in self.own.items():
            fields.check_patterns(f"STEM.own[{task!r}]", patterns)
        checks.whole("STEM.num_specific", self.num_specific, 1)
        checks.whole("STEM.num_shared", self.num_shared, 1)
        trunk.check_tower("STEM.tower", self.tower)
        checks.require_part("STEM.gate", self.gate, "gates.Softmax", arguments=4)

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        The shared experts are what tasks share.

        Raises:
          UserError: a task has no column of its own, two have the same one, or none is shared.
        """
        given = {
            group: trunk.join_columns("STEM", columns)
            for group, columns in self._group_columns(inputs, tasks).items()
        }
        counts = dict.fromkeys(given, self.num_specific) | {_SHARED: self.num_shared}
        found = expert_groups.build_experts(self.expert, given, counts, training)
        found[_SHARED], shared = precision.share_output(found[_SHARED])
        mixed = []
        for group in list(given)[:-1]:
            seen = {
                other: experts if other in (group, _SHARED) else tf.stop_gradient(experts)
                for other, experts in found.items()
            }
            both = {group: tf.concat([given[group], given[_SHARED]], axis=1)}
            mixed.append(
                expert_groups.mix_experts(self.gate, group, both, seen, list(seen), training)
            )
        return types.Towers(trunk.build_towers(self.tower, mixed, tasks, training), shared=[shared])

    def _group_columns(
        self, inputs: types.Tensors, tasks: Sequence[str]
    ) -> dict[str, dict[str, tf.Tensor]]:
        """Return the columns of each task, and of all of them as the last group."""
        for task in self.own:
            checks.one_of("STEM.own", task, tasks)
        found: dict[str, dict[str, tf.Tensor]] = {}
        shared = dict(inputs)
        for task in tasks:
            where = f"STEM.own[{task!r}]"
            columns = fields.choose_columns(where, self.own.get(task, ()), inputs)
            checks.require(bool(columns), where, "name a column", list(self.own.get(task, ())))
            taken = [column for column in columns if column not in shared]
            checks.require(not taken, where, "name columns of no other task", taken)
            shared = {column: value for column, value in shared.items() if column not in columns}
            found[f"task_{task}"] = columns
        checks.require(bool(shared), "STEM.own", "leave a column for all tasks", dict(self.own))
        return found | {_SHARED: shared}
