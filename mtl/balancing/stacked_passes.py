"""Joins the tasks' backward passes through shared layers into a single backward pass.

passes = stacked_passes.StackedPasses(columns)       # N columns of T gradients
gradients = passes.build(n)                          # T gradients by one variable
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mtl import types
from mtl.deferred import tf

_Column = Sequence[types.Gradient]
_Tensors = Sequence["tf.Tensor"]
_Names = tuple[str, ...]
_Inputs = Sequence["tf.Tensor | tuple[tf.Tensor, ...]"]
"""The inputs of S equal ops: for each input, one tensor for all ops, or a tuple of S tensors."""


class StackedPasses:
    """Gradients of T tasks by N variables, with one backward pass through the shared layers.

    In the shared layers, the backward pass of each task has the same ops with the same weights;
    only the incoming gradient [B, H] differs. The incoming gradients of all tasks are stacked, [T,
    B, H], and each op runs once: one matrix product with [T B, H] takes less time than T products
    with [B, H]. The ops of the backward passes show where the shared layers begin: the ops of the
    heads differ by task, because heads have different weights.

    Backward passes are stacked only if this module has a rule for each op of the shared layers. An
    op without a rule would need the backward passes of single tasks, in addition to the stacked
    pass.
    """

    def __init__(self, columns: Sequence[_Column]):
        """Find the ops that can be stacked, without building an op.

        Args:
          columns: for each of N variables, a column of the T tasks' gradients; None for a task
            whose loss does not depend on the variable.
        """
        self._columns = columns
        self._parts = list(map(_take_apart, columns))
        self._inputs: dict[_Names, _Inputs] = {}
        self._stacks: dict[_Names, tf.Tensor] = {}
        single_tensors: list[tf.Tensor] = []
        replaced_ops: set[tf.Operation] = set()
        queue = [tensors for tensors, _ in self._parts]
        while queue:
            tensors = queue.pop()
            if _list_names(tensors) in self._inputs:
                continue
            inputs = self._inputs[_list_names(tensors)] = _find_inputs(tensors)
            if inputs:
                replaced_ops.update(tensor.op for tensor in tensors)
                queue += _find_task_inputs(inputs).values()
            else:
                single_tensors += tensors
        saves_products = any(op.type == "MatMul" for op in replaced_ops)
        self._are_stacked = saves_products and replaced_ops.isdisjoint(_list_needed(single_tensors))

    def build(self, index: int) -> _Column:
        """Build the gradients of all tasks by one variable.

        Args:
          index: the index of the variable in `columns`.

        Returns:
          The gradients of T tasks by the variable, with None for tasks whose loss does not depend
          on the variable. If the backward passes cannot be stacked, the result is the list of
          gradients that the constructor got for the variable.
        """
        column, (tensors, factor) = self._columns[index], self._parts[index]
        if not self._are_stacked or not self._inputs[_list_names(tensors)]:
            return column
        parts = iter(tf.unstack(self._stack_tensors(tensors)))
        return [
            gradient if gradient is None else _replace_part(gradient, factor, next(parts))
            for gradient in column
        ]

    def _stack_tensors(self, tensors: _Tensors) -> tf.Tensor:
        queue = [tensors]
        while queue:  # Recursion could exceed Python's limit in a deep network.
            current = queue.pop()
            if _list_names(current) in self._stacks:
                continue
            inputs = self._inputs[_list_names(current)]
            sources = _find_task_inputs(inputs).values()
            missing = [source for source in sources if _list_names(source) not in self._stacks]
            if missing:
                queue += [current, *missing]
            else:
                self._stacks[_list_names(current)] = self._build_stack(current, inputs)
        return self._stacks[_list_names(tensors)]

    def _build_stack(self, tensors: _Tensors, inputs: _Inputs) -> tf.Tensor:
        if not inputs:
            # The backward ops that compute `tensors` cannot be stacked, so their results for S
            # single tasks are stacked, [S, ...].
            return tf.stack(tensors)
        stacks = [
            self._stacks[_list_names(part)] if isinstance(part, tuple) else part for part in inputs
        ]
        return _RULES[tensors[0].op.type].build(tensors[0], stacks)


class _Rule(NamedTuple):
    """A rule that builds one stacked op from equal ops of several tasks.

    Attributes:
      build: a function that builds the stacked output [S, ...] from the output of one task's op and
        the inputs of the stacked op. An input that differs by task is a stack [S, ...].
      place: the index of the only input of the op that may differ by task; None if every input may
        differ.
      suits: a function that returns True if the rule applies to an op.
    """

    build: Callable[[tf.Tensor, Sequence[tf.Tensor]], tf.Tensor]
    place: int | None = 0
    suits: Callable[[tf.Operation], bool] = lambda op: True


def _multiply_matrix(example: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    stack, weight = inputs
    count, size, width = stack.shape
    rows = tf.reshape(stack, [count * size, width])
    product = tf.linalg.matmul(rows, weight, transpose_b=example.op.get_attr("transpose_b"))
    return tf.reshape(product, [count, *example.shape])


def _scale_derivative(example: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """Multiply a stack by an activation's derivative; ops such as `ReluGrad` cannot broadcast."""
    # The incoming gradient has the axis of tasks; the activation does not.
    (place,) = (n for n, operand in enumerate(inputs) if operand.shape.rank > example.shape.rank)
    ones = [tf.ones(example.shape) if n == place else operand for n, operand in enumerate(inputs)]
    return inputs[place] * _copy_op(example.op, ones)


