import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import auxiliary, checks, heads
from mtl.auxiliary import domains
from mtl.balancing import methods, surgery
from mtl.heads import softmax
from mtl.optimization import schedules
from mtl.runs import diagnosis, plausibility
from tests import images, tiny
from tests.auxiliary import given

tf1 = tf.compat.v1

DOMAINS = np.array([0, 1, -1, 1] * 4)
LABELS = {**images.LABELS, "is_new": DOMAINS}
HEAD = heads.Binary(name="is_new")


def _reversal(**settings):
    return auxiliary.GradientReversal(**{"head": HEAD, "layers": [3], **settings})


@pytest.mark.parametrize("factor", [0.0, 0.3, 2.0])
def test_reverses_the_gradient_and_keeps_the_values_to_the_bit(factor):
    x = np.random.default_rng(1).normal(size=[5, 3]).astype(np.float32)

    def build():
        values = tf.constant(x)
        reversed_ = domains.reverse_gradient(values, factor)
        upstream = tf.constant(3 * x)
        return reversed_, tf.gradients(reversed_, values, upstream)[0]

    values, gradient = given.evaluate(build)
    np.testing.assert_array_equal(values, x)
    np.testing.assert_allclose(gradient, -factor * 3 * x, rtol=1e-6)


def test_the_discriminator_learns_and_the_representation_gets_the_reversed_gradient():
    """By hand: a layer with ReLU, one logit, cross-entropy, of rows with a domain alone."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=[16, 4]).astype(np.float32)

    def build():
        vectors = tf.constant(x)
        part = _reversal(reversal=0.7)
        at = given.activations(vectors, {"is_new": DOMAINS})
        losses = part(at)
        weights = part.row_weights(at.labels, {})
        loss = tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)
        variables = {v.op.name: v for v in tf1.trainable_variables()}
        gradients = tf.gradients(loss, list(variables.values()))
        own = dict(zip(variables, gradients, strict=True))
        return loss, weights, variables, own, tf.gradients(loss, vectors)[0]

    loss, weights, variables, own, at_vectors = given.evaluate(build)
    v = {name: value.astype(np.float64) for name, value in variables.items()}
    hidden = np.maximum(x @ v["hidden_0/kernel"] + v["hidden_0/bias"], 0)
    logit = (hidden @ v["logits/kernel"] + v["logits/bias"])[:, 0]
    present = DOMAINS >= 0
    np.testing.assert_array_equal(weights, present)
    each = np.log1p(np.exp(-np.where(DOMAINS > 0, logit, -logit)))
    assert loss == pytest.approx(each[present].mean(), rel=1e-5)
    slope = np.where(present, 1 / (1 + np.exp(-logit)) - DOMAINS, 0)[:, np.newaxis] / present.sum()
    np.testing.assert_allclose(own["logits/kernel"], hidden.T @ slope, atol=1e-6)
    back = (slope @ v["logits/kernel"].T) * (hidden > 0)
    np.testing.assert_allclose(own["hidden_0/kernel"], x.T @ back, atol=1e-6)
    np.testing.assert_allclose(at_vectors, -0.7 * back @ v["hidden_0/kernel"].T, atol=1e-6)


def _take_step(made, **settings):
    return images.take_steps(made, steps=1, labels=LABELS, **settings)


@pytest.mark.medium
def test_the_network_moves_the_other_way_by_the_reversal():
    """One step of descent: what the loss adds to a weight of the trunk is -reversal times."""
    plain = _take_step(images.make_model())[0]
    moved = {
        factor: _take_step(
            images.make_model(auxiliary_losses=[_reversal(reversal=factor, weight=0.5)])
        )[0]
        for factor in (0.0, 1.0, 2.0)
    }
    name = "network/trunk/hidden_0/kernel"
    np.testing.assert_allclose(moved[0.0][name], plain[name], atol=1e-7)
    once, twice = moved[1.0][name] - plain[name], moved[2.0][name] - plain[name]
    assert np.abs(once).max() > 1e-4
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-2, atol=1e-6)
    # The discriminator knows nothing of it.
    own = "auxiliary/domain/hidden_0/kernel"
    np.testing.assert_allclose(moved[2.0][own], moved[0.0][own], atol=1e-7)


@pytest.mark.medium
def test_surgery_sees_the_reversed_gradient():
    """PCGrad by hand, of the gradients that one step of descent tells."""
    task = heads.Regression(name="size")
    losses = [_reversal(reversal=5.0)]
    settings = {"heads": [task], "auxiliary_losses": losses}
    start = images.take_steps(images.make_model(**settings), steps=0, labels=LABELS)[0]
    plain, summed, projected = (
        _take_step(images.make_model(**made))[0]
        for made in (
            {"heads": [task]},
            settings,
            {**settings, "surgery": surgery.Combine(method=methods.PCGrad())},
        )
    )
    own = "auxiliary/domain/hidden_0/kernel"
    np.testing.assert_allclose(projected[own], summed[own], atol=1e-6)

    def join(values):
        names = [f"network/trunk/hidden_0/{name}" for name in ("kernel", "bias")]
        return np.concatenate([values[name].ravel() for name in names]).astype(np.float64)

    of_task = join(plain) - join(start)
    of_domain = join(summed) - join(plain)
    product = of_task @ of_domain
    expected = of_task + of_domain
    if product < 0:
        expected -= product / (of_domain @ of_domain) * of_domain
        expected -= product / (of_task @ of_task) * of_task
    # With the gradient as it is the product has the other sign: it would be projected, or not.
    assert abs(product) > 1e-6
    np.testing.assert_allclose(join(projected) - join(start), expected, atol=1e-5)


@pytest.mark.medium
def test_slices_and_replicas_are_the_whole_batch():
    """At a tower, by a schedule; the table of auxiliary losses has the shared vectors."""
    # A label in two rows of three.
    head = heads.MultiClass(name="of_kind", label="kind", classes=3)
    made = images.make_model(
        auxiliary_losses=[_reversal(head=head, at="size", reversal=schedules.Sigmoid(rise_steps=3))]
    )
    whole = images.take_steps(made)[0]
    other = images.take_steps_on_replicas(made, slices=2)
    for name, value in whole.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_domains_that_cannot_be_are_refused_in_one_line():
    made = tiny.make()
    rule = "the label that the auxiliary loss 'domain' reads must be one of sign, kind, size, got"
    for head, wrong in (
        (heads.Binary(name="domain", label="sing"), "'sing'. Did you mean 'sign'?"),
        (heads.Binary(name="domain", label="sign", weight="sizes"), "'sizes'. Did you mean 'size'"),
    ):
        model = dataclasses.replace(made.model, auxiliary_losses=[_reversal(head=head)])
        with pytest.raises(checks.UserError, match=rule) as error:
            dataclasses.replace(made, model=model)
        assert wrong in str(error.value)
    right = _reversal(head=heads.Binary(name="domain", label="sign"))
    assert right.label_fields == ["sign"]
    assert right.reads_labels
    dataclasses.replace(made, model=dataclasses.replace(made.model, auxiliary_losses=[right]))


def test_a_head_that_counts_or_has_the_name_of_a_task_is_refused():
    counting = heads.MultiClass(
        name="domain",
        classes=3,
        objective=softmax.CrossEntropy(class_weights=softmax.EffectiveNumber()),
    )
    with pytest.raises(checks.UserError, match="head must not need counts of the training split"):
        _reversal(head=counting)
    with pytest.raises(checks.UserError, match="name must differ from all tasks, got 'size'"):
        images.make_model(auxiliary_losses=[_reversal(head=heads.Regression(name="size"))])
    with pytest.raises(checks.UserError, match=r"GradientReversal.at must be one of shared, kind"):
        images.make_model(auxiliary_losses=[_reversal(at="kin")])


def test_the_reversal_follows_a_schedule_of_the_run():
    made = tiny.make(train_steps=80)
    part = _reversal(head=heads.Binary(name="domain", label="sign"), reversal=schedules.Sigmoid())
    model = dataclasses.replace(made.model, auxiliary_losses=[part])
    filled = dataclasses.replace(made, model=model).model.fill_schedules(80)
    assert filled.auxiliary_losses[0].reversal.rise_steps == 80


def _make_with_domain(kinds):
    rows = {**tiny.SPLITS["train"], "kind": kinds}
    made = tiny.make(splits={"train": rows, "test": rows})
    head = heads.MultiClass(name="domain", label="kind", classes=3)
    model = dataclasses.replace(
        made.model, heads=made.model.heads[:1], auxiliary_losses=[_reversal(head=head)]
    )
    return dataclasses.replace(made, model=model)


def test_domains_that_are_never_told_are_refused_before_training():
    made = _make_with_domain(np.full(96, -1))
    look = plausibility.Look(made.model, made.data, "train")
    look.finish()
    with pytest.raises(checks.UserError, match="labels of task 'domain', field 'kind' must be the"):
        look.require_labels()
    # A split for evaluation needs no labels of domains.
    assert not plausibility.look_at_labels(made.model, made.data, "test").describe_doubts()


def test_one_domain_alone_is_told():
    made = _make_with_domain(np.ones(96, np.int64))
    look = plausibility.Look(made.model, made.data, "train")
    look.finish()
    look.require_labels()
    (line,) = look.describe_doubts()
    assert line.startswith("All labels of task 'domain', field 'kind', are the same")


def test_a_domain_that_is_none_is_told_by_its_row():
    kinds = np.where(np.arange(96) == 40, 7, tiny.SPLITS["train"]["kind"])
    made = _make_with_domain(kinds)
    error = tf.errors.InvalidArgumentError(None, None, "assertion failed: [x]")
    with (
        pytest.raises(checks.UserError, match=r"train row 40: .*'kind' must be in \[0, 3\), got"),
        diagnosis.explain_run_errors(made.data, made.model, None, "train"),
    ):
        raise error
