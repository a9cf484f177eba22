"""Reads rows of CSV, JSON lines, Parquet and TFRecord files as serialized tf.Examples.

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
from mtl.data import arrow, csv, files
from mtl.tools.scoring import batches, csv_rows, image_rows, json_rows, records, table_rows, writers

_SPLIT = "input"
FORMATS = ("csv", "jsonl", "parquet", "tfrecord")


def find_format(path: str, format_name: str) -> str:
    """Return the format of a file.

    Args:
      path: the path of the file.
      format_name: the format; "auto" to derive it from the name of the file.

    Raises:
      UserError: the format is "auto", and the ending of the name is unknown.
    """
    if format_name != "auto":
        return format_name
    if arrow.find_ending(path) in arrow.ENDINGS:
        return "parquet"
    if arrow.find_ending(path.removesuffix(".gz")) in csv.ENDINGS:
        return "csv"  # The delimiter comes from the run.
    name_format, fix = writers.format_in(path), "Or set --input_format."
    if name_format is None:
        checks.fail("--input", "name its format, such as .csv", path, fix)
    return name_format


class Format(Protocol):
    """Reads files of one format."""

    def check(self, path: str) -> None:
        """Fail if the header or schema of a file lacks a field.

        Args:
          path: the path of the file.

        Raises:
          UserError: a field is missing.
        """

    def chunks(self, paths: Sequence[str]) -> Iterator[batches.Chunk]:
        """Yield the rows of files in chunks; a file without rows may yield an empty chunk.

        Args:
          paths: the paths of at least one file.

        Raises:
          UserError: a file cannot be read.
        """

    def parse(self, chunk: batches.Chunk) -> batches.Batch:
        """Return the tf.Examples of a chunk, and the fields that are written beside predictions.

        Args:
          chunk: a chunk from `chunks`.

        Raises:
          UserError: a row is malformed.
        """

    def problem(self, chunk: batches.Chunk) -> str:
        """Return an error message for the first wrong row of a chunk.

        Args:
          chunk: a chunk from `chunks`.

        Returns:
          The error message with the place of the first wrong row; "" if no row is wrong.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads files of all formats, and decompresses files that end in ".gz".

    Each line of JSON has an object with a value or a list for each feature; null means that the
    value is missing. The reader ignores other fields, such as labels, unless `keep` names them.

    Attributes:
      spec: the features of the model. Without a spec, the reader only reads TFRecord files.
      settings: the source of a run, such as `csv.Csv`. The delimiter, columns and other settings of
        the run's source apply to files of the source's format. The source's settings for texts
        apply to all tables. If an `ImageFiles` wraps the source, rows have paths of image files
        instead of images, as in training.
      batch_size: the number of rows that the model gets at a time.
      keep: fields to return with the predictions, such as ids. The fields in `keep` need not be
        features.
      format_name: csv, jsonl, parquet or tfrecord; "auto" to derive it from the name of each file.
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
        """Return the files that match patterns, each file once.

        Args:
          patterns: paths of files, folders or globs.

        Raises:
          UserError: a pattern matches no file, the format of a file is unknown, or a file does not
            hold TFRecords although the reader has no spec.
        """
        matches = files.find("--input", {_SPLIT: list(patterns)}, _SPLIT, folders=True)
        paths = list(dict.fromkeys(matches))
        for path in paths:
            if self._find_format(path) != "tfrecord" and self.spec is None:
                fix = "Add the --model_dir or --gin_file that describes the fields of the file."
                checks.fail("--input", "hold TFRecords if no features are known", path, fix)
        return paths

    def check(self, paths: Sequence[str]) -> None:
        """Fail if the header or schema of a file lacks a field.

        Args:
          paths: the paths of the files, from `find`.

        Raises:
          UserError: a field is missing.
        """
        for path in paths:
            self._formats[self._find_format(path)].check(path)

    def chunks(self, paths: Sequence[str]) -> Iterator[batches.Chunk]:
        """Yield the rows of files in chunks, before parsing; an empty file yields an empty chunk.

        Args:
          paths: the paths of the files, from `find`.

        Raises:
          UserError: a file cannot be read.
        """
        for format_name, group in itertools.groupby(paths, self._find_format):
            pending_paths, last_path = list(group), None
            for chunk in self._formats[format_name].chunks(list(pending_paths)):
                # A format may skip a file without rows, but the file still needs an output.
                while chunk.path != last_path:
                    last_path = pending_paths.pop(0)
                    if chunk.path != last_path:
                        yield batches.Chunk(path=last_path, numbers=(), rows=())
                yield chunk
            for path in pending_paths:
                yield batches.Chunk(path=path, numbers=(), rows=())

    def parse(self, chunk: batches.Chunk) -> batches.Batch:
        """Return the tf.Examples of a chunk and the fields in `keep`. `parse` is thread-safe.

        Args:
          chunk: a chunk from `chunks`.

        Raises:
          UserError: a row is malformed.
        """
        return self._formats[self._find_format(chunk.path)].parse(chunk)

    def explain(self, chunk: batches.Chunk, error: batches.RefusedError) -> str:
        """Return the reason why a model refused a chunk, with the first wrong row if possible.

        Args:
          chunk: the chunk that the model refused, which has at least one row.
          error: the error with which the model refused the chunk.
        """
        format_name = self._find_format(chunk.path)
        unit = {"parquet": "rows", "tfrecord": "records"}.get(format_name, "lines")
        where = f"{chunk.path} {unit} {chunk.numbers[0]} to {chunk.numbers[-1]}"
        problem = self._formats[format_name].problem(chunk)
        return problem or f"{where}: the model refused them: {error}"

    def _find_format(self, path: str) -> str:
        return find_format(path, self.format_name)

    @functools.cached_property
    def _formats(self) -> Mapping[str, Format]:
        features = self.spec and dataclasses.replace(
            self.spec,
            labels={},
            # Remove the defaults of labels, because a spec must not have defaults for missing
            # fields.
            defaults={k: v for k, v in self.spec.defaults.items() if k in self.spec.features},
        )
        # Values have the type Any, because `spec` is None if all files are TFRecords.
        common: dict[str, Any] = {
            "spec": features,
            "keep": self.keep,
            "batch_size": self.batch_size,
            "images": image_rows.find(self.settings),
        }
        return {
            "csv": csv_rows.Csv(**common, settings=self.settings),
            "jsonl": json_rows.JsonLines(**common, settings=self.settings),
            "parquet": table_rows.Tables(**common, settings=self.settings),
            "tfrecord": records.Records(**common, settings=self.settings),
        }
