"""Finds the output layouts (`layouts.Layout`) of elementwise ops, products, sums and image ops."""

from __future__ import annotations

from collections.abc import Sequence

from mtl.deferred import tf
from mtl.example_gradients import layouts, lists, sizes
from mtl.example_gradients.given import ENTRY_BY_ENTRY, OF_IMAGES, Given, Rule
from mtl.example_gradients.layouts import DATA, EVEN, TOTAL, Layout, State


def _entry_by_entry(facts: Given) -> list[State] | None:
    """Return the output layout of an elementwise op, whose inputs are broadcast."""
    rank = facts.output.shape.rank
    first, layout = facts.placed[0]
    # Broadcasting aligns shapes at their last axes, so axes are counted from the end.
    from_end = facts.op.inputs[first].shape.rank - layout.axis
    for n, state in enumerate(facts.states):
        if isinstance(state, Layout):
            place = facts.op.inputs[n].shape.rank - state.axis
            if place != from_end or state.key != layout.key:
                return None
        elif facts.op.inputs[n].dtype != tf.resource and not facts.fits(n, from_end):
            return None
    return facts.to(rank - from_end, _broadcast_sizes(facts, rank))


def _place_select(facts: Given) -> list[State] | None:
    """Return the output layout of a Select, whose inputs are not broadcast."""
    # A condition [B] of a Select chooses whole rows; this case has no rule.
    is_alike = len({tensor.shape.rank for tensor in facts.op.inputs}) == 1
    return _entry_by_entry(facts) if is_alike else None


def _broadcast_sizes(facts: Given, rank: int) -> sizes.Known:
    """Return the sizes of the broadcast shape of all inputs; None for unknown sizes."""
    common: sizes.Known = []
    for from_end in range(rank, 0, -1):
        distinct: set[sizes.Size | None] = set()
        for tensor in facts.op.inputs:
            dims = facts.known.dims(tensor) if tensor.dtype != tf.resource else []
            if dims is None:
                distinct.add(None)
            elif len(dims) >= from_end:
                distinct.add(dims[len(dims) - from_end])
        # An axis of size 1 is broadcast to the size of the other input.
        distinct.discard(sizes.ONE)
        common.append(distinct.pop() if len(distinct) == 1 else (None if distinct else sizes.ONE))
    return common


def _of_images(facts: Given) -> list[State] | None:
    """Return the output layout of an op that treats each image separately."""
    are_first = all(of.axis == 0 and of.key == facts.layout.key for _, of in facts.placed)
    if not are_first or facts.placed[0][0] != 0 or EVEN in facts.states:
        return None
    # A pooling window over several images mixes examples.
    if "ksize" in facts.op.node_def.attr and facts.op.get_attr("ksize")[0] != 1:
        return None
    return facts.to(0)


def _bias_add(facts: Given) -> list[State] | None:
    is_last = facts.op.get_attr("data_format") == b"NHWC"
    layout, channels = facts.layout, facts.output.shape.rank - 1 if is_last else 1
    fits = facts.is_free(1) and facts.states[0] is layout and layout.axis != channels
    return facts.to(layout.axis, layout.dims) if fits else None


def _batch_norm(facts: Given) -> list[State] | None:
    """Return the output layout of batch norm: in inference, or with each example as a channel."""
    op, layout = facts.op, facts.layout
    channels = 3 if op.get_attr("data_format") == b"NHWC" else 1
    if facts.states[0] is not layout or len(facts.placed) > 1:
        return None
    if layout.axis == channels:
        # Here, each channel is an example, so the moments of a channel belong to one example. The
        # scales and offsets of batch norm must be equal for all examples.
        fits = all(facts.is_even(tensor) for tensor in op.inputs[1:])
    else:
        # In training, the moments depend on all examples of the batch.
        fits = not op.get_attr("is_training") and facts.is_free(1, 2, 3, 4)
    if not fits:
        return None
    # The other outputs of batch norm are the moments of the channels.
    others: list[State] = [DATA if layout.axis == channels else None] * (len(op.outputs) - 1)
    return [facts.placed_at(facts.output, layout.axis, layout.dims), *others]


def _along_last(facts: Given) -> list[State] | None:
    """Return the output layout of an op that works along the last axis, such as a softmax."""
    layout, rank = facts.layout, facts.op.inputs[0].shape.rank
    others = facts.is_free(*range(1, len(facts.states)))
    return facts.to(layout.axis, layout.dims) if layout.axis < rank - 1 and others else None


def _cross_entropy(facts: Given) -> list[State] | None:
    logits, labels = facts.states
    is_alike = labels is None and facts.op.inputs[1].shape.rank == 2 and facts.fits(1, 2)
    if isinstance(labels, Layout) and isinstance(logits, Layout):
        is_alike = labels.axis == 0 and labels.key == logits.key
    if not is_alike or not isinstance(logits, Layout) or logits.axis:
        return None
    return facts.to(0, logits.dims)


