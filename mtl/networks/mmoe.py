"""MMoE: all tasks share experts, and each task has a gate that weighs the experts.

networks.MMoE.expert = @expert/networks.MLP()
networks.MMoE.num_experts = 8
networks.MMoE.tower = @tower/networks.MLP()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf
from mtl.layers import precision
from mtl.networks import gates, trunk


@checks.dataclass
class MMoE(types.Network):
    """Multi-gate mixture of experts: shared experts, with a gate and a tower for each task.

    `h[task] = tower[task](sum_e g[task, e](x) f[e](x))` for experts f and gates g. J. Ma et al.,
    "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", KDD
    2018, https://doi.org/10.1145/3219819.3220007. Experts have different random initial values,
    because equal experts would get equal gradients. Gates read all columns, flattened and
    concatenated.

    Attributes:
      expert: the trunk of each expert; variables in `expert_<i>`.
      num_experts: the number of experts, at least 1. A network with a single expert is a shared
        bottom, without gates.
      tower: the trunk on each task's mixture of experts; variables in `tower_<task>`. Without a
        tower (None), the head reads the mixture of experts.
      gate: weighs the experts; variables in `gate_<task>`.
    """

    expert: Annotated[trunk.Trunk, checks.Part("networks.MLP", arguments=2)]
    num_experts: checks.Count = 8
    tower: Annotated[trunk.Trunk | None, trunk.check_tower] = None
    gate: Annotated[gates.Gate, checks.Part("gates.Softmax", arguments=4)] = gates.Softmax()

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H]}; `shared` holds the experts."""
        scopes = [f"expert_{index}" for index in range(self.num_experts)]
        outputs = trunk.build_copies(self.expert, inputs, scopes, training)
        if len(outputs) == 1:  # A gate over one expert is always 1.
            hidden, shared = precision.share_output(outputs[0])
            mixtures = [hidden] * len(tasks)
        else:
            experts, shared = precision.share_output(trunk.stack_vectors(outputs))  # [B, E, H]
            gate_inputs = trunk.join_columns(type(self).__name__, inputs)
            mixtures = self._mix_experts(gate_inputs, experts, scopes, tasks, training)
        return types.Towers(
            trunk.build_towers(self.tower, mixtures, tasks, training), shared=[shared]
        )

    def _mix_experts(
        self,
        inputs: tf.Tensor,
        experts: tf.Tensor,
        names: Sequence[str],
        tasks: Sequence[str],
        training: bool,
    ) -> list[tf.Tensor]:
        """Weigh the experts [B, E, H] for each task: T of [B, H]."""
        mixtures: list[tf.Tensor] = []
        # Build all gates together, or separately if a surgery needs separate gradients.
        for group in trunk.group_tasks(tasks):
            scopes = [f"gate_{task}" for task in group]
            mixtures += gates.build_mixtures(self.gate, inputs, experts, scopes, names, training)
        return mixtures


@dataclasses.dataclass(frozen=True, kw_only=True)
class OMoE(MMoE):
    """MMoE with a single gate for all tasks; variables of the gate are in `gate`.

    OMoE is the baseline in the paper of MMoE: a mixture of experts (R. A. Jacobs et al., "Adaptive
    Mixtures of Local Experts", Neural Computation 3, 1991) with a tower for each task.
    """

    def _mix_experts(
        self,
        inputs: tf.Tensor,
        experts: tf.Tensor,
        names: Sequence[str],
        tasks: Sequence[str],
        training: bool,
    ) -> list[tf.Tensor]:
        mixtures = gates.build_mixtures(self.gate, inputs, experts, ["gate"], names, training)
        return mixtures * len(tasks)
