"""Computed classifiers against NumPy, from a network that was trained for 40 steps."""

import dataclasses
import logging

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, heads, verbs
from mtl.data import sampling
from mtl.heads import classifiers, shots, softmax
from mtl.runs import fitting
from mtl.transfer import refit
from tests import tiny

pytestmark = pytest.mark.medium

TAUS = [0.0, 0.5, 1.0, 2.0]


def make(part=None, check_rows=0, **settings):
    """tiny's experiment with a third split, and only the task `kind`."""
    splits = {**tiny.SPLITS, "validation": tiny.rows(200, seed=3)}
    made = tiny.make(splits=splits, checkpoint_steps=40, check_rows=check_rows)
    head = heads.MultiClass(name="kind", classes=3, shots=shots.Shots(), **settings)
    model = dataclasses.replace(made.model, heads=[head, *made.model.heads[::2]])
    return dataclasses.replace(made, model=model, refit=part)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "joint"
    verbs.train(make(), str(path))
    return path


@pytest.fixture(scope="module")
def towers(source):
    """{split: (towers, labels)} of the trained network."""
    return network_towers(make(), source)


def network_towers(made, model_dir):
    """{split: (towers, labels)} of the labelled rows, read off the graph."""
    found = {}
    for split in ("train", "validation", "test"):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            statistics = fitting.load_statistics(str(model_dir))
            batches = tf.compat.v1.data.make_initializable_iterator(made.data.one_pass(split))
            features, labels = batches.get_next()
            tower = made.model.build_towers(features, statistics, training=False)["kind"]
            path = tf.train.latest_checkpoint(str(model_dir))
            tf.compat.v1.train.Saver().restore(session, path)
            session.run([batches.initializer, tf.compat.v1.tables_initializer()])
            rows = []
            while True:
                try:
                    rows.append(session.run([tower, labels["kind"]]))
                except tf.errors.OutOfRangeError:
                    break
        x, y = (np.concatenate(part) for part in zip(*rows, strict=True))
        found[split] = x[y >= 0], y[y >= 0]
    return found


def layer(model_dir):
    values = tiny.variables(model_dir)
    return [values[f"head/kind/logits/{name}"] for name in ("kernel", "bias")]


def recalls(x, y, kernel, bias):
    right = np.argmax(x @ kernel + bias, axis=1) == y
    return np.mean([right[y == c].mean() for c in range(3)])


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_nearest_mean(distance, source, towers, tmp_path):
    part = refit.NearestMean(task="kind", source=str(source), distance=distance)
    metrics, steps = verbs.train(make(part), str(tmp_path / "ncm"))
    assert steps == 0
    x, y = towers["train"]
    means = np.stack([x[y == c].mean(0) for c in range(3)])
    test, labels = towers["test"]
    if distance == "cosine":
        unit = means / np.linalg.norm(means, axis=1, keepdims=True)
        nearest = np.argmax(test @ unit.T, axis=1)
    else:
        nearest = np.argmin(np.square(test[:, None] - means).sum(-1), axis=1)
    assert metrics["kind/accuracy"] == pytest.approx((nearest == labels).mean())


def test_tau_is_chosen_on_validation_and_served_as_a_plain_network(
    source, towers, tmp_path, caplog
):
    part = refit.TauNormalized(task="kind", source=str(source), taus=TAUS, split="validation")
    model_dir = source.parent / "tau"
    with caplog.at_level(logging.INFO, "mtl"):
        metrics, _ = verbs.train(make(part), str(model_dir))
    kernel, _ = layer(source)
    made = [(kernel / np.linalg.norm(kernel, axis=0) ** tau, 0.0) for tau in TAUS]
    scores = [recalls(*towers["validation"], *candidate) for candidate in made]
    best = int(np.argmax(scores))
    assert len(set(scores)) > 1
    np.testing.assert_allclose(layer(model_dir)[0], made[best][0], rtol=1e-6)
    assert not layer(model_dir)[1].any()
    expected = recalls(*towers["test"], *made[best])
    assert metrics["kind/balanced_accuracy"] == pytest.approx(expected, abs=1e-6)
    assert any(message.startswith(f"tau = {TAUS[best]:g}; bal") for message in caplog.messages)
    # All other variables equal the variables of the source to the bit.
    old, new = tiny.variables(source), tiny.variables(model_dir)
    for name in set(new) - {"global_step", "head/kind/logits/kernel", "head/kind/logits/bias"}:
        np.testing.assert_array_equal(old[name], new[name])
    assert new["global_step"] == 40


