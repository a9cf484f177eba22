"""Rows that `Pipeline.cache` keeps: the same values, an order without a state, errors in a line."""

import dataclasses
import gzip
import itertools

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import (
    csv,
    eager_pass,
    frames,
    image_files,
    in_memory,
    json_lines,
    packed,
    pipeline,
    subset,
    svm_light,
    tfrecord,
)
from mtl.distribution import memory
from tests import tiny
from tests.data import arrow_test

pytestmark = pytest.mark.medium

NUMBERS = spec.Spec(features={"x": "int64"}, labels={"y": "int64"})


def _number_rows(folder, count=10, **settings):
    """A pipeline of a CSV file whose rows have the numbers from 0 on; `cache` is on."""
    (folder / "a.csv").write_text("x,y\n" + "".join(f"{row},{row % 2}\n" for row in range(count)))
    source = csv.Csv(files={"train": "a.csv"}, data_dir=str(folder))
    made = {"source": source, "spec": NUMBERS, "batch_size": 4, "cache": True}
    return pipeline.Pipeline(**{**made, **settings})


class _Doubled(csv.Csv):
    def decode(self, batch, spec, with_labels):
        values = super().decode(batch, spec, with_labels)
        return {name: 2 * value for name, value in values.items()}


class _Even(csv.Csv):
    def records(self, split):
        return super().records(split).shard(2, 0)


def _read(data, count, split="train", **settings):
    made = data.dataset(split, training=True, seed=3, **settings)
    return [f["x"].tolist() for f, _ in itertools.islice(made.as_numpy_iterator(), count)]


def _write_records(source, path):
    """A source of the rows of `frames.Frames` in a TFRecord file."""
    table = source.table("train", arrow_test.SPEC.fields)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in itertools.chain.from_iterable(table.serialize()):
            writer.write(row)
    return tfrecord.TfRecord(files={"train": str(path)})


@pytest.mark.parametrize("kind", ["frames", "records"])
def test_all_types_of_values_stay_the_same(tmp_path, kind):
    source = frames.Frames(splits={"train": arrow_test.VALUES})
    if kind == "records":
        source = _write_records(source, tmp_path / "a.tfrecord")
    plain = pipeline.Pipeline(source=source, spec=arrow_test.SPEC, batch_size=5)
    kept = dataclasses.replace(plain, cache=True, shuffle_buffer=1)
    expected = plain.dataset("train", training=False, seed=0)
    found = kept.dataset("train", training=True, seed=0).take(2)
    # By their texts: NaN is not equal to itself.
    assert repr(arrow_test._plain(found)) == repr(2 * arrow_test._plain(expected))


def test_lists_in_cells_stay_the_same(tmp_path):
    (tmp_path / "a.csv").write_text("tags,items,y\na|b,1;2|3,1\n,,0\nc,|4,1\n")
    fields = spec.Spec(
        features={"tags": ("string", (None,)), "items": ("int64", (None, None))},
        labels={"y": "int64"},
    )
    source = csv.Csv(files={"train": "a.csv"}, data_dir=str(tmp_path))
    plain = pipeline.Pipeline(source=source, spec=fields, batch_size=3)
    kept = dataclasses.replace(plain, cache=True, shuffle_buffer=1)
    expected = arrow_test._plain(plain.dataset("train", training=False, seed=0))
    assert arrow_test._plain(kept.dataset("train", training=True, seed=0).take(1)) == expected


def test_blocks_of_rows_are_joined():
    field = NUMBERS.fields["x"]
    lists = dataclasses.replace(field, name="l", shape=(None,), dtype="string")
    blocks = [[[b"a", b"b"], []], [], [[b"c"]]]
    parts = [packed.pack(tf.compat.v1.ragged.constant_value(b, np.bytes_)) for b in blocks[:1]]
    parts += [packed.Lists(packed.pack(np.array([b"c"], object)), np.array([0, 1]))]
    joined = packed.join(parts, lists)
    texts = np.array(joined.values.distinct.to_pylist())[joined.values.numbers]
    assert texts.tolist() == [b"a", b"b", b"c"]
    assert joined.splits.tolist() == [0, 2, 2, 3]
    assert packed.join([], lists).splits.tolist() == [0]
    assert packed.join([np.array([1]), np.array([2, 3])], field).tolist() == [1, 2, 3]
    assert packed.join([], field).shape == (0,)


def test_an_epoch_has_every_row_once_and_workers_share_the_batches_of_one(tmp_path):
    data = _number_rows(tmp_path)
    batches = _read(data, 10)
    rows = list(itertools.chain(*batches))
    assert [sorted(rows[i : i + 10]) for i in range(0, 40, 10)] == [list(range(10))] * 4
    assert data.starts_anywhere and _read(data, 4, start_step=6) == batches[6:]
    for workers in (2, 4):
        size = 4 // workers
        parts = [
            _read(data, 10, num_shards=workers, shard=i, batch_size=size) for i in range(workers)
        ]
        assert [list(itertools.chain(*p)) for p in zip(*parts, strict=True)] == batches


def test_a_part_of_a_split_is_kept(tmp_path):
    data = _number_rows(tmp_path, 200)
    part = subset.Subset(source=data.source, share=0.5)
    own = dataclasses.replace(data, source=part, batch_size=10)
    streamed = dataclasses.replace(own, cache=False).one_pass("train")
    expected = [int(x) for features, _ in streamed for x in features["x"]]
    assert 60 < len(expected) < 140
    drawn = set(itertools.chain(*_read(own, 30)))
    assert drawn == set(expected)


