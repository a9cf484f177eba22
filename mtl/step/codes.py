"""Ids of texts and whole numbers that were looked up when the rows were read.

codes.remember(texts, {"categorical_job": ids})          # of this tensor alone
codes.find_ids(texts, "categorical_job")                 # ids, or None: the graph looks them up

Ids belong to a tensor, not to a name. If some code changes a feature, the result is another tensor,
and its ids are looked up again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtl.deferred import tf
from mtl.tf_internals import graphs

# Saved graphs leave out collections whose key is not a string.
_KEY = ("codes of texts",)


def remember(values: tf.Tensor | tf.RaggedTensor, ids: Mapping[str, Any]) -> None:
    """Remember the ids of a feature for some columns.

    Args:
      values: the feature, a tensor of the outermost graph.
      ids: {column: ids of the shape of `values`}.
    """
    entries = graphs.outermost_graph().get_collection_ref(_KEY)
    entries.append((_get_tensor(values), dict(ids)))


def find_ids(values: tf.Tensor | tf.RaggedTensor, column: str) -> Any:
    """Return the ids of a feature for a column.

    Args:
      values: the feature, the same tensor as in `remember`.
      column: the column.

    Returns:
      int64 of the shape of `values`; None if unknown.
    """
    if tf.executing_eagerly():
        return None
    tensor = _get_tensor(values)
    for feature, ids in graphs.outermost_graph().get_collection_ref(_KEY):
        if feature is tensor:
            return ids.get(column)
    return None


def _get_tensor(values: Any) -> tf.Tensor:
    """Return the tensor that holds the values of a feature."""
    return values.flat_values if isinstance(values, tf.RaggedTensor) else values
