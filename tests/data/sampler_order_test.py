"""Samplers over numbered rows: exact resumption, any number of workers, no state of the input."""

import dataclasses
import itertools
import pathlib
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from mtl import checks, features, heads, spec, types
from mtl.data import (
    arrow,
    chosen_rows,
    drawn_items,
    frames,
    image_files,
    long_tail,
    pipeline,
    sampling,
    subset,
    whole_groups,
)
from tests import tiny

pytestmark = pytest.mark.medium

SPEC = spec.Spec(
    features={"x": "int64", "tags": ("string", (None,))},
    labels={"y": "int64", "query": "string", "lists": ("int64", (None,))},
)
SIZES = np.random.default_rng(0).integers(1, 5, 120)
POWER = sampling.Power(label="y")
WHOLE = whole_groups.WholeGroups(group="query")
GROUPS = whole_groups.WholeGroups(group="sign")


def _columns():
    count = int(SIZES.sum())
    return {
        "x": list(range(count)),
        "y": [min(row % 13, 3) for row in range(count)],
        "query": [f"q{number:03}" for number in np.repeat(np.arange(120), SIZES)],
        "tags": [["a"] * (row % 3) for row in range(count)],
        "lists": [[1] * (row % 2) for row in range(count)],
    }


def _make(folder, sampler, **settings):
    parquet.write_table(pa.table(_columns()), folder / "a.parquet", row_group_size=50)
    source = arrow.Arrow(files={"train": "a.parquet"}, data_dir=str(folder))
    settings = {"batch_size": 12, **settings}
    return pipeline.Pipeline(source=source, spec=SPEC, sampler=sampler, **settings)


def _read(data, count, **settings):
    """Each batch as {field: rows}."""
    made = data.dataset("train", **{"training": True, "seed": 3, **settings})
    batches = itertools.islice(made.as_numpy_iterator(), count)
    return [
        {
            name: [np.asarray(row).tolist() for row in value]
            for name, value in {**one, **two}.items()
        }
        for one, two in batches
    ]


@pytest.mark.parametrize("sampler", [POWER, sampling.Progressive(label="y", epochs=3), WHOLE])
def test_a_step_decides_a_batch_and_workers_share_it(sampler, tmp_path):
    data = _make(tmp_path, sampler, batch_size=24)
    whole = _read(data, 80, parts=6)
    assert data.starts_anywhere
    # A new process, which has read nothing yet.
    anew = dataclasses.replace(data, source=dataclasses.replace(data.source))
    assert _read(anew, 10, parts=6, start_step=63) == whole[63:73]
    assert _read(data, 80, parts=6, seed=4) != whole
    for workers in (2, 3):
        shares = [
            _read(
                data, 80, num_shards=workers, shard=i, batch_size=24 // workers, parts=6 // workers
            )
            for i in range(workers)
        ]
        joined = [
            {name: list(itertools.chain(*(part[name] for part in parts))) for name in SPEC.fields}
            for parts in zip(*shares, strict=True)
        ]
        assert joined == whole


@pytest.mark.parametrize("sampler", [POWER, WHOLE])
def test_cached_rows_and_parquet_give_the_same_batches(sampler, tmp_path):
    data = _make(tmp_path, sampler)
    source = frames.Frames(splits={"train": _columns()})
    kept = dataclasses.replace(data, source=source, cache=True)
    assert _read(kept, 60) == _read(data, 60)
    # Rows that pad a group lack labels only, and rows that are drawn twice have all their values.
    for batch in _read(kept, 60):
        for x, y, tags, lists in zip(*(batch[n] for n in ("x", "y", "tags", "lists")), strict=True):
            is_row = y >= 0
            assert y == (min(x % 13, 3) if is_row else spec.MISSING["int64"])
            assert tags == [b"a"] * (x % 3)
            assert lists == ([1] * (x % 2) if is_row else [spec.MISSING["int64"]])


