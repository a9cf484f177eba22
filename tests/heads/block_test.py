"""A block of heads: the same as the heads one by one, and mistakes in its settings."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, heads, spec
from mtl.configs import config
from mtl.data import pipeline
from mtl.heads import together
from mtl.variables import stacks
from tests import tiny
from tests.configs import gin_files_test

_TASKS = ["news", "sport", "music"]
_BINDINGS = [
    "heads.Block.head = @heads.Binary",
    'heads.Block.tasks = ["news", "sport", "music"]',
    'heads.Block.label = "likes_{task}"',
    "heads.Binary.positive_weight = 2.0",
]


def _list_heads(**settings):
    return [heads.Binary(name=task, label=f"likes_{task}", **settings) for task in _TASKS]


def _make(entries):
    """A run of the tiny rows, in which the label of every task is another threshold of x."""
    splits = {
        split: {
            **rows,
            **{f"likes_{t}": (rows["x"][:, i] > i / 4).astype(int) for i, t in enumerate(_TASKS)},
        }
        for split, rows in tiny.SPLITS.items()
    }
    labels = {**tiny.SPEC.labels, **{f"likes_{task}": "int64" for task in _TASKS}}
    plain = tiny.make(train_steps=3)
    return dataclasses.replace(
        plain,
        data=pipeline.Pipeline(
            source=tiny.Rows(splits=splits),
            spec=spec.Spec(features=tiny.SPEC.features, labels=labels, defaults={"word": "none"}),
            batch_size=16,
        ),
        model=dataclasses.replace(plain.model, heads=entries),
    )


def test_a_model_has_the_heads_of_its_blocks():
    size, kind = heads.Regression(name="size"), heads.MultiClass(name="kind", classes=3)
    block = heads.Block(head=heads.Binary, tasks=_TASKS, label="likes_{task}")
    made = _make([size, block, kind])
    assert made.model.heads == [size, *_list_heads(), kind]
    assert made.model.tasks == ("size", "news", "sport", "music", "kind")
    # Without a pattern a label has the name of its task, as a head alone has.
    plain = heads.Block(head=heads.Binary, tasks=["a"]).list_heads()
    assert plain == [heads.Binary(name="a")]


def test_bindings_of_the_class_hold_for_all_tasks(monkeypatch):
    monkeypatch.chdir(gin_files_test.ROOT)
    file = "gin_configs/experiments/adult_shared_bottom.gin"
    made = config.load([file], ["MultiTaskModel.heads = [@heads.Block()]", *_BINDINGS])
    assert made.model.heads == _list_heads(positive_weight=2.0)


@pytest.mark.parametrize("least", [2, 64])
@pytest.mark.medium
def test_a_block_trains_as_its_heads_one_by_one(least, tmp_path, monkeypatch):
    monkeypatch.setattr(stacks, "FROM", least)
    monkeypatch.setattr(together, "FROM", least)
    block = heads.Block(head=heads.Binary, tasks=_TASKS, label="likes_{task}")
    found = tiny.train(_make([block]), tmp_path / "block")
    listed = tiny.train(_make(_list_heads()), tmp_path / "listed")
    assert found.keys() == listed.keys() and "head/sport/logits/kernel" in found
    for name, value in listed.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert np.abs(found["head/news/logits/kernel"] - found["head/sport/logits/kernel"]).max() > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Hinge(heads.Binary):
    """A head of a user, with another loss, that says that it can be computed together."""

    @property
    def joint_kind(self):
        return "hinge"

    def losses(self, logits, targets):
        return tf.nn.relu(1 - (2 * targets - 1) * logits)


@pytest.mark.parametrize(("made", "groups"), [(_Hinge, 1), (heads.Binary, 1), ("plain", 0)])
def test_a_class_of_heads_says_that_it_can_be_computed_together(made, groups, monkeypatch):
    monkeypatch.setattr(together, "FROM", 2)
    if made == "plain":  # A subclass that does not answer for itself.
        made = type("Other", (heads.Binary,), {})
    formed = []
    monkeypatch.setattr(
        together.Alike,
        "__init__",
        lambda self, heads, plain=together.Alike.__init__: (
            formed.append(heads) or plain(self, heads)
        ),
    )
    entries = heads.Block(head=made, tasks=_TASKS).list_heads()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        logits = {task: tf.constant([[0.5], [-2.0]]) for task in _TASKS}
        labels = {task: tf.constant([1, 0], tf.int64) for task in _TASKS}
        losses = together.compute_losses(entries, logits, labels)
        alone = {head.name: head.loss(logits[head.name], labels) for head in entries}
        found, expected = session.run([losses, alone])
    assert [len(group) for group in formed] == [3] * groups
    for task in _TASKS:
        np.testing.assert_allclose(found[task], expected[task], rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head": heads.Binary(name="y")}, "be a class without brackets, such as @heads.Binary"),
        ({"head": "heads.Binary"}, "be a class without brackets, such as @heads.Binary"),
        ({"tasks": []}, "Block.tasks must hold a name"),
        ({"tasks": ["a", "b", "a"]}, "'a'"),
        ({"label": "likes"}, "be a text with {task}"),
    ],
)
def test_mistakes_are_refused(settings, message):
    with pytest.raises(checks.UserError, match=re.escape(message)):
        heads.Block(**{"head": heads.Binary, "tasks": ["a", "b"], **settings})


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([heads.Block], "hold heads such as @heads.Binary()"),
        ([heads.Block(head=heads.Binary, tasks=["news"]), heads.Regression(name="news")], "news"),
        ([heads.Block(head=lambda name, label: name, tasks=["news"])], "hold heads such as"),
    ],
)
def test_a_model_refuses_blocks_of_no_heads_and_tasks_of_one_name(entries, message):
    with pytest.raises(checks.UserError, match=re.escape(message)):
        _make(entries)
