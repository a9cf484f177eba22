"""Averages of the weights: against NumPy, and through evaluation, export, refit and warm start."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from mtl import averaging, checks, distribution, freezing, masks, networks, transfer
from mtl.optimization import lookahead, optimizers, transforms, update
from tests import tiny
from tests.optimization import training

DECAY = 0.7
STEPS = 30
RANDOM = np.random.default_rng(0)
START = RANDOM.normal(size=[4, 2])


def _decay(step):
    return min(DECAY, (1 + step) / (10 + step)) if step else 0.0


def _part(**settings):
    average = averaging.ExponentialAverage(decay=DECAY)
    return update.Update(average=average, **settings)


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
        moved = np.arange(4) if step == 0 else ids[step]
        for average, weights, rows in zip(
            averages, (kernel, table), (np.arange(4), moved), strict=True
        ):
            average[rows] += (1 - _decay(step)) * (weights[rows] - average[rows])
    np.testing.assert_allclose(result["kernel"], kernel, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result["kernel/average"], averages[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result["table/average"], averages[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("looped", training.LOOPED)
def test_a_skipped_step_moves_no_average(looped):
    """Of dense weights and of tables; skipped at first, averages begin with the initial weights."""
    bad = (0, 2)

    def step_fn(step):
        variables = [training.variable(name, START) for name in ("kernel", "table")]
        values = tf.where(tf.reduce_any(tf.equal(step, bad)), np.nan, tf.ones([4, 2]))
        sparse = tf.IndexedSlices(values[:2], tf.range(2), tf.constant([4, 2]))
        return _part(optimizer=optimizers.SGD(learning_rate=0.1), if_not_finite="skip")(
            [values, sparse], variables
        )

    result = training.train(step_fn, 4, looped)
    assert result.watched["skipped_steps"] == 2
    for name, rows in (("kernel", 4), ("table", 2)):
        average, weights = START.copy(), START.copy()
        for step in (1, 3):
            weights[:rows] -= 0.1
            average[:rows] += (1 - _decay(step)) * (weights[:rows] - average[:rows])
        np.testing.assert_allclose(result.variables[f"{name}/average"], average, rtol=1e-5)


def _experiment(averaged=True, **run):
    part = _part(optimizer=optimizers.LazyAdam(learning_rate=0.05))
    if not averaged:
        part = dataclasses.replace(part, average=None)
    plain = tiny.make(**{"train_steps": STEPS, "checkpoint_steps": 10, **run})
    held = freezing.Freezing(frozen=["^network/tower_size/"], until={"^network/tower_kind/": 20})
    return dataclasses.replace(
        plain, model=dataclasses.replace(plain.model, update=part, freezing=held)
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with averages: model_dir and the metrics of its last evaluation."""
    directory = tmp_path_factory.mktemp("averaged")
    metrics, _ = _experiment().train(str(directory))
    return directory, metrics


def _plain_copy(model_dir, folder):
    """A checkpoint that holds, under the plain names, what should be evaluated."""
    values = tiny.variables(model_dir)
    merged = {
        name: values.get(f"{name}/average", value)
        for name, value in values.items()
        if not name.endswith("/average")
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
    models -= {"global_step", "beta1_power", "beta2_power", "beta1_power_1", "beta2_power_1"}
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
    expected = without.evaluate(str(tmp_path))
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    raw = without.evaluate(str(model_dir))
    assert raw["average_loss"] != pytest.approx(expected["average_loss"], rel=1e-4)
    ours, theirs = list(_experiment().predict(str(model_dir))), list(without.predict(str(tmp_path)))
    for one, two in zip(ours, theirs, strict=True):
        for name, value in two.items():
            np.testing.assert_array_equal(one[name], value)


def test_the_exported_model_holds_the_averages_under_plain_names(trained):
    model_dir, _ = trained
    values = tiny.variables(model_dir)
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
    _experiment(train_steps=STEPS + 1).train(str(again))
    old, new = tiny.variables(model_dir), tiny.variables(again)
    for name in ("network/trunk/hidden_0/kernel", "network/trunk/hidden_0_norm/moving_mean"):
        expected = DECAY * old[f"{name}/average"] + (1 - DECAY) * new[name]
        np.testing.assert_allclose(new[f"{name}/average"], expected, rtol=1e-5, atol=1e-7)
        assert (new[name] != old[name]).any()


@pytest.mark.parametrize("slots", [False, True])
def test_a_warm_start_takes_the_averages(trained, slots, tmp_path):
    model_dir, _ = trained
    start = transfer.WarmStart(source=str(model_dir), slots=slots)
    again = dataclasses.replace(_experiment(train_steps=1), warm_start=start)
    again.train(str(tmp_path))
    old, new = tiny.variables(model_dir), tiny.variables(tmp_path, 0)
    for name in new:
        if name.endswith("/kernel") or "/moving_" in name and not name.endswith("/average"):
            expected = old[name] if slots else old.get(f"{name}/average", old[name])
            np.testing.assert_array_equal(new[name], expected, err_msg=name)
    first = tiny.variables(tmp_path, 1)
    name = "network/trunk/hidden_0/kernel"
    np.testing.assert_array_equal(first[f"{name}/average"], first[name])


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
    until(1).train(str(alone))
    shutil.copytree(alone, mirrored)
    until(20).train(str(alone))
    devices = distribution.Distribution(strategy="mirrored", devices=["/cpu:0", "/cpu:1"])
    until(20, distribution=devices).train(str(mirrored))
    expected, actual = tiny.variables(alone), tiny.variables(mirrored)
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
