"""Finds the output layouts (`layouts.Layout`) of reshapes, transposes, slices, lookups and more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtl.deferred import tf
from mtl.example_gradients import sizes
from mtl.example_gradients.given import Given, Rule
from mtl.example_gradients.layouts import Layout, State


def _place_reshaped(facts: Given) -> list[State] | None:
    static = facts.output.shape
    dims = facts.entries(1) or [None] * static.rank
    dims = [
        # A static size replaces the size that was derived from the shape argument. The size for a
        # -1 in the new shape may be known only as a static size.
        size if fixed_size is None else sizes.Size(fixed_size)
        for size, fixed_size in zip(dims, static, strict=True)
    ]
    layout = facts.layout.reshaped(dims)
    return [layout] if layout else None


def _place_expanded(facts: Given) -> list[State] | None:
    axes = facts.axes(1, facts.output.shape.rank)
    if axes is None:
        return None
    axis, dims = facts.layout.axis, list(facts.layout.dims)
    dims.insert(axes[0], sizes.ONE)
    # A new axis before the axis of examples increases the index of this axis by one.
    return facts.to(axis + (axes[0] <= axis), dims)


def _place_squeezed(facts: Given) -> list[State] | None:
    layout, rank = facts.layout, facts.op.inputs[0].shape.rank
    axes = [n % rank for n in facts.op.get_attr("squeeze_dims")]
    remaining = [n for n in range(rank) if n not in axes]
    # Without a list of axes, the op removes all axes of size 1, which may be other axes in another
    # batch.
    if not axes or layout.axis in axes:
        return None
    return facts.to(remaining.index(layout.axis), [layout.dims[n] for n in remaining])


def _place_transposed(facts: Given) -> list[State] | None:
    layout, order = facts.layout, facts.axes(1, facts.output.shape.rank)
    if order is None:
        return None
    return facts.to(order.index(layout.axis), [layout.dims[n] for n in order])


def _place_tiled(facts: Given) -> list[State] | None:
    layout, times = facts.layout, sizes.all_known(facts.entries(1) or [None])
    if times is None or facts.states[0] is not layout:
        return None
    dims = [count * size for count, size in zip(times, layout.dims, strict=True)]
    # Tiling repeats the whole batch.
    return facts.to(layout.axis, dims, outer=times[layout.axis] * layout.outer)


def _place_joined(facts: Given) -> list[State] | None:
    """Return the output layout of a ConcatV2."""
    axes, layout = facts.axes(len(facts.states) - 1, facts.output.shape.rank), facts.layout
    if axes is None:
        return None
    if axes[0] == layout.axis:
        return _place_repeated(facts)
    return facts.to(layout.axis, _forget_sizes(layout, axes)) if _are_aligned(facts, 1) else None


def _place_repeated(facts: Given) -> list[State] | None:
    """Return the output layout of a ConcatV2 that repeats the batch along the axis of examples."""
    layout, parts = facts.layout, facts.states[:-1]
    same_layouts = [
        of
        for of in parts
        if isinstance(of, Layout)
        and (of.owner, of.axis, of.inner) == (layout.owner, layout.axis, layout.inner)
        and not of.outer.unknown
    ]
    if len(same_layouts) < len(parts):
        return None
    # After a concatenation of x and x', example b is at b and at B + b.
    outer = sizes.Size(sum(of.outer.number for of in same_layouts))
    return facts.to(layout.axis, layout.dims, outer=outer)


def _place_packed(facts: Given) -> list[State] | None:
    axis, layout = facts.op.get_attr("axis") % facts.output.shape.rank, facts.layout
    dims = list(layout.dims)
    dims.insert(axis, sizes.Size(len(facts.states)))
    is_after = axis <= layout.axis
    return facts.to(layout.axis + is_after, dims) if _are_aligned(facts, 0) else None


def _are_aligned(facts: Given, arguments: int) -> bool:
    """Return True if all inputs have the same layout, except the last `arguments` inputs."""
    layout, count = facts.layout, len(facts.states) - arguments
    return all(
        (state.axis, state.key) == (layout.axis, layout.key)
        if isinstance(state, Layout)
        else facts.is_even(facts.op.inputs[n])
        for n, state in enumerate(facts.states[:count])
    )


def _forget_sizes(layout: Layout, axes: Sequence[int]) -> sizes.Known:
    """Return the sizes of all axes of a layout, with None for the axes in `axes`."""
    return [None if n in axes else size for n, size in enumerate(layout.dims)]


def _place_split(facts: Given) -> list[State] | None:
    place = 0 if facts.op.type == "Split" else 2
    layout, axes = facts.layout, facts.axes(place, facts.output.shape.rank)
    if axes is None or facts.states[0 if place else 1] is not layout:
        return None
    outer = layout.outer
    if axes[0] == layout.axis:
        # If the axis of examples repeats the whole batch several times, a Split may cut it between
        # two repetitions. A SplitV could split the batch itself.
        share = outer.divide_by(sizes.Size(len(facts.op.outputs)))
        if place or share is None:
            return None
        outer = share
    return facts.to(layout.axis, _forget_sizes(layout, axes), outer=outer)


def _place_unpacked(facts: Given) -> list[State] | None:
    layout, rank = facts.layout, facts.op.inputs[0].shape.rank
    axis = facts.op.get_attr("axis") % rank
    remaining = [n for n in range(rank) if n != axis]
    if axis == layout.axis:
        return None
    return facts.to(remaining.index(layout.axis), [layout.dims[n] for n in remaining])


def _place_strided(facts: Given) -> list[State] | None:
    """Return the output layout of a StridedSlice that keeps the axis of examples whole."""
    layout, rank = facts.layout, facts.op.inputs[0].shape.rank
    steps = facts.static(3)
    if steps is None or facts.states[0] is not layout:
        return None
    remaining, sliced_axes = _trace_axes(facts.op, steps, rank)
    if layout.axis in sliced_axes:
        return None
    dims = [
        sizes.ONE if n is None else None if n in sliced_axes else layout.dims[n] for n in remaining
    ]
    return facts.to(remaining.index(layout.axis), dims)


def _trace_axes(
    op: tf.Operation, steps: np.ndarray, rank: int
) -> tuple[list[int | None], list[int]]:
    """Return the input axis of each output axis of a slice (None if new), and the sliced axes.

    Args:
      op: a StridedSlice.
      steps: the stride of each index of the slice, such as 2 for `::2`.
      rank: the number of axes of the input.
    """
    names = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    masks = {name: op.get_attr(f"{name}_mask") for name in names}
    remaining: list[int | None] = []
    sliced_axes: list[int] = []
    axis = 0
    for n, step in enumerate(steps):
        bit = 1 << n
        if masks["ellipsis"] & bit:
            # New axes after the ellipsis do not stand for an axis of the input.
            after = len(steps) - n - 1 - bin(masks["new_axis"] >> (n + 1)).count("1")
            remaining += range(axis, rank - after)
            axis = rank - after
        elif masks["new_axis"] & bit:
            remaining.append(None)
        else:
            # Among the indices of a slice, only `:` keeps the axis whole for every size of the
            # batch.
            is_whole = masks["begin"] & bit and masks["end"] & bit and step == 1
            sliced_axes += [] if is_whole else [axis]
            remaining += [] if masks["shrink_axis"] & bit else [axis]
            axis += 1
    return [*remaining, *range(axis, rank)], sliced_axes


def _place_slice(facts: Given) -> list[State] | None:
    layout, begin, size = facts.layout, facts.static(1), facts.static(2)
    if begin is None or size is None or facts.states[0] is not layout:
        return None
    # In a Slice, the size -1 takes all entries up to the end. A fixed size would drop examples of a
    # larger batch.
    is_whole = begin[layout.axis] == 0 and size[layout.axis] == -1
    return facts.to(layout.axis) if is_whole else None


def _place_padded(facts: Given) -> list[State] | None:
    layout, pads = facts.layout, facts.static(1)
    if pads is None or facts.states[0] is not layout or np.any(pads[layout.axis]):
        return None
    return facts.to(
        layout.axis, _forget_sizes(layout, np.flatnonzero(np.any(pads, axis=1)).tolist())
    )


def _by_axes(facts: Given) -> list[State] | None:
    """Return the output layout of an op along some axes: reverse, roll, cumulative sum."""
    place = 2 if facts.op.type == "Roll" else 1
    layout, axes = facts.layout, facts.axes(place, facts.output.shape.rank)
    if axes is None or layout.axis in axes or facts.states[0] is not layout:
        return None
    return facts.to(layout.axis, layout.dims)


def _place_gathered(facts: Given) -> list[State] | None:
    """Return the output layout of a GatherV2."""
    table, indices = facts.states[:2]
    ranks = [tensor.shape.rank for tensor in facts.op.inputs[:2]]
    axes = facts.axes(2, ranks[0])
    if axes is None:
        return None
    if facts.op.get_attr("batch_dims"):
        return _gathered_apart(facts)
    # If the table of a GatherV2 does not depend on examples, each gathered row belongs to the
    # example of its index.
    if isinstance(indices, Layout) and table is None:
        return facts.to(axes[0] + indices.axis)
    if isinstance(table, Layout) and indices is None and table.axis != axes[0]:
        return facts.to(table.axis + (ranks[1] - 1) * (table.axis > axes[0]))
    return None


def _gathered_apart(facts: Given) -> list[State] | None:
    """Return the output layout of a GatherV2 from a separate table for each example."""
    table, indices = facts.states[:2]
    if not isinstance(table, Layout) or not isinstance(indices, Layout):
        return None
    are_first = table.axis == indices.axis == 0 and table.key == indices.key
    return facts.to(0) if are_first and facts.op.get_attr("batch_dims") >= 1 else None


def _looked_up(facts: Given) -> list[State] | None:
    if facts.op.get_attr("batch_dims") or not isinstance(facts.states[1], Layout):
        return None
    return facts.to(facts.layout.axis, facts.layout.dims)


def _one_hot(facts: Given) -> list[State] | None:
    axis, layout = facts.op.get_attr("axis"), facts.layout
    axis = layout.axis + 1 if axis == -1 else axis
    if facts.states[0] is not layout or not facts.is_free(1, 2, 3):
        return None
    return facts.to(layout.axis + (axis <= layout.axis))


def _to_blocks(facts: Given) -> list[State] | None:
    """Return the output layout of SpaceToBatchND or BatchToSpaceND, with entries in blocks."""
    block, layout = facts.static(1), facts.layout
    if block is None or layout.axis or facts.states[0] is not layout:
        return None
    count = sizes.Size(int(np.prod(block)))
    is_back = facts.op.type == "BatchToSpaceND"
    outer = layout.outer.divide_by(count) if is_back else layout.outer * count
    return facts.to(0, outer=outer) if outer else None


def _all_alike(facts: Given) -> list[State] | None:
    return list(facts.states)


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
