"""Where examples lie in what an op gives, by where they lie in what it is given.

states = rules.outputs(op, proof, is_moved)          # a state for each output; None: not known

A rule holds for every size of the batch. Inputs that are the same for all examples must not vary
along the axis that examples lie along.
"""

import tensorflow as tf

from mtl.example_gradients import arithmetic, layouts, lists, movement, sizes
from mtl.example_gradients.given import DRAWS, ENTRY_BY_ENTRY, Given, Known
from mtl.example_gradients.layouts import DATA, EVEN, TOTAL, State

_LINEAR = frozenset(["Add", "AddN", "AddV2", "Identity", "Neg", "Sub"])
_RULES = {**arithmetic.RULES, **movement.RULES}
_SIZE_ARGUMENTS = {"Reshape": (1,), "Tile": (1,), "BroadcastTo": (1,)}


def outputs(op: tf.Operation, known: Known, is_moved: bool) -> list[State] | None:
    """Return a state for each output of an op that depends on the batch; None if it is not known.

    Args:
      op: none of its inputs is `layouts.UNKNOWN`.
      known: tells of its inputs.
      is_moved: whether variables have a part in it.
    """
    if op.outputs[0].shape.rank is None:
        return None
    given = Given(op, known, is_moved)
    found = _apart_from_layouts(given)
    if found is None and given.placed:
        named = _SIZE_ARGUMENTS.get(op.type, arithmetic.OF_SEGMENTS.get(op.type, ()))
        is_data = any(s == DATA for n, s in enumerate(given.states) if n not in named)
        rule = _RULES.get(op.type)
        found = rule(given) if rule and not is_data and TOTAL not in given.states else None
    if found and "_gradient_op_type" in op.node_def.attr and is_moved:
        return found if known.is_apart_back(op, found) else None
    return found


def _apart_from_layouts(given: Given) -> list[State] | None:
    """Treat ops that no tensor with a layout enters, or of whose inputs only sizes count."""
    op = given.op
    is_size = sizes.is_made(op) and (op.type == "Shape" or not given.placed)
    if is_size and given.known.is_of_one(given.output):
        return [None]
    if TOTAL in given.states:
        return _total(given)
    if _are_lengths(given):
        return [given.known.examples(0, layouts.own_dims(given.output))]
    if op.type in ("BroadcastTo", "Tile") and given.is_free(0):
        return _spread(given)
    is_drawn = op.type in DRAWS and given.states[1:].count(None) == len(op.inputs) - 1
    if is_drawn or (op.type == "Fill" and given.is_free(1)):
        return [EVEN]
    if op.type in ("ExpandDims", "Reshape") and given.states[0] == EVEN:
        return [EVEN]
    is_like = op.type in ("OnesLike", "ZerosLike")
    is_made = op.type in ENTRY_BY_ENTRY and not given.placed and DATA not in given.states
    if is_like or (is_made and all(t.shape.rank == 0 or given.is_even(t) for t in op.inputs)):
        return [EVEN]
    return None


def _are_lengths(given: Given) -> bool:
    """Return whether these are the lengths of the lists of a batch."""
    op = given.op
    is_difference = op.type == "Sub" and op.inputs[0].op.type == "StridedSlice"
    if not is_difference or given.placed:
        return False
    return any(lists.is_lengths(given.output, ragged) for ragged in given.known.lists())


def _total(given: Given) -> list[State] | None:
    """Treat a sum over examples: find what is again a sum of what each of them makes."""
    kind, states = given.op.type, given.states
    is_one = states.count(TOTAL) == 1 and not given.placed
    if kind == "StopGradient":
        return [DATA]
    is_sum = kind in _LINEAR and not given.placed
    is_scaled = kind == "Mul" and is_one
    is_divided = kind in ("DivNoNan", "RealDiv") and is_one and states[0] == TOTAL
    is_reduced = kind in ("ExpandDims", "Mean", "Reshape", "Squeeze", "Sum") and states[0] == TOTAL
    return [TOTAL] if is_sum or is_scaled or is_divided or is_reduced else None


def _spread(given: Given) -> list[State] | None:
    """Treat what repeats a value that is the same for all, once for each example."""
    dims, target = given.known.dims(given.op.inputs[0]), given.entries(1)
    if dims is None or target is None or len(target) != given.output.shape.rank:
        return None
    missing = len(target) - len(dims)
    dims = [*[sizes.ONE] * missing, *dims]
    places = [n for n, size in enumerate(target) if size == given.known.count]
    # Where B is a number, a size may equal it by chance and proves nothing.
    if not given.known.count.unknown or len(places) != 1 or dims[places[0]] != sizes.ONE:
        return None
    spread, own = sizes.all_known(target), sizes.all_known(dims)
    if spread is None or own is None:
        return None
    if given.op.type == "Tile":
        spread = [times * size for times, size in zip(spread, own, strict=True)]
    return [given.known.examples(places[0], spread)]
