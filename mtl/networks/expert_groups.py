"""Experts in groups: usually a group for each task, and a group that all tasks share.

found = expert_groups.build_experts(expert, given, {"task_a": 2, "shared": 1}, training)
mixed = expert_groups.mix_experts(gate, "task_a", given, found, ["task_a", "shared"], training)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from mtl import types
from mtl.deferred import tf
from mtl.networks import gates, trunk


def build_experts(
    expert: trunk.Trunk,
    given: types.Tensors,
    counts: Mapping[str, int],
    training: bool,
    columns: types.Tensors | None = None,
) -> dict[str, tf.Tensor]:
    """Build the experts of every group: {group: [B, D]} -> {group: [B, E, H]}.

    Args:
      expert: the trunk that each expert builds; variables in `<group>/expert_<i>`.
      given: the inputs of the experts of each group.
      counts: the number of experts of each group; groups with 0 are left out.
      training: as for the network.
      columns: inputs of all experts in place of `given`; None takes `given`.
    """
    experts_by_group: dict[str, tf.Tensor] = {}
    # A surgery needs separate groups, because a group may belong to a single task.
    for together in trunk.group_tasks([group for group in given if counts[group]]):
        experts = [(group, i) for group in together for i in range(counts[group])]
        scopes = [f"{group}/expert_{i}" for group, i in experts]
        inputs = columns if columns is not None else [given[group] for group, _ in experts]
        # All experts at once, which a trunk such as MLP builds as one product.
        outputs = iter(trunk.build_copies(expert, inputs, scopes, training))
        for group in together:
            experts_by_group[group] = trunk.stack_vectors(
                list(itertools.islice(outputs, counts[group]))
            )
    return experts_by_group


def mix_experts(
    gate: gates.Gate,
    group: str,
    given: types.Tensors,
    found: types.Tensors,
    seen: Sequence[str],
    training: bool,
) -> tf.Tensor:
    """Weigh the experts of some groups for one group: {group: [B, E, H]} -> [B, H].

    Args:
      gate: weighs the experts; variables in `<group>/gate`.
      group: the group that gets the mixture.
      given: the inputs of the gate of each group, {group: [B, D]}.
      found: the experts of all groups.
      seen: the groups whose experts are weighed; groups without experts are left out.
      training: as for the network.
    """
    expert_groups = [source for source in seen if source in found]
    experts = tf.concat([found[source] for source in expert_groups], axis=1)
    names = [
        f"{source}_{index}" for source in expert_groups for index in range(found[source].shape[1])
    ]
    scopes = [f"{group}/gate"]
    return gates.build_mixtures(gate, given[group], experts, scopes, names, training)[0]
