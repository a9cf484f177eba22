"""Files of Arrow's formats: their rows, types and windows, and refused files."""

import dataclasses
import datetime
import decimal
import itertools

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import feather, orc, parquet

from mtl import checks, spec
from mtl.data import arrow, frames, pipeline, subset
from mtl.distribution import memory
from mtl.tools.clip_audit import numbered
from tests import tiny

SPEC = spec.Spec(
    features={
        "age": "float32",
        "size": "int64",
        "word": "string",
        "tags": ("string", (None,)),
        "point": ("float32", (2,)),
        "items": ("int64", (None, None)),
        "pixels": ("uint8", (2, 2)),
    },
    labels={"clicked": "int64", "minutes": "float32"},
    defaults={"age": "nan", "size": 7, "word": "?"},
)
VALUES = {
    "age": [1.5, None, -2.0, 4.0, 0.25],
    "size": [3, None, 2**60, -1, 0],
    "word": ["a", None, " b ", "é", "a"],
    "tags": [["x", "y"], None, [], ["z"], ["x"]],
    "point": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 0.5]],
    "items": [[[1], [], [2, 3]], None, [], [[4]], [[5, 6]]],
    "pixels": [[0, 1, 2, 255], [4, 5, 6, 7], [8, 9, 10, 11], [1, 1, 1, 1], [2, 2, 2, 2]],
    "clicked": [1, 0, None, 1, 0],
    "minutes": [None, 2.5, 1.0, 0.0, 3.0],
    "unused": [{"a": 1}] * 5,
}
WRITERS = {
    "parquet": lambda table, path: parquet.write_table(table, path, row_group_size=2),
    "orc": orc.write_table,
    "feather": feather.write_feather,
}


def _write(folder, kind="parquet", values=VALUES, name="train"):
    path = folder / f"{name}.{kind}"
    WRITERS[kind](values if isinstance(values, pa.Table) else pa.table(values), str(path))
    return path


def _source(folder, kind="parquet", **settings):
    made = {"files": {"train": f"train*.{kind}"}, "data_dir": str(folder), **settings}
    return arrow.Arrow(**made)


