"""Summaries that your networks and heads make with `tf1.summary`, for TensorBoard.

summary = summaries.take_summaries()              # of the step that was just built, or None
with summaries.drop_summaries(): ...           # a second pass writes no summaries

with summaries.collect_due() as due: ...       # serialized summaries of some steps
summaries.add_due(summary)                     # adds one; "" in all other steps

If a batch goes in slices or on replicas, a run writes the summaries of the first slice only. A call
of several steps makes summaries in every step, due or not, so large images slow down each step.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from mtl import ambient
from mtl.deferred import tf, tf1
from mtl.tf_internals import functions

_log = logging.getLogger(__name__)

_KINDS = (
    "AudioSummary",
    "HistogramSummary",
    "ImageSummary",
    "ScalarSummary",
    "TensorSummary",
    "TensorSummaryV2",
)


def take_summaries() -> tf.Tensor | None:
    """Merge the graph's summaries into a string scalar, and empty their collection.

    TensorFlow would merge them outside of the loop over steps, which cannot read them. Summaries in
    a branch, a loop or a `tf.function` of the step cannot be read either: a warning names them.
    """
    collection = tf1.get_collection_ref(tf1.GraphKeys.SUMMARIES)
    found, here = list(collection), tf1.get_default_graph()
    collection.clear()
    made = [tensor for tensor in found if tensor.graph is here]
    hidden = [tensor.op.name for tensor in found if tensor.graph is not here]
    called = functions.called_operations(here)
    hidden += [operation.name for operation in called if operation.type in _KINDS]
    if hidden:
        where, names = "a branch, a loop or a tf.function", ", ".join(dict.fromkeys(hidden))
        _log.warning("Made in %s, and so not written: summary %s", where, names)
    return tf1.summary.merge(made, collections=[]) if made else None


@contextlib.contextmanager
def drop_summaries() -> Iterator[None]:
    """Drop the summaries that are made within the context."""
    collection = tf1.get_collection_ref(tf1.GraphKeys.SUMMARIES)
    before = list(collection)
    try:
        yield
    finally:
        collection[:] = before


@contextlib.contextmanager
def collect_due() -> Iterator[list[tf.Tensor]]:
    """Yield a list of the string scalars that `add_due` adds within the context."""
    found: list[tf.Tensor] = []
    with _DUE.set(found):
        yield found


def add_due(summary: tf.Tensor) -> None:
    """Add a serialized summary of the step that is being built, a string scalar."""
    found = _DUE.get()
    if found is not None:
        found.append(summary)


_DUE: ambient.Ambient[list[tf.Tensor] | None] = ambient.Ambient("due summaries", default=None)
