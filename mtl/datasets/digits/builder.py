"""The tensorflow-datasets builder of the digits, whose origin is in `README.md` in this folder.

tfds.Tfds.name = "mtl.datasets.digits.builder.Digits"
pipeline.Pipeline.train_split = "train"
pipeline.Pipeline.eval_split = "test"
"""

import csv
import gzip
import importlib.resources
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

# The number of closed loops in the shape of each digit; a handwritten 4 is open at the top.
LOOPS = (1, 0, 0, 0, 0, 0, 1, 0, 2, 1)
# Every fifth example, starting with the first example, is in the test split.
TEST_EVERY = 5


class Digits(tfds.core.GeneratorBasedBuilder):
    """The data set "Optical Recognition of Handwritten Digits", in the version of scikit-learn.

    Each image has three labels: the digit, the parity (1 is odd) and the number of closed loops.
    """

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "id": tfds.features.Scalar(np.int64),
            "image": tfds.features.Tensor(shape=(8, 8, 1), dtype=np.uint8),
            "digit": tfds.features.Scalar(np.int64),
            "parity": tfds.features.Scalar(np.int64),
            "loops": tfds.features.Scalar(np.int64),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description="1,797 images of handwritten digits, 8x8 pixels with values 0 to 16.",
            features=tfds.features.FeaturesDict(features),
            homepage="https://archive.ics.uci.edu/dataset/80",
            citation="E. Alpaydin and C. Kaynak (1998), doi:10.24432/C50P49",
            license="CC BY 4.0",
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        del dl_manager  # The data are part of the package, so nothing is downloaded.
        return {"train": self._generate_examples(False), "test": self._generate_examples(True)}

    def _generate_examples(self, test: bool) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, (*pixels, digit) in enumerate(_read_rows()):
            if (index % TEST_EVERY == 0) == test:
                yield (
                    index,
                    {
                        "id": index,
                        "image": np.array(pixels, np.uint8).reshape(8, 8, 1),
                        "digit": digit,
                        "parity": digit % 2,
                        "loops": LOOPS[digit],
                    },
                )


def _read_rows() -> Iterator[list[int]]:
    """Yield the lines of the file, each with 64 pixels, row by row, and the digit."""
    file = importlib.resources.files("mtl.datasets.digits") / "digits.csv.gz"
    with file.open("rb") as compressed, gzip.open(compressed, "rt") as lines:
        yield from (list(map(int, row)) for row in csv.reader(lines))
