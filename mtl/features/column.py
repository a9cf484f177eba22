"""Base classes and helpers of columns, which read fields and turn ids into vectors.

column.numbers("Numeric", features, "age")               # float32, or int64 of integers
column.tokens("Categorical", features, "job")            # string, for integers too
column.vectors("hashed_job", ids, 1000, 8, "mean")       # [B] or [B, (L)] -> [B, 8]
"""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import itertools
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mtl import checks, layers, types
from mtl.deferred import tf
from mtl.layers import half_tables
from mtl.variables import sharding

POOLINGS = ("sum", "mean", "sqrtn")
# The memory and time of a one-hot input grow with its width, so wide inputs need an embedding.
_MAX_ONE_HOT = 4096

Values: TypeAlias = "tf.Tensor | tf.RaggedTensor"

Boundaries: TypeAlias = int | Sequence[float]
"""Ascending numbers, or the approximate number of buckets to fit."""


@checks.dataclass
class PerField(types.Column):
    """A column object that makes one column, `<prefix>_<field>`, from each field.

    Attributes:
      names: the names of the fields.
      prefix: the start of the column's name, which is also the variable scope. With different
        prefixes, two objects of the same class can use the same field.
      trainable: False freezes the tables of the column.
    """

    names: Annotated[Sequence[str], check_fields]
    prefix: checks.Name
    trainable: bool = True

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """{column: fields of the column}."""
        return {output: (field,) for field, output in name_columns(self.prefix, self.names).items()}

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return {column: accumulator of statistics}; empty if nothing has to be fitted."""
        return {}

    @property
    def files(self) -> dict[str, str]:
        """{column: file that the settings name}; empty without files."""
        return {}

    def row_names(self, fitted: types.Statistics) -> dict[str, types.RowNames]:
        """Return {column: names of table rows}; empty if rows have no names."""
        del fitted
        return {}

    def __call__(self, features: types.Tensors, fitted: types.Statistics) -> types.Tensors:
        """Encode fields, {field: [B, ...]}, as columns, {column: [B, D] or [B, H, W, C]}."""
        outputs = {}
        for output, (field,) in self.columns.items():
            with self._open_scope(output):
                outputs[output] = self._encode(features, field, output, fitted)
        return outputs

    def _open_scope(self, output: str) -> contextlib.AbstractContextManager[Any]:
        """Open the variable scope of the column `output`."""
        return tf.compat.v1.variable_scope(output)

    @abc.abstractmethod
    def _encode(
        self, features: types.Tensors, field: str, output: str, fitted: types.Statistics
    ) -> tf.Tensor:
        """Encode one field as the column with the name `output`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lookup(types.Column):
    """The base class of columns that turn ids into vectors.

    Attributes:
      dimension: the length of the embedding's vectors; None gives one-hot inputs.
      pooling: how the vectors of several values in a row are combined: "sum", "mean" or "sqrtn".
      initial_stddev: the standard deviation of the embedding's initial values, above 0; None means
        `dimension ** -0.5`. The initial values come from a normal distribution that is truncated at
        two standard deviations.
      storage: the type of the table's numbers: "float32", or "bfloat16", which halves the memory.
    """

    dimension: int | None = 8
    pooling: str = "mean"
    initial_stddev: float | None = None
    storage: str = half_tables.FLOAT32

    def _check_lookup(self) -> None:
        kind = type(self).__name__
        checks.one_of(f"{kind}.storage", self.storage, half_tables.STORAGES)
        fits = self.storage == half_tables.FLOAT32 or self.dimension is not None
        rule = f"be {half_tables.FLOAT32!r} if {kind}.dimension is None"
        checks.require(fits, f"{kind}.storage", rule, self.storage)
        if self.dimension is not None:
            rule = "be a whole number, or None for one-hot"
            checks.is_a(f"{kind}.dimension", self.dimension, int, rule)
            checks.positive(f"{kind}.dimension", self.dimension)
        checks.one_of(f"{kind}.pooling", self.pooling, POOLINGS)
        if self.initial_stddev is not None:
            where, stddev = f"{kind}.initial_stddev", self.initial_stddev
            checks.positive(where, stddev)
            rule = f"be None if {kind}.dimension is None"
            checks.require(self.dimension is not None, where, rule, stddev)

    def _look_up(
        self,
        output: str,
        ids: Values,
        size: int,
        initializer: Callable[..., tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Turn ids in [0, size) into vectors, [B, D]; see `vectors`."""
        dimension, stddev = self.dimension, self.initial_stddev
        with self._store():
            return vectors(output, ids, size, dimension, self.pooling, stddev, initializer)

    def _store(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which new tables use the type `storage`."""
        return sharding.store_tables(tf.as_dtype(self.storage))


def name(prefix: str, text: str) -> str:
    """Return `<prefix>_<text>`, with '_' for characters that variable scopes forbid."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", f"{prefix}_{text}")


def name_columns(prefix: str, texts: Sequence[str]) -> dict[str, str]:
    """Give each text, such as the name of a field, a unique column name.

    Variable scopes forbid letters of other alphabets, so two fields could get the same name. If two
    texts would give the same name, a checksum is appended to the names of both.

    Args:
      prefix: the text with which the names of all columns start.
      texts: the texts, without repeats.

    Returns:
      {text: `<prefix>_<text>`}, as `name` writes it, in the order of the texts.
    """
    names = {text: name(prefix, text) for text in texts}
    counts = collections.Counter(names.values())
    for text, output in names.items():
        if counts[output] > 1:
            names[text] = f"{output}_{zlib.crc32(text.encode(errors='surrogatepass')):08x}"
    return names


def check_fields(where: str, fields: Sequence[str]) -> None:
    """Fail unless a setting is a list of distinct names, at least one.

    Args:
      where: the name of the setting, used in error messages.
      fields: the value of the setting.

    Raises:
      UserError: the value is not a list, is empty, holds anything but texts, or holds a name twice.
    """
    checks.is_a(where, fields, (list, tuple), "be a list of fields")
    checks.require(len(fields) > 0, where, "name a field", fields)
    for field in fields:
        checks.is_a(where, field, str, "hold names of fields")
    checks.unique(where, fields)


def check_boundaries(where: str, boundaries: Boundaries, least: int = 1) -> None:
    """Fail unless a setting is a number of buckets, or a list of boundaries.

    Args:
      where: the name of the setting, used in error messages.
      boundaries: the value of the setting: a number of buckets, or ascending boundaries.
      least: the smallest allowed length of a list of boundaries.
    """
    if isinstance(boundaries, int):
        checks.whole(where, boundaries, 2)
        return
    rule = "be a number of buckets or a list of boundaries"
    checks.is_a(where, boundaries, (list, tuple), rule)
    for boundary in boundaries:
        checks.is_a(where, boundary, (int, float), "hold numbers")
    ascending = all(low < high for low, high in itertools.pairwise(boundaries))
    rule = "ascend" if least == 1 else f"ascend, and hold at least {least} numbers"
    checks.require(ascending and len(boundaries) >= least, where, rule, boundaries)


def numbers(kind: str, features: types.Tensors, field: str) -> Values:
    """Read a field of numbers.

    Args:
      kind: the class of the column, used in error messages.
      features: {field: [B, ...]}.
      field: the name of the field.

    Returns:
      float32; or int64 if the field holds integers or bools, because float32 is exact only up to
      2^24.

    Raises:
      UserError: the field holds strings.
    """
    values = features[field]
    _refuse_strings(kind, field, values)
    return tf.cast(values, tf.float32 if values.dtype.is_floating else tf.int64)


def integers(kind: str, features: types.Tensors, field: str) -> Values:
    """Read a field of integers as int64.

    Args:
      kind: the class of the column, used in error messages.
      features: {field: [B, ...]}.
      field: the name of the field.

    Raises:
      UserError: the field holds strings or fractions.
    """
    values = features[field]
    _refuse_strings(kind, field, values)
    _refuse_fractions(kind, field, values)
    return tf.cast(values, tf.int64)


def read_categories(kind: str, features: types.Tensors, field: str) -> Values:
    """Read a field of strings or integers.

    Args:
      kind: the class of the column, used in error messages.
      features: {field: [B, ...]}.
      field: the name of the field.

    Raises:
      UserError: the field holds fractions.
    """
    _refuse_fractions(kind, field, features[field])
    return features[field]


def tokens(kind: str, features: types.Tensors, field: str) -> Values:
    """Read a field as strings; integers become their decimal digits.

    Args:
      kind: the class of the column, used in error messages.
      features: {field: [B, ...]}.
      field: the name of the field.

    Raises:
      UserError: the field holds fractions.
    """
    values = features[field]
    if values.dtype == tf.string:
        return values
    _refuse_fractions(kind, field, values)
    return tf.ragged.map_flat_values(tf.strings.as_string, tf.cast(values, tf.int64))


def _refuse_strings(kind: str, field: str, values: Values) -> None:
    if values.dtype == tf.string:
        fix = "The field holds strings: give it to a Categorical or Hashed column."
        checks.fail(f"{kind}.names", "name fields of numbers", field, fix)


def _refuse_fractions(kind: str, field: str, values: Values) -> None:
    if values.dtype.is_floating:
        fix = f"The field holds {values.dtype.name}: give it to a Numeric or Bucketized column."
        checks.fail(f"{kind}.names", "name fields of strings or integers", field, fix)


def flat(values: Values) -> tf.Tensor:
    """Flatten the values of a batch.

    Args:
      values: the values, [B, ...], dense or ragged.

    Returns:
      [N], the values row by row.
    """
    values = values.flat_values if isinstance(values, tf.RaggedTensor) else values
    # Skip the reshape if possible, because it takes a quarter of a millisecond in eager mode.
    return values if values.shape.rank == 1 else tf.reshape(values, [-1])


def inverse(spread: npt.ArrayLike) -> np.ndarray:
    """Compute factors that divide numbers by a spread, such as a standard deviation.

    Args:
      spread: numbers of any shape, at least 0.

    Returns:
      1 / spread, float32 of the same shape; 0 for a spread of 0.
    """
    spreads = np.asarray(spread, np.float64)
    return np.divide(1, spreads, out=np.zeros_like(spreads), where=spreads > 0).astype(np.float32)


def vectors(
    output: str,
    ids: Values,
    size: int,
    dimension: int | None,
    pooling: str,
    stddev: float | None = None,
    initializer: Callable[..., tf.Tensor] | None = None,
) -> tf.Tensor:
    """Turn ids into a vector for each row, by an embedding or as one-hot vectors.

    Args:
      output: the name of the column, used in error messages.
      ids: [B], [B, n] or [B, (L)], in [0, size). The vectors of several ids in a row are pooled.
      size: the number of ids.
      dimension: the length of a vector, D; None makes one-hot vectors of length `size`.
      pooling: "sum", "mean" or "sqrtn"; "sqrtn" divides the sum by the square root of the number of
        ids. A row without ids gets zeros.
      stddev: the standard deviation of the initial values; see `layers.embedding`.
      initializer: creates the initial values of the table; `stddev` then has no effect.

    Returns:
      The vectors of the rows, [B, D].

    Raises:
      UserError: there are too many ids for one-hot vectors.
    """
    if dimension is None:
        fix = "Set a dimension: an embedding costs nothing for the rows it does not look up."
        rule = f"have at most {_MAX_ONE_HOT} ids to be one-hot"
        checks.require(size <= _MAX_ONE_HOT, f"features.{output}", rule, size, fix)
        return embed(ids, lambda flat_ids: tf.one_hot(flat_ids, size), size, pooling)
    width = dimension

    def look_up(flat_ids: tf.Tensor) -> tf.Tensor:
        return layers.embedding(flat_ids, size, width, stddev=stddev, initializer=initializer)

    return embed(ids, look_up, width, pooling)


def embed(
    ids: Values, look_up: Callable[[tf.Tensor], tf.Tensor], width: int, pooling: str
) -> tf.Tensor:
    """Turn ids into a vector for each row, by any lookup function.

    Args:
      ids: the ids of each row, [B], [B, n] or [B, (L)].
      look_up: a function from ids of any shape [...] to vectors [..., width].
      width: the length of a vector.
      pooling: how the vectors of a row are combined, as in `vectors`.

    Returns:
      The vectors of the rows, [B, width].
    """
    # The vectors of all ids, [B, D], [B, n, D] or [B, (L), D].
    vectors = tf.ragged.map_flat_values(look_up, ids)
    if ids.shape.rank == 1:
        return vectors
    return tf.ensure_shape(_pool_values(vectors, pooling), [None, width])


def _pool_values(looked_up: Values, pooling: str) -> tf.Tensor:
    """Pool the vectors of each row, [B, n, D] or [B, (L), D], to [B, D]."""
    total = tf.reduce_sum(looked_up, axis=1)
    if pooling == "sum":
        return total
    # In a dense field, all rows have the same number of values.
    is_ragged = isinstance(looked_up, tf.RaggedTensor)
    counts = looked_up.row_lengths()[:, tf.newaxis] if is_ragged else tf.shape(looked_up)[1]
    counts = tf.cast(counts, total.dtype)
    # The sum of a row without values is 0, and remains 0.
    return tf.math.divide_no_nan(total, tf.sqrt(counts) if pooling == "sqrtn" else counts)
