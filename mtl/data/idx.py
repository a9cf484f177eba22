"""Arrays in IDX files, the format of MNIST; files that end in ".gz" are decompressed.

idx.Idx.files = {"train": {"image": "images-idx3-ubyte.gz", "digit": "labels-idx1-ubyte.gz"}}
idx.Idx.data_dir = "data/mnist"
pipeline.Pipeline.source = @idx.Idx()
"""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np

from mtl import checks, deferred, types
from mtl import spec as spec_lib
from mtl.data import files, source
from mtl.deferred import tf

with deferred.imports():
    from mtl.data import copies
    from mtl.files import remote

# {third byte of an IDX file: type of the elements}; elements are big-endian.
_TYPES = {8: "uint8", 9: "int8", 11: "int16", 12: "int32", 13: "float32", 14: "float64"}
_FIXED = "name a file for each field, such as {'image': 'images-idx3-ubyte'}"


@dataclasses.dataclass(frozen=True)
class _Array:
    """The header of an IDX file with an array of shape [rows, *shape]."""

    path: str
    dtype: str
    rows: int
    shape: tuple[int, ...]

    @property
    def header_bytes(self) -> int:
        # A header has four bytes for the format, and four bytes for the size of each axis.
        return 4 * (2 + len(self.shape))

    @property
    def record_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@checks.dataclass
class Idx(types.Source):
    """A source that reads one array for each field; row i of all arrays belongs to example i.

    Files are streamed, not kept in memory. At the first use of a compressed file, the process reads
    the whole file to check that it is complete.

    Attributes:
      files: {split: {field: path}}.
      data_dir: the folder in which relative paths start; "" is the current folder.
    """

    files: Annotated[Mapping[str, Mapping[str, str]], checks.Map("map splits to {field: file}")]
    data_dir: str = ""

    def __post_init__(self):
        for split, paths in self.files.items():
            where = f"Idx.files[{split!r}]"
            checks.mapping(where, paths, _FIXED)
            checks.require(bool(paths), where, _FIXED, dict(paths))
            for path in paths.values():
                checks.is_a(where, path, str, _FIXED)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split as {field: bytes}.

        Raises:
          UserError: the split or a file does not exist, a file is damaged, the files of a split
            differ in their numbers of rows, or a file differs in type or shape from the file of the
            same field in the first split.
        """
        arrays = self._read_headers(split)
        return tf.data.Dataset.zip(
            {
                field: copies.Reader([array.path]).pieces(
                    array.path,
                    array.record_bytes,
                    array.header_bytes,
                    compression=files.compression(array.path),
                )
                for field, array in arrays.items()
            }
        )

    def _read_headers(self, split: str) -> dict[str, _Array]:
        """Return {field: header of the file}; fail if files differ in their numbers of rows."""
        checks.one_of("Idx.files split", split, self.files)
        arrays = {}
        for field, path in self.files[split].items():
            full_path = self._find(split, path)
            files.check_whole(full_path)
            arrays[field] = _read_header(full_path)
        rows = {array.path: array.rows for array in arrays.values()}
        rule = "hold files with the same number of rows"
        checks.require(len(set(rows.values())) == 1, f"Idx.files[{split!r}]", rule, rows)
        for field, array in arrays.items():
            first = self._first.get(field, array)
            rule = f"hold {first.dtype} of shape {first.shape}, as in {first.path}"
            is_same = (array.dtype, array.shape) == (first.dtype, first.shape)
            checks.require(is_same, array.path, rule, (array.dtype, array.shape))
        return arrays

    @functools.cached_property
    def _first(self) -> dict[str, _Array]:
        """{field: header of the file in the first split}, as `decode` cannot know the split."""
        split, paths = next(iter(self.files.items()))
        return {field: _read_header(self._find(split, path)) for field, path in paths.items()}

    def _find(self, split: str, path: str) -> str:
        """Return the file of a field in a split; fail if a glob matches several files."""
        matches = files.find("Idx.files", {split: path}, split, self.data_dir)
        rule = "name one file for each field"
        checks.require(len(matches) == 1, f"Idx.files[{split!r}]", rule, matches)
        return matches[0]

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, tf.Tensor]:
        """Turn {field: bytes [B]} into the values of fields, {name: [B, ...]}."""
        fields = spec.fields if with_labels else spec.feature_fields
        return {name: self._decode(batch, field) for name, field in fields.items()}

    def _decode(self, batch: Mapping[str, tf.Tensor], field: spec_lib.Field) -> tf.Tensor:
        checks.one_of(f"Idx field {field.name!r}", field.name, batch)
        array = _array_of(field, self._first)
        values = tf.io.decode_raw(batch[field.name], array.dtype, little_endian=False)
        rows = batch[field.name].shape[0]
        return field.cast(tf.reshape(values, [-1 if rows is None else rows, *field.shape]))

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each row of a split."""
        arrays = self._read_headers(split)
        readers = {
            name: _scan_rows(_array_of(field, arrays), field) for name, field in spec.fields.items()
        }
        for index, values in enumerate(zip(*readers.values(), strict=False)):
            row = dict(zip(readers, values, strict=True))
            problems = (value for value in row.values() if isinstance(value, str))
            yield f"Idx.files[{split!r}] row {index}", next(problems, row)


