"""Groups of experts: usually a group for each task, and a group for all tasks.

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
    """Build the experts of every group.

    Args:
      expert: the trunk of each expert; variables in `<group>/expert_<i>`.
      inputs: the inputs of the experts of each group, {group: [B, D]}.
      counts: the number of experts of each group; groups without experts are omitted.
      training: True in a training step.
      columns: the columns that all experts read instead of `inputs`; None uses `inputs`.

    Returns:
      {group: [B, E, H]}, for groups with experts.
    """
    experts_by_group: dict[str, tf.Tensor] = {}
    # Build groups separately for a surgery, because a group may belong to a single task.
    for groups in trunk.group_tasks([group for group in inputs if counts[group]]):
        experts = [(group, i) for group in groups for i in range(counts[group])]
        scopes = [f"{group}/expert_{i}" for group, i in experts]
        copy_inputs = columns if columns is not None else [inputs[group] for group, _ in experts]
        # Build all experts together, as a trunk such as MLP then needs only one matrix product.
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
    """Weigh the experts of several groups by the gate of a single group.

    Args:
      gate: weighs the experts; variables in `<group>/gate`.
      group: the group that gets the mixture.
      inputs: the inputs of the gate of each group, {group: [B, D]}.
      experts_by_group: the experts of all groups, {group: [B, E, H]}.
      sources: the groups whose experts are weighed; groups without experts are omitted.
      training: True in a training step.

    Returns:
      The weighted sum of the experts, [B, H].
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
