"""Columns that turn numbers into buckets, or combine the values of several fields.

features.Bucketized.names = ["age", "hours"]             # fitted buckets of equal frequency
features.Crossed.crosses = [["job", "education"], ["age", "job"]]
features.Crossed.boundaries = {"age": [25, 35, 50, 65]}
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np

from mtl import checks, types
from mtl.deferred import tf
from mtl.features import accumulators, column, tables


@checks.dataclass
class Bucketized(column.Lookup, column.PerField):
    """Turns numbers into buckets, embedded or one-hot: [B], [B, n] or [B, (L)] -> [B, D].

    Bucket i holds boundaries[i-1] <= x < boundaries[i]. NaN has a separate bucket, which follows
    all other buckets.

    Attributes:
      names: the fields; each field has separate boundaries and a separate embedding.
      boundaries: ascending numbers; or the approximate number of buckets, which are fitted to the
        training split so that all buckets hold about equally many values. A frequent value gets a
        separate bucket. The default of 32 buckets comes from boosted trees on census data: the AUC
        is 0.883 with 10 buckets, 0.889 with 20, 0.893 with 30, and 0.893 with 100.
      dimension: the length of the embedding's vectors; None gives one-hot inputs.
      pooling: how the vectors of several values in a row are combined: "sum", "mean" or "sqrtn".
      initial_stddev: the standard deviation of the embedding's initial values, above 0; None means
        `dimension ** -0.5`. The initial values come from a normal distribution that is truncated at
        two standard deviations.
      storage: the type of the table's numbers: "float32", or "bfloat16", which halves the memory.
      prefix: the start of the column's name, `<prefix>_<field>`.
    """

    boundaries: Annotated[column.Boundaries, column.check_boundaries] = 32
    prefix: str = "bucketized"

    def __post_init__(self):
        super().__post_init__()
        self._check_lookup()

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return {column: accumulator of quantiles}."""
        if not isinstance(self.boundaries, int):
            return {}
        return {
            output: _make_quantiles("Bucketized", field, self.boundaries)
            for output, (field,) in self.columns.items()
        }

    def _encode(
        self, features: types.Tensors, field: str, output: str, fitted: types.Statistics
    ) -> tf.Tensor:
        boundaries = _find_boundaries(self.boundaries, output, fitted)
        ids = _find_buckets(column.numbers("Bucketized", features, field), boundaries)
        # N boundaries give N + 1 buckets, and NaN has another bucket.
        size = len(boundaries) + 2
        return self._look_up(output, ids, size)


