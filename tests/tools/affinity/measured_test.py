"""Affinities against NumPy, in slices, with dropout and batch norm; training stays as it is."""

import dataclasses
import math
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, networks
from mtl.balancing import surgery, weighting
from mtl.sparsity import pruning, pruning_schedules
from mtl.step import replicas, whole_batch
from mtl.tools import affinity
from mtl.variables import moved
from tests import tiny

tf1 = tf.compat.v1

RATE, WEIGHTS = 0.05, {"sign": 2.0, "kind": 1.0, "size": 0.5}
TASKS = ("sign", "kind", "size")
PLAIN = networks.MLP(layers=[6], activation="tanh")
WORDS = ["red", "green", "blue"]
SHARED = ("network/trunk/hidden_0/kernel", "network/trunk/hidden_0/bias", "table")
TABLE = "features/categorical_word/embedding"


def _make(part, trunk=PLAIN, **run):
    columns = [
        features.Numeric(names=["x"], normalization="none"),
        features.Categorical(names=["word"], dimension=2, vocabulary=WORDS),
    ]
    made = tiny.make(
        network=networks.SharedBottom(trunk=trunk),
        columns=columns,
        **{"train_steps": 1, "summary_steps": 1, **run},
    )
    data = dataclasses.replace(made.data, batch_size=96)
    balanced = dataclasses.replace(
        made.model, surgery=part, weighting=weighting.Fixed(weights=WEIGHTS)
    )
    return dataclasses.replace(made, data=data, model=balanced)


def _shown(directory, step):
    """{(from, onto): affinity} of a step."""
    found = {tag: value for (at, tag), value in tiny.scalars(directory).items() if at == step}
    return {(one, other): found[f"affinity/{one}/{other}"] for one in TASKS for other in TASKS}


def _losses(values):
    """The losses of the three tasks over all training rows, from weights in float64."""
    rows = tiny.SPLITS["train"]
    ids = [WORDS.index(word.decode()) for word in rows["word"]]
    inputs = np.concatenate([values["table"][ids], rows["x"]], axis=1)
    hidden = np.tanh(inputs @ values[SHARED[0]] + values[SHARED[1]])
    logits = {
        task: hidden @ values[f"head/{task}/logits/kernel"] + values[f"head/{task}/logits/bias"]
        for task in TASKS
    }
    sign, kind = logits["sign"][:, 0], logits["kind"]
    of_sign = np.log1p(np.exp(-np.where(rows["sign"] == 1, sign, -sign))).mean()
    known = rows["kind"] >= 0
    logs = kind - np.log(np.exp(kind).sum(axis=1, keepdims=True))
    of_kind = -logs[known, rows["kind"][known]].mean()
    of_size = ((logits["size"][:, 0] - rows["size"]) ** 2).mean()
    return np.array([of_sign, of_kind, of_size])


