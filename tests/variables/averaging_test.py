"""Averages of the weights: against NumPy, and through evaluation, export, refit and warm start."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, distribution, networks, transfer, verbs
from mtl.optimization import lookahead, optimizers, transforms, update
from mtl.variables import average_saver, averages, averaging, freezing, masks
from tests import tiny
from tests.optimization import training

pytestmark = pytest.mark.medium

DECAY = 0.7
STEPS = 30
RANDOM = np.random.default_rng(0)
START = RANDOM.normal(size=[4, 2])


def _decay(step):
    return min(DECAY, (1 + step) / (10 + step)) if step else 0.0


def _part(**settings):
    average = averaging.ExponentialAverage(decay=DECAY)
    return update.Update(average=average, **settings)


def _caught_up(values, name):
    """The average of a table as of now, by `averaging.value_in` a checkpoint of the variables."""

    class Reader:
        has_tensor, get_tensor = values.__contains__, values.__getitem__

    return averaging.value_in(Reader, f"{name}/average")


@pytest.mark.parametrize("looped", training.LOOPED)
def test_equals_numpy(looped):
    gradients = RANDOM.normal(size=[STEPS, 4, 2])
    ids = np.stack([RANDOM.permutation(4)[:2] for _ in range(STEPS)])

    def step_fn(step):
        variables = [training.variable(name, START) for name in ("kernel", "table")]
        dense = tf.gather(gradients.astype(np.float32), step)
        rows = tf.gather(tf.constant(ids), step)
        sparse = tf.IndexedSlices(tf.gather(dense, rows), rows, tf.constant([4, 2]))
        part = _part(optimizer=optimizers.SGD(learning_rate=0.1))
        return part([dense, sparse], variables)

    result = training.train(step_fn, STEPS, looped).variables
    kernel, table = START.copy(), START.copy()
    averages = [START.copy(), START.copy()]
    for step in range(STEPS):
        kernel -= 0.1 * gradients[step]
        table[ids[step]] -= 0.1 * gradients[step][ids[step]]
        for average, weights in zip(averages, (kernel, table), strict=True):
            average += (1 - _decay(step)) * (weights - average)
    np.testing.assert_allclose(result["kernel"], kernel, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result["kernel/average"], averages[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(_caught_up(result, "table"), averages[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("looped", training.LOOPED)
def test_a_skipped_step_moves_no_average(looped):
    """The first step is skipped too: averages of weights and tables start at the initial values."""
    bad = (0, 2)

    def step_fn(step):
        variables = [training.variable(name, START) for name in ("kernel", "table")]
        values = tf.where(tf.reduce_any(tf.equal(step, bad)), np.nan, tf.ones([4, 2]))
        sparse = tf.IndexedSlices(values[:2], tf.range(2), tf.constant([4, 2]))
        return _part(optimizer=optimizers.SGD(learning_rate=0.1), if_not_finite="skip")(
            [values, sparse], variables
        )

    result = training.train(step_fn, 4, looped)
    assert result.monitors["skipped_steps"] == 2
    for name, rows in (("kernel", 4), ("table", 2)):
        average, weights = START.copy(), START.copy()
        for step in (1, 3):
            weights[:rows] -= 0.1
            average[:rows] += (1 - _decay(step)) * (weights[:rows] - average[:rows])
        np.testing.assert_allclose(_caught_up(result.variables, name), average, rtol=1e-5)


class _Lookups:
    """Steps with a table of 8 rows, the same in NumPy: averaged all of it after every step.

    Row 0 is looked up at every step, row 1 at every 100th, row 2 at the first and row 3 at the last
    one alone, row 4 at the 5th twice, rows 5 and 6 now and then by chance, and row 7 never.
    """

    decay = 0.999

    def __init__(self, steps, optimizer=None):
        random, self.steps = np.random.default_rng(3), steps
        self.part = update.Update(
            optimizer=optimizer or optimizers.SGD(learning_rate=0.01),
            average=averaging.ExponentialAverage(decay=self.decay),
            if_not_finite="skip",
        )
        self.start = random.normal(size=[8, 2]).astype(np.float32)
        self.ids, step = np.zeros([steps, 3], np.int64), np.arange(steps)
        self.ids[step % 100 == 0, 1] = 1
        self.ids[0, 2], self.ids[-1, 2], self.ids[4, 1:] = 2, 3, 4
        rare = (random.random(steps) < 0.01) & (self.ids[:, 2] == 0)
        self.ids[rare, 2] = random.integers(5, 7, size=rare.sum())
        self.gradients = random.normal(size=[steps, 3, 2]).astype(np.float32)
        self.gradients[[7, 11]] = np.nan

    def step_fn(self, batch):
        del batch
        step = tf.compat.v1.train.get_or_create_global_step().read_value()
        table = training.variable("table", self.start)
        rows, values = tf.gather(self.ids, step), tf.gather(self.gradients, step)
        return self.part([tf.IndexedSlices(values, rows, tf.constant([8, 2]))], [table])

    def expected(self):
        """The table, and its average."""
        weights = self.start.copy()
        average = weights.astype(np.float64)
        for step in range(self.steps):
            if np.isfinite(self.gradients[step]).all():
                total = np.zeros_like(weights)
                np.add.at(total, self.ids[step], self.gradients[step])
                weights -= np.float32(0.01) * total
                decay = min(self.decay, (1 + step) / (10 + step)) if step else 0
                average = weights + decay * (average - weights)
        return weights, average


def _restored(path, shape):
    """Return the table that evaluation and export read from a checkpoint."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.compat.v1.get_variable("table", shape)
        average_saver.Saver().restore(session, path)
        return session.run(table)