def test_rows_are_decoded_once(tmp_path, monkeypatch):
    calls, read = [], in_memory.InMemory._read
    monkeypatch.setattr(
        in_memory.InMemory, "_read", lambda self, split: calls.append(split) or read(self, split)
    )
    data = _number_rows(tmp_path)
    assert _read(data, 3) == _read(data, 3)
    assert calls == ["train"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a,1", r"a.csv line 12: field 'x' must be int64, got 'a'"),
        ("1", "line 12: must have 2 col"),
    ],
)
def test_a_bad_row_is_named_before_the_first_step(tmp_path, line, says):
    data = _number_rows(tmp_path)
    with open(tmp_path / "a.csv", "a") as file:
        file.write(f"{line}\n")
    with pytest.raises(checks.UserError, match=says):
        data.dataset("train", training=True, seed=0)


def test_an_empty_split_is_refused(tmp_path):
    with pytest.raises(checks.UserError, match="split 'train' must hold a record, got 0"):
        _read(_number_rows(tmp_path, 0), 1)


def test_rows_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    data = _number_rows(tmp_path, 5000, shuffle_buffer=1)
    monkeypatch.setattr(memory, "find_limit", lambda: 50_000)
    says = "that Pipeline.cache keeps must fit into memory, got 'train'. Split 'train' takes"
    with pytest.raises(checks.UserError, match=says):
        data.dataset("train", training=True, seed=0)


def test_images_in_files_are_read_when_their_batch_is(tmp_path):
    data = _number_rows(tmp_path)
    named = image_files.ImageFiles(source=data.source, fields=["x"])
    assert not dataclasses.replace(data, source=named).starts_anywhere
    part = subset.Subset(source=named, share=0.5)
    assert not dataclasses.replace(data, source=part).starts_anywhere


def test_a_run_goes_on_to_the_bit_without_a_state_of_the_input(tmp_path, caplog):
    caplog.set_level("INFO")

    def make(**settings):
        made = tiny.make(**settings)
        return dataclasses.replace(made, data=dataclasses.replace(made.data, cache=True))

    tiny.train(make(train_steps=10), tmp_path / "halves")
    for path in (tmp_path / "halves" / "input").iterdir():
        path.unlink()
    tiny.train(make(train_steps=20), tmp_path / "halves")
    whole = tiny.train(make(train_steps=20), tmp_path / "whole")
    halves = tiny.variables(tmp_path / "halves")
    assert "order starts anew" not in caplog.text
    assert all((halves[name] == value).all() for name, value in whole.items())


def test_small_text_files_are_kept_unless_told_otherwise(tmp_path, monkeypatch):
    kept = _number_rows(tmp_path)
    by_default = dataclasses.replace(kept, cache=None)
    assert by_default.starts_anywhere and _read(by_default, 5) == _read(kept, 5)
    part = subset.Subset(source=kept.source, share=0.5)
    assert dataclasses.replace(by_default, source=part).starts_anywhere
    assert not dataclasses.replace(kept, cache=False).starts_anywhere
    monkeypatch.setattr(in_memory, "_MOST_BYTES", (tmp_path / "a.csv").stat().st_size)
    assert not dataclasses.replace(kept, cache=None).starts_anywhere
    assert kept.starts_anywhere


@pytest.mark.parametrize("cache", [None, True, False])
@pytest.mark.parametrize("kind", [_Doubled, _Even])
def test_a_subclass_that_changes_rows_changes_them_everywhere(tmp_path, kind, cache):
    data = _number_rows(tmp_path, cache=cache, batch_size=5)
    source = kind(files={"train": "a.csv"}, data_dir=str(tmp_path))
    data = dataclasses.replace(data, source=source)
    expected = list(range(0, 20 if kind is _Doubled else 10, 2))
    evaluated = data.one_pass("train").as_numpy_iterator()
    assert [x for features, _ in evaluated for x in features["x"]] == expected
    fitted = eager_pass.read(data, "train")
    assert [x for features, _ in fitted for x in features["x"].numpy()] == expected
    assert sorted(itertools.chain(*_read(data, len(expected) // 5))) == expected
    assert data.starts_anywhere == bool(cache)  # The size of other rows is unknown.


def test_compressed_text_counts_ten_times(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"x": 1, "y": 0}\n' * 9))
    source = json_lines.JsonLines(files={"train": str(path)})
    data = pipeline.Pipeline(source=source, spec=NUMBERS)
    for limit, is_kept in ((10 * path.stat().st_size, False), (10 * path.stat().st_size + 1, True)):
        monkeypatch.setattr(in_memory, "_MOST_BYTES", limit)
        assert dataclasses.replace(data).starts_anywhere == is_kept


def test_rows_that_may_exceed_their_file_are_not_kept_by_default(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:0.5\n")
    source = svm_light.SvmLight(files={"train": "a.svm"}, data_dir=str(tmp_path))
    wide = spec.Spec(features={"x": ("float32", (10_000_000,))}, labels={"y": "int64"})
    assert not pipeline.Pipeline(source=source, spec=wide).starts_anywhere


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [({}, False), ({"shuffle_buffer": 7}, True), ({"shuffle_buffer": 7, "cache": False}, False)],
)
def test_a_buffer_without_effect_is_told(tmp_path, settings, is_told):
    told = _number_rows(tmp_path, **settings).describe_order(steps=100)
    says = "Pipeline.shuffle_buffer = 7 has no effect: training mixes all rows"
    assert [line.startswith(says) for line in told] == [True] * is_told