def _differentiate(values, delta=1e-6):
    """The gradients of the tasks at the shared variables, by finite differences."""
    found = {}
    for name in SHARED:
        found[name] = np.zeros([len(TASKS), *values[name].shape])
        for place in np.ndindex(values[name].shape):
            ends = []
            for sign in (1, -1):
                moved_there = {**values, name: values[name].copy()}
                moved_there[name][place] += sign * delta
                ends.append(_losses(moved_there))
            found[name][(slice(None), *place)] = (ends[0] - ends[1]) / (2 * delta)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Train a single step over all rows; three tasks share a trunk and a table."""
    directory = tmp_path_factory.mktemp("whole")
    tiny.train(_make(affinity.TaskAffinity(every_steps=1, learning_rate=RATE)), directory)
    return directory


@pytest.mark.slow
def test_they_are_those_of_numpy(whole):
    _assert_as_numpy(whole)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["stopped", "straight_through"])
def test_weights_are_moved_behind_the_masks_of_a_pruning(gradient, tmp_path):
    made = _make(affinity.TaskAffinity(every_steps=1, learning_rate=RATE))
    late = pruning_schedules.OneShot(step=1)
    part = pruning.Pruning(sparsity=0.5, schedule=late, gradient=gradient)
    tiny.train(
        dataclasses.replace(made, model=dataclasses.replace(made.model, pruning=[part])), tmp_path
    )
    _assert_as_numpy(tmp_path)


def _assert_as_numpy(whole):
    values = {name: np.float64(of) for name, of in tiny.variables(whole, 0).items()}
    values["table"] = values[TABLE]
    before, gradients = _losses(values), _differentiate(values)
    for task, loss in zip(TASKS, before, strict=True):
        assert tiny.scalars(whole)[1, f"{task}/loss"] == pytest.approx(loss, rel=1e-5)
    shown = _shown(whole, 1)
    for i, one in enumerate(TASKS):
        step = {name: values[name] - RATE * gradients[name][i] for name in SHARED}
        after = _losses({**values, **step})
        for other, expected in zip(TASKS, 1 - after / before, strict=True):
            assert shown[one, other] == pytest.approx(expected, rel=1e-3, abs=2e-6)
    flat = np.concatenate([of.reshape(3, -1) for of in gradients.values()], axis=1)
    cosine = flat[0] @ flat[2] / np.linalg.norm(flat[0]) / np.linalg.norm(flat[2])
    assert tiny.scalars(whole)[1, "surgery/cosine/sign/size"] == pytest.approx(cosine, rel=1e-3)


@pytest.mark.slow
def test_slices_measure_what_the_whole_batch_does(whole, tmp_path):
    part = affinity.TaskAffinity(every_steps=1, learning_rate=RATE)
    tiny.train(_make(part, micro_batches=4), tmp_path)
    expected = _shown(whole, 1)
    for pair, value in _shown(tmp_path, 1).items():
        assert value == pytest.approx(expected[pair], rel=1e-3, abs=2e-6), pair


@pytest.mark.slow
def test_training_stays_as_it_is_and_both_passes_drop_out_alike(tmp_path):
    # With other draws the loss would change by far more than a step of this length does.
    part = affinity.TaskAffinity(every_steps=2, learning_rate=1e-6)
    trunk = networks.MLP(layers=[6], dropout=0.5, batch_norm=True)
    plain = tiny.train(_make(surgery.Sum(), trunk, train_steps=6), tmp_path / "plain")
    for steps in (3, 6):  # A run that goes on.
        made = _make(part, trunk, train_steps=steps, summary_steps=2)
        found = tiny.train(made, tmp_path / "measured")
    for name, value in plain.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    for step in (2, 4, 6):
        for pair, value in _shown(tmp_path / "measured", step).items():
            assert abs(value) < 1e-4, (step, pair)


@pytest.mark.medium
def test_what_cannot_be_measured_is_refused():
    part = affinity.TaskAffinity()
    with tf.Graph().as_default():
        shared = tf1.get_variable("shared", [2])
        losses = {"a": tf.reduce_sum(shared), "b": tf.reduce_sum(shared**2)}
        rule = "MultiTaskModel.surgery must not be TaskAffinity if "
        with pytest.raises(checks.UserError, match=f"{rule}there is one task"):
            part({"a": losses["a"]}, [shared])
        with pytest.raises(
            checks.UserError, match=f"{rule}the step cannot repeat its forward pass"
        ):
            part(losses, [shared])
        several = pytest.raises(checks.UserError, match=f"{rule}several replicas train")
        with mock.patch.object(replicas, "count", return_value=2), several:
            part(losses, [shared])
        own = tf1.get_variable("own", [2])
        with pytest.raises(checks.UserError, match=f"{rule}tasks share no variable"):
            part({"a": losses["a"], "b": tf.reduce_sum(own)}, [shared, own])
        # A network that keeps its variables, and asks for them once.
        forward = whole_batch.ForwardPass(losses)
        batch = whole_batch.WholeBatch(forward, others=lambda index: forward)
        rule = "read its variables by `tf.compat.v1.get_variable` in every pass, got .'shared'."
        with pytest.raises(checks.UserError, match=rule):
            part(losses, [shared], batch)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"every_steps": 0}, "every_steps must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0, got 0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be a float32, got nan"),
        ({"surgery": surgery.Sum}, "surgery must be a part such as"),
    ],
)
def test_bad_settings_are_refused(settings, says):
    with pytest.raises(checks.UserError, match=f"TaskAffinity.{says}"):
        affinity.TaskAffinity(**settings)


def test_a_run_that_would_write_nothing_is_refused():
    part = affinity.TaskAffinity(every_steps=20)
    with pytest.raises(checks.UserError, match="every_steps must be at most Run.train_steps, 10"):
        _make(part, train_steps=10)
    rule = "every_steps must be a multiple of Run.summary_steps, 15, to write every result"
    with pytest.raises(checks.UserError, match=rule):
        _make(part, train_steps=40, summary_steps=15)


@pytest.mark.medium
def test_rows_that_were_not_looked_up_stay():
    with tf.Graph().as_default(), tf1.Session() as session:
        table = tf1.get_variable("table", [5, 2], initializer=tf1.zeros_initializer())
        session.run(table.initializer)
        change = tf.IndexedSlices(tf.constant([[3.0, 4.0], [1.0, 2.0]]), tf.constant([3, 1]))
        ids = tf.constant([[4, 1, 3], [1, 0, 2]], tf.int64)
        with moved.move([table], [change]):
            rows = moved.add_to_rows(tf.nn.embedding_lookup(table, ids), table, ids)
        found = session.run(rows)
    expected = np.array([[0, 0], [1, 2], [0, 0], [3, 4], [0, 0]])[[[4, 1, 3], [1, 0, 2]]]
    np.testing.assert_array_equal(found, expected)