def served(model_dir, split="test"):
    """The log-probabilities of `kind` that the exported model gives for the rows of a split."""
    signature, rows = tiny.served(model_dir, "kind"), tiny.SPLITS[split]
    (name,) = signature.structured_input_signature[1]
    labelled = rows["kind"] >= 0
    return np.log(
        signature(**{name: tf.constant(tiny.examples(split))})["probabilities"].numpy()[labelled]
    )


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_what_is_served_holds_the_shift_after_training_and_not_that_of_training(
    source, towers, tmp_path
):
    margin = softmax.CrossEntropy(margin=softmax.LogitAdjustment(tau=2.0))
    part = refit.LogitAdjusted(task="kind", source=str(source), taus=[2.0])
    runs = {"trained": make(objective=margin), "after": make(part)}
    for name, made in runs.items():
        verbs.train(made, str(tmp_path / name))
        x, _ = network_towers(made, tmp_path / name)["test"]
        kernel, bias = layer(tmp_path / name)
        np.testing.assert_allclose(
            served(tmp_path / name), log_softmax(x @ kernel + bias), rtol=1e-3, atol=1e-4
        )
    kinds = tiny.SPLITS["train"]["kind"]
    shares = np.bincount(kinds[kinds >= 0]) / (kinds >= 0).sum()
    kernel, bias = layer(source)
    np.testing.assert_array_equal(layer(tmp_path / "after")[0], kernel)
    np.testing.assert_allclose(layer(tmp_path / "after")[1], bias - 2 * np.log(shares), rtol=1e-5)


def test_it_reads_inputs_with_the_statistics_of_the_source(source, tmp_path):
    """A later training split has other means."""
    made = make(refit.LogitAdjusted(task="kind", source=str(source)))
    splits = made.data.source.splits
    train = {**splits["train"], "x": splits["train"]["x"] * 2 + 5}
    later = dataclasses.replace(made.data.source, splits={**splits, "train": train})
    made = dataclasses.replace(made, data=dataclasses.replace(made.data, source=later))
    verbs.train(made, str(tmp_path / "run"))
    before = list(verbs.predict(make(), str(source)))
    after = list(verbs.predict(made, str(tmp_path / "run")))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(new["sign/probability"], old["sign/probability"])


def test_it_scales_numbers_by_the_moments_of_the_source(tmp_path):
    """A later training split has other labels of a task whose head stays as it was."""

    def change(made):
        quantile = heads.Quantile(name="size", levels=[0.5])
        model = dataclasses.replace(made.model, heads=[*made.model.heads[:2], quantile])
        run = dataclasses.replace(made.run, train_steps=1)
        return dataclasses.replace(made, model=model, run=run)

    first = change(make())
    tiny.train(first, tmp_path / "joint")
    later = change(make(refit.NearestMean(task="kind", source=str(tmp_path / "joint"))))
    splits = later.data.source.splits
    train = {**splits["train"], "size": splits["train"]["size"] * 2 + 5}
    rows = tiny.Rows(splits={**splits, "train": train})
    later = dataclasses.replace(later, data=dataclasses.replace(later.data, source=rows))
    verbs.train(later, str(tmp_path / "run"))
    before = list(verbs.predict(first, str(tmp_path / "joint")))
    after = list(verbs.predict(later, str(tmp_path / "run")))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(new["size/quantiles"], old["size/quantiles"])


