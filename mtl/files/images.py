"""Encoded images: whether TensorFlow can decode one, and why not.

images.explain(b"...")                                  # "" or "Unknown image file format. ..."
"""

import functools
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1

RULE = "be an image file, such as PNG or JPEG"


def explain(encoded: bytes, channels: int = 0) -> str:
    """Return why an image cannot be decoded to so many channels, or 0 for its own; "" if it can."""
    if not encoded:
        return "It is empty."
    session, given, shape = _decoder(channels)
    try:
        session.run(shape, {given: encoded})
    except tf.errors.OpError as error:
        lines = [line.strip() for line in error.message.splitlines() if line.strip()]
        # The name of the op stands before the reason, and what one can do behind it.
        found = [line for line in lines if "{{node" not in line and "[[" not in line]
        return (found or lines)[-1].partition(". Got ")[0].rstrip(".") + "."
    return ""


@functools.cache
def _decoder(channels: int) -> tuple[Any, tf.Tensor, tf.Tensor]:
    """Return a session, an input and an output that needs the input decoded."""
    # A graph of its own: callers are within another one, or in none.
    graph = tf.Graph()
    with graph.as_default():
        given = tf1.placeholder(tf.string, [])
        image = tf.io.decode_image(given, channels, expand_animations=False)
        return tf1.Session(graph=graph), given, tf.reduce_max(image)
