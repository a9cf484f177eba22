"""Virtual adversarial training, teachers and pseudo-labels against NumPy; refused models."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from mtl import auxiliary, checks, compat, heads, mixing, networks
from mtl.auxiliary import consistency
from mtl.optimization import optimizers, update
from mtl.variables import averaging
from tests import images
from tests.auxiliary import probe

tf1 = tf.compat.v1


def _diverge(p_logits, q_logits):
    """The divergences of `kind` and `size`, the heads of the model."""
    log_p, log_q = (scipy.special.log_softmax(z["kind"], -1) for z in (p_logits, q_logits))
    of_kinds = (np.exp(log_p) * (log_p - log_q)).sum(-1)
    return of_kinds + 0.5 * (p_logits["size"] - q_logits["size"])[:, 0] ** 2


def test_the_virtual_adversary_lies_on_the_sphere_where_predictions_move_the_most(monkeypatch):
    part = auxiliary.VirtualAdversarial(epsilon=0.5, xi=0.1, iterations=3)
    moved = probe.record_runs(monkeypatch)
    with probe.open_step() as (activations, session):
        with tf1.variable_scope("auxiliary/vat"):
            losses = part(activations)
        found, plain, last = session.run(
            [losses, (activations.inputs, activations.logits), (moved[-1].inputs, moved[-1].logits)]
        )
        random = np.random.default_rng(0)
        change = np.concatenate(
            [(last[0][c] - plain[0][c]).reshape(images.ROWS, -1) for c in last[0]], 1
        )
        np.testing.assert_allclose(np.linalg.norm(change, axis=1), 0.5, rtol=1e-4)
        np.testing.assert_allclose(found, _diverge(plain[1], last[1]), rtol=1e-3, atol=1e-7)
        # No direction drawn at random moves predictions of a row as far.
        for _ in range(20):
            other = random.normal(size=change.shape)
            other *= 0.5 / np.linalg.norm(other, axis=1, keepdims=True)
            sizes = np.cumsum([plain[0][c][0].size for c in plain[0]])[:-1]
            steps = dict(zip(plain[0], np.split(other, sizes, axis=1), strict=True))
            fed = {
                activations.inputs[c]: plain[0][c] + steps[c].reshape(plain[0][c].shape)
                for c in steps
            }
            assert (_diverge(plain[1], session.run(activations.logits, fed)) < found).all()


def test_no_gradient_goes_into_the_predictions_that_are_to_stay(monkeypatch):
    """The derivative by the last bias is q - p, which it is with p held alone."""
    moved = probe.record_runs(monkeypatch)
    with probe.open_step() as (activations, session):
        with tf1.variable_scope("auxiliary/vat"):
            losses = auxiliary.VirtualAdversarial(epsilon=0.5, heads=["kind"])(activations)
        (bias,) = [v for v in tf1.trainable_variables() if v.op.name == "head/kind/logits/bias"]
        p, q, found = session.run(
            [activations.logits["kind"], moved[-1].logits["kind"], tf.gradients(losses, bias)[0]]
        )
    expected = (scipy.special.softmax(q, -1) - scipy.special.softmax(p, -1)).sum(0)
    assert np.abs(expected).max() > 1e-4
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_pseudo_labels_are_of_rows_without_a_label_that_are_sure():
    part = auxiliary.PseudoLabels(heads=["kind"], threshold=0.4)
    with probe.open_step() as (activations, session), tf1.variable_scope("auxiliary/pseudo"):
        found, logits = session.run([part(activations), activations.logits["kind"]])
    log_p = scipy.special.log_softmax(logits, -1)
    counts = (images.LABELS["kind"] == -1) & (np.exp(log_p).max(-1) >= 0.4)
    assert 0 < counts.sum() < images.ROWS
    np.testing.assert_allclose(found, np.where(counts, -log_p.max(-1), 0), rtol=1e-5)


def test_the_threshold_of_a_head_does_not_choose_pseudo_labels():
    predicted = {"probability": tf.constant([0.03, 0.96]), "class_id": tf.constant([1, 0])}
    head = heads.Binary(name="sign", threshold=0.02)
    assert head.predictions(tf.constant([[-3.5]]))["class_id"] == 1
    likeliest = consistency._find_likeliest(predicted)
    np.testing.assert_array_equal(likeliest, [0, 1])
    predicted = {"probabilities": tf.constant([[0.4, 0.25, 0.35]]), "class_id": tf.constant([1])}
    np.testing.assert_array_equal(consistency._find_likeliest(predicted), [0])


def test_the_entropy_is_that_of_the_predictions():
    part = auxiliary.EntropyMinimization(heads=["kind"])
    with probe.open_step() as (activations, session):
        found, logits = session.run([part(activations), activations.logits["kind"]])
    p = scipy.special.softmax(logits, -1)
    np.testing.assert_allclose(found, -(p * np.log(p)).sum(-1), rtol=1e-5)


def test_the_teacher_is_the_average_of_the_steps_before(monkeypatch):
    """From the second step on, with the averages that a run without a teacher keeps."""
    average = update.Update(
        optimizer=optimizers.SGD(learning_rate=0.1), average=averaging.ExponentialAverage(decay=0.5)
    )
    teacher, seen = auxiliary.MeanTeacher(), probe.record_runs(monkeypatch)
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 1
        step = tf1.train.create_global_step()
        train_op = images.build_step(images.make_model(auxiliary_losses=[teacher], update=average))
        session.run(tf1.global_variables_initializer())
        plain = images.make_model(update=average)
        variables = {v.op.name: v for v in tf1.global_variables()}
        for number in range(3):
            values, logits = session.run([variables, seen[0].logits])
            at = {
                n: values[n if number == 0 else f"{n}/average"]
                for n in values
                if f"{n}/average" in values
            }
            with tf.Graph().as_default(), tf1.Session() as other:
                tf1.train.create_global_step()
                given = {n: tf.constant(v) for n, v in images.FEATURES.items()}
                expected = plain.build_outputs(given, images.STATISTICS, training=False).logits
                by_name = {v.op.name: v for v in tf1.global_variables()}
                for name, value in at.items():
                    by_name[name].load(value, other)
                for task, value in other.run(expected).items():
                    np.testing.assert_allclose(logits[task], value, rtol=1e-5, atol=1e-6)
            assert session.run(step) == number
            session.run(train_op)


@pytest.mark.parametrize(
    "losses, settings, message",
    [
        (
            lambda: [auxiliary.MeanTeacher()],
            {},
            "Update.average must keep averages, which the auxiliary loss 'mean_teacher' reads",
        ),
        (
            lambda: [auxiliary.VirtualAdversarial()],
            {"heads": [heads.EstimatorHead(name="size", head=compat.estimator.RegressionHead())]},
            "VirtualAdversarial.heads must name tasks whose heads define a divergence, got 'size'",
        ),
        (
            lambda: [auxiliary.VirtualAdversarial(heads=["kid"])],
            {},
            "VirtualAdversarial.heads must be one of kind, size, got 'kid'. Did you mean 'kind'?",
        ),
        (
            lambda: [auxiliary.PseudoLabels()],
            {},
            "PseudoLabels.heads must name tasks whose heads predict one class of several",
        ),
        (
            lambda: [auxiliary.EntropyMinimization()],
            {},
            "EntropyMinimization.heads must name tasks with heads Binary, MultiClass or MultiLabel",
        ),
        (
            lambda: [auxiliary.Adversarial(name="kind")],
            {},
            "MultiTaskModel.heads and auxiliary_losses must hold each name once, got ['kind']",
        ),
        (
            lambda: [auxiliary.Adversarial],
            {},
            "must be a part such as @auxiliary.VirtualAdversarial()",
        ),
        (lambda: auxiliary.Adversarial(), {}, "MultiTaskModel.auxiliary_losses must be a list"),
    ],
)
def test_a_model_that_cannot_have_the_loss_is_refused(losses, settings, message):
    with pytest.raises(checks.UserError) as error:
        images.make_model(auxiliary_losses=losses(), **settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "loss, settings, message",
    [
        (
            auxiliary.VirtualAdversarial(columns=["image_photos"]),
            {},
            "VirtualAdversarial.columns must be one of image_photo, numeric_x, got 'image_photos'",
        ),
        (
            auxiliary.PiModel(),
            {},
            "PiModel.noise must be above 0 if the network has no dropout, got 0.0",
        ),
        (
            auxiliary.Adversarial(averages_steps=True, steps=2),
            {"mixing": mixing.Mixup()},
            "must be None, as the auxiliary loss 'adversarial' reads labels of rows",
        ),
        (
            auxiliary.PseudoLabels(heads=["kind"]),
            {"mixing": mixing.Mixup()},
            "must be None, as the auxiliary loss 'pseudo_labels' reads labels of rows",
        ),
    ],
)
def test_a_step_that_cannot_be_built_is_refused(loss, settings, message):
    with pytest.raises(checks.UserError) as error, tf.Graph().as_default():
        tf1.train.create_global_step()
        images.build_step(images.make_model(auxiliary_losses=[loss], **settings))
    assert message in str(error.value)


def test_dropout_of_a_second_pass_is_the_same_or_another_as_asked():
    network = networks.SharedBottom(trunk=networks.MLP(layers=[32], dropout=0.5))
    with probe.open_step(network=network) as (activations, session):
        same = activations.run(activations.inputs)
        other = activations.run(activations.inputs, draw=1)
        plain, same, other = session.run([activations.logits, same.logits, other.logits])
    np.testing.assert_array_equal(plain["kind"], same["kind"])
    assert np.abs(plain["kind"] - other["kind"]).max() > 0.01
