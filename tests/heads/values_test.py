"""The meaning of labels: the class that a number names, and the marks of missing labels."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, heads, spec
from mtl.data import csv, pipeline, sampling
from mtl.heads import shots
from tests import tiny
from tests.heads import harness, multi_class_test

NAMES = ["-1", "0", "1"]
ABSENT = spec.MISSING["int64"]


def parse(head, label):
    """The targets of labels that are present, and which these are."""
    targets, present = head.targets(tf.constant(label))
    return np.where(present, targets, -9).tolist(), present.numpy().tolist()


@pytest.mark.parametrize("kind", [heads.MultiClass, heads.Ordinal])
@pytest.mark.parametrize(
    "names, label, ids",
    [
        (NAMES, [1, -1, 0], [2, 0, 1]),
        (["1", "2", "3"], [3, 1, 2], [2, 0, 1]),
        (["10", "5"], [5, 10], [1, 0]),
        (["true", "false"], [0, 1], [1, 0]),
        (["01", "02"], [2, 1], [1, 0]),
        (["0", "1"], [0, 1], [0, 1]),
        (["low", "high"], [0, 1], [0, 1]),
        (["1", "2", "3+"], ["3+", "1"], [2, 0]),
        (NAMES, ["-1", "1"], [0, 2]),
    ],
)
def test_an_integer_is_the_class_that_it_names(kind, names, label, ids):
    head = kind(name="y", classes=names)
    assert parse(head, np.array(label)) == (ids, [True] * len(ids))
    assert [head.check({"y": value}) for value in label] == [None] * len(label)


def test_metrics_bear_the_name_of_the_class_of_their_rows():
    head = heads.MultiClass(name="y", classes=NAMES)
    label = np.array([-1, -1, -1, 0, 1, 1, ABSENT])
    said = np.array([-1, -1, 0, 0, 1, -1, 0])
    got = harness.evaluate(head, np.eye(3)[said + 1].astype("f"), {"y": label}, 2)
    assert got["accuracy"] == pytest.approx(4 / 6)
    recalls = {"recall/-1": 2 / 3, "recall/0": 1, "recall/1": 1 / 2}
    assert {name: got[name] for name in recalls} == pytest.approx(recalls)


def test_lists_and_maps_name_classes_alike():
    several = heads.MultiLabel(name="y", classes=NAMES)
    targets, present = several.targets(
        tf.ragged.constant([[-1, 1], [0], [ABSENT], []], dtype=tf.int64)
    )
    assert targets.numpy().tolist()[:2] == [[1, 0, 1], [0, 1, 0]]
    assert present.numpy()[:, 0].tolist() == [True, True, False, True]
    places = heads.Segmentation(name="y", classes=["1", "2", "-1"], ignored=7)
    assert parse(places, np.array([[[-1, 7], [1, ABSENT]]]))[0] == [[2, -9, 0, -9]]


@pytest.mark.parametrize("names", [["1", "2", "many"], ["1", "01"]])
def test_names_that_are_numbers_in_part_are_refused_for_integers(names):
    head = heads.MultiClass(name="y", classes=names)
    assert parse(head, np.array([names[-1]])) == ([len(names) - 1], [True])
    with pytest.raises(checks.UserError, match="MultiClass.classes of task 'y' must hold"):
        head.targets(tf.constant([1], tf.int64))


@pytest.mark.parametrize("wrong", [2, -2])
def test_a_number_that_names_no_class_is_an_error(wrong):
    head = heads.Ordinal(name="y", classes=NAMES)
    message = f"head 'y': label 'y' must be one of -1, 0, 1, got {wrong}"
    assert head.check({"y": wrong}) == message
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be one of -1, 0, 1"):
        head.targets(tf.constant([0, wrong], tf.int64))


def test_rows_are_counted_by_the_number_of_their_class(tmp_path):
    head = heads.MultiClass(name="y", classes=NAMES, shots=shots.Shots())
    fitted = head.fitted(multi_class_test.count(head, tmp_path, {"y": [-1, -1, 1, ABSENT]}))
    assert fitted.class_counts == [2, 0, 1]


def test_minus_one_is_a_number():
    head = heads.Regression(name="y")
    label = np.tile(np.arange(-5, 6), 3)
    got = harness.evaluate(head, np.zeros([33, 1], "f"), {"y": label})
    assert got["label_mean"] == pytest.approx(0, abs=1e-6)
    assert got["mae"] == pytest.approx(np.abs(label).mean())


@pytest.mark.parametrize(
    "make",
    [heads.Poisson, heads.WeightedLogistic, heads.ZeroInflatedLogNormal],
)
def test_minus_one_is_no_count(make):
    head = make(name="y")
    assert head.check({"y": -1}).endswith(
        f"got -1. If it marks a missing label, set {make.__name__}.missing = [-1]"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="of at least 0"):
        head.targets(tf.constant([3, -1], tf.int64))


@pytest.mark.parametrize(
    "head, label, targets",
    [
        (heads.Binary(name="y", positive=[1], negative=[-1]), [1, -1, ABSENT], [1, 0, -9]),
        (heads.Binary(name="y", positive=[-1], negative=[0, 1]), [1, -1, 0], [0, 1, 0]),
        (heads.Binary(name="y", positive=[1]), [1, -1, 7, ABSENT], [1, -9, 0, -9]),
        (heads.Binary(name="y"), [1, -1, 0, ABSENT], [1, -9, 0, -9]),
        (heads.MultiClass(name="y", classes=3), [2, -1, ABSENT], [2, -9, -9]),
        (heads.MultiClass(name="y", classes=3, missing=[9]), [2, 9, -1], [2, -9, -9]),
        (heads.Regression(name="y", missing=[-1]), [-1, -2, ABSENT], [-9, -2, -9]),
        (heads.Regression(name="y", missing=[-999, 999]), [-999, 5, 999], [-9, 5, -9]),
        (heads.Regression(name="y", missing=[-1.5]), [-1.5, 0.5], [-9, 0.5]),
        (
            heads.Binary(name="y", positive=["a"], missing=["?"]),
            ["a", "?", "", "b"],
            [1, -9, -9, 0],
        ),
        (heads.Survival(name="y", event="e", boundaries=[1], missing=[-1]), [-1, 3], [-9, 3]),
        (heads.Ranking(name="y", group="g", missing=[9]), [2, 9, -1], [2, -9, -9]),
    ],
)
def test_marks_of_missing_labels(head, label, targets):
    found, present = parse(head, np.array(label))
    assert found == targets and present == [target != -9 for target in targets]
    kept = head.find_present(label)
    assert list(kept) == [one for one, is_there in zip(label, present, strict=True) if is_there]


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: heads.MultiClass(name="y", classes=3, missing=[2]), "must hold no class, got 2"),
        (lambda: heads.Binary(name="y", positive=["a"], missing=["a"]), "hold no class, got 'a'"),
        (lambda: heads.Regression(name="y", missing=-1), "must be a list of label values, got -1"),
    ],
)
def test_wrong_marks(make, says):
    with pytest.raises(checks.UserError, match=says):
        make()


def test_a_mark_has_the_type_of_the_label():
    with pytest.raises(checks.UserError, match="missing of task 'y' must hold values of int64"):
        heads.Regression(name="y", missing=["?"]).targets(tf.constant([1], tf.int64))


def test_a_sampler_knows_that_minus_one_is_a_class():
    made = tiny.make()
    model = dataclasses.replace(
        made.model, heads=[heads.Binary(name="sign", negative=[-1], positive=[1])]
    )
    data = dataclasses.replace(made.data, sampler=sampling.Power(label="sign"))
    with pytest.raises(checks.UserError, match="Power.missing must leave out -1"):
        dataclasses.replace(made, model=model, data=data)
    data = dataclasses.replace(made.data, sampler=sampling.Power(label="sign", missing=[]))
    dataclasses.replace(made, model=model, data=data)


def test_an_empty_cell_of_integers_is_missing_and_minus_one_is_not(tmp_path):
    (tmp_path / "rows.csv").write_text("x,profit,kind\n1,-1,-1\n2,,\n3,4,1\n")
    fields = spec.Spec(features={"x": "float32"}, labels={"profit": "int64", "kind": "int64"})
    source = csv.Csv(files={"train": str(tmp_path / "rows.csv")})
    data = pipeline.Pipeline(source=source, spec=fields, batch_size=3)
    ((_, labels),) = data.one_pass("train")
    profit, kind = heads.Regression(name="profit"), heads.Binary(name="kind")
    assert profit.row_weights(labels).numpy().tolist() == [1, 0, 1]
    assert kind.row_weights(labels).numpy().tolist() == [0, 0, 1]
    # Earlier gin files say by a default of -1 that an absent label is missing.
    old = dataclasses.replace(fields, defaults={"profit": -1})
    ((_, labels),) = dataclasses.replace(data, spec=old).one_pass("train")
    assert profit.row_weights(labels).numpy().tolist() == [1, 0, 1]
