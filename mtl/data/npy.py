"""A source with one NumPy file per field and row, the format of NYUv2 and CityScapes in LibMTL.

npy.Npy.folders = {"train": "train", "test": "val"}          # train/image/0.npy, train/label/0.npy
npy.Npy.data_dir = "data/nyuv2"
npy.Npy.rename = {"kind": "label"}                           # {field: its folder}
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import files, source
from mtl.deferred import tf, tf1
from mtl.files import storage

_ENDING = ".npy"
# In version 1.0 of the format, a magic string, the version and the length of the header precede the
# header.
_START_BYTES = 10
_HEADER = re.compile(
    rb"\{'descr': '([<|][a-z]\d)', 'fortran_order': (False|True), "
    rb"'shape': \(([\d, ]*)\), \} *\n"
)
# The types of NumPy that TensorFlow decodes.
_TYPES = (
    *("float16", "float32", "float64", "bool", "uint8", "uint16"),
    *("int8", "int16", "int32", "int64"),
)
_INT64_END = 2.0**63
_FOLDERS = "map splits to folders, such as {'train': 'train'}"


class _Kind(NamedTuple):
    """The type of an array in NumPy's notation, its shape, and its order of axes."""

    dtype: str
    shape: tuple[int, ...]
    is_fortran: bool

    def __str__(self) -> str:
        order = " in the order of Fortran" if self.is_fortran else ""
        return f"{np.dtype(self.dtype).name} of shape {self.shape}{order}"

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@checks.dataclass
class Npy(types.Source):
    """A source that reads `<folder of the split>/<field>/<row>.npy`, with one array in each file.

    Files are read when a batch is decoded, so memory holds only a few batches. Rows are sorted by
    the number in their file names; file names without a number follow by alphabet. All files of a
    field must have the same type, the same shape, and the same order of axes, C or Fortran. The
    Spec may omit axes of size 1: a file of shape [H, W, 1] fits the shape (H, W). A float32 field
    accepts all floats, and integers of up to 16 bits. The fields int64, uint8 and bool accept
    integers in their range. An int64 field also accepts floats that are whole numbers, such as the
    class ids of NYUv2.

    Attributes:
      folders: {split: folder}.
      data_dir: the folder in which relative paths start; "" is the current folder.
      rename: {field: folder}, if the folder has another name than the field.
    """

    folders: Annotated[Mapping[str, str], checks.Map(_FOLDERS), checks.Filled("name a split")]
    data_dir: str = ""
    rename: Annotated[Mapping[str, str], checks.Map("map fields to folders")] = dataclasses.field(
        default_factory=dict
    )

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split as {"folder": folder of the split, "name": file name}.

        Raises:
          UserError: the split or its folder does not exist, or the folder has no folders of .npy
            files.
        """
        folder, names = self._find(split)
        rows = tf.data.Dataset.from_tensor_slices(names)
        return tf.data.Dataset.zip({"folder": source.repeat_value(folder), "name": rows})

    def _find(self, split: str) -> tuple[str, list[str]]:
        """Return the folder of a split, and the sorted file names of the rows."""
        checks.one_of("Npy.folders split", split, self.folders)
        where = f"Npy.folders[{split!r}]"
        folder = os.path.expanduser(os.path.join(self.data_dir, self.folders[split]))
        storage.require_path(where, folder)
        is_there = tf.io.gfile.isdir(folder)
        checks.require(is_there, where, "name a folder that exists", folder)
        # Object stores list folders with a slash at the end.
        fields = [name.rstrip("/") for name in tf.io.gfile.listdir(folder)]
        names = {
            name
            for field in fields
            if tf.io.gfile.isdir(os.path.join(folder, field))
            for name in tf.io.gfile.listdir(os.path.join(folder, field))
            if name.endswith(_ENDING)
        }
        rule = "hold folders of files, such as image/0.npy"
        checks.require(bool(names), where, rule, sorted(fields)[:3])
        return folder, sorted(names, key=_by_number)

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, tf.Tensor]:
        """Read the files of a batch, {"folder": [B], "name": [B]}, into {name: [B, ...]}.

        Raises:
          InvalidArgumentError: when the graph runs, if a file differs from the first file in type
            or shape.
          NotFoundError: when the graph runs, if a file does not exist.
        """
        fields = spec.fields if with_labels else spec.feature_fields
        return {name: self._decode(batch, field) for name, field in fields.items()}

    def _decode(self, batch: Mapping[str, tf.Tensor], field: spec_lib.Field) -> tf.Tensor:
        kind = self._kind_of(field)
        folder_name = tf.constant(self._name_folder(field.name))
        paths = tf.strings.join([batch["folder"], folder_name, batch["name"]], "/")
        contents = tf.map_fn(tf.io.read_file, paths)
        # The values are the last bytes of a file, because the header may have any length.
        first = tf.strings.length(contents) - kind.num_bytes
        is_known = tf.strings.regex_full_match(
            tf.strings.substr(contents, tf.zeros_like(first), tf.maximum(first, 0)),
            _make_pattern(kind),
        )
        message = f"field {field.name!r} must hold {kind}"
        with tf.control_dependencies([tf1.assert_equal(is_known, True, message=message)]):
            sizes = tf.fill(tf.shape(first), kind.num_bytes)
            data = tf.strings.substr(contents, tf.maximum(first, 0), sizes)
        values = tf.io.decode_raw(data, np.dtype(kind.dtype))
        if kind.is_fortran:
            # In Fortran order, the first axis varies fastest, so the axes have to be reversed.
            axes = range(len(kind.shape), 0, -1)
            values = tf.transpose(tf.reshape(values, [-1, *kind.shape[::-1]]), [0, *axes])
        rows = paths.shape[0]
        values = tf.reshape(values, [-1 if rows is None else rows, *field.shape])
        if values.dtype.is_floating and field.dtype == "int64":
            # Compare in float64, because half floats cannot hold the bounds of int64.
            numbers = tf.cast(values, tf.float64)
            is_whole = tf.equal(numbers, tf.floor(numbers))
            # The bounds exclude infinity, and numbers whose cast to int64 is undefined.
            is_whole &= (numbers >= -_INT64_END) & (numbers < _INT64_END)
            message = f"field {field.name!r} must hold whole numbers of int64"
            with tf.control_dependencies([tf1.assert_equal(is_whole, True, message=message)]):
                return tf.cast(numbers, tf.int64)
        return field.cast(values)

    def _kind_of(self, field: spec_lib.Field) -> _Kind:
        """Return the type and shape of a field's first file; fail unless they suit the field."""
        where = f"Npy field {field.name!r}"
        kind = self._read_kind(self._name_folder(field.name))
        number, fix = np.dtype(kind.dtype), "Change it in the Spec."
        fits = number.name in _TYPES and _suits(number, field.dtype)
        checks.require(fits, where, f"hold {field.dtype}", number.name, fix)
        sizes = tuple(size for size in kind.shape if size != 1)
        # Axes of size 1 do not change the order of the values.
        is_same = not field.is_ragged and sizes == tuple(size for size in field.shape if size != 1)
        fix = f"Make it {kind.shape} in the Spec."
        checks.require(is_same, where, f"have shape {field.shape}", kind.shape, fix)
        return kind

    def _read_kind(self, folder_name: str) -> _Kind:
        """Return the type and shape of the first file in a field's folder of the first split."""
        folder, names = self._first
        path = os.path.join(folder, folder_name, names[0])
        if not tf.io.gfile.exists(path):
            folder_names = sorted(name.rstrip("/") for name in tf.io.gfile.listdir(folder))
            checks.one_of(f"Npy folder in {folder}", folder_name, folder_names)
        kind = _read(path)
        if isinstance(kind, str):
            raise checks.UserError(f"{path} {kind}")
        return kind[0]

    @functools.cached_property
    def _first(self) -> tuple[str, list[str]]:
        """The folder and file names of the first split, because `decode` cannot know the split."""
        return self._find(next(iter(self.folders)))

    def _name_folder(self, field: str) -> str:
        return self.rename.get(field, field)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each row of a split."""
        folder, names = self._find(split)
        kinds = {name: self._kind_of(field) for name, field in spec.fields.items()}
        for name in names:
            values: dict[str, Any] = {}
            problem = ""
            for field, kind in kinds.items():
                path = os.path.join(folder, self._name_folder(field), name)
                content = _read(path)
                if isinstance(content, str) or content[0] != kind:
                    problem = (
                        content
                        if isinstance(content, str)
                        else f"must hold {kind}, got {content[0]}."
                    )
                    problem = f"field {field!r}: {path} {problem}"
                    break
                values[field] = content[1].tolist()
            row = problem or spec.example(functools.partial(_value_of, values))
            yield f"Npy.folders[{split!r}] row {name.removesuffix(_ENDING)}", row


def _suits(number: np.dtype, dtype: str) -> bool:
    """Return True if a field of type `dtype` accepts numbers of a NumPy type."""
    if number.kind == "f":
        return dtype in ("float32", "int64")
    # float32 is exact only for whole numbers up to 2^24.
    is_wide = dtype == "float32" and number.itemsize > 2
    return dtype in ("float32", "int64", "uint8", "bool") and not is_wide


def _value_of(values: Mapping[str, Any], field: spec_lib.Field) -> Any:
    return values[field.name]


def _by_number(name: str) -> tuple[float, str]:
    """Return a sort key: files with numbers come first by number, and other files by name."""
    stem = name.removesuffix(_ENDING)
    # Compare numbers, not texts, so that 10 comes after 9.
    return (int(stem) if stem.isdecimal() else math.inf, name)


def _make_pattern(kind: _Kind) -> str:
    """Return a pattern that matches the header of a file with the type and shape `kind`."""
    sizes = ", ".join(map(str, kind.shape)) + "," * (len(kind.shape) == 1)
    dtype = re.escape(kind.dtype)
    return (
        rf"(?s)\C{{{_START_BYTES}}}\{{'descr': '{dtype}', 'fortran_order': {kind.is_fortran}, "
        rf"'shape': \({sizes}\), \}} *\n"
    )


def _read(path: str) -> tuple[_Kind, np.ndarray] | str:
    """Return the type and shape of the array in a file, and its values; or an error message."""
    if not tf.io.gfile.exists(path):
        return "is not there."
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
    except files.list_read_errors() as error:
        return source.unreadable(error)
    start, header = content[:_START_BYTES], _HEADER.match(content, _START_BYTES)
    if start[:8] != b"\x93NUMPY\x01\x00" or header is None:
        return _explain_header(content)
    sizes = tuple(int(size) for size in header[3].split(b",") if size.strip())
    kind = _Kind(header[1].decode(), sizes, header[2] == b"True")
    num_bytes = len(content) - header.end()
    if num_bytes != kind.num_bytes:
        return f"must hold {kind.num_bytes} bytes of {kind}, got {num_bytes}."
    values = np.frombuffer(content, kind.dtype, offset=header.end())
    return kind, values.reshape(kind.shape, order="F" if kind.is_fortran else "C").ravel()


def _explain_header(content: bytes) -> str:
    """Return an error message for a file whose header is not supported."""
    rule = "must be a file of numpy.save of little-endian numbers"
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        return f"{rule}: {source.explain_unreadable(error)}."
    return f"{rule}, got {array.dtype.str} of shape {array.shape}."
