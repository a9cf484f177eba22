"""Rows of CSV, JSON lines, Parquet and TFRecord files as serialized tf.Examples.

reader = readers.Reader(spec=spec, batch_size=512, keep=["id"])
for chunk in reader.chunks(["in/part-0.csv.gz"]):
    batch = reader.parse(chunk)                             # in any thread
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from mtl import checks
from mtl import spec as spec_lib
from mtl.data import arrow, files
from mtl.tools.scoring import batches, csv_rows, image_rows, json_rows, records, table_rows, writers

_SPLIT = "input"
FORMATS = ("csv", "jsonl", "parquet", "tfrecord")


def find_format(path: str, format_name: str) -> str:
    """Return the format of a file: `format_name`, or for "auto" the one that its name ends in.

    Raises:
      UserError: the ending is unknown.
    """
    if format_name != "auto":
        return format_name
    if arrow.find_ending(path) in arrow.ENDINGS:
        return "parquet"
    found, fix = writers.format_in(path), "Or set --input_format."
    if found is None:
        checks.fail("--input", "name its format, such as .csv", path, fix)
    return found


class Format(Protocol):
    """One of the formats of input."""

    def check(self, path: str) -> None:
        """Fail if the beginning of a file shows that its rows lack a field."""

    def chunks(self, paths: Sequence[str]) -> Iterator[batches.Chunk]:
        """Return the rows of files in order; an empty file has an empty chunk, or none."""

    def parse(self, chunk: batches.Chunk) -> batches.Batch:
        """Return the examples of a chunk and its kept fields."""

    def problem(self, chunk: batches.Chunk) -> str:
        """Return an error for the first row that a model must refuse; "" if none is found."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads files of any of the formats; ".gz" is decompressed.

    Each JSON line holds an object with a value or a list for each feature; null means absent. The
    reader ignores all fields that are neither features nor kept, so labels may be present.

    Attributes:
      spec: the features; without it, TFRecord files pass unchanged and others are refused.
      settings: a source such as `csv.Csv`, whose delimiter, columns and so on apply to files of
        its format. With an `ImageFiles` around it, rows name files as in training.
      batch_size: the number of rows that the model gets at a time.
      keep: fields, features or others, to return with the predictions, such as ids.
      format_name: csv, jsonl, parquet or tfrecord; auto goes by the file's name.
    """

    spec: spec_lib.Spec | None
    settings: Any = None
    batch_size: int = 512
    keep: Sequence[str] = ()
    format_name: str = "auto"

    def __post_init__(self):
        checks.one_of("--input_format", self.format_name, ["auto", *FORMATS])
        checks.at_least("--batch_size", self.batch_size, 1)
        checks.unique("--keep", self.keep)

    def find(self, patterns: Sequence[str]) -> list[str]:
        """Return the files that match, each once.

        Raises:
          UserError: a pattern matches no file, or the format of a file is unknown.
        """
        found = files.find("--input", {_SPLIT: list(patterns)}, _SPLIT, folders=True)
        paths = list(dict.fromkeys(found))
        for path in paths:
            if self._find_format(path) != "tfrecord" and self.spec is None:
                fix = "Add the --model_dir or --gin_file that describes its fields."
                checks.fail("--input", "hold TFRecords if no features are known", path, fix)
        return paths

    def check(self, paths: Sequence[str]) -> None:
        """Fail if the beginning of a file shows that its rows lack a field.

        Raises:
          UserError: names file and field.
        """
        for path in paths:
            self._formats[self._find_format(path)].check(path)

    def chunks(self, paths: Sequence[str]) -> Iterator[batches.Chunk]:
        """Yield the unparsed rows of files in order; an empty file has an empty chunk.

        Raises:
          UserError: a file cannot be read.
        """
        for format_name, some in itertools.groupby(paths, self._find_format):
            waiting, last = list(some), None
            for chunk in self._formats[format_name].chunks(list(waiting)):
                # A format may have no chunk for a file without rows, which still gets an output.
                while chunk.path != last:
                    last = waiting.pop(0)
                    if chunk.path != last:
                        yield batches.Chunk(path=last, numbers=(), rows=())
                yield chunk
            for path in waiting:
                yield batches.Chunk(path=path, numbers=(), rows=())

    def parse(self, chunk: batches.Chunk) -> batches.Batch:
        """Return the examples of a chunk and its kept fields; threads may call it in parallel.

        Raises:
          UserError: a row is malformed; names file and line.
        """
        return self._formats[self._find_format(chunk.path)].parse(chunk)

    def explain(self, chunk: batches.Chunk, error: batches.RefusedError) -> str:
        """Return why a model refused a chunk: the wrong row, if it is found."""
        format_name = self._find_format(chunk.path)
        unit = {"parquet": "rows", "tfrecord": "records"}.get(format_name, "lines")
        where = f"{chunk.path} {unit} {chunk.numbers[0]} to {chunk.numbers[-1]}"
        found = self._formats[format_name].problem(chunk)
        return found or f"{where}: the model refused them: {error}"

    def _find_format(self, path: str) -> str:
        return find_format(path, self.format_name)

    @functools.cached_property
    def _formats(self) -> Mapping[str, Format]:
        features = self.spec and dataclasses.replace(
            self.spec,
            labels={},
            # A default of a label that is gone would be a default of no field.
            defaults={k: v for k, v in self.spec.defaults.items() if k in self.spec.features},
        )
        # Any: without a spec there are TFRecords alone.
        common: dict[str, Any] = {
            "spec": features,
            "keep": self.keep,
            "batch_size": self.batch_size,
            "images": image_rows.find(self.settings),
        }
        settings = image_rows.unwrap(self.settings)
        return {
            "csv": csv_rows.Csv(**common, settings=settings),
            "jsonl": json_rows.JsonLines(**common),
            "parquet": table_rows.Tables(**common, settings=settings),
            "tfrecord": records.Records(**common, settings=settings),
        }
