"""Recognises tensors that TensorFlow computes from a ragged tensor, such as row lengths.

lists.is_rows(tensor, ragged)        # True for `ragged.value_rowids()`
lists.is_lengths(tensor, ragged)     # True for `ragged.row_lengths()`
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from mtl.deferred import tf, tf1


def is_rows(tensor: tf.Tensor, ragged: tf.RaggedTensor) -> bool:
    """Return True if a tensor is the result of `ragged.value_rowids()`."""
    return _is_made(tensor, ragged, lambda values: values.value_rowids())


def is_count(tensor: tf.Tensor, ragged: tf.RaggedTensor) -> bool:
    """Return True if a tensor is the number of rows of a ragged tensor."""
    # If the value of the tensor and the number of rows are both constants, no op computes them, so
    # the values themselves are compared.
    static = tf.get_static_value(tensor)
    if static is not None and ragged.shape[0] is not None:
        return static == ragged.shape[0]
    return any(
        _is_made(tensor, ragged, functools.partial(tf.RaggedTensor.nrows, out_type=dtype))
        # TensorFlow's functions on ragged tensors compute the number of rows as int64 or int32.
        for dtype in (tf.int64, tf.int32)
    ) or _is_made(tensor, ragged, lambda values: tf.shape(values.row_splits)[0] - 1)


def is_lengths(tensor: tf.Tensor, ragged: tf.RaggedTensor) -> bool:
    """Return True if a tensor is the result of `ragged.row_lengths()`."""
    return _is_made(tensor, ragged, lambda values: values.row_lengths())


def _is_made(
    tensor: tf.Tensor, ragged: tf.RaggedTensor, make: Callable[[tf.RaggedTensor], tf.Tensor]
) -> bool:
    """Return True if a tensor is the result of a function of a ragged tensor.

    To decide, the code calls the function `make` in a separate graph, and compares the ops of its
    result with the ops that compute the tensor.
    """
    origin = ragged.row_splits
    with tf.Graph().as_default():
        # From constant row splits, TensorFlow builds other ops than from tensors.
        value = tf.get_static_value(origin)
        splits = (
            tf1.placeholder(origin.dtype, origin.shape) if value is None else tf.constant(value)
        )
        flat = tf1.placeholder(ragged.flat_values.dtype, ragged.flat_values.shape)
        expected = make(tf.RaggedTensor.from_row_splits(flat, splits, validate=False))
        return _are_alike(tensor, expected, {splits.name: _find_source(origin).name})


def _are_alike(tensor: tf.Tensor, expected: tf.Tensor, names: dict[str, str]) -> bool:
    tensor, expected = _find_source(tensor), _find_source(expected)
    if expected.name in names:
        return tensor.name == names[expected.name]
    ours, theirs = tensor.op, expected.op
    return (
        ours.type == theirs.type
        and tensor.value_index == expected.value_index
        and settings(ours) == settings(theirs)
        and len(ours.inputs) == len(theirs.inputs)
        and all(_are_alike(*pair, names) for pair in zip(ours.inputs, theirs.inputs, strict=True))
    )


def _find_source(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def settings(op: tf.Operation) -> dict[str, bytes]:
    """Return the attributes of an op that determine its result, and its overridden gradient.

    Args:
      op: the op; its inputs do not count as attributes.

    Returns:
      {name of an attribute: its serialized value}.
    """
    attributes = op.node_def.attr.items()
    return {
        name: value.SerializeToString()
        for name, value in attributes
        # Attributes with an underscore, such as `_output_shapes`, do not affect the result.
        if not name.startswith("_") or name == "_gradient_op_type"
    }
