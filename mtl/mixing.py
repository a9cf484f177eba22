"""Mixes the inputs and the losses of pairs of rows in training: mixup and CutMix.

from mtl import mixing
model.MultiTaskModel.mixing = @mixing.Mixup()
mixing.Mixup.alpha = 0.2
mixing.Mixup.columns = ["image_photo"]                   # encoded columns; all by default

Rows are mixed only within a slice of the batch and within a replica. Each slice draws one mixing
share for all its rows, and a partner for each row. The random draws depend on the seed of the run,
the step and the slice of the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf
from mtl.step import draws


@checks.dataclass
class _Mixing(types.Mixing):
    """The settings that mixup and CutMix share.

    Attributes:
      alpha: both parameters of the Beta distribution of the mixing shares, above 0; 1 is uniform.
        With alpha near 0, most rows stay almost unchanged.
      rate: the probability that a training step mixes rows, in (0, 1].
      columns: the columns that are mixed, by name; None for all. Columns that are not in
        `columns` keep their values.
    """

    alpha: checks.Positive = 1.0
    rate: Annotated[float, checks.In("(0, 1]")] = 1.0
    columns: checks.SomeNames | None = None

    def _select_columns(self, inputs: types.Tensors) -> dict[str, tf.Tensor]:
        """Return the columns whose rows are mixed."""
        names = inputs if self.columns is None else self.columns
        for name in names:
            checks.one_of(f"{type(self).__name__}.columns", name, inputs)
        columns = {name: inputs[name] for name in names}
        rows = next(iter(columns.values())).shape[0]
        where, fix = "MultiTaskModel.mixing", "Each slice and each replica mixes its own rows."
        checks.require(rows != 1, where, "have at least two rows to mix", rows, fix)
        return columns

    def _draw_share(self) -> tf.Tensor:
        """Draw the mixing share of this slice, a scalar; 1 if this step mixes no rows."""
        share = draw_beta(self.alpha, draws.make_step_seed("mixing/share"))
        if self.rate == 1:
            return share
        uniform = tf.random.stateless_uniform([], draws.make_step_seed("mixing/rate"))
        return tf.where(uniform < self.rate, share, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixup(_Mixing):
    """`x = l x_i + (1 - l) x_j` and `loss = l loss_i + (1 - l) loss_j`, l ~ Beta(alpha, alpha).

    Zhang, Cisse, Dauphin, and Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", 2018,
    arXiv:1710.09412. As in the authors' code, all rows of a slice have the same mixing share l.
    Mixup works for any encoded column: images, numbers, vectors of tokens.

    Attributes:
      alpha: both parameters of the Beta distribution, above 0; the paper takes 0.1 to 0.4 for
        ImageNet and 1 for CIFAR-10.
      rate: the probability that a training step mixes rows, in (0, 1].
      columns: the columns that are mixed, by name; None for all. Columns that are not in
        `columns` keep their values.
    """

    alpha: float = 0.2

    def __call__(self, inputs: types.Tensors) -> types.Mixture:
        """Mix each row of the columns {column: [B, ...]} with its partner row."""
        columns, share = self._select_columns(inputs), self._draw_share()
        partners = _draw_partners(columns)
        mixed = {
            name: share * values + (1 - share) * tf.gather(values, partners)
            for name, values in columns.items()
        }
        return types.Mixture({**inputs, **mixed}, partners, share)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CutMix(_Mixing):
    """Copies a box of another image into each image, and weighs the two losses by area.

    The box has `sqrt(1 - l)` of the height and width of the image, l ~ Beta(alpha, alpha). The
    middle of the box is any pixel, and parts outside the image are cut off. The loss with the
    image's original labels has the weight 1 - s, where s is the share of the image that the box
    covers. As in the authors' code, all rows of a slice have the same box. Yun et al., "CutMix:
    Regularization Strategy to Train Strong Classifiers with Localizable Features", 2019,
    arXiv:1905.04899.

    Attributes:
      alpha: both parameters of the Beta distribution, above 0; the paper takes 1.
      rate: the probability that a training step mixes rows, in (0, 1]; the paper takes 0.5 for
        CIFAR.
      columns: the columns that are mixed, by name; None for all. The columns must be images of the
        same height and width. Columns that are not in `columns` keep their values.
    """

    is_even = False

    def __call__(self, inputs: types.Tensors) -> types.Mixture:
        """Copy a box from its partner image into each image of columns {column: [B, H, W, C]}."""
        columns = self._select_columns(inputs)
        height, width = _find_size(columns)
        place = tf.random.stateless_uniform([2], draws.make_step_seed("mixing/place"))
        is_box, share = cut_box(self._draw_share(), place, height, width)
        partners = _draw_partners(columns)
        mixed = {
            name: tf.where(is_box[..., tf.newaxis], tf.gather(values, partners), values)
            for name, values in columns.items()
        }
        return types.Mixture({**inputs, **mixed}, partners, share)


class MixedRows(types.PassExtension):
    """Mixes the rows of a forward pass, and the losses of their labels.

    Args:
      mix: a part that mixes the rows of encoded columns, such as `Mixup`.
    """

    has_samples = False

    def __init__(self, mix: types.Mixing):
        self._mix = mix
        self._mixture: types.Mixture

    def change_inputs(self, encoded: types.Tensors) -> types.Tensors:
        """Mix each row with its partner; see `types.PassExtension`."""
        self._mixture = self._mix(encoded)
        return self._mixture.inputs

    def wrap_losses(self, compute: types.ComputeLosses) -> types.ComputeLosses:
        """Return a function that weighs the losses of the labels of both rows of each pair."""

        def compute_mixed(logits: types.Tensors, labels: types.Tensors) -> types.Tensors:
            partners, share = self._mixture.partners, self._mixture.share
            others = {name: tf.gather(values, partners) for name, values in labels.items()}
            losses, partner_losses = compute(logits, labels), compute(logits, others)
            return {
                task: share * losses[task] + (1 - share) * partner_losses[task] for task in losses
            }

        return compute_mixed


def draw_beta(alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Draw a number from Beta(alpha, alpha).

    Args:
      alpha: both parameters of the Beta distribution, above 0.
      seed: int32 [2], for stateless draws.

    Returns:
      A float32 scalar in [0, 1].
    """
    # Compute in logarithms, because draws from Gamma(alpha) underflow to 0 for a small alpha. If U
    # is uniform, Gamma(a + 1) U^(1 / a) has the distribution of Gamma(a) (Marsaglia and Tsang,
    # 2000).
    gammas = tf.random.stateless_gamma(
        [2], seed, tf.constant(alpha + 1, tf.float64), dtype=tf.float64
    )
    # The seed of the uniform draws differs from the seed of `gammas`, because both must be
    # independent.
    powers = tf.random.stateless_uniform([2], seed + [0x5BD1, 0], dtype=tf.float64)
    logarithms = tf.math.log(gammas) + tf.math.log1p(-powers) / alpha
    # The Beta draw g0 / (g0 + g1) equals the sigmoid of log g0 - log g1.
    return tf.cast(tf.sigmoid(logarithms[0] - logarithms[1]), tf.float32)


