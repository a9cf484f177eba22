"""Finds the ops that combine variables with examples, for gradients of single examples.

found = uses.find_uses(losses, batch_tensors, variables)
found.by_variable        # {name: uses}; None if a use of the variable is unknown

A value of a variable may first go through ops that do not depend on examples, such as a product of
two scales. The first op that combines a value of a variable with examples is called a use of the
variable. A use of a variable is known if its op is in `_KINDS`, such as MatMul, and if `proof`
finds which entries of the op's output belong to which example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from mtl.deferred import tf
from mtl.example_gradients import layouts, sizes
from mtl.example_gradients import proof as proof_lib
from mtl.variables import patterns

MATRIX, CONVOLUTION, ROWS, ELEMENTWISE = "matrix", "convolution", "rows", "elementwise"

_KINDS = {
    "MatMul": MATRIX,
    "BatchMatMulV2": MATRIX,
    "BatchMatMulV3": MATRIX,
    "Conv2D": CONVOLUTION,
    "ResourceGather": ROWS,
    "BiasAdd": ELEMENTWISE,
    "Add": ELEMENTWISE,
    "AddV2": ELEMENTWISE,
    "Sub": ELEMENTWISE,
    "Mul": ELEMENTWISE,
    "FusedBatchNormV3": ELEMENTWISE,
}


class Use(NamedTuple):
    """An op that combines a variable with examples.

    Attributes:
      kind: the kind of the use, a constant of this module.
      op: the op that combines the variable with examples.
      place: the index of the input that comes from the variable.
      reads: the values read from the variable on which the input `place` depends; () for lookups of
        table rows.
      is_plain: True if the input `place` is the value of the variable, without ops in between.
      layout: the layout of examples, or of values of a ragged tensor, in the output; None if
        unknown.
      of_list: the ragged tensor whose values the layout describes; None if the layout describes
        examples.
    """

    kind: str
    op: tf.Operation
    place: int
    reads: tuple[tf.Tensor, ...]
    is_plain: bool
    layout: layouts.Layout | None = None
    of_list: tf.RaggedTensor | None = None

    @property
    def placed(self) -> layouts.Layout:
        """The layout of a known use; `find_uses` returns only known uses."""
        return cast(layouts.Layout, self.layout)

    @property
    def parameter(self) -> tf.Tensor:
        """The input of the op that comes from the variable."""
        return self.op.inputs[self.place]

    @property
    def output(self) -> tf.Tensor:
        """The output of the op."""
        return self.op.outputs[0]


class Found(NamedTuple):
    """The uses of variables in the graph of a batch.

    Attributes:
      by_variable: {name: uses}; None if a use of the variable is unknown.
      gap: the name of the first op after which the layout of examples is unknown; None if there is
        no such op.
    """

    by_variable: dict[str, list[Use] | None]
    gap: str | None


def find_uses(
    losses: Sequence[tf.Tensor],
    batch: Any,
    variables: Sequence[tf.Variable],
    rows: int | None = None,
) -> Found:
    """Find the uses of each variable.

    Args:
      losses: the losses of the batch, [B], or sums over examples.
      batch: the tensors with the examples, in any nesting, with B rows each.
      variables: the variables whose uses are found.
      rows: the number of rows B, if it is known while the graph is built.
    """
    graph = tf.compat.v1.get_default_graph()
    # A ragged tensor consists of several tensors: values and row splits.
    tensors = tf.nest.flatten(batch, expand_composites=True)
    ops = _leading_to(losses, tensors)
    of_batch = _find_dependent(ops, tensors)
    op_names = {op.name for op in ops}
    proof = proof_lib.Proof(ops, losses, batch, rows)
    by_variable: dict[str, list[Use] | None] = {}
    names = list(map(patterns.variable_name, variables))
    for variable, name in zip(variables, names, strict=True):
        name_of_handle = find_handle(graph, variable)
        readers = [op for op in ops if name_of_handle in [tensor.name for tensor in op.inputs]]
        variable_uses = _place_all(_find_uses(readers, of_batch, op_names), proof)
        is_whole = names.count(name) == 1  # Shards of a table share their name.
        by_variable[name] = variable_uses if is_whole else None
    return Found(by_variable, proof.gap and proof.gap.name)


def _place_all(uses: Sequence[Use] | None, proof: proof_lib.Proof) -> list[Use] | None:
    """Add the output layout to each use of a variable; return None if a layout is unknown."""
    with_layouts = [_place_use(use, proof) for use in uses or ()]
    return with_layouts if uses is not None and all(map(_is_known, with_layouts)) else None


def _place_use(use: Use, proof: proof_lib.Proof) -> Use:
    """Add the layout of the op's output to the use of a variable, if the layout is proved."""
    layout = proof.find_layout(use.output)
    if layout is None or not proof.is_apart(use.op):
        return use
    return use._replace(layout=layout, of_list=proof.list_of(layout) if layout.owner else None)


def find_handle(graph: tf.Graph, variable: tf.Variable) -> str:
    """Return the name of a variable's handle in a graph, such as the graph of a loop."""
    outer = variable.handle
    return (graph.capture(outer) if hasattr(graph, "capture") else outer).name


def _leading_to(losses: Sequence[tf.Tensor], batch: Sequence[tf.Tensor]) -> list[tf.Operation]:
    """Return the ops between the batch and its losses, in the order in which they were built."""
    batch_names, names = {tensor.name for tensor in batch}, set()
    waiting = [loss.op for loss in losses]
    while waiting:
        op = waiting.pop()
        if op.name not in names:
            names.add(op.name)
            waiting += [tensor.op for tensor in op.inputs if tensor.name not in batch_names]
    return [op for op in tf.compat.v1.get_default_graph().get_operations() if op.name in names]


