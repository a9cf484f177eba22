import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from mtl import heads
from mtl.heads import together
from mtl.variables import stacks
from tests.heads import harness

tf1 = tf.compat.v1

# One is not like the others, and stands amid them.
_HEADS = [
    heads.Binary(name=f"t{i}", label=f"y{i}", weight="w", prior=0.25 if i == 5 else None)
    for i in range(together.FROM + 1)
]


def _run(function, logits, labels, num_batches=1):
    """The last result of `function(logits, labels)`, and metrics after all batches."""
    with tf.Graph().as_default(), tf1.Session() as session:
        x = {task: tf1.placeholder(tf.float32, [None, 1]) for task in logits}
        y = {field: tf1.placeholder(value.dtype, [None]) for field, value in labels.items()}
        made = function(x, y)
        first = [part[1] if isinstance(part, tuple) else part for part in made.values()]
        session.run(tf1.local_variables_initializer())
        for rows in np.array_split(np.arange(len(labels["w"])), num_batches):
            fed = {**{x[n]: v[rows] for n, v in logits.items()}}
            fed |= {y[n]: v[rows] for n, v in labels.items()}
            result = session.run(first, fed)
        if not any(isinstance(part, tuple) for part in made.values()):
            return dict(zip(made, result, strict=True))
        return session.run({name: value for name, (value, _) in made.items()})


@pytest.fixture(scope="module")
def rows():
    """Return logits and labels with gaps, ties, a task without labels, and a NaN as a logit."""
    random = np.random.default_rng(0)
    logits = {h.name: random.normal(size=(50, 1)).round(1).astype(np.float32) for h in _HEADS}
    labels = {h.label: random.integers(-1, 2, 50) for h in _HEADS}
    labels["y3"][:], logits["t4"][labels["y4"].argmax()] = -1, np.nan
    logits["t2"][labels["y2"] == -1] = np.inf
    return logits, {**labels, "w": random.uniform(0.5, 2, 50).astype(np.float32)}


def _alone(function):
    """Return a function that calls `function` for each head by itself, and joins the results."""

    def all_of_them(logits, labels):
        made = {}
        for head in _HEADS:
            made |= function([head], logits, labels)
        return made

    return all_of_them


@pytest.mark.medium
@pytest.mark.parametrize("function", [together.compute_losses, together.build_metrics])
def test_equal_heads_have_together_what_they_have_alone(function, rows):
    both = [lambda x, y: function(_HEADS, x, y), _alone(function)]
    one, other = (_run(made, *rows, num_batches=4) for made in both)
    assert sorted(one) == sorted(other) and list(one)[0].startswith("t0")
    for key in one:
        np.testing.assert_allclose(one[key], other[key], rtol=1e-6, err_msg=key)


@pytest.mark.medium
def test_labels_may_have_several_types(rows):
    logits, labels = rows
    some = {field: labels[field].astype(np.float32) for field in ("y1", "y2")}
    for value in some.values():
        value[value < 0] = np.nan
    labels = {**labels, **some}
    made = [lambda x, y: together.compute_losses(_HEADS, x, y), _alone(together.compute_losses)]
    one, other = (_run(function, logits, labels) for function in made)
    for key in one:
        np.testing.assert_allclose(one[key], other[key], rtol=1e-6, err_msg=key)


@pytest.mark.medium
def test_their_labels_weigh_what_they_weigh_alone(rows):
    made = _run(lambda x, y: together.sum_label_weights(_HEADS, y), *rows)
    alone = _run(lambda x, y: {h.name: h.label_weight(y) for h in _HEADS}, *rows)
    assert list(made) == list(alone)
    np.testing.assert_allclose(list(made.values()), list(alone.values()), rtol=1e-6)


def _list_exported(used, logits, labels):
    """Return the predictions, and the outputs of an export: {name: [B, ...]}."""
    del labels
    found = together.build_predictions(used, logits)
    outputs = together.build_export_outputs(used, logits, found)
    for task, kinds in outputs.items():
        assert list(kinds) == ["predict", "classify", "regress"]
        found |= {f"{task}/{name}/": values for name, values in kinds["predict"].outputs.items()}
        found[f"{task}/scores"] = kinds["classify"].scores
        found[f"{task}/classes"] = kinds["classify"].classes
        found[f"{task}/outputs"] = kinds["regress"].value
    return found


@pytest.mark.medium
def test_they_predict_together_what_they_predict_alone(rows, monkeypatch):
    monkeypatch.setattr(stacks, "FROM", together.FROM)
    built = []
    monkeypatch.setattr(
        heads.Binary,
        "predictions",
        lambda head, logits, plain=heads.Binary.predictions: (
            built.append(head) or plain(head, logits)
        ),
    )

    def predict(logits, labels, may_stack):
        with stacks.stack_tasks(may_stack):
            return _list_exported(_HEADS, logits, labels)

    made = _run(functools.partial(predict, may_stack=True), *rows)
    # Equal heads are built once; the other head is built for predictions and for the export.
    assert [head.name for head in built] == ["t0", "t5", "t5"]
    alone = _run(functools.partial(predict, may_stack=False), *rows)
    assert len(built) == 3 + 2 * len(_HEADS)
    assert list(made) == list(alone)
    for name, value in alone.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(made[name], value, rtol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(made[name], value, err_msg=name)


def test_a_bad_label_is_told_of_its_own_head(rows):
    logits, labels = rows
    labels = {**labels, "y7": np.where(np.arange(50) == 9, 2, labels["y7"])}
    with pytest.raises(tf.errors.InvalidArgumentError) as failed:
        _run(lambda x, y: together.compute_losses(_HEADS, x, y), logits, labels)
    told = harness.label_error(failed.value)
    assert told == "head 't7': label 'y7' must be one of 0, 1, got 2"


@pytest.mark.medium
def test_ops_do_not_grow_with_equal_heads():
    def ops(count):
        with tf.Graph().as_default() as graph:
            made = [dataclasses.replace(_HEADS[0], name=f"t{i}", weight=None) for i in range(count)]
            logits = {head.name: tf1.placeholder(tf.float32, [None, 1]) for head in made}
            given = len(graph.get_operations())
            together.build_metrics(made, logits, {"y0": tf1.placeholder(tf.int64, [None])})
            return len(graph.get_operations()) - given

    assert ops(2 * together.FROM) == ops(together.FROM)


def test_a_class_of_ones_own_is_built_by_itself():
    class Own(heads.Binary):
        pass

    assert Own(name="a").joint_kind is None
    assert _HEADS[0].joint_kind == _HEADS[1].joint_kind != _HEADS[5].joint_kind
