"""What every network must do, on each row of `tests.conformance.networks`."""

import dataclasses
import os
import textwrap
from collections.abc import Mapping, Sequence

import gin
import numpy as np
import pytest
import tensorflow as tf

from mtl import networks
from mtl.serving import dead_units, folding, graphs
from mtl.step import emitted, replicas
from tests.conformance.networks import NETWORKS, draw_column
from tests.optimization import training

pytestmark = pytest.mark.medium

tf1 = tf.compat.v1

_CONFIGS = os.path.join(os.path.dirname(__file__), "..", "..", "gin_configs")
_BATCH = 16


# Of the module, so that tests of one row follow each other and share its graphs.
@pytest.fixture(scope="module", params=NETWORKS, ids=lambda row: row.name)
def row(request):
    return request.param


@pytest.fixture(scope="module")
def network(row):
    """The row's network, built by gin as in a run."""
    gin.clear_config()
    if row.gin.endswith(".gin"):
        gin.parse_config_file(os.path.join(_CONFIGS, row.gin))
    else:
        header = "from __gin__ import dynamic_registration\nfrom mtl import networks\n"
        gin.parse_config(header + textwrap.dedent(row.gin))
    yield gin.get_configurable(getattr(networks, row.configurable))()
    gin.clear_config()


def _inputs(row, seed=0):
    return {
        column: draw_column(column, shape, _BATCH, seed) for column, shape in row.inputs.items()
    }


def _name(column):
    """The name of its placeholder."""
    return f"given_{column}"


def _build(network, row, training, seed=0):
    """The towers, in a graph as `model_fn` makes it, for a batch of unknown size."""
    tf1.set_random_seed(seed)
    tf1.train.get_or_create_global_step()
    inputs = {
        column: tf1.placeholder_with_default(value, [None, *value.shape[1:]], _name(column))
        for column, value in _inputs(row).items()
    }
    return _run_network(network, inputs, row.tasks, training)


def _run_network(network, inputs, tasks, training):
    """The towers, with the losses of rows that the network emits."""
    with tf1.variable_scope("network"), emitted.collect() as found:
        towers = network(inputs, tasks, training)
    towers.emitted = list(found.values())
    return towers