def _broadcast_op(example: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    return _copy_op(example.op, inputs)


def _add_stacks(example: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    del example
    return sum(inputs[1:], inputs[0])


def _reshape_stack(example: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reshape(inputs[0], [inputs[0].shape[0], *example.shape])


def _slice_stack(example: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    stack, begin, _ = inputs
    return tf.slice(stack, tf.concat([[0], begin], 0), [stack.shape[0], *example.shape])


def _split_stack(example: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    stack, sizes, axis = inputs
    along = tf.one_hot(_shift_axes(axis, stack), stack.shape.rank, dtype=sizes.dtype)
    begin = tf.reduce_sum(sizes[: example.value_index]) * along
    return tf.slice(stack, begin, [stack.shape[0], *example.shape])


def _sum_stack(example: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    stack, axes = inputs
    keep = example.op.get_attr("keep_dims")
    return tf.reduce_sum(stack, _shift_axes(axes, stack), keepdims=keep)


def _shift_axes(axes: tf.Tensor, stack: tf.Tensor) -> tf.Tensor:
    """Convert axes of one task's tensor into axes of the stack."""
    return axes % (stack.shape.rank - 1) + 1


def _sum_rows(example: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    del example
    return tf.reduce_sum(inputs[0], list(range(1, inputs[0].shape.rank - 1)))


def _tile_stack(example: tf.Tensor, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    del example
    stack, multiples = inputs
    return tf.tile(stack, tf.concat([[1], multiples], 0))


def _is_of_rows(op: tf.Operation) -> bool:
    # In 16 bits, a different order of additions would change the result.
    return op.get_attr("T") == tf.float32 and not op.get_attr("transpose_a")


def _is_channels_last(op: tf.Operation) -> bool:
    return op.get_attr("data_format") == b"NHWC"


_RULES = {
    "AddN": _Rule(_add_stacks, None),
    "BiasAddGrad": _Rule(_sum_rows, suits=_is_channels_last),
    "MatMul": _Rule(_multiply_matrix, suits=_is_of_rows),
    "Reshape": _Rule(_reshape_stack),
    "Slice": _Rule(_slice_stack),
    "SplitV": _Rule(_split_stack),
    "Sum": _Rule(_sum_stack),
    "Tile": _Rule(_tile_stack),
    **dict.fromkeys(["EluGrad", "ReluGrad", "SeluGrad"], _Rule(_scale_derivative)),
    **dict.fromkeys(["RsqrtGrad", "SigmoidGrad", "TanhGrad"], _Rule(_scale_derivative, 1)),
    **dict.fromkeys(
        ["AddV2", "Cast", "Identity", "Mul", "Neg", "RealDiv", "SelectV2", "Sub"],
        _Rule(_broadcast_op, None),
    ),
}


def _copy_op(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """Build a copy of an op with other inputs."""
    arguments = op.op_def.input_arg
    type_attributes = {argument.type_attr for argument in arguments}
    settings = {argument.name: operand for argument, operand in zip(arguments, inputs, strict=True)}
    for attribute in op.op_def.attr:
        if attribute.name not in type_attributes:
            settings[attribute.name] = op.get_attr(attribute.name)
    return getattr(tf.raw_ops, op.type)(**settings)


def _list_names(tensors: _Tensors) -> _Names:
    return tuple(tensor.name for tensor in tensors)


def _find_task_inputs(inputs: _Inputs) -> dict[int, tuple[tf.Tensor, ...]]:
    """Return the inputs that differ by task, {index of the input: tensors}."""
    return {place: tensors for place, tensors in enumerate(inputs) if isinstance(tensors, tuple)}


def _take_apart(column: _Column) -> tuple[_Tensors, int | None]:
    """Return a tensor to stack for each task, and the input of the gradient's op that it replaces.

    The gradient of a weight matrix is a product of the layer's inputs, which all tasks share, and a
    task's incoming gradient. For a weight matrix, only the incoming gradients are stacked, so that
    `short_gradients` still finds the matrix products. For variables that are not such weight
    matrices, the gradients themselves are stacked, and the returned index of the input is None.
    """
    gradients = [gradient for gradient in column if gradient is not None]
    values = [
        gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        for gradient in gradients
    ]
    op = values[0].op
    if op.type == "MatMul" and op.get_attr("transpose_a"):
        inputs = _match_inputs(values)
        task_inputs = _find_task_inputs(inputs)
        if len(task_inputs) == 1:
            ((factor, cotangents),) = task_inputs.items()
            return cotangents, factor
    return values, None


def _replace_part(
    gradient: tf.Tensor | tf.IndexedSlices, factor: int | None, part: tf.Tensor
) -> tf.Tensor | tf.IndexedSlices:
    """Return the gradient of one task, computed from the task's part of the stack."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(part, gradient.indices, gradient.dense_shape)
    if factor is None:
        return part
    inputs = list(gradient.op.inputs)
    inputs[factor] = part
    return _copy_op(gradient.op, inputs)


def _find_inputs(tensors: _Tensors) -> _Inputs:
    """Return the inputs of the same op in S tasks; [] if the S ops cannot be stacked."""
    example = tensors[0]
    rule = _RULES.get(example.op.type)
    if rule is None or not rule.suits(example.op):
        return []
    inputs = _match_inputs(tensors)
    task_inputs = _find_task_inputs(inputs)
    if not task_inputs or not all(map(_are_alike, [tensors, *task_inputs.values()])):
        return []
    if rule.place is not None:
        return inputs if list(task_inputs) == [rule.place] else []
    # If the ranks differed, broadcasting could align an axis of a single task's tensor with the
    # axis of tasks in the stack.
    return (
        inputs
        if all(operands[0].shape.rank == example.shape.rank for operands in task_inputs.values())
        else []
    )


def _are_alike(tensors: _Tensors) -> bool:
    shape = tensors[0].shape
    return shape.is_fully_defined() and all(tensor.shape == shape for tensor in tensors)


def _match_inputs(tensors: _Tensors) -> _Inputs:
    """Return the inputs of one op in S tasks; [] if the S ops differ in more than their inputs."""
    example, *rest = tensors
    if any(_describe_tensor(example) != _describe_tensor(other) for other in rest):
        return []
    columns = zip(*[tensor.op.inputs for tensor in tensors], strict=True)
    return [
        column[0] if all(_are_equal(column[0], other) for other in column[1:]) else column
        for column in columns
    ]


def _describe_tensor(tensor: tf.Tensor) -> tuple[Any, ...]:
    """Describe the op of a tensor, apart from the op's inputs."""
    op = tensor.op
    settings = [op.node_def.attr[attribute.name] for attribute in op.op_def.attr]
    return op.type, settings, len(op.inputs), tensor.value_index


def _are_equal(first: tf.Tensor, second: tf.Tensor, depth: int = 8) -> bool:
    """Return True if ops and inputs, down to a depth, prove that two tensors are equal."""
    if first.name == second.name:
        return True
    # In a branch of `tf.cond`, placeholders stand for tensors from outside.
    is_open = first.op.op_def.is_stateful or first.op.type.startswith("Placeholder")
    if depth == 0 or is_open or _describe_tensor(first) != _describe_tensor(second):
        return False
    pairs = zip(first.op.inputs, second.op.inputs, strict=True)
    return all(_are_equal(*pair, depth - 1) for pair in pairs)


def _list_needed(tensors: _Tensors) -> set[tf.Operation]:
    """Return all ops that the tensors depend on."""
    required: set[tf.Operation] = set()
    queue = [tensor.op for tensor in tensors]
    while queue:
        op = queue.pop()
        if op not in required:
            required.add(op)
            queue += [operand.op for operand in op.inputs]
    return required
