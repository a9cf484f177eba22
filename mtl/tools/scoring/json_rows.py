"""Reads JSON lines as serialized tf.Examples.

for chunk in json_rows.JsonLines(spec=spec, keep=["id"], batch_size=512).chunks(["in.jsonl"]): ...
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mtl import checks
from mtl import spec as spec_lib
from mtl.data import csv, examples, image_files, json_lines
from mtl.tools.scoring import batches, image_rows, run_source


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines:
    """Reads JSON lines; implements `readers.Format`.

    Attributes:
      spec: the features of the model.
      keep: the names of fields to return beside the tf.Examples.
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
        del path  # Lines may differ in their fields, so nothing is checked.

    def chunks(self, paths: Sequence[str]) -> Iterator[batches.Chunk]:
        for path in paths:
            lines = _read_lines(path)
            while part := list(itertools.islice(lines, self.batch_size)):
                numbers, rows = zip(*part, strict=True)
                yield batches.Chunk(path=path, numbers=numbers, rows=rows)

    def parse(self, chunk: batches.Chunk) -> batches.Batch:
        apply = functools.partial(_make_each, chunk)
        fields, count_fields = json_lines.mark_parts(self.spec.feature_fields), self.spec.counted
        rows = apply(json_lines.parse_object, chunk.rows)
        columns = json_lines.read_columns(
            rows, chunk.rows, fields, count_fields, apply, self._cells
        )
        columns = image_rows.read_columns(self.images, chunk, columns)
        extra = {n: apply(functools.partial(_kept, n), rows) for n in self.keep}
        return batches.Batch(examples=examples.serialize_examples(columns), kept=extra)

    @functools.cached_property
    def _cells(self) -> csv.Csv | None:
        return run_source.find_json_lines(self.settings).cells

    def problem(self, chunk: batches.Chunk) -> str:
        # `parse` has already reported all other mistakes of a line.
        return image_rows.find_problem(self.images, chunk, json_lines.parse_object)


def _read_lines(path: str) -> Iterator[tuple[int, bytes]]:
    for number, line in json_lines.read_lines(path):
        if isinstance(line, str):
            raise checks.UserError(f"{path} line {number}: {line}")
        yield number, line


def _make_each(chunk: batches.Chunk, make: Callable[[Any], Any], rows: Iterable[Any]) -> list[Any]:
    """Apply `make` to all rows; turn a ValueError into a UserError that names the line."""
    results: list[Any] = []
    try:
        for row in rows:
            results.append(make(row))
    except ValueError as error:
        line = chunk.numbers[len(results)]
        raise checks.UserError(f"{chunk.path} line {line}: {error}.") from error
    return results


def _kept(name: str, row: Mapping[str, Any]) -> Any:
    value = batches.kept(name, row)
    level = [value]
    for _ in range(json_lines.MOST_LEVELS):
        for text in level:
            if isinstance(text, str) and not _is_text(text):
                raise ValueError(f"field {name!r} must be text, got {text!r}")
        level = [item for part in level for item in _list_items(part)]
        if not level:
            return value
    raise ValueError(f"field {name!r} must be at most {json_lines.MOST_LEVELS} lists deep")


def _list_items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else ()


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
