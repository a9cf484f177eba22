"""Rows with the ids of their texts, which are looked up once, when the rows are read into memory.

data = coded_rows.code_texts(pipeline, {"job": {"categorical_job": look_up}})
features, labels = iterator.get_next()                # of data.dataset(..., training=True)
features = data.unpack(features)         # job: texts; a step makes them only if it needs them
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa

from mtl import spec as spec_lib
from mtl import types
from mtl.data import block_rows, in_memory, memory_rows, packed, pipeline, windows
from mtl.deferred import tf, tf1
from mtl.step import codes

Encode: TypeAlias = Callable[["tf.Tensor"], "tf.Tensor"]
"""A function from the values [N] of a field to ids, int64 [N], with tables in the default graph."""

Encoders: TypeAlias = Mapping[str, Mapping[str, Encode]]
"""{field: {column: the function that looks up its ids}}"""

# The number of distinct values that are looked up at once.
_AT_ONCE = 1 << 20
# Texts have int32 numbers, so there are fewer than `_MOST_TEXTS` numbers.
_MOST_TEXTS = 1 << 31
# At most this number of elements of `Windowed.take_batches` are between the reader and the step.
# Sixteen calls of `Dataset.map` decode in parallel, and two elements are prefetched; the rest is
# for the buffers of distribution strategies.
_MOST_ELEMENTS = 64


# The feature `_NUMBERS` of a batch holds the text numbers of all scalar fields, and `_IDS` holds
# the ids of scalar fields: each is int32 [B, n]. The names start with NUL, so that they differ from
# all fields of the user.
_NUMBERS, _IDS = "\0numbers", "\0ids"


class _Numbers(NamedTuple):
    """An int32 field, such as the numbers of texts, with all attributes that `Layout` reads."""

    shape: tuple[int | None, ...]
    is_ragged: bool
    dtype: str = "int32"


class Coding:
    """Replaces texts by numbers, and looks up ids of values.

    All fields with a single value in each row share two matrices: one of numbers, and one of ids.

    Args:
      spec: the fields of the rows.
      encoders: the functions that look up ids, {field: {column: function}}.

    Attributes:
      encoders: the functions that look up ids, {field: {column: function}}.
      scalars: the names of the coded fields with one text in each row.
      scalar_ids: the pairs (field, column) with one id in each row.
      other_ids: the pairs (field, column) with several ids in each row.
      fields: {name: field} of all fields in memory.
      added: the names of the features that a batch has in addition to the fields of `spec`.
      texts: the distinct texts; batches contain the numbers of the texts instead.
    """

    def __init__(self, spec: spec_lib.Spec, encoders: Encoders):
        self.encoders, self._spec, self.texts = encoders, spec, Texts()
        self.scalars, texts = self._divide_texts()
        self.scalar_ids, self.other_ids = self._divide_ids()
        number_fields: dict[str, Any] = {}
        if self.scalars:
            number_fields[_NUMBERS] = _Numbers((len(self.scalars),), is_ragged=False)
        if self.scalar_ids:
            number_fields[_IDS] = _Numbers((len(self.scalar_ids),), is_ragged=False)
        # A field with several values in a row gets separate arrays.
        number_fields |= {
            name_code(name, column): self._number(name) for name, column in self.other_ids
        }
        plain_fields = {
            name: field for name, field in spec.fields.items() if name not in self.scalars
        }
        numbers = {name: self._number(name) for name in texts}
        self.fields: dict[str, Any] = {**plain_fields, **numbers, **number_fields}
        self.added = list(number_fields)

    def _divide_texts(self) -> tuple[list[str], list[str]]:
        """Return the coded fields with one text in a row, and the fields with several texts."""
        fields = [self._spec.fields[name] for name in self.encoders]
        texts = [field for field in fields if field.dtype == "string"]
        scalars = [field.name for field in texts if not field.shape]
        return scalars, [field.name for field in texts if field.shape]

    def _divide_ids(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return the pairs (field, column) with one id in a row, and the pairs with several ids."""
        scalars: list[tuple[str, str]] = []
        others: list[tuple[str, str]] = []
        for name, columns in self.encoders.items():
            pairs = [(name, column) for column in columns]
            (others if self._spec.fields[name].shape else scalars).extend(pairs)
        return scalars, others

    def _number(self, name: str) -> _Numbers:
        field = self._spec.fields[name]
        return _Numbers(cast(Any, field.shape), field.is_ragged)

    def open_lookups(self) -> Lookups:
        """Return the function that looks up the ids of distinct values, for `code`."""
        return Lookups(
            [
                (self.encoders[name][column], self._spec.fields[name].dtype)
                for name, column in self._pairs
            ]
        )

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        """(field, column) of all ids."""
        return [*self.scalar_ids, *self.other_ids]

    def code(self, values: Mapping[str, packed.Values], look_up: Lookups) -> dict[str, Any]:
        """Replace texts by numbers, and look up the ids of fields.

        Args:
          values: {name: packed values} of all fields of `spec`.
          look_up: the result of `open_lookups`.

        Returns:
          {name: values} of all fields in `fields`.
        """
        coded = {name: _Coded(values[name], self._spec.fields[name]) for name in self.encoders}
        tables = look_up([coded[name].distinct for name, _ in self._pairs])
        ids = {
            pair: coded[pair[0]].take(table)
            for pair, table in zip(self._pairs, tables, strict=True)
        }
        name, field = next(iter(self._spec.fields.items()))
        texts = {name: own.texts for name, own in coded.items() if own.texts is not None}
        firsts = self.texts.add(texts, packed.count_rows(values[name], field))
        numbers = {name: coded[name].number_from(first) for name, first in firsts.items()}
        in_memory_values: dict[str, Any] = {**values, **numbers}
        self._place(in_memory_values, ids)
        return in_memory_values

    def _place(self, values: dict[str, Any], ids: Mapping[tuple[str, str], Any]) -> None:
        """Add the ids of fields to `values`, and stack the numbers and ids of scalar fields."""
        for pair in self.other_ids:
            values[name_code(*pair)] = ids[pair]
        if self.scalars:
            values[_NUMBERS] = np.stack([values.pop(name) for name in self.scalars], axis=1)
        if self.scalar_ids:
            values[_IDS] = np.stack([ids[pair] for pair in self.scalar_ids], axis=1)

    def choose(
        self, values: Mapping[str, Any], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, Any]:
        """Return the values of the fields of a specification, and of the features in `added`.

        Args:
          values: {name: [B, ...]}.
          spec: the specification of the fields to return.
          with_labels: False leaves out the labels.

        Returns:
          {name: [B, ...]}. The features in `added` contain the numbers of scalar texts, and the ids
          of all coded fields.
        """
        names = [*(spec.fields if with_labels else spec.feature_fields), *self.added]
        return {name: values[name] for name in names if name in values}

    def take_apart(
        self, features: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
        """Return the numbers of coded scalar texts, and the ids of all coded fields.

        Args:
          features: the features of a training batch, {name: [B, ...]}.

        Returns:
          {field: numbers, int64 [B]}, and {(field, column): ids, int64 in the shape of the field}.
        """
        numbers = dict(zip(self.scalars, _unstack(features, _NUMBERS), strict=True))
        ids = dict(zip(self.scalar_ids, _unstack(features, _IDS), strict=True))
        for pair in self.other_ids:
            ids[pair] = tf.cast(features[name_code(*pair)], tf.int64)
        return numbers, ids


def _unstack(features: Mapping[str, Any], name: str) -> list[tf.Tensor]:
    """Return the columns of a matrix of numbers as int64; [] if the batch lacks the matrix."""
    if name not in features:
        return []
    # Use one op for all columns: a slice for each column would take longer than the lookups.
    return tf.unstack(tf.cast(features[name], tf.int64), axis=1)


class Texts:
    """Stores the distinct texts of rows, and finds a text by its number in the batches.

    Attributes:
      most_rows: the texts of a window are dropped once batches contain this number of later rows;
        infinity keeps all texts.
    """

    def __init__(self) -> None:
        self.most_rows = math.inf
        self._parts: list[_TextPart] = []
        self._ends: dict[str, int] = {}
        self._lock = threading.Lock()  # A thread reads windows while a step looks texts up.

    def add(self, texts: Mapping[str, pa.LargeBinaryArray], rows: int) -> dict[str, int]:
        """Add distinct texts, and return the number of the first text of each field.

        Args:
          texts: {field: its distinct texts} of some rows.
          rows: the number of rows that `texts` comes from.
        """
        with self._lock:
            firsts = {name: self._ends.get(name, 0) for name in texts}
            # In a long training, the numbers of texts start again at 0 before they exceed int32.
            firsts = {
                name: first if first + len(texts[name]) < _MOST_TEXTS else 0
                for name, first in firsts.items()
            }
            self._ends = {name: first + len(texts[name]) for name, first in firsts.items()}
            self._parts.append(_TextPart(rows, firsts, texts))
            # Each part has the texts of one window of rows. Before it drops the oldest texts, the
            # loop does not count the rows of the last window, which is read ahead, and of the
            # window before it, with which training has just begun.
            while sum(part.rows for part in self._parts[1:-2]) >= self.most_rows:
                del self._parts[0]
        return firsts

    def find(self, field: str, numbers: np.ndarray) -> np.ndarray:
        """Return texts by their numbers.

        Args:
          field: the name of the field that contains the texts.
          numbers: int64 of any shape [...], from batches that are still in use.

        Returns:
          Bytes, an array of objects in the shape of `numbers`.
        """
        with self._lock:
            parts = list(self._parts)
        texts = np.full(numbers.shape, None, object)
        for part in parts:
            places, part_texts = numbers - part.firsts[field], part.texts[field]
            mask = (places >= 0) & (places < len(part_texts))
            if mask.any():
                part_texts = part_texts.take(pa.array(places[mask]))
                texts[mask] = part_texts.to_numpy(zero_copy_only=False)
        assert None not in texts  # `most_rows` keeps the texts of batches in use.
        return texts


class _TextPart(NamedTuple):
    """The distinct texts of all rows of a split, or of the rows in one window.

    Attributes:
      rows: the number of rows.
      firsts: {field: the number that stands for the first text of the field}.
      texts: {field: its texts}.
    """

    rows: int
    firsts: Mapping[str, int]
    texts: Mapping[str, pa.LargeBinaryArray]


class CodedRows(in_memory.InMemory):
    """The rows of a source in memory, with numbers of distinct texts, and with ids of texts.

    Args:
      source: the source that reads and decodes the rows.
      spec: the fields of the rows.
      coding: the object that turns the values of fields into numbers and ids.
    """

    def __init__(self, source: types.Source, spec: spec_lib.Spec, coding: Coding):
        super().__init__(source, spec)
        self._coding, self._layout = coding, memory_rows.Layout(coding.fields)

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, Any]:
        """Turn row numbers into {name: [B, ...]}, with ids and numbers of texts; see `Coding`."""
        return self._coding.choose(self._take(batch), spec, with_labels)

    def _read(self, split: str) -> memory_rows.Rows:
        kept = (in_memory.KEPT, split)
        values = in_memory.read_split(self._source, split, self._spec, kept)
        with contextlib.closing(self._coding.open_lookups()) as look_up:
            return memory_rows.Rows(self._layout, self._coding.code(values, look_up))