def test_rows_without_a_label_come_up_as_often_as_they_occur(tmp_path):
    columns = {**_columns(), "y": [-1 if row % 10 == 0 else row % 2 for row in range(SIZES.sum())]}
    columns["y"][3] = None
    data = _make(tmp_path, sampling.Power(label="y"))
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    count = int(SIZES.sum())
    x = np.array([batch["x"] for batch in _read(data, count)]).ravel()  # Twelve passes.
    times = np.bincount(x, minlength=count)
    lacking = [row for row in range(count) if row % 10 == 0 or row == 3]
    assert set(times[lacking]) == {12}
    label = np.array(columns["y"][:3] + [0] + columns["y"][4:])
    evens = [times[[row for row in np.flatnonzero(label == y) if row != 3]].sum() for y in (0, 1)]
    assert abs(evens[0] - evens[1]) <= 1


def test_texts_are_classes_and_some_of_them_may_be_missing(tmp_path):
    data = _make(tmp_path, sampling.Power(label="query", missing=["q000", "q001"]))
    batches = _read(data, int(SIZES.sum()))
    keys, times = np.unique([batch["query"] for batch in batches], return_counts=True)
    counts = dict(zip([key.decode() for key in keys], times.tolist(), strict=True))
    assert counts.pop("q000") == 12 * SIZES[0] and counts.pop("q001") == 12 * SIZES[1]
    due = 12 * SIZES[2:].sum() / 118
    assert max(abs(count - due) for count in counts.values()) <= 1


def test_parts_of_a_split_are_sampled_alike(tmp_path):
    data = _make(tmp_path, POWER)
    part = subset.Subset(source=data.source, share=0.5)
    profile = long_tail.Step(factor=2)
    tail = long_tail.LongTail(source=data.source, label="y", profile=profile)
    for source in (part, tail):
        own = dataclasses.replace(data, source=source)
        passed = [f["x"].tolist() for f, _ in own.one_pass("train").as_numpy_iterator()]
        rows = set(itertools.chain(*passed))
        assert own.starts_anywhere and isinstance(source, chosen_rows.ChosenRows)
        batches = _read(own, 60)
        assert set(itertools.chain(*(batch["x"] for batch in batches))) == rows
        labels = list(itertools.chain(*(batch["y"] for batch in batches)))
        counts = np.bincount(labels, minlength=4)
        assert np.ptp(counts) <= 12


def test_the_state_of_the_input_holds_no_rows(tmp_path):
    for name, sampler in (("power", POWER), ("whole", WHOLE)):
        data = _make(tmp_path, sampler)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            made = data.dataset("train", training=True, seed=1)
            iterator = tf.compat.v1.data.make_initializable_iterator(made)
            saveable = tf.data.experimental.make_saveable_from_iterator(iterator, "ignore")
            saver = tf.compat.v1.train.Saver([saveable])
            following = iterator.get_next()
            session.run(iterator.initializer)
            for _ in range(7):
                session.run(following)
            path = saver.save(session, str(tmp_path / name), write_meta_graph=False)
        size = sum(file.stat().st_size for file in tmp_path.glob(f"{pathlib.Path(path).name}.*"))
        assert size < 3000


@pytest.mark.parametrize("workers", [2, 4])
def test_drawn_items_are_the_same_on_any_number_of_workers(workers, tmp_path):
    keyed = spec.Spec(
        features={"x": "int64", "query": "string"}, labels={"y": "int64"}, keys=["query"]
    )
    data = dataclasses.replace(_make(tmp_path, None, batch_size=16), spec=keyed)
    negatives = drawn_items.DrawnItems(num=8, features=["query"])
    head = heads.Retrieval(
        name="found", label="y", item="query", negatives=negatives, corrects_popularity=False
    )
    column = features.Identity(names=["x"], size=1000)
    features.fit_columns([column], data.one_pass("train"), str(tmp_path / "fitted"), [head])
    statistics = features.load_statistics(str(tmp_path / "fitted"))

    def read(count, shard):
        parts = 4 // count
        made = data.dataset(
            "train", training=True, seed=1, num_shards=count, shard=shard, batch_size=16 // count
        )
        reading = types.Reading(statistics, 1, 0, parts, count, shard)
        batches = head.add_rows(made, keyed, reading).take(9).as_numpy_iterator()
        return [{**one, **two} for one, two in batches]

    whole, parts = read(1, 0), [read(workers, shard) for shard in range(workers)]
    for batch, *own in zip(whole, *parts, strict=True):
        for name, values in batch.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in own]), values)
    assert len({tuple(batch["found/drawn"]) for batch in whole}) == 9


