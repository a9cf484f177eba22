"""Rows in memory with the ids of their texts, which are looked up once, when the rows are read.

data = coded_rows.code_texts(pipeline, {"job": {"categorical_job": look_up}})
features, labels = iterator.get_next()                # of data.dataset(..., training=True)
features = data.unpack(features)         # job: texts; a step makes them only if it needs them
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from mtl import spec as spec_lib
from mtl import types
from mtl.data import in_memory, memory_rows, packed, pipeline
from mtl.deferred import tf, tf1
from mtl.step import codes

Encode: TypeAlias = Callable[["tf.Tensor"], "tf.Tensor"]
"""Turns values [N] of a field into ids, int64 [N]; its tables are part of the default graph."""

Encoders: TypeAlias = Mapping[str, Mapping[str, Encode]]
"""{field: {column: the function that looks up its ids}}"""

# The number of distinct values that are looked up at once.
_AT_ONCE = 1 << 20


# The features of a batch that hold the numbers of scalar fields, and their ids, int32 [B, n].
# The names start with NUL, so that they differ from all fields of the user.
_NUMBERS, _IDS = "\0numbers", "\0ids"


class _Numbers(NamedTuple):
    """A field of int32 in a `memory_rows.Layout`."""

    shape: tuple[int | None, ...]
    is_ragged: bool
    dtype: str = "int32"


class Coding:
    """The fields and ids of coded features: all scalar fields share two matrices.

    Args:
      spec: the fields of the rows.
      encoders: the functions that look up ids.

    Attributes:
      encoders: the functions that look up ids.
      scalars: the fields of scalar texts.
      scalar_ids: (field, column) of the ids of scalar fields.
      other_ids: (field, column) of the ids of fields with several values in a row.
      fields: {name: field} of all fields in memory.
      added: the names of features of a batch that are not fields of `spec`.
    """

    def __init__(self, spec: spec_lib.Spec, encoders: Encoders):
        self.encoders, self._spec = encoders, spec
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
        """Return the coded fields with one text in a row, and those with several."""
        fields = [self._spec.fields[name] for name in self.encoders]
        texts = [field for field in fields if field.dtype == "string"]
        scalars = [field.name for field in texts if not field.shape]
        return scalars, [field.name for field in texts if field.shape]

    def _divide_ids(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return (field, column) for the ids of scalar fields, and for all other ids."""
        scalars: list[tuple[str, str]] = []
        others: list[tuple[str, str]] = []
        for name, columns in self.encoders.items():
            pairs = [(name, column) for column in columns]
            (others if self._spec.fields[name].shape else scalars).extend(pairs)
        return scalars, others

    def _number(self, name: str) -> _Numbers:
        field = self._spec.fields[name]
        return _Numbers(cast(Any, field.shape), field.is_ragged)

    def place(self, values: dict[str, Any], ids: Mapping[tuple[str, str], Any]) -> None:
        """Put the ids of fields, and the numbers of their texts, in their places in `values`."""
        for pair in self.other_ids:
            values[name_code(*pair)] = ids[pair]
        if self.scalars:
            values[_NUMBERS] = np.stack([values.pop(name) for name in self.scalars], axis=1)
        if self.scalar_ids:
            values[_IDS] = np.stack([ids[pair] for pair in self.scalar_ids], axis=1)

    def take_apart(
        self, features: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
        """Return {field: numbers} of scalar texts and {(field, column): ids} of a batch."""
        numbers = dict(zip(self.scalars, _unstack(features, _NUMBERS), strict=True))
        ids = dict(zip(self.scalar_ids, _unstack(features, _IDS), strict=True))
        for pair in self.other_ids:
            ids[pair] = tf.cast(features[name_code(*pair)], tf.int64)
        return numbers, ids


def _unstack(features: Mapping[str, Any], name: str) -> list[tf.Tensor]:
    """Return the columns of a matrix of numbers, int64; [] without the matrix."""
    if name not in features:
        return []
    # One operation for all columns: a slice for each would take longer than the lookups.
    return tf.unstack(tf.cast(features[name], tf.int64), axis=1)


class CodedRows(in_memory.InMemory):
    """The rows of a source in memory, with numbers of distinct texts, and with ids of texts.

    Args:
      source: reads and decodes the rows.
      spec: the fields of the rows.
      encoders: the functions that look up ids.
    """

    def __init__(self, source: types.Source, spec: spec_lib.Spec, encoders: Encoders):
        super().__init__(source, spec)
        self.coding = Coding(spec, encoders)
        self.texts: dict[str, np.ndarray] = {}
        self._layout = memory_rows.Layout(self.coding.fields)

    def decode(
        self, batch: Mapping[str, tf.Tensor], spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, Any]:
        """Turn numbers of rows [B] into {name: [B, ...]}, with numbers and ids; see `Coding`."""
        values = self._take(batch)
        names = [*(spec.fields if with_labels else spec.feature_fields), *self.coding.added]
        return {name: values[name] for name in names if name in values}

    def _read(self, split: str) -> memory_rows.Rows:
        setting = ("Pipeline.cache", True)
        values: dict[str, Any] = dict(
            in_memory.read_split(self._source, split, self._spec, setting)
        )
        encoders = self.coding.encoders
        coded_fields = {name: _Coded(values[name], self._spec.fields[name]) for name in encoders}
        for name, field in coded_fields.items():
            if self._spec.fields[name].dtype == "string":
                values[name], self.texts[name] = field.numbers, field.distinct
        pairs = [*self.coding.scalar_ids, *self.coding.other_ids]
        tables = look_up(
            [(encoders[name][column], coded_fields[name].distinct) for name, column in pairs]
        )
        ids = {
            pair: coded_fields[pair[0]].take(table)
            for pair, table in zip(pairs, tables, strict=True)
        }
        self.coding.place(values, ids)
        return memory_rows.Rows(self._layout, values)


class _Coded:
    """The values of a field, as numbers of its distinct values.

    Args:
      values: the values of all rows, as `packed.pack` returns them.
      field: the field.

    Attributes:
      numbers: the number of each value, an array [N, ...] or lists, int32.
      distinct: the distinct values, [D].
    """

    def __init__(self, values: Any, field: spec_lib.Field):
        flat = values.values if field.is_ragged else values
        if isinstance(flat, packed.Texts):
            numbers, distinct = flat.numbers, np.array(flat.distinct.to_pylist(), object)
        else:
            # Whole numbers are looked up as well, each distinct number once.
            distinct, numbers = np.unique(flat, return_inverse=True)
        self.distinct, numbers = distinct, numbers.astype(np.int32, copy=False)
        if not field.is_ragged:
            self.numbers: Any = numbers.reshape(-1, *cast(tuple[int, ...], field.shape))
            return
        splits = values.splits
        if field.dtype == "string":  # Empty texts are dropped, as in `Spec.drop_empty_texts`.
            is_text = (distinct != b"")[numbers]
            # The number of texts that are not empty in front of each place.
            splits = packed.count_splits(is_text)[splits]
            numbers = numbers[is_text]
        self.numbers = packed.Lists(numbers, splits)

    def take(self, table: np.ndarray) -> Any:
        """Return the ids of all values in the form of `numbers`, given ids of distinct values."""
        if isinstance(self.numbers, packed.Lists):
            return packed.Lists(table[self.numbers.values], self.numbers.splits)
        return table[self.numbers]


def look_up(pairs: Sequence[tuple[Encode, np.ndarray]]) -> list[np.ndarray]:
    """Return the ids of distinct values, int32 [D], of each encoder with its values [D].

    All encoders share one graph: they may share tables, and a session takes milliseconds to make.
    """
    encodings, tables = [], []
    with tf.Graph().as_default() as graph:
        for encode, distinct in pairs:
            placeholder = tf1.placeholder(
                tf.string if distinct.dtype == object else tf.int64, [None]
            )
            encodings.append((placeholder, tf.cast(encode(placeholder), tf.int32), distinct))
        with tf1.Session(graph=graph) as session:
            session.run(tf1.tables_initializer())
            for placeholder, ids, distinct in encodings:
                parts = [np.zeros([0], np.int32)]
                for start in range(0, len(distinct), _AT_ONCE):
                    parts.append(
                        session.run(ids, {placeholder: distinct[start : start + _AT_ONCE]})
                    )
                tables.append(np.concatenate(parts))
    return tables


def name_code(field: str, column: str) -> str:
    """Return the name of the ids of a field for a column among the features of a batch."""
    return f"{field}\0{column}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodedPipeline(pipeline.Pipeline):
    """A pipeline whose training batches hold numbers of texts, and ids: see `unpack`.

    Attributes:
      encoders: the functions that look up ids.
    """

    encoders: Encoders = dataclasses.field(default_factory=dict, repr=False)

    @functools.cached_property
    def _row_source(self) -> CodedRows:
        return CodedRows(self.source, self.spec, self.encoders)

    def _divide(self, values: dict[str, Any], with_labels: bool) -> tuple[Any, Any]:
        labels = [*self.spec.labels, *self.spec.keys] if with_labels else []
        features = {name: value for name, value in values.items() if name not in self.spec.labels}
        return features, {name: values[name] for name in labels}

    def unpack(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Return the features of a training batch with texts, and remember the ids of columns.

        Texts come from Python. The step makes them only if it reads them.
        """
        numbers, ids = self._row_source.coding.take_apart(features)
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
        """Return the texts of a field with these numbers."""

        def read(flat: np.ndarray) -> np.ndarray:
            return self._row_source.texts[name][flat]

        def make(flat: tf.Tensor) -> tf.Tensor:
            texts = tf.numpy_function(read, [flat], tf.string, stateful=False)
            return tf.ensure_shape(texts, flat.shape)

        return tf.ragged.map_flat_values(make, numbers)


def code_texts(data: pipeline.Pipeline, encoders: Encoders) -> CodedPipeline:
    """Return a pipeline that keeps its training rows in memory, with ids of texts.

    Args:
      data: a pipeline whose training takes rows by number, and has them in memory.
      encoders: the functions that look up ids when the rows are read.
    """
    settings = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    return CodedPipeline(**{**settings, "cache": True, "encoders": encoders})
