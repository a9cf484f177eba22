import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import auxiliary, checks, heads, networks
from mtl.auxiliary import contrastive
from tests import images
from tests.auxiliary import given

tf1 = tf.compat.v1

CLASSES = np.array([0, 2, 1, 0, 0, -1, 2, 3])
"""Row 2 and row 7 are alone of their class; row 5 has no label."""
KIND = heads.MultiClass(name="kind", classes=4)


def _draw(*shape):
    """The same numbers whichever test of the file runs first."""
    return np.random.default_rng(4).normal(size=shape)


def _unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _nt_xent(vectors, temperature):
    similar = _unit(vectors) @ _unit(vectors).T / temperature
    rows, losses = len(vectors) // 2, []
    for i in range(2 * rows):
        others = [similar[i, k] for k in range(2 * rows) if k != i]
        partner = (i + rows) % (2 * rows)
        losses.append(-np.log(np.exp(similar[i, partner]) / np.exp(others).sum()))
    return np.array(losses)


def _supervised(vectors, classes, temperature):
    similar = _unit(vectors) @ _unit(vectors).T / temperature
    labelled = [i for i, kind in enumerate(classes) if kind >= 0]
    losses = np.zeros(len(vectors))
    for i in labelled:
        others = [a for a in labelled if a != i]
        positives = [a for a in others if classes[a] == classes[i]]
        total = np.exp([similar[i, a] for a in others]).sum()
        if positives:
            losses[i] = -np.mean([np.log(np.exp(similar[i, p]) / total) for p in positives])
    return losses


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_nt_xent_equals_numpy_and_finite_differences(temperature):
    vectors = _draw(10, 3)
    found = given.evaluate(
        lambda: contrastive.compute_nt_xent(tf.constant(vectors), 5, temperature)
    )
    np.testing.assert_allclose(found, _nt_xent(vectors, temperature), rtol=1e-10)
    weights = np.arange(1.0, 11.0)

    def total(x):
        return tf.reduce_sum(weights * contrastive.compute_nt_xent(x, 5, temperature))

    assert given.gradient_error(total, vectors) < 1e-6


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_supervised_equals_numpy_and_finite_differences(temperature):
    vectors = _draw(8, 3)
    counts = CLASSES >= 0

    def compute(x):
        return contrastive.compute_supervised(
            x, tf.constant(CLASSES), tf.constant(counts), temperature
        )

    found = given.evaluate(lambda: compute(tf.constant(vectors)))
    np.testing.assert_allclose(found, _supervised(vectors, CLASSES, temperature), rtol=1e-10)
    np.testing.assert_array_equal(found[[2, 5, 7]], 0)
    assert given.gradient_error(lambda x: tf.reduce_sum(compute(x)), vectors) < 1e-6


@pytest.mark.parametrize(
    "classes", [[-1] * 4, [0, 1, 2, 3], [0, -1, -1, -1], [0, 0, 0, 0], [1, 1, -1, -1]]
)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_supervised_has_no_nan_whatever_is_missing(classes, scale):
    vectors = (scale * _draw(4, 3)).astype(np.float32)

    def build():
        x, kinds = tf.constant(vectors), tf.constant(classes)
        losses = contrastive.compute_supervised(x, kinds, kinds >= 0, 0.01)
        return losses, tf.gradients(losses, x)[0]

    losses, gradient = given.evaluate(build)
    assert np.isfinite(losses).all() and np.isfinite(gradient).all()
    np.testing.assert_array_equal(losses[np.array(classes) < 0], 0)


def test_nt_xent_is_stable_at_low_temperatures_and_vectors_of_zeros():
    vectors = np.zeros([6, 3], np.float32)
    vectors[:3] = _draw(3, 3)

    def build():
        x = tf.constant(vectors)
        losses = contrastive.compute_nt_xent(x, 3, 1e-3)
        return losses, tf.gradients(losses, x)[0]

    losses, gradient = given.evaluate(build)
    assert np.isfinite(losses).all() and np.isfinite(gradient).all()


def test_a_second_view_without_any_difference_is_refused():
    part = auxiliary.Contrastive(corruption=0.0)
    with pytest.raises(checks.UserError, match=r"Contrastive.corruption must be above 0 if"):
        images.take_steps(images.make_model(auxiliary_losses=[part]), steps=0)


