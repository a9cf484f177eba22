"""Tables in shards train as whole ones do, and are one tensor everywhere else."""

import dataclasses
import functools
import logging

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat, features, networks, transfer
from mtl.balancing import methods, surgery
from mtl.model import graph_options
from mtl.optimization import clipping, optimizers, regularization, transforms, update
from mtl.step import gradients as gradients_lib
from mtl.variables import averaging, freezing, masks, sharding
from tests import tiny

tf1 = tf.compat.v1
WORDS = 11
TABLE = "features/identity_word/embedding"
CUT = sharding.Sharding(servers=3, min_bytes=8)
ROWS = {
    "x": np.random.default_rng(1).normal(size=[16, 3]).astype(np.float32),
    "word": np.arange(16) * 7 % WORDS,
}
LABELS = {name: tiny.SPLITS["train"][name][:16] for name in tiny.LABELS}


def _model(**settings):
    """Sees every row of its table, some twice."""
    columns = [features.Numeric(names=["x"], normalization="none")]
    columns.append(features.Identity(names=["word"], size=WORDS - 1, dimension=3))
    trunk = networks.SharedBottom(trunk=networks.MLP(layers=[4]), tower=networks.MLP(layers=[]))
    part = update.Update(
        optimizer=optimizers.AdamW(learning_rate=0.05, weight_decay=0.1, epsilon=1e-3),
        clipping=clipping.AverageNorm(max_norm=0.002),
        transforms=[clipping.Norm(max_norm=0.01), transforms.Centralization()],
        regularization=regularization.Regularization(l2={"^features/.*embedding$": 0.1}),
        average=averaging.ExponentialAverage(decay=0.9),
    )
    model = tiny.make(columns=columns, network=trunk).model
    return dataclasses.replace(model, **{"update": part, **settings})


class Trained:
    """A graph that has trained so many steps, from a checkpoint if there is one."""

    def __init__(self, model, cut, path, steps=3, start=None, warm_start=None):
        statistics = features.Statistics(directory="", entries={})
        model_fn = functools.partial(
            model.model_fn, options=graph_options.GraphOptions(statistics=statistics)
        )
        if warm_start:
            model_fn = warm_start.warm_model_fn(model_fn, {}, str(path.parent))
        with tf.Graph().as_default(), tf1.Session() as session, cut.cut_tables():
            tf1.set_random_seed(3)
            tf1.train.create_global_step()
            batch = [{k: tf.constant(v) for k, v in part.items()} for part in (ROWS, LABELS)]
            spec = model_fn(*batch, compat.estimator.ModeKeys.TRAIN)
            self.names = [variable.op.name for variable in tf1.global_variables()]
            saver = tf1.train.Saver()
            session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
            if start:
                saver.restore(session, start)
            for _ in range(steps):
                session.run(spec.train_op)
            self.path = saver.save(session, str(path))
        self.values = transfer.read_checkpoint(self.path)


def _assert_same(trained, other):
    assert trained.values.keys() == other.values.keys()
    for name, value in trained.values.items():
        np.testing.assert_allclose(other.values[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


WHOLE = sharding.Sharding(servers=0, min_bytes=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"surgery": surgery.Combine(method=methods.PCGrad())}, list(range(WORDS))),
        ({"freezing": freezing.Freezing(frozen=["^features/.*embedding$"])}, []),
        (
            {
                "freezing": freezing.Freezing(
                    until={"_word/embedding$": 2},
                    entries={"/embedding$": masks.Rows(rows=[0, 5, 8])},
                )
            },
            [0, 5, 8],
        ),
        (
            {
                "update": update.Update(
                    optimizer=optimizers.RowWiseAdagrad(learning_rate=0.05),
                    regularization=regularization.Regularization(l2={"^features/": 0.1}),
                    average=averaging.ExponentialAverage(decay=0.9),
                )
            },
            list(range(WORDS)),
        ),
    ],
    ids=["PCGrad", "frozen", "until a step, and by row", "state of a number a row"],
)
def test_shards_train_as_the_whole_table_does(settings, rows, tmp_path, caplog):
    """Averaged, clipped by the table's norm, decayed; on from a checkpoint, and back to one."""
    caplog.set_level(logging.INFO)
    model = _model(**settings)
    first = Trained(model, WHOLE, tmp_path / "first", steps=1)
    cut = Trained(model, CUT, tmp_path / "cut", start=first.path)
    said = [
        record.getMessage() for record in caplog.records if record.name == "mtl.variables.freezing"
    ]
    assert said == said[:1] * len(said)  # Weights are counted alike.
    assert [f"{TABLE}/part_{n}" in cut.names for n in range(4)] == [True, True, True, False]
    whole = Trained(model, WHOLE, tmp_path / "whole", start=first.path)
    _assert_same(whole, cut)
    moved = (cut.values[TABLE] != first.values[TABLE]).any(axis=1)
    assert np.flatnonzero(moved).tolist() == rows
    back = Trained(model, WHOLE, tmp_path / "back", steps=0, start=cut.path)
    for name, value in cut.values.items():
        np.testing.assert_array_equal(back.values[name], value)


