"""Times as inputs: units such as the weekday, and the days between two times.

features.TimeParts.names = ["day"]
features.TimeParts.units = ["weekday", "month"]
features.TimeParts.form = "%d.%m.%Y"                     # for 31.05.2024

features.DaysSince.names = ["visit"]
features.DaysSince.since = "sign_up"

The graph parses the times, so a served model accepts them in the form of the data files.
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

# {unit: (its first value, the number of its values)}
_SIZES = {"month": (1, 12), "day": (1, 31), "weekday": (0, 7), "hour": (0, 24), "minute": (0, 60)}
_SECONDS_OF_DAY = 86_400


def _read_times(
    kind: str, values: tf.Tensor, field: str, form: str
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Return the parts of times [N] like `time_texts.read_parts`, and a mask of valid times."""
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
    """Units of times, such as weekdays, embedded or one-hot: [B], [B, n] or [B, (L)] -> [B, D].

    Each unit of a field is a column, `<prefix>_<field>_<unit>`. Missing values and texts that are
    not times share an extra id. Time zones are ignored: the column reads a time as it is written.
    Numbers since 1970 are in UTC; -1 stands for a missing number.

    Attributes:
      names: the fields, texts or integers.
      units: some of "month", "day" (of the month), "weekday", "hour" and "minute".
      form: how the fields write times: "" for 2024-05-31, 2024/5/31 9:05 and similar texts; a
        format of Python's strptime, such as "%d.%m.%Y %H:%M"; or "seconds", "milliseconds",
        "microseconds" or "nanoseconds" since 1970.
      dimension: the length of the embedding's vectors; None gives one-hot inputs.
      pooling: how a field with several values is combined: "sum", "mean" or "sqrtn".
      initial_stddev: the standard deviation of the embedding's initial values, above 0; None for
        `dimension ** -0.5`. The values come from a normal distribution that is cut off at two
        standard deviations.
      storage: the type of the table's numbers: "float32", or "bfloat16" in half the memory.
      prefix: starts the column's name.
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
        """{column: the field that it reads}."""
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
        """Return the ids of times [...] for a column, int64 [...]; 0 for other values."""
        del fitted
        field, unit = self._units[column]
        parts, is_time = _read_times("TimeParts", tf.reshape(values, [-1]), field, self.form)
        # Id 0 stands for values that are not times, so the first value of a unit has id 1.
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
        """All fields."""
        return self.names

    def find_unknown(
        self, features: types.Tensors, fitted: types.Statistics
    ) -> dict[str, tf.Tensor]:
        """Return which values of each field are texts, but not times, bool [N]."""
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
    """Days from one time to another, with fractions, normalised: [B] -> [B, 1].

    On the training split, the result has mean 0 and standard deviation 1. Rows without one of the
    times get 0. **Both times of a row must be known before the model predicts**: days until a later
    event would reveal the event.

    Attributes:
      names: the fields of the later times, texts or integers.
      since: the field of the earlier time.
      form: how all these fields write times, as in `TimeParts`.
      log: takes sign(x) log(1 + |x|) first, for heavy tails.
      missing_flags: adds an input that is 1 if one of the times is missing.
      prefix: starts the column's name, `<prefix>_<field>`.
    """

    names: Annotated[Sequence[str], column.check_fields]
    since: Annotated[str, checks.Is(str, "name a field")]
    form: Annotated[str, times.check_form] = ""
    log: bool = False
    missing_flags: bool = False
    prefix: checks.Name = "days"

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """{column: the two fields that it reads}."""
        return {output: (field, self.since) for output, (field,) in self._numbers.columns.items()}

    @property
    def _numbers(self) -> numeric.Numeric:
        """The column that normalises the days."""
        make: Any = numeric.Numeric  # mypy takes it for abstract because of `Column.find_ids`.
        return make(
            names=self.names, prefix=self.prefix, log=self.log, missing_flags=self.missing_flags
        )

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return {column: the accumulator of its moments}."""
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
        """Return {field: days since the other field}, float32 [B]; NaN without both times."""
        start = self._date(features, self.since)
        days = {field: self._date(features, field) - start for field in self.names}
        # Cast after the difference: days since 1970 with seconds need float64.
        return {field: tf.cast(since, tf.float32) for field, since in days.items()}

    def _date(self, features: types.Tensors, field: str) -> tf.Tensor:
        """Return the days since 1970, float64 [B]."""
        parts, is_time = _read_times("DaysSince", features[field], field, self.form)
        seconds = parts["hour"] * 3600 + parts["minute"] * 60 + parts["second"]
        fraction = tf.cast(seconds, tf.float64) / _SECONDS_OF_DAY
        return tf.where(is_time, tf.cast(parts["days"], tf.float64) + fraction, math.nan)

    def __call__(self, features: types.Tensors, fitted: types.Statistics) -> types.Tensors:
        """Encode columns: {field: [B]} -> {column: [B, 1], or [B, 2] with flags}."""
        return self._numbers(self._count_days(features), fitted)
