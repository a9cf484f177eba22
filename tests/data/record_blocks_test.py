"""TFRecord files by an index: the same rows, in an order that needs no saved state."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import example_lists, pipeline, record_blocks, sampling, splits, tfds, tfrecord
from mtl.data import source as source_lib
from mtl.distribution import memory
from tests.data import tfds_test, tfrecord_test

SPEC = tfrecord_test.SPEC


def make_record(number):
    tags, image = [b"t"] * (number % 3 or 1), [number % 256] * 4
    text = f"row {number}".encode()
    return tfrecord_test.example(x=[float(number)], image=image, tags=tags, y=[1], id=[text])


def make_source(folder, counts=(150, 0, 107), **settings):
    """A source of some files; x numbers the rows of all files."""
    numbers = iter(range(1000))
    for part, count in enumerate(counts):
        records = map(make_record, itertools.islice(numbers, count))
        tfrecord_test.write(folder / f"{part}.tfrecord", records)
    return tfrecord.TfRecord(files={"train": str(folder / "*.tfrecord")}, **settings)


def take(source, steps, batch_size=12, fields=SPEC, **settings):
    """The rows of the batches of training, in order."""
    data = pipeline.Pipeline(source=source, spec=fields, batch_size=batch_size)
    batches = data.dataset("train", **{"training": True, "seed": 3, **settings}).take(steps)
    return [row for batch in batches for row in rows_of(batch)]


def rows_of(batch):
    features, labels = batch
    arrays = [
        value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
        for value in (features | labels).values()
    ]
    return list(zip(*arrays, strict=True))


@pytest.mark.parametrize("sizes", [[], [0], [1, 0, 300, 7]])
def test_the_index_has_the_offset_of_each_record(tmp_path, sizes):
    path = tfrecord_test.write(tmp_path / "a.tfrecord", [b"x" * size for size in sizes])
    found = record_blocks.index_records(path)
    assert found.tolist() == [0, *np.cumsum([size + 16 for size in sizes])]


@pytest.mark.parametrize("end, number", [(-1, 2), (-17, 2), (5, 3)])
def test_a_file_that_ends_within_a_record_is_refused(tmp_path, end, number):
    path = tfrecord_test.write(tmp_path / "a.tfrecord", [b"1234"] * 3)
    with open(path, "rb+") as file:
        file.truncate(60 + end)
    with pytest.raises(checks.UserError, match=f"a.tfrecord record {number}: the length of the"):
        record_blocks.index_records(path)


@pytest.mark.medium
def test_a_window_takes_each_record_once_an_epoch(tmp_path):
    source = make_source(tmp_path, window=64)
    blocks = source.list_blocks("train", SPEC)
    assert blocks.window == 64 and blocks.sizes == (1,) * 257
    rows = take(source, 64)
    others = take(source, 64, seed=4)
    expected = take(make_source(tmp_path), 1, 257)
    assert sorted(rows[:252]) != rows[:252] and rows != others
    # 12 lanes of 21 rows: an epoch leaves out five rows.
    for epoch in (rows[:252], rows[252:504], others[:252]):
        assert len({row[0] for row in epoch}) == 252
        assert all(row in expected for row in epoch)


@pytest.mark.medium
def test_windows_go_on_at_any_step_and_with_other_workers(tmp_path):
    source = make_source(tmp_path, window=64)
    whole = take(source, 60)
    assert take(source, 20, start_step=40) == whole[480:]
    parts = [take(source, 60, 4, num_shards=3, shard=shard) for shard in range(3)]
    for step in range(60):
        together = [row for part in parts for row in part[step * 4 : (step + 1) * 4]]
        assert together == whole[step * 12 : (step + 1) * 12]


@pytest.mark.medium
@pytest.mark.parametrize("keys", [(), ("id",)])
def test_a_part_of_the_rows_is_chosen(tmp_path, keys):
    source = make_source(tmp_path, window=64)
    chosen = splits.Splits(source=source, shares={"train": 0.7, "test": 0.3}, keys=keys)
    plain = dataclasses.replace(chosen, source=make_source(tmp_path))
    data = pipeline.Pipeline(source=plain, spec=SPEC, batch_size=64)
    expected = {row[0] for batch in data.one_pass("train") for row in rows_of(batch)}
    assert 150 < len(expected) < 210
    rows = [row[0] for row in take(chosen, 1, len(expected))]
    assert len(set(rows)) == len(rows) and set(rows) <= expected
    assert len(expected) - len(rows) < 16


@pytest.mark.medium
@pytest.mark.parametrize("name", ["Lists", "Stored"])
def test_datasets_of_tfds_are_read_alike(tmp_path, name):
    builder = getattr(tfds_test, name)
    builder.pkg_dir_path = tmp_path
    settings = {"name": f"{builder.__module__}.{name}", "data_dir": str(tmp_path)}
    fields = {
        "Lists": spec.Spec(features={"tags": ("string", (None,))}, labels={"y": "float32"}),
        "Stored": spec.Spec(features={"text": "string", "pair": ("float32", (2,))}, labels={}),
    }[name]
    for split in ("train", "train[1:4]"):
        sources = tfds.Tfds(**settings), tfds.Tfds(**settings, window=3)
        data = [pipeline.Pipeline(source=source, spec=fields, batch_size=1) for source in sources]
        expected = [row for batch in data[0].one_pass(split) for row in rows_of(batch)]
        batches = data[1].dataset(split, training=True, seed=1).take(len(expected))
        rows = [row for batch in batches for row in rows_of(batch)]
        assert sorted(rows) == sorted(expected) and len(rows) in (3, 5, 7)


def test_what_no_index_can_serve_is_refused(tmp_path, monkeypatch):
    records = [tfrecord_test.good(0)] * 50
    path = tfrecord_test.write(tmp_path / "a.tfrecord.gz", records, "GZIP")
    source = tfrecord.TfRecord(files={"train": path}, window=10)
    with pytest.raises(checks.UserError, match="TfRecord.window must be left out, because .* is c"):
        source.list_blocks("train", SPEC)
    with pytest.raises(checks.UserError, match="ExampleLists.window must be left out, because a r"):
        example_lists.ExampleLists(files={"train": path}, window=10)
    plain = make_source(tmp_path, window=200)
    monkeypatch.setattr(memory, "find_limit", lambda: 1000)
    with pytest.raises(checks.UserError, match="TfRecord.window must fit into memory, got 200"):
        plain.list_blocks("train", SPEC)


@pytest.mark.parametrize(
    "settings, line",
    [
        ({"cache": True}, "Pipeline.cache has no effect: .* windows of rows, as TfRecord.window"),
        ({"shuffle_buffer": 7}, "shuffle_buffer = 7 has no effect: .* 64 rows .* TfRecord.window"),
        ({"sampler": sampling.Power(label="y")}, r"Power does not .* rows \(TfRecord.window\)"),
    ],
)
def test_settings_that_a_window_overrides_are_told(tmp_path, settings, line):
    source = make_source(tmp_path, window=64)
    data = pipeline.Pipeline(source=source, spec=SPEC, batch_size=8, **settings)
    assert re.search(line, data.describe_order(100)[-1])
    large = dataclasses.replace(data, source=make_source(tmp_path, window=1000), sampler=None)
    assert large.describe_order(100)[0].startswith("Training mixes 257 of 257 rows at a time")


def test_fewer_records_than_described_are_refused(tmp_path):
    path = tfrecord_test.write(tmp_path / "a.tfrecord", [b""] * 5)
    files = [record_blocks.File(path, 2, 4)]
    with pytest.raises(checks.UserError, match="a.tfrecord must hold at least 6 records, .* got 5"):
        record_blocks.list_blocks("Tfds.window", 10, files, SPEC, lambda *given: {})


@pytest.mark.medium
def test_a_bad_record_is_named(tmp_path):
    make_source(tmp_path)
    records = [*map(tfrecord_test.good, range(30)), tfrecord_test.example(x=[1, 2], y=[1])]
    tfrecord_test.write(tmp_path / "1.tfrecord", records)
    data = pipeline.Pipeline(
        source=tfrecord.TfRecord(files={"train": str(tmp_path / "1.tfrecord")}, window=8),
        spec=SPEC,
        batch_size=4,
    )
    with pytest.raises(source_lib.list_refusals()) as caught:
        list(data.dataset("train", training=True, seed=1).take(20))
    assert "1.tfrecord record 30: " in data.diagnose(caught.value, "train")
