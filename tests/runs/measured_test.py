"""An evaluation records its rows and settings; if they change, the best is measured again."""

import dataclasses
import json
import logging

import numpy as np
import pytest
import tensorflow as tf

from mtl import checkpoints, types, verbs
from mtl.files import checksums
from mtl.runs import evaluation, measured
from mtl.tools import tensorboard
from tests import tiny

tf1 = tf.compat.v1

NUMBERS = np.array([[1.0, 2.0], [3.0, 4.0], [np.nan, 0.0]], np.float32)
TEXTS = np.array([b"a", b"b", b""], object)
LISTS = [[b"a", b"b"], [], [b"b", b"a"]]


def _hash(*fields):
    """The hashes of rows; fields are arrays [B, ...], or lists of lists of texts."""
    with tf.Graph().as_default(), tf1.Session() as session:
        made = [
            tf.ragged.constant(field, tf.string, ragged_rank=1)
            if isinstance(field, list)
            else tf.convert_to_tensor(field)
            for field in fields
        ]
        return session.run(measured.hash_rows(made))[:, -1].tolist()


def test_equal_rows_have_equal_hashes_whatever_batch_they_are_in():
    whole = _hash(NUMBERS, TEXTS, LISTS)
    apart = [_hash(*(field[i : i + 1] for field in (NUMBERS, TEXTS, LISTS))) for i in range(3)]
    assert whole == [value for (value,) in apart]
    assert len(set(whole)) == 3


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (NUMBERS, NUMBERS + np.float32([[0, 0], [0, 0], [0, 1e-6]])),
        (NUMBERS[:2], NUMBERS[:2, ::-1]),
        (TEXTS, np.array([b"a", b"b", b" "], object)),
        (np.array([1, 2]), np.array([1, 3])),
        (np.array([True, False]), np.array([True, True])),
    ],
)
def test_any_value_that_differs_gives_another_hash(first, other):
    assert sum(_hash(first)) != sum(_hash(other))


@pytest.mark.parametrize(
    "other", [[["a", "b"], [], ["a", "b"]], [["a", "b"], ["b", "a"], []], [["a"], ["b"], ["b"]]]
)
def test_the_order_and_the_ends_of_lists_count(other):
    first = [["a", "b"], [], ["b", "a"]]
    assert _hash(first) != _hash(other)


def test_values_that_change_places_between_rows_give_another_sum():
    ages, names = np.array([1, 2]), np.array([b"x", b"y"], object)
    assert sum(_hash(ages, names)) == sum(_hash(ages[::-1], names[::-1]))
    assert sum(_hash(ages, names)) != sum(_hash(ages[::-1], names))


def test_only_settings_that_are_set_enter_the_digest():
    model = tiny.make().model
    heads = [dataclasses.replace(model.heads[0], positive_weight=4.0), *model.heads[1:]]
    other = dataclasses.replace(model, heads=heads)
    assert measured.digest_settings(model) == measured.digest_settings(tiny.make().model)
    assert measured.digest_settings(model) != measured.digest_settings(other)


class _Daily:
    """A run whose held-out rows and settings may change from one start to the next."""

    def __init__(self, folder, caplog, metric="sign/auc", patience=2):
        self.folder, self._caplog = folder, caplog
        self._best = checkpoints.Best(metric=metric, patience=patience)

    def go_on(self, train_steps, test=None, positive_weight=1.0):
        """Train on; return the number of steps."""
        splits = {**tiny.SPLITS, **({} if test is None else {"test": test})}
        made = tiny.make(splits, self._best, train_steps=train_steps, checkpoint_steps=5)
        heads = [dataclasses.replace(made.model.heads[0], positive_weight=positive_weight)]
        model = dataclasses.replace(made.model, heads=[*heads, *made.model.heads[1:]])
        self._caplog.clear()
        with self._caplog.at_level(logging.WARNING, "mtl"), tiny.without_exports():
            return verbs.train(dataclasses.replace(made, model=model), str(self.folder))[1]

    @property
    def record(self):
        return checksums.read_json(str(self.folder / "best" / "best.json"), "")

    @property
    def said(self):
        return [m for m in self._caplog.messages if "best value was measured" in m]


def _flipped(test):
    """Rows whose first label is the opposite, so that a good model is a bad one."""
    return {**test, "sign": 1 - test["sign"]}


@pytest.fixture
def daily(tmp_path, caplog):
    return _Daily(tmp_path, caplog)


