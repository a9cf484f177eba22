"""Type aliases for named tensors, gradients, metrics, JSON and Python values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from mtl.deferred import tf

Tensors = Mapping[str, "tf.Tensor"]
"""{name: tensor}; names are tasks for losses and logits, fields for features and labels."""

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices | None"
"""The gradient of a variable: sparse after an embedding look-up, None if no loss depends on it."""

Connected: TypeAlias = "tf.Tensor | tf.IndexedSlices"
"""The gradient of a variable on which the loss depends."""

GradientsAndVariables = list[tuple["tf.Tensor | tf.IndexedSlices | None", "tf.Variable"]]

Metrics = Mapping[str, tuple["tf.Tensor", "tf.Operation"]]
"""{name: (value, update)} as `EstimatorSpec.eval_metric_ops` takes them."""

Observe: TypeAlias = Callable[[Tensors, Tensors, Tensors], None]
"""A function of features, labels and {task: weight} that runs before a step's update."""

Nested: TypeAlias = Any
"""Tensors, IndexedSlices and None, in any nesting of tuples, lists and dicts."""

Json: TypeAlias = Any
"""A JSON value: a number, text, or a list or dict of JSON values."""

PythonValue: TypeAlias = object
"""A record's value of a field in Python: a number, text, an array, or a list of such values."""
