"""Surgery of the gradients of a small graph agrees with the same computation in NumPy."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.balancing import decision, methods, surgery
from mtl.balancing.methods import method as method_lib
from mtl.optimization import optimizers, update
from mtl.step import whole_batch
from tests.balancing import surgery_methods
from tests.optimization import training

tf1 = tf.compat.v1

IDS = {"a": [3, 1, 3], "b": [0, 3, 5]}
VALUES = {"kernel": [[1.0, 2.0], [-0.5, 0.3]], "table": np.arange(12).reshape(6, 2) / 7}
VALUES |= {"own_a": [0.5, -1.0], "own_b": [2.0, 0.25], "unused": [1.0]}


class Recorded(method_lib.Method):
    """A method with a fixed weight for each task, which no real method gives by chance."""

    def weights(self, tasks):
        del tasks
        return tf.constant([0.25, 3.0], tf.float64)


def _graph(scale_b=1.0):
    """{name: variable}, {task: loss} and the representation [2, 3, 2] of the tasks' rows."""
    with tf1.variable_scope("network"):
        variables = {name: training.variable(name, value) for name, value in VALUES.items()}
    hidden = {
        task: tf.tanh(tf.gather(variables["table"], ids) @ variables["kernel"])
        for task, ids in IDS.items()
    }
    both = tf.stack(list(hidden.values()))
    return variables, _losses(variables, both, scale_b), [both]


def _losses(variables, both, scale_b=1.0):
    return {
        "a": tf.reduce_sum(both[0] * variables["own_a"]),
        "b": scale_b * tf.reduce_sum((both[1] * variables["own_b"] - 1) ** 2),
    }


def _batch(variables, losses, both, scale_b=1.0):
    """The batch, and samples of the rows of both tasks."""

    def samples(count):
        return [_losses(variables, both[:, first::count], scale_b) for first in range(count)]

    return whole_batch.WholeBatch(whole_batch.ForwardPass(losses, [both], samples))


def _run(part, scale_b=1.0, plain=None, steps=1):
    """{name: gradient, dense} and the scalars, at each of the steps."""
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.train.get_or_create_global_step()
        variables, losses, shared = _graph(scale_b)
        with tf1.variable_scope("balancing"):
            if plain is not None:
                total = tf.add_n([w * loss for w, loss in zip(plain, losses.values(), strict=True)])
                gradients, monitors = tf.gradients(total, list(variables.values())), {}
            else:
                batch = _batch(variables, losses, *shared, scale_b)
                gradients, monitors = part(losses, list(variables.values()), batch)
        assert gradients[-1] is None
        assert isinstance(gradients[1], tf.IndexedSlices)
        named = dict(
            zip(variables, [tf.convert_to_tensor(g) for g in gradients[:-1]], strict=False)
        )
        with tf.control_dependencies([*named.values(), *monitors.values()]):
            updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
            with tf.control_dependencies(updates):
                advance = tf1.assign_add(step, 1)
        session.run(tf1.global_variables_initializer())
        return [session.run([named, monitors, advance])[:2] for _ in range(steps)]


def _dense(scale_b=1.0, task="a"):
    weights = {"a": (1.0, 0.0), "b": (0.0, 1.0)}[task]
    return _run(None, scale_b, plain=weights)[0][0]


def test_sum():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weights = training.variable("weights", [1.0, 2.0])
        table = training.variable("table", np.ones([4, 2]))
        unused = training.variable("unused", [1.0])
        rows = tf.gather(table, [3, 1, 3])
        losses = {"a": 3 * tf.reduce_sum(weights**2), "b": tf.reduce_sum(weights * rows)}
        gradients, _ = surgery.Sum()(losses, [weights, table, unused])
        assert gradients[2] is None
        assert isinstance(gradients[1], tf.IndexedSlices)
        session.run(tf.compat.v1.global_variables_initializer())
        dense, sparse = session.run(gradients[:2])
        np.testing.assert_allclose(dense, 6 * np.array([1.0, 2.0]) + 3)
        np.testing.assert_array_equal(sparse.indices, [3, 1, 3])
        np.testing.assert_allclose(sparse.values, [[1.0, 2.0]] * 3)