@pytest.mark.medium
@pytest.mark.parametrize(("there", "here"), [(WHOLE, CUT), (CUT, WHOLE)], ids=["cut", "joined"])
def test_a_table_starts_warm_whole_or_in_shards(there, here, tmp_path):
    source = Trained(_model(), there, tmp_path / "source")
    warm = transfer.WarmStart(source=source.path, slots=True)
    warmed = Trained(_model(), here, tmp_path / "warmed", steps=0, warm_start=warm)
    for name in (TABLE, f"{TABLE}/Adam"):
        np.testing.assert_array_equal(warmed.values[name], source.values[name])


def _noise(servers, rows, kind):
    """Return the noise on the gradient of a table [6, 8] as an array; the batch has these rows."""
    cut = sharding.Sharding(servers=servers, min_bytes=8)
    with tf.Graph().as_default(), cut.cut_tables(), tf1.Session() as session:
        tf1.set_random_seed(1)
        tf1.train.create_global_step()
        table = sharding.create_table("table", [6, 8], tf1.zeros_initializer())
        parts = [table] if isinstance(table, tf.Variable) else list(table)
        if kind == "dense":
            gradients = [tf.zeros(part.shape) for part in parts]
        else:
            loss = tf.reduce_sum(0 * tf.nn.embedding_lookup(table, tf.constant(rows, tf.int64)))
            gradients = list(map(gradients_lib.merge_rows, tf.gradients(loss, parts)))
            if kind == "mixed":
                gradients[0] = tf.convert_to_tensor(gradients[0])
        noise = transforms.Noise(scale=1.0)(gradients, parts, tf.constant(0.0))
        session.run(tf1.global_variables_initializer())
        return np.concatenate(session.run([tf.convert_to_tensor(value) for value in noise]))


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("rows", [[5, 0, 3, 0], [2], [1, 0], []], ids=str)
def test_noise_is_that_of_the_whole_table(rows, kind):
    if kind == "sparse":
        expected = _noise(0, rows, kind)
        assert np.flatnonzero(expected.any(axis=1)).tolist() == sorted(set(rows))
        np.testing.assert_array_equal(_noise(0, rows[::-1], kind), expected)
    else:
        expected = _noise(0, rows, kind)
        assert np.unique(expected).size == expected.size
        mixed = _noise(3, rows, "mixed")
        assert set(rows) | {0, 1} == set(np.flatnonzero(mixed.any(axis=1)))
        np.testing.assert_array_equal(mixed, np.where(mixed, expected, 0))
    for servers in (1, 2, 3):
        np.testing.assert_array_equal(_noise(servers, rows, kind), expected)


@pytest.mark.parametrize(
    ("shape", "count"), [([100, 4], 4), ([100, 3], 3), ([99, 1], 1), ([2, 800], 2), ([5, 1], 1)]
)
def test_shards_have_a_least_size(shape, count):
    assert sharding.Sharding(servers=4, min_bytes=400).count_shards(shape, tf.float32) == count


def test_only_tables_are_cut():
    """A variable of the user that is called like a shard keeps its name."""
    held = freezing.Freezing(frozen=["^part_0$"])

    def step(features_, labels):
        del features_, labels
        own = tf1.get_variable("part_0", [4])
        assert own not in tf1.trainable_variables()
        return tf.no_op(), {}

    with tf.Graph().as_default(), CUT.cut_tables():
        held.wrap_step(step)(None, None)


def test_a_shard_gets_its_rows_of_the_mask():
    held = freezing.Freezing(entries={"^table$": masks.Rows(rows=[0, 3, 5])})
    with tf.Graph().as_default(), CUT.cut_tables(), tf1.Session() as session:
        entries = []

        def step(features_, labels):
            del features_, labels
            table = sharding.create_table("table", [6, 2], tf1.zeros_initializer())
            assert len(list(table)) == 3
            entries.extend(map(freezing.moving_entries, table))
            return tf.no_op(), {}

        held.wrap_step(step)(None, None)
        session.run(tf1.global_variables_initializer())
        found = np.concatenate(session.run(entries))
    assert found.tolist() == [[row in (0, 3, 5)] * 2 for row in range(6)]
