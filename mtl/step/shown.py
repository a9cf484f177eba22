"""Values within a model that predictions show on request, beside the predictions of heads.

with shown.show_values(True):                            # the caller asks for the values
    ...
    shown.add("attention", weights)                      # a part adds its values: [B, ...]
predictions = {**predictions, **shown.take()}            # {"clicks/attention": ...}
"""

from __future__ import annotations

import contextlib

from mtl import ambient
from mtl.deferred import tf, tf1

_COLLECTION = "mtl_shown"


def show_values(is_asked: bool = True) -> contextlib.AbstractContextManager[bool]:
    """Let predictions show the values that parts add within the context."""
    return _IS_ASKED.set(is_asked)


def add(name: str, values: tf.Tensor) -> None:
    """Show values [B, ...] as `<scope>/<name>`, without the `features/` of a column's scope."""
    if _IS_ASKED.get():
        scope = tf1.get_variable_scope().name.removeprefix("features/")
        tf1.add_to_collection(_COLLECTION, (f"{scope}/{name}", values))


def take() -> dict[str, tf.Tensor]:
    """Return and forget all values that were added to the graph."""
    collection = tf1.get_collection_ref(_COLLECTION)
    found = dict(collection)
    collection.clear()
    return found


_IS_ASKED = ambient.Ambient("shown", default=False)
