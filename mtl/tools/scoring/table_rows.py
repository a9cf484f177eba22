"""Reads Parquet files, other tables and spreadsheets as serialized tf.Examples.

for chunk in table_rows.Tables(spec=spec, keep=["id"], batch_size=512).chunks(["in.parquet"]): ...
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtl import checks
from mtl import spec as spec_lib
from mtl.data import arrow, examples, image_files, source, weighted_lists
from mtl.data import columns as columns_lib
from mtl.tools.scoring import batches, image_rows, run_source


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tables:
    """Reads tables, one row group of a file at a time; implements `readers.Format`.

    Attributes:
      spec: the features of the model.
      keep: the names of columns to return beside the tf.Examples.
      batch_size: the largest number of rows in a chunk.
      settings: the data source of the run, whose settings for texts apply to the files; None
        without a run.
      images: the source that says which fields hold paths of image files; None if no field does.
    """

    spec: spec_lib.Spec
    keep: Sequence[str]
    batch_size: int
    settings: Any = None
    images: image_files.ImageFiles | None = None

    def check(self, path: str) -> None:
        schema, _ = self._open(path)
        arrow.check_columns(path, self._find_columns(schema), schema)
        for name in self.keep:
            checks.one_of(f"{path}: --keep", name, schema.names)

    def chunks(self, paths: Sequence[str]) -> Iterator[batches.Chunk]:
        for path in paths:
            self.check(path)
            schema, parts = self._open(path)
            # `fromkeys` drops duplicates, because a column in `keep` may also be the column of a
            # feature.
            columns, row = [*self._find_columns(schema).values(), *self.keep], 0
            columns = list(dict.fromkeys(columns))
            for part in parts:
                table = arrow.read_part(path, part, columns)
                for start in range(0, len(table), self.batch_size):
                    rows = table.slice(start, self.batch_size)
                    numbers = range(row, row + len(rows))
                    yield batches.Chunk(path=path, numbers=numbers, rows=rows)
                    row += len(rows)

    def parse(self, chunk: batches.Chunk) -> batches.Batch:
        table: Any = chunk.rows
        cells = self._arrow.cells
        fields, columns_by_feature = (
            self._mark_parts(table.schema),
            self._find_columns(table.schema),
        )
        values = arrow.read_fields(
            chunk.path, table, columns_by_feature, fields, cells, chunk.numbers[0]
        )
        columns = image_rows.read_columns(self.images, chunk, values, unit="row")
        extra = {
            name: columns_lib.guard(f"{chunk.path}: column {name!r}", table[name].to_pylist)
            for name in self.keep
        }
        return batches.Batch(examples=examples.serialize_examples(columns), kept=extra)

    def problem(self, chunk: batches.Chunk) -> str:
        del chunk  # `parse` has already reported all wrong rows.
        return ""

    def _open(self, path: str) -> Any:
        # With --input_format parquet, a file with any other extension is also read as Parquet.
        kind = None if arrow.find_ending(path) in arrow.ENDINGS else ".parquet"
        return arrow.open_file(path, kind, self._arrow.sheet, encodes_texts=True)

    @functools.cached_property
    def _arrow(self) -> arrow.Arrow:
        return run_source.find_arrow(self.settings)

    def _mark_parts(self, schema: Any) -> Mapping[str, spec_lib.Field]:
        """Return {feature: field}; weights without a column come from the column of the list."""
        if not self.spec.weighted:
            return self.spec.feature_fields
        names = [*source.name_columns(schema.names, self._arrow.rename), *self._arrow.rename]
        return weighted_lists.mark_parts(self.spec.feature_fields, names)

    def _find_columns(self, schema: Any) -> Mapping[str, str]:
        """Return {feature: column of the table}."""
        return arrow.find_columns(self._mark_parts(schema), self._arrow.rename)
