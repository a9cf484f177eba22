"""Encoded images: their pixels, whether TensorFlow can decode one, and why not.

pixels = images.decode(encoded, channels=3)             # [H, W, 3], of a text in the graph
images.explain(b"...")                                  # "" or "Unknown image file format. ..."

A file of some kilobytes may hold pixels of many gigabytes. So many are refused before they are
decoded, by the sizes that the file tells.
"""

import functools
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1

RULE = "be an image file, such as PNG or JPEG"
MOST_PIXELS = 178_956_970
"""Of one image, all frames of a GIF together: what Pillow opens, and 0.5 GB of colours."""

_TOO_MANY = f"The image has more than {MOST_PIXELS:,} pixels"
# How files begin; all sizes stand in as many bytes as this, or are looked for by TensorFlow.
_HEADER = 24
_PNG, _GIF, _JPEG = b"\x89PNG", b"GIF8", b"\xff\xd8\xff"
# So begins each frame of a GIF, behind the end of what comes before; other bytes may be equal.
_FRAME = "\\x00,"


def decode(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    """Decode the text of one image, or the first frame of a GIF, to [H, W, channels].

    Raises:
      InvalidArgumentError: when run, if it is no image, or has more than `MOST_PIXELS`.
    """
    most = tf.constant(MOST_PIXELS, tf.int64)
    check = tf1.assert_less_equal(_count_pixels(encoded), most, message=_TOO_MANY)
    with tf.control_dependencies([check] if check is not None else []):
        return tf.io.decode_image(tf.identity(encoded), channels, expand_animations=False)


def _count_pixels(encoded: tf.Tensor) -> tf.Tensor:
    """Return how many pixels a file says that it has, int64; 0 for what is bounded anyway.

    A BMP has as many as its bytes, and a WebP at most 16,383 a side.
    """
    start = tf.strings.join([tf.strings.substr(encoded, 0, _HEADER), "\0" * _HEADER])
    sizes = [
        (_PNG, lambda: _read(start, 16, 4, True) * _read(start, 20, 4, True)),
        (_GIF, lambda: _count_frames(encoded) * _read(start, 6, 2) * _read(start, 8, 2)),
        (_JPEG, lambda: tf.reduce_prod(tf.image.extract_jpeg_shape(encoded, tf.int64)[:2])),
    ]
    cases = [
        (tf.equal(tf.strings.substr(start, 0, len(kind)), kind), count) for kind, count in sizes
    ]
    return tf.case(cases, default=lambda: tf.constant(0, tf.int64))


def _read(start: tf.Tensor, place: int, size: int, is_big_endian: bool = False) -> tf.Tensor:
    """Return the whole number in so many bytes of a text."""
    order = range(size)[:: -1 if is_big_endian else 1]
    found = tf.io.decode_raw(tf.strings.substr(start, place, size), tf.uint8)
    return tf.reduce_sum(tf.cast(found, tf.int64) * [256**power for power in order])


def _count_frames(gif: tf.Tensor) -> tf.Tensor:
    """Return how many frames a GIF has at most."""
    rest = tf.strings.regex_replace(gif, _FRAME, "")
    return tf.cast((tf.strings.length(gif) - tf.strings.length(rest)) // 2 + 1, tf.int64)


def explain(encoded: bytes, channels: int = 0) -> str:
    """Return why an image cannot be decoded to so many channels, or 0 for its own; "" if it can."""
    if not encoded:
        return "It is empty."
    session, given, shape = _decoder(channels)
    try:
        session.run(shape, {given: encoded})
    except tf.errors.OpError as error:
        if _TOO_MANY in error.message:
            return f"{_TOO_MANY}."
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
        return tf1.Session(graph=graph), given, tf.reduce_max(decode(given, channels))
