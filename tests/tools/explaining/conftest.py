"""One trained run with fields of all kinds, whose tasks need different ones."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import features, heads, histories, model, networks, spec
from mtl.checkpoints import run_directory
from mtl.data import pipeline
from mtl.optimization import optimizers, update
from mtl.tools.explaining import opened, rows, scores
from tests import tiny

SPEC = spec.Spec(
    features={
        "a": "float32",
        "b": "float32",
        "noise": "float32",
        "number": "int64",
        "word": "string",
        "items": ("int64", (None,)),
        "times": ("float32", (None,)),
        "unread": "float32",
    },
    labels={"first": "int64", "second": "float32", "kind": "int64"},
)


def make_rows(num, seed):
    """`first` needs `a` and `word`, `second` needs `b`, `kind` needs `items`; `noise` is noise."""
    drawing = np.random.default_rng(seed)
    a, b, noise, unread = drawing.normal(size=(4, num)).astype(np.float32)
    word = drawing.choice(np.array([b"red", b"green", b"blue"], object), num)
    items = [list(drawing.integers(0, 5, drawing.integers(0, 5))) for _ in range(num)]
    first = (a + (word == b"red") + 0.5 * drawing.normal(size=num) > 0.3).astype(np.int64)
    kind = np.array([min(own.count(2), 2) for own in items])
    return {
        "a": a,
        "b": b,
        "noise": noise,
        "number": drawing.integers(0, 3, num),
        "word": word,
        "items": items,
        "times": [drawing.random(len(own)).tolist() for own in items],
        "unread": unread,
        "first": first,
        "second": (2 * b + 0.3 * drawing.normal(size=num)).astype(np.float32),
        "kind": np.where(np.arange(num) % 4, kind, -1),
    }


SPLITS = {"train": make_rows(800, 1), "test": make_rows(300, 2), "bare": make_rows(60, 3)}
SPLITS["bare"] |= {"first": np.full(60, -1), "second": np.full(60, np.nan, np.float32)}
SPLITS["bare"]["kind"] = np.full(60, -1)


def make(train_steps=150):
    made = tiny.make()
    trunk = networks.MLP(layers=[16], activation="tanh")
    columns = [
        features.Numeric(names=["a", "b", "noise", "number"]),
        features.Categorical(names=["word"], dimension=3),
        features.History(
            name="clicks",
            events=[
                features.Identity(names=["items"], size=5, dimension=3, prefix="item"),
                features.Numeric(names=["times"], prefix="time"),
            ],
            encoder=histories.Pooling(),
        ),
    ]
    own = [
        heads.Binary(name="first"),
        heads.Regression(name="second"),
        heads.MultiClass(name="kind", classes=["none", "one", "more"]),
    ]
    return dataclasses.replace(
        made,
        data=pipeline.Pipeline(source=tiny.Rows(splits=SPLITS), spec=SPEC, batch_size=64),
        model=model.MultiTaskModel(
            columns=columns,
            network=networks.SharedBottom(trunk=trunk, tower=networks.MLP(layers=[4])),
            heads=own,
            update=update.Update(optimizer=optimizers.LazyAdam(learning_rate=0.02)),
        ),
        run=dataclasses.replace(made.run, train_steps=train_steps),
    )


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The experiment and the folder of a run of it."""
    folder = tmp_path_factory.mktemp("explained") / "run"
    made = make()
    tiny.train(made, folder)
    return made, str(folder)


@pytest.fixture(scope="session")
def held(run):
    """The rows of the split test."""
    return rows.read_rows(run[0], "test", 300).held


def open_model(run, given, add=lambda _: None, **more):
    """The graph of a run for rows, as a context."""
    experiment, folder = run
    path = run_directory.checkpoint_path(folder, "latest")
    return opened.open_model(experiment, folder, path, given, add, **more)


@pytest.fixture
def open_run(run, held):
    """open_run(add): the graph of the run, as a context."""
    return lambda add=lambda _: None, **more: open_model(run, held, add, **more)


def add_scores(made):
    """Metrics of all tasks."""
    return scores.build_scores(made.heads, made.logits, made.labels, list(made.heads))


@pytest.fixture
def by_hand():
    """Yield by_hand(build, sizes, add), which makes an `Opened` of fed columns without a run.

    build({column: tensor}) returns the logits [B, C] of a single task.
    """
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:

        def make_opened(build, sizes, add):
            inputs = {
                name: tf.compat.v1.placeholder(tf.float32, [None, size], name)
                for name, size in sizes.items()
            }
            made = opened.Opened(session, {}, {}, {}, inputs, {"task": build(inputs)}, 16)
            return dataclasses.replace(made, extra=add(made))

        yield make_opened
