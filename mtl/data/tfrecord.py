"""A source that reads TFRecord files of serialized tf.Examples.

tfrecord.TfRecord.files = {"train": "data/train-*.tfrecord", "test": "data/test.tfrecord.gz"}
tfrecord.TfRecord.compression = "gzip"                      # if names do not end in .gz
pipeline.Pipeline.source = @tfrecord.TfRecord()
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from google.protobuf import message

from mtl import checks, deferred, types
from mtl import spec as spec_lib
from mtl.data import files, source
from mtl.deferred import tf

with deferred.imports():
    from mtl.data import copies, record_blocks
    from mtl.files import remote

MALFORMED = "must be a serialized tf.Example."
"""The error about a record that cannot be parsed as a tf.Example."""

# The type of a key is searched in the first `_SEARCHED` records.
_SEARCHED = 100
# {value of the setting `compression`: name in `tf.data`}.
_COMPRESSIONS = {"none": "", "gzip": "GZIP", "zlib": "ZLIB"}
# {type of a field: list of a tf.Example that holds the values}; other types use int64_list.
_KINDS = {"float32": "float_list", "string": "bytes_list"}


@checks.dataclass
class TfRecord(types.Source):
    """A source that reads TFRecord files.

    TensorFlow streams files from gs://; remote files of other storage are first copied to this
    machine.

    Attributes:
      files: {split: path or paths}, each a file or a glob.
      data_dir: the folder in which relative paths start; "" is the current folder.
      compression: gzip, zlib or none, for all files; auto means gzip for names that end in ".gz".
        If a compressed file is truncated exactly between two records, no error is raised.
      window: the number of records that all workers together keep in memory and shuffle at a time.
        With a window, training reads blocks of records in random order, a checkpoint holds only the
        number of the step, and a run can continue with another number of workers. With `window =
        None`, `Pipeline.shuffle_buffer` mixes the records, and a checkpoint holds the records in
        the buffer. Compressed files must not have a window.
    """

    files: files.Files
    data_dir: str = ""
    compression: Annotated[str, checks.OneOf(["auto", *_COMPRESSIONS])] = "auto"
    # The repr leaves out this setting, because a resumed run compares the repr with the saved
    # repr, which lacks the setting if an older version saved it.
    window: Annotated[int, checks.positive] | None = dataclasses.field(default=None, repr=False)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the serialized examples of a split."""
        paths = self._find(split)
        inputs = tf.data.Dataset.from_tensor_slices(
            (paths, list(map(self._find_compression, paths)))
        )
        return inputs.flat_map(copies.Reader(paths, open_here).records)

    def list_blocks(self, split: str, spec: spec_lib.Spec) -> types.Blocks | None:
        """Return the blocks of a split; None without a window.

        Raises:
          UserError: a file is compressed or damaged, or the windows do not fit into memory.
        """
        if self.window is None:
            return None
        setting = f"{type(self).__name__}.window"
        paths = self._find(split)
        for path in paths:
            rule = f"be left out, because {path} is compressed and cannot be read from the middle"
            checks.require(not self._find_compression(path), setting, rule, self.window)

        def decode(
            records: tf.data.Dataset, count: tf.Tensor, spec: spec_lib.Spec
        ) -> Mapping[str, Any]:
            return self.decode(records.batch(count).get_single_element(), spec, True)

        files_here = [record_blocks.File(remote.copy_here(path)) for path in paths]
        return record_blocks.list_blocks(setting, self.window, files_here, spec, decode)

    def shard(self, split: str, num_shards: int, shard: int) -> TfRecord | None:
        """Return a source that reads every `num_shards`-th file; None if there are fewer files."""
        return files.shard(self, split, self._find(split), num_shards, shard)

    def find_key_type(self, name: str) -> str:
        """Return "int64" if a field holds whole numbers in the first records, else "string"."""
        if name not in self._key_types:
            _, records = next(self.by_file(next(iter(self.files))))
            kinds: set[str | None] = set()
            # The next reader of the file reports a damaged record.
            with contextlib.suppress(tf.errors.OpError, message.DecodeError):
                kinds = {
                    _find_kind(record, name) for record in itertools.islice(records, _SEARCHED)
                }
            self._key_types[name] = "int64" if kinds - {None} == {"int64_list"} else "string"
        return self._key_types[name]

    @functools.cached_property
    def _key_types(self) -> dict[str, str]:
        """The cache of `find_key_type`: {field: type}."""
        return {}

    def by_file(self, split: str) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield the records of each file of a split, faster than `tf.data`.

        Args:
          split: the name of the split, such as "train".

        Yields:
          (file, iterator of serialized tf.Examples).
        """
        for path in self._find(split):
            options = tf.io.TFRecordOptions(self._find_compression(path))
            yield path, tf.compat.v1.io.tf_record_iterator(open_here(path), options)

    def _find(self, split: str) -> list[str]:
        return files.find(f"{type(self).__name__}.files", self.files, split, self.data_dir)

    def _find_compression(self, path: str) -> str:
        if self.compression == "auto":
            return files.compression(path)
        return _COMPRESSIONS[self.compression]

    def decode(
        self, batch: tf.Tensor, spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Parse serialized examples [B] into the values of fields, {name: [B, ...]}."""
        return spec.parse(batch, with_labels)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each record, numbered from 0 in each file."""
        for path in self._find(split):
            for _, location, record in self._read_file(path):
                yield location, record if isinstance(record, str) else scan_record(record, spec)

    def _read_file(self, path: str) -> Iterator[tuple[int, str, bytes | str]]:
        """Yield (number, location, record or error) for each record, numbered from 0."""
        compression = self._find_compression(path)
        # Compressed data are read in blocks, so a later record may be the damaged one.
        further = " or a later one" if compression else ""
        make_dataset = functools.partial(tf.data.TFRecordDataset, open_here(path), compression)
        for number, record in enumerate(source.iterate(make_dataset)):
            location = f"{path} record {number}"
            if isinstance(record, tf.errors.OpError):
                fix = "Is it cut off, damaged, or compressed otherwise than the setting says?"
                problem = f"cannot be read: {source.explain_unreadable(record)}. {fix}"
                yield number, location + further, problem
            else:
                yield number, location, record


def open_here(path: str) -> str:
    """Return the path of a local copy, or the path itself for gs://, which TensorFlow reads."""
    return path if path.startswith("gs://") else remote.copy_here(path)


