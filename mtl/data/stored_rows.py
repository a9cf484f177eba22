"""TFRecord files of rows that a script had in memory, with the settings that parse their texts.

from mtl.data import stored_rows
stored_rows.StoredRows.files = {"train": "train-b2825e76.tfrecord"}
stored_rows.StoredRows.cells = @csv.Csv()
"""

from __future__ import annotations

from typing import Annotated

from mtl import checks
from mtl.data import csv, tfrecord


@checks.dataclass
class StoredRows(tfrecord.TfRecord):
    """A source that reads the rows of `frames.Frames` from the files that `mtl.train` writes.

    Attributes:
      cells: the settings that say how the texts of `Frames` were parsed. The texts of further rows,
        such as the DataFrames of `Model.predict`, are parsed in the same way.
    """

    cells: Annotated[csv.Csv, checks.Is(csv.Csv, "be built, such as @csv.Csv()")]
