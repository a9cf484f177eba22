"""Stacked variables of tasks give the same results as one variable for each task."""

import dataclasses
import logging

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, features, heads, mixing, model, networks, transfer, verbs
from mtl.balancing import methods, monitored, surgery, weighting
from mtl.checkpoints import mismatch
from mtl.heads import together
from mtl.layers import quantization
from mtl.model import graph_options
from mtl.optimization import clipping, optimizers, regularization, transforms, update
from mtl.sparsity import pruning, pruning_schedules
from mtl.variables import averaging, freezing, masks, stacks
from tests import tiny

tf1 = tf.compat.v1
ModeKeys = compat.estimator.ModeKeys

STATISTICS = features.Statistics(directory="", entries={})
TOWER = networks.MLP(layers=[4, 2], activation="tanh")


@pytest.fixture
def few(monkeypatch):
    """Stacks from two tasks on."""
    monkeypatch.setattr(stacks, "FROM", 2)
    monkeypatch.setattr(together, "FROM", 2)


def _model(count=3, tower=TOWER, **settings):
    """Return a model of `count` equal tasks with one label, and a regression among them."""
    equal = [heads.Binary(name=f"t{i}", label="sign") for i in range(count)]
    trunk = networks.MLP(layers=[5], activation="tanh")
    return model.MultiTaskModel(
        **{
            "columns": [features.Numeric(names=["x"], normalization="none")],
            "network": networks.SharedBottom(trunk=trunk, tower=tower),
            "heads": [equal[0], heads.Regression(name="size"), *equal[1:]],
            "update": update.Update(),
            **settings,
        }
    )


def _rows():
    return {name: values for name, values in tiny.rows(16, seed=3).items() if name != "word"}


def _build(made, mode=ModeKeys.TRAIN, **settings):
    """Build a graph of the model in the default graph, with a seed."""
    tf1.set_random_seed(5)
    tf1.train.get_or_create_global_step()
    labels = {name: tf.constant(values) for name, values in _rows().items()}
    inputs = {"x": labels.pop("x")}
    labels = None if mode == ModeKeys.PREDICT else labels
    return made.model_fn(
        inputs, labels, mode, options=graph_options.GraphOptions(statistics=STATISTICS, **settings)
    )


def _members(session):
    """{name: value} of the variables, those of stacks one by one."""
    found = {}
    for variable in tf1.global_variables():
        value, stack = session.run(variable), stacks.find_stack(variable)
        names = list(stacks.list_members(variable))
        parts = np.moveaxis(value, stack.axis, 0) if stack else [value]
        found |= zip(names, parts, strict=True)
    return found


def _num_stacks():
    return sum(stacks.find_stack(variable) is not None for variable in tf1.global_variables())


def _take_steps(made, may_stack):
    """Variables at the start, the losses of five steps, and variables after them."""
    with tf.Graph().as_default(), tf1.Session() as session:
        spec = _build(made, may_stack=may_stack)
        assert bool(_num_stacks()) == may_stack
        session.run(tf1.global_variables_initializer())
        first = _members(session)
        losses = [session.run([spec.loss, spec.train_op])[0] for _ in range(5)]
        return first, losses, _members(session)


@pytest.mark.medium
@pytest.mark.parametrize("tower", [TOWER, None])
def test_tasks_train_together_as_they_do_one_by_one(few, tower):
    made = _model(tower=tower)
    (first, losses, last), (own_first, own_losses, own_last) = (
        _take_steps(made, may_stack) for may_stack in (True, False)
    )
    assert first.keys() == own_first.keys() and "head/t2/logits/bias/Adam_1" in first
    for name in first:
        np.testing.assert_array_equal(first[name], own_first[name], err_msg=name)
    kernels = [first[f"head/t{i}/logits/kernel"] for i in range(3)]
    assert not np.array_equal(kernels[0], kernels[1])
    np.testing.assert_allclose(losses, own_losses, rtol=1e-6)
    for name in last:
        np.testing.assert_allclose(last[name], own_last[name], atol=2e-6, err_msg=name)
        assert not np.array_equal(last[name], first[name]), name


def _without_seed(axis, shape):
    with tf.Graph().as_default(), tf1.Session() as session:
        return session.run(stacks.start_uniform(stacks.draw_seeds(shape[axis]), axis)(shape))


