"""What `tf1.summary` makes in networks and heads of one's own, on its way to TensorBoard.

summary = summaries.take_summaries()              # of the step that was just built, or None
with summaries.drop_summaries(): ...           # what is built anew beside a step tells nothing more

with summaries.collect_due() as due: ...       # serialized summaries that are made at some steps
summaries.add_due(summary)                     # by what makes them; "" where it is not due

If a batch goes in slices or on replicas, a run writes the summaries of the first slice only. A call
of several steps makes summaries in every step, due or not, so large images slow down each step.
"""

import contextlib
import logging
from collections.abc import Iterator

import tensorflow as tf

from mtl import ambient
from mtl.compat import functions

tf1 = tf.compat.v1
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
    """Return all that was made, as a string scalar, and take it out of the graph's collection.

    TensorFlow would merge it outside of the loop over steps, where it cannot be read. What lies in
    a branch, a loop or a `tf.function` within the step cannot be read here: it is told of once.
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
    """Drop the summaries that are made within it."""
    collection = tf1.get_collection_ref(tf1.GraphKeys.SUMMARIES)
    before = list(collection)
    try:
        yield
    finally:
        collection[:] = before


@contextlib.contextmanager
def collect_due() -> Iterator[list[tf.Tensor]]:
    """Yield what `add_due` adds within it: string scalars."""
    found: list[tf.Tensor] = []
    with _DUE.set(found):
        yield found


def add_due(summary: tf.Tensor) -> None:
    """Add a serialized summary of the step that is being built, a string scalar."""
    found = _DUE.get()
    if found is not None:
        found.append(summary)


_DUE: ambient.Ambient[list[tf.Tensor] | None] = ambient.Ambient("due summaries", default=None)
