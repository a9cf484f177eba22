"""JSON lines: text files with a JSON object in each line; ".gz" is decompressed.

json_lines.JsonLines.files = {"train": "data/train-*.jsonl", "test": "data/test.jsonl"}

    {"age": 39, "words": ["a", "b"], "clicked": 1}

`launch.predict` and `launch.evaluate` read JSON lines with the functions of this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Protocol

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import (
    csv,
    examples,
    files,
    json_columns,
    packed,
    source,
    weighted_lists,
    written_numbers,
)
from mtl.deferred import tf
from mtl.spec import literals, nested

# {type of a field: types of JSON values that need no check of each value}.
_EXACT: Mapping[str, set[type]] = {
    "float32": {int, float},
    "int64": {int},
    "string": {str},
    "bool": {bool},
}
# The greatest depth of nested lists, which bounds the recursion of Python and Arrow.
MOST_LEVELS = 100
_ARRAYS = {"float32": np.float32, "string": object}
_BLANK = r"[ \t\r]*"
# The names of fields are searched in the first `_SEARCHED` lines.
_SEARCHED = 1000

Values = Sequence[Any] | np.ndarray


class Each(Protocol):
    """A function that applies another function to each row; a ValueError then names the row."""

    def __call__(self, make: Callable[[Any], Any], rows: Iterable[Any]) -> list[Any]:
        """Return [make(row)] for B rows."""


@checks.dataclass
class JsonLines(types.Source):
    """A source that reads JSON lines.

    An object holds a value or a list for each field. A field is absent if the object lacks the
    field or has null. An empty text is also absent, unless the field has no default. An absent
    value becomes the default of the field. An absent label becomes a missing label, even if the
    label is a list. An absent list of a feature becomes empty. A field that no object of the first
    split has is an error. Other keys of an object are ignored. Spaces around a text are dropped,
    unless the text is in a list. A number may be in quotes. A text such as "a|b" in place of a list
    is an error. At the first use of a compressed file, the process reads the whole file to check
    that it is complete.

    If training keeps the rows in memory (`Pipeline.cache`), Arrow parses the lines once. If Arrow
    would read a line differently from Python, such as a number in quotes, Python parses all lines
    once. Without `Pipeline.cache`, Python parses all lines in every epoch.

    Attributes:
      files: {split: path or paths}, each a file or a glob.
      data_dir: the folder in which relative paths start; "" is the current folder.
      cells: settings that say how texts are parsed, such as marks of absent values and formats of
        numbers; a list is never written as a text. With `cells = None`, every text that is not
        empty is a value.
    """

    files: files.Files
    data_dir: Annotated[str, checks.Is(str, "be a folder")] = ""
    # The repr leaves out this setting, because a resumed run compares the repr with the saved
    # repr, which lacks the setting if an older version saved it.
    cells: Annotated[csv.Csv, checks.Is(csv.Csv, "be built, such as @csv.Csv()")] | None = (
        dataclasses.field(default=None, repr=False)
    )

    def records(self, split: str) -> tf.data.Dataset:
        """Return the lines of a split.

        Raises:
          UserError: the split does not exist, or a compressed file is truncated.
        """
        return files.read_line_by_line(self._check_split(split), 0, _BLANK).unbatch()

    def blocks(self, split: str) -> tf.data.Dataset:
        """Return the lines of a split, such as "train", as batches of lines."""
        return files.read_lines(self._check_split(split), 0, _BLANK)

    def estimate_bytes(self, split: str) -> int:
        """Estimate the memory that the rows take by the size of the files."""
        return files.estimate_bytes(self._find(split))

    def shard(self, split: str, num_shards: int, shard: int) -> JsonLines | None:
        """Return a source that reads every `num_shards`-th file; None if there are fewer files."""
        return files.shard(self, split, self._find(split), num_shards, shard)

    def decode(self, batch: tf.Tensor, spec: spec_lib.Spec, with_labels: bool) -> dict[str, Any]:
        """Turn lines [B] into the values of fields, {name: [B, ...]}."""
        fields = mark_parts(spec.fields if with_labels else spec.feature_fields)
        names = [field.column for name, field in fields.items() if name not in spec.counted]
        self._check_fields(names)

        def parse(lines: np.ndarray) -> np.ndarray:
            rows = [parse_object(line) for line in lines]
            columns = read_columns(rows, list(lines), fields, spec.counted, _map, self.cells)
            return examples.serialize_examples(columns)

        serialized_rows = tf.numpy_function(parse, [batch], tf.string, stateful=False)
        serialized_rows.set_shape([batch.shape[0]])
        return spec.parse(serialized_rows, with_labels)

    def read_values(
        self, split: str, spec: spec_lib.Spec
    ) -> Iterator[Mapping[str, packed.Values]] | None:
        """Return {field: values} of a split in blocks of rows; None if texts need `cells`."""
        fields = mark_parts(spec.fields)
        names = [field.column for name, field in fields.items() if name not in spec.counted]
        self._check_fields(names)
        if self.cells is not None:
            return None
        return json_columns.read_files(self._find(split), fields)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each line of a split."""
        fields = mark_parts(spec.fields)
        read_row = _make_reader(fields, self.cells) if self.cells else dict
        for path in self._find(split):
            for number, line in read_lines(path):
                values = line if isinstance(line, str) else _scan(line, spec, fields, read_row)
                yield f"{path} line {number}", values

    @property
    def names(self) -> list[str]:
        """The keys of the first objects in the first file; [] if a line is malformed."""
        return list(self._kinds)

    @functools.cached_property
    def _kinds(self) -> dict[str, set[type]]:
        """{key: types of the values in the first objects, except null; 7.0 counts as an int}."""
        kinds: dict[str, set[type]] = {}
        path = self._find(next(iter(self.files)))[0]
        try:
            for _, line in itertools.islice(read_lines(path), _SEARCHED):
                row = {} if isinstance(line, str) else parse_object(line)
                for key, value in row.items():
                    kinds.setdefault(key, set()).update(
                        [] if value is None else [_find_type(value)]
                    )
        except ValueError:  # The next reader of the file reports the bad line.
            return {}
        return kinds

    def find_key_type(self, name: str) -> str:
        """Return "int64" if a key has only whole numbers in the first objects, else "string"."""
        return "int64" if self._kinds.get(name) == {int} else "string"

    def _check_fields(self, names: Iterable[str]) -> None:
        """Fail if no object of the first split has a field: its name may be misspelt."""
        paths = self._find(next(iter(self.files)))
        for name in names if self.names else ():
            if name in self._kinds or name in self._late_names:
                continue
            if any(_has_key(path, name) for path in paths):
                self._late_names.add(name)
            else:
                where = f"{paths[0]}: the key of field {name!r}, which no object has,"
                checks.one_of(where, name, self.names)

    @functools.cached_property
    def _late_names(self) -> set[str]:
        """The fields that were found so far, but not in the first objects of the first file."""
        return set()

    def _check_split(self, split: str) -> list[str]:
        """Return the files of a split; fail if a compressed file is truncated."""
        paths = self._find(split)
        for path in paths:
            files.check_whole(path)
        return paths

    def _find(self, split: str) -> list[str]:
        return files.find("JsonLines.files", self.files, split, self.data_dir)


