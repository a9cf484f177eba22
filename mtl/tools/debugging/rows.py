"""Finds the rows of the batch that broke a step, and the fields with odd values in these rows.

broken = rows.find_rows(dump, root, batch_size=64)       # Rows((17,), "not finite in ...")
rows.find_fields(dump, root, broken.numbers, fields)     # ["age"]
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mtl.tools.debugging import roots as roots_lib
from mtl.tools.debugging import step_dump

_IN_LOOP = "/body/_"
# The prefix of ops in the loop of `whole_batch` over the micro-batches (slices) of a batch. Ops in
# loops inside the model do not have this prefix.
_LOOP_OF_SLICES = re.compile(r"(?:Func/)?balancing/while(?:_\d+)?/body/_")

# The factor by which the largest value of an odd row exceeds the median of all rows.
_STANDS_OUT = 1e3


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a batch that broke a step.

    Attributes:
      numbers: the indices, from 0, of the rows in the batch that broke the step; empty if no row
        stands out from the other rows.
      evidence: a text that says why these rows were chosen.
    """

    numbers: tuple[int, ...]
    evidence: str


def find_rows(
    dump: step_dump.StepDump, root: roots_lib.Root, batch_size: int, slices: int = 1
) -> Rows:
    """Find the rows of the batch whose values broke an op.

    The search uses only tensors whose first axis has the rows of the batch: first the output of the
    op, then later tensors, then earlier tensors.

    Args:
      dump: the tensors of the training step.
      root: the op that broke the step, with its broken output.
      batch_size: the number of rows in a batch, B.
      slices: the number of micro-batches (slices) in a batch; a slice has B / slices rows.

    Returns:
      The rows; their `numbers` are empty if no row stands out from the other rows.
    """
    of_rows = list_of_rows(dump, batch_size, slices)
    for tensor in (t for t in (root.output, *_list_bad(dump, root)) if t in of_rows):
        numbers = _list_rows_that(dump, tensor, batch_size, slices, _are_bad)
        # If all rows are broken, the cause lies elsewhere.
        if 0 < len(numbers) < batch_size:
            return Rows(numbers, f"not finite in {tensor}")
    leaders = dump.list_leaders(root.node.name)
    # Try the tensor nearest to the op first, because the fewest ops lie between this tensor and the
    # broken output.
    nearest = [t for t in sorted(leaders, key=lambda name: leaders[name]) if t in of_rows]
    for tensor in nearest:
        numbers = _list_rows_that(dump, tensor, batch_size, slices, stand_out)
        # If most rows have large values, large values are normal for this tensor.
        if 0 < len(numbers) < batch_size / 2:
            return Rows(numbers, f"far larger than the other rows in {tensor}")
    return Rows((), "all rows of the batch look alike to this op")


def find_fields(
    dump: step_dump.StepDump,
    root: roots_lib.Root,
    numbers: Sequence[int],
    fields: Mapping[str, str],
) -> list[str]:
    """Return the fields that an op depends on and whose values are odd in the broken rows.

    A value is odd if it is not finite, or far larger than the values in other rows. For an op that
    reads the batch itself, only values that are not finite are odd.

    Args:
      dump: the tensors of the training step.
      root: the op that broke the step, with its broken output.
      numbers: the indices of the broken rows.
      fields: {field: the name of its tensor in the batch}.
    """
    leaders, odd_fields = dump.list_leaders(root.node.name), []
    for field, tensor in fields.items():
        values = _read_by_row(dump, tensor)
        if values is None:
            continue
        positions = [number for number in numbers if number < len(values)]
        is_bad = root.output == tensor and _are_bad(values)[positions].any()
        if is_bad or (tensor in leaders and stand_out(values)[positions].any()):
            odd_fields.append(field)
    return odd_fields


def _read_by_row(dump: step_dump.StepDump, tensor: str) -> np.ndarray | None:
    """Return the values of a numeric field, [B, n]; None if the field is not numeric."""
    values = dump.read_any(tensor)
    if values is None or values.dtype.kind not in "fi" or not values.ndim or not values.size:
        return None
    return values.reshape(len(values), -1).astype(np.float64)


def list_of_rows(dump: step_dump.StepDump, batch_size: int, slices: int = 1) -> frozenset[str]:
    """Return the names of the tensors whose first axis has the rows of the batch.

    A first axis of length B need not hold the rows of the batch, because a kernel may have B rows
    by chance. `list_of_rows` therefore follows the axis of rows from the input batch through all
    ops.

    Args:
      dump: the tensors of the training step.
      batch_size: the number of rows in a batch, B.
      slices: the number of micro-batches (slices) in a batch; a slice has B / slices rows.
    """
    tensors: set[str] = set()
    # Each forward pass gets one micro-batch (slice) of the batch.
    size = batch_size // slices
    for name in sorted(dump.nodes, key=lambda name: dump.order[name]):
        node = dump.nodes[name]
        if node.kind == _READING or _keeps_rows(dump, node, tensors):
            tensors |= {t for t in dump.list_outputs(name) if _has_rows(dump, t, size)}
    return frozenset(tensors)


def stand_out(values: np.ndarray) -> np.ndarray:
    """Find rows with a value that is not finite, or far larger than the values in other rows.

    Args:
      values: n values for each of B rows, [B, n].

    Returns:
      A mask, bool [B], that is True for the rows that stand out.
    """
    with np.errstate(invalid="ignore"):
        largest = np.abs(values).max(1, initial=0)
        # Ignore rows of zeros, such as padding: with a median of 0, all other rows would stand out.
        usual = largest[np.isfinite(largest) & (largest > 0)]
        # Two values are too few to say which values are usual.
        middle = np.median(usual) if len(usual) > 2 else np.inf
        return ~np.isfinite(largest) | (largest > _STANDS_OUT * middle)


