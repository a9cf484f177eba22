"""Removes units without effect from an exported network: constant units, units without readers.

graph = dead_units.remove_units(graph, ["head/price/value"])     # of a folded graph

After pruning, all incoming or all outgoing weights of a unit may be 0. A unit without input is
constant, and its contribution is added to the biases of the next layers. This module follows units
through operations that do not mix channels: products with constant kernels, additions, activations,
pooling, concatenation and flattening. If an operation that may mix channels, such as a softmax,
reads a unit, the unit is not removed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, cast

import numpy as np

from mtl.deferred import tf
from mtl.serving import graphs

_log = logging.getLogger(__name__)

# Elementwise functions, which map constants to constants. NaN stands for an unknown value, and
# stays NaN.
_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Abs": np.abs,
    "Elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "Erf": np.vectorize(math.erf, otypes=[float]),
    "Erfc": np.vectorize(math.erfc, otypes=[float]),
    "Identity": lambda x: x,
    "Neg": np.negative,
    "Relu": lambda x: np.maximum(x, 0),
    "Relu6": lambda x: np.clip(x, 0, 6),
    "Selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Square": np.square,
    "StopGradient": lambda x: x,
    "Tanh": np.tanh,
}
_ARITHMETIC: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": np.add,
    "AddV2": np.add,
    "BiasAdd": np.add,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "Sub": np.subtract,
}
_FIXED = -1  # In place of a unit's number: the channel has no unit that can be removed.


class _Channels(NamedTuple):
    """Describes the channels of a tensor, which are its last axis.

    Attributes:
      units: [C], the number of the unit in each channel, or `_FIXED`.
      values: [C], the constant value of each channel; NaN if the value depends on the input.
    """

    units: np.ndarray
    values: np.ndarray


class _Product(NamedTuple):
    """A dense layer or a convolution.

    Attributes:
      kernel: the weights, [..., inputs, outputs].
      rows: the channels of the layer's input.
      columns: the units of the layer's output.
      takes_constants: True if a constant input gives the same output at every pixel of an image.
    """

    kernel: np.ndarray
    rows: _Channels
    columns: np.ndarray
    takes_constants: bool


def remove_units(graph: graphs.Graph, names: Collection[str]) -> graphs.Graph:
    """Return a graph that computes the same values without units that add nothing.

    Args:
      graph: a graph without variables, from `folding.fold_graph`, which this function changes.
      names: the names of the nodes that the graph must compute.
    """
    units = _Units()
    with tf.Graph().as_default() as tf_graph:
        tf.import_graph_def(graph.pruned(names), name="")
        walk = _Walk(graph, units)
        for operation in graphs.order_operations(tf_graph):
            walk.visit(operation)
        for name in names:
            for tensor in tf_graph.get_operation_by_name(name).outputs:
                walk.fix(tensor)
    for kind, name, count in walk.kept:
        _log.info("Kept %d units without inputs, because %s, %s, reads them.", count, name, kind)
    is_removed = units.find_removable(walk.products.values())
    if not is_removed.any():
        return graph
    _log.info("Removed %d of %d units, which add nothing.", is_removed.sum(), is_removed.size)
    walk.rewrite(is_removed)
    return graphs.Graph(graph.pruned(names))


class _Units:
    """Holds all units, in sets that are removed together, such as units of a residual sum."""

    def __init__(self):
        # A union-find structure: the parent of each unit, and for each root True if its set must
        # stay.
        self._parents: list[int] = []
        self._stays: list[bool] = []

    def create(self, count: int) -> np.ndarray:
        """Create `count` units, and return their numbers."""
        first = len(self._parents)
        self._parents += range(first, first + count)
        self._stays += [False] * count
        return np.arange(first, first + count)

    def _find_root(self, unit: int) -> int:
        while self._parents[unit] != unit:
            unit = self._parents[unit]
        return unit

    def fix(self, units: np.ndarray) -> None:
        """Mark units that must not be removed."""
        for unit in units[units != _FIXED]:
            self._stays[self._find_root(unit)] = True

    def join(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Let the units at each position of two tensors stay or be removed together.

        Returns:
          For each position, the unit of `first`; `_FIXED` if one of the two units must stay.
        """
        for left, right in zip(first, second, strict=True):
            if _FIXED in (left, right):
                self.fix(np.array([left, right]))
                continue
            left, right = self._find_root(left), self._find_root(right)
            self._stays[left] |= self._stays[right]
            self._parents[right] = left
        # Return `_FIXED` for a position at which one unit must stay, because the other unit must
        # stay, too.
        return np.where(second == _FIXED, second, first)

    def find_removable(self, products: Collection[_Product]) -> np.ndarray:
        """Return a mask of all units, bool [units], True for units that can be removed."""
        roots = np.array([self._find_root(unit) for unit in range(len(self._parents))], int)
        stays = np.array(self._stays, bool)
        is_removed = np.zeros(len(roots), bool)
        while True:
            can_go = ~stays[roots]
            for product in products:
                # A unit is needed if another unit that stays reads it.
                needed_units = product.rows.units[_are_needed(product, is_removed)]
                can_go[np.isin(roots, roots[needed_units[needed_units != _FIXED]])] = False
            survivors = [roots[p.columns[0]] for p in products if can_go[p.columns].all()]
            if survivors:  # Keep one unit of each layer that would lose all; search again.
                stays[survivors] = True
                can_go[:] = False
            elif (can_go == is_removed).all():
                return is_removed
            is_removed = can_go


