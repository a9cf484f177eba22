"""Numbers the rows of a split, and adds the numbers as a feature.

data = numbered.number_rows(data)               # a Pipeline with the feature `numbered.ROW`
data = numbered.number_rows(data, shuffle=(10_000, 1)) # one pass in a shuffled order
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import pipeline
from mtl.data import source as source_lib
from mtl.deferred import tf

ROW = "row number"


@checks.dataclass
class Numbered(types.Source):
    """Numbers the records of another source, from 0 in the order of that source.

    Attributes:
      source: the source of the records.
      shuffle: (number of records in the shuffle buffer, seed); None keeps the order of the source.
    """

    source: Annotated[types.Source, source_lib.check]
    shuffle: tuple[int, int] | None = None

    def __post_init__(self):
        if self.shuffle is not None:
            rule = "be a pair of buffer size and seed"
            checks.is_a("Numbered.shuffle", self.shuffle, (list, tuple), rule)
            checks.require(len(self.shuffle) == 2, "Numbered.shuffle", rule, self.shuffle)
            for number, minimum in zip(self.shuffle, (1, 0), strict=True):
                checks.whole("Numbered.shuffle", number, minimum)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the records as {"row": number, "record": a record of the source}."""
        # The range is longer than any split, and `zip` ends with the records.
        numbers = tf.data.Dataset.range(tf.int64.max)
        records = tf.data.Dataset.zip({"row": numbers, "record": self.source.records(split)})
        # Number the records first, then shuffle: a number means a record's place in the source.
        return records.shuffle(*self.shuffle) if self.shuffle else records

    @property
    def orders_rows(self) -> bool:
        """True if the inner source decides the order of its rows."""
        return types.read_member(self.source, types.Source, "orders_rows")

    def order_rows(self, split: str, spec: spec_lib.Spec, **settings: Any) -> Any:
        """Return the order of the rows of a split, which the inner source decides."""
        return self.source.order_rows(split, _without_row(spec), **settings)

    @property
    def known_steps(self) -> int | None:
        """The number of coming steps whose row order the inner source has fixed."""
        return types.read_member(self.source, types.Source, "known_steps")

    def estimate_bytes(self, split: str) -> int | None:
        """Estimate the memory of the rows as the inner source does.

        Training must keep the same rows in memory as without the numbers, because rows in memory
        have another order than rows in files.
        """
        return types.read_shortcut(self.source, "estimate_bytes")(split)

    def list_rows(self, split: str) -> np.ndarray | None:
        """Return the row numbers of a split; None if the inner source does not list rows."""
        return types.read_shortcut(self.source, "list_rows")(split)

    def list_blocks(self, split: str, spec: spec_lib.Spec) -> types.Blocks | None:
        """Return the blocks of the source, with the numbers of rows; None if it has no blocks."""
        list_blocks = types.read_shortcut(self.source, "list_blocks")
        blocks: types.Blocks | None = list_blocks(split, _without_row(spec))
        if blocks is None:
            return None
        read_block, ends = blocks.read, np.cumsum(blocks.sizes, dtype=np.int64)

        def read(block: int, fields: Mapping[str, spec_lib.Field]) -> dict[str, Any]:
            others = {name: field for name, field in fields.items() if name != ROW}
            numbers = np.arange(ends[block] - blocks.sizes[block], ends[block])
            return {**read_block(block, others), ROW: numbers}

        return blocks._replace(read=read)

    def take_rows(self, split: str, rows: tf.Tensor) -> dict[str, Any]:
        """Return the raw records of the rows with the numbers `rows` [B], and the numbers."""
        return {"row": rows, "record": self.source.take_rows(split, rows)}

    def decode(self, batch: Any, spec: spec_lib.Spec, with_labels: bool) -> dict[str, Any]:
        """Decode a batch by the inner source, and add the row numbers [B] as the field `ROW`."""
        # The inner source has no field `ROW`, and would refuse a spec with this field.
        values = self.source.decode(batch["record"], _without_row(spec), with_labels)
        return {**values, ROW: batch["row"]}

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Read the records of a split one by one, to locate errors."""
        for row, (location, values) in enumerate(self.source.scan(split, _without_row(spec))):
            yield location, values if isinstance(values, str) else {**values, ROW: row}


def number_rows(
    data: pipeline.Pipeline, shuffle: tuple[int, int] | None = None
) -> pipeline.Pipeline:
    """Return the same pipeline with the additional feature `ROW`.

    Args:
      data: the pipeline that reads the rows.
      shuffle: (number of records in the shuffle buffer, seed); None keeps the order of the source.
    """
    spec = dataclasses.replace(data.spec, features={**data.spec.features, ROW: "int64"})
    source = Numbered(source=data.source, shuffle=shuffle)
    return dataclasses.replace(data, source=source, spec=spec)


def _without_row(spec: spec_lib.Spec) -> spec_lib.Spec:
    features = {name: kind for name, kind in spec.features.items() if name != ROW}
    return dataclasses.replace(spec, features=features)
