"""Columns for times: units such as the weekday, and the days between two times.

features.TimeParts.names = ["day"]
features.TimeParts.units = ["weekday", "month"]
features.TimeParts.form = "%d.%m.%Y"                     # for 31.05.2024

features.DaysSince.names = ["visit"]
features.DaysSince.since = "sign_up"

The graph parses times, so a served model accepts times in the format of the data files.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from mtl import checks, spec, times, types
from mtl.deferred import tf
from mtl.features import accumulators as accumulators_lib
from mtl.features import column, numeric
from mtl.spec import literals, time_texts
from mtl.step import codes

# {unit: (first value, number of values)}
_SIZES = {"month": (1, 12), "day": (1, 31), "weekday": (0, 7), "hour": (0, 24), "minute": (0, 60)}
_SECONDS_OF_DAY = 86_400


def _read_times(
    kind: str, values: tf.Tensor, field: str, form: str
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Parse times [N] into parts (see `time_texts.read_parts`), with a mask of valid times."""
    texts = column.tokens(kind, {field: values}, field)
    if form not in times.SINCE_1970:
        return time_texts.read_parts(texts, times.read_form(f"{kind}.form", form))
    is_time = tf.strings.regex_full_match(texts, literals.FINITE)
    # -1 marks a missing number, not the last second of 1969.
    is_time &= tf.not_equal(texts, str(spec.NO_ID))
    # Use float64, because float32 rounds seconds since 1970 to multiples of 128.
    numbers = tf.strings.to_number(tf.where(is_time, texts, "0"), tf.float64)
    seconds = tf.floor(numbers / times.SINCE_1970[form])
    return time_texts.divide_seconds(tf.cast(seconds, tf.int64)), is_time


@checks.dataclass
class TimeParts(column.Lookup, column.PerField):
    """Encodes units of times, such as weekdays: [B], [B, n] or [B, (L)] -> [B, D].

    Each unit of time of a field, such as the weekday, becomes a column `<prefix>_<field>_<unit>`,
    embedded or one-hot. Missing values, and texts that are not times, share an additional id. Time
    zones in texts are ignored. Times that count seconds or fractions of a second since 1970 are in
    UTC; -1 means a missing time.

    Attributes:
      names: the fields, texts or integers.
      units: a list of units, out of "month", "day" (of the month), "weekday", "hour" and "minute".
      form: the format of times in the fields. The empty format "" reads 2024-05-31, 2024/5/31 9:05
        and similar texts. Other formats are directives of Python's strptime, such as "%d.%m.%Y
        %H:%M", and "seconds", "milliseconds", "microseconds" or "nanoseconds" since 1970.
      dimension: the length of the embedding's vectors; None gives one-hot inputs.
      pooling: how the vectors of several values in a row are combined: "sum", "mean" or "sqrtn".
      initial_stddev: the standard deviation of the embedding's initial values, above 0; None means
        `dimension ** -0.5`. The initial values come from a normal distribution that is truncated at
        two standard deviations.
      storage: the type of the table's numbers: "float32", or "bfloat16", which halves the memory.
      prefix: the start of the column's name.
    """

    units: Annotated[Sequence[str], column.check_fields] = ("weekday", "month")
    form: Annotated[str, times.check_form] = ""
    prefix: str = "time"

    def __post_init__(self):
        super().__post_init__()
        self._check_lookup()
        for unit in self.units:
            checks.one_of("TimeParts.units", unit, _SIZES)

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """{column: (field,)}."""
        return {output: (field,) for output, (field, _) in self._units.items()}

    @property
    def _units(self) -> dict[str, tuple[str, str]]:
        """{column: (field, unit)}."""
        names = column.name_columns(self.prefix, self.names)
        pairs = [(field, unit) for field in self.names for unit in self.units]
        return {f"{names[field]}_{unit}": (field, unit) for field, unit in pairs}

    @property
    def coded_columns(self) -> dict[str, str]:
        """All columns, {column: field}."""
        return {output: field for output, (field, _) in self._units.items()}

    def find_ids(self, column: str, values: tf.Tensor, fitted: types.Statistics) -> tf.Tensor:
        """Turn times into ids by the unit of a column, such as the weekday.

        Args:
          column: one of `columns`, `<prefix>_<field>_<unit>`.
          values: times of any shape, strings or integers.
          fitted: the statistics of the training split, which this class does not need.

        Returns:
          int64 of the same shape: 1 for the first value of the unit, such as Monday; 0 for values
          that are not times.
        """
        del fitted
        field, unit = self._units[column]
        parts, is_time = _read_times("TimeParts", tf.reshape(values, [-1]), field, self.form)
        # Values that are not times have id 0, so the first value of a unit has id 1.
        ids = tf.where(is_time, parts[unit] - _SIZES[unit][0] + 1, 0)
        return tf.reshape(ids, tf.shape(values))

    def _encode(
        self, features: types.Tensors, field: str, output: str, fitted: types.Statistics
    ) -> tf.Tensor:
        values = column.read_categories("TimeParts", features, field)
        ids = codes.find_ids(values, output)
        if ids is None:
            find = functools.partial(self.find_ids, output, fitted=fitted)
            ids = tf.ragged.map_flat_values(find, values)
        return self._look_up(output, ids, _SIZES[self._units[output][1]][1] + 1)

    @property
    def limited_fields(self) -> Sequence[str]:
        """The fields in which texts that are not times are counted: all fields of the column."""
        return self.names

    def find_unknown(
        self, features: types.Tensors, fitted: types.Statistics
    ) -> dict[str, tf.Tensor]:
        """Return {field: mask of texts that are neither times nor empty, bool [N]}."""
        del fitted
        is_unknown = {}
        for field in self.names:
            values = column.flat(features[field])
            _, is_time = _read_times("TimeParts", values, field, self.form)
            texts = column.tokens("TimeParts", {field: values}, field)
            is_missing = tf.equal(texts, "") | tf.equal(texts, str(spec.NO_ID))
            is_unknown[field] = ~is_time & ~is_missing
        return is_unknown