def _plain(batches):
    """[{field: values of a row}] of batches of features and labels."""
    rows = []
    for features, labels in batches:
        columns = {
            name: value.to_list() if hasattr(value, "to_list") else value.numpy().tolist()
            for name, value in {**features, **labels}.items()
        }
        rows += [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    return rows


def _read(source, split="train", fields=SPEC, **settings):
    data = pipeline.Pipeline(source=source, spec=fields, batch_size=2)
    return _plain(data.dataset(split, training=False, seed=0, **settings))


def _read_frame(values, fields=SPEC):
    return _read(frames.Frames(splits={"train": values}), fields=fields)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_is_read_like_the_same_table_in_memory(tmp_path, kind):
    values = dict(VALUES, unused=["" for _ in range(5)])
    _write(tmp_path, kind, values)
    found, expected = _read(_source(tmp_path, kind)), _read_frame(values)
    assert len(found) == 5 and repr(found) == repr(expected)
    assert found[2]["size"] == 2**60 and found[1]["size"] == 7  # To the unit, beside a null.


def test_scan_reads_the_same_and_names_the_place(tmp_path):
    _write(tmp_path)
    source = _source(tmp_path)
    places, rows = zip(*source.scan("train", SPEC), strict=True)
    assert places[0].endswith("train.parquet row group 0 row 0")
    assert places[3].endswith("train.parquet row group 1 row 1")
    assert [row["items"] for row in rows] == [own["items"] for own in _read(source)]
    assert [row["word"] for row in rows] == ["a", "?", "b", "é", "a"]


def test_types_of_arrow_become_types_of_fields(tmp_path):
    day = datetime.date(2024, 5, 31)
    table = pa.table(
        {
            "half": pa.array([np.float16(1.5), np.float16(2)], pa.float16()),
            "price": pa.array([decimal.Decimal("12.50"), None], pa.decimal128(9, 2)),
            "day": pa.array([day, None]),
            "level": pa.array(["low", "high"]).dictionary_encode(),
            "flag": pa.array([True, None]),
            "raw": pa.array([b"x", b"y"], pa.large_binary()),
            "count": pa.array([1, 2], pa.uint16()),
        }
    )
    fields = spec.Spec(
        features={
            "half": "float32",
            "price": "float32",
            "day": "string",
            "level": "string",
            "flag": "bool",
            "raw": "string",
            "count": "int64",
        },
        labels={},
        defaults={"price": -1.0, "day": "never", "flag": False},
    )
    _write(tmp_path, values=table)
    one, two = _read(_source(tmp_path), fields=fields, with_labels=False)
    assert one == {
        "half": 1.5,
        "price": 12.5,
        "day": b"2024-05-31",
        "level": b"low",
        "flag": True,
        "raw": b"x",
        "count": 1,
    }
    assert (two["price"], two["day"], two["flag"]) == (-1.0, b"never", False)


def test_columns_may_have_other_names_and_splits_may_be_cut(tmp_path):
    _write(tmp_path, values={"a b": list(range(10)), "y": [0, 1] * 5})
    fields = spec.Spec(features={"x": "int64"}, labels={"y": "int64"})
    whole = _source(tmp_path, rename={"x": "a b"})
    assert [row["x"] for row in _read(whole, fields=fields)] == list(range(10))
    part = subset.Subset(source=whole, share=0.5, held_out={"rest": 0.5})
    cut = [[row["x"] for row in _read(part, split, fields)] for split in ("train", "rest")]
    assert all(cut) and sorted(itertools.chain(*cut)) == list(range(10))
    data = pipeline.Pipeline(source=part, spec=fields, batch_size=len(cut[1]))
    made = data.dataset("rest", training=True, seed=1)
    for features, _ in itertools.islice(made.as_numpy_iterator(), 3):
        assert sorted(features["x"]) == cut[1]
    assert data.starts_anywhere and part.list_rows("rest").tolist() == cut[1]


def test_training_has_every_row_once_an_epoch_and_starts_at_any_step(tmp_path):
    _write(tmp_path, values={"x": list(range(10)), "y": [0] * 10})
    fields = spec.Spec(features={"x": "int64"}, labels={"y": "int64"})
    data = pipeline.Pipeline(source=_source(tmp_path), spec=fields, batch_size=4)

    def read(number, **settings):
        made = data.dataset("train", training=True, seed=3, **settings)
        return [f["x"].tolist() for f, _ in itertools.islice(made.as_numpy_iterator(), number)]

    batches = read(10)
    rows = list(itertools.chain(*batches))
    assert [sorted(rows[i : i + 10]) for i in range(0, 40, 10)] == [list(range(10))] * 4
    assert rows[:10] != rows[10:20] and data.starts_anywhere
    assert read(4, start_step=6) == batches[6:]
    halves = [read(10, num_shards=2, shard=i, batch_size=2) for i in range(2)]
    assert [one + two for one, two in zip(*halves, strict=True)] == batches


def _take(path, made, number, restored=None):
    """The first batches of an iterator, after a saved one; its own state is saved to a path."""
    tf1, data = tf.compat.v1, tf.data.experimental
    with tf.Graph().as_default(), tf1.Session() as session:
        iterator = tf1.data.make_initializable_iterator(made())
        following = iterator.get_next()
        saver = tf1.train.Saver([data.make_saveable_from_iterator(iterator, "ignore")])
        session.run(iterator.initializer)
        if restored is not None:
            saver.restore(session, str(restored))
        taken = [session.run(following) for _ in range(number)]
        saver.save(session, str(path), write_meta_graph=False)
    return [[{k: repr(v) for k, v in part.items()} for part in batch] for batch in taken]


@pytest.mark.parametrize("rows_of_call", [1, 5, 1000])
def test_a_call_that_takes_several_batches_changes_nothing(tmp_path, monkeypatch, rows_of_call):
    _write(tmp_path)
    data = pipeline.Pipeline(source=_source(tmp_path), spec=SPEC, batch_size=2)

    def make(**settings):
        return data.dataset("train", training=True, seed=3, **settings)

    expected = _take(tmp_path / "all", make, 12)
    assert all(value.shape[0] == 2 for value in tf.nest.flatten(make().element_spec))
    monkeypatch.setattr(pipeline, "_ROWS_OF_CALL", rows_of_call)
    assert _take(tmp_path / "first", make, 5) == expected[:5]
    assert _take(tmp_path / "rest", make, 7, restored=tmp_path / "first") == expected[5:]
    state = sum(path.stat().st_size for path in tmp_path.glob("first*"))
    assert state < 4000  # It holds the number of a step, and no rows.


BAD = {
    "no column": (
        {"age": [1.0]},
        r"train.parquet: the column of field 'size' must be one of age, got 'size'",
    ),
    "a struct": (
        {**VALUES, "word": [{"a": 1}] * 5},
        r"column 'word' must hold numbers, texts, times or lists, got 'struct<a: int64>'",
    ),
    "a fraction": (
        {**VALUES, "size": [1.0, 2.0, 2.5, 3.0, 4.0]},
        r"train.parquet row group 1 row 0: field 'size' must be int64, got 2.5",
    ),
    "a wrong length": (
        {**VALUES, "point": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0], [9.0, 0.5]]},
        r"train.parquet row group 1 row 1: field 'point' must hold 2 values, got 1",
    ),
    "out of range": (
        {**VALUES, "pixels": [[0, 0, 0, 256], *VALUES["pixels"][1:]]},
        r"train.parquet row group 0 row 0: field 'pixels' must be uint8",
    ),
}


