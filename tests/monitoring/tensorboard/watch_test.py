"""What a step shows is what an independent computation gives, and changes no bit of the run."""

import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat, distribution, experiment, heads, networks
from mtl.balancing import methods, surgery
from mtl.layers import precision
from mtl.model import multi_task_model
from mtl.monitoring import tensorboard
from mtl.monitoring.tensorboard import board as board_lib
from mtl.monitoring.tensorboard import histograms, settings
from mtl.optimization import clipping, optimizers, update
from mtl.runs import fitting
from mtl.sparsity import granularity, pruning, pruning_schedules
from mtl.step import summaries, training_loop
from mtl.variables import averaging, freezing
from tests import tiny

tf1 = tf.compat.v1

AT = [3, 5]
EVERYTHING = dict.fromkeys(settings.OF_STEPS, AT)
RATE, NORM = 0.5, 0.25


def make(shown=None, surgeon=None, **run):
    """A run of six steps by SGD whose gradients are clipped."""
    trunk = networks.MLP(layers=[8], dropout=0.2, batch_norm=True)
    made = tiny.make(
        network=networks.SharedBottom(trunk=trunk, tower=networks.MLP(layers=[4])),
        **{"train_steps": 6, "checkpoint_steps": 1, "keep_checkpoints": 9, **run},
    )
    moving = update.Update(
        optimizer=optimizers.SGD(learning_rate=RATE), clipping=clipping.GlobalNorm(max_norm=NORM)
    )
    model = dataclasses.replace(
        made.model, update=moving, surgery=surgeon or surgery.Combine(method=methods.PCGrad())
    )
    return dataclasses.replace(made, model=model, tensorboard=shown)


def read(directory):
    """{step: {tag: histogram or number}} of what is no ordinary scalar."""
    found = {}
    for event in tiny.events(directory):
        for value in event.summary.value:
            if value.tag.startswith((*settings.OF_STEPS, "update_ratio")):
                kind = value.WhichOneof("value")
                seen = found.setdefault(event.step, {})
                assert value.tag not in seen, f"{value.tag} is written twice"
                seen[value.tag] = getattr(value, kind)
    return found


def assert_histogram(histogram, values, tolerance=1e-5):
    values = np.asarray(values, np.float64).reshape(-1)
    assert histogram.num == values.size
    scale = max(np.abs(values).max(), 1e-30)
    for name, expected in (
        ("min", values.min()),
        ("max", values.max()),
        ("sum", values.sum()),
        ("sum_squares", np.square(values).sum()),
    ):
        found = getattr(histogram, name)
        bound = tolerance * scale * (1 if name in ("min", "max") else values.size)
        bound *= scale if name == "sum_squares" else 1
        assert abs(found - expected) <= bound, (name, found, expected)


