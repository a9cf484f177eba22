"""Finds the rows of the batch that broke a step, and the fields with odd values.

found = rows.find_rows(dump, root, batch_size=64)         # Rows([17], "its output", all_rows=False)
rows.find_fields(dump, root, found.numbers, fields)       # ["age"]
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mtl.tools.debugging import roots as roots_lib
from mtl.tools.debugging import step_dump

_IN_LOOP = "/body/_"
# The loop of `whole_batch` over the slices of a batch; loops of the model lie in other scopes.
_LOOP_OF_SLICES = re.compile(r"(?:Func/)?balancing/while(?:_\d+)?/body/_")

# A row stands out if its largest value exceeds the median row's by this factor.
_STANDS_OUT = 1e3


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of the batch.

    Attributes:
      numbers: the numbers of the rows, from 0; empty if all rows look alike.
      evidence: how the rows were found.
    """

    numbers: tuple[int, ...]
    evidence: str


def find_rows(
    dump: step_dump.StepDump, root: roots_lib.Root, batch_size: int, slices: int = 1
) -> Rows:
    """Return the rows whose values broke the op; empty if all rows look alike.

    It searches the tensors with rows as their first axis in this order: the outputs of the op;
    later tensors, until rows are mixed; earlier tensors.

    Args:
      dump: the step.
      root: the op.
      batch_size: rows of a batch, B.
      slices: the number of micro-batches; a slice has B / slices rows.
    """
    of_rows = list_of_rows(dump, batch_size, slices)
    for tensor in (t for t in (root.output, *_list_bad(dump, root)) if t in of_rows):
        numbers = _list_rows_that(dump, tensor, batch_size, slices, _are_bad)
        # If all rows are broken, the cause is not in the rows.
        if 0 < len(numbers) < batch_size:
            return Rows(numbers, f"not finite in {tensor}")
    leaders = dump.list_leaders(root.node.name)
    # The nearest tensor first: closer to the op, less is mixed in.
    nearest = [t for t in sorted(leaders, key=lambda name: leaders[name]) if t in of_rows]
    for tensor in nearest:
        numbers = _list_rows_that(dump, tensor, batch_size, slices, stand_out)
        # Large values in most rows are usual for this tensor.
        if 0 < len(numbers) < batch_size / 2:
            return Rows(numbers, f"far larger than the other rows in {tensor}")
    return Rows((), "all rows of the batch look alike to this op")


def find_fields(
    dump: step_dump.StepDump,
    root: roots_lib.Root,
    numbers: Sequence[int],
    fields: Mapping[str, str],
) -> list[str]:
    """Return the fields that the op depends on and whose values are odd in these rows.

    A value is odd if it is far larger than in other rows. If the op reads the batch itself, a value
    is odd if it is not finite.

    Args:
      dump: the step.
      root: the op.
      numbers: the numbers of the rows.
      fields: {field: the tensor of the batch that holds it}.
    """
    leaders, found = dump.list_leaders(root.node.name), []
    for field, tensor in fields.items():
        each = _read_by_row(dump, tensor)
        if each is None:
            continue
        own = [number for number in numbers if number < len(each)]
        is_bad = root.output == tensor and _are_bad(each)[own].any()
        if is_bad or (tensor in leaders and stand_out(each)[own].any()):
            found.append(field)
    return found


def _read_by_row(dump: step_dump.StepDump, tensor: str) -> np.ndarray | None:
    """Return the numbers of a field, [B, n]; None if the field is not numeric."""
    values = dump.read_any(tensor)
    if values is None or values.dtype.kind not in "fi" or not values.ndim or not values.size:
        return None
    return values.reshape(len(values), -1).astype(np.float64)