def cut_box(
    share: tf.Tensor, place: tf.Tensor, height: int, width: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute which pixels of an image the box of CutMix covers.

    Args:
      share: l, the share of the image that stays outside of the box, a scalar in [0, 1].
      place: the middle of the box, as two shares in [0, 1) of the height and the width.
      height: H, the height of the images in pixels.
      width: W, the width of the images in pixels.

    Returns:
      The mask, bool [H, W], True within the box; and the share of pixels outside the box, a float32
      scalar.
    """
    is_inside, side = [], tf.sqrt(1 - share)
    for size, at in ((height, place[0]), (width, place[1])):
        middle = tf.minimum(tf.cast(at * size, tf.int32), size - 1)
        length = tf.cast(side * size, tf.int32)
        # As in the authors' code, a box with an odd length loses a pixel. The returned share is
        # computed from the pixels in the box.
        first, last = middle - length // 2, middle + length // 2
        is_inside.append((tf.range(size) >= first) & (tf.range(size) < last))
    is_box = is_inside[0][:, tf.newaxis] & is_inside[1]
    return is_box, 1 - tf.reduce_mean(tf.cast(is_box, tf.float32))


def _draw_partners(inputs: types.Tensors) -> tf.Tensor:
    """Draw a permutation of the rows, [B]."""
    rows = tf.shape(next(iter(inputs.values())))[:1]
    uniform = tf.random.stateless_uniform(rows, draws.make_step_seed("mixing/partners"))
    return tf.argsort(uniform, stable=True)


def _find_size(images: Mapping[str, tf.Tensor]) -> tuple[int, int]:
    """Return the height and width that all images have."""
    where, shapes = "CutMix.columns", {name: values.shape for name, values in images.items()}
    fix = "Name the columns of images; the other columns then stay unchanged."
    for name, shape in shapes.items():
        checks.require(shape.rank == 4, where, "be images [B, H, W, C]", name, fix)
    sizes = {tuple(shape[1:3]) for shape in shapes.values()}
    checks.require(len(sizes) == 1, where, "be images of the same size", sorted(sizes))
    return sizes.pop()