@checks.dataclass
class Crossed(tables.Embedded):
    """Hashes combinations of the values of several fields: fields [B, ...] -> [B, D].

    If a field has several values in a row, the vectors of all combinations are pooled.

    Attributes:
      crosses: lists of at least two fields; each list becomes a column
        `<prefix>_<field>_x_<field>`.
      num_buckets: the number of hash buckets; several times the number of combinations keeps
        collisions rare.
      boundaries: {field: boundaries} for fields of floats; see `Bucketized.boundaries`.
      dimension: the length of the embedding's vectors; None gives one-hot inputs.
      pooling: how the vectors of several values in a row are combined: "sum", "mean" or "sqrtn".
      initial_stddev: the standard deviation of the embedding's initial values, above 0; None means
        `dimension ** -0.5`. The initial values come from a normal distribution that is truncated at
        two standard deviations.
      storage: the type of the table's numbers: "float32", or "bfloat16", which halves the memory.
      embedding: a smaller table from `mtl.features.embeddings`; None gives each bucket a separate
        row.
      prefix: the start of the column's name.
      trainable: False freezes the tables of the column.
    """

    crosses: Sequence[
        Annotated[
            Sequence[str],
            column.check_fields,
            checks.Rule("join at least two fields", lambda value: len(value) > 1),
        ]
    ]
    num_buckets: Annotated[int, checks.AtLeast(2)] = 1000
    boundaries: Annotated[
        Mapping[str, column.Boundaries], checks.Map("map fields to boundaries")
    ] = dataclasses.field(default_factory=dict)
    prefix: checks.Name = "crossed"
    trainable: bool = True

    def __post_init__(self):
        self._check_lookup()
        is_distinct = len(self.columns) == len(self.crosses) > 0
        rule = "hold a cross, and none twice"
        checks.require(is_distinct, "Crossed.crosses", rule, self.crosses)
        for field, boundaries in self.boundaries.items():
            checks.one_of(
                "Crossed.boundaries", field, dict.fromkeys(itertools.chain(*self.crosses))
            )
            column.check_boundaries(f"Crossed.boundaries[{field!r}]", boundaries)

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """{column: fields of the column}."""
        crosses = {"_x_".join(cross): tuple(cross) for cross in self.crosses}
        names = column.name_columns(self.prefix, list(crosses))
        return {names[text]: cross for text, cross in crosses.items()}

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return {`<prefix>_<field>`: accumulator of the quantiles of the field}."""
        return {
            self._boundary_names[field]: _make_quantiles("Crossed", field, boundaries)
            for field, boundaries in self.boundaries.items()
            if isinstance(boundaries, int)
        }

    @property
    def _boundary_names(self) -> dict[str, str]:
        """{field: name of the statistics that hold its boundaries}."""
        return column.name_columns(self.prefix, list(self.boundaries))

    def row_names(self, fitted: types.Statistics) -> dict[str, types.RowNames]:
        """Return {column: names of table rows}, for tables with fewer rows than hash buckets."""
        del fitted
        return self._name_groups(self.columns, ("num_buckets", "embedding"))

    def __call__(self, features: types.Tensors, fitted: types.Statistics) -> types.Tensors:
        """Encode fields, {field: [B], [B, n] or [B, (L)]}, as columns, {column: [B, D]}."""
        outputs = {}
        for output, fields in self.columns.items():
            with tf.compat.v1.variable_scope(output):
                ids = self._cross_categories(
                    [self._read_categories(features, field, fitted) for field in fields]
                )
                outputs[output] = self._look_up(output, ids, self.num_buckets)
        return outputs

    def _read_categories(
        self, features: types.Tensors, field: str, fitted: types.Statistics
    ) -> column.Values:
        if field not in self.boundaries:
            return column.tokens("Crossed", features, field)
        name = self._boundary_names[field]
        boundaries = _find_boundaries(self.boundaries[field], name, fitted)
        return _find_buckets(column.numbers("Crossed", features, field), boundaries)

    def _cross_categories(self, categories: Sequence[column.Values]) -> column.Values:
        # `cross_hashed` accepts only inputs of rank 2.
        rows = [
            values[:, tf.newaxis] if values.shape.rank == 1 else values for values in categories
        ]
        crosses = tf.ragged.cross_hashed(rows, self.num_buckets)
        # If each field has a single value in a row, a row has a single combination: return [B].
        has_one_each = all(values.shape.rank == 1 for values in categories)
        return crosses.flat_values if has_one_each else crosses


def _make_quantiles(kind: str, field: str, num_buckets: int) -> accumulators.Quantiles:
    return accumulators.Quantiles(
        source=field,
        read=lambda features: column.flat(column.numbers(kind, features, field)).numpy(),
        num_buckets=num_buckets,
    )


def _find_boundaries(
    boundaries: column.Boundaries, name: str, fitted: types.Statistics
) -> Sequence[float]:
    return fitted.for_column(name)["boundaries"] if isinstance(boundaries, int) else boundaries


def _find_buckets(values: column.Values, boundaries: Sequence[float]) -> column.Values:
    """Return the buckets of numbers, int64 in [0, len(boundaries) + 2), of the same shape."""
    bucket = _bucket_of_integers if values.dtype.is_integer else _bucket_of_floats
    return tf.ragged.map_flat_values(bucket, values, boundaries)


def _bucket_of_floats(numbers: tf.Tensor, boundaries: Sequence[float]) -> tf.Tensor:
    ids = tf.raw_ops.Bucketize(input=numbers, boundaries=[float(b) for b in boundaries])
    nan_id = tf.constant(len(boundaries) + 1, tf.int64)
    return tf.where(tf.math.is_nan(numbers), nan_id, tf.cast(ids, tf.int64))


def _bucket_of_integers(numbers: tf.Tensor, boundaries: Sequence[float]) -> tf.Tensor:
    """Return the exact buckets of integers; TensorFlow's `Bucketize` rounds to float32.

    The boundaries are rounded up, because x >= b is equivalent to x >= ceil(b) for integers x.
    """
    limits = np.iinfo(np.int64)
    # A boundary below int64 becomes the least int64. A boundary above int64 is dropped.
    wholes = [limits.min if b < limits.min else math.ceil(b) for b in boundaries if b <= limits.max]
    # Flatten the numbers to one row, because `searchsorted` expects boundaries for each row.
    flat = tf.reshape(numbers, [-1])
    ids = tf.searchsorted(tf.constant(wholes, tf.int64), flat, "right", out_type=tf.int64)
    return tf.ensure_shape(tf.reshape(ids, tf.shape(numbers)), numbers.shape)
