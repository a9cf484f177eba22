"""Values within a model that predictions show beside those of its heads, where that is asked for.

with shown.show_values(True):                            # by who asks for it
    ...
    shown.add("attention", weights)                      # by who computes it: [B, ...]
predictions = {**predictions, **shown.take()}            # {"clicks/attention": ...}
"""

import contextlib

import tensorflow as tf

from mtl import ambient

tf1 = tf.compat.v1

_COLLECTION = "mtl_shown"


def show_values(is_asked: bool = True) -> contextlib.AbstractContextManager[bool]:
    """Have predictions show what is added within it."""
    return _IS_ASKED.set(is_asked)


def add(name: str, values: tf.Tensor) -> None:
    """Show values [B, ...] as `<scope>/<name>`, without the `features/` of a column's scope."""
    if _IS_ASKED.get():
        scope = tf1.get_variable_scope().name.removeprefix("features/")
        tf1.add_to_collection(_COLLECTION, (f"{scope}/{name}", values))


def take() -> dict[str, tf.Tensor]:
    """Return what was added to the graph, and forget it."""
    collection = tf1.get_collection_ref(_COLLECTION)
    found = dict(collection)
    collection.clear()
    return found


_IS_ASKED = ambient.Ambient("shown", default=False)
