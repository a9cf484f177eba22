"""Reads TFRecord files in blocks of records, in any order, by an index of the records' offsets.

files = [record_blocks.File("train.tfrecord")]
blocks = record_blocks.list_blocks("TfRecord.window", 500_000, files, spec, decode)
blocks.read(3, spec.fields)                   # {field: values of the records in block 3}

The index takes 8 bytes for each record. Each process makes the index once, from the lengths that
precede the records. Compressed files have no index, because reading cannot start in the middle of
compressed data.
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import filled_fields, packed, source
from mtl.deferred import tf, tf1
from mtl.distribution import memory

# A block holds at most this number of records and about this number of bytes.
_ROWS, _BYTES = 4096, 2**22
# A window holds at least this number of blocks, because the records of a block are neighbours.
_LEAST_BLOCKS = 64
# The memory holds the current window and the next window.
_WINDOWS = 2
# A TFRecord file stores a length of 8 bytes and a checksum of 4 bytes before each record, and a
# checksum of 4 bytes after the record.
_LENGTH = struct.Struct("<Q")
_AROUND = 16
# The size of the read buffer in bytes, which is the default of `tf.data.TFRecordDataset`.
_BUFFER = 2**18

# A function from a dataset of serialized records, their number (an int64 scalar), and the
# specification of the fields to read, to {field: [n, ...]}.
Decode = Callable[["tf.data.Dataset", "tf.Tensor", spec_lib.Spec], Mapping[str, Any]]


class File(NamedTuple):
    """Consecutive records of a TFRecord file.

    Attributes:
      path: a local file without compression.
      first: the number of the first record in the file.
      num_records: the number of records; None means all further records.
    """

    path: str
    first: int = 0
    num_records: int | None = None


class _Piece(NamedTuple):
    """The records of a block: the path, the offset of the first record, the number of records."""

    path: str
    offset: int
    num_records: int


def index_records(path: str) -> np.ndarray:
    """Return the offset in bytes of each record of a TFRecord file, and of its end, int64 [N + 1].

    Args:
      path: a local file without compression.

    Raises:
      UserError: the lengths of the records do not add up to the size of the file.
    """
    state = os.stat(path)
    return _index_version(path, state.st_size, state.st_mtime_ns)


@functools.cache  # Copies of a pipeline share the index.
def _index_version(path: str, size: int, mtime: int) -> np.ndarray:
    """Return the result of `index_records` for the version of a file with this size and time."""
    del mtime
    offsets, offset = [0], 0
    if size:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            while offset + _LENGTH.size <= size:
                offset += _LENGTH.unpack_from(content, offset)[0] + _AROUND
                offsets.append(offset)
    if offset != size:
        number = len(offsets) - (2 if offset > size else 1)
        fix = "Is the file cut off, damaged, or compressed?"
        problem = f"the length of the record leads beyond the end of the file. {fix}"
        raise checks.UserError(f"{path} record {number}: {problem}")
    return np.array(offsets, np.int64)


def list_blocks(
    setting: str, window: int, files: Sequence[File], spec: spec_lib.Spec, decode: Decode
) -> types.Blocks:
    """Divide the records of a split into blocks that training reads in random order.

    Args:
      setting: the name of the setting for the window, such as "TfRecord.window".
      window: the number of records that are shuffled at a time.
      files: the records of the split.
      spec: the fields of the records.
      decode: turns serialized records into the values of fields; called once for each set of
        fields, in a graph.

    Raises:
      UserError: a file is damaged, or has fewer records than `files` says; or the windows do not
        fit into memory.
    """
    indexes = [_select_offsets(file, index_records(file.path)) for file in files]
    num_records = sum(len(offsets) - 1 for offsets in indexes)
    num_bytes = sum(int(offsets[-1] - offsets[0]) for offsets in indexes)
    mean_bytes = max(1, num_bytes // max(1, num_records))
    shuffled_rows = max(1, min(window, num_records))
    size = _WINDOWS * shuffled_rows * mean_bytes
    memory.require_memory(setting, window, size, "Windows of records take")
    rows = max(1, min(_ROWS, _BYTES // mean_bytes, shuffled_rows // _LEAST_BLOCKS))
    pieces = [
        _Piece(file.path, int(offsets[start]), min(rows, len(offsets) - 1 - start))
        for file, offsets in zip(files, indexes, strict=True)
        for start in range(0, len(offsets) - 1, rows)
    ]
    readers = _Readers(spec, decode)

    def read(block: int, fields: Mapping[str, spec_lib.Field]) -> Mapping[str, packed.Values]:
        return readers.find(fields).read(pieces[block])

    sizes = tuple(piece.num_records for piece in pieces)
    return types.Blocks(sizes, shuffled_rows, read, setting)


def _select_offsets(file: File, offsets: np.ndarray) -> np.ndarray:
    """Return the offsets of the records of `file`, and the end of the last record."""
    if file.num_records is None:
        return offsets[file.first :]
    end = file.first + file.num_records
    rule = f"hold at least {end:,} records, as the description of the dataset says"
    checks.require(end < len(offsets), file.path, rule, len(offsets) - 1)
    return offsets[file.first : end + 1]


class _Readers:
    """The readers of all sets of fields, which are built when they are first needed."""

    def __init__(self, spec: spec_lib.Spec, decode: Decode):
        self._spec, self._decode = spec, decode
        self._readers: dict[tuple[str, ...], _Reader] = {}
        self._lock = threading.Lock()  # Several threads may read blocks.

    def find(self, fields: Mapping[str, spec_lib.Field]) -> _Reader:
        """Return the reader of some fields."""
        key = tuple(sorted(fields))
        with self._lock:
            if key not in self._readers:
                spec = filled_fields.narrow_spec(self._spec, key)
                self._readers[key] = _Reader(cast(spec_lib.Spec, spec), fields, self._decode)
            return self._readers[key]


class _Reader:
    """Reads the values of some fields in consecutive records of a file.

    Args:
      spec: the specification of the fields.
      fields: {name: field}.
      decode: the function that decodes records; see `Decode`.
    """

    def __init__(self, spec: spec_lib.Spec, fields: Mapping[str, spec_lib.Field], decode: Decode):
        self._fields = fields
        with tf.Graph().as_default() as graph:
            self._path = tf1.placeholder(tf.string, [])
            self._offset = tf1.placeholder(tf.int64, [])
            self._count = tf1.placeholder(tf.int64, [])
            records = _read_from(self._path, self._offset).take(self._count)
            self._values = dict(decode(records, self._count, spec))
        # This session needs its own threads: the training session may block all shared threads
        # while it waits for a window.
        config = tf1.ConfigProto(use_per_session_threads=True)
        self._session = tf1.Session(graph=graph, config=config)

    def read(self, piece: _Piece) -> dict[str, packed.Values]:
        """Return {field: its values in the records of a block}.

        Raises:
          UserError: a record is damaged or malformed.
        """
        path, offset, num_records = piece
        feed = {self._path: path, self._offset: offset, self._count: num_records}
        try:
            values = self._session.run(self._values, feed)
        # The pipeline turns a UserError of a reader into the message about the bad record.
        except tf.errors.OpError as error:
            raise checks.UserError(f"{path}: {source.explain_unreadable(error)}") from error
        return {
            name: packed.pack_field(values[name], field) for name, field in self._fields.items()
        }


def _read_from(path: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
    """Return the serialized records of a file from an offset on; checksums are verified."""
    # `tf.data.TFRecordDataset` can start only at the first record.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path], compression_type="", buffer_size=_BUFFER, byte_offsets=[offset]
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