@pytest.mark.medium
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scopes": ["/kernel$"]},
        {"scopes": ["/table$"]},
        {"on": "representation"},
        {"every_steps": 3},
        {"every_steps": 2, "on": "representation"},
    ],
    ids=str,
)
def test_weights_reach_what_is_shared_and_nothing_else(settings):
    part = surgery.Combine(method=Recorded(), **settings)
    (gradients, monitors), *_ = _run(part)
    weighted, plain = _run(None, plain=(0.25, 3.0))[0][0], _run(None, plain=(1, 1))[0][0]
    for name in ("kernel", "table"):
        np.testing.assert_allclose(gradients[name], weighted[name], rtol=1e-6, atol=1e-7)
    for name in ("own_a", "own_b"):
        np.testing.assert_allclose(gradients[name], plain[name], rtol=1e-6)
    assert monitors["surgery/weight/a"] == pytest.approx(0.25)
    assert monitors["surgery/weight/b"] == pytest.approx(3.0)


def _flat(gradients):
    return np.concatenate([np.ravel(gradients[name]) for name in ("kernel", "table")])


@pytest.mark.medium
def test_norms_cosines_and_conflicts_equal_numpy_where_tables_share_some_rows():
    ((_, monitors),) = _run(surgery.Combine(method=methods.MGDA()))
    first, second = _flat(_dense(task="a")), _flat(_dense(task="b"))
    norms = np.linalg.norm(first), np.linalg.norm(second)
    assert monitors["surgery/norm/a"] == pytest.approx(norms[0], rel=1e-6)
    assert monitors["surgery/norm/b"] == pytest.approx(norms[1], rel=1e-6)
    cosine = first @ second / norms[0] / norms[1]
    assert monitors["surgery/cosine/a/b"] == pytest.approx(cosine, rel=1e-5)
    assert monitors["surgery/conflicts"] == float(cosine < 0)


@pytest.mark.parametrize(
    "squares, cosines, conflicts",
    [
        ([1, 1, 1], [-0.5, 0.5, 0.5], 1 / 3),
        ([1, 1, 0], [-0.5, math.nan, math.nan], 1.0),  # The last task is absent.
        ([1, 0, 0], [math.nan] * 3, math.nan),
    ],
)
def test_an_absent_task_has_no_cosine_and_no_conflict(squares, cosines, conflicts):
    products = np.array([[1, -0.5, 0.5], [-0.5, 1, 0.5], [0.5, 0.5, 1]])
    lengths = np.sqrt(squares)
    monitors = decision.monitor_gramian(tf.constant(products * np.outer(lengths, lengths)), "abc")
    pairs = [monitors[f"surgery/cosine/{pair}"] for pair in ("a/b", "a/c", "b/c")]
    np.testing.assert_allclose(pairs, cosines, rtol=1e-6)
    np.testing.assert_allclose(monitors["surgery/conflicts"], conflicts, rtol=1e-6)


@pytest.mark.parametrize("lookups", [1, 2])
def test_rows_that_all_tasks_looked_up_are_found_once(lookups):
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        table = training.variable("table", np.arange(12).reshape(6, 2) / 7)
        ids = [tf.constant([[3, 1], [3, 3]]), tf.constant([[0, 1], [5, 0]])][:lookups]
        rows = tf.add_n([tf.gather(table, part) for part in ids])
        slope = np.random.default_rng(0).normal(size=[2, 2, 2, 2]).astype(np.float32)
        losses = {task: tf.reduce_sum(rows * slope[t]) for t, task in enumerate("ab")}
        (gradient,), monitors = surgery.Combine(method=Recorded())(losses, [table])
        assert sum(op.type == "Unique" for op in graph.get_operations()) == 1
        session.run(tf1.global_variables_initializer())
        value, dense, monitors = session.run([gradient, tf.convert_to_tensor(gradient), monitors])
        each = np.zeros([2, 6, 2])
        for part in session.run(ids):
            for t in range(2):
                np.add.at(each[t], part, slope[t])
    assert len(set(value.indices)) == len(value.indices)
    np.testing.assert_allclose(dense, 0.25 * each[0] + 3 * each[1], rtol=1e-5, atol=1e-6)
    assert monitors["surgery/norm/a"] == pytest.approx(np.linalg.norm(each[0]), rel=1e-6)


