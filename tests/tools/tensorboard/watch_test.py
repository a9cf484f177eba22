"""The items of a step equal an independent computation and do not change the run."""

import dataclasses
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf

from mtl import compat, distribution, heads, networks
from mtl.balancing import methods, surgery
from mtl.layers import precision
from mtl.model import graph_options
from mtl.optimization import clipping, optimizers, update
from mtl.runs import fitting
from mtl.sparsity import pruning, pruning_schedules
from mtl.tools import tensorboard
from mtl.tools.tensorboard import board as board_lib
from mtl.tools.tensorboard import histograms, settings, watch
from mtl.variables import averaging, freezing, stacks
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
    """Return {step: {tag: histogram or number}}, without ordinary scalars."""
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
    """Return {task: {variable: gradient}} of the step after a checkpoint, and {op: activation}."""
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


def dump(statistics, shown, loop):
    """The ops of the training graph, and of each of its functions."""
    made = make(shown)
    watched = board_lib.Board(shown, 10) if shown else None
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        tf1.train.create_global_step()
        rows = made.data.dataset("train", training=True, seed=1, statistics=statistics)
        iterator = tf1.data.make_initializable_iterator(rows)
        is_on = bool(watched and watched.due_items)
        every = {"steps_per_call": 10, "last_step": 20, "due_every": (10,), "has_due": is_on}
        features, labels = (iterator, None) if loop else iterator.get_next()
        made.model.model_fn(
            features,
            labels,
            compat.estimator.ModeKeys.TRAIN,
            options=graph_options.GraphOptions(
                statistics=statistics,
                loop=every if loop else None,
                extensions=[watch.Watching(watched)] if watched else None,
            ),
        )
        proto = graph.as_graph_def()
    bodies = [[(n.name, n.op, len(n.input)) for n in f.node_def] for f in proto.library.function]
    return [(n.name, n.op, len(n.input)) for n in proto.node], sorted(bodies)


@pytest.mark.medium
@pytest.mark.parametrize("loop", [False, True])
def test_switched_off_the_graph_is_the_same(run, loop):
    statistics = fitting.load_statistics(str(run))
    plain = dump(statistics, None, loop)
    assert dump(statistics, tensorboard.TensorBoard(), loop) == plain
    assert dump(statistics, tensorboard.TensorBoard(weights=True), loop) != plain


def compare(found, expected, items, tolerance=1e-4):
    """Histograms of these items have the same sums and ends."""
    tags = [tag for tag in expected if tag.startswith(items)]
    assert tags and {tag for tag in found if tag.startswith(items)} == set(tags)
    for tag in tags:
        one, other = found[tag], expected[tag]
        if isinstance(other, float):
            assert one == pytest.approx(other, rel=10 * tolerance), tag
            continue
        scale = max(abs(other.max), abs(other.min), 1e-12)
        assert one.num == other.num, tag
        assert abs(one.max - other.max) < tolerance * scale, tag
        assert abs(one.min - other.min) < tolerance * scale, tag
        assert abs(one.sum - other.sum) < tolerance * scale * other.num, tag


OF_WHOLE = tuple(f"{n}/" for n in (*settings.OF_GRADIENTS, "weights")) + ("update_ratio/",)
PLAIN = networks.SharedBottom(trunk=networks.MLP(layers=[8]), tower=networks.MLP(layers=[4]))


def make_plain(shown, where=None, surgeon=None, **run):
    made = make(shown, surgeon, **{"train_steps": 3, "checkpoint_steps": 3, **run})
    model = dataclasses.replace(made.model, network=PLAIN)
    where = where or distribution.Distribution(strategy="none")
    return dataclasses.replace(made, model=model, distribution=where)


