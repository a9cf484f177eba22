"""Frozen means bit-equal: with every optimizer, every way to move a weight, in the graph's loop."""

import dataclasses
import logging
import re

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, features, heads, layers, model, networks
from mtl.balancing import methods, surgery
from mtl.compat import keras
from mtl.model import graph_options
from mtl.optimization import optimizers, regularization, update
from mtl.variables import freezing
from tests import tiny
from tests.conformance import optimizers as rows
from tests.networks import keras_models
from tests.optimization import training

pytestmark = pytest.mark.medium

tf1 = tf.compat.v1

STATISTICS = features.Statistics(directory="", entries={})
BATCH = 8
TRUNK = "network/trunk/"
TOWER = "network/tower_size/"
POWERS = ("beta1_power", "beta2_power")
PCGRAD = surgery.Combine(method=methods.PCGrad())


def _model(optimizer, frozen=(), until=None, batch_norm="inference", part=PCGRAD, **settings):
    """Two tasks with batch norm, a looked-up table, weight decay and a penalty on all weights."""
    penalty = regularization.Regularization(l1={"^network/": 0.1}, l2={"": 0.1})
    return model.MultiTaskModel(
        columns=[
            features.Numeric(names=["x"], normalization="none"),
            features.Hashed(names=["word"], num_buckets=4, dimension=3),
        ],
        network=networks.SharedBottom(
            trunk=networks.MLP(layers=[6], batch_norm=True, dropout=0.1),
            tower=networks.MLP(layers=[4], batch_norm=True),
        ),
        heads=[heads.Binary(name="sign"), heads.Regression(name="size")],
        update=update.Update(optimizer=optimizer, regularization=penalty, **settings),
        surgery=part,
        freezing=freezing.Freezing(frozen=frozen, until=until or {}, batch_norm=batch_norm),
    )


def _train(made, calls, steps_per_call):
    """The variables before the first and after each session call; steps_per_call 0: no loop."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(5)
        tf1.train.get_or_create_global_step()
        data = tiny.rows(64, seed=3)
        data.pop("kind")
        dataset = tf.data.Dataset.from_tensor_slices(data).repeat().batch(BATCH)
        dataset = dataset.map(lambda row: ({"x": row.pop("x"), "word": row.pop("word")}, row))
        iterator = tf1.data.make_initializable_iterator(dataset)
        loop = {"steps_per_call": steps_per_call, "last_step": 10**6, "due_every": ()}
        inputs = (iterator, None) if steps_per_call else iterator.get_next()
        spec = made.model_fn(
            *inputs,
            compat.estimator.ModeKeys.TRAIN,
            options=graph_options.GraphOptions(
                statistics=STATISTICS, loop=loop if steps_per_call else None
            ),
        )
        names = {variable.op.name: variable for variable in tf1.global_variables()}
        session.run([tf1.global_variables_initializer(), iterator.initializer])
        found = [session.run(names)]
        for _ in range(calls):
            session.run(spec.train_op)
            found.append(session.run(names))
        return found


def _moved(before, after):
    return {name for name in before if (before[name] != after[name]).any()}


def _free(names, scopes, row):
    """Return the variables below `scopes` that must move; FTRL's weights may stay 0."""
    found = {name for name in names if name.startswith(scopes)}
    if row.name != "FTRL":
        return found
    return {name for name in found if name.endswith(("Ftrl", "moving_mean", "moving_variance"))}


@pytest.mark.parametrize("row", rows.ROWS, ids=lambda row: row.name)
@pytest.mark.drawn(4)
def test_what_is_frozen_stays_to_the_bit(row):
    made = _model(row.optimizer, frozen=["^features/", "^network/trunk/"], until={TOWER: 7})
    before, middle, after = _train(made, calls=2, steps_per_call=7)
    assert after["global_step"] == 14
    state = {name for name in before if name.rpartition("/")[2] in row.slots}
    assert not {name for name in state if name.startswith(("features/", TRUNK))}
    assert len([name for name in state if name.startswith(TOWER)]) == 3 * len(row.slots)
    second = {"beta1_power_1", "beta2_power_1"}
    moved = _moved(before, middle)
    assert not {name for name in moved if name.startswith(("features/", TRUNK, TOWER))}
    assert not moved & second
    assert _free(before, ("head/", "network/tower_sign/"), row) <= moved
    moved = _moved(middle, after)
    assert _free(before, TOWER, row) <= moved
    assert not {name for name in moved if name.startswith(("features/", TRUNK))}
    if "Adam" in row.slots:
        assert second <= moved


