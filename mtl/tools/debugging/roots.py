"""Finds the op that broke a step, among all ops whose values are NaN or infinite.

broken = roots.find_roots(dump, before, losses={"digit": "loss:0"})
broken[0].node.name                                      # "head/digit/log"

An op is the root of a broken step if one of its outputs is not finite, all its inputs are finite,
and the same output was finite one step earlier. Some kernels leave unused outputs uninitialised.
Therefore, the output must also affect a loss, a variable or the update's check for NaN through a
chain of tensors that are not finite.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from mtl.tools.debugging import step_dump

# The first outputs of a fused batch norm are results; further outputs are scratch memory.
_OUTPUTS_OF_NORM = 3
_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ScatterNd")
_UPDATE = "update/"


@dataclasses.dataclass(frozen=True)
class Root:
    """An op with finite inputs and an output that is not finite.

    Attributes:
      node: the op that broke the step.
      output: the first output of the op that is not finite.
      reaches_loss: True if the op broke the loss of a task; False if the op broke only gradients or
        variables.
    """

    node: step_dump.Node
    output: str
    reaches_loss: bool


def find_roots(
    dump: step_dump.StepDump,
    before: step_dump.StepDump | None,
    losses: Mapping[str, str],
) -> list[Root]:
    """Return the ops that broke a step, in the order in which they ran; empty if no op broke it.

    Args:
      dump: the tensors of the training step.
      before: the tensors of the previous step; None if they are unknown. If `before` is None, the
        roots may include ops whose outputs were already broken in an earlier step.
      losses: {task: the name of the tensor with its loss}.
    """
    broken = []
    # The root that ran first is the likely cause.
    for node in sorted(dump.nodes.values(), key=lambda node: dump.order[node.name]):
        bad = _list_broken(dump, before, node)
        if not bad:
            continue
        followers = dump.list_followers(bad, within=dump.bad)
        reaches = any(_is_spoiled(dump, tensor, followers, bad) for tensor in losses.values())
        # If neither a loss nor a variable is broken, a `tf.where` or a mask has dropped the values.
        if reaches or any(_is_checked(dump, name) for name in followers):
            broken.append(Root(node, bad[0], reaches))
    return broken


def list_tasks(
    dump: step_dump.StepDump, nodes: Sequence[str], losses: Mapping[str, str]
) -> list[str]:
    """Return the tasks whose loss depends on at least one of the nodes.

    Args:
      dump: the tensors of the training step.
      nodes: the names of nodes (ops) of the step.
      losses: {task: the name of the tensor with its loss}.
    """
    # Add the first output of each node, because the dump may lack outputs of a node.
    tensors = [tensor for node in nodes for tensor in (*dump.list_outputs(node), f"{node}:0")]
    dependent = dump.list_followers(dict.fromkeys(tensors)) | set(nodes)
    return [task for task, loss in losses.items() if step_dump.name_node(loss) in dependent]


def find_writers(dump: step_dump.StepDump, variable: str) -> list[step_dump.Node]:
    """Return the ops of a step that write to a variable.

    Args:
      dump: the tensors of the training step.
      variable: the name of the variable's handle, without a slot.
    """
    readers = dump.readers.get(f"{variable}:0", ())
    return [dump.nodes[name] for name in readers if dump.nodes[name].kind.startswith(_WRITES)]


def _list_broken(
    dump: step_dump.StepDump, before: step_dump.StepDump | None, node: step_dump.Node
) -> list[str]:
    """Return the outputs that a node broke; empty if inputs or the previous step were broken."""
    bad = [t for t in dump.list_outputs(node.name) if dump.is_bad(t) and not _is_scratch(node, t)]
    if not bad or node.kind in step_dump.PASSING or not _turned_bad(dump, node, bad[0]):
        return []
    # If the same value was broken in the previous step, the value is intended, such as infinities
    # in a mask.
    return [] if before is not None and before.is_bad(bad[0]) else bad


def _turned_bad(dump: step_dump.StepDump, node: step_dump.Node, output: str) -> bool:
    """Return True if the op's inputs were finite when it computed an output that is not finite."""
    bad = [tensor for tensor in node.inputs if dump.is_bad(tensor)]
    if not bad:
        return True
    values = dump.read_numbers(output)
    # An op outside of a loop ran only once, so its broken input broke the output.
    if len(values) == 1:
        return False
    # In a loop, the broken output of an op may be its input in the next iteration. In loops, look
    # only at the first iteration with a broken output.
    first = next(i for i, value in enumerate(values) if not _is_finite(value))
    inputs = (dump.read_numbers(tensor) for tensor in bad)
    return all(len(v) == len(values) and _is_finite(v[first]) for v in inputs)


def _is_finite(value) -> bool:
    return bool((abs(value) < float("inf")).all())


def _is_scratch(node: step_dump.Node, tensor: str) -> bool:
    slot = int(tensor.rpartition(":")[2])
    return "FusedBatchNorm" in node.kind and "Grad" not in node.kind and slot >= _OUTPUTS_OF_NORM


def _is_spoiled(
    dump: step_dump.StepDump, loss: str, spoiled: set[str], outputs: Sequence[str]
) -> bool:
    return loss in outputs or (dump.is_bad(loss) and step_dump.name_node(loss) in spoiled)


def _is_checked(dump: step_dump.StepDump, name: str) -> bool:
    """Return whether a node belongs to the update of variables, or writes to a variable."""
    node = dump.nodes[name]
    # If a session call runs several steps, the update lies in the body of a loop.
    return name.startswith(_UPDATE) or f"/{_UPDATE}" in name or node.kind.startswith(_WRITES)
