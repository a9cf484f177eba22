import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features

_PIXELS = np.random.default_rng(0).integers(0, 256, (5, 6, 4, 3)).astype(np.uint8)


def test_unit_divides_by_the_greatest_value(encode):
    encoded = encode([features.Image(names=["x"])], {"x": _PIXELS})["image_x"]
    np.testing.assert_allclose(encoded, _PIXELS / 255, rtol=1e-6)
    column = features.Image(names=["x"], greatest=16)
    grey = encode([column], {"x": _PIXELS[..., 0] % 17})["image_x"]
    np.testing.assert_allclose(grey, _PIXELS[..., :1] % 17 / 16, rtol=1e-6)


def test_z_score_is_per_channel_of_the_training_split(encode):
    column = features.Image(names=["x"], normalization="z_score")
    encoded = encode([column], {"x": _PIXELS}, {"x": _PIXELS[:2]})["image_x"]
    flat = (_PIXELS / 255).reshape(-1, 3)
    expected = (_PIXELS[:2] / 255 - flat.mean(0)) / flat.std(0)
    np.testing.assert_allclose(encoded, expected, rtol=1e-4, atol=1e-5)


def test_per_image_leaves_mean_zero_and_variance_one(encode):
    column = features.Image(names=["x"], normalization="per_image")
    encoded = encode([column], {"x": _PIXELS})["image_x"].reshape(5, -1)
    np.testing.assert_allclose(encoded.mean(1), 0, atol=1e-5)
    np.testing.assert_allclose(encoded.std(1), 1, rtol=1e-4)


def test_encoded_images_give_their_pixels(encode):
    encoded_png = np.array([tf.io.encode_png(image).numpy() for image in _PIXELS], object)
    columns = [
        features.Image(names=["x"], shape=(6, 4, 3)),
        features.Image(names=["x"], shape=(6, 4, 3), normalization="z_score", prefix="scaled"),
    ]
    encoded = encode(columns, {"x": encoded_png})
    np.testing.assert_allclose(encoded["image_x"], _PIXELS / 255, rtol=1e-6)
    np.testing.assert_allclose(encoded["scaled_x"].reshape(-1, 3).std(0), 1, rtol=1e-4)


def test_encoded_images_of_any_size_are_scaled(encode):
    constant = np.full((9, 7, 3), 51, np.uint8)
    encoded_jpeg = np.array([tf.io.encode_jpeg(constant, quality=100).numpy()], object)
    column = features.Image(names=["x"], shape=(3, 2, 1))
    encoded = encode([column], {"x": encoded_jpeg})["image_x"]
    assert encoded.shape == (1, 3, 2, 1)
    np.testing.assert_allclose(encoded, 51 / 255, atol=0.01)


def test_strings_without_a_shape_and_vectors_are_refused(encode):
    with pytest.raises(checks.UserError, match="Image.shape must be"):
        encode([features.Image(names=["x"])], {"x": np.array(["a"])})
    with pytest.raises(checks.UserError, match="Image.names must name fields of shape"):
        encode([features.Image(names=["x"])], {"x": np.zeros([2, 3])})


def test_pixels_have_the_shape_of_their_field(encode):
    pixels = {"x": np.zeros([2, 4, 4], np.uint8)}
    assert encode([features.Image(names=["x"], shape=(4, 4, 1))], pixels)["image_x"].shape[1:] == (
        (4, 4, 1)
    )
    message = r"Image.shape must be that of field 'x', or None for pixels, got \[8, 8, 1\]"
    with pytest.raises(checks.UserError, match=message):
        encode([features.Image(names=["x"], shape=(8, 8, 1))], pixels)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"normalization": "zscore"}, "Did you mean 'z_score'?"),
        ({"greatest": 0}, "Image.greatest must be above 0"),
        ({"shape": (8, 8)}, "Image.shape must be (height, width, channels)"),
        ({"shape": 8}, "Image.shape must be (height, width, channels)"),
    ],
)
def test_settings_are_checked_at_construction(settings, message):
    with pytest.raises(checks.UserError) as error:
        features.Image(names=["x"], **settings)
    assert message in str(error.value)
