"""Random changes of images in training, drawn anew for each image in each step.

from mtl.features import augmentations
features.Image.augmentations = [
    @augmentations.Flip(), @augmentations.Crop(), @augmentations.Cutout()]
augmentations.Crop.padding = 4
augmentations.Cutout.size = 8

Augmentations get pixels in [0, 1], after the division by `Image.greatest` and before the
normalisation. The augmentations are applied in the order of the list.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf

# The weights of red, green and blue in `tf.image.rgb_to_grayscale`.
_GREY = (0.2989, 0.587, 0.114)
_DIRECTIONS = {"horizontal": 2, "vertical": 1}


@checks.dataclass
class Flip(types.Augmentation):
    """Mirrors random images, either left to right or top to bottom.

    A. Krizhevsky, I. Sutskever, G. E. Hinton, "ImageNet Classification with Deep Convolutional
    Neural Networks", 2012. Do not use `Flip` for digits or letters, because a mirrored b looks like
    a d.

    Attributes:
      rate: the probability that an image is mirrored, in (0, 1].
      direction: "horizontal" swaps left and right; "vertical" swaps top and bottom.
    """

    rate: Annotated[float, _check_share] = 0.5
    direction: Annotated[str, checks.OneOf(_DIRECTIONS)] = "horizontal"

    num_draws = 1

    def __call__(self, pixels: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
        """Mirror images [B, H, W, C] by random numbers [B, 1]."""
        mirror_images = tf.reverse(pixels, [_DIRECTIONS[self.direction]])
        return tf.where(_spread_values(draws[:, 0] < self.rate), mirror_images, pixels)


@checks.dataclass
class Crop(types.Augmentation):
    """Shifts an image at random: pads all sides, then crops to the original size.

    The shift in each direction is a whole number of pixels, drawn uniformly from [-padding,
    padding]. K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", 2016,
    arXiv:1512.03385, pad CIFAR's images of 32 x 32 pixels by 4.

    Attributes:
      padding: the number of pixels that are added on each side; above 0, and below the height and
        the width of the image.
      fill: the value of the added pixels, in [0, 1]; 0 is black.
    """

    padding: checks.Count = 4
    fill: Annotated[float, _check_fill] = 0.0

    num_draws = 2

    def __call__(self, pixels: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
        """Shift images [B, H, W, C] by random numbers [B, 2]."""
        _check_size("Crop.padding", self.padding, pixels)
        _, height, width, _ = pixels.shape
        shifts = _draw_whole(draws, 2 * self.padding + 1) - self.padding
        # The source row and the source column of each pixel; outside of the image, `fill` is used.
        rows = tf.range(height) - shifts[:, :1]  # [B, H]
        columns = tf.range(width) - shifts[:, 1:]  # [B, W]
        crops = tf.gather(pixels, tf.clip_by_value(rows, 0, height - 1), batch_dims=1, axis=1)
        crops = tf.gather(crops, tf.clip_by_value(columns, 0, width - 1), batch_dims=1, axis=2)
        is_inside = (
            _is_within(rows, height)[:, :, tf.newaxis]
            & (_is_within(columns, width)[:, tf.newaxis, :])
        )
        return tf.where(is_inside[..., tf.newaxis], crops, self.fill)


@checks.dataclass
class Cutout(types.Augmentation):
    """Blanks a square around a random pixel; a part of the square may lie outside of the image.

    T. DeVries, G. W. Taylor, "Improved Regularization of Convolutional Neural Networks with
    Cutout", 2017, arXiv:1708.04552. The paper normalises images first, and fills the square with 0,
    which is then the mean pixel value. To reproduce the paper, set `fill` to the mean pixel value.

    Attributes:
      size: the side of the square in pixels; below the height and the width of the image.
      fill: the value of the blanked pixels, in [0, 1]; 0 is black.
    """

    size: checks.Count = 8
    fill: Annotated[float, _check_fill] = 0.0

    num_draws = 2
    moves_pixels = False

    def __call__(self, pixels: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
        """Blank a square of each image [B, H, W, C] by random numbers [B, 2]."""
        _check_size("Cutout.size", self.size, pixels)
        _, height, width, _ = pixels.shape
        # The square begins `size // 2` pixels above and to the left of a random pixel. If `size` is
        # even, the square has one pixel fewer below and to the right of the random pixel.
        top = _draw_whole(draws[:, :1], height) - self.size // 2
        left = _draw_whole(draws[:, 1:], width) - self.size // 2
        rows = _is_within(tf.range(height) - top, self.size)  # [B, H]
        columns = _is_within(tf.range(width) - left, self.size)  # [B, W]
        is_cut = rows[:, :, tf.newaxis] & columns[:, tf.newaxis, :]
        return tf.where(is_cut[..., tf.newaxis], self.fill, pixels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColorJitter(types.Augmentation):
    """Changes brightness, contrast, saturation and hue of each image, in this order.

    For a setting s of brightness, contrast or saturation, a factor f is drawn uniformly from
    [max(0, 1 - s), 1 + s], and the changed pixels are clipped to [0, 1]. Brightness multiplies
    pixels by f. Contrast replaces a pixel x by `f x + (1 - f) m`, with the random factor f and the
    mean m of the grey image. Saturation replaces a pixel x by `f x + (1 - f) grey(x)`, with the
    random factor f. Hue rotates all colours on the colour circle by a random fraction in [-hue,
    hue]. A. G. Howard, "Some Improvements on Deep Convolutional Neural Network Based Image
    Classification", 2013, arXiv:1312.5402.

    Attributes:
      brightness: the largest change of the brightness factor from 1, at least 0; 0 changes nothing.
      contrast: the largest change of the contrast factor from 1, at least 0; 0 changes nothing.
      saturation: the largest change of the saturation factor from 1, at least 0; a value above 0
        requires RGB images.
      hue: the largest turn of the colour circle, in [0, 0.5]; a value above 0 requires RGB images.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    num_draws = 4
    moves_pixels = False

    def __post_init__(self):
        settings = {
            name: getattr(self, name) for name in ("brightness", "contrast", "saturation", "hue")
        }
        for name, value in settings.items():
            checks.at_least(f"ColorJitter.{name}", value, 0)
        checks.require(self.hue <= 0.5, "ColorJitter.hue", "be at most 0.5", self.hue)
        rule = "have a setting above 0"
        checks.require(any(settings.values()), "ColorJitter", rule, settings)

    def __call__(self, pixels: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
        """Change the colours of images [B, H, W, C] by random numbers [B, 4]."""
        for name in ("saturation", "hue"):
            is_coloured = not getattr(self, name) or pixels.shape[3] == 3
            rule = "be 0 unless images have three channels"
            checks.require(is_coloured, f"ColorJitter.{name}", rule, getattr(self, name))
        draws = draws[:, :, tf.newaxis, tf.newaxis, tf.newaxis]
        if self.brightness:
            pixels = _blend_pixels(pixels, tf.zeros([]), self.brightness, draws[:, 0])
        if self.contrast:
            mean = tf.reduce_mean(_find_grey(pixels), axis=[1, 2, 3], keepdims=True)
            pixels = _blend_pixels(pixels, mean, self.contrast, draws[:, 1])
        if self.saturation:
            pixels = _blend_pixels(pixels, _find_grey(pixels), self.saturation, draws[:, 2])
        if self.hue:
            hue, *saturation_and_value = tf.unstack(tf.image.rgb_to_hsv(pixels), axis=-1)
            hue = tf.math.floormod(hue + self.hue * (2 * draws[:, 3, :, :, 0] - 1), 1.0)
            pixels = tf.image.hsv_to_rgb(tf.stack([hue, *saturation_and_value], axis=-1))
        return pixels


def _blend_pixels(
    pixels: tf.Tensor, other: tf.Tensor, spread: float, shares: tf.Tensor
) -> tf.Tensor:
    """Return `f pixels + (1 - f) other`, in [0, 1]; f is computed from `shares` in [0, 1)."""
    lowest = max(0.0, 1 - spread)
    factors = lowest + (1 + spread - lowest) * shares
    return tf.clip_by_value(factors * pixels + (1 - factors) * other, 0.0, 1.0)


def _find_grey(pixels: tf.Tensor) -> tf.Tensor:
    """Convert images to grey, [B, H, W, 1]; without three channels, average the channels."""
    if pixels.shape[3] == 3:
        return tf.reduce_sum(pixels * tf.constant(_GREY), axis=-1, keepdims=True)
    return tf.reduce_mean(pixels, axis=-1, keepdims=True)


def _draw_whole(draws: tf.Tensor, count: int) -> tf.Tensor:
    """Convert random numbers in [0, 1) to integers in [0, count)."""
    # For a random number just below 1, rounding may make its product with `count` equal to `count`.
    return tf.minimum(tf.cast(draws * count, tf.int32), count - 1)


def _is_within(places: tf.Tensor, size: int) -> tf.Tensor:
    return (places >= 0) & (places < size)


def _spread_values(values: tf.Tensor) -> tf.Tensor:
    """Reshape one value per image, [B], to [B, 1, 1, 1]."""
    return values[:, tf.newaxis, tf.newaxis, tf.newaxis]


def _check_share(where: str, value: float) -> None:
    checks.positive(where, value)
    checks.require(value <= 1, where, "be at most 1", value)


def _check_fill(where: str, value: float) -> None:
    checks.at_least(where, value, 0)
    checks.require(value <= 1, where, "be at most 1", value, "Pixels are in [0, 1] here.")


def _check_size(where: str, value: int, pixels: tf.Tensor) -> None:
    _, height, width, _ = pixels.shape
    checks.require(value < min(height, width), where, f"be below {height} and {width}", value)
