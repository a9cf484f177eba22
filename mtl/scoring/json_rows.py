"""JSON lines as serialized tf.Examples.

for chunk in json_rows.JsonLines(spec=spec, keep=["id"], batch_size=512).chunks(["in.jsonl"]): ...
"""

import dataclasses
import functools
import itertools
import json
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks
from mtl import spec as spec_lib
from mtl.data import examples, files, image_files, source
from mtl.scoring import batches, image_rows
from mtl.spec import nested

# Arrays of these JSON types fit the range of the field's type without a check of each value.
_EXACT: Mapping[str, set[type]] = {
    "float32": {int, float},
    "int64": {int},
    "string": {str},
    "bool": {bool},
}
# Python and Arrow recurse into kept values.
_MOST_LEVELS = 100
_ARRAYS = {"float32": np.float32, "string": object}


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines:
    """A `readers.Format`."""

    spec: spec_lib.Spec
    keep: Sequence[str]
    batch_size: int
    images: image_files.ImageFiles | None = None

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
        columns: dict[str, batches.Values] = {}
        for name, field in self.spec.feature_fields.items():
            if name in self.spec.counted:
                continue  # The values of a list of lists bring their counts.
            values: batches.Values | None = _exact(field, [row.get(name) for row in rows])
            if values is None:
                values = _arrays(field, _each(chunk, functools.partial(_value, field), rows))
            if field.dtype == "float32" and _has_infinity(values):
                _each(chunk, functools.partial(_check_text, field), chunk.rows)
            columns[name] = values
            if field.is_nested:
                counts = _each(chunk, functools.partial(_count_items, field), rows)
                columns[spec_lib.counts_name(name)] = [np.array(own, np.int64) for own in counts]
        columns = image_rows.read_columns(self.images, chunk, columns)
        kept = {n: _each(chunk, functools.partial(_kept, n), rows) for n in self.keep}
        return batches.Batch(examples=examples.serialize_examples(columns), kept=kept)

    def problem(self, chunk: batches.Chunk) -> str:
        # `parse` has already reported all other mistakes of a line.
        return image_rows.find_problem(self.images, chunk, _object)


def read_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of the lines of a file.

    Raises:
      UserError: a line is not a JSON object; names file and line.
    """
    for number, line in _lines(path):
        chunk = batches.Chunk(path=path, numbers=(number,), rows=(line,))
        yield from _each(chunk, _object, chunk.rows)


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, numbered from 1."""
    number = 0
    try:
        with files.open_binary(path) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line
    except files.list_read_errors() as error:
        problem = source.unreadable(error)
        raise checks.UserError(f"{path} line {number + 1}: {problem}") from error


def _each(chunk: batches.Chunk, make: Callable[[Any], Any], rows: Iterable[Any]) -> list[Any]:
    """Return the results of `make` for rows; a ValueError becomes a UserError with the line."""
    made: list[Any] = []
    try:
        for row in rows:
            made.append(make(row))
    except ValueError as error:
        line = chunk.numbers[len(made)]
        raise checks.UserError(f"{chunk.path} line {line}: {error}.") from error
    return made


def _object(line: bytes, parse_float: Callable[[str], Any] | None = None) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_float=parse_float)
    except UnicodeDecodeError as error:
        raise ValueError("must be text in UTF-8") from error
    except ValueError as error:
        raise ValueError(f"must be JSON, {error}") from error
    except RecursionError as error:
        raise ValueError(f"must be JSON with lists at most {_MOST_LEVELS} deep") from error
    if not isinstance(row, dict):
        raise ValueError(f"must be a JSON object, got {reprlib.repr(row)}")
    return row


def _exact(field: spec_lib.Field, values: Sequence[Any]) -> np.ndarray | None:
    """Return values as an array if all have exactly the field's type and size; else None."""
    flat = _join_lists(field, values) if field.shape else values
    if flat is None or not set(map(type, flat)) <= _EXACT.get(field.dtype, set()):
        return None
    try:
        if field.dtype == "string":
            "".join(flat).encode()
        with np.errstate(over="ignore"):
            array = np.array(flat, _ARRAYS.get(field.dtype, np.int64))
    except (OverflowError, UnicodeEncodeError):
        return None
    return array.reshape(len(values), -1) if field.shape else array


def _join_lists(field: spec_lib.Field, values: Sequence[Any]) -> list[Any] | None:
    """Return the items of all lists; None unless all are lists of the field's size."""
    # Values of a field of variable length are converted one by one.
    if field.is_ragged or set(map(type, values)) != {list}:
        return None
    if set(map(len, values)) != {field.size}:
        return None
    return [item for value in values for item in value]


def _has_infinity(values: np.ndarray | Sequence[np.ndarray]) -> bool:
    parts = [values] if isinstance(values, np.ndarray) else values
    return any(np.isinf(part).any() for part in parts)


def _arrays(field: spec_lib.Field, values: Sequence[Any]) -> list[np.ndarray]:
    return [np.array(value, _ARRAYS.get(field.dtype, np.int64)) for value in values]


def _value(field: spec_lib.Field, row: Mapping[str, Any]) -> Any:
    value = row.get(field.name)
    try:
        nested.require_no_list(field, value)
        values = None if value is None else nested.flatten(field, value)
        return field.value(values)
    except (TypeError, ValueError) as error:
        problem = error if isinstance(error, ValueError) else f"must be {field.dtype}"
        raise ValueError(f"field {field.name!r} {problem}") from error


def _check_text(field: spec_lib.Field, line: bytes) -> None:
    """Fail if a field holds a number such as 1e999, which Python reads as infinity."""
    _value(field, _object(line, parse_float=str))


def _count_items(field: spec_lib.Field, row: Mapping[str, Any]) -> list[int]:
    """Return the number of values of each item of a list of lists; lines may omit the counts."""
    name, counts = (
        spec_lib.counts_name(field.name),
        [len(item) for item in row.get(field.name) or ()],
    )
    told = row.get(name)
    if told is not None and told != counts:
        raise ValueError(f"field {name!r} must be left out, or {counts}, got {reprlib.repr(told)}")
    return counts


def _kept(name: str, row: Mapping[str, Any]) -> Any:
    value = batches.kept(name, row)
    level = [value]
    for _ in range(_MOST_LEVELS):
        for text in level:
            if isinstance(text, str) and not _is_text(text):
                raise ValueError(f"field {name!r} must be text, got {text!r}")
        level = [item for part in level for item in _items(part)]
        if not level:
            return value
    raise ValueError(f"field {name!r} must be at most {_MOST_LEVELS} lists deep")


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else ()


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