@pytest.mark.thorough
@pytest.mark.slow
def test_slices_and_replicas_show_the_gradients_of_the_whole_batch(tmp_path):
    """All start from one checkpoint, since initial weights differ."""
    two = distribution.Distribution(strategy="mirrored", devices=["/cpu:0", "/cpu:1"])
    everything = dict.fromkeys(settings.OF_STEPS, [3])
    tiny.train(make_plain(tensorboard.TensorBoard(**everything)), tmp_path / "whole")
    expected = read(tmp_path / "whole")[3]
    meet = {k: v for k, v in everything.items() if k != "task_gradients"}
    meet = {k: v for k, v in meet.items() if k != "gradients_before_surgery"}
    for folder, shown, where, parts in (
        ("slices", everything, None, 4),
        ("replicas", meet, two, 1),
    ):
        later = shutil.ignore_patterns("*-3.*", "*-3_*", "events.*", "tensorboard.json")
        shutil.copytree(tmp_path / "whole", tmp_path / folder, ignore=later)
        (tmp_path / folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"\n')
        tiny.train(
            make_plain(tensorboard.TensorBoard(**shown), where, micro_batches=parts),
            tmp_path / folder,
        )
        found = read(tmp_path / folder)[3]
        items = tuple(n for n in OF_WHOLE if n[:-1] in (*shown, "update_ratio"))
        compare(found, expected, items)
        assert any(tag.startswith("activations/") for tag in found)


@pytest.mark.medium
@pytest.mark.parametrize("item", ["task_gradients", "gradients_before_surgery"])
def test_what_replicas_cannot_show_is_refused(tmp_path, item):
    two = distribution.Distribution(strategy="mirrored", devices=["/cpu:0", "/cpu:1"])
    with pytest.raises(ValueError, match=f"TensorBoard.{item} must be False with several"):
        tiny.train(make_plain(tensorboard.TensorBoard(**{item: [3]}), two), tmp_path)


def vary(made, what):
    model = made.model
    if what == "sixteen bits":
        run = dataclasses.replace(made.run, precision=precision.Precision(dtype="float16"))
        return dataclasses.replace(made, run=run)
    if what == "average and freezing":
        model = dataclasses.replace(
            model,
            update=dataclasses.replace(model.update, average=averaging.ExponentialAverage()),
            freezing=freezing.Freezing(frozen=["^network/trunk/"]),
        )
    if what == "pruning":
        cut = pruning.Pruning(
            schedule=pruning_schedules.OneShot(step=2),
            sparsity=0.5,
        )
        model = dataclasses.replace(model, pruning=[cut])
    if what == "a step that is skipped":
        moving = update.Update(optimizer=_Blown(), if_not_finite="skip")
        model = dataclasses.replace(model, update=moving)
    return dataclasses.replace(made, model=model)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Blown(optimizers.SGD):
    """A step so large that the next gradient is not finite."""

    learning_rate: float = 1e30


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["sixteen bits", "average and freezing", "pruning", "a step that is skipped"]
)
def test_other_kinds_of_steps_show_what_they_do(tmp_path, what):
    every = dict.fromkeys(settings.OF_STEPS, [2, 3])
    run = {"checkpoint_steps": 1}
    plain = tiny.train(vary(make_plain(None, **run), what), tmp_path / "plain")
    shown = vary(make_plain(tensorboard.TensorBoard(**every), **run), what)
    with_all = tiny.train(shown, tmp_path / "shown")
    for name, value in plain.items():
        np.testing.assert_array_equal(value, with_all[name], err_msg=name)
    found = read(tmp_path / "shown")
    assert set(found) == {2, 3}
    for step, seen in found.items():
        before, after = (tiny.variables(tmp_path / "shown", n) for n in (step - 1, step))
        for tag in [tag for tag in seen if tag.startswith("updates/")]:
            name = tag.partition("/")[2]
            if not name.startswith("features/") and np.isfinite(after[name]).all():
                assert_histogram(seen[tag], after[name] - before[name], 1e-4)
    if what == "average and freezing":
        assert not [
            tag
            for tag in found[3]
            if "/network/trunk/" in tag and "activ" not in tag and "dead" not in tag
        ]
    if what == "a step that is skipped":
        assert not any(np.isnan(x) for x in found[3].values() if isinstance(x, float))


@pytest.mark.slow
def test_a_run_that_goes_on_writes_no_step_twice(tmp_path):
    every = dict.fromkeys(settings.OF_STEPS, [2, 4, 7])

    def go_on(steps):
        made = make_plain(tensorboard.TensorBoard(**every), train_steps=7, checkpoint_steps=3)
        if steps < 7:
            run = dataclasses.replace(made.run, train_steps=steps)
            shown = tensorboard.TensorBoard(**dict.fromkeys(settings.OF_STEPS, [2, 4]))
            made = dataclasses.replace(made, run=run, tensorboard=shown)
        tiny.train(made, tmp_path)

    go_on(5)
    # As if it had been killed after step 4, which no checkpoint holds.
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')
    go_on(7)
    kept, once = {}, []
    for event in tiny.events(tmp_path):
        if event.HasField("session_log"):
            kept = {step: tags for step, tags in kept.items() if step < event.step}
        for value in event.summary.value:
            if value.tag.startswith("weights/"):
                kept.setdefault(event.step, []).append(value.tag)
        once += [v.tag for v in event.summary.value if v.tag.startswith(("configuration", "_hp"))]
        once += ["graph"] if len(event.graph_def) > 1000 else []
    assert set(kept) == {2, 4, 7}
    assert all(len(set(tags)) == len(tags) for tags in kept.values())
    assert once.count("graph") == once.count("configuration") == 1


