"""A column for numbers, which are normalised by statistics of the training split.

features.Numeric.names = ["age", "hours"]
heavy/features.Numeric.names = ["capital-gain"]        # @heavy/features.Numeric()
heavy/features.Numeric.log = True
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from mtl import checks, types
from mtl.deferred import tf
from mtl.features import accumulators, column

_NORMALIZATIONS = ("z_score", "min_max", "none")
# float32 holds every integer up to 2^24 exactly.
_EXACT_UP_TO = 2.0**24
# Below this number of fields, the logarithm is computed for each field separately, because the last
# bit of a logarithm depends on the position of the number in its tensor.
_LOGS_TOGETHER = 16
_RANGE = ("least", "greatest")


@checks.dataclass
class Numbers(column.PerField):
    """The base class of columns that normalise numbers: [B] -> [B, 1], and [B, n] -> [B, n].

    Each element of a field has separate statistics. A value that is not finite counts as missing:
    the fit ignores missing values, and a neutral value replaces a missing value.

    The shift of integers beyond 2^24, such as seconds since 1970, is subtracted in float64, which
    is exact up to 2^53, so integers that differ by 1 stay different.

    Attributes:
      log: True first applies sign(x) log(1 + |x|).
      missing_flags: True adds n inputs that are 1 if the value is missing.
    """

    log: bool = False
    missing_flags: bool = False

    @abc.abstractmethod
    def _find_entry(self, output: str, fitted: types.Statistics) -> Mapping[str, Any] | None:
        """Return the statistics of a column, such as `least`; None without normalisation."""

    @abc.abstractmethod
    def _shift_and_scale(self, entry: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return the shift and the factor of each element; x becomes (x - shift) * factor."""

    def _stand_in(self, entry: Mapping[str, Any]) -> np.ndarray:
        """Return the normalised value that replaces missing values, for each element."""
        return np.zeros(len(entry["least"]), np.float32)

    def __call__(self, features: types.Tensors, fitted: types.Statistics) -> types.Tensors:
        """Encode fields, {field: [B] or [B, n]}, as {column: [B, n], or [B, 2 n] with flags}.

        Fields with a single number are encoded together, to save ops.
        """
        fields_by_kind: dict[Any, dict[str, str]] = {}
        for output, (field,) in self.columns.items():
            entry, values = self._find_entry(output, fitted), features[field]
            is_one = isinstance(values, tf.Tensor) and values.shape.rank == 1
            # Group fields by type and precision, because a group is stacked into one tensor.
            kind = (values.dtype, self._choose_precision(entry)) if is_one else output
            fields_by_kind.setdefault(kind, {})[output] = field
        outputs: dict[str, tf.Tensor] = {}
        for fields in fields_by_kind.values():
            if len(fields) >= (_LOGS_TOGETHER if self.log else 2):
                outputs |= self._encode_together(features, fields, fitted)
                continue
            for output, field in fields.items():
                with self._open_scope(output):
                    outputs[output] = self._encode(features, field, output, fitted)
        return outputs

    def _encode_together(
        self, features: types.Tensors, fields: Mapping[str, str], fitted: types.Statistics
    ) -> dict[str, tf.Tensor]:
        """Encode fields of one type and precision, {column: field}, as {column: [B, 1 or 2]}."""
        outputs = list(fields)
        entries = [self._find_entry(output, fitted) for output in outputs]
        (first, *_), columns = fields.values(), [features[field] for field in fields.values()]
        # Stack all fields into a single field with n numbers, [B, n].
        joint_field = {first: tf.stack(columns, axis=1)}
        values = self._read_values(joint_field, first, self._choose_precision(entries[0]))
        numbers, is_known = self._normalise_values(values, entries)
        parts = tf.split(numbers, len(outputs), axis=1)
        if self.missing_flags:
            # Stack numbers and flags to [B, n, 2], then split into [B, 2] for each column.
            pairs = tf.stack([numbers, _make_flags(is_known, numbers.dtype)], axis=2)
            parts = tf.unstack(pairs, axis=1)
        return dict(zip(outputs, parts, strict=True))

    def _encode(
        self, features: types.Tensors, field: str, output: str, fitted: types.Statistics
    ) -> tf.Tensor:
        """Encode a field, [B] or [B, n], as [B, n], or [B, 2 n] with flags."""
        entry = self._find_entry(output, fitted)
        values = self._read_values(features, field, self._choose_precision(entry))
        numbers, is_known = self._normalise_values(values, [entry])
        if self.missing_flags:
            numbers = tf.concat([numbers, _make_flags(is_known, numbers.dtype)], axis=1)
        return numbers

    def _normalise_values(
        self, values: tf.Tensor, entries: Sequence[Mapping[str, Any] | None]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Normalise values [B, n] by the statistics of the n elements, of one or more columns.

        Return the normalised numbers, and a mask of the values that are not missing.
        """
        is_known = tf.math.is_finite(values)
        # Replace missing values before any computation, because NaN times zero is NaN, also in
        # gradients.
        numbers = tf.where(is_known, values, tf.zeros_like(values))
        statistics = [entry for entry in entries if entry is not None]
        if statistics:
            pairs = [self._shift_and_scale(entry) for entry in statistics]
            shift, scale = map(np.concatenate, zip(*pairs, strict=True))
            if self.log:
                scale = scale * _find_varying(statistics, values.dtype)
            deviations = tf.cast(numbers - tf.constant(shift, values.dtype), tf.float32)
            stand_in = np.concatenate([self._stand_in(entry) for entry in statistics])
            numbers = tf.where(is_known, deviations * scale, tf.constant(stand_in, tf.float32))
        return numbers, is_known

    def _read(self, features: types.Tensors, field: str) -> np.ndarray:
        """Read the values of an eager batch for the accumulator, [N, n]."""
        values = features[field]
        if values.dtype in (tf.float32, tf.int64) and values.shape.rank == 1 and not self.log:
            # `numpy` is ten times as fast as `_read_values`.
            return values.numpy()[:, np.newaxis]
        return self._read_values(features, field, tf.float64).numpy()

    def _choose_precision(self, entry: Mapping[str, Any] | None) -> tf.DType:
        """Return the dtype of integers: float32 if exact on the training split, else float64."""
        if entry is None:
            return tf.float32
        greatest = np.abs([entry["least"], entry["greatest"]]).max()
        # With `log`, `least` and `greatest` are logarithms.
        limit = np.log1p(_EXACT_UP_TO) if self.log else _EXACT_UP_TO
        return tf.float32 if greatest <= limit else tf.float64

    def _read_values(self, features: types.Tensors, field: str, precision: tf.DType) -> tf.Tensor:
        """Read values [B, n] without normalisation; integers are cast to `precision`."""
        kind = type(self).__name__
        values = column.numbers(kind, features, field)
        if isinstance(values, tf.RaggedTensor) or values.shape.rank not in (1, 2):
            fix = f"Its batches have shape {values.shape}; a Bucketized column takes lists."
            checks.fail(f"{kind}.names", "name fields of shape () or (n,)", field, fix)
        if values.shape.rank == 1:
            values = values[:, tf.newaxis]
        if values.dtype.is_integer:
            values = tf.cast(values, precision)
        return tf.sign(values) * tf.math.log1p(tf.abs(values)) if self.log else values


@checks.dataclass
class Numeric(Numbers):
    """Normalises numbers, each element by separate statistics: [B] -> [B, 1], and [B, n] -> [B, n].

    A value that is not finite counts as missing. The fit ignores missing values. A missing value
    becomes 0, which is the mean of the training split under "z_score".

    The mean of integers beyond 2^24, such as seconds since 1970, is subtracted in float64, which is
    exact up to 2^53, so integers that differ by 1 stay different.

    Attributes:
      names: the fields; integers and bools count as numbers.
      normalization: "z_score" computes (x - mean) / stddev. "min_max" computes (x - least) /
        (greatest - least), which is in [0, 1] on the training split. "none" changes nothing. With
        "z_score" and "min_max", a constant element becomes 0.
      log: True first applies sign(x) log(1 + |x|), for heavy tails such as sums of money.
      missing_flags: True adds n inputs that are 1 if the value is missing. `missing_flags` is False
        by default, because most data have no missing values.
      prefix: the start of the column's name, `<prefix>_<field>`. With different prefixes, two
        Numeric columns can use the same field.
    """

    normalization: Annotated[str, checks.OneOf(_NORMALIZATIONS)] = "z_score"
    prefix: str = "numeric"

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return {column: accumulator of moments}."""
        if self.normalization == "none":
            return {}
        return {
            output: accumulators.Moments(
                source=f"log of {field}" if self.log else field,
                read=functools.partial(self._read, field=field),
                by_example=True,
            )
            for output, (field,) in self.columns.items()
        }

    def _find_entry(self, output: str, fitted: types.Statistics) -> Mapping[str, Any] | None:
        return None if self.normalization == "none" else fitted.for_column(output)

    def _shift_and_scale(self, entry: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        shift, spread = np.array(entry["mean"]), np.array(entry["stddev"])
        if self.normalization == "min_max":
            shift = np.array(entry["least"])
            spread = np.array(entry["greatest"]) - shift
        return shift, column.inverse(spread)


def _find_varying(entries: Sequence[Mapping[str, Any]], dtype: tf.DType) -> np.ndarray:
    """Return a mask [n], False for elements with equal logarithms up to rounding errors.

    The last bit of a logarithm depends on the position of the number in its tensor.
    """
    least, greatest = (np.concatenate([entry[key] for entry in entries]) for key in _RANGE)
    error = 2 * np.finfo(dtype.as_numpy_dtype).eps
    return greatest - least > error * np.maximum(np.abs(least), np.abs(greatest))


def _make_flags(is_known: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.logical_not(is_known), dtype)