def test_durations_and_bytes_that_are_no_text_are_one_line(tmp_path):
    fields = spec.Spec(features={"x": "string"}, labels={"y": "int64"})
    span = pa.array([datetime.timedelta(days=1)] * 3)
    broken = pa.array([b"a", b"\xff", b"b"]).view(pa.string())
    for values, says in (
        (span, r"row group 0: column 'x' must hold numbers, texts, times .* got 'duration"),
        (broken, r"row group 0 row 1: field 'x' must be text in UTF-8"),
    ):
        _write(tmp_path, values=pa.table({"x": values, "y": [1, 2, 3]}))
        with pytest.raises(checks.UserError, match=says):
            list(_source(tmp_path).scan("train", fields))


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_one_line_with_its_place(tmp_path, name):
    values, says = BAD[name]
    _write(tmp_path, values=values)
    with pytest.raises(checks.UserError, match=says):
        list(_source(tmp_path).scan("train", SPEC))


def test_files_that_differ_in_a_type_are_refused_by_name(tmp_path):
    _write(tmp_path, values={"x": [1], "y": [1]}, name="train-0")
    _write(tmp_path, values={"x": ["1"], "y": [1]}, name="train-1")
    fields = spec.Spec(features={"x": "int64"}, labels={"y": "int64"})
    says = r"train-1.parquet: column 'x' must be int64, as in .*train-0.parquet, got 'string'"
    with pytest.raises(checks.UserError, match=says):
        list(_source(tmp_path).scan("train", fields))


def test_a_flipped_byte_and_a_cut_file_are_refused(tmp_path):
    path = tmp_path / "train.parquet"
    table = pa.table({"x": list(range(1000)), "y": [1] * 1000})
    parquet.write_table(table, path, write_page_checksum=True, compression="none")
    fields = spec.Spec(features={"x": "int64"}, labels={"y": "int64"})
    whole = bytearray(path.read_bytes())
    assert len(_read(_source(tmp_path), fields=fields)) == 1000
    whole[len(whole) // 4] ^= 1
    path.write_bytes(whole)
    with pytest.raises(checks.UserError, match=r"row group 0 cannot be read: .*CRC"):
        list(_source(tmp_path).scan("train", fields))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(checks.UserError, match=r"train.parquet cannot be read: "):
        list(_source(tmp_path).scan("train", fields))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"files": {"train": "train.txt"}}, "must end in one of .parquet"),
        ({"files": {"train": "absent.parquet"}}, "must name existing files"),
        ({"files": {"train": 3}}, "must be a path or a list of them"),
        ({"rename": {"x": 3}}, "Arrow.rename..x.. must be a text"),
        ({"cells": 3}, "Arrow.cells must be built, such as @csv.Csv"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, settings, says):
    (tmp_path / "train.txt").write_text("x\n1\n")
    with pytest.raises(checks.UserError, match=says):
        list(_source(tmp_path, **settings).scan("train", SPEC))


