"""STEM: embeddings of each task and shared embeddings, separated by stopped gradients.

networks.STEM.own = {"click": ["click_*"], "order": ["order_*"]}
networks.STEM.expert = @networks.MLP()
model.MultiTaskModel.columns = [
    @features.Categorical(), @click/features.Categorical(), @order/features.Categorical()]
click/features.Categorical.prefix = "click"
order/features.Categorical.prefix = "order"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf
from mtl.layers import precision
from mtl.networks import expert_groups, fields, gates, trunk

_SHARED = "shared"


@checks.dataclass
class STEM(types.Network):
    """Separate embeddings and experts for each task, and shared embeddings and experts.

    `h[t] = tower[t](sum_e g[t, e] f[e](x[group of e]))` for the experts f and the gates g. L. Su et
    al., "STEM: Unleashing the Power of Embeddings for Multi-task Recommendation", AAAI 2024,
    arXiv:2308.13537. In addition to the shared columns, each task has columns with separate
    embedding tables. A group of experts reads the columns of each task, and another group reads the
    shared columns. The gate of a task weighs the experts of all groups. The loss of a task trains
    only the task's experts and columns, and the shared experts and columns: "all forward,
    task-specific backward".

    In the paper, the gate of a task reads the sum of the task's embeddings and the shared
    embeddings. In `STEM`, the gate reads the concatenation of the task's and the shared embeddings,
    because their widths may differ.

    Attributes:
      expert: the trunk of each expert; variables in `task_<task>/expert_<i>` and
        `shared/expert_<i>`.
      own: {task: names of columns that only this task trains}, in which `*` matches any text. All
        tasks share the columns that no task has in `own`. To give a task its own embedding of a
        field, add a second column object for the field, with another prefix.
      num_specific: the number of experts of each task, at least 1.
      num_shared: the number of shared experts, at least 1.
      tower: the trunk on each task's mixture of experts; variables in `tower_<task>`. Without a
        tower (None), the head reads the mixture of experts.
      gate: weighs the experts; variables in `task_<task>/gate`.
    """

    ordered_variables = "^network/.*/gate/"
    expert: Annotated[trunk.Trunk, checks.Part("networks.MLP", arguments=2)]
    own: Annotated[
        Mapping[str, Annotated[Sequence[str], fields.check_patterns]],
        checks.Map("be {task: its columns}"),
    ]
    num_specific: checks.Count = 1
    num_shared: checks.Count = 1
    tower: Annotated[trunk.Trunk | None, trunk.check_tower] = None
    gate: Annotated[gates.Gate, checks.Part("gates.Softmax", arguments=4)] = gates.Softmax()

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        `Towers.shared` holds the shared experts.

        Raises:
          UserError: a task lacks columns, two tasks name the same column, or no column is shared.
        """
        inputs_of_groups = {
            group: trunk.join_columns("STEM", columns)
            for group, columns in self._group_columns(inputs, tasks).items()
        }
        counts = dict.fromkeys(inputs_of_groups, self.num_specific) | {_SHARED: self.num_shared}
        experts_by_group = expert_groups.build_experts(
            self.expert, inputs_of_groups, counts, training
        )
        experts_by_group[_SHARED], shared = precision.share_output(experts_by_group[_SHARED])
        mixtures = []
        # Skip the last group, the shared group, which has no tower.
        for group in list(inputs_of_groups)[:-1]:
            sources = {
                # "All forward, task-specific backward": a task uses all experts, but does not
                # train the experts of other tasks.
                source: experts if source in (group, _SHARED) else tf.stop_gradient(experts)
                for source, experts in experts_by_group.items()
            }
            gate_inputs = {
                group: tf.concat([inputs_of_groups[group], inputs_of_groups[_SHARED]], axis=1)
            }
            mixtures.append(
                expert_groups.mix_experts(
                    self.gate, group, gate_inputs, sources, list(sources), training
                )
            )
        return types.Towers(
            trunk.build_towers(self.tower, mixtures, tasks, training), shared=[shared]
        )

    def _group_columns(
        self, inputs: types.Tensors, tasks: Sequence[str]
    ) -> dict[str, dict[str, tf.Tensor]]:
        """Return {group: {column: value}} for the groups of all tasks, and for the shared group."""
        for task in self.own:
            checks.one_of("STEM.own", task, tasks)
        columns_by_group: dict[str, dict[str, tf.Tensor]] = {}
        shared = dict(inputs)
        for task in tasks:
            where = f"STEM.own[{task!r}]"
            columns = fields.choose_columns(where, self.own.get(task, ()), inputs)
            checks.require(bool(columns), where, "name a column", list(self.own.get(task, ())))
            other_columns = [column for column in columns if column not in shared]
            checks.require(
                not other_columns, where, "not name columns of another task", other_columns
            )
            shared = {column: value for column, value in shared.items() if column not in columns}
            columns_by_group[f"task_{task}"] = columns
        checks.require(
            bool(shared),
            "STEM.own",
            "leave one column or more that all tasks share",
            dict(self.own),
        )
        return columns_by_group | {_SHARED: shared}
