import dataclasses
import pathlib
import re
import resource
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import csv, pipeline, whole_groups
from tests import tiny

tf1 = tf.compat.v1
SPEC = spec.Spec(features={"x": "float32"}, labels={"y": "int64"})


def feed(tmp_path: pathlib.Path, num_records=10, text=None, **settings) -> pipeline.Pipeline:
    path = tmp_path / "data.csv"
    path.write_text(text or "".join(f"{i},{i % 2}\n" for i in range(num_records)))
    source = csv.Csv(files={"train": str(path)}, columns=("x", "y"))
    return pipeline.Pipeline(
        source=source, spec=SPEC, **{"batch_size": 4, "cache": False, **settings}
    )


def read(dataset, num_batches=None):
    return [features["x"].numpy().tolist() for features, _ in dataset.take(num_batches or -1)]


def flat(batches):
    return [value for batch in batches for value in batch]


@pytest.mark.medium
def test_evaluation_is_one_pass_in_order_with_the_last_batch(tmp_path):
    dataset = feed(tmp_path).dataset("train", training=False, seed=0)
    assert read(dataset) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert dataset.element_spec[0]["x"].shape.as_list() == [None]


@pytest.mark.medium
@pytest.mark.parametrize("cache", [False, True])
def test_training_repeats_reshuffled_epochs_in_full_batches(tmp_path, cache):
    dataset = feed(tmp_path, cache=cache).dataset("train", training=True, seed=1)
    assert dataset.element_spec[0]["x"].shape.as_list() == [4]
    values = flat(read(dataset, 5))
    epochs = [values[:10], values[10:]]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != list(range(10))


@pytest.mark.parametrize(
    "text, batch_size", [("1,0\n", 32768), ("1,0\n" + "x" * 9 + ",1\n", 32768), ("", 4), ("1\n", 4)]
)
def test_large_batches_are_of_rows_as_large_as_the_first(text, batch_size, tmp_path):
    data = feed(tmp_path, text=text or "\n")
    assert data.in_large_batches("train").batch_size == batch_size
    long = dataclasses.replace(
        feed(tmp_path, text="a" * 40_000 + ",0\n"),
        spec=spec.Spec(features={"x": "string"}, labels={"y": "int64"}),
    )
    assert long.in_large_batches("train").batch_size == 209
    assert dataclasses.replace(long, batch_size=500).in_large_batches("train").batch_size == 500


@pytest.mark.medium
def test_a_checkpoint_holds_no_records_that_are_kept_in_memory(tmp_path):
    sizes = []
    for cache in (False, True):
        data = feed(tmp_path, num_records=5000, batch_size=500, shuffle_buffer=10, cache=cache)
        with tf.Graph().as_default(), tf1.Session() as session:
            batches = data.dataset("train", training=True, seed=1)
            iterator = tf1.data.make_initializable_iterator(batches)
            saver = tf1.train.Saver([tf.data.experimental.make_saveable_from_iterator(iterator)])
            following = iterator.get_next()
            session.run(iterator.initializer)
            for _ in range(15):  # Into the second pass.
                session.run(following)
            prefix = saver.save(session, str(tmp_path / "state"), write_meta_graph=False)
        sizes += [pathlib.Path(f"{prefix}.data-00000-of-00001").stat().st_size]
    assert sizes[1] < 3 * sizes[0]  # The prefetched data differ.


@pytest.mark.medium
def test_lists_know_the_number_of_rows_in_training(tmp_path):
    """Slices and replicas divide it while the graph is built."""
    lists = spec.Spec(features={"x": ("string", (None,))}, labels={"y": ("int64", (None,))})
    data = feed(tmp_path, text="a|b,1\n,2|3\nc,\n,\n")
    data = dataclasses.replace(data, spec=lists, shuffle_buffer=1)
    dataset = data.dataset("train", training=True, seed=1)
    for field in tf.nest.flatten(dataset.element_spec):
        assert field.shape.as_list() == [4, None]
    ((features, _),) = dataset.take(1)
    assert features["x"].to_list() == [[b"a", b"b"], [], [b"c"], []]


