"""A column for images, from pixels or from encoded files such as PNG.

features.Image.names = ["photo"]
features.Image.shape = (64, 64, 3)              # the size of decoded PNG or JPEG strings
features.Image.normalization = "z_score"
features.Image.augmentations = [@augmentations.Flip()]   # only in training
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from mtl import checks, types
from mtl.deferred import tf
from mtl.features import accumulators, column
from mtl.files import images
from mtl.step import draws

_NORMALIZATIONS = ("unit", "z_score", "per_image")


def _check_shape(where: str, shape: Any) -> None:
    rule = "be (height, width, channels)"
    checks.is_a(where, shape, (list, tuple), rule)
    fits = len(shape) == 3 and all(isinstance(n, int) and n > 0 for n in shape)
    checks.require(fits, where, rule, shape)


@checks.dataclass
class Image(column.PerField):
    """Normalises images, which are numbers [B, H, W] or [B, H, W, C], or encoded strings [B].

    Attributes:
      names: the names of the image fields.
      normalization: how pixels are normalised. "unit" divides pixels by the setting `greatest`.
        "z_score" also subtracts the mean of the channel over the training split, and divides by the
        standard deviation. "per_image" normalises each image by its own mean and standard deviation
        (at least 1 / sqrt(H W C)), which removes differences in contrast between images.
      greatest: the largest value that a pixel can have; 255 suits uint8.
      shape: the shape (H, W, C) to which encoded images are scaled; None if the field holds pixels.
      augmentations: random changes of training images, such as `augmentations.Flip`, which are
        applied in turn before the normalisation. Statistics are computed from unchanged images.
      prefix: the start of the column's name, `<prefix>_<field>`.
    """

    normalization: Annotated[str, checks.OneOf(_NORMALIZATIONS)] = "unit"
    greatest: checks.Positive = 255.0
    shape: Annotated[Sequence[int], _check_shape] | None = None
    augmentations: Annotated[
        Sequence[types.Augmentation], checks.Is((list, tuple), "be a list")
    ] = ()
    prefix: str = "image"

    def __post_init__(self):
        super().__post_init__()

        for part in self.augmentations:
            where, example = "Image.augmentations", "augmentations.Flip"
            checks.require_part(where, part, example, arguments=2, attributes=["num_draws"])

    @property
    def reads_files(self) -> bool:
        """True: a string field of this column holds the bytes of image files."""
        return True

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return {column: accumulator of the moments of each channel}."""
        if self.normalization != "z_score":
            return {}
        return {
            output: accumulators.Moments(
                source=f"channels of {field} / {self.greatest}",
                read=functools.partial(self._read_channels, field=field),
            )
            for output, (field,) in self.columns.items()
        }

    def check(self, features: Mapping[str, types.PythonValue]) -> str | None:
        """Return an error message if an image of a record cannot be decoded; otherwise None."""
        channels = self.shape[2] if self.shape is not None else 0
        for field in self.names:
            image = features.get(field)
            if not isinstance(image, bytes):
                continue
            if reason := images.explain(image, channels):
                rule = f"{images.RULE}, of {channels} channels"
                return f"field {field!r} must {rule}, got {len(image)} bytes. {reason}"
        return None

    def _encode(
        self, features: types.Tensors, field: str, output: str, fitted: types.Statistics
    ) -> tf.Tensor:
        """Encode pixels [B, H, W] or [B, H, W, C], or strings [B], as [B, H, W, C]."""
        return self._normalise(self.pixels(features, field), output, fitted)

    def encode_training(self, features: types.Tensors, fitted: types.Statistics) -> types.Tensors:
        """Augment and encode images, {field: [B, ...]}, as {column: [B, H, W, C]}."""
        outputs = {}
        for output, (field,) in self.columns.items():
            with self._open_scope(output):
                pixels = self._augment_images(self.pixels(features, field), output)
                outputs[output] = self._normalise(pixels, output, fitted)
        return outputs

    def _normalise(self, pixels: tf.Tensor, output: str, fitted: types.Statistics) -> tf.Tensor:
        """Normalise pixels [B, H, W, C] as the setting `normalization` describes."""
        if self.normalization == "per_image":
            return tf.image.per_image_standardization(pixels)
        if self.normalization == "z_score":
            entry = fitted.for_column(output)
            mean = np.array(entry["mean"], np.float32)
            return (pixels - mean) * column.inverse(entry["stddev"])
        return pixels

    def _augment_images(self, pixels: tf.Tensor, output: str) -> tf.Tensor:
        """Apply the augmentations to images [B, H, W, C], with random draws for each image."""
        size = pixels.shape[0] or tf.shape(pixels)[0]
        # The name of the draws contains the position of the augmentation in the list, so that two
        # augmentations of one class draw different numbers.
        for number, part in enumerate(self.augmentations):
            where, rule = f"{type(part).__name__}", "return as many pixels as it gets, in float32"
            checks.whole(f"{where}.num_draws", part.num_draws, 0)
            uniform = draws.draw_rows(f"augmentation_{number}", size, part.num_draws)
            new_pixels = part(pixels, uniform)
            checks.is_a(where, new_pixels, tf.Tensor, rule)
            fits = new_pixels.shape.is_compatible_with(pixels.shape)
            fits = fits and new_pixels.dtype == pixels.dtype
            checks.require(fits, where, rule, tuple(new_pixels.shape))
            pixels = tf.ensure_shape(new_pixels, pixels.shape)
        return pixels

    def _read_channels(self, features: types.Tensors, field: str) -> np.ndarray:
        pixels = self.pixels(features, field).numpy()
        return pixels.reshape(-1, pixels.shape[-1])

    def pixels(self, features: types.Tensors, field: str) -> tf.Tensor:
        """Read the pixels of a field; decode and scale encoded images.

        Args:
          features: {field: pixels [B, H, W] or [B, H, W, C], or encoded images [B] as strings}.
          field: the name of the image field.

        Returns:
          The pixels divided by `greatest`, float32 [B, H, W, C].

        Raises:
          UserError: the field has pixels of another shape; or it holds encoded images, but `shape`
            is None, or has a number of channels other than 1, 3 and 4.
          InvalidArgumentError: when run, if an encoded image cannot be decoded.
        """
        values = features[field]
        if values.dtype == tf.string:
            values = self._decode_images(values, field)
        if values.shape.rank == 3:
            values = values[..., tf.newaxis]
        if values.shape.rank != 4:
            rule = "name fields of shape (H, W) or (H, W, C), or of encoded strings"
            checks.fail("Image.names", rule, field, f"Its shape is {values.shape}.")
        if self.shape is not None:
            shape = values.shape[1:]
            rule, fix = f"be that of field {field!r}, or None for pixels", f"Its shape is {shape}."
            fits = shape.is_compatible_with(self.shape)
            checks.require(fits, "Image.shape", rule, list(self.shape), fix)
        return tf.cast(values, tf.float32) / self.greatest

    def _decode_images(self, encoded: tf.Tensor, field: str) -> tf.Tensor:
        if self.shape is None:
            fix = f"Field {field!r} holds encoded images, which are scaled to this size."
            checks.fail("Image.shape", "be (height, width, channels)", None, fix)
        height, width, channels = self.shape
        where = f"Image.shape for the encoded images of {field!r}"
        checks.require(channels in (1, 3, 4), where, "have 1, 3 or 4 channels", tuple(self.shape))

        def decode(image_bytes: tf.Tensor) -> tf.Tensor:
            image = images.decode(image_bytes, channels)
            return tf.ensure_shape(tf.image.resize(image, [height, width]), self.shape)

        if tf.executing_eagerly():  # `map_fn` would add op names to errors of bad images.
            return tf.reshape([decode(image_bytes) for image_bytes in encoded], [-1, *self.shape])
        signature = tf.TensorSpec(self.shape, tf.float32)
        return tf.map_fn(decode, encoded, fn_output_signature=signature)