@pytest.mark.medium
def test_views_share_what_the_setting_says():
    """Without layers, and equal up to noise that vanishes, both views have the least loss."""
    vectors = _draw(6, 3).astype(np.float32)
    settings = {"corruption": 0.0, "layers": [], "temperature": 0.5}

    def build():
        parts = {
            "same": auxiliary.Contrastive(noise=1e-6, **settings),
            "both": auxiliary.Contrastive(noise=1e-6, corrupts_both=True, **settings),
            "far": auxiliary.Contrastive(**{**settings, "corruption": 1.0}),
        }
        x = tf.constant(vectors)
        return {name: part(given.activations(x)) for name, part in parts.items()}

    found = given.evaluate(build)
    twice = np.concatenate([vectors, vectors]).astype(np.float64)
    for name in ("same", "both"):
        expected = _nt_xent(twice, 0.5).reshape(2, 6).mean(0)
        np.testing.assert_allclose(found[name], expected, rtol=1e-4)
    # With a corruption of 1 each row gets its only column from another row.
    assert (found["far"] > found["same"]).all()


@pytest.mark.medium
def test_dropout_alone_makes_two_views():
    dropping = networks.SharedBottom(trunk=networks.MLP(layers=[8], dropout=0.5))
    part = auxiliary.Contrastive(corruption=0.0)
    made = images.make_model(auxiliary_losses=[part], network=dropping)
    assert images.take_steps(made)[1]["contrastive/loss"] > 0


@pytest.mark.parametrize(
    ("settings", "needs_draws"),
    [({"corruption": 0.0}, True), ({}, False), ({"corruption": 0.0, "noise": 0.1}, False)],
)
def test_a_pass_without_dropout_leaves_out_a_loss_of_dropout_alone(settings, needs_draws):
    """As in the pruning of a finished run: the views would be equal, and the loss refused."""
    dropping = networks.SharedBottom(trunk=networks.MLP(layers=[8], dropout=0.5))
    part = auxiliary.Contrastive(**settings)
    made = images.make_model(auxiliary_losses=[part], network=dropping)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        rows = (
            {name: tf.constant(values) for name, values in fields.items()}
            for fields in (images.FEATURES, images.LABELS)
        )
        gradients = made.differentiate(*rows, images.STATISTICS)
        session.run(tf1.global_variables_initializer())
        assert (session.run(gradients.losses["contrastive"]) == 0) == needs_draws


def test_supervised_reads_the_labels_of_its_head_alone():
    vectors = _draw(8, 3).astype(np.float32)
    weight = np.arange(8, dtype=np.float32)
    head = dataclasses.replace(KIND, weight="w")
    part = auxiliary.SupervisedContrastive(head="kind", layers=[], temperature=0.5)

    def build():
        labels = {"kind": CLASSES, "w": weight}
        at = given.activations(vectors, labels, [head])
        return part(at), part.row_weights(at.labels, at.heads)

    losses, weights = given.evaluate(build)
    np.testing.assert_array_equal(weights, np.where(CLASSES >= 0, weight, 0))
    # The first row weighs 0: it is not a positive of the other rows of its class.
    kinds = np.where(weight > 0, CLASSES, -1)
    np.testing.assert_allclose(losses, _supervised(vectors, kinds, 0.5), rtol=1e-4)
    assert not part.are_rows_apart
    assert part.reads_labels


def test_a_head_without_one_class_a_row_is_refused():
    kind = auxiliary.SupervisedContrastive
    with pytest.raises(checks.UserError, match=f"{kind.__name__}.head must be one of kind, size"):
        images.make_model(auxiliary_losses=[kind(head="kinds")])
    with pytest.raises(checks.UserError, match="rows have one class of several, got 'size'"):
        images.make_model(auxiliary_losses=[kind(head="size")])


@pytest.mark.medium
@pytest.mark.parametrize(
    "part",
    [
        auxiliary.Contrastive(layers=[4]),
        auxiliary.SupervisedContrastive(head="kind", layers=[4]),
    ],
    ids=lambda part: part.name,
)
def test_a_slice_of_one_row_is_refused(part):
    made = images.make_model(auxiliary_losses=[part])
    assert np.isfinite(images.take_steps(made, slices=8)[1][f"{part.name}/loss"])
    with pytest.raises(checks.UserError, match="must get at least two rows"):
        images.take_steps(made, slices=16, steps=0)