def list_of_rows(dump: step_dump.StepDump, batch_size: int, slices: int = 1) -> frozenset[str]:
    """Return the tensors whose first axis holds the rows of the batch.

    A kernel may have as many rows by chance: so the axis is followed from the batch on.

    Args:
      dump: the step.
      batch_size: rows of a batch, B.
      slices: the number of micro-batches; a slice has B / slices rows.
    """
    found: set[str] = set()
    # A forward pass sees one slice of the batch.
    size = batch_size // slices
    for name in sorted(dump.nodes, key=lambda name: dump.order[name]):
        node = dump.nodes[name]
        if node.kind == _READING or _keeps_rows(dump, node, found):
            found |= {t for t in dump.list_outputs(name) if _has_rows(dump, t, size)}
    return frozenset(found)


def stand_out(values: np.ndarray) -> np.ndarray:
    """Return a mask of rows that are not finite, or far larger than others, [B, n] -> [B]."""
    with np.errstate(invalid="ignore"):
        largest = np.abs(values).max(1, initial=0)
        # Without rows of zeros, such as padding: their median would let every other row stand out.
        usual = largest[np.isfinite(largest) & (largest > 0)]
        # The median of two values says nothing about what is usual.
        middle = np.median(usual) if len(usual) > 2 else np.inf
        return ~np.isfinite(largest) | (largest > _STANDS_OUT * middle)


def _keeps_rows(dump: step_dump.StepDump, node: step_dump.Node, of_rows: set[str]) -> bool:
    """Return whether the output of a node has the same rows as an input."""
    # With a transposed first input, a product sums over the rows.
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
    # The output has the batch's rows if these are the indices; as the table, they get permuted.
    return places in of_rows and first not in of_rows


def _is_along_others(dump: step_dump.StepDump, inputs: Sequence[str]) -> bool:
    """Return whether the axes (the second input) are known, and do not include the rows."""
    return len(inputs) > 1 and not _is_along_rows(dump, inputs[0], inputs[1])


def _begins_with(dump: step_dump.StepDump, tensor: str, first: int) -> bool:
    values = dump.read_any(tensor)
    # Multiples of a Tile and permutations of a Transpose are one-dimensional.
    return values is not None and values.size > 0 and values[0] == first


def _is_along_rows(dump: step_dump.StepDump, tensor: str, axes: str) -> bool:
    """Return whether the first axis of a tensor is among these axes, or they are unknown."""
    found = dump.read_any(axes)
    # Axes may be counted from the end: then the first axis is -rank.
    rank = len(dump.find_shape(tensor))
    return found is None or bool({0, -rank} & set(np.ravel(found)))


_READING = "IteratorGetNext"
_PRODUCTS = ("MatMul", "_FusedMatMul", "FusedMatMul", "BatchMatMulV2", "Conv2D")
_ALONG_AXES = (
    *("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin"),
    *("ReverseV2", "Cumsum", "Cumprod"),
)
# {an op whose output can only have the rows of its first input: whether it keeps them}
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
    # A multiple: a reshape may put several entries of a row below each other.
    return bool(shape) and shape[0] >= size and shape[0] % size == 0


def _list_bad(dump: step_dump.StepDump, root: roots_lib.Root) -> list[str]:
    """Return the tensors that are not finite because of the op, in the order of execution."""
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
    """Return the rows that `tell` selects, [B, n] -> bool [B]."""
    found: list[int] = []
    loops = tensor.count(_IN_LOOP)
    is_of_slices = slices > 1 and bool(_LOOP_OF_SLICES.match(tensor))
    if is_of_slices and loops > 1:
        return ()  # Iterations of a loop of the model do not tell the slice.
    for turn, value in enumerate(dump.read_numbers(tensor)):
        # Outside of loops, a tensor may hold the whole batch, such as the batch itself.
        is_whole = len(value) % batch_size == 0 and not loops
        size = batch_size if is_whole else batch_size // slices
        if len(value) % size:
            continue  # A loop may change the length of its tensors.
        each = tell(value.reshape(size, -1).astype(np.float64))
        # The first slice of a batch is built separately, the others are iterations of a loop.
        start = (turn + 1) * size if is_of_slices else 0
        numbers = start + np.flatnonzero(each)
        found += numbers[numbers < batch_size].tolist()
    return tuple(dict.fromkeys(found))


def _are_bad(values: np.ndarray) -> np.ndarray:
    return ~np.isfinite(values).all(1)
