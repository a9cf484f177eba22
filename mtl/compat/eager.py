"""Eager execution in a process that builds graphs, for what works nowhere else.

with eager.execute_eagerly():
    converter = tf.lite.TFLiteConverter.from_saved_model(path)
"""

import contextlib

from tensorflow.python.eager import context


def execute_eagerly() -> contextlib.AbstractContextManager[None]:
    """Run operations as they are called within it."""
    return context.eager_mode()
