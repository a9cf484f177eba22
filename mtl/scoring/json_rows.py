"""JSON lines as serialized tf.Examples.

for chunk in json_rows.JsonLines(spec=spec, keep=["id"], batch_size=512).chunks(["in.jsonl"]): ...
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks
from mtl import spec as spec_lib
from mtl.data import files, source
from mtl.scoring import batches, examples

# The types of JSON that need no look at each value, for types of which they have the range.
_EXACT = {"float32": {int, float}, "int64": {int}, "string": {str}, "bool": {bool}}
_ARRAYS = {"float32": np.float32, "string": object}


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines:
    """A `readers.Format`."""

    spec: spec_lib.Spec
    keep: Sequence[str]
    batch_size: int

    def check(self, path: str) -> None:
        del path  # No row tells of another.

    def chunks(self, paths: Sequence[str]) -> Iterator[batches.Chunk]:
        for path in paths:
            lines = _lines(path)
            while some := list(itertools.islice(lines, self.batch_size)):
                numbers, rows = zip(*some, strict=True)
                yield batches.Chunk(path=path, numbers=numbers, rows=rows)

    def parse(self, chunk: batches.Chunk) -> batches.Batch:
        rows = _each(chunk, _object, chunk.rows)
        columns = {}
        for name, field in self.spec.feature_fields.items():
            values = _exact(field, [row.get(name) for row in rows])
            if values is None:
                values = _arrays(field, _each(chunk, functools.partial(_value, field), rows))
            columns[name] = values
        kept = {n: _each(chunk, functools.partial(batches.kept, n), rows) for n in self.keep}
        return batches.Batch(examples=examples.serialize(columns), kept=kept)

    def problem(self, chunk: batches.Chunk) -> str:
        del chunk  # Whatever is wrong with a line `parse` has said.
        return ""


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, numbered from 1."""
    number = 0
    try:
        with files.open_binary(path) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line
    except files.READ_ERRORS as error:
        problem = source.unreadable(error)
        raise checks.UserError(f"{path} line {number + 1}: {problem}") from error


def _each(chunk: batches.Chunk, make: Callable[[Any], Any], rows: Iterable[Any]) -> list[Any]:
    """`make` of each row; a ValueError becomes a UserError that names the line."""
    made: list[Any] = []
    try:
        for row in rows:
            made.append(make(row))
    except ValueError as error:
        line = chunk.numbers[len(made)]
        raise checks.UserError(f"{chunk.path} line {line}: {error}.") from error
    return made


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"must be JSON, {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"must be a JSON object, got {row!r}")
    return row


def _exact(field: spec_lib.Field, values: Sequence[Any]) -> np.ndarray | None:
    """The values as an array where all are of the field's very type and number."""
    flat = values
    if field.shape:
        # Of a field of variable length each value is converted, whatever its neighbours hold.
        if field.is_ragged or set(map(type, values)) != {list}:
            return None
        if set(map(len, values)) != {field.size}:
            return None
        flat = [item for value in values for item in value]
    if not set(map(type, flat)) <= _EXACT.get(field.dtype, set()):
        return None
    try:
        array = np.array(flat, _ARRAYS.get(field.dtype, np.int64))
    except OverflowError:
        return None
    return array.reshape(len(values), -1) if field.shape else array


def _arrays(field: spec_lib.Field, values: Sequence[Any]) -> list[np.ndarray]:
    return [np.array(value, _ARRAYS.get(field.dtype, np.int64)) for value in values]


def _value(field: spec_lib.Field, row: Mapping[str, Any]) -> Any:
    value = row.get(field.name)
    try:
        values = None if value is None else list(_flat(value))
        return field.value(values)
    except (TypeError, ValueError) as error:
        problem = error if isinstance(error, ValueError) else f"must be {field.dtype}"
        raise ValueError(f"field {field.name!r} {problem}") from error


def _flat(value: Any) -> Iterator[Any]:
    if not isinstance(value, list):
        yield value
        return
    for item in value:
        yield from _flat(item)