def test_it_is_done_once(source, tmp_path, caplog):
    caplog.set_level("INFO")
    part = refit.LogitAdjusted(task="kind", source=str(source))
    first = verbs.train(make(part, check_rows=256), str(tmp_path / "run"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.ckpt*")}
    assert "Experiment.refit" not in caplog.text
    np.testing.assert_equal(verbs.train(make(part), str(tmp_path / "run")), first)
    assert "Experiment.refit applies to new runs only" in caplog.text
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.ckpt*")}
    made = make(part)
    longer = dataclasses.replace(made, run=dataclasses.replace(made.run, train_steps=41))
    message = (
        "it lacks .* If Experiment.refit has computed it, it has no state of an optimizer: a new"
    )
    with pytest.raises(checks.UserError, match=message):
        verbs.train(longer, str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (
            refit.TauNormalized,
            {"taus": TAUS},
            "TauNormalized.split must name a split for the choice of",
        ),
        (
            refit.TauNormalized,
            {"taus": TAUS, "split": "test"},
            r"TauNormalized.split must differ from Pipeline.eval_split \('test'\), got 'test'. Res",
        ),
        (refit.LogitAdjusted, {"taus": []}, "LogitAdjusted.taus must hold a number"),
        (refit.LogitAdjusted, {"taus": [-1.0]}, "LogitAdjusted.taus must be at least 0"),
        (refit.NearestMean, {"distance": "l1"}, "distance must be one of cosine, euclidean"),
        (refit.NearestMean, {"task": "knid"}, "NearestMean.task must be one of .*'kind'"),
        (
            refit.NearestMean,
            {"source": "nothing"},
            "source must be a checkpoint, or a model_dir that .* Train it first",
        ),
    ],
)
def test_mistakes(kind, settings, message, source, tmp_path):
    with pytest.raises(checks.UserError, match=message):
        part = kind(**{"task": "kind", "source": str(source), **settings})
        verbs.train(make(part), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_another_last_layer_is_refused(source, tmp_path):
    part = refit.TauNormalized(task="kind", source=str(source))
    with pytest.raises(checks.UserError, match="head 'kind' must have the Linear classifier"):
        verbs.train(make(part, classifier=classifiers.Cosine()), str(tmp_path / "run"))


def test_a_balance_is_corrected_only_once(source, tmp_path):
    adjusted = refit.LogitAdjusted(task="kind", source=str(source))
    margin = softmax.CrossEntropy(margin=softmax.LogitAdjustment())
    balanced = make(adjusted, objective=margin)
    sampled = make(adjusted)
    power = sampling.Power(label="kind", exponent=0.5)
    sampled = dataclasses.replace(sampled, data=dataclasses.replace(sampled.data, sampler=power))
    message = "the loss or the sampler must not balance 'kind', as LogitAdjusted does, got 'kind'"
    for number, made in enumerate((balanced, sampled)):
        with pytest.raises(checks.UserError, match=message):
            verbs.train(made, str(tmp_path / str(number)))
        assert not list((tmp_path / str(number)).glob("model.ckpt*"))
    mean = refit.NearestMean(task="kind", source=str(source))
    mean.check_balance(balanced.model, power)


def test_a_head_of_tf_estimator_is_refused(source, tmp_path):
    part = refit.TauNormalized(task="kind", source=str(source))
    made = make(part)
    head = heads.EstimatorHead(name="kind", head=compat.estimator.MultiClassHead(n_classes=3))
    model = dataclasses.replace(made.model, heads=[head, *made.model.heads[1:]])
    with pytest.raises(
        checks.UserError, match="task must name a task with a MultiClass head, got 'EstimatorHead'"
    ):
        verbs.train(dataclasses.replace(made, model=model), str(tmp_path / "run"))


class _NaNFirst(refit.TauNormalized):
    def at(self, tau, old, counts):
        return refit.Classifier(old.kernel * (np.nan if tau else 1), old.bias)


def test_a_classifier_that_predicts_nan_is_not_chosen():
    old = refit.Classifier(np.eye(2), np.zeros(2))
    chosen = _NaNFirst(task="y", source="x", taus=[1.0, 0.0], split="validation")
    # argmax makes class 0 of a NaN, which all rows but one are of.
    towers, zeros = np.array([[1.0, 0], [0, 1], [0, 1]]), np.zeros(3, np.int64)
    rows = [refit.Rows(towers, zeros, np.ones(3), zeros)]
    head = heads.MultiClass(name="y", classes=2)
    np.testing.assert_array_equal(chosen.fit(head, old, rows).kernel, np.eye(2))


def test_taus_need_a_labelled_row():
    old, zeros = refit.Classifier(np.eye(2), np.zeros(2)), np.zeros(3, np.int64)
    part = refit.TauNormalized(task="y", source="x", taus=[1.0, 0.0], split="validation")
    rows = [refit.Rows(np.ones([3, 2]), zeros, np.zeros(3), zeros)]
    with pytest.raises(checks.UserError, match="split 'validation' must hold a row with a label"):
        part.fit(heads.MultiClass(name="y", classes=2), old, rows)


def test_a_class_whose_mean_is_zero_gets_no_nan():
    """A tower with ReLU can be 0 for all rows of a class."""
    old, classes = refit.Classifier(np.ones([2, 2]), np.zeros(2)), np.array([0, 1])
    rows = [refit.Rows(np.array([[0.0, 0.0], [3.0, 4.0]]), classes, np.ones(2), np.zeros(2))]
    part = refit.NearestMean(task="y", source="x")
    result = part.fit(heads.MultiClass(name="y", classes=2), old, rows)
    np.testing.assert_allclose(result.kernel, [[0, 0.6], [0, 0.8]])


def test_the_bias_of_a_class_loses_tau_times_the_log_of_its_share():
    old = refit.Classifier(np.eye(3), np.array([0.5, 0.0, -1.0]))
    made = refit.LogitAdjusted(task="y", source="x", taus=[2.0], split="validation")
    found = made.at(2.0, old, [6, 3, 1])
    expected = [0.5 - 2 * np.log(0.6), -2 * np.log(0.3), -1 - 2 * np.log(0.1)]
    np.testing.assert_allclose(found.bias, expected)
    np.testing.assert_array_equal(found.kernel, old.kernel)


def test_a_class_without_weights_keeps_them():
    old = refit.Classifier(np.array([[0.0, 3.0], [0.0, 4.0]]), np.ones(2))
    made = refit.TauNormalized(task="y", source="x", taus=[1.0]).at(1.0, old, None)
    np.testing.assert_allclose(made.kernel, [[0, 0.6], [0, 0.8]])
    np.testing.assert_array_equal(made.bias, 0)
