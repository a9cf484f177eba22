"""Text files of SVMlight, LIBSVM and SVMrank, sparse vectors with a label; ".gz" is decompressed.

svm_light.SvmLight.files = {"train": "data/fold1/train.txt", "test": "data/fold1/test.txt"}
spec.Spec.features = {"features": ("float32", (136,))}
spec.Spec.labels = {"label": "int64", "qid": "int64"}

    2 qid:10 1:0.5 3:1.2 # document 7

If there are many different indexes, but only a few in each row, read each row as a list of ids with
weights:

spec.Spec.features = {"features": ("int64", (None,)), "features/weights": ("float32", (None,))}
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

# A pattern that matches lines without a row: blank lines and comments.
_DROPPED = r"[ \t\r]*(?:#.*)?"
_PAIRS = re.compile(rf"(?:[0-9]+:{literals.FINITE}(?: |$))*")
# In float32, larger numbers would be infinite.
_LARGEST = float(np.finfo(np.float32).max)


class Row(NamedTuple):
    """The label, the group and the numbers that one line of a file holds.

    Attributes:
      label: the label as a text.
      group: the text behind `qid:`; None without a group.
      indexes: the indexes in the line, int64 [n].
      numbers: the number behind each index, float32 [n].
    """

    label: str
    group: str | None
    indexes: np.ndarray
    numbers: np.ndarray


@checks.dataclass
class SvmLight(types.Source):
    """A source that reads lines such as `2 qid:10 1:0.5 3:1.2 # a remark`.

    The Spec decides whether a row is read as a vector or as a list. A vector has the size in the
    Spec, and 0 for each index that the line lacks. A list contains the indexes in the line, and the
    numbers behind the indexes are the weights of the list, as `features.Weighted` needs them.
    Indexes must increase. Python parses the lines, so set `Pipeline.cache = True` to parse each
    line only once.

    Attributes:
      files: {split: path or paths}, each a file or a glob.
      data_dir: the folder in which relative paths start; "" is the current folder.
      vector: the name of the feature for the pairs of an index and a number in a line. A float32
        feature of shape (D,) gets the numbers of these pairs, each at its index. An int64 feature
        of shape (None,) gets the indexes, and the feature `<vector>/weights` gets the numbers.
      label: the label, or feature, that gets the first value of a line.
      group: the label, or feature, that gets the value behind `qid:`; for `Ranking.group`.
      first_index: the index of the first number: 1, or 0 in files of some programs.
    """

    files: files.Files
    data_dir: Annotated[str, checks.Is(str, "be a folder")] = ""
    vector: checks.Name = "features"
    label: checks.Name = "label"
    group: checks.Name = "qid"
    first_index: Annotated[int, checks.OneOf([0, 1])] = 1

    def records(self, split: str) -> tf.data.Dataset:
        """Return the lines of a split.

        Raises:
          UserError: the split does not exist, a compressed file is truncated, or a file is not
            text.
        """
        return files.read_line_by_line(self._check(split), 0, _DROPPED).unbatch()

    def blocks(self, split: str) -> tf.data.Dataset:
        """Return the lines of a split, such as "train", as batches of lines."""
        return files.read_lines(self._check(split), 0, _DROPPED)

    def shard(self, split: str, num_shards: int, shard: int) -> SvmLight | None:
        """Return a source that reads every `num_shards`-th file; None if there are fewer files."""
        return files.shard(self, split, self._find(split), num_shards, shard)

    def decode(self, batch: tf.Tensor, spec: spec_lib.Spec, with_labels: bool) -> dict[str, Any]:
        """Turn lines [B] into {name: [B, ...]}."""
        fields = spec.fields if with_labels else spec.feature_fields
        self._check_fields(spec)

        def parse(lines: np.ndarray) -> np.ndarray:
            rows = [self._parse(line, spec) for line in lines]
            columns: dict[str, Any] = {}
            for name, field in fields.items():
                values = [self._read(field, row) for row in rows]
                columns[name] = values if field.is_ragged else np.array(values)
            return examples.serialize_examples(columns)

        serialized_rows = tf.numpy_function(parse, [batch], tf.string, stateful=False)
        serialized_rows.set_shape([batch.shape[0]])
        return spec.parse(serialized_rows, with_labels)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each line of a split that holds a row."""
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

    @property
    def _weights(self) -> str:
        """The name of the feature that gets the numbers if `vector` is a list of indexes."""
        return spec_lib.weights_name(self.vector)

    def _check_fields(self, spec: spec_lib.Spec) -> None:
        """Fail if a line cannot hold a field of `spec`; `spec` may lack the feature `vector`."""
        pair_names = [self.vector, *spec_lib.find_weighted(spec.fields)]
        names = dict.fromkeys([self.vector, self.label, self.group, *pair_names])
        for name, field in spec.fields.items():
            checks.one_of("a field of SvmLight", name, names)
            if name not in pair_names:
                checks.require(field.shape == (), f"field {name!r}", "hold one value", field.shape)
        if self.vector not in spec.fields:
            return
        field = spec.fields[self.vector]
        is_vector = field.dtype == "float32" and len(field.shape) == 1 and not field.is_ragged
        is_list = field.dtype == "int64" and field.is_ragged and not field.is_nested
        rule = "be a float32 of a shape (D,), or an int64 of shape (None,) for a list of indexes"
        kind = (field.dtype, field.shape)
        checks.require(is_vector or is_list, f"field {self.vector!r}", rule, kind)

    def _parse(self, line: bytes, spec: spec_lib.Spec) -> Row:
        vector = spec.fields.get(self.vector)
        if vector is None:
            return parse_line(line, None, self.first_index)
        last = literals.RANGES["int64"][1]
        if not vector.is_ragged:
            last = self.first_index + cast(int, vector.size) - 1
        return parse_line(line, last, self.first_index)

    def _scan(self, line: bytes, spec: spec_lib.Spec) -> dict[str, Any] | str:
        try:
            row = self._parse(line, spec)
        except ValueError as error:
            return f"{error}."
        return spec.example(functools.partial(self._list_values, row))

    def _list_values(self, row: Row, field: spec_lib.Field) -> list[Any] | None:
        numbers = self._take_pairs(row, field)
        if numbers is not None:
            return numbers.tolist()
        text = row.label if field.name == self.label else row.group
        return None if text is None else [text]

    def _take_pairs(self, row: Row, field: spec_lib.Field) -> np.ndarray | None:
        """Return the value of a field of indexes or numbers; None for another field."""
        if field.name == self._weights:
            return row.numbers
        if field.name != self.vector:
            return None
        if field.is_ragged:
            return row.indexes
        vector = np.zeros([field.size], np.float32)
        vector[row.indexes - self.first_index] = row.numbers
        return vector

    def _read(self, field: spec_lib.Field, row: Row) -> Any:
        numbers = self._take_pairs(row, field)
        if numbers is not None:
            return numbers
        try:
            return field.value(self._list_values(row, field))
        except spec_lib.AbsentError:
            raise ValueError(f"field {field.name!r} must be present") from None
        except ValueError as error:
            raise ValueError(f"field {field.name!r} {error}") from error