def _loss(towers):
    # Weights keep the tasks' gradients apart; squares keep them from cancelling.
    losses = [(i + 1) * tf.reduce_mean(t**2) for i, t in enumerate(towers.values())]
    return tf.add_n([*losses, *map(tf.reduce_mean, towers.emitted)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Built:
    """What a graph of a row holds and computes.

    Attributes:
      towers: {task: tensor}.
      values: {task: value}, of two calls.
      some: {task: value} of rows 5 to 8 alone, outside of training.
      variables: the names of all of them.
      gradients: {trainable variable: gradient}; None where there is none.
    """

    towers: Mapping[str, tf.Tensor]
    values: Sequence[Mapping[str, np.ndarray]]
    some: Mapping[str, np.ndarray]
    variables: Sequence[str]
    gradients: Mapping[str, np.ndarray | None]
    has_updates: bool


def _run(network, row, training):
    with tf.Graph().as_default(), tf1.Session() as session:
        towers = _build(network, row, training)
        variables = tf1.trainable_variables() if training else []
        gradients = tf1.gradients(_loss(towers), variables) if training else []
        # Some may be sparse.
        found = {
            variable.op.name: tf.convert_to_tensor(gradient)
            for variable, gradient in zip(variables, gradients, strict=True)
            if gradient is not None
        }
        session.run(tf1.global_variables_initializer())
        given = tf1.get_default_graph().get_tensor_by_name
        few = {given(f"{_name(c)}:0"): v[5:8] for c, v in _inputs(row).items()}
        return _Built(
            towers=towers,
            values=[session.run(towers) for _ in range(2)],
            some={} if training else session.run(towers, few),
            variables=[variable.op.name for variable in tf1.global_variables()],
            gradients=dict.fromkeys(v.op.name for v in variables) | session.run(found),
            has_updates=bool(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)),
        )


@pytest.fixture(scope="module")
def trained(network, row):
    """The row in training."""
    return _run(network, row, training=True)


@pytest.fixture(scope="module")
def served(network, row):
    """The row outside of training."""
    return _run(network, row, training=False)


@pytest.mark.parametrize("which", ["trained", "served"])
def test_each_task_gets_a_tower(which, row, request):
    built = request.getfixturevalue(which)
    assert list(built.towers) == list(row.tasks)
    for tower in built.towers.values():
        assert tower.shape.as_list() == [None, row.hidden]
        assert tower.dtype == tf.float32
    for value in built.values[0].values():
        assert value.shape == (_BATCH, row.hidden)
        assert np.isfinite(value).all()


def test_all_variables_live_under_the_network(trained):
    names = set(trained.variables) - {"global_step"}
    assert names
    assert all(name.startswith("network/") for name in names)


def test_every_trainable_variable_has_a_finite_gradient(trained):
    assert trained.gradients
    for name, gradient in trained.gradients.items():
        assert gradient is not None, name
        assert np.isfinite(gradient).all(), name
        assert np.abs(gradient).max() > 0, name


def test_serving_has_the_variables_of_training_and_is_deterministic(trained, served, row):
    assert trained.variables == served.variables
    assert not served.has_updates
    first, second = served.values
    for task in row.tasks:
        np.testing.assert_array_equal(first[task], second[task])


def test_no_row_depends_on_another_outside_of_training(served, row):
    """So batches of any size are served, and slices of a batch give what the whole one does."""
    whole = served.values[0]
    for task in row.tasks:
        scale = np.abs(whole[task]).max()
        np.testing.assert_allclose(
            served.some[task], whole[task][5:8], rtol=1e-4, atol=1e-5 * scale
        )


def test_two_replicas_take_the_gradients_of_the_whole_batch(network, row, monkeypatch):
    """So norms take the moments of all rows."""
    if row.own_on_replicas:
        pytest.skip(f"each replica has {row.own_on_replicas} of its own")
    # Of the hundreds of thousands of ReLUs of a ResNet rounding turns one on or off now and then,
    # which moves all gradients before it: a smooth function has none of it.
    monkeypatch.setattr(tf.nn, "relu", tf.nn.softplus)
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    config = tf1.ConfigProto(device_count={"CPU": 2})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default(), strategy.scope(), tf1.Session(config=config) as session:
        tf1.set_random_seed(1)
        tf1.train.get_or_create_global_step()

        @tf.autograph.experimental.do_not_convert
        def step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            first = int(tf.get_static_value(replica)) * _BATCH // 2
            found = _gradients(network, row, slice(first, first + _BATCH // 2))
            return list(replicas.sum_over_replicas(found).values())

        summed = strategy.extended.call_for_each_replica(step)
        summed = [strategy.experimental_local_results(one)[0] for one in summed]
        variables = {v.name.split(":")[0]: v for v in tf1.trainable_variables()}
        session.run(tf1.global_variables_initializer())
        start = {name: strategy.extended.read_var(v) for name, v in variables.items()}
        found, values = session.run([summed, start])
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)  # Some networks draw in a step, by the run's seed.
        tf1.train.get_or_create_global_step()
        expected = _gradients(network, row, slice(None))
        session.run(tf1.global_variables_initializer())
        for variable in tf1.trainable_variables():
            variable.load(values[variable.op.name], session)
        expected = session.run(expected)
    for (name, wanted), own in zip(expected.items(), found, strict=True):
        atol = 1e-4 * max(1, np.abs(wanted).max())
        np.testing.assert_allclose(own, wanted, rtol=1e-3, atol=atol, err_msg=name)


def _gradients(network, row, rows):
    """{variable: the gradient of what these rows add to the loss of the batch}."""
    inputs = {column: tf.constant(value[rows]) for column, value in _inputs(row).items()}
    towers = _run_network(network, inputs, row.tasks, True)
    losses = [(i + 1) * tf.reduce_sum(t**2) / _BATCH for i, t in enumerate(towers.values())]
    losses += [tf.reduce_sum(each) / _BATCH for each in towers.emitted]
    variables = tf1.trainable_variables()
    names = [v.name.split(":")[0] for v in variables]
    found = map(tf.convert_to_tensor, tf1.gradients(tf.add_n(losses), variables))
    return dict(zip(names, found, strict=True))


def test_a_checkpoint_restores_what_was_trained(network, row, tmp_path):
    path = str(tmp_path / "model.ckpt")
    with tf.Graph().as_default(), tf1.Session() as session:
        loss = _loss(_build(network, row, training=True))
        with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
            train = tf1.train.GradientDescentOptimizer(0.01).minimize(loss)
        session.run(tf1.global_variables_initializer())
        before = session.run(loss)
        session.run([train] * 3)
        tf1.train.Saver().save(session, path)
        trained = session.run({v.op.name: v for v in tf1.global_variables()})
        assert session.run(loss) != before
    outputs = []
    for seed in (1, 2):
        with tf.Graph().as_default(), tf1.Session() as session:
            towers = _build(network, row, training=False, seed=seed)
            tf1.train.Saver().restore(session, path)
            outputs.append(session.run(towers))
            restored = session.run({v.op.name: v for v in tf1.global_variables()})
            for name, value in restored.items():
                np.testing.assert_array_equal(value, trained[name], err_msg=name)
    for task in row.tasks:
        np.testing.assert_array_equal(outputs[0][task], outputs[1][task])


def test_tracing_in_a_graph_loop_trains_as_single_calls_do(network, row):
    def train(num_steps, in_loop):
        with tf.Graph().as_default(), tf1.Session() as session:
            tf1.set_random_seed(5)
            global_step = tf1.train.get_or_create_global_step()

            def step(index):
                loss = _loss(_build(network, row, training=True))
                optimizer = tf1.train.GradientDescentOptimizer(0.01)
                gradients = optimizer.compute_gradients(loss, tf1.trainable_variables())
                updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
                with tf.control_dependencies(updates):
                    applied = optimizer.apply_gradients(gradients, global_step)
                with tf.control_dependencies([applied]):
                    return index + 1

            def going(index):
                return index < num_steps

            start = tf.constant(0)
            looped = tf.while_loop(going, step, [start], parallel_iterations=1) if in_loop else None
            call = looped if in_loop else step(start)
            session.run(tf1.global_variables_initializer())
            random = np.random.default_rng(0)
            variables = tf1.trainable_variables()
            training.load(session, variables, lambda v: random.normal(scale=0.1, size=v.shape))
            for _ in range(1 if in_loop else num_steps):
                session.run(call)
            return session.run({v.op.name: v for v in tf1.global_variables()})

    looped, single = train(4, in_loop=True), train(4, in_loop=False)
    assert looped.keys() == single.keys()
    for name, value in looped.items():
        np.testing.assert_allclose(value, single[name], rtol=1e-3, atol=1e-5, err_msg=name)


# Their units are read by an operation that mixes them, or several layers: a stack of experts or of
# tasks, attention, codes, or a product of columns; or they are the tower, or add up to it.
_KEEP_ALL_UNITS = {
    "adatt",
    "adatt_with_shared_experts",
    "cin_that_splits",
    "codes",
    "cross_stitch",
    "fm",
    "ft_transformer",
    "ft_transformer_of_one_block",
    "home_without_what_keeps_experts",
    "ltb",
    "mmoe_of_gated_layers",
    "ple",
    "ple_of_three_levels",
    "rbm_of_cd",
    "rbm_of_free_energies",
    "sluice",
    "stem",
}


def test_exports_lose_units_of_pruned_layers_and_nothing_else(network, row):
    """Seven of ten weights are 0, and a graph without the units that this leaves dead agrees."""
    random = np.random.default_rng(0)

    def draw(variable):
        values = random.normal(size=variable.shape) * 0.5
        if values.ndim > 1:
            values *= random.random(variable.shape) < 0.3
            if variable.op.name.endswith("/kernel"):
                values[..., 0] = 0  # This unit is dead, whatever is drawn.
        return values

    with tf.Graph().as_default(), tf1.Session() as session:
        towers = _build(network, row, training=False)
        outputs = [tf.identity(tower, f"tower_{task}") for task, tower in towers.items()]
        session.run(tf1.global_variables_initializer())
        training.load(session, tf1.trainable_variables(), draw)
        expected = session.run(outputs)
        names = [output.op.name for output in outputs]
        whole = graphs.Graph(folding.fold_graph(session, names).pruned(names))
        small = dead_units.remove_units(folding.fold_graph(session, names), names).pruned(names)
    sizes = [_count_constants(graph) for graph in (whole, graphs.Graph(small))]
    assert (sizes[1] < sizes[0]) == (row.name not in _KEEP_ALL_UNITS), sizes
    assert any(np.ptp(tower) > 0 for tower in expected)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf.import_graph_def(small, name="")
        found = session.run([f"{name}:0" for name in names])
    for got, wanted in zip(found, expected, strict=True):
        largest = max(1, np.abs(wanted).max())
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * largest)


def _count_constants(graph):
    """Return how many numbers a graph holds."""
    values = [graph.value(name) for name in graph.nodes]
    return sum(value.size for value in values if value is not None and value.dtype.kind == "f")