@pytest.mark.parametrize("rows", [2, 1], ids=["rows", "one row"])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (1, 1), (0, 0), (0, -1), (-1, -1)], ids=str)
def test_tasks_that_look_up_the_same_ids_in_another_order(axes, rows):
    """The flat ids depend on the axis along which the parts of the ids are joined."""
    parts = [np.array([[0, 1], [2, 3]])[:rows], np.array([[4, 5], [0, 0]])[:rows]]
    random = np.random.default_rng(0)
    start, each = random.normal(size=[6, 2]), np.zeros([2, 6, 2])
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        table, fed = training.variable("table", start), list(map(tf.constant, parts))
        losses = {}
        for t, (task, axis) in enumerate(zip("ab", axes, strict=True)):
            ids = np.concatenate(parts, axis)
            slope = random.normal(size=[*ids.shape, 2]).astype(np.float32)
            losses[task] = tf.reduce_sum(tf.gather(table, tf.concat(fed, axis)) * slope)
            np.add.at(each[t], ids, slope)
        (gradient,), monitors = surgery.Combine(method=Recorded())(losses, [table])
        session.run(tf1.global_variables_initializer())
        dense, monitors = session.run([tf.convert_to_tensor(gradient), monitors])
    np.testing.assert_allclose(dense, 0.25 * each[0] + 3 * each[1], rtol=1e-5, atol=1e-6)
    for task, own in zip("ab", each, strict=True):
        assert monitors[f"surgery/norm/{task}"] == pytest.approx(np.linalg.norm(own), rel=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("every_steps", [1, 2])
def test_mgda_ub_compares_the_representation_and_keeps_samples_apart(every_steps):
    part = surgery.Combine(method=methods.MGDA(), on="representation", every_steps=every_steps)
    ((_, monitors),) = _run(part)
    with tf.Graph().as_default(), tf1.Session() as session:
        _, losses, (both,) = _graph()
        rows = [tf.reshape(tf.gradients(loss, both)[0], [-1]) for loss in losses.values()]
        session.run(tf1.global_variables_initializer())
        first, second = session.run(rows)
    share = np.clip(second @ (second - first) / np.sum((second - first) ** 2), 0, 1)
    assert monitors["surgery/weight/a"] == pytest.approx(share, abs=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("on", ["parameters", "representation"])
@pytest.mark.parametrize(
    "method",
    [getattr(methods, name)() for name in methods.__all__ if name not in ("DBMTL", "MoCo")],
    ids=lambda method: type(method).__name__,
)
def test_a_task_that_is_absent_from_the_batch_is_left_out(method, on):
    if isinstance(method, methods.MoDo | methods.SDMGrad):
        method = dataclasses.replace(method, samples=2)  # The third part has not all rows of `a`.
    settings = {"scopes": ["/kernel$"]} if isinstance(method, methods.ExcessMTL) else {}
    try:
        part = surgery.Combine(method=method, on=on, **settings)
    except checks.UserError:
        assert on == "representation"
        return
    ((gradients, monitors),) = _run(part, scale_b=0.0)
    alone = _dense(task="a")
    ratios = []
    for name in ("kernel", "table"):
        assert np.isfinite(gradients[name]).all()
        where = alone[name] != 0
        ratios.extend((gradients[name][where] / alone[name][where]).tolist())
        np.testing.assert_array_equal(gradients[name][~where], 0)
    if on == "parameters" or not isinstance(method, methods.GradDrop):
        np.testing.assert_allclose(ratios, ratios[0], rtol=1e-5)
        assert ratios[0] > 0
    np.testing.assert_array_equal(gradients["own_b"], 0)
    _require_finite(monitors)


def _require_finite(monitors):
    """Fail if a scalar is not finite; only cosines of absent tasks are NaN."""
    of_pairs = ("surgery/cosine", "surgery/conflicts")
    values = {name: value for name, value in monitors.items() if not name.startswith(of_pairs)}
    assert np.isfinite(list(values.values())).all(), values


@pytest.mark.medium
@pytest.mark.parametrize("on", ["parameters", "representation"])
@pytest.mark.parametrize("method", [methods.CAGrad(), methods.NashMTL(), methods.GradDrop()])
def test_a_batch_without_any_task_moves_nothing(method, on):
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        variables, losses, shared = _graph()
        losses = {task: 0.0 * loss for task, loss in losses.items()}
        part = surgery.Combine(method=method, on=on)
        batch = whole_batch.WholeBatch(whole_batch.ForwardPass(losses, shared))
        gradients, monitors = part(losses, list(variables.values()), batch)
        session.run(tf1.global_variables_initializer())
        gradients, monitors = session.run(
            [list(map(tf.convert_to_tensor, gradients[:4])), monitors]
        )
        assert not any(np.any(gradient) for gradient in gradients)
        _require_finite(monitors)


@pytest.mark.medium
def test_a_task_that_does_not_reach_a_shared_variable():
    """Its gradient there is None, between two that are not."""
    targets = {"both": [1.0, -2.0], "far": [0.3, 0.5], "also": [-1.0, 0.5]}
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        kernel, bias = (training.variable(name, [0.5, 0.25]) for name in ("kernel", "bias"))
        losses = {
            name: tf.reduce_sum((kernel + (0 if name == "far" else bias) - target) ** 2)
            for name, target in targets.items()
        }
        gradients, monitors = surgery.Combine(method=methods.UPGrad())(losses, [kernel, bias])
        session.run(tf1.global_variables_initializer())
        actual, monitors = session.run([tf.concat(gradients, 0), monitors])
    rows = []
    for name, target in targets.items():
        slope = 2 * ((0.5 if name == "far" else 1.0) * np.array([1.0, 0.5]) - target)
        rows.append(np.concatenate([slope, 0 * slope if name == "far" else slope]))
    weights = surgery_methods.weights(methods.UPGrad(), rows)
    np.testing.assert_allclose(actual, weights @ rows, rtol=1e-5)
    for name, row, weight in zip(targets, rows, weights, strict=True):
        assert monitors[f"surgery/norm/{name}"] == pytest.approx(np.linalg.norm(row), rel=1e-6)
        assert monitors[f"surgery/weight/{name}"] == pytest.approx(weight, rel=1e-5)


@pytest.mark.medium
def test_weights_are_kept_between_decisions():
    part = surgery.Combine(method=methods.Random(), every_steps=3)
    weights = [monitors["surgery/weight/a"] for _, monitors in _run(part, steps=8)]
    assert weights[0] == weights[1] == weights[2] != weights[3]
    assert weights[3] == weights[4] == weights[5] != weights[6] == weights[7]


@pytest.mark.medium
def test_weights_are_averaged():
    plain = [
        w["surgery/weight/a"] for _, w in _run(surgery.Combine(method=methods.Random()), steps=4)
    ]
    part = surgery.Combine(method=methods.Random(), average=0.75)
    expected = 1.0
    for (_, monitors), new in zip(_run(part, steps=4), plain, strict=True):
        expected = 0.75 * expected + 0.25 * new
        assert monitors["surgery/weight/a"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize(
    "method", [methods.MoCo(rate=0.25, step_size=0.2), methods.DBMTL(rate=0.25)], ids=str
)
def test_averaged_gradients_equal_numpy_over_steps(method):
    part = surgery.Combine(method=method, scopes=["/kernel$"])
    rows = np.stack([np.ravel(_dense(task=task)["kernel"]) for task in ("a", "b")])
    average, weights = np.zeros_like(rows), np.full(2, 0.5)
    for gradients, monitors in _run(part, steps=5):
        average += 0.25 * (rows - average)
        lengths = np.linalg.norm(average, axis=1)
        if isinstance(method, methods.MoCo):
            moved = weights - 0.2 * average @ average.T @ weights
            share = np.clip((1 + moved[0] - moved[1]) / 2, 0, 1)  # The simplex of two.
            weights = np.array([share, 1 - share])
        else:
            weights = lengths.max() / lengths
        for task, weight in zip("ab", weights, strict=True):
            assert monitors[f"surgery/weight/{task}"] == pytest.approx(weight, rel=1e-5)
        np.testing.assert_allclose(np.ravel(gradients["kernel"]), weights @ average, rtol=1e-5)


@pytest.mark.medium
def test_excess_risks_equal_numpy_over_steps():
    """The second loss grows from step to step, so that its excess risk does."""
    method = methods.ExcessMTL(step_size=0.3)
    rows = np.stack([np.ravel(_dense(task=task)["kernel"]) for task in ("a", "b")])
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.train.get_or_create_global_step()
        variables, losses, _ = _graph(1.0 + tf.cast(step.read_value(), tf.float32))
        part = surgery.Combine(method=method, scopes=["/kernel$"])
        with tf1.variable_scope("balancing"):
            gradients, monitors = part(losses, list(variables.values()))
        with tf.control_dependencies([*gradients[:2], *monitors.values()]):
            updates = tf.group(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
        with tf.control_dependencies([updates]):
            advance = tf1.assign_add(step, 1)
        session.run(tf1.global_variables_initializer())
        squares, weights, first = np.zeros_like(rows), np.full(2, 0.5), None
        for number in range(4):
            kernel, shown, _ = session.run([gradients[0], monitors, advance])
            now = rows * [[1], [1 + number]]
            squares += now**2
            risks = np.sum(now**2 / np.sqrt(squares), axis=1)
            first = risks if first is None else first
            weights = weights * np.exp(0.3 * risks / first) if number else weights
            weights /= weights.sum()
            assert shown["surgery/weight/b"] == pytest.approx(weights[1], rel=1e-5)
            assert shown["surgery/norm/b"] == pytest.approx(np.linalg.norm(now[1]), rel=1e-5)
            np.testing.assert_allclose(np.ravel(kernel), weights @ now, rtol=1e-5)
        assert weights[1] > 0.6


@pytest.mark.medium
def test_an_absent_task_keeps_its_averaged_gradient():
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        scale = tf1.placeholder(tf.float32, [])
        variables, losses, _ = _graph(scale)
        part = surgery.Combine(method=methods.DBMTL(rate=0.5), scopes=["/kernel$"])
        with tf1.variable_scope("balancing"):
            gradients, _ = part(losses, list(variables.values()))
        with tf.control_dependencies([gradients[0]]):
            updates = tf.group(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
        (average,) = [v for v in tf1.global_variables() if "tracked" in v.name]
        session.run(tf1.global_variables_initializer())
        session.run(updates, {scale: 1.0})
        before = session.run(average)
        session.run(updates, {scale: 0.0})
        after = session.run(average)
        np.testing.assert_array_equal(after[1], before[1])
        assert np.abs(after[0] - before[0]).max() > 0


ROWS_OF_STATE = [
    surgery.Combine(method=methods.GradNorm(), every_steps=2),
    surgery.Combine(method=methods.GradVac(rate=0.3), average=0.5),
    surgery.Combine(method=methods.MoCo(), scopes=["/kernel$"]),
    surgery.Combine(method=methods.PCGrad(), on="representation", every_steps=3),
    surgery.Combine(method=methods.GradDrop()),
    surgery.Combine(method=methods.MoDo(), every_steps=2),
    surgery.Combine(method=methods.SDMGrad(samples=2), average=0.5),
    surgery.Combine(method=methods.ExcessMTL(step_size=0.5), scopes=["/kernel$"]),
    surgery.Combine(method=methods.PCD(primary="b", tau=0.5)),
]


@pytest.mark.medium
@pytest.mark.parametrize("part", ROWS_OF_STATE, ids=lambda part: type(part.method).__name__)
def test_a_restored_run_goes_on_as_if_it_had_not_stopped(part, tmp_path):
    def step_fn(batch):
        del batch
        variables, losses, shared = _graph()
        with tf1.variable_scope("balancing"):
            batch = _batch(variables, losses, *shared)
            gradients, _ = part(losses, list(variables.values()), batch)
        optimizer = optimizers.SGD(learning_rate=0.05)
        return update.Update(optimizer=optimizer)(gradients, list(variables.values()), losses)

    path = str(tmp_path / "model.ckpt")
    whole, resumed = training.train_in_parts(step_fn, 5, 11, path)
    single = training.train(step_fn, 11, looped=False).variables
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
        np.testing.assert_allclose(single[name], value, rtol=1e-5, err_msg=name)


def test_one_task_is_plain_training():
    with tf.Graph().as_default():
        variables, losses, shared = _graph()
        only = {"a": losses["a"]}
        gradients, monitors = surgery.Combine(method=methods.NashMTL())(
            only,
            list(variables.values()),
            whole_batch.WholeBatch(whole_batch.ForwardPass(only, shared)),
        )
        assert monitors == {}
        assert [gradient is None for gradient in gradients] == [False, False, False, True, True]


def test_nothing_is_as_large_as_the_table():
    """Ten billion rows: any dense gradient of them would not fit into memory."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        # The full table does not exist: `lookup` returns constant rows, and gradients of this size.
        size = tf.constant([10_000_000_000, 2], tf.int64)

        @tf.custom_gradient
        def lookup(table, ids):
            def gradient(upstream):
                return tf.IndexedSlices(upstream, ids, size), None

            return tf.reduce_sum(table) * tf.ones([3, 2]), gradient

        table = training.variable("table", np.ones([1, 2]))
        rows = {
            task: lookup(table, tf.constant(ids, tf.int64) * 1_000_000_000)
            for task, ids in IDS.items()
        }
        losses = {"a": tf.reduce_sum(rows["a"]), "b": tf.reduce_sum(-2 * rows["b"])}
        part = surgery.Combine(method=methods.UPGrad())
        (gradient,), monitors = part(losses, [table])
        session.run(tf1.global_variables_initializer())
        value, conflicts = session.run([gradient, monitors["surgery/conflicts"]])
        assert conflicts == 1
        assert sorted(value.indices // 1_000_000_000) == [0, 1, 3, 5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": methods.PCGrad}, r"Combine.method must be a part such as @methods.PCGrad\(\)"),
        ({"on": "activations"}, "Combine.on must be one of parameters, representation, got 'act"),
        ({"every_steps": 0}, "Combine.every_steps must be at least 1, got 0"),
        (
            {"every_steps": 1.5},
            "Combine.every_steps must be a whole number, got 1.5",
        ),
        ({"average": 1.0}, r"Combine.average must be in \[0, 1\), got 1.0"),
        ({"scopes": "kernel"}, "Combine.scopes must be a list of patterns, got 'kernel'"),
        (
            {"scopes": ["kernel"], "on": "representation"},
            "Combine.scopes must be empty on the representation",
        ),
        (
            {"method": methods.MoCo(), "every_steps": 2},
            "Combine.every_steps must be 1, got 2. MoCo",
        ),
        ({"method": methods.DBMTL(), "on": "representation"}, "Combine.on must be parameters, got"),
        (
            {"method": methods.ExcessMTL(), "every_steps": 2},
            "Combine.every_steps must be 1, got 2. ExcessMTL keeps state",
        ),
        (
            {"method": methods.MoDo(), "on": "representation"},
            "Combine.on must be parameters, got 'representation'. MoDo multiplies gradients of dif",
        ),
        (
            {"method": methods.GradDrop(), "every_steps": 10},
            "Combine.every_steps must be 1, got 10. GradDrop decides for every coordinate",
        ),
        (
            {"method": methods.TrimmedMean(), "average": 0.5},
            "Combine.average must be 0, got 0.5. TrimmedMean decides for every coordinate",
        ),
    ],
)
def test_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        surgery.Combine(**{"method": methods.PCGrad(), **settings})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: methods.MGDA(normalizer="l1"), "MGDA.normalizer must be one of none, l2, loss"),
        (lambda: methods.CAGrad(c=-0.1), "CAGrad.c must be at least 0, got -0.1"),
        (lambda: methods.GradVac(rate=0), "GradVac.rate must be in .0, 1., got 0"),
        (lambda: methods.GradVac(rate=1.5), r"GradVac.rate must be in \(0, 1\], got 1.5"),
        (lambda: methods.FairGrad(alpha=0), "FairGrad.alpha must be above 0, got 0"),
        (lambda: methods.AlignedMTL(scale="max"), "AlignedMTL.scale must be one of min, median"),
        (lambda: methods.GradNorm(alpha=-1), "GradNorm.alpha must be at least 0, got -1"),
        (lambda: methods.GradNorm(learning_rate=0), "GradNorm.learning_rate must be above 0"),
        (lambda: methods.MoCo(rate=0), "MoCo.rate must be above 0, got 0"),
        (lambda: methods.MoCo(step_size=0), "MoCo.step_size must be above 0, got 0"),
        (lambda: methods.MoCo(ridge=-1), "MoCo.ridge must be at least 0, got -1"),
        (lambda: methods.MoCo(projection="x"), "MoCo.projection must be one of simplex, softmax"),
        (lambda: methods.MoDo(samples=1), "MoDo.samples must be one of 2, 3, got 1"),
        (lambda: methods.MoDo(step_size=0), "MoDo.step_size must be above 0, got 0"),
        (lambda: methods.MoDo(ridge=-1), "MoDo.ridge must be at least 0, got -1"),
        (lambda: methods.SDMGrad(pull=-1), "SDMGrad.pull must be at least 0, got -1"),
        (lambda: methods.SDMGrad(steps=0), "SDMGrad.steps must be at least 1, got 0"),
        (lambda: methods.SDMGrad(momentum=1), r"SDMGrad.momentum must be in \[0, 1\), got 1"),
        (lambda: methods.ExcessMTL(step_size=0), "ExcessMTL.step_size must be above 0, got 0"),
        (lambda: methods.ExcessMTL(warmup_steps=0), "ExcessMTL.warmup_steps must be at least 1"),
        (lambda: methods.PCD(tau=1.5), r"PCD.tau must be in \[0, 1\], got 1.5"),
        (lambda: methods.PCD(decay=1), r"PCD.decay must be in \[0, 1\), got 1"),
        (lambda: methods.PCD(primary=0), "PCD.primary must name a task, got 0"),
        (lambda: methods.DBMTL(rate=1.1), r"DBMTL.rate must be in \(0, 1\], got 1.1"),
        (lambda: methods.Krum(outliers=-1), "Krum.outliers must be at least 0, got -1"),
        (lambda: methods.Krum(selected=0.5), "Krum.selected must be a whole number, got 0.5"),
        (lambda: methods.TrimmedMean(trim=-1), "TrimmedMean.trim must be at least 0, got -1"),
        (lambda: methods.GradDrop(leak=1), r"GradDrop.leak must be in \[0, 1\), got 1"),
    ],
)
def test_method_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.medium
def test_a_loss_beside_the_compared_gradients_is_refused():
    """A second forward pass does not go through the representation: it would get the weight 0."""
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        trunk, top = (tf1.get_variable(name, [2]) for name in ("trunk", "top"))
        first, second = trunk * 2, trunk * 3
        names = {"a": first * top, "b": first, "noise": second * top}
        losses = {name: tf.reduce_sum(value) for name, value in names.items()}
        batch = whole_batch.WholeBatch(whole_batch.ForwardPass(losses, [first]))
        part = surgery.Combine(method=methods.MGDA(), on="representation")
        message = (
            'Combine.on must be "parameters" for .* got .representation.. Of noise, no gradient'
        )
        with pytest.raises(ValueError, match=message):
            part(losses, [trunk, top], batch)
        part = surgery.Combine(method=methods.MGDA(), scopes=["top"])
        with pytest.raises(ValueError, match="Combine.scopes must match a variable of each loss, "):
            part(losses, [trunk, top], batch)
        surgery.Combine(method=methods.MGDA())(losses, [trunk, top], batch)


@pytest.mark.medium
def test_what_does_not_suit_the_network():
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        variables, losses, _ = _graph()
        part = surgery.Combine(method=methods.MGDA(), on="representation")
        message = "Combine.on must suit the network, got 'representation'. The network has no"
        with pytest.raises(ValueError, match=message):
            part(losses, list(variables.values()))
        unreached = whole_batch.WholeBatch(
            whole_batch.ForwardPass(losses, [tf.zeros([2], name="aside")])
        )
        with pytest.raises(ValueError, match="Towers.shared must affect a loss, got 'aside:0"):
            part(losses, list(variables.values()), unreached)
        part = surgery.Combine(method=methods.MoCo())
        message = r"Combine.scopes must match dense variables, got \['network/table'\]. The tracked"
        with pytest.raises(ValueError, match=message):
            part(losses, list(variables.values()))
        part = surgery.Combine(method=methods.MoDo())
        with pytest.raises(ValueError, match="Combine.method must suit the model, got MoDo"):
            part(losses, list(variables.values()))
        part = surgery.Combine(method=methods.MGDA(), scopes=["/own_a$"])
        with pytest.raises(
            ValueError,
            match="Combine.scopes must match a variable that trains for several tasks, got '/own_a",
        ):
            part(losses, list(variables.values()))