@pytest.mark.slow
def test_members_of_stacks_have_their_own_histograms(tmp_path, monkeypatch):
    names = [f"t{number}" for number in range(16)]
    monkeypatch.setattr(stacks, "FROM", len(names))
    splits = {
        split: {**rows, **dict.fromkeys(names, rows["sign"])} for split, rows in tiny.SPLITS.items()
    }
    made = tiny.make(splits=splits, train_steps=2, checkpoint_steps=1, network=PLAIN)
    spec = dataclasses.replace(tiny.SPEC, labels=dict.fromkeys(names, "int64"))
    made = dataclasses.replace(
        made,
        data=dataclasses.replace(made.data, spec=spec),
        model=dataclasses.replace(made.model, heads=[heads.Binary(name=name) for name in names]),
        tensorboard=tensorboard.TensorBoard(weights=[2], updates=[2], dead_units=[2]),
    )
    tiny.train(made, tmp_path)
    seen = read(tmp_path)[2]
    before, after = (tiny.variables(tmp_path, n) for n in (1, 2))
    for name in ("head/t7/logits/kernel", "network/tower_t15/hidden_0/kernel"):
        assert_histogram(seen[f"weights/{name}"], before[name])
        assert_histogram(seen[f"updates/{name}"], after[name] - before[name], 1e-4)


@pytest.mark.medium
def test_a_network_without_activations_is_refused(tmp_path):
    linear = networks.SharedBottom(trunk=networks.MLP(layers=[8], activation="linear"))
    for item in ("activations", "dead_units"):
        made = make_plain(tensorboard.TensorBoard(**{item: [2]}), train_steps=2)
        made = dataclasses.replace(made, model=dataclasses.replace(made.model, network=linear))
        with pytest.raises(ValueError, match=f"TensorBoard.{item} must be False with this netw"):
            tiny.train(made, tmp_path / item)


def test_units_of_a_stack_are_told_apart():
    outputs = np.ones([5, 64, 2], np.float32)
    outputs[:, :16, 0] = 0
    for may_stack, expected in ((True, 1 / 8), (False, 0.0)):
        with tf.Graph().as_default(), tf1.Session() as session, stacks.stack_tasks(may_stack):
            share = watch._share_dead(tf.constant(outputs), 64)
            assert session.run(share) == expected


@pytest.mark.medium
def test_patterns_choose_variables(tmp_path):
    shown = tensorboard.TensorBoard(weights=[2], variables=["^head/sign/"])
    tiny.train(make_plain(shown, train_steps=2), tmp_path / "a")
    assert set(read(tmp_path / "a")[2]) == {
        f"weights/head/sign/logits/{n}" for n in ("kernel", "bias")
    }
    shown = dataclasses.replace(shown, variables=["^had/"])
    with pytest.raises(
        ValueError, match="TensorBoard.variables must match a variable, got '.had/'"
    ):
        tiny.train(make_plain(shown, train_steps=2), tmp_path / "b")


@pytest.mark.medium
def test_an_update_that_shows_no_gradients_is_refused(tmp_path):
    class Own(update.Update):
        def __call__(self, gradients, variables, losses=None):
            step = tf1.train.get_global_step()
            return step.assign_add(1, read_value=False), {}

    made = make_plain(tensorboard.TensorBoard(weights=[2]), train_steps=2)
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, update=Own()))
    with pytest.raises(ValueError, match="TensorBoard.weights must be False with this update"):
        tiny.train(made, tmp_path)


@pytest.mark.parametrize("shape, stride", [((300, 3), 10), ((3, 300), 11), ((900,), 11)])
def test_of_a_large_tensor_entries_of_all_rows_and_columns_are_shown(monkeypatch, shape, stride):
    monkeypatch.setattr(histograms, "MOST_ENTRIES", 100)
    values = np.arange(900, dtype=np.float32).reshape(shape)
    with tf.Graph().as_default(), tf1.Session() as session:
        drawn = session.run(histograms.draw("weights/table", tf.constant(values)))
    (value,) = tf1.Summary.FromString(drawn).value
    assert_histogram(value.histo, values.ravel()[::stride])


def test_weights_are_read_before_they_move_however_late_their_rows_are_known():
    def wait(rows):
        time.sleep(0.2)
        return rows

    with tf.Graph().as_default(), tf1.Session() as session:
        table = tf1.get_variable("table", [3, 1], initializer=tf1.zeros_initializer())
        (late,) = tf1.py_func(wait, [np.array([0, 2])], [tf.int64])
        late.set_shape([2])
        part = watch._Part(tf.constant(True), [(table, tf.IndexedSlices(tf.ones([2, 1]), late))])
        part.look(lambda: [tf.constant("")])
        with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
            moved = table.assign_add(tf.ones([3, 1]), read_value=False)
        drawn = part.finish(moved)
        session.run(tf1.global_variables_initializer())
        values = tf1.Summary.FromString(session.run(drawn)).value
        (update,) = [value for value in values if value.tag.startswith("updates/")]
        assert (update.histo.num, update.histo.min) == (2, 1)
