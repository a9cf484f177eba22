"""Proves which entries of each tensor between a batch and its losses belong to which example.

facts = proof.Proof(ops, losses, batch, rows)
facts.find_layout(tensor)           # a `layouts.Layout`; None without a proof
facts.is_apart(op)                  # True if the op provably keeps examples apart

For an op without a rule in `rules`, nothing is proved: the layout of its outputs is unknown, and an
example may affect the losses of other examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mtl.deferred import tf, tf1
from mtl.example_gradients import layouts, rules, sizes

_DECLARED = "mtl_rows_are_examples"
_SIZES = ("Rank", "Shape", "ShapeN", "Size")


def declare(values: tf.Tensor) -> tf.Tensor:
    """Declare that row i of a tensor belongs to example i, for ops without a rule.

    Args:
      values: the tensor, [B, ...]. `declare` does not check the tensor: if row i does not belong to
        example i, the gradients of single examples are wrong.

    Returns:
      A copy of the tensor, which later ops must read in its place.
    """
    values = tf.identity(values)
    # In eager mode, no code reads the collection, and the collection would keep every batch in
    # memory.
    if not tf.executing_eagerly():
        tf1.add_to_collection(_DECLARED, values)
    return values


class Proof:
    """The layouts of the tensors between a batch and its losses.

    Args:
      ops: the ops between the batch and its losses, in the order in which they were built.
      losses: losses [B], or sums over examples.
      batch: the tensors that hold the examples, in any nesting.
      rows: the number of rows B, if it is known while the graph is built.

    Attributes:
      gap: the first op that depends on variables and whose outputs have no proven layout; None if
        there is no such op.
    """

    def __init__(
        self,
        ops: Sequence[tf.Operation],
        losses: Sequence[tf.Tensor],
        batch: Any,
        rows: int | None,
    ):
        self.count = sizes.Size(rows) if rows is not None else sizes.Size(1, ("batch",))
        self._lists: dict[str, tf.RaggedTensor] = {}
        self._states: dict[str, layouts.State] = {}
        self._moved: set[str] = set()
        self._declared = {tensor.name for tensor in tf1.get_collection(_DECLARED)}
        self.gap: tf.Operation | None = None
        for values in tf.nest.flatten(batch):
            self._enter_values(values)
        for op in ops:
            self._pass_op(op)
        self._tied = self._leading_to_gaps(ops, losses)

    def find_layout(self, tensor: tf.Tensor) -> layouts.Layout | None:
        """Find which entries of a tensor belong to which example.

        Args:
          tensor: a tensor between the batch and its losses.

        Returns:
          The layout of examples, or of the values of a ragged tensor; None if no layout is proved.
        """
        state = self._states.get(tensor.name)
        return state if isinstance(state, layouts.Layout) else None

    def is_apart(self, op: tf.Operation) -> bool:
        """Return True if, after an op, an example provably affects only its own loss.

        Args:
          op: an op between the batch and its losses.
        """
        return op.name not in self._tied

    def lists(self) -> Sequence[tf.RaggedTensor]:
        """Return the ragged tensors of the batch."""
        return list(self._lists.values())

    def list_of(self, layout: layouts.Layout) -> tf.RaggedTensor:
        """Return the ragged tensor whose values a layout describes.

        Args:
          layout: a layout of the values of a ragged tensor, so its `owner` is not "".
        """
        return self._lists[layout.owner]

    def state(self, tensor: tf.Tensor) -> layouts.State:
        """Return the `layouts.State` of a tensor, such as its proven layout.

        Args:
          tensor: any tensor; if the tensor does not depend on the batch, its state is None.
        """
        return self._states.get(tensor.name)

    def dims(self, tensor: tf.Tensor, of_one: bool = False) -> sizes.Known | None:
        """Return the sizes of a tensor's axes.

        Args:
          tensor: a tensor between the batch and its losses.
          of_one: True returns None for sizes that may grow with the number of examples B.

        Returns:
          A size for each axis, with None for unknown sizes; None if the rank is unknown.
        """
        state, rank = self._states.get(tensor.name), tensor.shape.rank
        if rank is None:
            return None
        if isinstance(state, layouts.Layout):
            dims: sizes.Known = list(state.dims)
            if of_one:
                dims[state.axis] = None
            return dims
        static = [None if n is None else sizes.Size(n) for n in tensor.shape]
        if state is None:  # `tensor` does not depend on the batch.
            return [size or layouts.unknown(tensor, n) for n, size in enumerate(static)]
        return [None] * rank if of_one else static

    def is_of_one(self, tensor: tf.Tensor) -> bool:
        """Return True if sizes provably do not depend on the number of examples.

        Args:
          tensor: an integer scalar or vector of sizes, such as a shape.
        """

        def static(part: tf.Tensor) -> Any:
            is_fixed = part is not tensor and self.state(part) is None
            return tf.get_static_value(part) if is_fixed else None

        entries = sizes.infer_sizes(tensor, lambda part: self.dims(part, of_one=True), static)
        return entries is not None and None not in entries

    def examples(self, axis: int, dims: Sequence[sizes.Size]) -> layouts.Layout:
        """Return the layout of a tensor with one entry of each example along an axis.

        Args:
          axis: the axis of the examples, from 0.
          dims: the sizes of all axes; the size at `axis` is ignored.
        """
        return layouts.along("", self.count, axis, dims)

    def is_apart_back(self, op: tf.Operation, states: Sequence[layouts.State]) -> bool:
        """Return True if a custom gradient of an op provably keeps examples apart.

        The method builds the ops of the gradient, starting from cotangents that have the layouts of
        the op's outputs.

        Args:
          op: an op with a custom gradient, which overrides the usual gradient of ops of this type.
          states: the state (`layouts.State`) of each output of the op.
        """
        pairs = [pair for pair in zip(op.outputs, states, strict=True) if pair[0].dtype.is_floating]
        if not all(state is None or isinstance(state, layouts.Layout) for _, state in pairs):
            return False
        gap = self.gap
        upstream = self._make_cotangents(pairs)
        # The ops are in the order in which they were built, so all ops from `first` on belong to
        # the gradient.
        first, inputs = len(op.graph.get_operations()), list(op.inputs)
        outputs = [output for output, _ in pairs]
        gradients = tf.gradients(outputs, inputs, upstream, stop_gradients=inputs)
        ops = op.graph.get_operations()[first:]
        for gradient_op in ops:
            self._pass_op(gradient_op)
        is_apart = _are_linear(ops, upstream) and all(map(self._lies_like_input, gradients, inputs))
        self.gap = gap if is_apart else self.gap
        return is_apart

    def _make_cotangents(self, pairs: Sequence[tuple[tf.Tensor, layouts.State]]) -> list[tf.Tensor]:
        """Build a stand-in for the cotangent of each output, in the same state as the output."""
        # The zeros are never computed; only the layouts of tensors that depend on them matter.
        upstream = [tf.zeros_like(output) for output, _ in pairs]
        for tensor, (_, state) in zip(upstream, pairs, strict=True):
            self._states[tensor.name] = state
            self._moved.add(tensor.name)
        return upstream

    def _lies_like_input(self, gradient: tf.Tensor | None, tensor: tf.Tensor) -> bool:
        """Return True if the gradient by an input has the input's layout, or does not exist."""
        if gradient is None or self.state(tensor) is None:
            return True
        pair = sizes.all_known([self.find_layout(gradient), self.find_layout(tensor)])
        return pair is not None and len({(layout.axis, layout.key) for layout in pair}) == 1

    def _enter_values(self, values: tf.Tensor | tf.RaggedTensor) -> None:
        if isinstance(values, tf.Tensor):
            if values.shape.rank:
                self._states[values.name] = self.examples(0, layouts.own_dims(values))
            else:
                # A scalar of the batch, such as its size, does not belong to an example.
                self._states[values.name] = layouts.DATA
            return
        for part in tf.nest.flatten(values, expand_composites=True):
            self._states[part.name] = layouts.DATA
        if isinstance(values, tf.RaggedTensor) and values.ragged_rank == 1:
            flat, owner = values.flat_values, values.row_splits.name
            self._lists[owner] = values
            dims = layouts.own_dims(flat)
            self._states[flat.name] = layouts.along(owner, dims[0], 0, dims)

    def _pass_op(self, op: tf.Operation) -> None:
        """Find the layout, or another state, of each output of an op."""
        states = [self.state(tensor) for tensor in op.inputs]
        is_moved = self._depends_on_variables(op)
        if is_moved:
            self._moved.update(tensor.name for tensor in op.outputs)
        if any(states):
            output_states = self._find_states(op, states, is_moved)
            self._states.update(
                (tensor.name, state)
                for tensor, state in zip(op.outputs, output_states, strict=True)
            )

    def _find_states(
        self, op: tf.Operation, states: Sequence[layouts.State], is_moved: bool
    ) -> list[layouts.State]:
        """Find which entries of an op's outputs belong to which example; set `gap` on failure."""
        if any(tensor.name in self._declared for tensor in op.outputs):
            return [self.examples(0, layouts.own_dims(op.outputs[0]))]
        is_known = layouts.UNKNOWN not in states
        output_states = rules.outputs(op, self, is_moved) if is_known else None
        if output_states is not None:
            return output_states
        if not is_moved:
            # An op that does not depend on variables has no gradients that could mix examples, so
            # its outputs are data.
            return [layouts.DATA] * len(op.outputs)
        if is_known:
            self.gap = self.gap or op
        return [layouts.UNKNOWN] * len(op.outputs)

    def _depends_on_variables(self, op: tf.Operation) -> bool:
        """Return True if the values of an op's outputs depend on variables."""
        # Shapes do not depend on the values of variables.
        if op.type in _SIZES:
            return False
        # Handles of variables are resources. Handles of lookup tables are also resources, but are
        # not trained.
        is_lookup = op.type.startswith("LookupTable")
        return any(
            tensor.name in self._moved or (tensor.dtype == tf.resource and not is_lookup)
            for tensor in op.inputs
        )

    def _leading_to_gaps(
        self, ops: Sequence[tf.Operation], losses: Sequence[tf.Tensor]
    ) -> set[str]:
        """Return the names of all ops that affect a loss through an op whose layout is unknown."""
        tied = {
            op.name for op in ops if any(self.state(out) == layouts.UNKNOWN for out in op.outputs)
        }
        for loss in losses:
            if not self._is_by_example(loss):
                tied.add(loss.op.name)
                self.gap = self.gap or loss.op
        return _add_leading(ops, tied)

    def _is_by_example(self, loss: tf.Tensor) -> bool:
        """Return True if a loss has a value for each example, [B], or is a sum over examples."""
        state = self.state(loss)
        if isinstance(state, layouts.Layout):
            return state == self.examples(0, state.dims[:1])
        return state == layouts.TOTAL and loss.shape.rank == 0


