"""Writes statistics as messages of tensorflow-metadata, for TensorFlow Data Validation and Facets.

content = metadata.write_statistics([training, new], is_text=False)
content = metadata.write_schema(training, is_text=True)

Times are integers, in microseconds since 1970. The mean and standard deviation leave out infinite
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from mtl.tools.statistics import facts, numbers

_BUCKETS = 10
_MOST_TOP, _MOST_RANKED = 20, 1000
# The largest number of distinct texts for which the schema lists the values of a column.
_MOST_OF_DOMAIN = 100


def write_statistics(datasets: Sequence[facts.Dataset], is_text: bool) -> bytes:
    """Return a serialized `DatasetFeatureStatisticsList` with the statistics of data sets.

    Args:
      datasets: the statistics of data sets, which Facets shows side by side.
      is_text: True for the text format of protocol buffers, False for the binary format.
    """
    message = statistics_pb2.DatasetFeatureStatisticsList()
    for dataset in datasets:
        statistics = message.datasets.add(name=dataset.name, num_examples=dataset.rows)
        for column in dataset.columns.values():
            if column.kind != facts.OTHER:
                _fill_feature(statistics.features.add(), column)
    return _serialize_message(message, is_text)


def write_schema(dataset: facts.Dataset, is_text: bool) -> bytes:
    """Return a serialized `Schema` that fits a data set.

    Args:
      dataset: the statistics of the data set.
      is_text: True for the text format of protocol buffers, False for the binary format.
    """
    schema = schema_pb2.Schema()
    for column in dataset.columns.values():
        if column.kind != facts.OTHER:
            _add_feature(schema, column)
    return _serialize_message(schema, is_text)


def _serialize_message(message: Any, is_text: bool) -> bytes:
    if is_text:
        return text_format.MessageToString(message, as_utf8=True).encode()
    # With `deterministic`, equal statistics give equal bytes, so files can be compared.
    return message.SerializeToString(deterministic=True)


def _fill_feature(feature: Any, column: facts.Column) -> None:
    types = statistics_pb2.FeatureNameStatistics
    feature.path.step.append(column.name)
    if column.numbers is not None:
        feature.type = types.FLOAT if column.kind == facts.FLOAT else types.INT
        _fill_common(feature.num_stats.common_stats, column)
        _fill_numbers(feature.num_stats, column.numbers)
    elif column.kind == facts.BYTES:
        feature.type = types.BYTES
        _fill_common(feature.bytes_stats.common_stats, column)
        _fill_bytes(feature.bytes_stats, column)
    else:
        feature.type = types.STRING
        _fill_common(feature.string_stats.common_stats, column)
        _fill_texts(feature.string_stats, column)


def _fill_common(common: Any, column: facts.Column) -> None:
    common.num_non_missing, common.num_missing = column.present, column.missing
    common.tot_num_values = column.count
    if not column.present:
        return
    common.avg_num_values = column.count / column.present
    if column.lengths is not None:
        least, greatest = int(column.lengths.least), int(column.lengths.greatest)
        common.min_num_values, common.max_num_values = least, greatest
        _fill_quantiles(common.num_values_histogram, column.lengths)
        return
    common.min_num_values = common.max_num_values = 1
    # TensorFlow Data Validation writes `num_values_histogram` even if each row has one value.
    common.num_values_histogram.type = statistics_pb2.Histogram.QUANTILES
    rows = column.present / _BUCKETS
    for _ in range(_BUCKETS):
        common.num_values_histogram.buckets.add(low_value=1, high_value=1, sample_count=rows)


def _fill_numbers(stats: Any, numeric: numbers.Numbers) -> None:
    stats.num_zeros = numeric.zeros
    if not numeric.count:
        return
    stats.mean, stats.std_dev = numeric.mean, numeric.deviation
    stats.min, stats.max = numeric.least, numeric.greatest
    stats.median = numeric.find_quantiles([0.5])[0]
    _fill_standard(stats.histograms.add(num_nan=numeric.nans), numeric)
    _fill_quantiles(stats.histograms.add(num_nan=numeric.nans), numeric)


def _fill_standard(histogram: Any, numeric: numbers.Numbers) -> None:
    """Fill a histogram of equally wide buckets; the last bucket includes its upper end."""
    histogram.type = statistics_pb2.Histogram.STANDARD
    for low, high, count in count_buckets(numeric, _BUCKETS):
        histogram.buckets.add(low_value=low, high_value=high, sample_count=count)


def count_buckets(
    numeric: numbers.Numbers, buckets: int, low: float = math.nan, high: float = math.nan
) -> list[tuple[float, float, float]]:
    """Return (lower end, upper end, count) for each of several equally wide buckets.

    Args:
      numeric: the distribution of the numbers.
      buckets: the number of buckets; there is only one if the lower and the upper end are equal.
      low: the lower end of the first bucket; by default the least number. Numbers below `low` are
        left out.
      high: the upper end of the last bucket, inclusive; by default the greatest number.
    """
    values, weights = numeric.weigh()
    if not len(values):
        return []
    low = float(numeric.least) if low != low else low
    high = float(numeric.greatest) if high != high else high
    edges = np.linspace(low, high, (buckets if high > low else 1) + 1)
    totals = np.concatenate([[0], np.cumsum(weights)])
    # Compare floats with the edges, because an edge may lie between two integers.
    places = np.searchsorted(values.astype(np.float64), edges, side="left")
    places[-1] = np.searchsorted(values.astype(np.float64), edges[-1], side="right")
    counts = np.diff(totals[places]).astype(float)
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True))


def _fill_quantiles(histogram: Any, numeric: numbers.Numbers) -> None:
    """Fill a histogram whose buckets hold equal shares of the numbers."""
    histogram.type = statistics_pb2.Histogram.QUANTILES
    ends = numeric.find_quantiles(np.linspace(0, 1, _BUCKETS + 1).tolist())
    for low, high in zip(ends[:-1], ends[1:], strict=True):
        histogram.buckets.add(low_value=low, high_value=high, sample_count=numeric.count / _BUCKETS)


def _fill_bytes(stats: Any, column: facts.Column) -> None:
    texts = column.texts
    assert texts is not None
    stats.unique = column.distinct
    stats.avg_num_bytes = texts.bytes / max(texts.count, 1)
    stats.min_num_bytes, stats.max_num_bytes = texts.shortest, texts.longest
    stats.max_num_bytes_int = texts.longest


def _fill_texts(stats: Any, column: facts.Column) -> None:
    texts = column.texts
    if texts is None:
        return
    stats.unique, stats.avg_length = column.distinct, texts.bytes / max(texts.count, 1)
    for rank, (value, count) in enumerate(column.list_frequent(_MOST_RANKED)):
        if rank < _MOST_TOP:
            stats.top_values.add(value=value, frequency=count)
        stats.rank_histogram.buckets.add(
            low_rank=rank, high_rank=rank, label=value, sample_count=count
        )


def _add_feature(schema: Any, column: facts.Column) -> None:
    kinds = schema_pb2.FeatureType
    of_kind = {facts.INT: kinds.INT, facts.BOOL: kinds.INT, facts.TIME: kinds.INT}
    of_kind[facts.FLOAT] = kinds.FLOAT
    feature = schema.feature.add(name=column.name, type=of_kind.get(column.kind, kinds.BYTES))
    # If all values are missing, the data do not show how often the feature is present.
    if column.present:
        feature.presence.min_count = 1
    if column.rows and not column.missing:
        feature.presence.min_fraction = 1.0
    feature.value_count.min = 1
    if not column.is_list:
        feature.value_count.max = 1
    _set_domain(schema, feature, column)


def _set_domain(schema: Any, feature: Any, column: facts.Column) -> None:
    """Set the domain of a feature, which is the set of its possible values."""
    if column.kind == facts.BOOL:
        feature.bool_domain.SetInParent()
    elif column.kind == facts.TIME:
        feature.time_domain.integer_format = schema_pb2.TimeDomain.UNIX_MICROSECONDS
    elif column.kind == facts.TEXT and column.is_exact and column.distinct <= _MOST_OF_DOMAIN:
        values = sorted(value for value, _ in column.list_frequent(_MOST_OF_DOMAIN))
        schema.string_domain.add(name=column.name, value=values)
        feature.domain = column.name
