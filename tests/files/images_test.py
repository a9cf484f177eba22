"""Images of so many pixels that they are not decoded, and others, which are."""

import struct
import zlib

import pytest
import tensorflow as tf

from mtl.files import images


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, data=b""):
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data)


def gif(width, height, frames):
    size = struct.pack("<HH", width, height)
    frame = b"," + bytes(4) + size + b"\0\2\1\0\0"
    return b"GIF89a" + size + b"\x80\0\0" + bytes(6) + frame * frames + b";"


def jpeg(width, height):
    frame = struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0"
    scan = b"\xff\xda\0\x08\1\1\0\0\x3f\0"
    return b"\xff\xd8\xff\xc0" + struct.pack(">H", len(frame) + 2) + frame + scan + b"\xff\xd9"


TOO_MANY = "The image has more than 178,956,970 pixels."
SIDE = 13_377  # Squared it is just below.


@pytest.mark.medium
@pytest.mark.parametrize(
    ("encoded", "is_refused"),
    [
        (png(50_000, 50_000), True),
        (png(SIDE + 1, SIDE + 1), True),
        (png(2**31 - 1, 2**31 - 1), True),
        (gif(65_535, 65_535, 1), True),
        (gif(5_000, 5_000, 8), True),
        (gif(5_000, 5_000, 4), False),
        (jpeg(60_000, 60_000), True),
        (jpeg(SIDE, SIDE)[:12], False),
        (b"\x89PN", False),
        (b"GIF8", False),
        (b"\xff\xd8\xff", False),
        (b"no image", False),
    ],
)
def test_too_many_pixels_are_refused_before_they_are_decoded(encoded, is_refused):
    """The files are a few bytes: none of these is decoded, whatever it says."""
    told = images.explain(encoded, 3)
    assert told and (told == TOO_MANY) == is_refused, told
    # As in a graph, so at once: where statistics are taken.
    with pytest.raises(tf.errors.InvalidArgumentError) as error, tf.init_scope():
        images.decode(tf.constant(encoded), 3)
    assert (TOO_MANY[:-1] in str(error.value)) == is_refused


def test_others_are_decoded_as_before():
    pixels = tf.zeros([3, 5, 3], tf.uint8) + tf.constant([1, 2, 3], tf.uint8)
    for encode in (tf.io.encode_png, tf.io.encode_jpeg):
        encoded = encode(pixels)
        assert not images.explain(encoded.numpy(), 3)
        expected = tf.io.decode_image(encoded, 3, expand_animations=False)
        assert (images.decode(encoded, 3).numpy() == expected.numpy()).all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("encode", [tf.io.encode_jpeg, tf.io.encode_png])
def test_pixels_are_counted_once_whatever_their_colours(encode, channels):
    encoded = encode(tf.zeros([4, 5, channels], tf.uint8))
    assert images._count_pixels(encoded).numpy() == 20