def _has_key(path: str, name: str) -> bool:
    """Return True if an object of a file has a key."""
    # A search for the bytes of the name is faster than parsing each line.
    quoted = json.dumps(name, ensure_ascii=False).encode()
    # Programs escape characters other than ASCII letters, digits, "_", "-", "." and spaces in
    # different ways, so the bytes of the name may differ.
    is_plain = re.fullmatch(r"[\w .-]+", name, re.ASCII) is not None
    for _, line in read_lines(path):
        # The next reader of the file reports an error, a str, or a line that is not JSON.
        if isinstance(line, bytes) and (quoted in line or (b"\\" in line and not is_plain)):
            with contextlib.suppress(ValueError):
                if name in parse_object(line):
                    return True
    return False


def _find_type(value: Any) -> type:
    """Return the type of a value; int for whole numbers such as 7.0, as pandas writes them."""
    return int if isinstance(value, float) and value.is_integer() else type(value)


def mark_parts(fields: Mapping[str, spec_lib.Field]) -> Mapping[str, spec_lib.Field]:
    """Return the fields, with `part_of` set for the keys and weights of lists with weights."""
    return weighted_lists.mark_parts(fields) if spec_lib.find_weighted(fields) else fields


def _map(make: Callable[[Any], Any], rows: Iterable[Any]) -> list[Any]:
    return [make(row) for row in rows]


