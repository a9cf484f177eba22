"""Text files of SVMlight, LIBSVM and SVMrank: sparse numbers with a label, ".gz" is decompressed.

svm_light.SvmLight.files = {"train": "data/fold1/train.txt", "test": "data/fold1/test.txt"}
spec.Spec.features = {"features": ("float32", (136,))}
spec.Spec.labels = {"label": "int64", "qid": "int64"}

    2 qid:10 1:0.5 3:1.2 # document 7
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple, cast

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import examples, files, json_lines
from mtl.deferred import tf
from mtl.spec import literals

# A pattern of lines without a row.
_DROPPED = r"[ \t\r]*(?:#.*)?"
_PAIRS = re.compile(rf"(?:[0-9]+:{literals.FINITE}(?: |$))*")
# In float32, larger numbers would be infinite.
_LARGEST = float(np.finfo(np.float32).max)


class Row(NamedTuple):
    """The row of a line: the label and group as texts, and all numbers, float32 [D]."""

    label: str
    group: str | None
    numbers: np.ndarray


@checks.dataclass
class SvmLight(types.Source):
    """A source that reads lines such as `2 qid:10 1:0.5 3:1.2 # a remark`.

    A row is a vector of the size in the Spec: absent indexes are 0. Indexes must increase. Python
    parses the lines: set `Pipeline.cache = True`, so that it does so once.

    Attributes:
      files: {split: path or paths}, each a file or a glob.
      data_dir: where relative paths start; "" is the current directory.
      vector: the feature that gets the numbers, of type float32 and shape (D,).
      label: the label, or feature, that gets the first value of a line.
      group: the label, or feature, that gets the value behind `qid:`; for `Ranking.group`.
      first_index: the index of the first number: 1, or 0 as some programs write it.
    """

    files: files.Files
    data_dir: Annotated[str, checks.Is(str, "be a folder")] = ""
    vector: checks.Name = "features"
    label: checks.Name = "label"
    group: checks.Name = "qid"
    first_index: Annotated[int, checks.OneOf([0, 1])] = 1

    def records(self, split: str) -> tf.data.Dataset:
        """Return the lines of a split."""
        return files.read_line_by_line(self._check(split), 0, _DROPPED).unbatch()

    def blocks(self, split: str) -> tf.data.Dataset:
        """Return the lines of a split, such as "train", as batches of lines."""
        return files.read_lines(self._check(split), 0, _DROPPED)

    def shard(self, split: str, num_shards: int, shard: int) -> SvmLight | None:
        """Return the source of every `num_shards`-th file of a split; None if there are fewer."""
        return files.shard(self, split, self._find(split), num_shards, shard)

    def decode(self, batch: tf.Tensor, spec: spec_lib.Spec, with_labels: bool) -> dict[str, Any]:
        """Turn lines [B] into {name: [B, ...]}."""
        fields = spec.fields if with_labels else spec.feature_fields
        self._check_fields(spec)

        def parse(lines: np.ndarray) -> np.ndarray:
            rows = [self._parse(line, spec) for line in lines]
            columns = {name: [self._read(field, r) for r in rows] for name, field in fields.items()}
            arrays = {name: np.array(values) for name, values in columns.items()}
            return examples.serialize_examples(arrays)

        serialized_rows = tf.numpy_function(parse, [batch], tf.string, stateful=False)
        serialized_rows.set_shape([batch.shape[0]])
        return spec.parse(serialized_rows, with_labels)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Read the split line by line."""
        self._check_fields(spec)
        pattern = re.compile(_DROPPED.encode())
        for path in self._find(split):
            for number, line in json_lines.read_lines(path):
                if isinstance(line, str):
                    yield f"{path} line {number}", line
                elif not pattern.fullmatch(line):
                    yield f"{path} line {number}", self._scan(line, spec)

    def _check(self, split: str) -> list[str]:
        paths = self._find(split)
        for path in paths:
            files.check_whole(path)
            files.check_text(path)
        return paths

    def _find(self, split: str) -> list[str]:
        return files.find("SvmLight.files", self.files, split, self.data_dir)

    def _check_fields(self, spec: spec_lib.Spec) -> None:
        """Fail if a line cannot hold a field; a specification for a sampler may lack the vector."""
        names = {"vector": self.vector, "label": self.label, "group": self.group}
        for name, field in spec.fields.items():
            checks.one_of("a field of SvmLight", name, names.values())
            if name != self.vector:
                checks.require(field.shape == (), f"field {name!r}", "hold one value", field.shape)
        if self.vector not in spec.fields:
            return
        field = spec.fields[self.vector]
        is_vector = field.dtype == "float32" and len(field.shape) == 1 and not field.is_ragged
        rule, kind = "be a float32 of a shape (D,)", (field.dtype, field.shape)
        checks.require(is_vector, f"field {self.vector!r}", rule, kind)

    def _parse(self, line: bytes, spec: spec_lib.Spec) -> Row:
        vector = spec.fields.get(self.vector)
        return parse_line(line, cast(int, vector.size) if vector else None, self.first_index)

    def _scan(self, line: bytes, spec: spec_lib.Spec) -> dict[str, Any] | str:
        try:
            row = self._parse(line, spec)
        except ValueError as error:
            return f"{error}."
        return spec.example(functools.partial(self._list_values, row))

    def _list_values(self, row: Row, field: spec_lib.Field) -> list[Any] | None:
        if field.name == self.vector:
            return row.numbers.tolist()
        text = row.label if field.name == self.label else row.group
        return None if text is None else [text]

    def _read(self, field: spec_lib.Field, row: Row) -> Any:
        if field.name == self.vector:
            return row.numbers
        try:
            return field.value(self._list_values(row, field))
        except spec_lib.AbsentError:
            raise ValueError(f"field {field.name!r} must be present") from None
        except ValueError as error:
            raise ValueError(f"field {field.name!r} {error}") from error


