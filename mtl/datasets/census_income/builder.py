"""The tensorflow-datasets builder of UCI Census-Income (KDD), from files in a folder.

tfds.Tfds.name = "mtl.datasets.census_income.builder.CensusIncome"
tfds.Tfds.manual_dir = "data/census_income"     # census-income.data and .test, or one of the two
pipeline.Pipeline.eval_split = "validation"     # "train", "validation" and "test"
"""

import csv
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from mtl.data import files

# The number of rows in the official files. The decompressed test file has the MD5 sum
# b82952d217858365c8e597827e3e5468.
ROWS = {"census-income.data": 199_523, "census-income.test": 99_762}
# All columns in the order of the files.
COLUMNS = (
    *("age", "class-of-worker", "industry-code", "occupation-code", "education", "wage-per-hour"),
    *("enrolled-in-education", "marital-status", "major-industry", "major-occupation", "race"),
    *("hispanic-origin", "sex", "labor-union", "reason-for-unemployment", "employment-status"),
    *("capital-gains", "capital-losses", "dividends", "tax-filer-status", "previous-region"),
    *("previous-state", "household-status", "household-summary", "instance-weight"),
    *("migration-msa", "migration-region", "migration-within-region", "same-house-last-year"),
    *("previous-sunbelt", "persons-worked-for-employer", "family-members-under-18"),
    *("father-birth-country", "mother-birth-country", "birth-country", "citizenship"),
    *("own-business", "veteran-questionnaire", "veterans-benefits", "weeks-worked", "year"),
    "income",
)
# The columns of whole numbers. Codes, such as of industries, are texts, because they are
# categories.
NUMBERS = (
    *("age", "wage-per-hour", "capital-gains", "capital-losses", "dividends"),
    *("persons-worked-for-employer", "weeks-worked"),
)
WEIGHT = "instance-weight"
# The positions of each split's rows in every group of five rows.
_CUT = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}
_CUT_TRAINING = {"train": (0, 1, 2, 3), "validation": (4,)}
_CYCLE = 5


class CensusIncome(tfds.core.GeneratorBasedBuilder):
    """UCI Census-Income with 39 inputs, the two labels of the literature and a weight per row.

    The label "income" is "50000+" or "- 50000", as in the files, without the full stop at the end
    of a line. The label of the second task, "marital-status", is "Never married" or one of six
    other values. "?" and "Not in universe" are categories. "instance-weight" is the number of
    people that a row represents; do not use this column as an input. The data set contains rows
    that are equal in all columns.

    With both files in the folder, the split "test" is the official test file. The training file is
    divided into groups of five rows: the first four rows of a group belong to "train" and the last
    row to "validation", so "train+validation" is the whole training file. Ma, Zhao, Yi, Chen, Hong,
    and Chi, "Modeling Task Relationships in Multi-task Learning with Multi-gate
    Mixture-of-Experts", KDD 2018, doi:10.1145/3219819.3220007, instead draw validation rows from
    the test file at random.

    If only one of the two official files is in the folder, the first three of each five rows belong
    to "train", the fourth row to "validation" and the fifth row to "test".

    Before you add a second file, delete the prepared data set, `<data_dir>/census_income`.
    """

    VERSION = tfds.core.Version("1.0.0")
    URL = "https://archive.ics.uci.edu/static/public/117/census+income+kdd.zip"
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        f"census-income.data, census-income.test or both, gzipped or not, from {URL}"
    )

    def _info(self) -> tfds.core.DatasetInfo:
        kinds = dict.fromkeys(NUMBERS, np.int64) | {WEIGHT: np.float32}
        features = {
            name: tfds.features.Scalar(kinds[name]) if name in kinds else tfds.features.Text()
            for name in COLUMNS
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description="Income and marital status of people in the US census of 1994 and 1995.",
            features=tfds.features.FeaturesDict(features),
            homepage="https://archive.ics.uci.edu/dataset/117/census+income+kdd",
            citation="T. Lane and R. Kohavi (2000), doi:10.24432/C5N30T",
            license="CC BY 4.0",
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        folder = os.fspath(dl_manager.manual_dir)
        training, test = (_find_file(folder, name) for name in ROWS)
        if training and test:
            cut = {split: (training, places) for split, places in _CUT_TRAINING.items()}
            cut["test"] = (test, tuple(range(_CYCLE)))
        elif training or test:
            cut = {split: (training or test, places) for split, places in _CUT.items()}
        else:
            raise FileNotFoundError(f"{folder} holds neither {' nor '.join(ROWS)}, gzipped or not")
        return {split: self._generate_examples(*part) for split, part in cut.items()}

    def _generate_examples(
        self, path: str, places: tuple[int, ...]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows of a file whose row number modulo five is in `places`."""
        for number, row in enumerate(_read_rows(path)):
            if number % _CYCLE in places:
                yield number, _parse_row(path, number, row)


def _find_file(folder: str, name: str) -> str:
    """Return the path of a file, gzipped or not; "" if the file does not exist."""
    path = os.path.join(folder, name)
    return next(filter(os.path.exists, (path, f"{path}.gz")), "")


def _read_rows(path: str) -> Iterator[list[str]]:
    """Yield the values of each row of a file; fail at the end if the number of rows is wrong."""
    expected = next(rows for name, rows in ROWS.items() if name in os.path.basename(path))
    count = itertools.count()
    try:
        with files.open_binary(path) as lines:
            texts = (line.decode() for line in lines if line.strip())
            for row in csv.reader(texts, skipinitialspace=True):
                next(count)
                yield row
    except files.list_read_errors() as error:
        raise ValueError(f"{path} cannot be read to its end: {error}") from None
    rows = next(count)
    if rows != expected:
        raise ValueError(f"{path} must have {expected:,} rows, got {rows:,}")


def _parse_row(path: str, number: int, row: list[str]) -> dict[str, Any]:
    """Convert the texts of a row to {column: value}."""
    where = f"{path} row {number + 1}"
    if len(row) != len(COLUMNS):
        raise ValueError(f"{where} must have {len(COLUMNS)} values, got {len(row)}")
    example: dict[str, Any] = dict(zip(COLUMNS, map(str.strip, row), strict=True))
    example["income"] = example["income"].rstrip(".")
    if example["income"] not in ("- 50000", "50000+"):
        raise ValueError(f"{where} must end in '- 50000.' or '50000+.', got {row[-1]!r}")
    kinds: dict[str, Callable[[str], Any]] = {**dict.fromkeys(NUMBERS, int), WEIGHT: float}
    for name, kind in kinds.items():
        try:
            example[name] = kind(example[name])
        except ValueError:
            noun = "a whole number" if kind is int else "a number"
            raise ValueError(f"{where} {name} must be {noun}, got {example[name]!r}") from None
    return example