@checks.dataclass
class DaysSince(types.Column):
    """Encodes the days between two times, with fractions, normalised: [B] -> [B, 1].

    On the training split, the normalised days have mean 0 and standard deviation 1. In rows in
    which a time is missing, the column is 0. **Both times of a row must be known before the model
    predicts**: the days until a later event would reveal the event.

    Attributes:
      names: the fields of the later times, texts or integers.
      since: the field of the earlier time.
      form: the format of times in `names` and `since`, as in `TimeParts`.
      log: True first applies sign(x) log(1 + |x|), for heavy tails.
      missing_flags: True adds an input that is 1 if one of the times is missing.
      prefix: the start of the column's name, `<prefix>_<field>`.
    """

    names: Annotated[Sequence[str], column.check_fields]
    since: Annotated[str, checks.Is(str, "name a field")]
    form: Annotated[str, times.check_form] = ""
    log: bool = False
    missing_flags: bool = False
    prefix: checks.Name = "days"

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """{column: (later field, earlier field)}."""
        return {output: (field, self.since) for output, (field,) in self._numbers.columns.items()}

    @property
    def _numbers(self) -> numeric.Numeric:
        """The `Numeric` object that normalises the days."""
        make: Any = numeric.Numeric  # mypy considers the class abstract.
        return make(
            names=self.names, prefix=self.prefix, log=self.log, missing_flags=self.missing_flags
        )

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return {column: accumulator of moments}."""
        accumulators: dict[str, types.Accumulator] = {}
        for output, moments in self._numbers.accumulators().items():
            assert isinstance(moments, accumulators_lib.Moments)
            accumulators[output] = accumulators_lib.Moments(
                source=f"days from {self.since} to {moments.source}, {self.form!r}",
                read=functools.partial(self._read_days, moments),
                by_example=True,
            )
        return accumulators

    def _read_days(self, moments: accumulators_lib.Moments, features: types.Tensors) -> np.ndarray:
        return moments.read(self._count_days(features))

    def _count_days(self, features: types.Tensors) -> dict[str, tf.Tensor]:
        """Return {field: days since the field `since`}, float32 [B]; NaN if a time is missing."""
        start = self._date(features, self.since)
        days = {field: self._date(features, field) - start for field in self.names}
        # Subtract before the cast, because days since 1970 with a precision of seconds need
        # float64.
        return {field: tf.cast(since, tf.float32) for field, since in days.items()}

    def _date(self, features: types.Tensors, field: str) -> tf.Tensor:
        """Read a field as days since 1970, float64 [B]."""
        parts, is_time = _read_times("DaysSince", features[field], field, self.form)
        seconds = parts["hour"] * 3600 + parts["minute"] * 60 + parts["second"]
        fraction = tf.cast(seconds, tf.float64) / _SECONDS_OF_DAY
        return tf.where(is_time, tf.cast(parts["days"], tf.float64) + fraction, math.nan)

    def __call__(self, features: types.Tensors, fitted: types.Statistics) -> types.Tensors:
        """Encode fields, {field: [B]}, as {column: [B, 1], or [B, 2] with flags}."""
        return self._numbers(self._count_days(features), fitted)
