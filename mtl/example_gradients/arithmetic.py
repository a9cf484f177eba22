"""Rules for the layout of examples after elementwise ops, products, sums and ops on images."""

from __future__ import annotations

from collections.abc import Sequence

from mtl.deferred import tf
from mtl.example_gradients import layouts, lists, sizes
from mtl.example_gradients.given import ENTRY_BY_ENTRY, OF_IMAGES, Given, Rule
from mtl.example_gradients.layouts import DATA, EVEN, TOTAL, Layout, State


def _entry_by_entry(given: Given) -> list[State] | None:
    """Place the output of an op that works entry by entry on inputs broadcast to each other."""
    rank = given.output.shape.rank
    first, layout = given.placed[0]
    # Broadcasting aligns shapes at their ends, so axes are counted from there.
    from_end = given.op.inputs[first].shape.rank - layout.axis
    for n, state in enumerate(given.states):
        if isinstance(state, Layout):
            own = given.op.inputs[n].shape.rank - state.axis
            if own != from_end or state.key != layout.key:
                return None
        elif given.op.inputs[n].dtype != tf.resource and not given.fits(n, from_end):
            return None
    return given.to(rank - from_end, _broadcast_sizes(given, rank))


def _place_select(given: Given) -> list[State] | None:
    """Place the output of a Select, which takes inputs without broadcasting."""
    # A condition [B] of a Select chooses whole rows, unlike a broadcast one.
    is_alike = len({tensor.shape.rank for tensor in given.op.inputs}) == 1
    return _entry_by_entry(given) if is_alike else None


def _broadcast_sizes(given: Given, rank: int) -> sizes.Known:
    """Return the sizes of the common broadcast shape; None for unknown sizes."""
    common: sizes.Known = []
    for from_end in range(rank, 0, -1):
        distinct: set[sizes.Size | None] = set()
        for tensor in given.op.inputs:
            dims = given.known.dims(tensor) if tensor.dtype != tf.resource else []
            if dims is None:
                distinct.add(None)
            elif len(dims) >= from_end:
                distinct.add(dims[len(dims) - from_end])
        # An axis of size 1 takes the size of the other input.
        distinct.discard(sizes.ONE)
        common.append(distinct.pop() if len(distinct) == 1 else (None if distinct else sizes.ONE))
    return common


def _of_images(given: Given) -> list[State] | None:
    """Treat ops on single images of any size."""
    are_first = all(of.axis == 0 and of.key == given.layout.key for _, of in given.placed)
    if not are_first or given.placed[0][0] != 0 or EVEN in given.states:
        return None
    # A pool whose window covers several images mixes examples.
    if "ksize" in given.op.node_def.attr and given.op.get_attr("ksize")[0] != 1:
        return None
    return given.to(0)


def _bias_add(given: Given) -> list[State] | None:
    is_last = given.op.get_attr("data_format") == b"NHWC"
    layout, channels = given.layout, given.output.shape.rank - 1 if is_last else 1
    fits = given.is_free(1) and given.states[0] is layout and layout.axis != channels
    return given.to(layout.axis, layout.dims) if fits else None


def _batch_norm(given: Given) -> list[State] | None:
    """Treat batch norm with given moments, or with its own moments if examples are channels."""
    op, layout = given.op, given.layout
    channels = 3 if op.get_attr("data_format") == b"NHWC" else 1
    if given.states[0] is not layout or len(given.placed) > 1:
        return None
    if layout.axis == channels:
        # Moments of a channel are those of an example here; scales must not tell examples apart.
        fits = all(given.is_even(tensor) for tensor in op.inputs[1:])
    else:
        # Moments of the batch in training depend on all examples.
        fits = not op.get_attr("is_training") and given.is_free(1, 2, 3, 4)
    if not fits:
        return None
    # The further outputs are the moments, one for each channel.
    others: list[State] = [DATA if layout.axis == channels else None] * (len(op.outputs) - 1)
    return [given.placed_at(given.output, layout.axis, layout.dims), *others]


def _along_last(given: Given) -> list[State] | None:
    """Treat ops along the last axis."""
    layout, rank = given.layout, given.op.inputs[0].shape.rank
    others = given.is_free(*range(1, len(given.states)))
    return given.to(layout.axis, layout.dims) if layout.axis < rank - 1 and others else None