def _keeps_rows(dump: step_dump.StepDump, node: step_dump.Node, of_rows: set[str]) -> bool:
    """Return whether the output of a node has the same rows as one of its inputs."""
    # A matrix product that transposes its first input sums over the rows.
    if node.kind in _MIXING or node.transposes:
        return False
    if node.kind in _BY_FIRST:
        return node.inputs[0] in of_rows and _BY_FIRST[node.kind](dump, node.inputs)
    if node.kind in ("GatherV2", "GatherNd"):
        return _gathers_rows(dump, node, of_rows)
    if node.kind == "ConcatV2" and _is_along_rows(dump, node.inputs[0], node.inputs[-1]):
        return False
    return any(tensor in of_rows for tensor in node.inputs)


def _gathers_rows(dump: step_dump.StepDump, node: step_dump.Node, of_rows: set[str]) -> bool:
    first, places = node.inputs[:2]
    if node.kind == "GatherV2" and not _is_along_rows(dump, first, node.inputs[-1]):
        return first in of_rows
    # If the rows of the batch are the indices of a gather, the output keeps their order. If the
    # rows of the batch are the table from which a gather takes rows, the order of the rows changes.
    return places in of_rows and first not in of_rows


def _is_along_others(dump: step_dump.StepDump, inputs: Sequence[str]) -> bool:
    """Return True if the axes of an op, its second input, are known and exclude axis 0."""
    return len(inputs) > 1 and not _is_along_rows(dump, inputs[0], inputs[1])


def _begins_with(dump: step_dump.StepDump, tensor: str, first: int) -> bool:
    values = dump.read_any(tensor)
    # Only the first value matters: for Tile, the number of copies along the axis of rows; for
    # Transpose, the axis that becomes the first axis.
    return values is not None and values.size > 0 and values[0] == first


def _is_along_rows(dump: step_dump.StepDump, tensor: str, axes: str) -> bool:
    """Return whether `axes` contains the first axis of a tensor, or is unknown."""
    values = dump.read_any(axes)
    # Negative axes count from the end, so the first axis is either 0 or -rank.
    rank = len(dump.find_shape(tensor))
    return values is None or bool({0, -rank} & set(np.ravel(values)))


_READING = "IteratorGetNext"
_PRODUCTS = ("MatMul", "_FusedMatMul", "FusedMatMul", "BatchMatMulV2", "Conv2D")
_ALONG_AXES = (
    *("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin"),
    *("ReverseV2", "Cumsum", "Cumprod"),
)
# {type of op: a function that returns whether the output has the rows of the first input}. For the
# types in `_BY_FIRST`, the output cannot have the rows of a later input.
_BY_FIRST: dict[str, Callable[[step_dump.StepDump, Sequence[str]], bool]] = {
    **dict.fromkeys(_PRODUCTS, lambda dump, inputs: True),
    **dict.fromkeys(_ALONG_AXES, _is_along_others),
    **dict.fromkeys(("TopK", "TopKV2"), lambda dump, inputs: len(dump.find_shape(inputs[0])) > 1),
    "Tile": lambda dump, inputs: _begins_with(dump, inputs[1], 1),
    "Transpose": lambda dump, inputs: _begins_with(dump, inputs[1], 0),
}
_MIXING = (
    "BiasAddGrad",
    "Conv2DBackpropFilter",
    "DepthwiseConv2dNativeBackpropFilter",
    "DynamicPartition",
    "DynamicStitch",
    "RandomShuffle",
    "ReadVariableOp",
    "Roll",
    "ScatterNd",
    "Shape",
    "UnsortedSegmentSum",
    "Unique",
    "UniqueV2",
    "Where",
)


def _has_rows(dump: step_dump.StepDump, tensor: str, size: int) -> bool:
    shape = dump.find_shape(tensor)
    # The first axis may be a multiple of `size`: a reshape may split each row into several rows.
    return bool(shape) and shape[0] >= size and shape[0] % size == 0


def _list_bad(dump: step_dump.StepDump, root: roots_lib.Root) -> list[str]:
    """Return the tensors that an op has broken, directly or through other ops, in order."""
    spoiled = dump.list_followers([root.output], within=dump.bad)
    names = sorted(spoiled, key=lambda name: dump.order[name])
    return [t for name in names for t in dump.list_outputs(name) if dump.is_bad(t)]


def _list_rows_that(
    dump: step_dump.StepDump,
    tensor: str,
    batch_size: int,
    slices: int,
    tell: Callable[[np.ndarray], np.ndarray],
) -> tuple[int, ...]:
    """Return the indices of rows for which `tell`, a function from [B, n] to bool [B], is True."""
    selected: list[int] = []
    loops = tensor.count(_IN_LOOP)
    is_of_slices = slices > 1 and bool(_LOOP_OF_SLICES.match(tensor))
    if is_of_slices and loops > 1:
        return ()  # An iteration of a loop in the model does not tell the slice of the batch.
    for iteration, value in enumerate(dump.read_numbers(tensor)):
        # Outside of loops, a tensor may have the rows of the whole batch instead of one slice.
        is_whole = len(value) % batch_size == 0 and not loops
        size = batch_size if is_whole else batch_size // slices
        if len(value) % size:
            continue  # Loops may change the number of rows.
        mask = tell(value.reshape(size, -1).astype(np.float64))
        # The first slice is computed before the loop, and iteration i computes slice i + 1.
        start = (iteration + 1) * size if is_of_slices else 0
        numbers = start + np.flatnonzero(mask)
        selected += numbers[numbers < batch_size].tolist()
    return tuple(dict.fromkeys(selected))


def _are_bad(values: np.ndarray) -> np.ndarray:
    return ~np.isfinite(values).all(1)
