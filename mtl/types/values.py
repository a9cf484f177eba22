"""Types that the members of parts take and return: tensors, gradients, metrics, Python values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from mtl.deferred import tf

Tensors = Mapping[str, "tf.Tensor"]
"""Named tensors: by task, such as `losses`, or by field, such as features and labels."""

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices | None"
"""The gradient of a variable: sparse after a look-up, None if the loss does not depend on it."""

Connected: TypeAlias = "tf.Tensor | tf.IndexedSlices"
"""The gradient of a variable on which the loss depends."""

GradientsAndVariables = list[tuple["tf.Tensor | tf.IndexedSlices | None", "tf.Variable"]]

Metrics = Mapping[str, tuple["tf.Tensor", "tf.Operation"]]
"""{name: (value, update)} as `EstimatorSpec.eval_metric_ops` takes them."""

Observe: TypeAlias = Callable[[Tensors, Tensors, Tensors], None]
"""Takes features, labels and {task: its weight} of a training step, before its update."""

Nested: TypeAlias = Any
"""Tensors, IndexedSlices and None, in any nesting of tuples, lists and dicts."""

Json: TypeAlias = Any
"""A JSON value: a number, text, or a list or dict of JSON values."""

PythonValue: TypeAlias = object
"""The value of a field of a record in Python: a number, text, an array, or a list of them."""
