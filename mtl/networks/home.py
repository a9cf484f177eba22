"""HoME: experts for all tasks, for groups of tasks and for single tasks.

networks.HoME.groups = {"watch": ["view", "finish"], "interact": ["like", "comment"]}
networks.HoME.experts = [@meta/networks.MLP(), @task/networks.MLP()]
meta/networks.MLP.activation = "linear"          # HoME adds an activation itself
task/networks.MLP.activation = "linear"
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.layers import copies, precision
from mtl.networks import expert_groups, gates, trunk

_SHARED = "shared"


@checks.dataclass
class HoME(types.Network):
    """Two levels of experts: for groups of tasks, then for groups and for single tasks.

    X. Wang et al., "HoME: Hierarchy of Multi-Gate Experts for Multi-Task Learning at Kuaishou",
    2024, arXiv:2408.05430. At the first level, every group of tasks has experts, and all tasks
    share additional experts. The gate of a group weighs the experts of the group and the shared
    experts; the shared gate weighs all experts. At the second level, every task has experts as
    well, whose input is the mixture of the task's group. The gate of a task weighs the experts of
    the task, of its group, and the shared experts.

    Three features of HoME keep experts in use, and each of them can be turned off:

    - Expert norm. An expert is `swish(batch_norm(f(x)))`. Without the norm, an expert is
      `relu(f(x))` for its trunk f, and some of its units can become 0 for all rows (dead units).
    - Feature gates. The input of expert e is `x * 2 sigmoid(x A[e] B[e])` with low-rank A[e] B[e].
      Without feature gates, the input of an expert is x itself.
    - Self gates. A second mixture, only of the experts of the same task or group, is added to each
      mixture of experts; its weights come from another softmax (or from a sigmoid for a single
      expert).

    Attributes:
      experts: the trunks f of the first and of the second level, without a last activation.
        Variables in `level_<l>/<owner>/expert_<i>`; an owner is `shared`, `group_<group>` or
        `task_<task>`.
      groups: {group: its tasks}; every task is in exactly one group.
      num_experts: the number of experts at each level for each task, each group and all tasks.
      expert_norm: True applies batch norm to the outputs of experts; variables in `<expert>/norm`.
      feature_rank: the rank of feature gates, 0 for none; variables in `<expert>/feature_gate`.
      self_gates: True adds self gates; variables in `level_<l>/<owner>/self_gate`.
      tower: the trunk on each task's mixture of experts; variables in `tower_<task>`. Without a
        tower (None), the head reads the mixture of experts.
      gate: weighs experts; variables in `level_<l>/<owner>/gate`.
    """

    experts: Annotated[
        Sequence[trunk.Trunk],
        trunk.check_trunks,
        checks.Rule(
            "hold two trunks, of the first and of the second level", lambda value: len(value) == 2
        ),
    ]
    groups: Annotated[
        Mapping[checks.Name, Annotated[Sequence[str], checks.Filled("name a task")]],
        checks.Map("be {group: its tasks}"),
    ]
    num_experts: checks.Count = 2
    expert_norm: bool = True
    feature_rank: checks.Natural = 16
    self_gates: bool = True
    tower: Annotated[trunk.Trunk | None, trunk.check_tower] = None
    gate: Annotated[gates.Gate, checks.Part("gates.Softmax", arguments=4)] = gates.Softmax()

    def __post_init__(self):
        checks.unique("HoME.groups", [task for tasks in self.groups.values() for task in tasks])

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}.

        `Towers.shared` holds the shared experts of the second level.

        Raises:
          UserError: a group names an unknown task, or a task is missing from all groups.
        """
        group_of = self._find_groups(tasks)
        groups = [f"group_{group}" for group in self.groups]
        sources = {_SHARED: [_SHARED, *groups]} | {group: [group, _SHARED] for group in groups}
        inputs_of_owners = dict.fromkeys(sources, trunk.join_columns("HoME", inputs))
        with tf1.variable_scope("level_0"):
            experts = self._build_experts(0, inputs_of_owners, training)
            inputs_of_owners = {
                owner: self._mix_experts(owner, inputs_of_owners, experts, owners, training)
                for owner, owners in sources.items()
            }
        # Experts of a task read the mixture of its group at the first level.
        for task in tasks:
            inputs_of_owners[f"task_{task}"] = inputs_of_owners[group_of[task]]
        with tf1.variable_scope("level_1"):
            experts = self._build_experts(1, inputs_of_owners, training)
            experts[_SHARED], shared = precision.share_output(experts[_SHARED])
            mixtures = [
                self._mix_experts(
                    owner, inputs_of_owners, experts, [owner, group_of[task], _SHARED], training
                )
                for task in tasks
                for owner in [f"task_{task}"]
            ]
        return types.Towers(
            trunk.build_towers(self.tower, mixtures, tasks, training), shared=[shared]
        )

    def _find_groups(self, tasks: Sequence[str]) -> dict[str, str]:
        """Return the group of each task, {task: `group_<group>`}."""
        for group, members in self.groups.items():
            for task in members:
                checks.one_of(f"HoME.groups[{group!r}]", task, tasks)
        group_of = {
            task: f"group_{group}" for group, members in self.groups.items() for task in members
        }
        missing = [task for task in tasks if task not in group_of]
        checks.require(not missing, "HoME.groups", f"hold every task of {list(tasks)}", missing)
        return group_of

    def _build_experts(
        self, level: int, inputs: types.Tensors, training: bool
    ) -> dict[str, tf.Tensor]:
        """Build the experts of all groups and tasks, {owner: [B, D]} -> {owner: [B, E, H]}."""
        expert = _GatedExpert(self.experts[level], self.expert_norm, self.feature_rank)
        counts = dict.fromkeys(inputs, self.num_experts)
        return expert_groups.build_experts(expert, inputs, counts, training)

    def _mix_experts(
        self,
        owner: str,
        inputs_of_owners: types.Tensors,
        experts_by_owner: types.Tensors,
        sources: Sequence[str],
        training: bool,
    ) -> tf.Tensor:
        mixture = expert_groups.mix_experts(
            self.gate, owner, inputs_of_owners, experts_by_owner, sources, training
        )
        if not self.self_gates:
            return mixture
        experts = experts_by_owner[owner]
        # A softmax over a single expert would always be 1, so use a sigmoid in this case.
        activation = tf.sigmoid if self.num_experts == 1 else tf.nn.softmax
        with tf1.variable_scope(owner):
            inputs = inputs_of_owners[owner]
            logits = layers.dense(inputs, self.num_experts, "self_gate", use_bias=False)
        weights = tf.cast(activation(tf.cast(logits, tf.float32)), experts.dtype)
        return mixture + tf.linalg.matvec(experts, weights, transpose_a=True)