def _place_reduction(facts: Given) -> list[State] | None:
    rank, layout = facts.op.inputs[0].shape.rank, facts.layout
    axes = facts.axes(1, rank)
    if axes is None or facts.states[0] is not layout:
        return None
    if layout.axis in axes:
        return _added_up(facts)
    attributes = facts.op.node_def.attr
    keeps = "keep_dims" in attributes and facts.op.get_attr("keep_dims")
    remaining = [n for n in range(rank) if keeps or n not in axes]
    dims = [sizes.ONE if n in axes else layout.dims[n] for n in remaining]
    return facts.to(remaining.index(layout.axis), dims)


def _added_up(facts: Given) -> list[State] | None:
    """Return the output state of a reduction over the axis of examples; None if it is unknown."""
    # The gradient of a sum by an example does not depend on other examples, but the gradient of a
    # maximum or a product does.
    is_sum = facts.op.type in ("Mean", "Sum") and facts.is_moved and not facts.layout.owner
    return [TOTAL] if is_sum else None


def _place_matmul(facts: Given) -> list[State] | None:
    """Return the output layout of a product of [..., M, K] and [..., K, N]."""
    op, rank = facts.op, facts.output.shape.rank
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    transposes = [op.get_attr(name) for name in names]
    kept_axes = (
        2 - transposes[0],
        1 + transposes[1],
    )  # The axes of M and N in the inputs, counted from the end.
    places = set()
    for place, layout in facts.placed:
        from_end = op.inputs[place].shape.rank - layout.axis
        if from_end <= 2:
            if from_end != kept_axes[place] or len(facts.placed) > 1:
                return None
            return facts.to(rank - 2 + place)
        if len(facts.placed) == 1 and not facts.fits(1 - place, from_end):
            return None
        # The examples are along a batch axis of the product, so both inputs must have the same
        # layout.
        places.add((rank - from_end, layout.key))
    return facts.to(places.pop()[0]) if len(places) == 1 else None


def _place_einsum(facts: Given) -> list[State] | None:
    equation = facts.op.get_attr("equation").decode().replace(" ", "")
    terms, _, result = equation.partition("->")
    # If the equation has an ellipsis or no result, its letters do not show all axes.
    if "." in equation or "->" not in equation:
        return None
    terms = terms.split(",")
    letter = _find_letter(facts, terms)
    if letter is None or result.count(letter) != 1:
        return None
    dims: dict[str, sizes.Size | None] = {}
    for term, tensor in zip(terms, facts.op.inputs, strict=True):
        dims.update(zip(term, facts.known.dims(tensor) or [], strict=False))
    return facts.to(result.index(letter), [dims.get(name) for name in result])


def _find_letter(facts: Given, terms: Sequence[str]) -> str | None:
    """Return the Einsum letter of the axis of examples; None if terms have different letters."""
    letters = {(terms[n][layout.axis], layout.key) for n, layout in facts.placed}
    letter = terms[facts.placed[0][0]][facts.layout.axis]
    fit = all(
        isinstance(facts.states[n], Layout) or facts.is_even(facts.op.inputs[n])
        for n, term in enumerate(terms)
        if letter in term
    )
    once = all(term.count(letter) <= 1 for term in terms)
    return letter if len(letters) == 1 and fit and once else None


def _place_segments(facts: Given) -> list[State] | None:
    """Return the output layout of a reduction of each list of a ragged tensor to one row."""
    layout, (_, segments, count) = facts.layout, facts.op.inputs
    if facts.states[0] is not layout or not layout.owner or layout.axis:
        return None
    ragged = facts.known.list_of(layout)
    # The values of each list become a single row for the list's example, [N, ...] -> [B, ...].
    is_plain = layout.outer == layout.inner == sizes.ONE
    if not is_plain or not (lists.is_rows(segments, ragged) and lists.is_count(count, ragged)):
        return None
    dims = layouts.own_dims(facts.output)
    return [facts.known.examples(0, [dims[0], *layout.dims[1:]])]


OF_SEGMENTS = {f"UnsortedSegment{name}": (1, 2) for name in ("Max", "Min", "Prod", "Sum")}
"""{op: (index of the input with segment ids, index of the input with the number of segments)}."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(ENTRY_BY_ENTRY, _entry_by_entry),
    **dict.fromkeys(OF_IMAGES, _of_images),
    **dict.fromkeys(OF_SEGMENTS, _place_segments),
    **dict.fromkeys(("LogSoftmax", "Softmax", "TopKV2"), _along_last),
    **dict.fromkeys(("All", "Any", "ArgMax", "ArgMin", "EuclideanNorm"), _place_reduction),
    **dict.fromkeys(("Max", "Mean", "Min", "Prod", "Sum"), _place_reduction),
    **dict.fromkeys(("BatchMatMulV2", "BatchMatMulV3", "MatMul"), _place_matmul),
    "BiasAdd": _bias_add,
    "Einsum": _place_einsum,
    "FusedBatchNormV3": _batch_norm,
    "Select": _place_select,
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": _cross_entropy,
}
