"""Fields that are kept with the predictions of a split belong to the same rows."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, spec, verbs
from mtl.data import json_lines
from mtl.runs import kept_fields
from tests import tiny

tf1 = tf.compat.v1


@pytest.mark.medium
def test_fields_of_a_split_are_those_of_the_predicted_row(trained):
    keep = ["word", "size", "x", "kind"]
    rows = list(verbs.predict(trained.experiment, trained.model_dir, keep=keep))
    assert list(rows[0]) == [*keep, *trained.expected]
    for name in keep:
        found = [row[name] for row in rows]
        np.testing.assert_array_equal(found, tiny.SPLITS["test"][name])
    for name, expected in trained.expected.items():
        np.testing.assert_array_equal([row[name] for row in rows], expected)
    # Row 17 alone gets the same prediction, and its kept features match the split.
    model = verbs.open_scorer(trained.experiment, trained.model_dir)
    with model as predict:
        alone = predict(trained.examples[17:18])
    assert alone["size/value"] == pytest.approx(rows[17]["size/value"])
    assert rows[17]["x"] == pytest.approx(tiny.SPLITS["test"]["x"][17])


@pytest.mark.medium
def test_another_split_and_nothing_kept(trained):
    rows = verbs.predict(trained.experiment, trained.model_dir, "train", keep=["sign"])
    assert [row["sign"] for row in rows] == tiny.SPLITS["train"]["sign"].tolist()
    rows = list(verbs.predict(trained.experiment, trained.model_dir, keep=[]))
    assert list(rows[0]) == list(trained.expected)


def test_an_integer_that_is_absent_is_none():
    absent = np.int64(spec.MISSING["int64"])
    assert kept_fields.stack_column([np.int64(3), absent, np.int64(-1)]) == [3, None, -1]
    assert kept_fields.stack_column([np.int64(3), np.int64(-1)]).tolist() == [3, -1]


def test_a_field_that_is_not_there(trained):
    with pytest.raises(checks.UserError, match="--keep must be one of x, word, .*mean 'sign'"):
        next(verbs.predict(trained.experiment, trained.model_dir, keep=["sing"]))


@pytest.mark.medium
def test_a_kept_number_among_texts_is_named(trained, tmp_path):
    row = {"x": [1, 2, 3], "word": "red"}
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps({**row, "id": key}) + "\n" for key in ("a", 0)))
    source = json_lines.JsonLines(files={"test": str(path)})
    data = dataclasses.replace(trained.experiment.data, source=source)
    made = dataclasses.replace(trained.experiment, data=data)
    with pytest.raises(checks.UserError, match="line 2: field 'id' must be string, got 0"):
        list(verbs.predict(made, trained.model_dir, "test", keep=["id"]))


def model_fn(features, labels, mode):
    del labels
    assert list(features) == ["tags"]
    lengths = features["tags"].row_lengths()
    return compat.estimator.EstimatorSpec(mode, predictions={"n": lengths})


def predicted(tags, names):
    with tf.Graph().as_default(), tf1.Session() as session:
        features = {"tags": tf.ragged.constant(tags), "n": tf.constant([0] * len(tags))}
        made = kept_fields.keep_fields(model_fn, names, ["tags"])
        values = session.run(made(features, None, compat.estimator.ModeKeys.PREDICT).predictions)
    return [{name: value[i] for name, value in values.items()} for i in range(len(tags))]


@pytest.mark.parametrize(
    "tags", [[[b"a", b"b"], [], [b"", b"c", b"d"]], [[1, 2], [0]], [[0.5]], [[1], [2]]]
)
def test_lists_keep_their_lengths(tags):
    rows = list(kept_fields.restore_rows(predicted(tags, ["tags"])))
    assert [list(row) for row in rows] == [["tags", "n"]] * len(tags)
    assert [row["tags"].tolist() for row in rows] == tags
    column = kept_fields.stack_column([row["tags"] for row in rows])
    assert [value.tolist() for value in column] == tags
    assert isinstance(column, np.ndarray) == (len(set(map(len, tags))) == 1)


def test_lists_of_lists_keep_their_items():
    items = [[[1, 2], []], [], [[], [3]]]

    def make(features, labels, mode):
        del labels
        return compat.estimator.EstimatorSpec(mode, predictions={"n": features["i"].row_lengths()})

    with tf.Graph().as_default(), tf1.Session() as session:
        counts = tf.ragged.constant([[2, 0], [], [0, 1]], tf.int64)
        features = {"i": tf.ragged.constant([[1, 2], [], [3]]), "i/values_per_item": counts}
        made = kept_fields.keep_fields(make, ["i"], features)
        values = session.run(made(features, None, compat.estimator.ModeKeys.PREDICT).predictions)
    rows = [{name: value[i] for name, value in values.items()} for i in range(3)]
    column = kept_fields.stack_column([row["i"] for row in kept_fields.restore_rows(rows)])
    assert [[item.tolist() for item in row] for row in column] == items


def test_a_prediction_is_not_overwritten():
    with pytest.raises(checks.UserError, match="--keep must name no prediction, got 'n'"):
        predicted([[1]], ["n"])


def test_columns():
    assert kept_fields.stack_column([b"a", b"b\0"]) == [b"a", b"b\0"]
    np.testing.assert_array_equal(kept_fields.stack_column([np.int64(1), np.int64(2)]), [1, 2])
    assert kept_fields.stack_column([np.zeros(3), np.ones(3)]).shape == (2, 3)