def _are_needed(product: _Product, is_removed: np.ndarray) -> np.ndarray:
    """Return a mask of the inputs that a layer needs, bool [inputs], True if needed."""
    # Ignore weights to removed units, so that chains of units are removed, one unit in each round.
    kernel = product.kernel[..., ~is_removed[product.columns]]
    axes = tuple(axis for axis in range(kernel.ndim) if axis != kernel.ndim - 2)
    is_weighed, values = (kernel != 0).any(axis=axes), product.rows.values
    # A constant input cannot become a bias if its output differs at the borders of an image.
    adds = np.isnan(values) | (values != 0) & (not product.takes_constants)
    return is_weighed & adds


class _Walk:
    """Follows units through a graph, and then removes units from the graph.

    Attributes:
      products: {node: the `_Product` that describes this dense layer or convolution}.
      kept: (op type, node, number of units) of constant units that stay, because this module cannot
        follow the op that reads the units.
    """

    def __init__(self, graph: graphs.Graph, units: _Units):
        self._graph, self._units = graph, units
        self._channels: dict[str, _Channels] = {}
        self._constants: list[tuple[str, int, np.ndarray]] = []
        self._flattened: list[tuple[str, np.ndarray]] = []
        self._splits: list[tuple[str, list[np.ndarray]]] = []
        self.products: dict[str, _Product] = {}
        self.kept: list[tuple[str, str, int]] = []

    def fix(self, tensor: tf.Tensor) -> None:
        """Mark all units of a tensor as units that must stay."""
        if tensor.name in self._channels:
            self._units.fix(self._channels[tensor.name].units)

    def visit(self, operation: tf.Operation) -> None:
        """Find the channels of an operation's outputs; on failure, keep all units of its inputs."""
        outputs = self._follow_operation(operation)
        if outputs is None:
            for tensor in operation.inputs:
                self.fix(tensor)
            self._note_kept(operation)
            return
        for tensor, channels in zip(operation.outputs, outputs, strict=True):
            self._channels[tensor.name] = channels

    def _note_kept(self, operation: tf.Operation) -> None:
        inputs = [self._channels[t.name] for t in operation.inputs if t.name in self._channels]
        constants = [channels.units[~np.isnan(channels.values)] for channels in inputs]
        units = {unit for numbers in constants for unit in numbers.tolist()} - {_FIXED}
        if units:
            self.kept.append((operation.type, operation.name, len(units)))

    def _follow_operation(self, operation: tf.Operation) -> Sequence[_Channels] | None:
        """Return the channels of the outputs; None if this module cannot follow the operation."""
        kind = operation.type
        if kind in _OF_INPUTS:
            return _OF_INPUTS[kind](self, operation)
        channels = self._channels.get(operation.inputs[0].name) if operation.inputs else None
        if channels is None or kind not in _OF_CHANNELS:
            return None
        return _OF_CHANNELS[kind](self, operation, channels)

    def _activate_channels(
        self, operation: tf.Operation, channels: _Channels
    ) -> Sequence[_Channels] | None:
        return [channels._replace(values=_ACTIVATIONS[operation.type](channels.values))]

    def _resize_channels(
        self, operation: tf.Operation, channels: _Channels
    ) -> Sequence[_Channels] | None:
        return [channels]

    def _pool_channels(
        self, operation: tf.Operation, channels: _Channels
    ) -> Sequence[_Channels] | None:
        # Refuse pooling over channels, because this pooling mixes channels. Pooling over places
        # keeps a constant, because TensorFlow leaves padding out of means and maxima.
        is_plain = _is_last(operation) and operation.get_attr("ksize")[-1] == 1
        return [channels] if is_plain else None

    def _reduce_places(
        self, operation: tf.Operation, channels: _Channels
    ) -> Sequence[_Channels] | None:
        axes, rank = self._find_value(operation.inputs[1]), operation.inputs[0].shape.rank
        # Refuse a reduction over the last axis, which holds the channels.
        is_over_places = axes is not None and rank and rank - 1 not in np.ravel(axes) % rank
        return [channels] if is_over_places else None

    def _find_value(self, tensor: tf.Tensor) -> np.ndarray | None:
        return self._graph.value(tensor.op.name)

    def _multiply_weights(self, operation: tf.Operation) -> Sequence[_Channels] | None:
        values, weights = operation.inputs
        kernel = self._find_value(weights)
        if kernel is None or not _is_plain_product(operation):
            return None
        count = kernel.shape[-2]
        # Keep all inputs whose units are unknown, such as features.
        rows = self._channels.get(values.name) or _create_fixed(count)
        if len(rows.units) != count:  # A grouped convolution.
            return None
        # At the borders of an image, a padded convolution sums over fewer pixels. With "EXPLICIT"
        # padding, even a kernel of a single pixel may be padded.
        padding = b"VALID" if operation.type == "MatMul" else operation.get_attr("padding")
        is_even = padding == b"VALID" or (padding == b"SAME" and kernel.shape[:2] == (1, 1))
        # The outputs of a dense layer or a convolution are new units.
        columns = self._units.create(kernel.shape[-1])
        self.products[operation.name] = _Product(kernel, rows, columns, is_even)
        # The product with a weight of 0 is 0, even if the input is unknown.
        parts = np.where(kernel == 0, 0.0, kernel * rows.values[:, np.newaxis])
        sums = parts.sum(axis=tuple(range(kernel.ndim - 1)))
        # If padding changes the sums at the borders of an image, a channel is constant only if its
        # sum is 0.
        return [_Channels(columns, sums if is_even else np.where(sums == 0, sums, np.nan))]

    def _combine_inputs(self, operation: tf.Operation) -> Sequence[_Channels] | None:
        if operation.type == "BiasAdd" and not _is_last(operation):
            return None
        constants = [self._find_value(tensor) for tensor in operation.inputs]
        inputs = [self._channels.get(tensor.name) for tensor in operation.inputs]
        for place, constant in enumerate(constants):
            if constant is not None:
                return self._combine_constant(operation, place, constant, inputs[1 - place])
        first, second = inputs
        if first is None or second is None or len(first.units) != len(second.units):
            return None
        values = _apply_arithmetic(operation.type, first.values, second.values)
        return [_Channels(self._units.join(first.units, second.units), values)]

    def _combine_constant(
        self, operation: tf.Operation, place: int, constant: np.ndarray, channels: _Channels | None
    ) -> Sequence[_Channels] | None:
        if channels is None or constant.ndim > 1 or constant.size not in (1, len(channels.units)):
            return None
        if constant.size > 1:
            # Record a constant vector, because `rewrite` removes the entries of removed channels
            # from it. A scalar fits any number of channels.
            self._constants.append((operation.name, place, channels.units))
        pair = (constant, channels.values) if place == 0 else (channels.values, constant)
        return [channels._replace(values=_apply_arithmetic(operation.type, *pair))]

    def _join_channels(self, operation: tf.Operation) -> Sequence[_Channels] | None:
        *parts, axis = operation.inputs
        place, rank = self._find_value(axis), operation.outputs[0].shape.rank
        is_last = place is not None and rank and place % rank == rank - 1
        if not is_last or any(not part.shape.rank or part.shape[-1] is None for part in parts):
            return None
        inputs = [self._channels.get(part.name) or _create_fixed(part.shape[-1]) for part in parts]
        units, values = zip(*inputs, strict=True)
        return [_Channels(np.concatenate(units), np.concatenate(values))]

    def _split_channels(self, operation: tf.Operation) -> Sequence[_Channels] | None:
        axis, values = operation.inputs
        place, channels = self._find_value(axis), self._channels.get(values.name)
        rank = values.shape.rank
        if place is None or channels is None or not rank or place % rank != rank - 1:
            return None
        count = len(operation.outputs)
        units, constants = (np.split(array, count) for array in channels)
        parts = list(map(_Channels, units, constants))
        self._splits.append((operation.name, [part.units for part in parts]))
        return parts

    def _flatten_places(
        self, operation: tf.Operation, channels: _Channels
    ) -> Sequence[_Channels] | None:
        target, shape = self._find_value(operation.inputs[1]), operation.inputs[0].shape
        # Accept only [B, ..., C] -> [B, all others], in which the channels repeat for each pixel.
        if target is None or target.tolist()[:-1] != [-1] or not shape[1:].is_fully_defined():
            return None
        count = shape[1:].num_elements()
        if target[-1] != count:
            return None
        repeats = count // len(channels.units)
        # The last axis varies fastest, so all channels of a pixel follow each other.
        flat = _Channels(*(np.tile(array, repeats) for array in channels))
        self._flattened.append((operation.name, flat.units))
        return [flat]

    def rewrite(self, is_removed: np.ndarray) -> None:
        """Remove units from all constants.

        Args:
          is_removed: a mask of the units to remove, bool [units].
        """

        def are_kept(units: np.ndarray) -> np.ndarray:
            return (units == _FIXED) | ~is_removed[units]

        for node in self._graph.nodes.values():
            # Remove recorded shapes, because TensorFlow refuses a graph if they are wrong.
            node.attr.pop("_output_shapes", None)
        for name, product in self.products.items():
            self._rewrite_product(
                name, product, are_kept(product.rows.units), ~is_removed[product.columns]
            )
        for name, place, units in self._constants:
            node = self._graph.nodes[name]
            value = cast(np.ndarray, self._graph.value(node.input[place]))[are_kept(units)]
            node.input[place] = self._graph.set_constant(f"{name}/kept_{place}", value)
        for name, units in self._flattened:
            node = self._graph.nodes[name]
            dtype = cast(np.ndarray, self._graph.value(node.input[1])).dtype
            target = np.array([-1, are_kept(units).sum()], dtype)
            node.input[1] = self._graph.set_constant(f"{name}/kept_shape", target)
        for name, parts in self._splits:
            node = self._graph.nodes[name]
            sizes = np.array([are_kept(units).sum() for units in parts], np.int32)
            axis, values = node.input
            inputs = [values, self._graph.set_constant(f"{name}/kept_sizes", sizes), axis]
            # Replace Split, which makes equal parts, by SplitV, because the parts may now differ in
            # size.
            attributes = {
                "T": node.attr["T"],
                "Tlen": tf.int32,
                "num_split": node.attr["num_split"],
            }
            self._graph.set(name, "SplitV", inputs, **attributes)

    def _rewrite_product(
        self, name: str, product: _Product, rows: np.ndarray, columns: np.ndarray
    ) -> None:
        if rows.all() and columns.all():
            return
        node, kernel = self._graph.nodes[name], product.kernel[..., columns]
        kept_kernel = self._graph.set_constant(f"{name}/kept_kernel", kernel[..., rows, :])
        # Add the contribution of the removed constant inputs to each output.
        values = np.where(rows, 0.0, np.nan_to_num(product.rows.values))
        sums = (kernel * values[:, np.newaxis]).sum(axis=tuple(range(kernel.ndim - 1)))
        inputs = [node.input[0], kept_kernel]
        if not sums.any():
            self._graph.set(name, node.op, inputs, **dict(node.attr))
            return
        product_name = self._graph.set(f"{name}/kept_product", node.op, inputs, **dict(node.attr))
        shift = self._graph.set_constant(f"{name}/constant_units", sums.astype(kernel.dtype))
        self._graph.set(name, "AddV2", [product_name, shift], T=node.attr["T"])