def _held(made, *parts):
    """The model whose parts of these kinds have `trainable = False`."""
    if isinstance(made, parts):
        return dataclasses.replace(made, trainable=False)
    for field in dataclasses.fields(made) if dataclasses.is_dataclass(made) else ():
        value = getattr(made, field.name)
        if isinstance(value, list):
            new = [_held(part, *parts) for part in value]
        else:
            new = _held(value, *parts)
        made = dataclasses.replace(made, **{field.name: new})
    return made


@pytest.mark.parametrize(
    ("parts", "scopes"),
    [
        ([features.Hashed, networks.MLP], ("features/", "network/")),
        ([heads.Regression], ("head/size/",)),
    ],
    ids=["column and network", "head"],
)
def test_a_part_that_is_not_trainable_stays_to_the_bit(parts, scopes):
    """Its averages too; with weight decay, a penalty on everything, momentum and surgery."""
    made = _held(_model(optimizers.AdamW(weight_decay=0.1)), *parts)
    before, after = _train(made, calls=1, steps_per_call=5)
    moved = _moved(before, after)
    assert not {name for name in moved if name.startswith(scopes)}
    assert not {name for name in before if name.startswith(scopes) and "Adam" in name}
    others = {name for name in before if "/" in name and not name.startswith(scopes)}
    assert others and others <= moved


