"""TFRecord files of serialized tf.Examples, which the specification parses.

tfrecord.TfRecord.files = {"train": "data/train-*.tfrecord", "test": "data/test.tfrecord.gz"}
tfrecord.TfRecord.compression = "gzip"                      # if names do not end in .gz
pipeline.Pipeline.source = @tfrecord.TfRecord()
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Annotated, Any

from google.protobuf import message

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import copies, files, source
from mtl.deferred import tf
from mtl.files import remote

# The number of records in which the type of a key is searched.
_SEARCHED = 100
# {value of the setting: its name in `tf.data`}.
_COMPRESSIONS = {"none": "", "gzip": "GZIP", "zlib": "ZLIB"}
# {type: the list of a tf.Example that holds it}; other types lie in an int64_list.
_KINDS = {"float32": "float_list", "string": "bytes_list"}


@checks.dataclass
class TfRecord(types.Source):
    """A source that reads TFRecord files.

    TensorFlow streams files from gs://; files in other places are copied first.

    Attributes:
      files: {split: path or paths}, each a file or a glob.
      data_dir: where relative paths start; "" is the current directory.
      compression: gzip, zlib or none, for all files; auto takes gzip for names that end in ".gz".
        A compressed file that is cut off exactly between two records is not noticed.
    """

    files: files.Files
    data_dir: str = ""
    compression: Annotated[str, checks.OneOf(["auto", *_COMPRESSIONS])] = "auto"

    def records(self, split: str) -> tf.data.Dataset:
        """Return the serialized examples of a split."""
        paths = self._find(split)
        inputs = tf.data.Dataset.from_tensor_slices(
            (paths, list(map(self._find_compression, paths)))
        )
        return inputs.flat_map(copies.Reader(paths, _open_here).records)

    def shard(self, split: str, num_shards: int, shard: int) -> TfRecord | None:
        """Return the source of every `num_shards`-th file of a split; None if there are fewer."""
        return files.shard(self, split, self._find(split), num_shards, shard)

    def find_key_type(self, name: str) -> str:
        """Return "int64" if the first records hold whole numbers in a field, else "string"."""
        if name not in self._key_types:
            _, records = next(self.by_file(next(iter(self.files))))
            kinds: set[str | None] = set()
            # The reader of the rows names a damaged record.
            with contextlib.suppress(tf.errors.OpError, message.DecodeError):
                kinds = {
                    _find_kind(record, name) for record in itertools.islice(records, _SEARCHED)
                }
            self._key_types[name] = "int64" if kinds - {None} == {"int64_list"} else "string"
        return self._key_types[name]

    @functools.cached_property
    def _key_types(self) -> dict[str, str]:
        """{field: its type as a key}."""
        return {}

    def by_file(self, split: str) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield (file, its serialized examples) of a split, faster than by `tf.data`."""
        for path in self._find(split):
            options = tf.io.TFRecordOptions(self._find_compression(path))
            yield path, tf.compat.v1.io.tf_record_iterator(_open_here(path), options)

    def _find(self, split: str) -> list[str]:
        return files.find("TfRecord.files", self.files, split, self.data_dir)

    def _find_compression(self, path: str) -> str:
        if self.compression == "auto":
            return files.compression(path)
        return _COMPRESSIONS[self.compression]

    def decode(
        self, batch: tf.Tensor, spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Parse serialized examples [B] into {name: [B, ...]}."""
        return spec.parse(batch, with_labels)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Read the split record by record; the numbers of records start at 0 in each file."""
        for path in self._find(split):
            compression = self._find_compression(path)
            # Compressed data are read in blocks, so the damage may lie behind the record.
            further = " or a later one" if compression else ""
            make_dataset = functools.partial(tf.data.TFRecordDataset, _open_here(path), compression)
            for number, record in enumerate(source.iterate(make_dataset)):
                location = f"{path} record {number}"
                if isinstance(record, tf.errors.OpError):
                    fix = "Is it cut off, damaged, or compressed otherwise than the setting says?"
                    problem = f"cannot be read: {source.explain_unreadable(record)}. {fix}"
                    yield location + further, problem
                else:
                    yield location, scan_record(record, spec)


def _open_here(path: str) -> str:
    """Return the path that TensorFlow opens: a copy, except from gs://, which it reads itself."""
    return path if path.startswith("gs://") else remote.copy_here(path)


def _find_kind(record: bytes, name: str) -> str | None:
    """Return the list of a tf.Example that holds a field; None without the field."""
    features = tf.train.Example.FromString(record).features.feature
    return features[name].WhichOneof("kind") if name in features else None


def scan_record(record: bytes, spec: spec_lib.Spec) -> dict[str, Any] | str:
    """Turn a serialized tf.Example into {name: value}, or the text of an error."""
    try:
        features = tf.train.Example.FromString(record).features.feature
    except message.DecodeError:
        return "must be a serialized tf.Example."
    return spec.example(
        lambda field: _read_values(features[field.name], field) if field.name in features else None
    )


def _read_values(feature: tf.train.Feature, field: spec_lib.Field) -> list[Any] | None:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    expected_kind = _KINDS.get(field.dtype, "int64_list")
    if kind != expected_kind:
        raise ValueError(
            f"must be a {expected_kind}, as it is {field.dtype} in the Spec, got a {kind}"
        )
    values = getattr(feature, kind).value
    return [v.decode(errors="replace") if isinstance(v, bytes) else v for v in values]
