"""Reads TFRecord files of tf.Examples, which the model gets unchanged.

for chunk in records.Records(spec=None, keep=["id"], batch_size=512).chunks(["in.tfrecord"]): ...
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import message

from mtl import checks
from mtl import spec as spec_lib
from mtl.data import image_files, source, tfrecord
from mtl.deferred import tf
from mtl.tools.scoring import batches, image_rows, run_source

_SPLIT = "input"
_TYPES = {"bytes_list": "string", "float_list": "float32", "int64_list": "int64"}

# The spec for records whose fields are unknown. Every tf.Example fits the spec, because a list may
# be missing.
_ANY = spec_lib.Spec(features={"": ("string", (None,))}, labels={})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """Reads TFRecord files; implements `readers.Format`.

    Attributes:
      spec: the features of the model; None if they are unknown.
      keep: the names of fields to return beside the tf.Examples.
      batch_size: the largest number of rows in a chunk.
      settings: the data source of the run; the settings of its `tfrecord.TfRecord` apply to the
        files.
      images: the source that says which fields hold paths of image files; None if no field does.
    """

    spec: spec_lib.Spec | None
    keep: Sequence[str]
    batch_size: int
    settings: Any = None
    images: image_files.ImageFiles | None = None

    def check(self, path: str) -> None:
        del path  # Records may differ in their fields, so nothing is checked.

    def chunks(self, paths: Sequence[str]) -> Iterator[batches.Chunk]:
        path = paths[0]
        try:
            for path, file_records in self._make_source(paths).by_file(_SPLIT):
                first = 0
                while rows := list(itertools.islice(file_records, self.batch_size)):
                    numbers = range(first, first + len(rows))
                    yield batches.Chunk(path=path, numbers=numbers, rows=rows)
                    first += len(rows)
        except tf.errors.OpError as error:
            unread = paths[paths.index(path) :]
            raise checks.UserError(self._explain_unreadable(unread, error)) from error

    def parse(self, chunk: batches.Chunk) -> batches.Batch:
        extra = self._kept(chunk) if self.keep else {}
        # Only a run that trains on TFRecords may have paths of image files in TFRecords. If a run
        # does not train on TFRecords, TFRecords to score contain the images.
        if self.images is None or self._run_records is None:
            return batches.Batch(examples=chunk.rows, kept=extra)
        return batches.Batch(examples=image_rows.read_examples(self.images, chunk), kept=extra)

    def problem(self, chunk: batches.Chunk) -> str:
        for number, record in zip(chunk.numbers, chunk.rows, strict=True):
            values = tfrecord.scan_record(record, self.spec or _ANY)
            if isinstance(values, str):
                return f"{chunk.path} record {number}: {values}"
        return ""

    def _make_source(self, paths: Sequence[str]) -> tfrecord.TfRecord:
        """Return a source that reads files, with the compression setting of the run's TFRecords."""
        settings = self._run_records or tfrecord.TfRecord(files={_SPLIT: ""})
        return dataclasses.replace(settings, files={_SPLIT: paths}, data_dir="")

    @functools.cached_property
    def _run_records(self) -> tfrecord.TfRecord | None:
        return run_source.find_settings(self.settings, tfrecord.TfRecord)

    def _explain_unreadable(self, paths: Sequence[str], error: tf.errors.OpError) -> str:
        for location, values in self._make_source(paths).scan(_SPLIT, self.spec or _ANY):
            if isinstance(values, str) and "cannot be read" in values:
                return f"{location}: {values}"
        return f"{paths[0]} cannot be read: {source.explain_unreadable(error)}."

    def _kept(self, chunk: batches.Chunk) -> Mapping[str, Sequence[Any]]:
        """Return {field: B values} for the fields in `keep`.

        If every field has one value in every record, TensorFlow reads all records at once. If a
        field has several values or none in some record, Python reads the records one by one.
        """
        located = zip(chunk.numbers, chunk.rows, strict=True)
        first = self._read_features(chunk.path, *next(located))
        kinds = tuple((name, first[name].WhichOneof("kind")) for name in self.keep)
        if all(kind for _, kind in kinds):
            try:
                # TensorFlow parses all B records at once, outside of Python's global interpreter
                # lock.
                parsed = _make_parser(kinds)(np.asarray(chunk.rows, object))
                return {name: parsed[name].numpy() for name in self.keep}
            except source.list_refusals():
                pass
        features = [first, *(self._read_features(chunk.path, *record) for record in located)]
        return {name: [_read_value(row[name]) for row in features] for name in self.keep}

    def _read_features(
        self, path: str, number: int, record: bytes
    ) -> Mapping[str, tf.train.Feature]:
        try:
            features = tf.train.Example.FromString(record).features.feature
            return {name: batches.kept(name, features) for name in self.keep}
        except ValueError as error:
            raise checks.UserError(f"{path} record {number}: {error}.") from error
        except message.DecodeError as error:
            problem = "must be a serialized tf.Example"
            raise checks.UserError(f"{path} record {number}: {problem}.") from error


@functools.cache
def _make_parser(kinds: Sequence[tuple[str, str]]) -> Any:
    """Return a parser of tf.Examples; `kinds` pairs each field with a kind such as int64_list."""
    fields = {name: tf.io.FixedLenFeature((), _TYPES[kind]) for name, kind in kinds}
    examples = tf.TensorSpec([None], tf.string)
    return tf.function(lambda rows: tf.io.parse_example(rows, fields), input_signature=[examples])


def _read_value(feature: tf.train.Feature) -> Any:
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    return values[0] if len(values) == 1 else values