PARTS = {
    "MLP": (networks.MLP(layers=[3], batch_norm=True), [4]),
    "Convnet": (networks.Convnet(filters=[3], layers=[2]), [6, 6, 1]),
    "ResNet": (networks.ResNet(depth=8, filters=[2, 2, 2]), [8, 8, 1]),
    "KerasModel": (networks.KerasModel(build=keras_models.functional), [8, 8, 3]),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("trainable", [True, False])
def test_every_trunk_can_be_held(name, trainable):
    part, shape = PARTS[name]
    if name == "KerasModel" and not keras.in_use().startswith("2."):
        pytest.skip("needs tf-keras")
    part = dataclasses.replace(part, trainable=trainable)

    def step_fn(inputs, _):
        part({"x": inputs}, training=True)
        for key in (tf1.GraphKeys.TRAINABLE_VARIABLES, tf1.GraphKeys.UPDATE_OPS):
            assert bool(tf1.get_collection(key)) == trainable
        return tf.no_op(), {}

    with tf.Graph().as_default():
        _, monitors = freezing.Freezing().wrap_step(step_fn)(tf.ones([2, *shape]), None)
        assert ("frozen_weights" in monitors) == (not trainable)


@pytest.mark.parametrize(
    "make",
    [
        lambda **settings: networks.MLP(**settings),
        lambda **settings: features.Crossed(crosses=[["a", "b"]], **settings),
        lambda **settings: heads.Binary(name="a", **settings),
    ],
)
def test_trainable_is_checked(make):
    with pytest.raises(checks.UserError, match=r"\w+.trainable.* must be True or False, got 0"):
        make(trainable=0)


@pytest.mark.parametrize("part", [surgery.Sum(), PCGRAD], ids=["sum", "pcgrad"])
def test_the_loop_changes_nothing(part):
    def train(calls, steps_per_call):
        made = _model(
            optimizers.AdamW(), [f"^{TRUNK}"], {TOWER: 3}, part=part, rates={"^features/": 0.1}
        )
        return _train(made, calls, steps_per_call)[-1]

    single, looped = train(6, 0), train(1, 6)
    for name, value in single.items():
        np.testing.assert_array_equal(looped[name], value, err_msg=name)


@pytest.mark.parametrize("on", ["parameters", "representation"])
def test_surgery_with_nothing_shared_left(on):
    part = surgery.Combine(method=methods.CAGrad(), on=on)
    made = _model(optimizers.SGD(), ["^features/", f"^{TRUNK}"], part=part)
    before, after = _train(made, calls=1, steps_per_call=3)
    moved = _moved(before, after)
    assert {"network/tower_size/hidden_0/kernel", "head/sign/logits/kernel"} <= moved
    assert not {name for name in moved if name.startswith(("features/", TRUNK))}


def test_no_gradient_is_computed_for_what_is_frozen():
    def backward_products(frozen):
        with tf.Graph().as_default() as graph:
            tf1.train.get_or_create_global_step()
            batch = {"x": tf.ones([BATCH, 3]), "word": tf.constant(["a"] * BATCH)}
            labels = {"sign": tf.ones([BATCH], tf.int64), "size": tf.ones([BATCH])}
            _model(optimizers.SGD(), frozen, part=surgery.Sum()).model_fn(
                batch,
                labels,
                compat.estimator.ModeKeys.TRAIN,
                options=graph_options.GraphOptions(statistics=STATISTICS),
            )
            return [
                op.name
                for op in graph.get_operations()
                if op.type == "MatMul" and re.search(rf"/gradients(_\d+)?/{TRUNK}", op.name)
            ]

    assert backward_products(())
    assert not backward_products(["^features/", f"^{TRUNK}"])


def test_adapting_averages_move_and_nothing_else():
    made = _model(optimizers.SGD(), [f"^{TRUNK}"], batch_norm="adapt")
    before, after = _train(made, calls=1, steps_per_call=4)
    averages = {f"{TRUNK}hidden_0_norm/moving_{name}" for name in ("mean", "variance")}
    assert {name for name in _moved(before, after) if name.startswith(TRUNK)} == averages


def test_averages_alone_are_frozen():
    made = _model(optimizers.SGD(), ["^network/trunk/.*/moving_"])
    before, after = _train(made, calls=1, steps_per_call=4)
    moved = _moved(before, after)
    assert not {name for name in moved if name.startswith(TRUNK) and "moving_" in name}
    assert f"{TRUNK}hidden_0_norm/gamma" in moved


@pytest.mark.parametrize("looped", training.LOOPED)
def test_a_normalisation_counts_as_inference_up_to_its_step(looped):
    inputs = np.random.default_rng(2).normal(3, 2, size=[6, 10, 4]).astype(np.float32)

    def step_fn(step):
        outputs = layers.batch_norm(tf.gather(inputs, step), "norm", True, momentum=0.8)
        variables = tf1.trainable_variables()
        gradients = tf.gradients(tf.reduce_sum(outputs), variables)
        train_op, _ = update.Update(optimizer=optimizers.SGD())(gradients, variables)
        return train_op, {"output": outputs[0, 0]}

    frozen_step = freezing.Freezing(until={"norm": 3}).wrap_step(lambda batch, _: step_fn(batch))
    result = training.train(lambda batch: frozen_step(batch, None), 3, looped)
    np.testing.assert_array_equal(result.variables["norm/moving_mean"], np.zeros(4))
    # mean 0, variance 1, gamma 1, beta 0 of the start
    assert result.monitors["output"] == pytest.approx(inputs[2, 0, 0] / np.sqrt(1 + 1e-3), rel=1e-5)
    assert result.monitors["frozen_weights"] == 8
    result = training.train(lambda batch: frozen_step(batch, None), 6, looped)
    mean = np.zeros(4)
    for batch in inputs[3:]:
        mean = 0.8 * mean + 0.2 * batch.mean(0)
    np.testing.assert_allclose(result.variables["norm/moving_mean"], mean, rtol=1e-5)
    assert result.monitors["frozen_weights"] == 0


def test_what_is_frozen_up_to_a_step_counts_not_for_the_norm():
    def step_fn(step):
        del step
        variables = [training.variable(name, [1.0]) for name in ("early", "late")]
        return update.Update(optimizer=optimizers.SGD())([[3.0], [4.0]], variables)

    part = freezing.Freezing(until={"late": 2}).wrap_step(lambda batch, _: step_fn(batch))
    for steps, norm in ((2, 3.0), (3, 5.0)):
        result = training.train(lambda batch: part(batch, None), steps, looped=True)
        assert result.monitors["gradient_norm"] == norm


def test_the_log_tells_how_much_is_frozen(caplog):
    with caplog.at_level(logging.INFO, "mtl"):
        _train(_model(optimizers.SGD(), [f"^{TRUNK}"], {"^head/": 2, TOWER: 9}), 0, 3)
    # trunk 6 * 6 + 12; each tower 24 + 8; each head 4 + 1; the table 12
    expected = (
        "Frozen: 10 of 14 variables, 90 of 134 weights; 4 of them until step 2; 3 of them until "
        "step 9"
    )
    assert expected in caplog.messages


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frozen": ["^netwrok/"]}, r"Freezing.frozen must match a variable, got '\^netwrok/'. N"),
        ({"until": {"^hed/": 3}}, r"Freezing.until must match a variable, got '\^hed/'. Nearest"),
    ],
)
def test_a_pattern_without_a_match(settings, message):
    with pytest.raises(checks.UserError, match=message):
        _train(_model(optimizers.SGD(), **settings), 0, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frozen": "network"}, "Freezing.frozen must be a list of patterns, got 'network'"),
        ({"until": {"a": 0}}, r"Freezing.until\['a'\] must be at least 1, got 0"),
        ({"until": ["a"]}, "Freezing.until must map patterns to steps"),
        ({"batch_norm": "none"}, "Freezing.batch_norm must be one of inference, adapt"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(checks.UserError, match=message):
        freezing.Freezing(**settings)