def _find_dependent(ops: Sequence[tf.Operation], batch: Iterable[tf.Tensor]) -> set[str]:
    """Return the names of the ops that depend on tensors of a batch."""
    tensors, names = {tensor.name for tensor in batch}, set()
    for op in ops:
        if any(tensor.name in tensors for tensor in op.inputs):
            names.add(op.name)
            tensors.update(tensor.name for tensor in op.outputs)
    return names


def _find_uses(
    readers: Sequence[tf.Operation], of_batch: set[str], op_names: set[str]
) -> list[Use] | None:
    """Find the uses of a variable from the ops that read it; None if such an op is unknown."""
    uses_by_place: dict[tuple[str, int], Use] = {}
    for reader in readers:
        if reader.type == "ResourceGather":
            if reader.get_attr("batch_dims"):
                return None
            uses_by_place[reader.name, 0] = Use(ROWS, reader, 0, (), True)
        elif reader.type == "ReadVariableOp":
            for use in _of_read(reader.outputs[0], of_batch, op_names):
                # An input of an op may depend on several reads of the variable. The gradients by
                # all these reads are added up, so `Use.reads` lists all of them.
                before = uses_by_place.get((use.op.name, use.place))
                reads = (before.reads if before else ()) + use.reads
                uses_by_place[use.op.name, use.place] = use._replace(reads=reads)
        # Other ops that read the handle of the variable, such as assignments, do not matter unless
        # their outputs are combined with examples.
        elif reader.name in of_batch or any(
            _of_read(output, of_batch, op_names) for output in reader.outputs
        ):
            return None
    return list(uses_by_place.values())


def _of_read(read: tf.Tensor, of_batch: set[str], op_names: set[str]) -> list[Use]:
    """Follow a read value of a variable to the ops that combine it with examples."""
    waiting, visited = [(read, True)], {read.name}
    uses: list[Use] = []
    while waiting:
        tensor, is_plain = waiting.pop()
        for op in tensor.consumers():
            if op.name not in op_names:
                continue
            if op.name in of_batch:
                uses += _list_entries(read, tensor, op, is_plain)
                continue
            new = [output for output in op.outputs if output.name not in visited]
            visited.update(output.name for output in new)
            # The output of any op except Identity is no longer the value of the variable itself.
            waiting += [(output, is_plain and op.type == "Identity") for output in new]
    return uses


def _list_entries(
    read: tf.Tensor, tensor: tf.Tensor, op: tf.Operation, is_plain: bool
) -> list[Use]:
    """Return a `Use` for each input of an op that is a given tensor."""
    places = [n for n, value in enumerate(op.inputs) if value.name == tensor.name]
    kind = _KINDS.get(op.type, "")
    return [Use(kind, op, place, (read,), is_plain) for place in places]


def _is_known(use: Use) -> bool:
    """Return True if a use has a known kind and layout."""
    is_precise = use.parameter.dtype == tf.float32 or use.kind == ROWS
    if use.kind not in _CHECKS or use.layout is None or not is_precise:
        return False
    is_precise &= use.parameter.shape.is_fully_defined() or use.kind == ROWS
    fits_list = use.of_list is None or (use.kind == ROWS and use.layout.outer == sizes.ONE)
    return fits_list and _can_split(use.layout) and _CHECKS[use.kind](use)


def _can_split(layout: layouts.Layout) -> bool:
    """Return True if a tensor can be reshaped to separate the examples."""
    is_plain = layout.outer == sizes.ONE or not layout.before.unknown
    return is_plain or not layout.inner.unknown


def _is_matrix(use: Use) -> bool:
    attribute = "transpose_a" if use.op.type == "MatMul" else "adj_x"
    is_usual = use.place == 1 and use.parameter.shape.rank == 2 and not use.op.get_attr(attribute)
    return is_usual and use.placed.axis < use.output.shape.rank - 1


def _is_convolution(use: Use) -> bool:
    op = use.op
    # In a grouped convolution, a filter reads only some of the channels of a patch.
    is_grouped = op.inputs[0].shape[-1] != use.parameter.shape[2]
    is_usual = op.get_attr("data_format") == b"NHWC" and op.get_attr("padding") != b"EXPLICIT"
    return use.place == 1 and is_usual and not is_grouped and use.placed.axis == 0


def _is_elementwise(use: Use) -> bool:
    """Return True if the op broadcasts its trained parameter in the same way to every example."""
    op = use.op
    if op.type in ("BiasAdd", "FusedBatchNormV3") and op.get_attr("data_format") != b"NHWC":
        return False
    if op.type == "FusedBatchNormV3" and (op.get_attr("is_training") or use.place not in (1, 2)):
        return False
    core = core_shape(use.parameter)
    output = use.output.shape
    return (
        core is not None
        and output.rank is not None
        and output.rank - len(core) > use.placed.axis
        and output.as_list()[output.rank - len(core) :] == core
    )


def core_shape(parameter: tf.Tensor) -> list[int] | None:
    """Return the shape of a parameter without leading ones.

    Args:
      parameter: the input of an op that comes from a variable.

    Returns:
      The shape; [] for a single number, and None if a size is unknown.
    """
    if not parameter.shape.is_fully_defined():
        return None
    shape = parameter.shape.as_list()
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


_CHECKS: Mapping[str, Callable[[Use], bool]] = {
    MATRIX: _is_matrix,
    CONVOLUTION: _is_convolution,
    ROWS: lambda use: use.placed.axis < use.output.shape.rank - 1,
    ELEMENTWISE: _is_elementwise,
}