def _table_of_tiny():
    columns = tiny.rows(96, seed=0)
    return pa.table({name: list(values) for name, values in columns.items()})


@pytest.mark.medium
def test_a_run_that_goes_on_is_equal_to_one_that_was_not_stopped(tmp_path, caplog):
    caplog.set_level("INFO")
    for split in ("train", "test"):
        WRITERS["parquet"](_table_of_tiny(), str(tmp_path / f"{split}.parquet"))
    source = arrow.Arrow(
        files={"train": "train.parquet", "test": "test.parquet"}, data_dir=str(tmp_path)
    )

    def make(**settings):
        made = tiny.make(**settings)
        data = pipeline.Pipeline(source=source, spec=tiny.SPEC, batch_size=made.data.batch_size)
        return made.__class__(**{**vars(made), "data": data})

    whole = tiny.train(make(train_steps=20), tmp_path / "whole")
    tiny.train(make(train_steps=10), tmp_path / "halves")
    halves = tiny.train(make(train_steps=20), tmp_path / "halves")
    assert all((halves[name] == value).all() for name, value in whole.items())
    size = sum(path.stat().st_size for path in (tmp_path / "whole" / "input").iterdir())
    assert size < 100_000
    for path in (tmp_path / "halves" / "input").iterdir():
        path.unlink()
    # The state of the input is lost, as for another number of workers: the rows are the same.
    tiny.train(make(train_steps=30), tmp_path / "halves")
    longer = tiny.train(make(train_steps=30), tmp_path / "whole")
    again = tiny.variables(tmp_path / "halves")
    assert "order starts anew" not in caplog.text
    assert all((again[name] == value).all() for name, value in longer.items())


LARGE = spec.Spec(
    features={
        "x": "float32",
        "word": "string",
        "tags": ("string", (None,)),
        "point": ("float32", (2,)),
    },
    labels={"y": "int64"},
)


