"""A source that reads lists of examples to rank, in the format of TF-Ranking.

example_lists.ExampleLists.files = {"train": "data/train-*.tfrecord", "test": "data/test.tfrecord"}
spec.Spec.features = {"query_tokens": ("string", (None,)), "price": "float32"}
spec.Spec.labels = {"relevance": "float32", "list": "string"}
relevance/heads.Ranking.group = "list"
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from mtl import checks
from mtl import spec as spec_lib
from mtl.data import copies, tfrecord
from mtl.deferred import tf

_MESSAGE = "mtl.ExampleListWithContext"
# A key ends with the number of its list in `_DIGITS` digits. Because of the fixed number of digits,
# all keys of a file have the same size in bytes. So the start of the serialized key is built once
# for a file, and the digits are appended for each list.
_DIGITS = 12
_MALFORMED = "must be a serialized ExampleListWithContext."
# The bytes of a tf.Example can also be parsed as a list, whose only example is malformed.
_PLAIN = f"{_MALFORMED} If each record is one tf.Example, use tfrecord.TfRecord."


@checks.dataclass
class ExampleLists(tfrecord.TfRecord):
    """A source that reads ExampleListWithContext records (ELWC) of TFRecord files.

    Each record holds a list of tf.Examples, such as the results of a query, and a context, which is
    a tf.Example with the features of the query. Every example becomes a row that also has the
    features of the context. If the context and the example have the same feature, the row takes the
    feature of the example.

    Attributes:
      group: the field for the key of a list, which `Ranking.group` and `WholeGroups.group` can
        name. The key is a string of the file and the number of the record. If the context or the
        example has a feature with the name of this field, the feature replaces the key.
    """

    group: checks.Name = "list"

    def __post_init__(self):
        super().__post_init__()
        rule = "be left out, because a record has several rows"
        checks.require(self.window is None, "ExampleLists.window", rule, self.window)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the rows of a split as serialized examples."""
        paths = self._find(split)
        compressions, keys = map(self._find_compression, paths), map(self._start_key, paths)
        settings = (paths, list(compressions), list(keys))
        reader = copies.Reader(paths, tfrecord.open_here)

        def read_file(path: Any, compression: Any, key: Any) -> tf.data.Dataset:
            def split_record(number: Any, record: Any) -> Any:
                digits = tf.strings.as_string(number, width=_DIGITS, fill="0")
                return _split_in_graph(record, key + digits)

            lists = reader.records(path, compression).enumerate()
            return lists.map(split_record, tf.data.AUTOTUNE, deterministic=True).unbatch()

        return tf.data.Dataset.from_tensor_slices(settings).flat_map(read_file)

    def by_file(self, split: str) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield (file, iterator of serialized rows) for each file of a split.

        Raises:
          UserError: a record is not an ELWC.
        """
        for path, records in super().by_file(split):
            yield path, _split_records(path, records, self._start_key(path))

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each row; lists and rows are numbered from 0."""
        for path in self._find(split):
            key = self._start_key(path)
            for number, location, record in self._read_file(path):
                if isinstance(record, str):
                    yield location, record
                    continue
                try:
                    rows = _split_record(record, key, number)
                except message.DecodeError:
                    yield location, _MALFORMED
                    continue
                for position, row in enumerate(rows):
                    values = tfrecord.scan_record(row, spec)
                    place = f"{location} example {position}"
                    yield place, _PLAIN if values == tfrecord.MALFORMED else values

    def _start_key(self, path: str) -> bytes:
        """Return a serialized tf.Example with the key of a list, up to the number of the list."""
        texts = tf.train.BytesList(value=[f"{path} {0:0{_DIGITS}}".encode()])
        features = tf.train.Features(feature={self.group: tf.train.Feature(bytes_list=texts)})
        return tf.train.Example(features=features).SerializeToString()[:-_DIGITS]


@functools.cache
def _describe_message() -> descriptor_pb2.FileDescriptorProto:
    """Return a description of ELWC in which the examples and the context stay serialized."""
    field = descriptor_pb2.FieldDescriptorProto
    package, name = _MESSAGE.split(".")
    description = descriptor_pb2.FileDescriptorProto(name="elwc.proto", package=package)
    fields = description.message_type.add(name=name).field
    kind = field.TYPE_BYTES
    fields.add(name="examples", number=1, type=kind, label=field.LABEL_REPEATED)
    fields.add(name="context", number=2, type=kind, label=field.LABEL_OPTIONAL)
    return description


@functools.cache
def _make_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_describe_message())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(_MESSAGE))


def _split_records(path: str, records: Iterator[bytes], key: bytes) -> Iterator[bytes]:
    for number, record in enumerate(records):
        try:
            rows = _split_record(record, key, number)
        except message.DecodeError as error:
            raise checks.UserError(f"{path} record {number}: {_MALFORMED}") from error
        yield from rows


def _split_record(record: bytes, key: bytes, number: int) -> list[bytes]:
    """Return the rows of a serialized ELWC.

    Args:
      record: the serialized ELWC, a list of examples with a context.
      key: the result of `ExampleLists._start_key` for the file.
      number: the number of the record in the file.

    Raises:
      DecodeError: the record is not an ELWC.
    """
    lists = _make_class().FromString(record)
    start = key + f"{number:0{_DIGITS}}".encode() + lists.context
    # Concatenated messages are parsed as one message, in which the last feature of a name counts.
    return [start + example for example in lists.examples]


def _split_in_graph(record: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Return the rows of a serialized ELWC as a string tensor [rows]."""
    described = descriptor_pb2.FileDescriptorSet(file=[_describe_message()]).SerializeToString()
    sizes, (examples, context) = tf.io.decode_proto(
        record,
        _MESSAGE,
        ["examples", "context"],
        [tf.string, tf.string],
        descriptor_source=b"bytes://" + described,
    )
    # `decode_proto` returns one empty text for an empty list.
    rows = tf.strings.join([key, tf.strings.reduce_join(context), examples[: sizes[0]]])
    rows.set_shape([None])
    return rows
