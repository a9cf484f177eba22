"""Scalars for people to watch, from code that does not return them, such as networks.

monitors.add("gate/income/entropy", entropy)         # while a training step is being built
values = monitors.take()                             # {name: scalar} of the step that was built
"""

import tensorflow as tf

tf1 = tf.compat.v1

COLLECTION = "mtl_monitors"


def add(name: str, value: tf.Tensor) -> None:
    """Have the training step that is being built show a scalar under this name."""
    tf1.add_to_collection(COLLECTION, (name, value))


def take() -> dict[str, tf.Tensor]:
    """Return what was added since the last call, and forget it.

    Of a batch in slices it is that of the first slice, and on replicas each has its own.
    """
    collection = tf1.get_collection_ref(COLLECTION)
    found = dict(collection)
    collection.clear()
    return found