def parse_line(line: bytes, last_index: int | None, first_index: int = 1) -> Row:
    """Parse a line of an SVMlight file.

    Args:
      line: a line, such as b"2 qid:10 1:0.5 3:1.2 # a remark".
      last_index: the largest allowed index; None leaves out all pairs of an index and a number.
      first_index: the index of the first number of a vector, 0 or 1.

    Raises:
      ValueError: the line is malformed, or has an index outside of the vector.
    """
    try:
        label, *pairs = line.partition(b"#")[0].decode().split()
    except (UnicodeDecodeError, ValueError):
        raise ValueError("must be a label and pairs such as 3:0.5, in UTF-8") from None
    # A line may have a group, right behind the label.
    group = pairs.pop(0)[len("qid:") :] if pairs and pairs[0].startswith("qid:") else None
    # If the Spec lacks the feature for pairs of an index and a number, pairs are not parsed.
    if last_index is None or not pairs:
        return Row(label, group, np.zeros([0], np.int64), np.zeros([0], np.float32))
    # One match of the line is faster than a match of each pair.
    if not _PAIRS.fullmatch(" ".join(pairs)):
        bad_pair = next(pair for pair in pairs if not _PAIRS.fullmatch(pair))
        raise ValueError(f"must hold pairs such as 3:0.5, got {bad_pair[:40]!r}")
    return Row(label, group, *_read_pairs(":".join(pairs).split(":"), first_index, last_index))


def _read_pairs(parts: Sequence[str], first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Convert texts, which are an index and a number in turn, to int64 [n] and float32 [n]."""
    # Use integers of Python, because an index in a file may exceed int64.
    indexes = list(map(int, parts[::2]))
    for position, index in enumerate(indexes):
        if not first <= index <= last:
            index_text = parts[2 * position]
            raise ValueError(f"must hold indexes from {first} to {last}, got {index_text}")
        # A repeated index would silently replace a number.
        if position and index <= indexes[position - 1]:
            previous_text, index_text = parts[2 * position - 2], parts[2 * position]
            raise ValueError(
                f"must hold indexes that increase, got {index_text} behind {previous_text}"
            )
    values = np.array(list(map(float, parts[1::2])))
    if np.abs(values).max() > _LARGEST:
        raise ValueError("must hold numbers of float32, got a larger one")
    return np.array(indexes, np.int64), values.astype(np.float32)
