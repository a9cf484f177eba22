"""A batch in slices, and on several replicas, gives the step of the whole batch."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import variable_scope

from mtl import checks, compat, features, heads, layers, model, networks, types
from mtl.balancing import example_clipping, methods, monitored, short_gradients, surgery
from mtl.compat import keras
from mtl.model import graph_options
from mtl.networks import gates
from mtl.optimization import clipping, optimizers, update
from mtl.step import draws, penalties, whole_batch
from tests.conformance import balancers

tf1 = tf.compat.v1

ROWS = 24
RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=[ROWS, 3]).astype(np.float32)
FEATURES = {"x": X, "word": RANDOM.integers(0, 6, size=[ROWS])}
EVERY_ROW = slice(None)
WEIGHTS = RANDOM.integers(1, 4, size=[ROWS]).astype(np.float32)
LABELS = {
    # Absent from the last quarter, and in the others more often in some than in others.
    "clicks": np.where((np.arange(ROWS) % 5 == 0) | (np.arange(ROWS) > 17), np.nan, X[:, 0]),
    "age": np.abs(X).sum(1) + 1,
    "fraud": X[:, 1] - X[:, 2],
    "row_weight": WEIGHTS,
}
LABELS = {name: np.asarray(values, np.float32) for name, values in LABELS.items()}


class Network:
    """Layers that all tasks share, with the scope names of the balancers' table."""

    def __init__(self, batch_norm=False, widths=()):
        self.batch_norm, self.widths = batch_norm, widths

    def __call__(self, inputs, tasks, training):
        if self.batch_norm:
            inputs = inputs | {
                "numeric_x": layers.batch_norm(inputs["numeric_x"], "norm", training)
            }
        hidden = tf.concat(list(inputs.values()), 1)
        for index, width in enumerate(self.widths):
            hidden = layers.dense(hidden, width, f"before_{index}", tf.tanh)
        hidden = layers.dense(hidden, 4, "hidden", tf.tanh)
        return types.Towers(dict.fromkeys(tasks, hidden), [hidden])


def _model(row, network, labels):
    return model.MultiTaskModel(
        columns=[
            features.Numeric(names=["x"], normalization="none"),
            features.Identity(names=["word"], size=6, dimension=2),
        ],
        network=network,
        heads=[
            heads.Regression(name="clicks"),
            heads.Regression(name="age", weight="row_weight" if "row_weight" in labels else None),
            heads.Regression(name="fraud"),
        ],
        update=update.Update(
            optimizer=optimizers.Momentum(learning_rate=0.01),
            clipping=clipping.GlobalNorm(max_norm=1.0) if labels is LABELS else None,
        ),
        weighting=row.weighting,
        surgery=row.surgery,
    )


def _train_op(results, row, slices, labels, rows, network=None):
    """Return the op of a step on these rows; append the result of the step to `results`."""

    def hooks(step_result):
        results.append(step_result)
        return {}

    spec = _model(row, network or Network(), labels).model_fn(
        {name: tf.constant(values[rows]) for name, values in FEATURES.items()},
        {name: tf.constant(values[rows]) for name, values in labels.items()},
        compat.estimator.ModeKeys.TRAIN,
        options=graph_options.GraphOptions(
            statistics=features.Statistics(directory="", entries={}),
            slices=slices,
            training_hooks=hooks,
        ),
    )
    return spec.train_op


