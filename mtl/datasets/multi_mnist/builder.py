"""The tensorflow-datasets builder of MultiMNIST, from files of MNIST in a folder.

tfds.Tfds.name = "mtl.datasets.multi_mnist.builder.MultiMnist"
tfds.Tfds.manual_dir = "data/mnist"             # train-* and t10k-*, or one of the two
spec.Spec.features = {"image": ("uint8", (28, 28, 1))}
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from mtl.data import files

# Each digit of MNIST is on the left in this number of images.
PARTNERS = 4
_SIZE, _CANVAS = 28, 36


class MultiMnist(tfds.core.GeneratorBasedBuilder):
    """Images of two overlapping digits, one at the top left and one at the bottom right.

    Two digits of 28 x 28 pixels are put into opposite corners of an image of 36 x 36 pixels. Where
    the digits overlap, the brighter pixel is used. The image of 36 x 36 pixels is scaled to 28 x 28
    pixels by averaging areas. Sabour, Frosst, and Hinton, "Dynamic Routing Between Capsules", 2017,
    arXiv:1710.09829, shift digits at random; Sener and Koltun, "Multi-Task Learning as
    Multi-Objective Optimization", 2018, arXiv:1810.04650, use two corners and two tasks, like this
    data set. Each digit of MNIST is the left digit of four images. A fixed seed draws the digits on
    the right from the same split, so no digit is in both splits. The training and test splits are
    made from the two parts of MNIST, train and t10k. If only one part of MNIST is available, the
    last fifth of this part is the test split.
    """

    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "train-images-idx3-ubyte and train-labels-idx1-ubyte, or t10k-images-idx3-ubyte and "
        "t10k-labels-idx1-ubyte, or all four, gzipped or not, of MNIST."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Tensor(shape=(_SIZE, _SIZE, 1), dtype=np.uint8),
            "left": tfds.features.Scalar(np.int64),
            "right": tfds.features.Scalar(np.int64),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description="Two overlapping handwritten digits of MNIST in one image.",
            features=tfds.features.FeaturesDict(features),
            homepage="https://yann.lecun.org/exdb/mnist",
            citation="Y. LeCun, C. Cortes, C. Burges, the MNIST database of handwritten digits",
            license="CC BY-SA 3.0",
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        folder = os.fspath(dl_manager.manual_dir)
        parts = [part for part in (_read_part(folder, "train"), _read_part(folder, "t10k")) if part]
        if not parts:
            raise FileNotFoundError(f"{folder} holds no images and labels of MNIST")
        if len(parts) == 1:
            images, labels = parts[0]
            cut = len(labels) * 4 // 5
            parts = [(images[:cut], labels[:cut]), (images[cut:], labels[cut:])]
        return {
            split: self._generate_examples(seed, *part)
            for seed, (split, part) in enumerate(zip(("train", "test"), parts, strict=True))
        }

    def _generate_examples(
        self, seed: int, images: np.ndarray, labels: np.ndarray
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        random = np.random.default_rng(seed)
        for index in range(PARTNERS * len(labels)):
            left, right = index // PARTNERS, random.integers(len(labels))
            example = {
                "image": overlaid(images[left], images[right])[..., np.newaxis],
                "left": int(labels[left]),
                "right": int(labels[right]),
            }
            yield index, example


def overlaid(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Combine two digits to an image of overlapping digits.

    Args:
      left: the digit at the top left, values from 0 to 255, [28, 28].
      right: the digit at the bottom right, values from 0 to 255, [28, 28].

    Returns:
      The image of both digits, uint8 [28, 28].
    """
    canvas = np.zeros([_CANVAS, _CANVAS])
    canvas[:_SIZE, :_SIZE] = left
    corner = canvas[-_SIZE:, -_SIZE:]
    np.maximum(corner, right, out=corner)
    # Area averaging is separable, so average the rows first, and then the columns.
    return np.rint(_SHARES @ canvas @ _SHARES.T).astype(np.uint8)


def _compute_shares() -> np.ndarray:
    """Return the weights of the 36 old pixel rows in each of the 28 new pixel rows, [28, 36]."""
    new = np.arange(_SIZE)[:, np.newaxis] * _CANVAS / _SIZE
    old = np.arange(_CANVAS)
    overlap = np.minimum(new + _CANVAS / _SIZE, old + 1) - np.maximum(new, old)
    return np.maximum(overlap, 0) * _SIZE / _CANVAS


_SHARES = _compute_shares()


def _read_part(folder: str, part: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Read the images [N, 28, 28] and labels [N] of a part of MNIST, if the files exist."""
    stems = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
    existing = [_find_existing(os.path.join(folder, stem)) for stem in stems]
    paths = [path for path in existing if path is not None]
    if len(paths) < len(stems):
        return None
    images, labels = map(_read_values, paths)
    return images.reshape(-1, _SIZE, _SIZE), labels


def _find_existing(stem: str) -> str | None:
    return next(filter(os.path.exists, (stem, f"{stem}.gz")), None)


def _read_values(path: str) -> np.ndarray:
    """Return the bytes of an IDX file after the header."""
    with files.open_binary(path) as file:
        content = file.read()
    # The header has four bytes, the last of which is the number of axes, and four bytes per axis.
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
