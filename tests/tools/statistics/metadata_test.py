"""The messages of tensorflow-metadata hold the same statistics as NumPy."""

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from mtl.tools.statistics import metadata, numbers
from tests.tools.statistics.tell_test import _describe


def _make():
    draw = np.random.default_rng(0)
    values = draw.normal(size=1000)
    values[:20] = np.nan
    return pa.table(
        {
            "float": pa.array(values),
            "int": pa.array(draw.integers(0, 5, 1000), mask=np.arange(1000) < 100),
            "bool": pa.array(draw.random(1000) < 0.5),
            "text": pa.array(draw.choice(["a", "b", "<c>"], 1000, p=[0.5, 0.3, 0.2])),
            "many": pa.array([f"w{n}" for n in range(1000)]),
            "list": pa.array([list(range(n % 4)) for n in range(1000)]),
            "day": pa.array([n % 30 for n in range(1000)], pa.date32()),
            "none": pa.array([None] * 1000, pa.string()),
            "bytes": pa.array([b"\xff\x00", b"a"] * 500),
            "struct": pa.array([{"a": 1}] * 1000),
        }
    )


@pytest.mark.parametrize("is_text", [True, False])
def test_statistics_hold_what_numpy_computes(is_text):
    table = _make()
    content = metadata.write_statistics([_describe(table)], is_text)
    made = statistics_pb2.DatasetFeatureStatisticsList()
    if is_text:
        text_format.Parse(content, made)
    else:
        made.ParseFromString(content)
    (dataset,) = made.datasets
    assert (dataset.name, dataset.num_examples) == ("data.csv", 1000)
    found = {feature.path.step[0]: feature for feature in dataset.features}
    assert list(found) == table.column_names[:-1]
    values = table["float"].to_numpy()
    values, stats = values[20:], found["float"].num_stats
    assert np.allclose([stats.mean, stats.std_dev], [values.mean(), values.std()])
    assert (stats.min, stats.max) == (values.min(), values.max())
    assert (stats.common_stats.num_missing, stats.common_stats.num_non_missing) == (20, 980)
    standard, quantiles = stats.histograms
    counts, edges = np.histogram(values, 10)
    assert [bucket.sample_count for bucket in standard.buckets] == counts.tolist()
    assert np.allclose([bucket.low_value for bucket in standard.buckets], edges[:-1])
    assert standard.num_nan == 20 and quantiles.type == statistics_pb2.Histogram.QUANTILES
    ends = np.sort(values)[np.arange(98, 981, 98) - 1]
    assert [bucket.high_value for bucket in quantiles.buckets] == ends.tolist()
    assert sum(bucket.sample_count for bucket in quantiles.buckets) == 980
    text = found["text"].string_stats
    assert text.unique == 3 and text.top_values[0].value == "a"
    ranks = [(b.low_rank, b.high_rank, b.label) for b in text.rank_histogram.buckets]
    assert ranks == [(0, 0, "a"), (1, 1, "b"), (2, 2, "<c>")]
    assert len(found["many"].string_stats.top_values) == 20
    lists = found["list"].num_stats.common_stats
    assert (lists.num_missing, lists.min_num_values, lists.max_num_values) == (250, 1, 3)
    assert lists.avg_num_values == 2 and lists.tot_num_values == 1500
    plain = found["int"].num_stats.common_stats
    assert (plain.min_num_values, plain.max_num_values, plain.avg_num_values) == (1, 1, 1)
    assert sum(bucket.sample_count for bucket in plain.num_values_histogram.buckets) == 900
    types = statistics_pb2.FeatureNameStatistics
    kinds = {name: feature.type for name, feature in found.items()}
    assert kinds["int"] == kinds["bool"] == kinds["day"] == types.INT
    assert kinds["none"] == types.STRING and kinds["bytes"] == types.BYTES
    assert found["none"].string_stats.common_stats.num_missing == 1000
    assert found["bytes"].bytes_stats.max_num_bytes == 2


def test_a_schema_says_types_presence_and_domains():
    made = text_format.Parse(metadata.write_schema(_describe(_make()), True), schema_pb2.Schema())
    found = {feature.name: feature for feature in made.feature}
    kinds = schema_pb2.FeatureType
    assert found["float"].type == kinds.FLOAT and found["text"].type == kinds.BYTES
    assert found["int"].presence.min_fraction == 0 and found["int"].presence.min_count == 1
    assert found["text"].presence.min_fraction == 1 and found["text"].domain == "text"
    assert not found["many"].domain and found["bool"].HasField("bool_domain")
    assert not found["none"].HasField("presence")
    assert found["list"].value_count.min == 1 and not found["list"].value_count.max
    assert found["float"].value_count.max == 1
    assert found["day"].time_domain.integer_format == schema_pb2.TimeDomain.UNIX_MICROSECONDS
    (domain,) = made.string_domain
    assert (domain.name, list(domain.value)) == ("text", ["<c>", "a", "b"])


def test_buckets_of_large_integers_and_of_one_number():
    made = numbers.Numbers()
    made.add(np.array([2**62, 2**62 + 5, 2**62 + 2**20]))
    assert sum(count for *_, count in metadata.count_buckets(made, 10)) == 3
    one = numbers.Numbers()
    one.add(np.array([7, 7]))
    assert metadata.count_buckets(one, 10) == [(7.0, 7.0, 2.0)]
    assert metadata.count_buckets(numbers.Numbers(), 10) == []
    low = metadata.count_buckets(made, 2, low=2.0**62 + 4, high=2.0**62 + 4096)
    assert sum(count for *_, count in low) in (0, 1, 2)