def _read_header(path: str) -> _Array:
    try:
        return _parsed_header(path)
    except files.list_read_errors() as error:
        raise checks.UserError(f"{path}: {source.unreadable(error)}") from error


def _parsed_header(path: str) -> _Array:
    with files.open_binary(path) as file:
        start = file.read(4)
        # An IDX file starts with two zero bytes, the type, and the number of axes.
        is_known = len(start) == 4 and start[:2] == b"\0\0" and start[2] in _TYPES and start[3] > 0
        checks.require(
            is_known, path, "be an IDX file", start, "Its first bytes give the type and the rank."
        )
        sizes = file.read(4 * start[3])
        checks.require(len(sizes) == 4 * start[3], path, "be a whole IDX file", start + sizes)
        # The sizes of the axes are big-endian, like the elements.
        rows, *shape = struct.unpack(f">{start[3]}i", sizes)
    rule = "have sizes above 0"
    checks.require(rows >= 0 and min(shape, default=1) > 0, path, rule, (rows, *shape))
    array = _Array(path, _TYPES[start[2]], rows, tuple(shape))
    num_bytes = array.header_bytes + rows * array.record_bytes
    rule = f"hold {num_bytes} bytes, because its header says {rows} rows"
    # gzip stores the size modulo 2^32, so both sizes are compared modulo 2^32.
    checks.require(_measure_size(path) == num_bytes % 2**32, path, rule, _measure_size(path))
    return array


def _measure_size(path: str) -> int:
    """Return the uncompressed size of a file in bytes, modulo 2^32."""
    with tf.io.gfile.GFile(remote.copy_here(path), "rb") as file:
        if not files.compression(path):
            return file.size() % 2**32
        file.seek(file.size() - 4)
        return struct.unpack("<I", file.read(4))[0]


def _array_of(field: spec_lib.Field, arrays: Mapping[str, _Array]) -> _Array:
    """Return the header of a field's file; fail unless the array in the file suits the field."""
    where = f"Idx field {field.name!r}"
    checks.one_of(where, field.name, arrays)
    array = arrays[field.name]
    is_float = array.dtype.startswith("float")
    # Floats may have fractions, which a field of whole numbers cannot hold.
    fits = field.dtype == "float32" or (field.dtype in ("int64", "uint8") and not is_float)
    checks.require(fits, where, f"hold {field.dtype}", array.dtype, "Change it in the Spec.")
    is_same = not field.is_ragged and field.size == math.prod(array.shape)
    fix = f"Make it {array.shape} in the Spec."
    checks.require(is_same, where, f"have shape {field.shape}", array.shape, fix)
    return array


def _scan_rows(array: _Array, field: spec_lib.Field) -> Iterator[Any]:
    """Yield each row of an array as a Python value, or as an error message."""
    with files.open_binary(array.path) as file:
        file.read(array.header_bytes)
        for _ in range(array.rows):
            data = file.read(array.record_bytes)
            try:
                values = np.frombuffer(data, np.dtype(array.dtype).newbyteorder(">"))
                yield field.value(values.tolist())
            except ValueError as error:
                yield f"field {field.name!r} {error}."