def _add_leading(ops: Sequence[tf.Operation], names: set[str]) -> set[str]:
    """Extend a set of op names by the names of all ops that lead to these ops."""
    op_names, leading = {op.name for op in ops}, set(names)
    # The consumers of an op are built after the op, so a single pass over `ops` from the end finds
    # all ops that lead to `names`.
    for op in reversed(ops):
        users = (user.name for out in op.outputs for user in out.consumers())
        if any(name in leading and name in op_names for name in users):
            leading.add(op.name)
    return leading


def _are_linear(ops: Sequence[tf.Operation], tensors: Sequence[tf.Tensor]) -> bool:
    """Return True if the results of ops are linear in some tensors, as gradients should be."""
    names = {tensor.name for tensor in tensors}
    for op in ops:
        places = [n for n, tensor in enumerate(op.inputs) if tensor.name in names]
        if places and not _LINEAR.get(op.type, lambda places: False)(places):
            return False
        if places:
            names.update(tensor.name for tensor in op.outputs)
    return True


_LINEAR: dict[str, Callable[[list[int]], bool]] = {
    **dict.fromkeys(
        ("Add", "AddN", "AddV2", "Identity", "Mean", "Neg", "Sub", "Sum"), lambda places: True
    ),
    **dict.fromkeys(
        ("DivNoNan", "ExpandDims", "RealDiv", "Reshape", "Squeeze", "Transpose"),
        lambda places: places == [0],
    ),
    **dict.fromkeys(("MatMul", "Mul"), lambda places: len(places) == 1),
    **dict.fromkeys(("Select", "SelectV2"), lambda places: 0 not in places),
    "MaxPoolGrad": lambda places: places == [2],
}
"""{op: a function that returns True if the op is linear in the inputs with the given indices}."""
