"""Each augmentation against an independent computation, image by image, from the same draws."""

import colorsys

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features
from mtl.features import augmentations

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.random((40, 7, 6, 3)).astype(np.float32)
DRAWS = RANDOM.random((40, 4)).astype(np.float32)


def _change(part, pixels=PIXELS, draws=DRAWS):
    return part(tf.constant(pixels), tf.constant(draws[:, : part.num_draws])).numpy()


def test_flip_mirrors_the_share_of_images_that_draw_below_its_rate():
    for direction, axis in (("horizontal", 1), ("vertical", 0)):
        part = augmentations.Flip(rate=0.3, direction=direction)
        flipped = 0
        for image, drawn, changed in zip(PIXELS, DRAWS, _change(part), strict=True):
            flipped += drawn[0] < 0.3
            expected = np.flip(image, axis) if drawn[0] < 0.3 else image
            np.testing.assert_array_equal(changed, expected)
        assert 0 < flipped < len(PIXELS)
    always = _change(augmentations.Flip(rate=1))
    np.testing.assert_array_equal(always, PIXELS[:, :, ::-1])


def test_crop_cuts_the_images_size_out_of_the_padded_image():
    padding, seen = 2, set()
    changed = _change(augmentations.Crop(padding=padding, fill=0.25))
    wide = [(padding, padding), (padding, padding), (0, 0)]
    for image, drawn, actual in zip(PIXELS, DRAWS, changed, strict=True):
        padded = np.pad(image, wide, constant_values=0.25)
        # A shift down by one shows what lies one row above.
        down, right = (int(number * 5) - padding for number in drawn[:2])
        seen.add((down, right))
        top, left = padding - down, padding - right
        np.testing.assert_array_equal(actual, padded[top : top + 7, left : left + 6])
    assert {down for down, _ in seen} == {right for _, right in seen} == {-2, -1, 0, 1, 2}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_cutout_blanks_a_square_around_any_pixel(size):
    changed = _change(augmentations.Cutout(size=size, fill=0.5))
    areas = set()
    for image, drawn, actual in zip(PIXELS, DRAWS, changed, strict=True):
        top, left = int(drawn[0] * 7) - size // 2, int(drawn[1] * 6) - size // 2
        expected = image.copy()
        rows, columns = slice(max(top, 0), top + size), slice(max(left, 0), left + size)
        expected[rows, columns] = 0.5
        areas.add((expected == 0.5).all(-1).sum())
        np.testing.assert_array_equal(actual, expected)
    assert max(areas) == size * size
    assert size == 1 or min(areas) < size * size  # Some lie partly outside.


def _factor(spread, drawn):
    least = max(0, 1 - spread)
    return least + (1 + spread - least) * np.float64(drawn)


def _jitter(image, drawn, brightness, contrast, saturation, hue):
    """Change an image [H, W, 3] pixel by pixel."""

    def grey(image):
        return image @ [0.2989, 0.587, 0.114]

    image = np.clip(image * _factor(brightness, drawn[0]), 0, 1)
    factor = _factor(contrast, drawn[1])
    image = np.clip(factor * image + (1 - factor) * grey(image).mean(), 0, 1)
    factor = _factor(saturation, drawn[2])
    image = np.clip(factor * image + (1 - factor) * grey(image)[..., np.newaxis], 0, 1)
    for place in np.ndindex(image.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*image[place])
        image[place] = colorsys.hsv_to_rgb((h + hue * (2 * np.float64(drawn[3]) - 1)) % 1, s, v)
    return image


@pytest.mark.parametrize(
    "settings",
    [(0.4, 0.0, 0.0, 0.0), (0.0, 0.4, 0.0, 0.0), (0.0, 0.0, 1.5, 0.0), (0.0, 0.0, 0.0, 0.5)]
    + [(0.3, 0.4, 0.5, 0.1)],
)
def test_color_jitter_equals_a_computation_pixel_by_pixel(settings):
    names = ("brightness", "contrast", "saturation", "hue")
    changed = _change(augmentations.ColorJitter(**dict(zip(names, settings, strict=True))))
    for image, drawn, actual in zip(PIXELS, DRAWS, changed, strict=True):
        expected = _jitter(image.astype(np.float64), drawn, *settings)
        np.testing.assert_allclose(actual, expected, atol=2e-5)
    assert np.abs(changed - PIXELS).max() > 0.05


def test_contrast_of_images_of_one_channel_turns_around_their_mean():
    grey = PIXELS[..., :1]
    changed = _change(augmentations.ColorJitter(contrast=0.5), grey)
    for image, drawn, actual in zip(grey, DRAWS, changed, strict=True):
        factor = 0.5 + drawn[1]
        expected = np.clip(factor * image + (1 - factor) * image.mean(), 0, 1)
        np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_draws_just_below_one_stay_inside():
    last = np.full([1, 4], np.nextafter(np.float32(1), np.float32(0)))
    cropped = _change(augmentations.Crop(padding=3), PIXELS[:1], last)[0]
    np.testing.assert_array_equal(cropped[3:, 3:], PIXELS[0, :4, :3])
    cut = _change(augmentations.Cutout(size=1, fill=0.5), PIXELS[:1], last)[0]
    assert (cut[6, 5] == 0.5).all() and (cut == 0.5).sum() == 3


@pytest.mark.parametrize(
    "part, pixels, message",
    [
        (augmentations.Crop(padding=6), PIXELS, "Crop.padding must be below 7 and 6, got 6"),
        (augmentations.Cutout(size=6), PIXELS, "Cutout.size must be below 7 and 6, got 6"),
        (
            augmentations.ColorJitter(saturation=0.1),
            PIXELS[..., :1],
            "ColorJitter.saturation must be 0 unless images have three channels, got 0.1",
        ),
        (augmentations.ColorJitter(hue=0.1), PIXELS[..., :2], "ColorJitter.hue must be 0"),
    ],
)
def test_images_that_a_part_does_not_suit_are_refused(part, pixels, message):
    with pytest.raises(checks.UserError) as error:
        _change(part, pixels)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: augmentations.Flip(rate=0), "Flip.rate must be above 0"),
        (lambda: augmentations.Flip(rate=1.1), "Flip.rate must be at most 1"),
        (lambda: augmentations.Flip(direction="verical"), "Did you mean 'vertical'?"),
        (lambda: augmentations.Crop(padding=0), "Crop.padding must be at least 1"),
        (lambda: augmentations.Crop(fill=128), "Pixels are in [0, 1] here."),
        (lambda: augmentations.Cutout(size=1.5), "Cutout.size must be a whole number"),
        (lambda: augmentations.ColorJitter(), "ColorJitter must have a setting above 0"),
        (lambda: augmentations.ColorJitter(hue=0.6), "ColorJitter.hue must be at most 0.5"),
        (lambda: augmentations.ColorJitter(contrast=-1), "ColorJitter.contrast must be at least 0"),
        (
            lambda: features.Image(names=["x"], augmentations=[augmentations.Flip]),
            "Image.augmentations must be a part such as @augmentations.Flip()",
        ),
        (
            lambda: features.Image(names=["x"], augmentations=augmentations.Flip()),
            "Image.augmentations must be a list",
        ),
    ],
)
def test_settings_are_checked_at_construction(make, message):
    with pytest.raises(checks.UserError) as error:
        make()
    assert message in str(error.value)