class CodedWindows(block_rows.Windowed):
    """Makes training batches, with ids and numbers of texts, from a split that is read in blocks.

    Args:
      spec: the fields of the rows.
      blocks: the blocks of the split.
      coding: the object that turns the values of fields into numbers and ids.
    """

    def __init__(self, spec: spec_lib.Spec, blocks: types.Blocks, coding: Coding):
        super().__init__(spec.fields, blocks)
        self._coding, self._layout = coding, memory_rows.Layout(coding.fields)
        self._look_up = coding.open_lookups()

    def take_batches(
        self, plan: windows.Plan, *, num_shards: int = 1, together: int = 1, **settings: Any
    ) -> tf.data.Dataset:
        """Return endless raw batches for `decode`, each with the rows of `together` steps."""
        element = together * plan.batch_size // num_shards
        self._coding.texts.most_rows = _MOST_ELEMENTS * element
        return super().take_batches(plan, num_shards=num_shards, together=together, **settings)

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, Any]:
        """Turn a raw batch into {name: [B, ...]}, with ids and numbers of texts; see `Coding`."""
        return self._coding.choose(self._unpack(batch), spec, with_labels)

    def _make_rows(self, values: Mapping[str, packed.Values]) -> memory_rows.Rows:
        return memory_rows.Rows(self._layout, self._coding.code(values, self._look_up))


