"""Finds the layout of examples in the outputs of an op, from the layouts of its inputs.

states = rules.outputs(op, proof, is_moved)          # a state for each output; None: not known

A rule holds for every size of the batch. Inputs without examples must not vary along the axis of
the examples.
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
    """Return a state for each output of an op that depends on the batch; None if unknown.

    Args:
      op: an op without inputs in state `layouts.UNKNOWN`.
      known: facts about its inputs.
      is_moved: True if its values depend on variables.
    """
    if op.outputs[0].shape.rank is None:
        return None
    given = Given(op, known, is_moved)
    found = _apart_from_layouts(given)
    if found is None and given.placed:
        found = _by_rule(given)
    # The gradient is not that of the op's type, so the rule says nothing about it.
    if found and "_gradient_op_type" in op.node_def.attr and is_moved:
        return found if known.is_apart_back(op, found) else None
    return found


def _by_rule(given: Given) -> list[State] | None:
    """Treat ops with an input that has a layout."""
    kind = given.op.type
    rule = _RULES.get(kind)
    named = _SIZE_ARGUMENTS.get(kind, arithmetic.OF_SEGMENTS.get(kind, ()))
    is_data = any(s == DATA for n, s in enumerate(given.states) if n not in named)
    return rule(given) if rule and not is_data and TOTAL not in given.states else None


def _apart_from_layouts(given: Given) -> list[State] | None:
    """Treat ops without an input with a layout, and ops that only read sizes of their inputs."""
    op = given.op
    is_size = sizes.is_made(op) and (op.type == "Shape" or not given.placed)
    if is_size and given.known.is_of_one(given.output):
        return [None]
    if TOTAL in given.states:
        return _place_total(given)
    if _are_lengths(given):
        return [given.known.examples(0, layouts.own_dims(given.output))]
    if op.type in ("BroadcastTo", "Tile") and given.is_free(0):
        return _place_spread(given)
    is_even = _EVEN_IF.get(op.type, lambda given: False)
    return [EVEN] if is_even(given) else None


def _are_even(given: Given) -> bool:
    """Return whether all inputs are even, or single values."""
    if given.placed or DATA in given.states:
        return False
    return all(own.shape.rank == 0 or given.is_even(own) for own in given.op.inputs)


_EVEN_IF: dict[str, Callable[[Given], bool]] = {
    **dict.fromkeys(ENTRY_BY_ENTRY, _are_even),
    **dict.fromkeys(DRAWS, lambda given: given.is_free(*range(1, len(given.states)))),
    **dict.fromkeys(("ExpandDims", "Reshape"), lambda given: given.states[0] == EVEN),
    **dict.fromkeys(("OnesLike", "ZerosLike"), lambda given: True),
    "Fill": lambda given: given.is_free(1),
}
"""{op: when its output is even}."""


def _are_lengths(given: Given) -> bool:
    """Return whether these are the lengths of the lists of a batch."""
    op = given.op
    is_difference = op.type == "Sub" and op.inputs[0].op.type == "StridedSlice"
    if not is_difference or given.placed:
        return False
    return any(lists.is_lengths(given.output, ragged) for ragged in given.known.lists())


def _place_total(given: Given) -> list[State] | None:
    """Treat ops on a sum over examples whose result is again such a sum."""
    # Behind it, a sum has no gradient that could mix examples.
    if given.op.type == "StopGradient":
        return [DATA]
    is_total = _TOTAL_IF.get(given.op.type, lambda given: False)
    return [TOTAL] if is_total(given) else None


def _is_first(given: Given) -> bool:
    """Return whether the first input is a sum over examples."""
    return given.states[0] == TOTAL


def _is_one(given: Given) -> bool:
    """Return whether exactly one input is a sum over examples, and the others lack layouts."""
    return given.states.count(TOTAL) == 1 and not given.placed


_TOTAL_IF: dict[str, Callable[[Given], bool]] = {
    **dict.fromkeys(
        ("Add", "AddN", "AddV2", "Identity", "Neg", "Sub"), lambda given: not given.placed
    ),
    **dict.fromkeys(("DivNoNan", "RealDiv"), lambda given: _is_one(given) and _is_first(given)),
    **dict.fromkeys(("ExpandDims", "Mean", "Reshape", "Squeeze", "Sum"), _is_first),
    "Mul": _is_one,
}
"""{op: when a sum over examples that enters it comes out as such a sum}."""


def _place_spread(given: Given) -> list[State] | None:
    """Treat ops that repeat a common value once for each example."""
    dims, target = given.known.dims(given.op.inputs[0]), given.entries(1)
    if dims is None or target is None or len(target) != given.output.shape.rank:
        return None
    missing = len(target) - len(dims)
    dims = [*[sizes.ONE] * missing, *dims]
    axis = _find_batch(target, given.known.count)
    if axis is None or dims[axis] != sizes.ONE:
        return None
    spread, own = sizes.all_known(target), sizes.all_known(dims)
    if spread is None or own is None:
        return None
    if given.op.type == "Tile":
        spread = [times * size for times, size in zip(spread, own, strict=True)]
    return [given.known.examples(axis, spread)]


def _find_batch(dims: sizes.Known, count: sizes.Size) -> int | None:
    """Return the only axis of size B; None if it is not certain."""
    places = [n for n, size in enumerate(dims) if size == count]
    # A size may equal a static B by chance, and proves nothing.
    return places[0] if count.unknown and len(places) == 1 else None