def test_kernels_start_within_their_bounds_without_a_seed():
    values = _without_seed(axis=1, shape=[30, 50, 20])
    limit = np.sqrt(6 / 50)  # Glorot's bound for kernels [30, 20].
    assert np.abs(values).max() <= limit and np.abs(values).max() > 0.99 * limit
    assert len(np.unique(values[:, :, 0], axis=1)) == 30


@pytest.mark.medium
@pytest.mark.parametrize("mode", [ModeKeys.TRAIN, ModeKeys.PREDICT])
def test_ops_hardly_grow_with_tasks(mode):
    def ops(count):
        with tf.Graph().as_default() as graph:
            spec = _build(_model(count), mode, may_stack=True)
            saver = spec.scaffold.saver or tf1.get_collection(tf1.GraphKeys.SAVERS)[0]
            saver.build()
            made = graph.as_graph_def()
        bodies = sum(len(body.node_def) for body in made.library.function)
        return len(made.node) + bodies

    # It was 200 a task in training, with twelve variables each, and 112 in prediction.
    assert ops(2 * stacks.FROM) - ops(stacks.FROM) <= 8


def _saved(path, made, may_stack):
    """Save a new graph to a checkpoint, and return the values of its variables."""
    with tf.Graph().as_default(), tf1.Session() as session:
        _build(made, may_stack=may_stack)
        session.run(tf1.global_variables_initializer())
        for variable in tf1.global_variables():
            value = session.run(variable)
            variable.load(value + np.arange(value.size).reshape(value.shape), session)
        _saver().save(session, str(path))
        return _members(session)


def _saver():
    savers = tf1.get_collection(tf1.GraphKeys.SAVERS)
    saver = savers[0] if savers else tf1.train.Saver(sharded=True)
    saver.build()
    return saver


@pytest.mark.medium
@pytest.mark.parametrize("saves_stacks", [True, False])
def test_checkpoints_fit_graphs_with_stacks_and_without(few, tmp_path, saves_stacks):
    path, made = tmp_path / "model.ckpt-0", _model()
    saved = _saved(path, made, saves_stacks)
    reader = tf.train.load_checkpoint(str(path))
    assert reader.get_variable_to_shape_map() == {n: list(v.shape) for n, v in saved.items()}
    with tf.Graph().as_default(), tf1.Session() as session:
        _build(made, may_stack=not saves_stacks)
        _saver().restore(session, str(path))
        restored = _members(session)
    assert restored.keys() == saved.keys()
    for name, value in saved.items():
        np.testing.assert_array_equal(reader.get_tensor(name), value)
        np.testing.assert_array_equal(restored[name], value)


@pytest.mark.medium
def test_a_checkpoint_of_other_tasks_is_refused(few, tmp_path):
    path = tmp_path / "model.ckpt-0"
    _saved(path, _model(2), may_stack=True)

    def model_fn(features, labels, mode):
        del features, labels
        return _build(_model(3), mode, may_stack=True)

    refusing = mismatch.refuse_mismatch(model_fn, str(path))
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match="it lacks 'head/t2/logits"):
        refusing(None, None, ModeKeys.EVAL)


@pytest.mark.medium
def test_a_gradient_that_is_not_finite_is_told_of_its_own_task(few, monkeypatch):
    plain = tf.gradients

    def spoil(ys, xs, **settings):
        """Put a NaN into the gradient of the second of three kernels."""
        found, kernel = plain(ys, xs, **settings), np.zeros([5, 3, 1], np.float32)
        kernel[2, 1] = np.nan
        return [g + kernel if g is not None and g.shape == kernel.shape else g for g in found]

    monkeypatch.setattr(tf, "gradients", spoil)
    with tf.Graph().as_default(), tf1.Session() as session:
        spec = _build(_model(tower=None), may_stack=True)
        session.run(tf1.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError) as failed:
            session.run(spec.train_op)
    assert "in 1 of them: gradient of head/t1/logits/kernel." in failed.value.message


@pytest.mark.medium
def test_a_frozen_part_beside_stacks_is_counted_among_all_variables(few, caplog):
    trunk = networks.MLP(layers=[5], activation="tanh", trainable=False)
    made = _model(network=networks.SharedBottom(trunk=trunk, tower=None))
    with tf.Graph().as_default(), caplog.at_level(logging.INFO, "mtl"):
        _build(made, may_stack=True)
        assert _num_stacks() == 6  # Kernel and bias, each with two moments.
    # Trunk [3, 5] and [5]; four heads of 5 and 1.
    assert "Frozen: 2 of 10 variables, 20 of 44 weights" in caplog.messages