class _Coded:
    """The values of a field, each replaced by its number among the distinct values.

    Args:
      values: the values of all rows, as `packed.pack` returns them.
      field: the field that has the values.

    Attributes:
      numbers: for each value, its number among the distinct values, int32: an array [N, ...] or
        lists.
      distinct: the distinct values, [D].
      texts: the distinct values as an Arrow array, which takes less memory; None for whole numbers.
    """

    def __init__(self, values: Any, field: spec_lib.Field):
        flat = values.values if field.is_ragged else values
        self.texts: pa.LargeBinaryArray | None = None
        if isinstance(flat, packed.Texts):
            numbers, self.texts = flat.numbers, flat.distinct
            distinct = self.texts.to_numpy(zero_copy_only=False)
        else:
            # The ids of whole numbers are also looked up, once for each distinct number.
            distinct, numbers = np.unique(flat, return_inverse=True)
        self.distinct, numbers = distinct, numbers.astype(np.int32, copy=False)
        if not field.is_ragged:
            self.numbers: Any = numbers.reshape(-1, *cast(tuple[int, ...], field.shape))
            return
        splits = values.splits
        if field.dtype == "string":  # Empty texts are dropped, as in `Spec.drop_empty_texts`.
            is_text = (distinct != b"")[numbers]
            # Each row split becomes the number of texts before it that are not empty.
            splits = packed.count_splits(is_text)[splits]
            numbers = numbers[is_text]
        self.numbers = packed.Lists(numbers, splits)

    def take(self, table: np.ndarray) -> Any:
        """Return an id for each value, in the form of `numbers`; `table` has the distinct ids."""
        if isinstance(self.numbers, packed.Lists):
            return packed.Lists(table[self.numbers.values], self.numbers.splits)
        return table[self.numbers]

    def number_from(self, first: int) -> Any:
        """Return `numbers`, increased so that the first distinct value has the number `first`."""
        if not first:
            return self.numbers
        if not isinstance(self.numbers, packed.Lists):
            return self.numbers + np.int32(first)
        return self.numbers._replace(values=self.numbers.values + np.int32(first))