def _cross_entropy(given: Given) -> list[State] | None:
    logits, labels = given.states
    is_alike = labels is None and given.op.inputs[1].shape.rank == 2 and given.fits(1, 2)
    if isinstance(labels, Layout) and isinstance(logits, Layout):
        is_alike = labels.axis == 0 and labels.key == logits.key
    if not is_alike or not isinstance(logits, Layout) or logits.axis:
        return None
    return given.to(0, logits.dims)


def _place_reduction(given: Given) -> list[State] | None:
    rank, layout = given.op.inputs[0].shape.rank, given.layout
    axes = given.axes(1, rank)
    if axes is None or given.states[0] is not layout:
        return None
    if layout.axis in axes:
        return _added_up(given)
    attributes = given.op.node_def.attr
    keeps = "keep_dims" in attributes and given.op.get_attr("keep_dims")
    left = [n for n in range(rank) if keeps or n not in axes]
    dims = [sizes.ONE if n in axes else layout.dims[n] for n in left]
    return given.to(left.index(layout.axis), dims)


def _added_up(given: Given) -> list[State] | None:
    """Treat reductions over the examples."""
    # A sum keeps the gradients of examples apart; a maximum or a product mixes them.
    is_sum = given.op.type in ("Mean", "Sum") and given.is_moved and not given.layout.owner
    return [TOTAL] if is_sum else None


def _place_matmul(given: Given) -> list[State] | None:
    """Treat [..., M, K] by [..., K, N]; examples along K would be added up."""
    op, rank = given.op, given.output.shape.rank
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    turned = [op.get_attr(name) for name in names]
    kept_axes = (2 - turned[0], 1 + turned[1])  # The axes of M and N, counted from the end.
    places = set()
    for place, layout in given.placed:
        from_end = op.inputs[place].shape.rank - layout.axis
        if from_end <= 2:
            if from_end != kept_axes[place] or len(given.placed) > 1:
                return None
            return given.to(rank - 2 + place)
        if len(given.placed) == 1 and not given.fits(1 - place, from_end):
            return None
        # A batch axis of the product: both inputs must have the examples at the same place.
        places.add((rank - from_end, layout.key))
    return given.to(places.pop()[0]) if len(places) == 1 else None


def _place_einsum(given: Given) -> list[State] | None:
    equation = given.op.get_attr("equation").decode().replace(" ", "")
    terms, _, result = equation.partition("->")
    # An ellipsis, or an implicit result, hides which letter is which axis.
    if "." in equation or "->" not in equation:
        return None
    terms = terms.split(",")
    letter = _find_letter(given, terms)
    if letter is None or result.count(letter) != 1:
        return None
    dims: dict[str, sizes.Size | None] = {}
    for term, tensor in zip(terms, given.op.inputs, strict=True):
        dims.update(zip(term, given.known.dims(tensor) or [], strict=False))
    return given.to(result.index(letter), [dims.get(name) for name in result])


def _find_letter(given: Given, terms: Sequence[str]) -> str | None:
    """Return the Einsum letter of the axis of examples; None if it is not the same in all terms."""
    found = {(terms[n][layout.axis], layout.key) for n, layout in given.placed}
    letter = terms[given.placed[0][0]][given.layout.axis]
    fit = all(
        isinstance(given.states[n], Layout) or given.is_even(given.op.inputs[n])
        for n, term in enumerate(terms)
        if letter in term
    )
    once = all(term.count(letter) <= 1 for term in terms)
    return letter if len(found) == 1 and fit and once else None


def _place_segments(given: Given) -> list[State] | None:
    """Treat reductions of the values of each list."""
    layout, (_, segments, count) = given.layout, given.op.inputs
    if given.states[0] is not layout or not layout.owner or layout.axis:
        return None
    ragged = given.known.list_of(layout)
    # The values of a list become one row of each example, [N, ...] -> [B, ...].
    is_plain = layout.outer == layout.inner == sizes.ONE
    if not is_plain or not (lists.is_rows(segments, ragged) and lists.is_count(count, ragged)):
        return None
    dims = layouts.own_dims(given.output)
    return [given.known.examples(0, [dims[0], *layout.dims[1:]])]


OF_SEGMENTS = {f"UnsortedSegment{name}": (1, 2) for name in ("Max", "Min", "Prod", "Sum")}
"""{op: which of its inputs tell the list of each value, and how many lists there are}."""

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