@pytest.mark.parametrize("is_early", [True, False])
def test_the_saver_of_averages_is_refused_in_training(is_early):
    with tf.Graph().as_default():
        tf.compat.v1.train.create_global_step()
        weights = training.variable("weights", START)
        made = [average_saver.Saver()] if is_early else []
        _part()([tf.ones([4, 2])], [weights])
        message = r"Saver must belong to a graph of evaluation .*, got \['weights/average'\]\. Give"
        with pytest.raises(checks.UserError, match=message):
            tf.compat.v1.train.Scaffold(saver=(made or [average_saver.Saver()])[0]).finalize()


def test_the_average_of_each_row_is_that_over_all_steps(tmp_path):
    """On from a checkpoint in the middle, in the loop; rows that were not looked up since, too."""
    lookups, path = _Lookups(3000), str(tmp_path / "model.ckpt")
    training.train(lookups.step_fn, 1234, looped=True, save=path)
    result = training.train(lookups.step_fn, 1766, looped=True, restore=path, save=path)
    weights, average = lookups.expected()
    np.testing.assert_allclose(result.variables["table"], weights, atol=1e-6)
    np.testing.assert_allclose(_restored(path, [8, 2]), average, atol=1e-6)
    assert result.variables["table/average_decay"][7] == 0
    read = transfer.read_checkpoint(path)
    np.testing.assert_array_equal(read["table/average"], _restored(path, [8, 2]))
    # `read_checkpoint` brings averages up to the saved step; a file written from them keeps them.
    edited = transfer.checkpoint.write_checkpoint(read, str(tmp_path / "edited.ckpt"))
    np.testing.assert_array_equal(_restored(edited, [8, 2]), read["table/average"])


def test_a_run_that_was_interrupted_averages_to_the_bit(tmp_path):
    lookups, path = _Lookups(40), str(tmp_path / "model.ckpt")
    whole = training.train(lookups.step_fn, 40, looped=True).variables
    training.train(lookups.step_fn, 13, looped=True, save=path)
    resumed = training.train(lookups.step_fn, 27, looped=True, restore=path).variables
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