def _two_replicas(row, slices=1, steps=3, labels=LABELS, network=None):
    """Train on two replicas, each with half of the rows; return variables, and monitors of each."""
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with tf.Graph().as_default() as graph, strategy.scope():
        graph.seed = 1
        tf1.train.get_or_create_global_step()
        results = []

        @tf.autograph.experimental.do_not_convert
        def model_fn():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            first = int(tf.get_static_value(replica)) * ROWS // 2
            half = slice(first, first + ROWS // 2)
            return _train_op(results, row, slices, labels, half, network)

        train_op = strategy.group(strategy.extended.call_for_each_replica(model_fn))
        config = tf1.ConfigProto(device_count={"CPU": 2})
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # As in `_trained`.
        with tf1.Session(config=config) as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(steps):
                values = session.run([train_op, *[result.values for result in results]])[1:]
            pairs = zip(results, values, strict=True)
            values = [dict(zip(result.names, own, strict=True)) for result, own in pairs]
            variables = {v.name.split(":")[0]: v for v in tf1.global_variables()}
            variables = {n: strategy.extended.read_var(v) for n, v in variables.items()}
            return session.run(variables), values


def _trained(row, slices, steps=3, network=None, labels=LABELS, rows=EVERY_ROW):
    """Return {name: value} of every variable after some steps, and the monitors."""
    with tf.Graph().as_default() as graph:
        graph.seed = 1
        tf1.train.create_global_step()
        results = []
        train_op = _train_op(results, row, slices, labels, rows, network)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            monitors = {}
            for _ in range(steps):
                _, values = session.run([train_op, results[0].values])
                monitors = dict(zip(results[0].names, values.tolist(), strict=True))
            variables = {v.op.name: v for v in tf1.global_variables()}
            return session.run(variables), monitors


# Balancers that pass over the slices in different ways; replicas test all balancers.
PASSES = (
    "Equal",
    "Fixed",
    "LogLoss",
    "UncertaintyWeighting",
    "PCGrad on the kernel",
    "PCGrad every 5 steps",
    "UPGrad on the representation every 3 steps",
    "DBMTL",
    "GradDrop as a layer",
    "ExampleClipping",
)
CLIPPED = example_clipping.ExampleClipping(max_norm=1.0)
BALANCERS = (*balancers.ROWS, balancers.Row(name="ExampleClipping", surgery=CLIPPED))


@pytest.mark.medium
@pytest.mark.parametrize(("name", "passes"), [("Equal", 4), ("LogLoss", 7), ("monitored", 4)])
def test_one_pass_over_the_slices_where_nothing_reads_losses(name, passes):
    calls, rows = [], {row.name: row for row in balancers.ROWS}
    rows["monitored"] = balancers.Row(
        name="monitored", surgery=monitored.Monitored(every_steps=100)
    )

    def count(values):
        calls.append(1)
        return values

    def network(inputs, tasks, training):
        x = tf.numpy_function(count, [inputs["numeric_x"]], tf.float32)
        return Network()(inputs | {"numeric_x": tf.ensure_shape(x, [None, 3])}, tasks, training)

    _, shown = _trained(rows[name], 4, steps=1, network=network)
    assert len(calls) == passes
    _, expected = _trained(rows[name], 1, steps=1)
    assert shown["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def _decides_rarely(row):
    """Return True if parameters are compared only in some steps, which replicas cannot do."""
    exact = getattr(row.surgery, "on", "") == "parameters"
    return exact and getattr(row.surgery, "every_steps", 1) > 1


# These methods read only losses and inner products of the whole batch, which all replicas have: one
# such method stands for all. Methods with state, draws or separate gradients are all tested.
_STATELESS = {
    "AlignedMTL",
    "CAGrad",
    "Clipped",
    "ConFIG",
    "DBMTL without averages",
    "DualProj",
    "FairGrad",
    "Fixed",
    "GeometricLoss",
    "IMTLG",
    "Krum",
    "MGDA",
    "NashMTL",
    "RandomLossWeighting of one task",
    "Scheduled",
    "SmoothTchebycheff",
    "UPGrad",
}
# These have the same sums, state and draws as another row.
_ALIKE = {"FAMO without Adam", "PCGrad", "clipped GradVac"}
_ALONE = {row.name for row in BALANCERS if _decides_rarely(row)} | _STATELESS | _ALIKE
_REPLICATED = [row for row in BALANCERS if row.name not in _ALONE]


# Slices of replicas are slices.
@pytest.mark.medium
@pytest.mark.parametrize(
    "row",
    [row for row in BALANCERS if row.name in PASSES and row not in _REPLICATED],
    ids=lambda row: row.name,
)
def test_slices_take_the_step_of_the_whole_batch(row):
    whole, in_slices = _trained(row, 1), _trained(row, 4)
    for expected, actual in zip(whole, in_slices, strict=True):
        assert actual.keys() == expected.keys()
        for name in expected:
            np.testing.assert_allclose(
                actual[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name
            )


@pytest.mark.slow
@pytest.mark.parametrize("row", _REPLICATED, ids=lambda row: row.name)
@pytest.mark.always
@pytest.mark.drawn(8)
def test_two_replicas_take_the_step_of_the_whole_batch(row):
    slices = 4 if row.name in PASSES else 1
    (expected, monitors), (actual, by_replica) = _trained(row, 1), _two_replicas(row, slices)
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    for watched_there in by_replica:
        assert watched_there.keys() == monitors.keys()
        for name, value in monitors.items():
            np.testing.assert_allclose(watched_there[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("every_steps", "on"), [(3, "representation"), (1, "representation"), (1, "parameters")]
)
def test_replicas_show_the_conflicts_of_the_whole_batch(every_steps, on):
    part = monitored.Monitored(every_steps=every_steps, on=on)
    row = balancers.Row(name="monitored", surgery=part)
    (_, expected), (_, by_replica) = _trained(row, 1), _two_replicas(row)
    assert expected["surgery/norm/age"] > 0
    for monitors in by_replica:
        for name, value in expected.items():
            np.testing.assert_allclose(monitors[name], value, rtol=1e-4, err_msg=name)


@pytest.mark.medium
def test_a_whole_batch_that_builds_no_gradients_takes_the_step_of_its_parts(monkeypatch):
    """In layers that are wider than the batch; parts add up the gradients of every task."""
    shorten, are_short = short_gradients.shorten_gradients, []

    def watch(*given):
        found = shorten(*given)
        are_short.append(found is not None)
        return found

    monkeypatch.setattr(short_gradients, "shorten_gradients", watch)
    row = balancers.Row(name="wide", surgery=surgery.Combine(method=methods.UPGrad()))
    network = Network(widths=(200, 100))
    expected, _ = _trained(row, 1, network=network)
    assert sum(are_short) == 1
    for train in (
        lambda: _trained(row, 2, network=network),
        lambda: _two_replicas(row, network=network),
    ):
        are_short.clear()
        actual, _ = train()
        assert not any(are_short)
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.medium
@pytest.mark.parametrize(
    "row", [row for row in balancers.ROWS if _decides_rarely(row)], ids=lambda row: row.name
)
def test_rare_decisions_on_parameters_are_refused(row):
    with pytest.raises(checks.UserError, match="every_steps must be 1 if replicas decide"):
        _two_replicas(row)


@pytest.mark.medium
def test_each_replica_can_decide_from_its_own_part():
    """The first step is the mean of the steps that halves of the batch take alone."""
    method, labels = methods.UPGrad(), LABELS | {"clicks": X[:, 0]}
    row = balancers.Row(name="alone", surgery=surgery.Combine(method=method, per_replica=True))
    del labels["row_weight"]
    half = ROWS // 2
    start, _ = _trained(row, 1, steps=0, labels=labels)
    alone = [
        _trained(row, 1, 1, labels=labels, rows=rows)[0]
        for rows in (slice(half), slice(half, ROWS))
    ]
    actual, _ = _two_replicas(row, steps=1, labels=labels)
    together, _ = _trained(row, 1, 1, labels=labels)
    for name in ("network/hidden/kernel", "features/identity_word/embedding"):
        moves = [variables[name] - start[name] for variables in alone]
        move = actual[name] - start[name]
        np.testing.assert_allclose(move, (moves[0] + moves[1]) / 2, rtol=1e-3, atol=1e-7)
        assert np.abs(move - (together[name] - start[name])).max() > 1e-5


def test_each_sample_can_have_its_own_weights():
    passed = whole_batch.ForwardPass(
        {"a": 3.0}, samples=lambda count: [{"a": 1.0 + first} for first in range(count)]
    )
    alike = passed.scale_losses({"a": 10.0})
    assert alike.losses == {"a": 30.0} and alike.samples(2) == [{"a": 10.0}, {"a": 20.0}]
    apart = passed.scale_losses({"a": 10.0}, lambda count: [{"a": 5.0}, {"a": 7.0}])
    assert apart.losses == {"a": 30.0} and apart.samples(2) == [{"a": 5.0}, {"a": 14.0}]


def test_slices_draw_apart():
    """A dropout mask is not repeated from slice to slice, nor from replica to replica."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        ones = tf.ones([64, 8])
        masks = []
        for part in range(3):
            with draws.draw_for_slice(part):
                masks.append(layers.dropout(ones, 0.5, "dropout", training=True))
        masks.append(layers.dropout(ones, 0.5, "dropout", training=True))
        session.run(tf1.global_variables_initializer())
        first, second, third, plain = session.run(masks)
    np.testing.assert_array_equal(first, plain)
    for one, other in ((first, second), (second, third), (first, third)):
        assert 0.4 < np.mean(one == other) < 0.6


@pytest.mark.medium
def test_clipped_examples_move_averages_once_by_all_of_them(caplog):
    row, network = BALANCERS[-1], Network(batch_norm=True)
    actual, _ = _trained(row, 1, 1, network=network)
    mean = actual["network/norm/moving_mean"]
    np.testing.assert_allclose(mean, 0.01 * X.mean(0), rtol=1e-5)
    assert "a pass for each example, for normalisation by the batch" in caplog.text


@pytest.mark.medium
def test_batch_norm_sees_each_slice_alone():
    """Moving averages move once for each slice, by the moments of that slice."""
    network = Network(batch_norm=True)
    actual, _ = _trained(balancers.Row(name="Equal"), 2, 1, network=network)
    expected = np.zeros(3)
    for rows in (slice(ROWS // 2), slice(ROWS // 2, ROWS)):
        expected += 0.01 * (X[rows].mean(0) - expected)
    np.testing.assert_allclose(actual["network/norm/moving_mean"], expected, rtol=1e-5)


@pytest.mark.parametrize("runs_updates", [True, False])
def test_what_slices_watch_adds_up(runs_updates):
    """The sums come with the gradients, or from a separate pass if none has run UPDATE_OPS."""

    def forward(features, labels):
        own = {"x": (tf.reduce_sum(tf.square(features["x"]), 0), tf.constant(2.0))}
        return whole_batch.ForwardPass({"age": tf.reduce_mean(labels["age"])}, watched=own)

    def weigh(labels):
        return {"age": tf.cast(tf.shape(labels["age"])[0], tf.float32)}

    with tf.Graph().as_default(), tf1.Session() as session:
        given = {"x": tf.constant(X)}, {"age": tf.constant(LABELS["age"])}
        batch = whole_batch.build_batch(forward, weigh, *given, slices=4)
        loss = batch.scale_losses({"age": tf.constant(1.0)}).sum(
            lambda part: part.losses["age"], update=runs_updates
        )
        (squares, count), total = session.run((batch.sum_watched()["x"], loss))
    np.testing.assert_allclose(squares, np.square(X).sum(0), rtol=1e-6)
    np.testing.assert_allclose((count, total), (8, LABELS["age"].mean()), rtol=1e-6)


class Penalised(Network):
    """Adds a term of weights, a mean over rows, and a function of means over rows."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def __call__(self, inputs, tasks, training):
        hidden = tf.concat(list(inputs.values()), 1)
        hidden = layers.dense(hidden, 4, "hidden", tf.tanh)
        _add_penalties(hidden, self.factor)
        return types.Towers(dict.fromkeys(tasks, hidden), [hidden])


def _add_penalties(hidden, factor):
    def compute(means):
        return 3 * factor * tf.reduce_sum((means["square"] - means["mean"] ** 2) ** 2)

    if not tf1.get_variable_scope().reuse:  # As a regularizer of `get_variable` does.
        kernel = next(v for v in tf1.trainable_variables() if "hidden/kernel" in v.name)
        tf1.losses.add_loss(factor * tf.nn.l2_loss(kernel), tf1.GraphKeys.REGULARIZATION_LOSSES)
    of_rows = 2 * factor * tf.reduce_mean(tf.reduce_sum(hidden**4, 1))
    tf1.losses.add_loss(of_rows, tf1.GraphKeys.REGULARIZATION_LOSSES)
    means = {"mean": tf.reduce_mean(hidden, 0), "square": tf.reduce_mean(hidden**2, 0)}
    penalties.add_of_means(compute, means)


def _penalty(kernel, bias, table):
    """Return the penalty that `Penalised` adds for all rows, in float64."""
    hidden = np.tanh(np.concatenate([table[FEATURES["word"]], FEATURES["x"]], 1) @ kernel + bias)
    return (kernel**2).sum() / 2 + 2 * (hidden**4).sum(1).mean() + 3 * (hidden.var(0) ** 2).sum()


def _differentiate(function, values):
    """The gradients by each of the arrays, from central differences in float64."""
    found = []
    for index, value in enumerate(values):
        slopes = np.zeros(value.shape)
        for place in np.ndindex(*value.shape):
            near = [[v.copy() for v in values] for _ in range(2)]
            near[0][index][place] += 1e-5
            near[1][index][place] -= 1e-5
            slopes[place] = (function(*near[0]) - function(*near[1])) / 2e-5
        found.append(slopes)
    return found


NAMES = ("network/hidden/kernel", "network/hidden/bias", "features/identity_word/embedding")
WAYS = {
    "whole": lambda **given: _trained(slices=1, **given),
    "slices": lambda **given: _trained(slices=4, **given),
    "replicas": lambda **given: _two_replicas(slices=1, **given),
    "slices of replicas": lambda **given: _two_replicas(slices=3, **given),
}

REPLICATED = ("replicas", "slices of replicas")


@pytest.mark.medium
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["Equal", "LogLoss"])
def test_penalties_are_those_of_all_rows(way, name):
    given = {"row": {row.name: row for row in balancers.ROWS}[name], "labels": dict(LABELS)}
    start, _ = _trained(slices=1, steps=0, network=Penalised(), **given)
    plain, _ = _trained(slices=1, steps=1, network=Penalised(factor=0.0), **given)
    _, expected = _trained(slices=1, steps=1, network=Penalised(), **given)
    actual, shown = WAYS[way](steps=1, network=Penalised(), **given)
    values = [start[name].astype(np.float64) for name in NAMES]
    for name, slope in zip(NAMES, _differentiate(_penalty, values), strict=True):
        assert np.abs(slope).max() > 0.01
        moved = (plain[name].astype(np.float64) - actual[name]) / 0.01
        np.testing.assert_allclose(moved, slope, rtol=1e-3, atol=1e-4, err_msg=name)
    for found in shown if way in REPLICATED else [shown]:
        assert found["regularization"] == pytest.approx(_penalty(*values), rel=1e-5)
        assert found["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-5)


def _build_keras():
    class Own(tf.keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(tf.reduce_mean(tf.reduce_sum(inputs**4, 1)))
            return inputs

    of_weights, of_rows = (tf.keras.regularizers.L2(factor) for factor in (0.5, 2.0))
    dense = tf.keras.layers.Dense(
        4,
        "tanh",
        kernel_initializer=tf.keras.initializers.GlorotUniform(seed=3),
        kernel_regularizer=of_weights,
        activity_regularizer=of_rows,
    )
    concatenate = tf.keras.layers.Concatenate()

    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = [dense, Own()]

        def call(self, inputs):
            hidden = concatenate(list(inputs.values()))
            for part in self.parts:
                hidden = part(hidden)
            return hidden

    return Model()


class Regularised(Network):
    """Creates a variable with a regulariser."""

    def __call__(self, inputs, tasks, training):
        towers = super().__call__(inputs, tasks, training)
        settings = {"initializer": tf1.glorot_uniform_initializer(seed=3)}
        own = tf1.get_variable("own", [4, 4], regularizer=tf.nn.l2_loss, **settings)
        (hidden,) = towers.shared
        return types.Towers(dict.fromkeys(tasks, tf.tanh(hidden @ own)), [hidden])


def _build_networks():
    trunk = networks.MLP(layers=[4], activation="tanh")
    gate = gates.DSelectK(k=1, entropy=1.0)
    return {
        "DSelectK": networks.MMoE(num_experts=3, expert=trunk, gate=gate),
        "Sluice": networks.Sluice(stages=[trunk], orthogonality=1.0),
        "KerasModel": networks.SharedBottom(trunk=networks.KerasModel(build=_build_keras)),
        "get_variable": Regularised(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DSelectK", "Sluice", "KerasModel", "get_variable"])
def test_penalties_of_networks_are_those_of_all_rows(name):
    if name == "KerasModel" and not keras.in_use().startswith("2."):
        pytest.skip("needs tf-keras")
    given = {"row": balancers.Row(name="Equal"), "network": _build_networks()[name]}
    expected, shown = _trained(slices=1, **given)
    assert shown["regularization"] > 0.01
    for way in ("slices", "replicas"):
        actual, found = WAYS[way](**given)
        found = found if way == "slices" else found[0]
        assert found["regularization"] == pytest.approx(shown["regularization"], rel=1e-4)
        for variable, value in expected.items():
            np.testing.assert_allclose(
                actual[variable], value, rtol=1e-5, atol=1e-6, err_msg=f"{way}: {variable}"
            )


def test_penalties_of_weights_that_are_computed_late_stay():
    """The regulariser of a `get_variable` in a loop adds an object that is not yet a tensor."""
    with tf.Graph().as_default():
        rows = tf.ones([4])
        late, of_rows = variable_scope._LazyEvalTensor(lambda: tf.ones([])), tf.reduce_mean(rows)
        for term in (late, of_rows):
            tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, term)
        penalties.change_terms(0, tf.identity)
        (penalty,) = penalties.take(rows=rows)
        assert penalty.means.op.inputs[0] is of_rows
        (left,) = tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
        assert left is not penalty.means and tf.get_static_value(left) == 1
