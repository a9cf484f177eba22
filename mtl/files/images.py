"""Decodes images, or explains why TensorFlow cannot decode them.

pixels = images.decode(encoded, channels=3)             # a string tensor -> [H, W, 3]
images.explain(b"...")                                  # "" or "Unknown image file format. ..."

A malicious file of a few kilobytes may decode to many gigabytes of pixels. So this module checks
the size in the header before it decodes an image, and refuses too many pixels.
"""

from __future__ import annotations

import functools
from typing import Any

from mtl.deferred import tf, tf1

RULE = "be an image file, such as PNG or JPEG"
MOST_PIXELS = 178_956_970
"""The most pixels of an image, or of all frames of a GIF: the limit of Pillow; 0.5 GB in RGB."""

_TOO_MANY = f"The image has more than {MOST_PIXELS:,} pixels"
# The first bytes of a file give the format and, for PNG and GIF, the size of the image.
_HEADER = 24
_PNG, _GIF, _JPEG = b"\x89PNG", b"GIF8", b"\xff\xd8\xff"
# Each frame of a GIF begins with these bytes, which may also occur elsewhere in the file.
_FRAME = "\\x00,"


def decode(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    """Decode an image, or the first frame of a GIF.

    Args:
      encoded: the bytes of a file, a string scalar.
      channels: 1 for grey, 3 for RGB, 4 for RGBA; 0 for the channels of the file.

    Returns:
      Pixels, uint8 [H, W, channels].

    Raises:
      InvalidArgumentError: when the graph runs, if the file is not an image, or the image has more
        than `MOST_PIXELS` pixels.
    """
    most = tf.constant(MOST_PIXELS, tf.int64)
    check = tf1.assert_less_equal(_count_pixels(encoded), most, message=_TOO_MANY)
    with tf.control_dependencies([check] if check is not None else []):
        return tf.io.decode_image(tf.identity(encoded), channels, expand_animations=False)


def _count_pixels(encoded: tf.Tensor) -> tf.Tensor:
    """Read the number of pixels, int64, from the header; 0 for formats with a size limit.

    A BMP has at most as many pixels as bytes. A WebP has at most 16,383 pixels per side.
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
    """Read an integer from `size` bytes of a string, starting at `place`."""
    order = range(size)[:: -1 if is_big_endian else 1]
    digits = tf.io.decode_raw(tf.strings.substr(start, place, size), tf.uint8)
    return tf.reduce_sum(tf.cast(digits, tf.int64) * [256**power for power in order])


def _count_frames(gif: tf.Tensor) -> tf.Tensor:
    """Return an upper bound for the number of frames in a GIF."""
    rest = tf.strings.regex_replace(gif, _FRAME, "")
    return tf.cast((tf.strings.length(gif) - tf.strings.length(rest)) // 2 + 1, tf.int64)


def explain(encoded: bytes, channels: int = 0) -> str:
    """Return the reason why an image cannot be decoded; "" if it can be decoded.

    Args:
      encoded: the bytes of a file.
      channels: the number of channels to decode, as for `decode`.
    """
    if not encoded:
        return "It is empty."
    session, placeholder, result = _build_decoder(channels)
    try:
        session.run(result, {placeholder: encoded})
    except tf.errors.OpError as error:
        if _TOO_MANY in error.message:
            return f"{_TOO_MANY}."
        lines = [line.strip() for line in error.message.splitlines() if line.strip()]
        # The message holds the name of an op, then the reason, and then advice.
        reasons = [line for line in lines if "{{node" not in line and "[[" not in line]
        return (reasons or lines)[-1].partition(". Got ")[0].rstrip(".") + "."
    return ""


@functools.cache
def _build_decoder(channels: int) -> tuple[Any, tf.Tensor, tf.Tensor]:
    """Return a session, its input, and an output that decodes the input."""
    # Use a separate graph, because callers may be building a graph.
    graph = tf.Graph()
    with graph.as_default():
        encoded = tf1.placeholder(tf.string, [])
        return tf1.Session(graph=graph), encoded, tf.reduce_max(decode(encoded, channels))