@pytest.mark.medium
def test_the_seed_decides_the_order(tmp_path):
    data = feed(tmp_path, 100)
    orders = [read(data.dataset("train", training=True, seed=seed), 50) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.medium
def test_a_buffer_of_one_keeps_the_order(tmp_path):
    dataset = feed(tmp_path, shuffle_buffer=1).dataset("train", training=True, seed=1)
    assert flat(read(dataset, 5)) == [*range(10)] * 2


def _write_files(folder, *sizes, **settings):
    """Write a file of each size: file n has the rows from 10 (n + 1) on."""
    for part, size in enumerate(sizes, 1):
        rows = range(part * 10, part * 10 + size)
        (folder / f"{part}.csv").write_text("".join(f"{row},0\n" for row in rows))
    source = csv.Csv(files={"train": "*.csv"}, data_dir=str(folder), columns=("x", "y"))
    settings = {"batch_size": 4, "cache": False, **settings}
    return pipeline.Pipeline(source=source, spec=SPEC, **settings)


def _read_shard(data, num_shards, shard):
    dataset = data.dataset("train", training=False, seed=0, num_shards=num_shards, shard=shard)
    return flat(read(dataset))


@pytest.mark.medium
def test_shards_deal_out_files_where_they_are_even(tmp_path):
    data = _write_files(tmp_path, 4, 4, 4, 4)
    assert _read_shard(data, 2, 0) == [10, 11, 12, 13, 30, 31, 32, 33]
    assert _read_shard(data, 2, 1) == [20, 21, 22, 23, 40, 41, 42, 43]
    assert _read_shard(data, 8, 1) == [11, 31]  # Fewer files than shards: every n-th record.
    assert not data.describe_order(9, workers=2) and not data.describe_order(9, workers=8)


@pytest.mark.medium
@pytest.mark.parametrize("sizes", [(6, 2), (2, 2, 2)], ids=["unequal", "not divisible"])
def test_shards_of_uneven_files_have_equal_parts_of_the_rows(sizes, tmp_path):
    """Whole files would give rows of a small file a greater weight, on several workers."""
    data = _write_files(tmp_path, *sizes)
    rows = _read_shard(data, 1, 0)
    assert [_read_shard(data, 2, shard) for shard in range(2)] == [rows[::2], rows[1::2]]
    told = f"reads all files .* give a worker {min(sizes) * 5} to .* a multiple of 2 files"
    (line,) = data.describe_order(9, workers=2)
    assert re.search(told, line)
    assert not data.describe_order(9, workers=1)


@pytest.mark.medium
def test_files_of_nearly_equal_size_stay_whole_and_are_told(tmp_path):
    """Every worker would have to read all files, for a guess at the number of rows."""
    data = _write_files(tmp_path, 6, 5)
    assert [len(_read_shard(data, 2, shard)) for shard in range(2)] == [6, 5]
    (line,) = data.describe_order(9, workers=2)
    assert re.search("some files about 1.2 times as often as rows of others, because", line)


def test_a_sampler_of_groups_keeps_uneven_files_whole_and_tells_the_weights(tmp_path):
    data = _write_files(tmp_path, 6, 2, sampler=whole_groups.WholeGroups(group="y"))
    assert [len(_read_shard(data, 2, shard)) for shard in range(2)] == [6, 2]
    (line,) = data.describe_order(9, workers=2)
    assert re.search("some files about 3.0 times as often .* or set Pipeline.cache", line)


@pytest.mark.medium
def test_what_is_kept_has_the_defaults_of_its_type(tmp_path):
    (tmp_path / "train.csv").write_text("1,0\n,1\n")
    source = csv.Csv(files={"train": "*.csv"}, data_dir=str(tmp_path), columns=("x", "y"))
    kinds = dataclasses.replace(SPEC, type_defaults={"float32": 7})
    data = pipeline.Pipeline(source=source, spec=kinds, batch_size=2)
    (batch,) = data.keep_fields([]).one_pass("train", with_labels=False)
    assert batch["x"].numpy().tolist() == [1, 7]


@pytest.mark.medium
@pytest.mark.parametrize("training", [False, True])
def test_shards_deal_out_every_record_once(tmp_path, training):
    data = feed(tmp_path, 12, batch_size=2)
    shards = [
        flat(read(data.dataset("train", training=training, seed=3, num_shards=3, shard=i), 2))
        for i in range(3)
    ]
    assert [sorted(shard) for shard in shards] == [[i, i + 3, i + 6, i + 9] for i in range(3)]


def test_a_shard_without_a_record_is_refused(tmp_path):
    message = "split 'train' must hold a record for each of 4 shards, got 3"
    data = feed(tmp_path, 3)
    data.dataset("train", training=True, seed=0, num_shards=4, shard=2)
    with pytest.raises(checks.UserError, match=message):
        data.dataset("train", training=True, seed=0, num_shards=4, shard=3)


@pytest.mark.medium
def test_whether_a_split_holds_records_is_seen_once(monkeypatch, tmp_path):
    looks = []
    scan = csv.Csv.scan
    monkeypatch.setattr(csv.Csv, "scan", lambda *a: looks.append(a[1]) or scan(*a))
    data = feed(tmp_path)
    assert [flat(read(data.one_pass("train"))) for _ in range(2)] == [list(range(10))] * 2
    assert looks == ["train"]


@pytest.mark.medium
def test_batch_size_of_a_replica_and_no_labels(tmp_path):
    data = feed(tmp_path)
    dataset = data.dataset("train", training=False, seed=0, batch_size=5, with_labels=False)
    batches = list(dataset)
    assert [features["x"].shape[0] for features, _ in batches] == [5, 5]
    assert [labels for _, labels in batches] == [{}, {}]


@pytest.mark.medium
def test_works_in_a_graph_and_in_a_loop_inside_it(tmp_path):
    """As Estimator builds it, and as several steps in one session call read it."""
    with tf.Graph().as_default(), tf1.Session() as session:
        dataset = feed(tmp_path).dataset("train", training=True, seed=1)
        iterator = tf1.data.make_initializable_iterator(dataset)

        def step(index, total):
            features, _ = iterator.get_next()
            return index + 1, total + tf.reduce_sum(features["x"])

        _, total = tf.while_loop(lambda i, _: i < 5, step, [0, 0.0], parallel_iterations=1)
        session.run(iterator.initializer)
        assert session.run(total) == 2 * sum(range(10))


@pytest.mark.medium
def test_diagnose_names_the_first_bad_line(tmp_path):
    data = feed(tmp_path, text="1,0\n2,1\nthree,0\nfour,1\n")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        read(data.dataset("train", training=False, seed=0))
    expected = f"{tmp_path}/data.csv line 3: field 'x' must be float32, got 'three'."
    assert data.diagnose(caught.value, "train") == expected
    with tf.Graph().as_default():
        assert data.diagnose(caught.value, "train") == expected


class EvenHead:
    def check(self, labels):
        return None if labels["y"] % 2 == 0 else f"label 'y' must be even, got {labels['y']}."


def test_diagnose_asks_the_heads_about_labels(tmp_path):
    data = feed(tmp_path, text="1,0\n2,8\n3,7\n")
    error = tf.errors.InvalidArgumentError(None, None, "")
    expected = f"{tmp_path}/data.csv line 3: label 'y' must be even, got 7."
    assert data.diagnose(error, "train", [EvenHead()]) == expected
    assert data.diagnose(error, "train") is None


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_diagnose_finds_what_is_not_finite(tmp_path, value):
    data = feed(tmp_path, text=f"1,0\n{value},1\n")
    line = data.diagnose(RuntimeError("NaN loss during training."), "train")
    where = f"{tmp_path}/data.csv line 2: field 'x'"
    assert line == f"{where} must be finite, got {float(value)!r}."


def test_diagnose_looks_into_arrays_of_several_axes():
    photos = np.ones([3, 2, 2], np.float32)
    photos[1, 0, 1] = np.inf
    source = tiny.Rows(splits={"train": {"photo": photos, "y": np.zeros(3, np.int64)}})
    made = spec.Spec(features={"photo": ("float32", (2, 2))}, labels={"y": "int64"})
    data = pipeline.Pipeline(source=source, spec=made)
    line = data.diagnose(RuntimeError("NaN loss during training."), "train")
    assert line.startswith("train row 1: field 'photo' must be finite, got [[1.0, inf], ")


GAPS = spec.Spec(
    features={"a": "float32", "b": "int64", "c": "string"},
    labels={"y": "int64"},
    defaults={"a": "nan"},
)


def _of_gaps(tmp_path, text, made=GAPS):
    (tmp_path / "gaps.csv").write_text(text)
    source = csv.Csv(
        files={"train": str(tmp_path / "gaps.csv")}, columns=("a", "b", "c", "y"), missing=("", "?")
    )
    return pipeline.Pipeline(source=source, spec=made)


BAD_RECORD = tf.errors.InvalidArgumentError(None, None, "StringToNumberOp could not convert")


def test_a_missing_number_is_not_blamed_for_another_row(tmp_path):
    data = _of_gaps(tmp_path, "1,1,u,0\n,2,v,1\nnan,3,w,1\n5,4,?,1\n")
    line = data.diagnose(BAD_RECORD, "train")
    assert line.startswith(f"{tmp_path}/gaps.csv line 4: field 'c' must be present, as it has no d")
    assert (
        _of_gaps(tmp_path, "1,1,u,0\n,2,v,1\n").diagnose(RuntimeError("NaN loss"), "train") is None
    )


def test_a_number_that_is_not_finite_is_blamed_only_where_nothing_else_is(tmp_path):
    made = spec.Spec(features=GAPS.features, labels=GAPS.labels)
    data = _of_gaps(tmp_path, "1,1,u,0\nnan,2,v,1\n5,x,u,1\n", made)
    assert "line 3: field 'b' must be int64, got 'x'." in data.diagnose(BAD_RECORD, "train")
    fine = _of_gaps(tmp_path, "1,1,u,0\nnan,2,v,1\n", made)
    assert "line 2: field 'a' must be finite" in fine.diagnose(RuntimeError("NaN loss"), "train")
    assert fine.diagnose(BAD_RECORD, "train") is None


def test_all_fields_with_gaps_are_reported_at_once(tmp_path):
    made = spec.Spec(features=GAPS.features, labels=GAPS.labels)
    data = _of_gaps(tmp_path, "1,1,u,\n2,,u,1\n3,x,u,1\n,,u,1\n4,4,?,0\n", made)
    assert data.diagnose(BAD_RECORD, "train") == (
        f"{tmp_path}/gaps.csv line 2: field 'b' must be present, as it has no default. "
        f"Further fields with gaps: 'a' ({tmp_path}/gaps.csv line 4), "
        f"'c' ({tmp_path}/gaps.csv line 5). "
        "Set Spec.defaults, or Spec.type_defaults for all of a type; 'nan' is a missing number."
    )
    one = _of_gaps(tmp_path, "1,1,u,\n2,,u,1\n", made).diagnose(BAD_RECORD, "train")
    assert "as it has no default. Set Spec.defaults, or" in one


def test_diagnose_leaves_other_errors_alone(tmp_path):
    data = feed(tmp_path, text="one,0\n")
    assert data.diagnose(tf.errors.ResourceExhaustedError(None, None, ""), "train") is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "Pipeline.batch_size must be above 0, got 0"),
        ({"batch_size": 1.5}, "Pipeline.batch_size must be a whole number, got 1.5"),
        ({"shuffle_buffer": 0}, "Pipeline.shuffle_buffer must be above 0"),
        ({"cache": "yes"}, "Pipeline.cache must be True or False"),
        ({"train_split": None}, "Pipeline.train_split must name a split"),
        ({"spec": None}, "Pipeline.spec must be a Spec"),
        ({"source": "digits"}, "Pipeline.source must be a source, such as @csv.Csv"),
    ],
)
def test_settings_are_checked(settings, message):
    source = csv.Csv(files={"train": "data.csv"})
    with pytest.raises(checks.UserError, match=message):
        pipeline.Pipeline(**{"source": source, "spec": SPEC, **settings})