def _find_kind(record: bytes, name: str) -> str | None:
    """Return the kind of list that holds a field in a tf.Example; None without the field."""
    features = tf.train.Example.FromString(record).features.feature
    return features[name].WhichOneof("kind") if name in features else None


def scan_record(record: bytes, spec: spec_lib.Spec) -> dict[str, Any] | str:
    """Parse a serialized tf.Example in plain Python.

    Args:
      record: the bytes of the serialized tf.Example.
      spec: the fields to read.

    Returns:
      {name: value}; or an error message, a str, if the record is malformed.
    """
    try:
        features = tf.train.Example.FromString(record).features.feature
    except message.DecodeError:
        return MALFORMED
    empty = tf.train.Feature()
    return spec.example(lambda field: _read_values(features.get(field.name, empty), field))


def _read_values(feature: tf.train.Feature, field: spec_lib.Field) -> list[Any] | None:
    kind = feature.WhichOneof("kind")
    if kind is None:  # TensorFlow does not distinguish an absent list from an empty list.
        return [] if field.is_ragged else None
    expected_kind = _KINDS.get(field.dtype, "int64_list")
    if kind != expected_kind:
        raise ValueError(
            f"must be a {expected_kind}, as it is {field.dtype} in the Spec, got a {kind}"
        )
    values = getattr(feature, kind).value
    return [v.decode(errors="replace") if isinstance(v, bytes) else v for v in values]