class Lookups:
    """Looks up the ids of distinct values.

    All encoders share one graph, because encoders may share lookup tables, and because a session
    takes milliseconds to make.

    Args:
      encoders: functions that look up ids, each with the type of its field.
    """

    def __init__(self, encoders: Sequence[tuple[Encode, str]]):
        self._encodings: list[tuple[tf.Tensor, tf.Tensor]] = []
        with tf.Graph().as_default() as graph:
            for encode, dtype in encoders:
                kind = tf.string if dtype == "string" else tf.int64
                placeholder = tf1.placeholder(kind, [None])
                self._encodings.append((placeholder, tf.cast(encode(placeholder), tf.int32)))
            initializer = tf1.tables_initializer()
        # This session needs its own threads: the training session may block all shared threads
        # while it waits for a window.
        config = tf1.ConfigProto(use_per_session_threads=True)
        self._session = tf1.Session(graph=graph, config=config)
        self._session.run(initializer)

    def __call__(self, distinct: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the ids, int32 [D], of each encoder for the distinct values [D] of its field."""
        tables = []
        for (placeholder, ids), values in zip(self._encodings, distinct, strict=True):
            parts = [np.zeros([0], np.int32)]
            for start in range(0, len(values), _AT_ONCE):
                some = values[start : start + _AT_ONCE]
                parts.append(self._session.run(ids, {placeholder: some}))
            tables.append(np.concatenate(parts))
        return tables

    def close(self) -> None:
        """Free the tables."""
        self._session.close()


def name_code(field: str, column: str) -> str:
    """Return the name of the feature of a batch that contains the ids of a field for a column."""
    return f"{field}\0{column}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodedPipeline(pipeline.Pipeline):
    """A pipeline whose training batches have the ids of values, and numbers in place of texts.

    `unpack` replaces the numbers in a batch by texts.

    Attributes:
      encoders: the functions that look up ids, {field: {column: function}}.
    """

    encoders: Encoders = dataclasses.field(default_factory=dict, repr=False)

    @property
    def starts_anywhere(self) -> bool:
        """True: reading can start at any step, as in all pipelines that `code_texts` accepts."""
        return True

    @functools.cached_property
    def _coding(self) -> Coding:
        return Coding(self.spec, self.encoders)

    @functools.cached_property
    def _row_source(self) -> CodedRows:
        return CodedRows(self.source, self.spec, self._coding)

    def _open_windows(self, blocks: types.Blocks) -> CodedWindows:
        return CodedWindows(self.spec, blocks, self._coding)

    def _divide(self, values: dict[str, Any], with_labels: bool) -> tuple[Any, Any]:
        labels = [*self.spec.labels, *self.spec.keys] if with_labels else []
        features = {name: value for name, value in values.items() if name not in self.spec.labels}
        return features, {name: values[name] for name in labels}

    def unpack(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Return a training batch's features with texts in place of numbers, and remember the ids.

        Python code makes the texts of a feature, and only if the training step reads these texts.

        Args:
          features: the features of the batch, with numbers in place of texts, {name: [B, ...]}.

        Returns:
          {feature of the Spec: [B, ...]}.
        """
        numbers, ids = self._coding.take_apart(features)
        numbers = {**features, **numbers}
        values = {}
        for name in self.spec.features:
            values[name] = numbers[name]
            columns = self.encoders.get(name, {})
            if columns and self.spec.fields[name].dtype == "string":
                values[name] = self._make_texts(name, numbers[name])
            if columns:
                codes.remember(values[name], {column: ids[name, column] for column in columns})
        return values

    def _make_texts(self, name: str, numbers: Any) -> Any:
        """Return the texts of a field, given the numbers that `Coding.texts` gave to the texts."""

        def read(flat: np.ndarray) -> np.ndarray:
            return self._coding.texts.find(name, flat)

        def make(flat: tf.Tensor) -> tf.Tensor:
            texts = tf.numpy_function(read, [flat], tf.string, stateful=False)
            return tf.ensure_shape(texts, flat.shape)

        return tf.ragged.map_flat_values(make, numbers)


# A `CodedPipeline` reads rows in the same order as a plain pipeline. The class name of `Pipeline`
# makes the saved settings of a `CodedPipeline` and of a plain pipeline equal; by the settings,
# `launch.debug` and later versions find the state of the input.
CodedPipeline.__qualname__ = pipeline.Pipeline.__qualname__


def code_texts(data: pipeline.Pipeline, encoders: Encoders) -> CodedPipeline:
    """Return a pipeline whose training batches have ids of texts.

    Args:
      data: a pipeline whose training takes decoded rows by number.
      encoders: the functions that look up ids when the rows are read.
    """
    settings = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    return CodedPipeline(**settings, encoders=encoders)