_OF_INPUTS: dict[str, Callable[[_Walk, tf.Operation], Sequence[_Channels] | None]] = {
    **dict.fromkeys(("Conv2D", "MatMul"), _Walk._multiply_weights),
    **dict.fromkeys(_ARITHMETIC, _Walk._combine_inputs),
    "ConcatV2": _Walk._join_channels,
    "Split": _Walk._split_channels,
}
_OF_CHANNELS: dict[str, Callable[[_Walk, tf.Operation, _Channels], Sequence[_Channels] | None]] = {
    **dict.fromkeys(_ACTIVATIONS, _Walk._activate_channels),
    **dict.fromkeys(("AvgPool", "MaxPool"), _Walk._pool_channels),
    **dict.fromkeys(("Max", "Mean"), _Walk._reduce_places),
    "Reshape": _Walk._flatten_places,
    "ResizeNearestNeighbor": _Walk._resize_channels,
}
"""{op type: method} for operations in which only the first input has channels."""


def _create_fixed(count: int) -> _Channels:
    """Return `count` channels with unknown values, whose units must stay."""
    return _Channels(np.full(count, _FIXED), np.full(count, np.nan))


def _apply_arithmetic(kind: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compute channel values, in which NaN means unknown; a product with 0 is always 0."""
    with np.errstate(all="ignore"):  # Infinities and NaN occur as in TensorFlow.
        result = _ARITHMETIC[kind](np.asarray(first, float), np.asarray(second, float))
    return np.where((first == 0) | (second == 0), 0.0, result) if kind == "Mul" else result


def _is_plain_product(operation: tf.Operation) -> bool:
    """Return True if the channels are the last axis of the input and of the output."""
    if operation.type == "MatMul":
        return not (operation.get_attr("transpose_a") or operation.get_attr("transpose_b"))
    return _is_last(operation)


def _is_last(operation: tf.Operation) -> bool:
    """Return True if the channels are the last axis, as in NHWC."""
    return operation.get_attr("data_format") == b"NHWC"
