"""Keeps the vocabulary ids of features that the input pipeline has already looked up.

codes.remember(texts, {"categorical_job": ids})          # ids of this tensor only
codes.find_ids(texts, "categorical_job")                 # ids, or None: the graph looks them up

The remembered ids belong to the tensor of a feature, not to the name of the feature. If code
replaces the values of a feature, the new values are another tensor, whose ids the graph looks up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtl.deferred import tf
from mtl.tf_internals import graphs

# TensorFlow saves only collections with string keys. This key is a tuple, so a saved graph does not
# contain the remembered ids.
_KEY = ("codes of texts",)


def remember(values: tf.Tensor | tf.RaggedTensor, ids: Mapping[str, Any]) -> None:
    """Remember the vocabulary ids of a feature for some columns.

    Args:
      values: the values of the feature, a tensor of the outermost graph.
      ids: {column: ids in the same shape as `values`}.
    """
    entries = graphs.outermost_graph().get_collection_ref(_KEY)
    entries.append((_get_tensor(values), dict(ids)))


def find_ids(values: tf.Tensor | tf.RaggedTensor, column: str) -> Any:
    """Return the vocabulary ids of a feature for a column.

    Args:
      values: the values of the feature, the same tensor as in `remember`.
      column: the name of the column.

    Returns:
      The ids of `values`, int64 in the same shape; None if no ids were remembered.
    """
    if tf.executing_eagerly():
        return None
    tensor = _get_tensor(values)
    for feature, ids in graphs.outermost_graph().get_collection_ref(_KEY):
        if feature is tensor:
            return ids.get(column)
    return None


def _get_tensor(values: Any) -> tf.Tensor:
    """Return the tensor with all values of a feature, dense or ragged."""
    return values.flat_values if isinstance(values, tf.RaggedTensor) else values
