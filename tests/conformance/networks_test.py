"""The contract of networks, for every row of `tests.conformance.networks`."""

import contextlib
import dataclasses
import functools
import os
import textwrap
import zlib
from collections.abc import Mapping, Sequence

import gin
import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks, types
from mtl.serving import dead_units, folding, graphs
from mtl.step import outlets, replicas
from mtl.tf_internals import eager
from mtl.variables import patterns
from tests.conformance.networks import NETWORKS, draw_column
from tests.optimization import training

pytestmark = pytest.mark.medium

tf1 = tf.compat.v1

_CONFIGS = os.path.join(os.path.dirname(__file__), "..", "..", "gin_configs")
_BATCH = 16


# With the scope of a module the tests of a row run in sequence, and share its graphs.
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


def _build(network, row, training):
    """The towers, in a graph as `model_fn` makes it, for a batch of unknown size."""
    tf1.set_random_seed(0 if training else 1)
    tf1.train.get_or_create_global_step()
    inputs = {
        column: tf1.placeholder_with_default(value, [None, *value.shape[1:]], _name(column))
        for column, value in _inputs(row).items()
    }
    with _smooth_relu() if training else contextlib.nullcontext():
        return _run_network(network, inputs, row.tasks, training)


@contextlib.contextmanager
def _smooth_relu():
    """Replace ReLU by a smooth function.

    Rounding turns some of a ResNet's many ReLUs on or off, which changes all gradients below them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.nn, "relu", tf.nn.softplus)
        yield


def _feed(graph, row, rows):
    """These rows alone, for a graph of `_build`."""
    return {graph.get_tensor_by_name(f"{_name(c)}:0"): v[rows] for c, v in _inputs(row).items()}


def _run_network(network, inputs, tasks, training):
    """The towers, with the losses of rows that the network emits in training."""
    collect = outlets.collect_losses if training else functools.partial(contextlib.nullcontext, {})
    with tf1.variable_scope("network"), collect() as found:
        towers = network(inputs, tasks, training)
    towers.emitted = list(found.values())
    return towers


def _loss(towers):
    # Weights keep the tasks' gradients apart; squares keep them from cancelling.
    losses = [(i + 1) * tf.reduce_mean(t**2) for i, t in enumerate(towers.values())]
    return tf.add_n([*losses, *map(tf.reduce_mean, towers.emitted)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Built:
    """The graph of a row, and its first results.

    The tests of a row share it: a test that runs `session` first sets all variables.

    Attributes:
      towers: {task: tensor}.
      outputs: T, the towers under names by task.
      train: the op of a step; None outside of training.
      initializer: the op that initialises all variables.
      saver: the saver of all variables.
      variables: {name: variable}.
      values: {task: value}, for each of two calls.
      some: {task: value} of rows 5 to 7 alone, outside of training.
      derived: {trainable variable: gradient}, as tensors.
      gradients: the same as values; None for a variable without a gradient.
      draws: whether it draws random numbers, except for initial values.
    """

    session: tf1.Session
    towers: Mapping[str, tf.Tensor]
    outputs: Sequence[tf.Tensor]
    loss: tf.Tensor
    train: tf.Operation | None
    initializer: tf.Operation
    saver: tf1.train.Saver
    variables: Mapping[str, tf.Variable]
    values: Sequence[Mapping[str, np.ndarray]]
    some: Mapping[str, np.ndarray]
    derived: Mapping[str, tf.Tensor]
    gradients: Mapping[str, np.ndarray | None]
    has_updates: bool
    draws: bool

    def draw(self, value_of):
        """Set trainable variables to `value_of(variable)`, and reset all others."""
        self.session.run(self.initializer)
        drawn = [variable for variable in self.variables.values() if variable.trainable]
        training.load(self.session, drawn, value_of)

    def read(self):
        """{variable: value}."""
        return self.session.run(dict(self.variables))

    def save(self, path):
        with self.session.graph.as_default():
            self.saver.save(self.session, path)

    def restore(self, path):
        with self.session.graph.as_default():
            self.saver.restore(self.session, path)


@contextlib.contextmanager
def _open(network, row, training):
    with tf.Graph().as_default() as graph:
        towers = _build(network, row, training)
        loss = _loss(towers)
        outputs = [tf.identity(tower, f"tower_{task}") for task, tower in towers.items()]
        gradients, train = _step(loss) if training else ([], None)
        # Some may be sparse.
        derived = {v.op.name: tf.convert_to_tensor(g) for g, v in gradients if g is not None}
        has_updates = bool(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
        variables = {variable.op.name: variable for variable in tf1.global_variables()}
        initializer, saver = tf1.global_variables_initializer(), tf1.train.Saver()
    with contextlib.closing(tf1.Session(graph=graph)) as session:
        session.run(initializer)
        yield _Built(
            session=session,
            towers=towers,
            outputs=outputs,
            loss=loss,
            train=train,
            initializer=initializer,
            saver=saver,
            variables=variables,
            values=[session.run(towers) for _ in range(2)],
            some={} if training else session.run(towers, _feed(graph, row, slice(5, 8))),
            derived=derived,
            gradients=dict.fromkeys(v.op.name for _, v in gradients) | session.run(derived),
            has_updates=has_updates,
            draws=any(op.type.startswith("Stateless") for op in graph.get_operations()),
        )


def _step(loss):
    """[(gradient, variable)], and the op that moves all variables."""
    optimizer = tf1.train.GradientDescentOptimizer(0.01)
    gradients = optimizer.compute_gradients(loss, tf1.trainable_variables())
    # A network may read a weight that no gradient passes: it must not read it after the step.
    computed = [gradient for gradient, _ in gradients if gradient is not None]
    with tf.control_dependencies([*tf1.get_collection(tf1.GraphKeys.UPDATE_OPS), *computed]):
        return gradients, optimizer.apply_gradients(gradients, tf1.train.get_global_step())


@pytest.fixture(scope="module")
def trained(network, row):
    """The row in training."""
    with _open(network, row, training=True) as built:
        yield built


@pytest.fixture(scope="module")
def served(network, row):
    """The row outside of training."""
    with _open(network, row, training=False) as built:
        yield built


@pytest.mark.parametrize("which", ["trained", "served"])
def test_each_task_gets_a_tower(which, row, request):
    built = request.getfixturevalue(which)
    assert list(built.towers) == list(row.tasks)
    for tower in built.towers.values():
        assert tower.shape.as_list() == [None, *row.shape]
        assert tower.dtype == tf.float32
    for value in built.values[0].values():
        assert value.shape == (_BATCH, *row.shape)
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
    assert list(trained.variables) == list(served.variables)
    assert not served.has_updates
    first, second = served.values
    for task in row.tasks:
        np.testing.assert_array_equal(first[task], second[task])


def test_the_order_of_tasks_matters_only_if_the_network_says_so(network, served, row):
    """A warm start finds variables by their names, and leaves them in their places."""
    pattern = types.read_member(network, types.Network, "ordered_variables")

    def value_of(variable):
        return _draw_by_name(variable.op.name, variable.shape.as_list())

    def value_without_order(variable):
        return value_of(variable) * (not patterns.matches(pattern or "^$", variable))

    turned = dataclasses.replace(row, tasks=row.tasks[::-1])
    with _open(network, turned, training=False) as other:
        for values, is_ordered in ((value_of, bool(pattern)), (value_without_order, False)):
            served.draw(values)
            other.draw(values)
            expected, found = served.session.run(served.towers), other.session.run(other.towers)
            same = [np.allclose(found[task], expected[task], atol=1e-4) for task in row.tasks]
            assert all(same) != is_ordered


def _draw_by_name(name, shape):
    return np.random.default_rng(zlib.crc32(name.encode())).normal(0, 0.3, shape)


def test_eager_code_computes_what_the_graph_does(network, served, row):
    """`launch.inspect --eager` relies on this. Served values do not depend on a seed."""
    served.session.run(served.initializer)
    expected, values = served.session.run([served.towers, dict(served.variables)])
    with tf.Graph().as_default(), eager.execute_eagerly(), eager.create_variables(values):
        inputs = {column: tf.constant(value) for column, value in _inputs(row).items()}
        if row.name.endswith("_keras"):
            with pytest.raises(checks.UserError, match="Keras uses other names in eager code"):
                _run_network(network, inputs, row.tasks, training=False)
            return
        towers = _run_network(network, inputs, row.tasks, training=False)
        for task in row.tasks:
            scale = max(1, np.abs(expected[task]).max())
            np.testing.assert_allclose(towers[task], expected[task], rtol=0, atol=1e-6 * scale)


def test_no_row_depends_on_another_outside_of_training(served, row):
    """So batches of any size are served, and slices of a batch give what the whole one does."""
    whole = served.values[0]
    for task in row.tasks:
        scale = np.abs(whole[task]).max()
        np.testing.assert_allclose(
            served.some[task], whole[task][5:8], rtol=1e-4, atol=1e-5 * scale
        )


@pytest.mark.always
@pytest.mark.drawn(8)
def test_two_replicas_take_the_gradients_of_the_whole_batch(network, row, trained):
    """So norms take the moments of all rows."""
    if row.own_on_replicas:
        pytest.skip(f"each replica has {row.own_on_replicas} of its own")
    halves = [slice(_BATCH // 2), slice(_BATCH // 2, _BATCH)]
    if trained.draws or trained.has_updates:
        found, values = _take_gradients_of_replicas(network, row, halves)
        trained.draw(lambda variable: values[variable.op.name])
    else:  # It cannot know whether it is on a replica.
        trained.session.run(trained.initializer)
        feeds = [_feed(trained.session.graph, row, half) for half in halves]
        parts = [trained.session.run(trained.derived, feed) for feed in feeds]
        found = {name: sum(part[name] for part in parts) / 2 for name in trained.derived}
    expected = trained.session.run(trained.derived)
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        atol = 1e-4 * max(1, np.abs(wanted).max())
        np.testing.assert_allclose(found[name], wanted, rtol=1e-3, atol=atol, err_msg=name)


def _take_gradients_of_replicas(network, row, rows):
    """{variable: the sum of its gradients on two replicas}, {variable: value}."""
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    config = tf1.ConfigProto(device_count={"CPU": 2})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default(), strategy.scope(), tf1.Session(config=config) as session:
        tf1.set_random_seed(0)  # Some networks draw in a step, by the run's seed.
        tf1.train.get_or_create_global_step()

        @tf.autograph.experimental.do_not_convert
        def step():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = rows[int(tf.get_static_value(replica))]
            inputs = {column: tf.constant(value[own]) for column, value in _inputs(row).items()}
            loss = _loss(_run_network(network, inputs, row.tasks, training=True)) / 2
            found = tf1.gradients(loss, tf1.trainable_variables())
            return replicas.sum_over_replicas(list(map(tf.convert_to_tensor, found)))

        with _smooth_relu():  # Replicas are threads.
            summed = strategy.extended.call_for_each_replica(step)
        summed = [strategy.experimental_local_results(one)[0] for one in summed]
        variables = {v.name.split(":")[0]: v for v in tf1.trainable_variables()}
        session.run(tf1.global_variables_initializer())
        start = {name: strategy.extended.read_var(v) for name, v in variables.items()}
        return session.run([dict(zip(variables, summed, strict=True)), start])


def test_a_checkpoint_restores_what_was_trained(trained, served, tmp_path):
    path = str(tmp_path / "model.ckpt")
    trained.session.run(trained.initializer)
    before = trained.session.run(trained.loss)
    for _ in range(3):
        trained.session.run(trained.train)
    trained.save(path)
    values = trained.read()
    assert trained.session.run(trained.loss) != before
    served.restore(path)
    restored = served.read()
    assert values.keys() == restored.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(restored[name], value, err_msg=name)


@pytest.mark.always
@pytest.mark.drawn(8)
def test_tracing_in_a_graph_loop_trains_as_single_calls_do(network, row, trained):
    random = np.random.default_rng(0)
    trained.draw(lambda variable: random.normal(scale=0.1, size=variable.shape))
    start = trained.read()
    for _ in range(4):
        trained.session.run(trained.train)
    single = trained.read()

    def step(index):
        _, applied = _step(_loss(_build(network, row, training=True)))
        with tf.control_dependencies([applied]):
            return index + 1

    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(0)
        tf1.train.get_or_create_global_step()
        steps = tf.while_loop(
            lambda index: index < 4, step, [tf.constant(0)], parallel_iterations=1
        )
        variables = {variable.op.name: variable for variable in tf1.global_variables()}
        assert variables.keys() == start.keys()
        training.load(session, variables.values(), lambda variable: start[variable.op.name])
        session.run(steps)
        looped = session.run(variables)
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
    "two_tower",
}


def test_a_gpu_changes_how_copies_are_trained_and_not_what_is_served(
    trained, served, network, row, monkeypatch
):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0"])
    with tf.Graph().as_default():
        _build(network, row, training=True)
        assert {variable.op.name for variable in tf1.global_variables()} == set(trained.variables)
    with tf.Graph().as_default() as graph:
        _build(network, row, training=False)
    made = [operation.type for operation in graph.get_operations()]
    # More ops follow, such as the saver's.
    expected = served.session.graph.get_operations()[: len(made)]
    assert made == [operation.type for operation in expected]


def test_exports_lose_units_of_pruned_layers_and_nothing_else(served, row):
    """Seven of ten weights are 0, and a graph without the units that this leaves dead agrees."""
    random = np.random.default_rng(0)

    def draw(variable):
        values = random.normal(size=variable.shape) * 0.5
        if values.ndim > 1:
            values *= random.random(variable.shape) < 0.3
            if variable.op.name.endswith("/kernel"):
                values[..., 0] = 0  # This unit is dead, whatever is drawn.
        return values

    served.draw(draw)
    expected = served.session.run(served.outputs)
    names = [output.op.name for output in served.outputs]
    whole = graphs.Graph(folding.fold_graph(served.session, names).pruned(names))
    small = dead_units.remove_units(folding.fold_graph(served.session, names), names).pruned(names)
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
