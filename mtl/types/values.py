"""What the members of parts take and return: tensors, gradients, metrics, values in Python."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

Tensors = Mapping[str, tf.Tensor]
"""Named tensors; by task where the name is plural (`losses`), by field for features and labels."""

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None
"""The gradient of one variable: sparse where it was looked up, None where nothing depends on it."""

Connected: TypeAlias = tf.Tensor | tf.IndexedSlices
"""The gradient of a variable that something depends on."""

GradientsAndVariables = list[tuple[tf.Tensor | tf.IndexedSlices | None, tf.Variable]]

Metrics = Mapping[str, tuple[tf.Tensor, tf.Operation]]
"""{name: (value, update)} as `EstimatorSpec.eval_metric_ops` takes them."""

Observe: TypeAlias = Callable[[Tensors, Tensors, Tensors], None]
"""Takes features, labels and {task: its weight} of a training step, before its update."""

Nested: TypeAlias = Any
"""Tensors, IndexedSlices and None, in any nesting of tuples, lists and dicts."""

Json: TypeAlias = Any
"""What JSON can hold: numbers, text, lists and dicts of them."""

PythonValue: TypeAlias = object
"""What one field of one record holds in Python: a number, text, an array, or a list of them."""
