"""The tensorflow-datasets builder of UCI Adult, which downloads files or reads them from a folder.

tfds.Tfds.name = "mtl.datasets.adult.builder.Adult"
pipeline.Pipeline.train_split = "train"         # the official split: 32,561 and 16,281 people
pipeline.Pipeline.eval_split = "test"
"""

import csv
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from mtl.data import files
from mtl.files import storage

# The columns of whole numbers, and all columns in the order of the files.
NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
)


class Adult(tfds.core.GeneratorBasedBuilder):
    """UCI Adult with one example for each person.

    The income is ">50K" or "<=50K". The category "?" means unknown. The official test file ends
    each income with a dot, which the builder drops.
    """

    VERSION = tfds.core.Version("1.0.0")
    URL = "https://archive.ics.uci.edu/static/public/2/adult.zip"
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"adult.data and adult.test, gzipped or not, from {URL}"

    def _info(self) -> tfds.core.DatasetInfo:
        number, text = tfds.features.Scalar(np.int64), tfds.features.Text()
        features = {name: number if name in NUMBERS else text for name in COLUMNS}
        return tfds.core.DatasetInfo(
            builder=self,
            description="Income and marital status of people in the US census of 1994.",
            features=tfds.features.FeaturesDict(features),
            homepage="https://archive.ics.uci.edu/dataset/2/adult",
            citation="B. Becker and R. Kohavi (1996), doi:10.24432/C5XW20",
            license="CC BY 4.0",
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        train, test = self._find_by_hand(dl_manager) or self._download_files(dl_manager)
        return {
            "train": self._generate_examples(train),
            "test": self._generate_examples(test),
        }

    def _find_by_hand(self, dl_manager: tfds.download.DownloadManager) -> list[str] | None:
        try:
            folder = os.fspath(dl_manager.manual_dir)
        except AssertionError:  # The folder of manual files does not exist, or is empty.
            return None
        candidates = [
            next(filter(os.path.exists, (stem, f"{stem}.gz")), None)
            for stem in (os.path.join(folder, name) for name in ("adult.data", "adult.test"))
        ]
        paths = [path for path in candidates if path is not None]
        return paths if len(paths) == len(candidates) else None

    def _download_files(self, dl_manager: tfds.download.DownloadManager) -> list[str]:
        if not storage.reachable(self.URL):
            raise ConnectionError(f"{self.URL} cannot be reached")
        folder = os.fspath(dl_manager.download_and_extract(self.URL))
        return [os.path.join(folder, name) for name in ("adult.data", "adult.test")]

    def _generate_examples(self, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
        with files.open_binary(path) as lines:
            # The official test file starts with a remark after "|", and both files end with a blank
            # line.
            texts = (line.decode() for line in lines if line.strip() and not line.startswith(b"|"))
            for key, row in enumerate(csv.reader(texts, skipinitialspace=True)):
                example = dict(zip(COLUMNS, row, strict=True))
                yield key, example | {"income": example["income"].rstrip(".")}