@pytest.mark.slow
def test_memory_stays_flat_on_a_large_file(tmp_path):
    """A file of 150 MB adds less than 60 MB to the process, in evaluation and in training."""
    path = tmp_path / "large.csv"
    line = f"1.25,1,{'x' * 290}\n"
    path.write_text(line * 500_000)
    source = csv.Csv(files={"train": str(path)}, columns=("x", "y", "text"))
    data = pipeline.Pipeline(source=source, spec=SPEC, batch_size=512, shuffle_buffer=1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = sum(float(np.sum(f["x"])) for f, _ in data.dataset("train", training=False, seed=0))
    for _ in data.dataset("train", training=True, seed=0).take(1000):
        pass
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert total == 0.625e6
    assert grown < 60 * 1024


@pytest.mark.parametrize("training", [False, True])
def test_no_thread_tunes_what_is_read(tmp_path, training):
    # It would hold up the end of a run for up to a minute, see `source.options`.
    dataset = feed(tmp_path).dataset("train", training=training, seed=0)
    assert dataset.options().autotune.enabled is False


def test_no_text_of_a_list_is_empty_whatever_the_source():
    rows = {**tiny.TAGGED_SPLITS["train"], "tags": [[b""], [b"a", b""], []] * 32}
    source = tiny.Rows(splits={"train": rows})
    data = dataclasses.replace(tiny.make().data, source=source, spec=tiny.TAGGED_SPEC)
    ((features, _), *_) = data.one_pass("train")
    assert features["tags"].to_list()[:3] == [[], [b"a"], []]
    batch = next(iter(data.dataset("train", training=True, seed=1)))
    assert set(map(tuple, batch[0]["tags"].to_list())) == {(), (b"a",)}


@dataclasses.dataclass(frozen=True)
class _OwnSource(tiny.Rows):
    """A source of which one method returns something else."""

    method: str = ""
    result: Any = None

    def records(self, split):
        return self.result if self.method == "records" else super().records(split)

    def decode(self, batch, spec, with_labels):
        return self.result if self.method == "decode" else super().decode(batch, spec, with_labels)


@pytest.mark.parametrize(
    ("method", "result", "says"),
    [
        ("records", None, "_OwnSource.records must return a tf.data.Dataset, got None."),
        ("decode", None, "_OwnSource.decode must return {field: values [B, ...]}, got None."),
        ("decode", {"x": tf.zeros([2, 3])}, "_OwnSource.decode must return every field, got ['x']"),
    ],
)
def test_own_sources_that_return_something_else_are_one_line(method, result, says):
    source = _OwnSource(splits=tiny.SPLITS, method=method, result=result)
    data = dataclasses.replace(tiny.make().data, source=source)
    with pytest.raises(checks.UserError) as error:
        data.dataset("train", training=False, seed=0)
    assert says in str(error.value) and "\n" not in str(error.value)
