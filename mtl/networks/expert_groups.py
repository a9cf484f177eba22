"""Experts in groups: usually a group for each task, and a group that all tasks share.

counts, sources = {"task_a": 2, "shared": 1}, ["task_a", "shared"]
experts = expert_groups.build_experts(expert, inputs, counts, training)
mixture = expert_groups.mix_experts(gate, "task_a", inputs, experts, sources, training)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from mtl import types
from mtl.deferred import tf
from mtl.networks import gates, trunk


def build_experts(
    expert: trunk.Trunk,
    inputs: types.Tensors,
    counts: Mapping[str, int],
    training: bool,
    columns: types.Tensors | None = None,
) -> dict[str, tf.Tensor]:
    """Build the experts of every group: {group: [B, D]} -> {group: [B, E, H]}.

    Args:
      expert: the trunk that each expert builds; variables in `<group>/expert_<i>`.
      inputs: the inputs of the experts of each group.
      counts: the number of experts of each group; groups with 0 are left out.
      training: as for the network.
      columns: all experts read these columns instead of `inputs`; None uses `inputs`.
    """
    experts_by_group: dict[str, tf.Tensor] = {}
    # A surgery needs separate groups, because a group may belong to a single task.
    for groups in trunk.group_tasks([group for group in inputs if counts[group]]):
        experts = [(group, i) for group in groups for i in range(counts[group])]
        scopes = [f"{group}/expert_{i}" for group, i in experts]
        copy_inputs = columns if columns is not None else [inputs[group] for group, _ in experts]
        # Build all experts at once, because a trunk such as MLP needs only one product for them.
        outputs = iter(trunk.build_copies(expert, copy_inputs, scopes, training))
        for group in groups:
            experts_by_group[group] = trunk.stack_vectors(
                list(itertools.islice(outputs, counts[group]))
            )
    return experts_by_group


def mix_experts(
    gate: gates.Gate,
    group: str,
    inputs: types.Tensors,
    experts_by_group: types.Tensors,
    sources: Sequence[str],
    training: bool,
) -> tf.Tensor:
    """Weigh the experts of several groups by the gate of a group: {group: [B, E, H]} -> [B, H].

    Args:
      gate: weighs the experts; variables in `<group>/gate`.
      group: the group that gets the mixture.
      inputs: the inputs of the gate of each group, {group: [B, D]}.
      experts_by_group: the experts of all groups, {group: [B, E, H]}.
      sources: the groups whose experts are weighed; groups without experts are left out.
      training: as for the network.
    """
    sources = [source for source in sources if source in experts_by_group]
    experts = tf.concat([experts_by_group[source] for source in sources], axis=1)
    names = [
        f"{source}_{index}"
        for source in sources
        for index in range(experts_by_group[source].shape[1])
    ]
    scopes = [f"{group}/gate"]
    return gates.build_mixtures(gate, inputs[group], experts, scopes, names, training)[0]