@pytest.mark.medium
def test_the_best_is_measured_again_on_rows_that_have_changed(daily):
    daily.go_on(15)
    first = daily.record
    assert first["value"] > 0.5 and daily.said == []
    other = _flipped(tiny.SPLITS["test"])
    daily.go_on(20, other)
    (line,) = daily.said
    old, new = f"{first['value']:.6g}", f"{1 - first['value']:.6g}"
    assert line.startswith("The rows of split 'test' have changed since the best value was")
    assert f"{first['checkpoint']} had sign/auc {old} and has {new} now. Patience" in line
    record = daily.record
    assert record["value"] < 0.5 and record["last_step"] == 20
    assert record["measured_on"]["rows"] != first["measured_on"]["rows"]
    daily.go_on(25, other)
    assert daily.said == []


@pytest.mark.medium
def test_patience_that_was_used_up_starts_anew_on_rows_that_have_changed(tmp_path, caplog):
    daily = _Daily(tmp_path, caplog, metric="sign/label_mean")
    daily._best = dataclasses.replace(daily._best, higher_is_better=False)
    assert daily.go_on(40) == 15
    assert daily.go_on(40) == 0
    assert daily.go_on(40, _flipped(tiny.SPLITS["test"])) in (5, 10)
    assert len(daily.said) == 1


@pytest.mark.medium
def test_the_best_is_measured_again_if_its_metric_means_something_else(tmp_path, caplog):
    daily = _Daily(tmp_path, caplog, "average_loss", patience=None)
    daily.go_on(10)
    before = daily.record
    daily.go_on(15, positive_weight=400.0)
    (line,) = daily.said
    assert line.startswith("Settings of the model have changed since the best value was measured")
    assert daily.record["value"] > 2 * before["value"]


@pytest.mark.medium
def test_settings_that_leave_the_value_alone_keep_patience_and_say_nothing(daily):
    daily.go_on(10)
    record = daily.record
    made = checkpoints.BestKeeper(
        dataclasses.replace(daily._best, higher_is_better=True), str(daily.folder)
    )
    made._write({**record, "last_step": 10, "evaluations_since": 1, "steps_since": [10]})
    daily.go_on(15, positive_weight=1.5)
    assert daily.said == []
    since = 0 if daily.record["step"] == 15 else 2
    assert daily.record["evaluations_since"] == since
    assert daily.record["measured_on"]["settings"] != record["measured_on"]["settings"]


@pytest.mark.medium
@pytest.mark.parametrize("is_same", [True, False])
def test_a_record_of_before_is_measured_once_and_told_if_it_differs(daily, is_same):
    daily.go_on(10)
    record = daily.record
    del record["measured_on"]
    if not is_same:
        record["value"] = 1.0
    path = daily.folder / "best" / "best.json"
    path.write_text(json.dumps(record))
    daily.go_on(15)
    assert daily.record["measured_on"] and daily.record["value"] < 1
    assert len(daily.said) == (0 if is_same else 1)
    assert all("split 'test' or settings of the model have changed" in m for m in daily.said)


@pytest.mark.medium
def test_a_best_checkpoint_that_is_gone_is_the_best_no_longer(daily):
    daily.go_on(10)
    for file in (daily.folder / "best").glob("model.ckpt-*"):
        file.unlink()
    daily.go_on(15, _flipped(tiny.SPLITS["test"]))
    (line,) = daily.said
    assert "and is gone. Patience starts anew." in line
    assert daily.record["step"] == 15


@pytest.mark.medium
def test_rows_that_differ_in_each_evaluation_are_told_once(daily, monkeypatch):
    numbers = iter(range(1000))
    monkeypatch.setattr(measured.Rows, "describe", lambda self: f"48 rows, {next(numbers)}")
    daily.go_on(15)
    told = [m for m in daily._caplog.messages if "differ in each evaluation" in m]
    assert told == [
        "The rows of split 'test' differ in each evaluation: values of sign/auc cannot be compared."
    ]
    assert daily.said == []


@pytest.mark.medium
def test_the_items_of_tensorboard_leave_the_record_alone(tmp_path):
    """Evaluations with these items use a separate graph."""
    made = dataclasses.replace(
        tiny.make(train_steps=5), tensorboard=tensorboard.TensorBoard(confusion=True)
    )
    tiny.train(made, tmp_path)
    evaluator = evaluation.Evaluator(made, str(tmp_path), None)
    path = str(tmp_path / "model.ckpt-5")
    place = made.distribution.find_place()
    run = types.ObservedRun(experiment=made, model_dir=str(tmp_path), place=place)
    watch = made.tensorboard(run).watch_evaluation(path)
    found, on = evaluator._measure(path, watch)
    plain, plain_on = evaluator._measure(path)
    assert on == plain_on and on["rows"].startswith("48 rows, ")
    assert found["average_loss"] == pytest.approx(plain["average_loss"])
