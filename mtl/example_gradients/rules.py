"""Finds the layouts of an op's outputs from the layouts of its inputs.

states = rules.outputs(op, proof, is_moved)          # a state for each output, or None

A rule is valid for every size of the batch. Inputs that do not depend on examples must be constant
along the axis of examples.
"""

from __future__ import annotations

from collections.abc import Callable

from mtl.deferred import tf
from mtl.example_gradients import arithmetic, layouts, lists, movement, sizes
from mtl.example_gradients.given import DRAWS, ENTRY_BY_ENTRY, Given, Known
from mtl.example_gradients.layouts import DATA, EVEN, TOTAL, State

_RULES = {**arithmetic.RULES, **movement.RULES}
_SIZE_ARGUMENTS = {"Reshape": (1,), "Tile": (1,), "BroadcastTo": (1,)}


def outputs(op: tf.Operation, known: Known, is_moved: bool) -> list[State] | None:
    """Find the `layouts.State` of each output of an op that depends on the batch; None if unknown.

    Args:
      op: an op; none of its inputs may have the state `layouts.UNKNOWN`.
      known: facts about the tensors before the op.
      is_moved: True if the values of the outputs depend on variables.
    """
    if op.outputs[0].shape.rank is None:
        return None
    facts = Given(op, known, is_moved)
    states = _apart_from_layouts(facts)
    if states is None and facts.placed:
        states = _by_rule(facts)
    # If an op overrides the gradient of its type, the rule proves nothing about this gradient.
    if states and "_gradient_op_type" in op.node_def.attr and is_moved:
        return states if known.is_apart_back(op, states) else None
    return states


def _by_rule(facts: Given) -> list[State] | None:
    """Find the `State` of each output of an op that has a `Layout` for at least one input."""
    kind = facts.op.type
    rule = _RULES.get(kind)
    size_places = _SIZE_ARGUMENTS.get(kind, arithmetic.OF_SEGMENTS.get(kind, ()))
    is_data = any(s == DATA for n, s in enumerate(facts.states) if n not in size_places)
    return rule(facts) if rule and not is_data and TOTAL not in facts.states else None


def _apart_from_layouts(facts: Given) -> list[State] | None:
    """Find the states of the outputs if no input has a layout, or the op reads only sizes."""
    op = facts.op
    is_size = sizes.is_made(op) and (op.type == "Shape" or not facts.placed)
    if is_size and facts.known.is_of_one(facts.output):
        return [None]
    if TOTAL in facts.states:
        return _place_total(facts)
    if _are_lengths(facts):
        return [facts.known.examples(0, layouts.own_dims(facts.output))]
    if op.type in ("BroadcastTo", "Tile") and facts.is_free(0):
        return _place_spread(facts)
    is_even = _EVEN_IF.get(op.type, lambda facts: False)
    return [EVEN] if is_even(facts) else None


def _are_even(facts: Given) -> bool:
    """Return True if all inputs are scalars, or draws or equal entries (`layouts.EVEN`)."""
    if facts.placed or DATA in facts.states:
        return False
    return all(tensor.shape.rank == 0 or facts.is_even(tensor) for tensor in facts.op.inputs)


_EVEN_IF: dict[str, Callable[[Given], bool]] = {
    **dict.fromkeys(ENTRY_BY_ENTRY, _are_even),
    **dict.fromkeys(DRAWS, lambda facts: facts.is_free(*range(1, len(facts.states)))),
    **dict.fromkeys(("ExpandDims", "Reshape"), lambda facts: facts.states[0] == EVEN),
    **dict.fromkeys(("OnesLike", "ZerosLike"), lambda facts: True),
    "Fill": lambda facts: facts.is_free(1),
}
"""{op: a function that returns True if the output has the state `layouts.EVEN`}."""


def _are_lengths(facts: Given) -> bool:
    """Return True if the output has the lengths of the rows of a ragged tensor."""
    op = facts.op
    is_difference = op.type == "Sub" and op.inputs[0].op.type == "StridedSlice"
    if not is_difference or facts.placed:
        return False
    return any(lists.is_lengths(facts.output, ragged) for ragged in facts.known.lists())


def _place_total(facts: Given) -> list[State] | None:
    """Find the `State` of the output of an op that has a sum over examples as an input."""
    # A StopGradient drops the gradient of a sum over examples, so this gradient cannot mix
    # examples.
    if facts.op.type == "StopGradient":
        return [DATA]
    is_total = _TOTAL_IF.get(facts.op.type, lambda facts: False)
    return [TOTAL] if is_total(facts) else None


def _is_first(facts: Given) -> bool:
    """Return True if the first input of the op is a sum over examples."""
    return facts.states[0] == TOTAL


def _is_one(facts: Given) -> bool:
    """Return True if exactly one input is a sum over examples, and no input has a layout."""
    return facts.states.count(TOTAL) == 1 and not facts.placed


_TOTAL_IF: dict[str, Callable[[Given], bool]] = {
    **dict.fromkeys(
        ("Add", "AddN", "AddV2", "Identity", "Neg", "Sub"), lambda facts: not facts.placed
    ),
    **dict.fromkeys(("DivNoNan", "RealDiv"), lambda facts: _is_one(facts) and _is_first(facts)),
    **dict.fromkeys(("ExpandDims", "Mean", "Reshape", "Squeeze", "Sum"), _is_first),
    "Mul": _is_one,
}
"""{op: a function that returns True if the output of the op is a sum over examples}."""


def _place_spread(facts: Given) -> list[State] | None:
    """Find the output layout of an op that repeats a value for each example."""
    dims, target = facts.known.dims(facts.op.inputs[0]), facts.entries(1)
    if dims is None or target is None or len(target) != facts.output.shape.rank:
        return None
    missing = len(target) - len(dims)
    dims = [*[sizes.ONE] * missing, *dims]
    axis = _find_batch(target, facts.known.count)
    if axis is None or dims[axis] != sizes.ONE:
        return None
    spread, input_sizes = sizes.all_known(target), sizes.all_known(dims)
    if spread is None or input_sizes is None:
        return None
    if facts.op.type == "Tile":
        spread = [times * size for times, size in zip(spread, input_sizes, strict=True)]
    return [facts.known.examples(axis, spread)]


def _find_batch(dims: sizes.Known, count: sizes.Size) -> int | None:
    """Return the only axis whose size is certainly B; None if there is no such axis."""
    places = [n for n, size in enumerate(dims) if size == count]
    # If B is a known number, another size may be equal to B by chance.
    return places[0] if count.unknown and len(places) == 1 else None
