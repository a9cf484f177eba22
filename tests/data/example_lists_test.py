"""Lists of examples with a context: rows as TensorFlow Serving's message has them, and mistakes."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, heads, spec, verbs
from mtl import features as columns
from mtl.data import example_lists, pipeline, tfrecord, whole_groups
from mtl.tools import scoring
from tests import tiny

input_pb2 = pytest.importorskip("tensorflow_serving.apis.input_pb2", reason="needs 'serving'")

SPEC = spec.Spec(
    features={"query": "float32", "price": "float32"},
    labels={"relevance": "float32", "list": "string"},
)


def _fill(example, **values):
    for name, value in values.items():
        feature = example.features.feature[name]
        if isinstance(value, bytes):
            feature.bytes_list.value.append(value)
        else:
            feature.float_list.value.append(value)


def _make_list(rows, **context):
    lists = input_pb2.ExampleListWithContext()
    _fill(lists.context, **context)
    for row in rows:
        _fill(lists.examples.add(), **row)
    return lists.SerializeToString()


def _write(path, records):
    options = tf.io.TFRecordOptions("GZIP" if path.suffix == ".gz" else "")
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def _make_source(path, records, **settings):
    return example_lists.ExampleLists(files={"a": _write(path, records)}, **settings)


def _list(rows, name):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = session.run(SPEC.parse(tf.constant(rows), True)[name]).tolist()
    return [v.decode() if isinstance(v, bytes) else v for v in values]


def _take(session, element):
    rows = []
    while True:
        try:
            rows.append(session.run(element))
        except tf.errors.OutOfRangeError:
            return rows


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
def test_every_example_is_a_row_with_the_context(name, tmp_path):
    records = [
        _make_list([{"price": 1.0, "relevance": 2.0}, {"price": 3.0, "relevance": 0.0}], query=7.0),
        _make_list([], query=8.0),
        _make_list([{"price": 4.0, "relevance": 1.0, "query": 5.0}], query=9.0),
    ]
    path = tmp_path / name
    with tf.Graph().as_default():
        source = _make_source(path, records)
        dataset = source.records("a")
        with tf.compat.v1.Session() as session:
            rows = _take(session, tf.compat.v1.data.make_one_shot_iterator(dataset).get_next())
    assert rows == [row for _, rows in source.by_file("a") for row in rows]
    expected = {
        "query": [7, 7, 5],
        "price": [1, 3, 4],
        "relevance": [2, 0, 1],
        "list": [f"{path} {number:012}" for number in (0, 0, 2)],
    }
    assert {name: _list(rows, name) for name in SPEC.fields} == expected
    found = list(source.scan("a", SPEC))
    assert {name: [row[name] for _, row in found] for name in SPEC.fields} == expected
    places = [f"{path} record {where}" for where in ("0 example 0", "0 example 1", "2 example 0")]
    assert [place for place, _ in found] == places


def test_a_key_of_the_data_replaces_the_key_of_the_list(tmp_path):
    records = [_make_list([{"price": 1.0, "relevance": 0.0}], query=1.0, list=b"mine")]
    source = _make_source(tmp_path / "a.tfrecord", records)
    assert [row["list"] for _, row in source.scan("a", SPEC)] == ["mine"]
    other = _make_source(tmp_path / "a.tfrecord", records, group="other")
    _, row = next(iter(other.scan("a", SPEC)))
    assert row["list"] == "mine"


def test_a_record_of_another_kind_is_named(tmp_path):
    source = _make_source(tmp_path / "a.tfrecord", [_make_list([{"price": 1.0}]), b"\x0a\xff"])
    _, (place, problem) = source.scan("a", SPEC)
    assert place.endswith("a.tfrecord record 1")
    assert problem == "must be a serialized ExampleListWithContext."
    with pytest.raises(checks.UserError, match="a.tfrecord record 1: must be a serialized Example"):
        [list(rows) for _, rows in source.by_file("a")]
    with pytest.raises(checks.UserError, match="ExampleLists.files"):
        list(source.by_file("b"))


def test_records_of_single_examples_name_the_source_that_reads_them(tmp_path):
    example = tf.train.Example()
    _fill(example, price=1.0)
    source = _make_source(tmp_path / "a.tfrecord", [example.SerializeToString()])
    [(place, problem)] = source.scan("a", SPEC)
    assert place.endswith("a.tfrecord record 0 example 0")
    assert problem.endswith("If each record is one tf.Example, use tfrecord.TfRecord.")


def _make(source, cache=True):
    made = tiny.make(columns=[columns.Numeric(names=list(SPEC.features))], train_steps=20)
    data = pipeline.Pipeline(
        source=source,
        spec=SPEC,
        batch_size=12,
        train_split="a",
        eval_split="a",
        cache=cache,
        sampler=whole_groups.WholeGroups(group="list"),
    )
    ranking = heads.Ranking(name="rank", label="relevance", group="list")
    model = dataclasses.replace(made.model, heads=[ranking])
    return dataclasses.replace(made, data=data, model=model)


def _train(source, folder, cache):
    verbs.train(_make(source, cache), str(folder))
    return tiny.variables(folder)


@pytest.mark.medium
@pytest.mark.parametrize("cache", [False, True])
def test_a_run_learns_as_from_rows_with_their_group(cache, tmp_path):
    rng = np.random.default_rng(3)
    lists, rows = [], []
    path = tmp_path / "lists.tfrecord"
    for number in range(20):
        query = float(rng.normal())
        prices = rng.normal(size=rng.integers(2, 6)).astype(float)
        found = [{"price": price, "relevance": float(price > query)} for price in prices]
        lists.append(_make_list(found, query=query))
        for row in found:
            example = tf.train.Example()
            _fill(example, query=query, list=f"{path} {number:012}".encode(), **row)
            rows.append(example.SerializeToString())
    source = _make_source(path, lists)
    flat = tfrecord.TfRecord(files={"a": _write(tmp_path / "rows.tfrecord", rows)})
    weights = _train(source, tmp_path / "lists", cache)
    expected = _train(flat, tmp_path / "rows", cache)
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)


@pytest.mark.medium
def test_a_ranker_is_evaluated_on_a_file_as_on_its_split(tmp_path):
    rows = [{"price": float(n), "relevance": float(n % 2)} for n in range(3)]
    made = _make(_make_source(tmp_path / "a.tfrecord", [_make_list(rows, query=1.0)] * 8))
    verbs.train(made, str(tmp_path / "run"))
    data, split = scoring.open_files(made.data, [str(tmp_path / "a.tfrecord")])
    found = verbs.evaluate(dataclasses.replace(made, data=data), str(tmp_path / "run"), split)
    assert found == verbs.evaluate(made, str(tmp_path / "run"))