@dataclasses.dataclass(frozen=True)
class _GatedExpert:
    """An expert between a feature gate and a batch norm, [B, D] -> [B, H]."""

    expert: trunk.Trunk
    norm: bool
    rank: int

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        hidden = self.expert(
            {"inputs": self._gate_features(trunk.join_columns("HoME", inputs))}, training
        )
        return self._activate(hidden, training)

    def build_copies(
        self, inputs: Sequence[tf.Tensor], scopes: Sequence[str], training: bool
    ) -> list[tf.Tensor]:
        """Build an expert in each scope: N of [B, D] -> N of [B, H]."""
        gated_inputs = copies.for_each(self._gate_features, inputs, scopes)
        outputs = trunk.build_copies(self.expert, gated_inputs, scopes, training)
        return copies.for_each(lambda output: self._activate(output, training), outputs, scopes)

    def _gate_features(self, inputs: tf.Tensor) -> tf.Tensor:
        """Scale each feature, [B, D] -> [B, D]."""
        if not self.rank:
            return inputs
        with tf1.variable_scope("feature_gate"):
            hidden = layers.dense(inputs, self.rank, "down", use_bias=False)
            scale = layers.dense(hidden, inputs.shape[-1], "up", tf.sigmoid, use_bias=False)
        # A new gate is about sigmoid(0) = 1/2, so a factor of 2 hardly changes the inputs.
        return inputs * 2 * scale

    def _activate(self, hidden: tf.Tensor, training: bool) -> tf.Tensor:
        if not self.norm:
            return tf.nn.relu(hidden)
        return tf.nn.swish(layers.batch_norm(hidden, "norm", training))