def shows(found, expected, tolerance=1e-5):
    for tag, values in expected.items():
        assert_histogram(found[tag], values, tolerance)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that shows everything at two steps."""
    folder = tmp_path_factory.mktemp("shown") / "run"
    tiny.train(make(tensorboard.TensorBoard(**EVERYTHING)), folder)
    return folder


def trained(values):
    return {
        n: v for n, v in values.items() if n.partition("/")[0] in ("features", "network", "head")
    }


def differentiate(made, folder, step):
    """{task: {variable: gradient}} of the step after a checkpoint, and what activations give."""
    outputs = {}
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(made.run.seed)
        tf1.train.create_global_step()
        statistics = fitting.load_statistics(str(folder))
        data = made.data
        rows = data.dataset(data.train_split, training=True, seed=1, statistics=statistics)
        iterator = tf1.data.make_initializable_iterator(rows.skip(step))
        features, labels = iterator.get_next()
        built = made.model.fitted(statistics)._pass_forward(statistics, features, labels)
        variables = tf1.trainable_variables()
        gradients = {
            task: {
                variable.op.name: gradient
                for variable, gradient in zip(variables, tf.gradients(loss, variables), strict=True)
                if gradient is not None
            }
            for task, loss in built.losses.items()
        }
        for op in graph.get_operations():
            if op.type == "Relu":
                outputs[op.name] = op.outputs[0]
        with tf1.Session() as session:
            session.run([iterator.initializer, tf1.tables_initializer()])
            tf1.train.Saver().restore(session, f"{folder}/model.ckpt-{step}")
            return session.run([gradients, outputs])


def densify(gradient):
    """The rows of a gradient, each once, and their numbers."""
    if hasattr(gradient, "indices"):
        ids = np.unique(gradient.indices)
        rows = [gradient.values[gradient.indices == row].sum(0) for row in ids]
        return np.stack(rows), ids
    return gradient, None


@pytest.mark.slow
@pytest.mark.parametrize("step", AT)
def test_what_a_step_shows_is_true(run, step):
    found, made = read(run), make()
    assert set(found) == set(AT)
    seen = found[step]
    before, after = (trained(tiny.variables(run, n)) for n in (step - 1, step))
    of_tasks, outputs = differentiate(made, run, step - 1)
    names = [name for name in before if "moving_" not in name]
    shows(seen, {f"weights/{name}": before[name] for name in names})
    table = "features/categorical_word/embedding"
    totals = {}
    for task, gradients in of_tasks.items():
        for name in names:
            if name not in gradients:
                assert f"task_gradients/{task}/{name}" not in seen
                continue
            gradient, ids = densify(gradients[name])
            assert_histogram(seen[f"task_gradients/{task}/{name}"], gradient)
            if name == table:
                whole = np.zeros_like(before[name])
                whole[ids] = gradient
                gradient = whole
            totals[name] = totals.get(name, 0) + gradient
    rows = np.flatnonzero(np.abs(totals[table]).sum(1))
    for name in names:
        chosen = rows if name == table else slice(None)
        assert_histogram(seen[f"gradients_before_surgery/{name}"], totals[name][chosen])
        change = (after[name] - before[name])[chosen]
        assert_histogram(seen[f"updates/{name}"], change)
        assert_histogram(seen[f"clipped_gradients/{name}"], change / -RATE, 1e-4)
        norm = np.linalg.norm(before[name][chosen])
        if norm:
            ratio = np.linalg.norm(change) / norm
            assert seen[f"update_ratio/{name}"] == pytest.approx(ratio, rel=1e-4)
    # The clipped gradient is one factor times that of the surgery, and PCGrad's differs from a sum.
    kernel = "network/trunk/hidden_0/kernel"
    clipped, combined = seen[f"clipped_gradients/{kernel}"], seen[f"gradients/{kernel}"]
    norms = [
        np.sqrt(sum(seen[f"{item}/{n}"].sum_squares for n in names))
        for item in ("clipped_gradients", "gradients")
    ]
    assert norms[0] == pytest.approx(NORM, rel=1e-4) and norms[1] > NORM
    assert clipped.max / combined.max == pytest.approx(norms[0] / norms[1], rel=1e-4)
    shown = {tag.partition("/")[2] for tag in seen if tag.startswith("activations/")}
    assert shown == {"network/trunk/hidden_0_norm"} | {
        f"network/tower_{task}/hidden_0" for task in tiny.LABELS
    }
    kept = sorted((seen[f"activations/{n}"].sum, seen[f"dead_units/{n}"]) for n in shown)
    expected = sorted((v.sum(), (v == 0).all(0).mean()) for v in outputs.values())
    np.testing.assert_allclose(kept, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.optimizes_graphs
@pytest.mark.parametrize("steps_per_call", [1, 100])
def test_everything_on_changes_no_bit(run, tmp_path, steps_per_call):
    plain = tiny.train(make(steps_per_call=steps_per_call), tmp_path / "plain")
    shown = make(tensorboard.TensorBoard(**EVERYTHING), steps_per_call=steps_per_call)
    with_all = tiny.train(shown, tmp_path / "shown")
    assert plain.keys() == with_all.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(value, with_all[name], err_msg=name)
    assert set(read(tmp_path / "shown")) == set(AT)