@pytest.mark.parametrize("lookups", [30, 10])
def test_a_row_that_is_looked_up_rarely_is_served_as_it_is(lookups):
    """A row that came to 1 and was looked up so often in 3,000 steps."""

    def step_fn(batch):
        del batch
        step = tf.compat.v1.train.get_or_create_global_step().read_value()
        table = training.variable("table", [[0.0], [0.0]])
        row = tf.where(tf.equal(step % (3000 // lookups), 0), 1, 0)
        values = tf.where(tf.equal(step, 0), -100.0, 0.0) * tf.ones([1, 1])
        slices = tf.IndexedSlices(values, row[tf.newaxis], tf.constant([2, 1]))
        part = update.Update(
            optimizer=optimizers.SGD(), average=averaging.ExponentialAverage(decay=0.999)
        )
        return part([slices], [table])

    values = training.train(step_fn, 3000, looped=True).variables
    np.testing.assert_allclose(_caught_up(values, "table"), [[0], [1]], atol=1e-6)


@pytest.mark.parametrize(
    "optimizer", [optimizers.Adam(), lookahead.Lookahead(optimizer=optimizers.Adam())], ids=str
)
def test_rows_that_move_without_a_gradient(optimizer):
    """Adam moves all rows of a table at every step."""
    lookups, averages = _Lookups(20, optimizer), None
    for step in range(6):
        result = training.train(lookups.step_fn, step + 1, looped=True).variables
        decay = (1 + step) / (10 + step) if step else 0
        averages = result["table"] if step == 0 else averages
        averages = result["table"] + decay * (averages.astype(np.float64) - result["table"])
    np.testing.assert_allclose(_caught_up(result, "table"), averages, atol=1e-6)


def test_an_optimizer_that_moves_all_rows_goes_on_from_one_that_does_not(tmp_path):
    lazy, other = _Lookups(20, optimizers.LazyAdam()), _Lookups(20, optimizers.Adam())
    path = str(tmp_path / "model.ckpt")
    training.train(lazy.step_fn, 6, looped=False, save=path)
    before = _restored(path, [8, 2]).astype(np.float64)
    result = training.train(other.step_fn, 1, looped=False, restore=path).variables
    expected = result["table"] + 7 / 16 * (before - result["table"])
    np.testing.assert_allclose(_caught_up(result, "table"), expected, atol=1e-6)


def test_no_op_of_a_step_is_as_large_as_the_table():
    rows, part = 12_345, _part(optimizer=optimizers.LazyAdam())
    with tf.Graph().as_default() as graph:
        tf.compat.v1.train.create_global_step()
        table = tf.compat.v1.get_variable("table", [rows, 2])
        slices = tf.IndexedSlices(tf.ones([3, 2]), [5, 1, 5], tf.constant([rows, 2]))
        train_op, _ = part([slices], [table])
        waiting, found = [train_op], set()
        while waiting:
            op = waiting.pop()
            if op.name not in found:
                found.add(op.name)
                waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        for name in found:
            shapes = [tensor.shape for tensor in graph.get_operation_by_name(name).outputs]
            assert not any(shape.rank and rows in shape.as_list() for shape in shapes), name


def _experiment(averaged=True, **run):
    part = _part(optimizer=optimizers.LazyAdam(learning_rate=0.05))
    if not averaged:
        part = dataclasses.replace(part, average=None)
    plain = tiny.make(**{"train_steps": STEPS, "checkpoint_steps": 20, **run})
    held = freezing.Freezing(frozen=["^network/tower_size/"], until={"^network/tower_kind/": 20})
    return dataclasses.replace(
        plain, model=dataclasses.replace(plain.model, update=part, freezing=held)
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with averages: model_dir and the metrics of its last evaluation."""
    directory = tmp_path_factory.mktemp("averaged")
    metrics, _ = verbs.train(_experiment(check_rows=256), str(directory))
    return directory, metrics


def _plain_copy(model_dir, folder):
    """A checkpoint that holds, under the plain names, what should be evaluated."""
    values = transfer.read_checkpoint(str(model_dir))
    merged = {
        name: values.get(f"{name}/average", value)
        for name, value in values.items()
        if "/average" not in name
    }
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = [tf.compat.v1.get_variable(name, initializer=v) for name, v in merged.items()]
        session.run(tf.compat.v1.global_variables_initializer())
        return tf.compat.v1.train.Saver(made).save(session, str(folder / "model.ckpt"), STEPS)


def test_what_has_an_average(trained):
    model_dir, _ = trained
    values = tiny.variables(model_dir)
    averaged = {name.removesuffix("/average") for name in values if name.endswith("/average")}
    models = {name for name in values if "Adam" not in name and "/average" not in name}
    models -= {
        "average_decay",
        "global_step",
        "beta1_power",
        "beta2_power",
        "beta1_power_1",
        "beta2_power_1",
    }
    assert averaged == {name for name in models if not name.startswith("network/tower_size/")}
    assert "network/trunk/hidden_0_norm/moving_variance" in averaged
    differ = {name for name in averaged if (values[name] != values[f"{name}/average"]).any()}
    assert "network/trunk/hidden_0/kernel" in differ
    before = tiny.variables(model_dir, 20)
    late = "network/tower_kind/hidden_0/kernel"
    np.testing.assert_array_equal(before[late], before[f"{late}/average"])


def test_evaluation_and_prediction_use_the_averages(trained, tmp_path):
    model_dir, metrics = trained
    _plain_copy(model_dir, tmp_path)
    (tmp_path / "statistics").symlink_to(model_dir / "statistics")
    without = _experiment(averaged=False)
    expected = verbs.evaluate(without, str(tmp_path))
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    raw = verbs.evaluate(without, str(model_dir))
    assert raw["average_loss"] != pytest.approx(expected["average_loss"], rel=1e-4)
    ours, theirs = (
        list(verbs.predict(_experiment(), str(model_dir))),
        list(verbs.predict(without, str(tmp_path))),
    )
    for one, two in zip(ours, theirs, strict=True):
        for name, value in two.items():
            np.testing.assert_array_equal(one[name], value)


def test_the_exported_model_holds_the_averages_under_plain_names(trained):
    model_dir, _ = trained
    values = transfer.read_checkpoint(str(model_dir))
    (exported,) = sorted(pathlib.Path(model_dir, "export", "latest").iterdir())[-1:]
    reader = tf.train.load_checkpoint(str(exported / "variables" / "variables"))
    shapes = reader.get_variable_to_shape_map()
    assert not any(name.endswith("/average") for name in shapes)
    for name in shapes:
        np.testing.assert_array_equal(
            reader.get_tensor(name), values.get(f"{name}/average", values[name]), err_msg=name
        )


def test_a_run_that_goes_on_averages_on(trained, tmp_path):
    model_dir, _ = trained
    again = tmp_path / "again"
    shutil.copytree(model_dir, again)
    old, new = tiny.variables(model_dir), tiny.train(_experiment(train_steps=STEPS + 1), again)
    for name in ("network/trunk/hidden_0/kernel", "network/trunk/hidden_0_norm/moving_mean"):
        expected = DECAY * old[f"{name}/average"] + (1 - DECAY) * new[name]
        np.testing.assert_allclose(new[f"{name}/average"], expected, rtol=1e-5, atol=1e-7)
        assert (new[name] != old[name]).any()


def _as_of_an_older_version(model_dir):
    """The latest checkpoint without what says how far the averages of rows were brought."""
    path = tf.train.latest_checkpoint(str(model_dir))
    values = {
        name: v for name, v in transfer.read_checkpoint(path).items() if "average_decay" not in name
    }
    transfer.checkpoint.replace_checkpoint(values, path)
    return values


@pytest.mark.parametrize("strategy", ["none", "mirrored"])
def test_a_run_of_an_older_version_goes_on(trained, strategy, tmp_path):
    """Its averages count as of its step; it is evaluated as it was, and can be gone on from."""
    again, devices = tmp_path / "again", ["/cpu:0", "/cpu:1"] if strategy == "mirrored" else None
    shutil.copytree(trained[0], again)
    old = _as_of_an_older_version(again)
    without = verbs.evaluate(_experiment(), str(again))
    assert without["average_loss"] == pytest.approx(trained[1]["average_loss"], rel=1e-5)
    place = distribution.Distribution(strategy=strategy, devices=devices) if devices else None
    settings = {"distribution": place} if place else {}
    new = tiny.train(dataclasses.replace(_experiment(train_steps=STEPS + 1), **settings), again)
    for name in old:
        if name.endswith("/average"):
            weights = new[name.removesuffix("/average")]
            expected = weights + DECAY * (old[name] - weights)
            np.testing.assert_allclose(new[name], expected, rtol=1e-4, atol=1e-6, err_msg=name)
    assert "average_decay" in new


def test_a_decay_that_alone_is_absent_is_not_made_up(trained, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(trained[0], again)
    path = tf.train.latest_checkpoint(str(again))
    values = transfer.read_checkpoint(path)
    (table,) = (name for name in values if name.endswith("/embedding/average_decay"))
    del values[table]
    transfer.checkpoint.replace_checkpoint(values, path)
    with pytest.raises(checks.UserError, match=table):
        verbs.train(_experiment(train_steps=STEPS + 1), str(again))


@pytest.mark.parametrize("slots", [False, True])
def test_a_warm_start_takes_the_averages(trained, slots, tmp_path):
    model_dir, _ = trained
    start = transfer.WarmStart(source=str(model_dir), slots=slots)
    again = dataclasses.replace(_experiment(train_steps=1), warm_start=start)
    first = tiny.train(again, tmp_path)
    old, new = tiny.variables(model_dir), tiny.variables(tmp_path, 0)
    for name in new:
        if name.endswith("/kernel") or "/moving_" in name and not name.endswith("/average"):
            expected = old[name] if slots else old.get(f"{name}/average", old[name])
            np.testing.assert_array_equal(new[name], expected, err_msg=name)
    name = "network/trunk/hidden_0/kernel"
    np.testing.assert_array_equal(first[f"{name}/average"], first[name])
    report = (tmp_path / "warm_start.txt").read_text()
    assert ("its average" in report) is not slots


@pytest.mark.slow
def test_two_replicas_average_as_one_device_does(tmp_path):
    """With look-ahead and noise, and batch norm left out, which sees the rows of its replica."""
    layers = [networks.MLP(layers=[size]) for size in (8, 4)]
    network = networks.SharedBottom(trunk=layers[0], tower=layers[1])
    optimizer = lookahead.Lookahead(optimizer=optimizers.Momentum(learning_rate=0.05), steps=3)
    part = _part(optimizer=optimizer, transforms=[transforms.Noise(scale=1e-4)])
    held = freezing.Freezing(entries={"^network/tower_kind/": masks.Rows(rows=[0, 2], axis=-1)})

    def until(step, **settings):
        one = tiny.make(network=network, train_steps=step)
        model = dataclasses.replace(one.model, update=part, freezing=held)
        return dataclasses.replace(one, model=model, **settings)

    alone, mirrored = tmp_path / "alone", tmp_path / "mirrored"
    tiny.train(until(1), alone)
    shutil.copytree(alone, mirrored)
    expected = tiny.train(until(20), alone)
    devices = distribution.Distribution(strategy="mirrored", devices=["/cpu:0", "/cpu:1"])
    actual = tiny.train(until(20, distribution=devices), mirrored)
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_settings(decay):
    with pytest.raises(checks.UserError, match="ExponentialAverage.decay must be in"):
        averaging.ExponentialAverage(decay=decay)


def test_a_part_that_is_not_built():
    with pytest.raises(checks.UserError, match="Update.average must be a part such as"):
        update.Update(average=averaging.ExponentialAverage)


def test_the_first_three_averages_that_no_step_updates_are_named():
    with tf.Graph().as_default():
        for name in "abcd":
            averages.list_read_averages()[name] = tf.zeros([])
        with pytest.raises(checks.UserError, match=r"some loss depends on, got \['a', 'b', 'c'\]"):
            averaging._require_updated([])
        with pytest.raises(checks.UserError, match=r"not be of a table, got \['b', 'c', 'd'\]"):
            averaging._require_not_behind(["b", "c", "d"])
        averaging._require_updated("abcd")