def _scan(
    line: bytes,
    spec: spec_lib.Spec,
    fields: Mapping[str, spec_lib.Field],
    read_row: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> dict[str, Any] | str:
    try:
        row = read_row(parse_object(line))
        for field in spec.feature_fields.values():
            if field.is_nested:
                count_items(field, row)
    except ValueError as error:
        return f"{error}."

    def read(field: spec_lib.Field) -> Sequence[Any] | None:
        if field.name in spec.counted:
            return count_items(spec.fields[spec.counted[field.name]], row)
        return _list_values(fields[field.name], row)

    try:
        return spec.example(read)
    except TypeError as error:
        return f"{error}."


def read_lines(path: str) -> Iterator[tuple[int, bytes | str]]:
    """Yield the lines of a file that are not blank.

    Args:
      path: the file, which is decompressed if its name ends in ".gz".

    Yields:
      Pairs of the line number, from 1, and the line as bytes. If the file cannot be read further,
      the last element has an error message, a str, in place of the line.
    """
    number = 0
    try:
        with files.open_binary(path) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line.rstrip(b"\r\n")
    except files.list_read_errors() as error:
        yield number + 1, source.unreadable(error)


def parse_object(line: bytes, parse_float: Callable[[str], Any] | None = None) -> dict[str, Any]:
    """Parse a line as a JSON object.

    Raises:
      ValueError: the line is not a JSON object.
    """
    try:
        row = json.loads(line, parse_float=parse_float)
    except UnicodeDecodeError as error:
        raise ValueError("must be text in UTF-8") from error
    except ValueError as error:
        raise ValueError(f"must be JSON, {error}") from error
    except RecursionError as error:
        raise ValueError(f"must be JSON with lists at most {MOST_LEVELS} deep") from error
    if not isinstance(row, dict):
        raise ValueError(f"must be a JSON object, got {reprlib.repr(row)}")
    return row


def read_columns(
    rows: Sequence[Mapping[str, Any]],
    lines: Sequence[bytes],
    fields: Mapping[str, spec_lib.Field],
    counted: Mapping[str, str],
    each: Each,
    cells: csv.Csv | None = None,
) -> dict[str, Values]:
    """Return {field: its values in B objects}.

    Args:
      rows: the B objects, each parsed from one line.
      lines: the line of text that contains each object.
      fields: {name: field}.
      counted: {field of counts: field of nested lists}, as in `Spec.counted`.
      each: a function that maps another function over the rows, and names the row of an error.
      cells: settings that say how texts are parsed; see `JsonLines.cells`.
    """
    rows = each(_make_reader(fields, cells), rows) if cells else rows
    columns: dict[str, Values] = {}
    for name, field in fields.items():
        if name in counted:
            continue  # The counts of items are added with their nested lists below.
        values: Values | None = _to_exact_array(field, [row.get(name) for row in rows])
        if values is None:
            values = _to_arrays(field, each(functools.partial(read_value, field), rows))
        # Infinity may be the result of a number that is too large, so the lines are checked.
        if field.dtype == "float32" and _has_infinity(values):
            each(functools.partial(_check_text, field), zip(values, lines, strict=True))
        columns[name] = values
        if field.is_nested:
            counts = each(functools.partial(count_items, field), rows)
            columns[spec_lib.counts_name(name)] = [
                np.array(row_counts, np.int64) for row_counts in counts
            ]
    return columns


def _to_exact_array(field: spec_lib.Field, values: Sequence[Any]) -> np.ndarray | None:
    """Convert values to an array; None unless all values match the field's type and size."""
    flat = _join_lists(field, values) if field.shape else values
    if flat is None or not set(map(type, flat)) <= _EXACT.get(field.dtype, set()):
        return None
    try:
        if field.dtype == "string":
            flat = flat if field.shape else _fill_texts(field, flat)
            # Refuse a single half of a surrogate pair, which JSON can contain, but UTF-8 cannot.
            "".join(flat).encode()
        with np.errstate(over="ignore"):
            array = np.array(flat, _ARRAYS.get(field.dtype, np.int64))
    except (OverflowError, UnicodeEncodeError):
        return None
    return array.reshape(len(values), -1) if field.shape else array


def _fill_texts(field: spec_lib.Field, texts: Sequence[str]) -> list[str]:
    """Drop the spaces around texts, and replace empty texts by the default if there is one."""
    default = field.default or ""
    return [text.strip(literals.SPACES) or default for text in texts]


def _join_lists(field: spec_lib.Field, values: Sequence[Any]) -> list[Any] | None:
    """Return the items of all lists; None unless each value is a list of the field's size."""
    # Lists of variable length are converted one by one.
    if field.is_ragged or set(map(type, values)) != {list}:
        return None
    if set(map(len, values)) != {field.size}:
        return None
    return [item for value in values for item in value]


def _has_infinity(values: Values) -> bool:
    parts = [values] if isinstance(values, np.ndarray) else values
    return any(np.isinf(part).any() for part in parts)


def _to_arrays(field: spec_lib.Field, values: Sequence[Any]) -> list[np.ndarray]:
    return [np.array(value, _ARRAYS.get(field.dtype, np.int64)) for value in values]


def read_value(field: spec_lib.Field, row: Mapping[str, Any]) -> Any:
    """Return the value of a field in an object.

    Raises:
      ValueError: the value does not suit the field.
    """
    try:
        return field.value(_list_values(field, row))
    except (TypeError, ValueError) as error:
        problem = error if isinstance(error, ValueError) else f"must be {field.dtype}"
        raise ValueError(f"field {field.name!r} {problem}") from error


def _list_values(field: spec_lib.Field, row: Mapping[str, Any]) -> list[Any] | None:
    """Return the values of a field in an object; None if the field is absent."""
    value = weighted_lists.take_member(field, row) if field.part_of else row.get(field.name)
    nested.require_no_list(field, value)
    if isinstance(value, str) and field.dtype == "string" and not field.shape:
        # As in a CSV file: an empty text is absent, unless the field has no default.
        text = value.strip(literals.SPACES)
        return [text] if text or field.is_required else None
    return None if value is None else nested.flatten(field, value)


def _check_text(field: spec_lib.Field, read: tuple[Any, bytes]) -> None:
    """Fail if a line has a number such as 1e999 in a field, because Python reads it as infinity."""
    value, line = read
    if np.isinf(value).any():
        read_value(field, parse_object(line, parse_float=str))


def _make_reader(
    fields: Mapping[str, spec_lib.Field], cells: csv.Csv
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function that reads the texts of an object by the settings `cells`."""
    # A list is never a text here, so an empty text in place of a list is absent.
    marks = {
        name: {*cells.list_marks(field), *([""] if field.is_ragged else [])}
        for name, field in fields.items()
    }
    forms = {n: cells.find_form(field) for n, field in fields.items() if not field.part_of}

    def read(row: Mapping[str, Any]) -> dict[str, Any]:
        plain = dict(row)
        for field_name, field in fields.items():
            name, form = field.part_of or field_name, forms.get(field_name)
            value = plain.get(name)
            if not isinstance(value, str):
                continue
            text = value.strip(literals.SPACES)
            if text in marks[field_name]:
                plain[name] = None
            elif form:
                plain[name] = written_numbers.to_plain(form, text)
            else:
                _require_no_list(field, text, cells.list_delimiter)
        return plain

    return read


def _require_no_list(field: spec_lib.Field, text: str, delimiter: str) -> None:
    try:
        nested.require_no_list(field, text, delimiter)
    except ValueError as error:
        raise ValueError(f"field {field.name!r} {error}") from error


def count_items(field: spec_lib.Field, row: Mapping[str, Any]) -> list[int]:
    """Return the number of values in each item of a nested list in an object.

    Raises:
      ValueError: the object also contains a field with the numbers of values, and these numbers
        differ from the nested list.
    """
    name, counts = (
        spec_lib.counts_name(field.name),
        [len(item) for item in row.get(field.name) or ()],
    )
    line_counts = row.get(name)
    if line_counts is not None and line_counts != counts:
        raise ValueError(
            f"field {name!r} must be left out, or {counts}, got {reprlib.repr(line_counts)}"
        )
    return counts