def test_other_sources_and_samplers_keep_their_stream(tmp_path):
    class Own(sampling.Power):
        def __call__(self, records, *settings):
            return records

    data = _make(tmp_path, POWER)
    assert data.starts_anywhere
    assert not dataclasses.replace(data, sampler=Own(label="y")).starts_anywhere
    beyond = dataclasses.replace(data.source, window=100)
    assert not dataclasses.replace(data, source=beyond).starts_anywhere
    named = image_files.ImageFiles(source=data.source, fields=["x"])
    assert not dataclasses.replace(data, source=named, cache=True).starts_anywhere
    (line,) = dataclasses.replace(data, source=beyond).describe_order(10)
    assert (
        line.startswith("Power does not use windows")
        and "shuffle_buffer = 10000 mixes them" in line
    )
    assert not data.describe_order(10)
    assert not dataclasses.replace(data, source=beyond, cache=True).describe_order(10)
    streamed = dataclasses.replace(data, source=beyond, sampler=WHOLE, shuffle_buffer=1)
    assert _read(streamed, 1)[0]["x"][:4] == [0, 1, 2, 3]


def _train(sampler, **settings):
    """A run over rows in memory; every fifth row begins a group."""
    splits = {
        split: {**rows, "sign": np.arange(len(rows["x"])) // 5} if sampler == GROUPS else rows
        for split, rows in tiny.SPLITS.items()
    }
    made = tiny.make(splits=splits, **settings)
    if sampler == GROUPS:
        made = dataclasses.replace(
            made, model=dataclasses.replace(made.model, heads=made.model.heads[1:])
        )
    return dataclasses.replace(
        made, data=dataclasses.replace(made.data, cache=True, sampler=sampler)
    )


@pytest.mark.parametrize("sampler", [sampling.Power(label="kind"), GROUPS])
def test_a_run_goes_on_to_the_bit_without_a_state_of_the_input(sampler, tmp_path, caplog):
    caplog.set_level("INFO")
    tiny.train(_train(sampler, train_steps=10), tmp_path / "halves")
    for path in (tmp_path / "halves" / "input").iterdir():
        path.unlink()
    tiny.train(_train(sampler, train_steps=20), tmp_path / "halves")
    whole = tiny.train(_train(sampler, train_steps=20), tmp_path / "whole")
    halves = tiny.variables(tmp_path / "halves")
    assert "order starts anew" not in caplog.text
    assert all((halves[name] == value).all() for name, value in whole.items())


@pytest.mark.parametrize("sampler", [sampling.Power(label="kind"), GROUPS])
def test_a_run_with_an_old_state_says_that_its_order_is_new(sampler, tmp_path, caplog):
    caplog.set_level("INFO")
    with mock.patch.object(pipeline.Pipeline, "order_field", None):
        tiny.train(_train(sampler, train_steps=10), tmp_path)
    assert "order starts anew" not in caplog.text
    tiny.train(_train(sampler, train_steps=15), tmp_path)
    line = "Step 10 was saved without the state of its input: the order starts anew."
    assert line in caplog.text
    tiny.train(_train(sampler, train_steps=20), tmp_path)
    assert caplog.text.count("order starts anew") == 1


@pytest.mark.parametrize("sampler", [POWER, WHOLE])
def test_mistakes_are_told(sampler, tmp_path):
    data, count = _make(tmp_path, sampler), int(SIZES.sum())
    columns = {**_columns(), "query": ["q"] * count, "y": [-1] * count}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    message = {
        POWER: "label 'y' of the training split must be in a row, for Power, got 0",
        WHOLE: "have room for the largest group of 'query'",
    }[sampler]
    with pytest.raises(checks.UserError, match=message):
        _read(data, 1)