def _write_large(folder, rows=300, group=20):
    draw = np.random.default_rng(0)
    table = {
        "x": np.arange(rows, dtype=np.float32),
        "word": [f"w{n}" for n in draw.integers(0, 9, rows)],
        "tags": [[f"t{n}"] * (n % 3) for n in range(rows)],
        "point": [[n, -n] for n in range(rows)],
        "y": np.arange(rows) % 2,
    }
    for part in range(2):
        own = slice(part * rows // 2, (part + 1) * rows // 2)
        path = str(folder / f"train-{part}.parquet")
        parquet.write_table(
            pa.table({n: v[own] for n, v in table.items()}), path, row_group_size=group
        )
    return table


def _train(source, steps, batch_size=12, **settings):
    data = pipeline.Pipeline(source=source, spec=LARGE, batch_size=batch_size)
    made = {"training": True, "seed": 3, **settings}
    return _plain(data.dataset("train", **made).take(steps))


@pytest.mark.medium
def test_a_window_has_the_rows_of_the_file_once_an_epoch(tmp_path):
    table = _write_large(tmp_path)
    rows = _train(_source(tmp_path, window=80), 50)
    numbers = [int(row["x"]) for row in rows]
    assert sorted(numbers[:300]) == list(range(300)) == sorted(numbers[300:])
    assert numbers[:300] != numbers[300:]
    for row in rows:
        number = int(row["x"])
        assert row["word"] == table["word"][number].encode() and row["y"] == number % 2
        assert row["tags"] == [tag.encode() for tag in table["tags"][number]]
        assert row["point"] == [number, -number]


@pytest.mark.medium
def test_windows_go_on_at_any_step_and_with_other_workers(tmp_path):
    _write_large(tmp_path)
    source = _source(tmp_path, window=80)
    whole = _train(source, 60)
    assert _train(source, 20, start_step=40) == whole[480:]
    size = 4
    parts = [_train(source, 60, size, num_shards=3, shard=shard) for shard in range(3)]
    for step in range(60):
        together = [row for part in parts for row in part[step * size : (step + 1) * size]]
        assert together == whole[step * 12 : (step + 1) * 12]


@pytest.mark.medium
def test_numbers_of_rows_keep_the_order_of_windows(tmp_path):
    """An audit numbers the rows of a run."""
    _write_large(tmp_path)
    source = _source(tmp_path, window=80)
    data = numbered.number_rows(pipeline.Pipeline(source=source, spec=LARGE, batch_size=12))
    rows = _plain(data.dataset("train", training=True, seed=3).take(60))
    assert [row[numbered.ROW] for row in rows] == [int(row["x"]) for row in _train(source, 60)]


def test_a_run_tells_how_it_mixes_unless_it_keeps_the_order(tmp_path):
    _write_large(tmp_path)
    data = pipeline.Pipeline(source=_source(tmp_path, window=80), spec=LARGE)
    (line,) = data.describe_order(100)
    assert line == "Training mixes 80 of 300 rows at a time, about 4 of 16 blocks."
    assert not dataclasses.replace(data, shuffle_buffer=1).describe_order(100)


def test_no_call_of_python_reads_many_windows(tmp_path):
    """A call returns several batches; with small windows it read thousands of them first."""
    _write_large(tmp_path)
    data = pipeline.Pipeline(source=_source(tmp_path, window=80), spec=LARGE, batch_size=20)
    assert data._count_together("train", 20) == 4
    assert data._count_together("train", 200) == 1
    whole = dataclasses.replace(data, source=_source(tmp_path))
    assert whole._count_together("train", 20) > 100


def test_a_window_that_holds_all_rows_changes_nothing(tmp_path):
    _write_large(tmp_path)
    assert _train(_source(tmp_path, window=300), 30) == _train(_source(tmp_path), 30)


def test_a_pass_in_order_reads_the_same_a_few_blocks_at_a_time(tmp_path):
    _write_large(tmp_path)
    assert _read(_source(tmp_path, window=30), fields=LARGE) == _read(
        _source(tmp_path), fields=LARGE
    )


def test_a_split_beyond_half_of_the_memory_is_read_in_windows(tmp_path, monkeypatch):
    _write_large(tmp_path)
    source = _source(tmp_path)
    assert source.list_blocks("train", LARGE) is None
    monkeypatch.setattr(memory, "find_limit", lambda: 10_000)
    assert _source(tmp_path).list_blocks("train", LARGE).window == 500_000
    assert _source(tmp_path).list_rows("train") is None


def test_windows_beyond_memory_are_refused_before_the_first_step(tmp_path, monkeypatch):
    _write_large(tmp_path)
    source = _source(tmp_path, window=200)
    monkeypatch.setattr(memory, "find_limit", lambda: 9_000)
    with pytest.raises(checks.UserError, match="Arrow.window must fit into memory, got 200"):
        _train(source, 1)


@pytest.mark.parametrize("kind", ["orc", "feather"])
def test_other_formats_have_blocks_too(tmp_path, kind):
    table = pa.table({"x": np.arange(20_000, dtype=np.float32), "y": np.arange(20_000) % 2})
    path = str(tmp_path / f"train.{kind}")
    if kind == "orc":
        orc.write_table(table, path, stripe_size=1024, batch_size=100)
    else:
        feather.write_feather(table, path, chunksize=3000)
    fields = spec.Spec(features={"x": "float32"}, labels={"y": "int64"})
    blocks = _source(tmp_path, kind, window=8000).list_blocks("train", fields)
    assert len(blocks.sizes) > 1 and sum(blocks.sizes) == 20_000
    values = [blocks.read(block, fields.fields)["x"] for block in range(len(blocks.sizes))]
    assert np.concatenate(values).tolist() == list(range(20_000))


def test_a_bad_value_in_a_later_block_is_one_line(tmp_path):
    _write_large(tmp_path)
    table = pa.table({"x": ["1"] * 30 + ["seven"] * 10, "y": [0] * 40})
    parquet.write_table(table, str(tmp_path / "train.parquet"), row_group_size=10)
    fields = spec.Spec(features={"x": "float32"}, labels={"y": "int64"})
    data = pipeline.Pipeline(
        source=_source(tmp_path, window=20, files={"train": "train.parquet"}),
        spec=fields,
        batch_size=5,
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        _plain(data.dataset("train", training=True, seed=0).take(8))
    rule = "train.parquet row group 3 row 0: field 'x' must be float32, got 'seven'"
    with pytest.raises(checks.UserError, match=rule):
        data.diagnose(caught.value, "train")
