"""Builds the inputs of an exported model: serialized tf.Examples, or features as tensors.

receiver = inputs.build_receiver(spec)                 # within the graph of an export
receiver.receiver_tensors                        # {"examples": [B] strings}
receiver.receiver_tensors_alternatives["raw"]    # {"age": [B], "tags": [B, L], "tags/length": [B]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mtl import spec as spec_lib
from mtl.deferred import compat, tf, tf1
from mtl.serving import settings

EXAMPLES = "examples"


def length_name(field: str) -> str:
    """Return the name of the raw input that has the lengths of a field's lists."""
    return f"{field}/length"


def build_receiver(spec: spec_lib.Spec) -> compat.estimator.export.ServingInputReceiver:
    """Build the serving inputs of an export.

    A client sends either serialized tf.Examples or raw inputs, the features as tensors. If a field
    has a default, a client may send an empty tensor, of shape [0], as its raw input; every row then
    has the default. If a client omits the raw inputs of a list feature, all its lists are empty.
    Empty texts in lists are dropped.

    Args:
      spec: the fields of the model; labels are left out.

    Returns:
      A receiver with the features of the model. The input of the receiver is "examples", strings
      [B]; the receiver's alternative "raw" takes the raw inputs instead.

    Raises:
      InvalidArgumentError: when run, if raw inputs have different numbers of rows.
    """
    empty = tf.constant([], tf.string)
    # `empty` is the default of "examples", so that a client can send only raw inputs; the features
    # of examples are then empty.
    examples = tf1.placeholder_with_default(empty, [None], name=EXAMPLES)
    parsed = spec.parse(examples, with_labels=False)
    fields = spec.feature_fields
    with tf1.name_scope("raw"):
        raw: dict[str, tf.Tensor] = {}
        for name, field in fields.items():
            raw |= (
                _make_ragged(field) if field.is_ragged else {name: _make_dense(field, parsed[name])}
            )
    count = _num_rows(fields, parsed, raw)
    features = {
        name: _choose_lists(field, parsed[name], raw, count)
        if field.is_ragged
        else _fill_missing(field, raw[name], count)
        for name, field in fields.items()
    }
    export = compat.estimator.export
    features = spec.drop_empty_texts(features)
    return export.ServingInputReceiver(features, {EXAMPLES: examples}, {settings.RAW: raw})


def raw_defaults(spec: spec_lib.Spec) -> dict[str, np.ndarray]:
    """Return the default values of the raw inputs that a client may leave out.

    Args:
      spec: the fields of the model.

    Returns:
      {raw input: an empty array [0, ...] of its type}, for fields with a default and for lists.
    """
    defaults = {}
    for name, field in spec.feature_fields.items():
        dtype = tf.as_dtype(field.dtype).as_numpy_dtype
        if field.is_ragged:
            defaults[name] = np.zeros([0, 0], dtype)
            defaults[length_name(name)] = np.zeros([0], np.int64)
        elif field.default is not None:
            defaults[name] = np.zeros([0, *field.shape], dtype)
    return defaults


def _make_dense(field: spec_lib.Field, parsed: tf.Tensor) -> tf.Tensor:
    # A raw input that a client feeds replaces the feature in the examples.
    return tf1.placeholder_with_default(parsed, [None, *field.shape], name=op_name(field.name))


def _make_ragged(field: spec_lib.Field) -> dict[str, tf.Tensor]:
    name, length = field.name, length_name(field.name)
    values = tf.zeros([0, 0], field.dtype)
    none = tf.zeros([0], tf.int64)
    return {
        name: tf1.placeholder_with_default(values, [None, None], name=op_name(name)),
        length: tf1.placeholder_with_default(none, [None], name=op_name(length)),
    }


def op_name(name: str) -> str:
    """Return the name of an input's placeholder, without characters that TensorFlow forbids."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", f"input_{name}")


def _num_rows(
    fields: Mapping[str, spec_lib.Field], parsed: Mapping[str, Any], raw: Mapping[str, tf.Tensor]
) -> tf.Tensor:
    """Return the number of rows B of the first required feature, else of the longest feature."""
    required = [name for name, field in fields.items() if field.is_required]
    if required:
        return tf.shape(raw[required[0]], tf.int64)[0]
    counts = [
        parsed[name].nrows() + tf.shape(raw[length_name(name)], tf.int64)[0]
        if field.is_ragged
        else tf.shape(raw[name], tf.int64)[0]
        for name, field in fields.items()
    ]
    return tf.reduce_max(tf.stack(counts))


def _fill_missing(field: spec_lib.Field, values: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return a feature [B, ...], filled with its default if the client has sent [0, ...]."""
    if field.default is None:
        return values
    # The number of missing values: 0 if the client has sent the feature, else B.
    missing = count - tf.shape(values, tf.int64)[0]
    with tf.control_dependencies([_require_all_or_none(field, missing, count)]):
        shape = tf.concat([missing[tf.newaxis], tf.constant(field.shape, tf.int64)], 0)
        default = tf.fill(shape, tf.constant(field.default, field.dtype))
        return tf.ensure_shape(tf.concat([values, default], 0), [None, *field.shape])


def _choose_lists(
    field: spec_lib.Field, parsed: tf.RaggedTensor, raw: Mapping[str, tf.Tensor], count: tf.Tensor
) -> tf.RaggedTensor:
    """Return the lists in the examples, or in the raw inputs if there are no examples."""
    padded, lengths = raw[field.name], raw[length_name(field.name)]
    # All B lists are missing if neither examples nor raw inputs have them.
    missing = count - tf.shape(lengths, tf.int64)[0] - parsed.nrows()
    width = tf.shape(padded, tf.int64)[1]
    checks = [
        _require_all_or_none(field, missing, count),
        _require_lengths(field.name, lengths, width),
    ]
    with tf.control_dependencies(checks):
        raw_values = tf.boolean_mask(padded, tf.sequence_mask(lengths, width))
        # Join the values of examples and of raw inputs; one of the two is always empty.
        values = tf.concat([parsed.values, raw_values], 0)
        none = tf.zeros(missing[tf.newaxis], tf.int64)
        lengths = tf.concat([parsed.row_lengths(), lengths, none], 0)
    return tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)


def read_lists(name: str, padded: tf.Tensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Convert padded lists to a ragged tensor.

    Args:
      name: the name of the feature, for the error.
      padded: values [B, L]; values after the length of a row are ignored.
      lengths: int64 [B], the length of the list in each row, from 0 to L.

    Returns:
      Lists [B, (L)].

    Raises:
      InvalidArgumentError: when run, if a length is not in [0, L].
    """
    width = tf.shape(padded, tf.int64)[1]
    with tf.control_dependencies([_require_lengths(name, lengths, width)]):
        values = tf.boolean_mask(padded, tf.sequence_mask(lengths, width))
    return tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)


def _require_lengths(name: str, lengths: tf.Tensor, width: tf.Tensor) -> tf.Operation:
    is_valid = tf.reduce_all((lengths >= 0) & (lengths <= width))
    message = f"raw input {length_name(name)!r} must be at most the number of columns"
    return tf.raw_ops.Assert(condition=is_valid, data=[message, lengths])


def _require_all_or_none(
    field: spec_lib.Field, missing: tf.Tensor, count: tf.Tensor
) -> tf.Operation:
    message = f"raw input {field.name!r} must have as many rows as the others, or none; missing"
    is_valid = tf.equal(missing, 0) | tf.equal(missing, count)
    return tf.raw_ops.Assert(condition=is_valid, data=[message, missing])