def _updated(**settings):
    return {"update": update.Update(**settings)}


@pytest.mark.parametrize(
    "settings",
    [
        _updated(optimizers={"^head/": optimizers.SGD()}),
        _updated(rates={"^head/t1/": 0.1}),
        _updated(regularization=regularization.Regularization(l2={"^head/": 0.1})),
        _updated(average=averaging.ExponentialAverage()),
        _updated(transforms=[transforms.Centralization()]),
        _updated(clipping=clipping.Norm(max_norm=1.0)),
        _updated(optimizer=optimizers.AdamW(not_decayed=["^head/t1/"])),
        _updated(optimizer=optimizers.RowWiseAdagrad()),
        {"freezing": freezing.Freezing(frozen=["^head/t1/"])},
        {"freezing": freezing.Freezing(until={"^head/t1/": 5})},
        {"freezing": freezing.Freezing(entries={"^head/t1/": masks.Rows(rows=[0])})},
        {"pruning": [pruning.Pruning(sparsity=0.5, schedule=pruning_schedules.OneShot(step=2))]},
        {"quantization": quantization.Quantization(weights={"^head/": quantization.Uniform()})},
        {"surgery": surgery.Combine(method=methods.PCGrad())},
        {"surgery": monitored.Monitored()},
        {"mixing": mixing.Mixup()},
        {"network": networks.MMoE(expert=networks.MLP(layers=[4]))},
    ],
    ids=lambda settings: repr(settings)[:60],
)
def test_what_chooses_variables_by_name_finds_them_one_by_one(settings):
    assert not _model(**settings).stacks_tasks


@pytest.mark.parametrize(
    "settings",
    [
        {},
        _updated(optimizer=optimizers.AdamW(), clipping=clipping.GlobalNorm(max_norm=1.0)),
        {"weighting": weighting.UncertaintyWeighting()},
    ],
    ids=["default", "decay and clipping", "weighting"],
)
def test_what_treats_entries_alike_allows_stacks(settings):
    assert _model(**settings).stacks_tasks


def _experiment(steps, source=None):
    """A run of three equal tasks."""
    made = tiny.make(train_steps=steps, checkpoint_steps=steps)
    start = transfer.WarmStart(source=str(source)) if source else None
    made_of = dataclasses.replace(_model(update=made.model.update), columns=made.model.columns)
    return dataclasses.replace(made, model=made_of, warm_start=start)


@pytest.mark.slow
def test_runs_go_on_with_stacks_are_evaluated_and_start_others(few, tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(
        stacks.stack_saver,
        "add_stack_saver",
        lambda found, plain=stacks.stack_saver.add_stack_saver: note(plain(found)),
    )

    def note(saver):
        built.append(saver)
        return saver

    def train(folder, steps, may_stack=True, **settings):
        built.clear()
        monkeypatch.setattr(stacks, "FROM", 2 if may_stack else 100)
        metrics, _ = verbs.train(_experiment(steps, **settings), str(tmp_path / folder))
        return metrics, len(built)

    plain, num_built = train("plain", 8, may_stack=False)
    assert num_built == 0
    train("mixed", 4, may_stack=False)
    mixed, num_built = train("mixed", 8)
    # Evaluation (also checked before the start), training and export each build a saver.
    assert num_built == 3
    assert mixed.keys() == plain.keys()
    for name in plain:
        np.testing.assert_allclose(mixed[name], plain[name], rtol=1e-4, err_msg=name)
    of_plain, of_mixed = (tiny.variables(tmp_path / folder) for folder in ("plain", "mixed"))
    assert of_mixed.keys() == of_plain.keys()
    for name, value in of_plain.items():
        assert of_mixed[name].dtype == value.dtype
        np.testing.assert_allclose(of_mixed[name], value, atol=1e-5, err_msg=name)

    monkeypatch.setattr(stacks, "FROM", 100)
    again = verbs.evaluate(_experiment(8), str(tmp_path / "mixed"))
    for name in mixed:
        np.testing.assert_allclose(again[name], mixed[name], rtol=1e-6, err_msg=name)

    # A warm start finds every task by its name.
    train("warm", 1, source=tmp_path / "mixed")
    started = tiny.variables(tmp_path / "warm", step=0)
    for name in [f"head/t{i}/logits/kernel" for i in range(3)]:
        np.testing.assert_array_equal(started[name], of_mixed[name])