def parse_line(line: bytes, size: int | None, first_index: int = 1) -> Row:
    """Return the row of a line.

    Args:
      line: such as b"2 qid:10 1:0.5 3:1.2 # a remark".
      size: the number of numbers of a row; None leaves them out.
      first_index: the index of the first number.

    Raises:
      ValueError: the line is malformed, or has an index outside of the vector.
    """
    try:
        label, *pairs = line.partition(b"#")[0].decode().split()
    except (UnicodeDecodeError, ValueError):
        raise ValueError("must be a label and pairs such as 3:0.5, in UTF-8") from None
    # A line may have a group, right behind the label.
    group = pairs.pop(0)[len("qid:") :] if pairs and pairs[0].startswith("qid:") else None
    numbers = np.zeros([size or 0], np.float32)
    # Without the vector in the Spec, pairs are not parsed.
    if size is None or not pairs:
        return Row(label, group, numbers)
    # One match of the line is faster than a match of each pair.
    if not _PAIRS.fullmatch(" ".join(pairs)):
        bad_pair = next(pair for pair in pairs if not _PAIRS.fullmatch(pair))
        raise ValueError(f"must hold pairs such as 3:0.5, got {bad_pair[:40]!r}")
    _fill_numbers(numbers, ":".join(pairs).split(":"), first_index)
    return Row(label, group, numbers)


def _fill_numbers(numbers: np.ndarray, parts: Sequence[str], first_index: int) -> None:
    """Write values into `numbers`; `parts` has an index and a value in turn, as texts."""
    size = len(numbers)
    # Integers of Python, because an index in a file may exceed int64.
    indexes = np.array(list(map(int, parts[::2])), object) - first_index
    values = np.array(list(map(float, parts[1::2])))
    last = first_index + size - 1
    for position, index in enumerate(indexes):
        if not 0 <= index < size:
            index_text = parts[2 * position]
            raise ValueError(f"must hold indexes from {first_index} to {last}, got {index_text}")
        # A repeated index would silently replace a number.
        if position and index <= indexes[position - 1]:
            previous_text, index_text = parts[2 * position - 2], parts[2 * position]
            raise ValueError(
                f"must hold indexes that increase, got {index_text} behind {previous_text}"
            )
    if np.abs(values).max() > _LARGEST:
        raise ValueError("must hold numbers of float32, got a larger one")
    numbers[indexes.astype(np.int64)] = values
