"""Rules for the layout of examples after reshapes, transposes, joins, cuts and lookups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtl.deferred import tf
from mtl.example_gradients import sizes
from mtl.example_gradients.given import Given, Rule
from mtl.example_gradients.layouts import Layout, State


def _place_reshaped(given: Given) -> list[State] | None:
    static = given.output.shape
    dims = given.entries(1) or [None] * static.rank
    dims = [
        # A static size is certain; of a -1 in the new shape, only TensorFlow may know the size.
        size if own is None else sizes.Size(own)
        for size, own in zip(dims, static, strict=True)
    ]
    layout = given.layout.reshaped(dims)
    return [layout] if layout else None


def _place_expanded(given: Given) -> list[State] | None:
    axes = given.axes(1, given.output.shape.rank)
    if axes is None:
        return None
    axis, dims = given.layout.axis, list(given.layout.dims)
    dims.insert(axes[0], sizes.ONE)
    # A new axis before the examples moves them one back.
    return given.to(axis + (axes[0] <= axis), dims)


def _place_squeezed(given: Given) -> list[State] | None:
    layout, rank = given.layout, given.op.inputs[0].shape.rank
    axes = [n % rank for n in given.op.get_attr("squeeze_dims")]
    left = [n for n in range(rank) if n not in axes]
    # Without axes the op drops all of size 1, which may differ from batch to batch.
    if not axes or layout.axis in axes:
        return None
    return given.to(left.index(layout.axis), [layout.dims[n] for n in left])


def _place_transposed(given: Given) -> list[State] | None:
    layout, order = given.layout, given.axes(1, given.output.shape.rank)
    if order is None:
        return None
    return given.to(order.index(layout.axis), [layout.dims[n] for n in order])


def _place_tiled(given: Given) -> list[State] | None:
    layout, times = given.layout, sizes.all_known(given.entries(1) or [None])
    if times is None or given.states[0] is not layout:
        return None
    dims = [size * own for size, own in zip(times, layout.dims, strict=True)]
    # A tiled batch is the whole batch several times in order.
    return given.to(layout.axis, dims, outer=times[layout.axis] * layout.outer)


def _place_joined(given: Given) -> list[State] | None:
    """Treat ConcatV2 along another axis than the examples, or along it (`_place_repeated`)."""
    axes, layout = given.axes(len(given.states) - 1, given.output.shape.rank), given.layout
    if axes is None:
        return None
    if axes[0] == layout.axis:
        return _place_repeated(given)
    return given.to(layout.axis, _forget_sizes(layout, axes)) if _are_aligned(given, 1) else None


def _place_repeated(given: Given) -> list[State] | None:
    """Treat ConcatV2 along the axis of the examples: all of them several times."""
    layout, parts = given.layout, given.states[:-1]
    placed = [
        of
        for of in parts
        if isinstance(of, Layout)
        and (of.owner, of.axis, of.inner) == (layout.owner, layout.axis, layout.inner)
        and not of.outer.unknown
    ]
    if len(placed) < len(parts):
        return None
    # [x, x'] along the batch: example b lies at b, B + b, ...
    outer = sizes.Size(sum(of.outer.number for of in placed))
    return given.to(layout.axis, layout.dims, outer=outer)


def _place_packed(given: Given) -> list[State] | None:
    axis, layout = given.op.get_attr("axis") % given.output.shape.rank, given.layout
    dims = list(layout.dims)
    dims.insert(axis, sizes.Size(len(given.states)))
    is_after = axis <= layout.axis
    return given.to(layout.axis + is_after, dims) if _are_aligned(given, 0) else None


def _are_aligned(given: Given, arguments: int) -> bool:
    """Return whether examples have the same layout in all inputs, without the last `arguments`."""
    layout, count = given.layout, len(given.states) - arguments
    return all(
        (state.axis, state.key) == (layout.axis, layout.key)
        if isinstance(state, Layout)
        else given.is_even(given.op.inputs[n])
        for n, state in enumerate(given.states[:count])
    )


def _forget_sizes(layout: Layout, axes: Sequence[int]) -> sizes.Known:
    """Return the sizes, with None for some axes."""
    return [None if n in axes else size for n, size in enumerate(layout.dims)]


def _place_split(given: Given) -> list[State] | None:
    place = 0 if given.op.type == "Split" else 2
    layout, axes = given.layout, given.axes(place, given.output.shape.rank)
    if axes is None or given.states[0 if place else 1] is not layout:
        return None
    outer = layout.outer
    if axes[0] == layout.axis:
        # Split cuts between whole repetitions of the batch; SplitV may cut anywhere.
        share = outer.divide_by(sizes.Size(len(given.op.outputs)))
        if place or share is None:
            return None
        outer = share
    return given.to(layout.axis, _forget_sizes(layout, axes), outer=outer)


def _place_unpacked(given: Given) -> list[State] | None:
    layout, rank = given.layout, given.op.inputs[0].shape.rank
    axis = given.op.get_attr("axis") % rank
    left = [n for n in range(rank) if n != axis]
    if axis == layout.axis:
        return None
    return given.to(left.index(layout.axis), [layout.dims[n] for n in left])


def _place_strided(given: Given) -> list[State] | None:
    """Treat a StridedSlice that takes all of the axis that examples lie along."""
    layout, rank = given.layout, given.op.inputs[0].shape.rank
    steps = given.static(3)
    if steps is None or given.states[0] is not layout:
        return None
    left, cut = _trace_axes(given.op, steps, rank)
    if layout.axis in cut:
        return None
    dims = [sizes.ONE if n is None else None if n in cut else layout.dims[n] for n in left]
    return given.to(left.index(layout.axis), dims)


def _trace_axes(
    op: tf.Operation, steps: np.ndarray, rank: int
) -> tuple[list[int | None], list[int]]:
    """Return the input axis of each output axis of a slice, None for a new one; and the cut axes.

    Args:
      op: the slice.
      steps: the step of each term of the slice.
      rank: the number of axes of its input.
    """
    names = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    masks = {name: op.get_attr(f"{name}_mask") for name in names}
    left: list[int | None] = []
    cut: list[int] = []
    axis = 0
    for n, step in enumerate(steps):
        bit = 1 << n
        if masks["ellipsis"] & bit:
            # New axes behind the ellipsis use up no axis of the input.
            after = len(steps) - n - 1 - bin(masks["new_axis"] >> (n + 1)).count("1")
            left += range(axis, rank - after)
            axis = rank - after
        elif masks["new_axis"] & bit:
            left.append(None)
        else:
            # Only `:` keeps the axis whole for every size of the batch.
            is_whole = masks["begin"] & bit and masks["end"] & bit and step == 1
            cut += [] if is_whole else [axis]
            left += [] if masks["shrink_axis"] & bit else [axis]
            axis += 1
    return [*left, *range(axis, rank)], cut


def _place_slice(given: Given) -> list[State] | None:
    layout, begin, size = given.layout, given.static(1), given.static(2)
    if begin is None or size is None or given.states[0] is not layout:
        return None
    # A size of -1 means up to the end; a number may cut larger batches.
    is_whole = begin[layout.axis] == 0 and size[layout.axis] == -1
    return given.to(layout.axis) if is_whole else None


def _place_padded(given: Given) -> list[State] | None:
    layout, pads = given.layout, given.static(1)
    if pads is None or given.states[0] is not layout or np.any(pads[layout.axis]):
        return None
    return given.to(
        layout.axis, _forget_sizes(layout, np.flatnonzero(np.any(pads, axis=1)).tolist())
    )


def _by_axes(given: Given) -> list[State] | None:
    """Treat ops along some axes: reverse, roll, cumulative sums."""
    place = 2 if given.op.type == "Roll" else 1
    layout, axes = given.layout, given.axes(place, given.output.shape.rank)
    if axes is None or layout.axis in axes or given.states[0] is not layout:
        return None
    return given.to(layout.axis, layout.dims)


def _place_gathered(given: Given) -> list[State] | None:
    """Treat GatherV2: rows by indices of examples, or the same indices of every example."""
    table, indices = given.states[:2]
    ranks = [tensor.shape.rank for tensor in given.op.inputs[:2]]
    axes = given.axes(2, ranks[0])
    if axes is None:
        return None
    if given.op.get_attr("batch_dims"):
        return _gathered_apart(given)
    # A table that no example enters: each example gets its own rows.
    if isinstance(indices, Layout) and table is None:
        return given.to(axes[0] + indices.axis)
    if isinstance(table, Layout) and indices is None and table.axis != axes[0]:
        return given.to(table.axis + (ranks[1] - 1) * (table.axis > axes[0]))
    return None


def _gathered_apart(given: Given) -> list[State] | None:
    """Treat a GatherV2 that looks rows up in a separate table for each example."""
    table, indices = given.states[:2]
    if not isinstance(table, Layout) or not isinstance(indices, Layout):
        return None
    are_first = table.axis == indices.axis == 0 and table.key == indices.key
    return given.to(0) if are_first and given.op.get_attr("batch_dims") >= 1 else None


def _looked_up(given: Given) -> list[State] | None:
    if given.op.get_attr("batch_dims") or not isinstance(given.states[1], Layout):
        return None
    return given.to(given.layout.axis, given.layout.dims)


def _one_hot(given: Given) -> list[State] | None:
    axis, layout = given.op.get_attr("axis"), given.layout
    axis = layout.axis + 1 if axis == -1 else axis
    if given.states[0] is not layout or not given.is_free(1, 2, 3):
        return None
    return given.to(layout.axis + (axis <= layout.axis))


def _to_blocks(given: Given) -> list[State] | None:
    """Treat SpaceToBatchND and back: all examples of a block come before the next block."""
    block, layout = given.static(1), given.layout
    if block is None or layout.axis or given.states[0] is not layout:
        return None
    count = sizes.Size(int(np.prod(block)))
    is_back = given.op.type == "BatchToSpaceND"
    outer = layout.outer.divide_by(count) if is_back else layout.outer * count
    return given.to(0, outer=outer) if outer else None


def _all_alike(given: Given) -> list[State] | None:
    return list(given.states)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("BatchToSpaceND", "SpaceToBatchND"), _to_blocks),
    **dict.fromkeys(("Cumprod", "Cumsum", "ReverseV2", "Roll"), _by_axes),
    **dict.fromkeys(("MirrorPad", "Pad", "PadV2"), _place_padded),
    **dict.fromkeys(("Split", "SplitV"), _place_split),
    "ConcatV2": _place_joined,
    "ExpandDims": _place_expanded,
    "GatherV2": _place_gathered,
    "IdentityN": _all_alike,
    "OneHot": _one_hot,
    "Pack": _place_packed,
    "Reshape": _place_reshaped,
    "ResourceGather": _looked_up,
    "Slice": _place_slice,
    "Squeeze": _place_squeezed,
    "StridedSlice": _place_strided,
    "Tile": _place_tiled,
    "Transpose": _place_transposed,
    "Unpack": _place_unpacked,
}
