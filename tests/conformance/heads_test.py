"""The contract of `mtl.types.Head`, for every row of `heads.py`."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat
from tests.conformance import heads as rows
from tests.heads import harness

tf1 = tf.compat.v1
every_head = pytest.mark.parametrize("row", rows.ROWS.values(), ids=list(rows.ROWS))


def label_tensor(row, labels):
    if row.dtype.startswith("ragged "):
        dtype = tf.as_dtype(row.dtype.removeprefix("ragged "))
        return tf.ragged.constant(labels, dtype, ragged_rank=1, row_splits_dtype=tf.int64)
    return tf.constant(np.array(labels).tolist(), row.dtype)


def label_fields(row, labels, **weights):
    """Return {field: [B, ...]} of all that the head reads."""
    given = {name: tf.constant(value) for name, value in weights.items()}
    others = {
        name: tf.fill(
            [len(labels)], tf.constant(value, tf.int64 if isinstance(value, int) else None)
        )
        for name, value in row.others.items()
    }
    # An empty list of ragged labels has no rank, and its test makes the label by itself.
    label = label_tensor(row, labels) if len(labels) else None
    return {"task": label, **others, **given}


def loss_and_gradient(head, row, labels, logits, **weights):
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf.constant(logits, tf.float32)
        loss = head.loss(x, label_fields(row, labels, **weights))
        return session.run([loss, tf.gradients(loss, x)[0]])


def random_logits(row, head, count):
    return np.random.default_rng(0).normal(size=(count, *row.places, head.size))


@every_head
def test_logits_are_a_layer_in_the_callers_scope(row):
    head = row.make()
    if head.composes:
        pytest.skip("its logits are those of others")
    with tf.Graph().as_default():
        with tf1.variable_scope("head/task"):
            logits = head.logits(tf.ones([4, *row.places, 5]))
        assert logits.shape == [4, *row.places, head.size]
        names = [variable.name for variable in tf1.trainable_variables()]
    assert names
    assert all(name.startswith("head/task/") for name in names)


@every_head
def test_predictions_have_their_names_and_shapes(row):
    head = row.make()
    with tf.Graph().as_default():
        predictions = head.predictions(tf.ones([4, *row.places, head.size]))
        shapes = {name: tuple(value.shape[1:]) for name, value in predictions.items()}
    assert shapes == row.predictions


@every_head
def test_signatures(row):
    head = row.make()
    with tf.Graph().as_default():
        outputs = head.export_outputs(tf.ones([4, *row.places, head.size]))
    assert " ".join(sorted(outputs)) == row.signatures
    assert all(
        isinstance(output, compat.estimator.export.ExportOutput) for output in outputs.values()
    )


@pytest.mark.medium
@every_head
def test_missing_rows_change_neither_loss_nor_gradient_even_where_logits_are_not_finite(row):
    head, count = row.make(), len(row.labels)
    logits = random_logits(row, head, count + 2)
    alone = loss_and_gradient(head, row, row.labels, logits[:count])
    logits[count], logits[count + 1] = np.nan, np.inf
    labels = [*row.labels, row.missing, row.missing]
    loss, gradient = loss_and_gradient(head, row, labels, logits)
    np.testing.assert_allclose(loss, alone[0], rtol=1e-6)
    np.testing.assert_allclose(gradient[:count], alone[1], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(gradient[count:], 0)
    assert np.abs(gradient).max() > 0


@pytest.mark.medium
@every_head
def test_nothing_labelled_means_no_loss_no_gradient_and_undefined_metrics(row):
    head = row.make()
    logits, labels = random_logits(row, head, 2), [row.missing, row.missing]
    loss, gradient = loss_and_gradient(head, row, labels, logits)
    assert loss == 0
    np.testing.assert_array_equal(gradient, 0)
    found = metrics(head, row, labels, logits)
    assert found.pop("nan_predictions") == 0
    assert all(np.isnan(value) for value in found.values())


def metrics(head, row, labels, logits, **weights):
    with tf.Graph().as_default(), tf1.Session() as session:
        fields = label_fields(row, labels, **weights)
        streams = head.metrics(tf.constant(logits, tf.float32), fields)
        session.run(tf1.local_variables_initializer())
        session.run([update for _, update in streams.values()])
        return session.run({name: value for name, (value, _) in streams.items()})


@pytest.mark.medium
@every_head
def test_metrics_have_their_names_and_skip_missing_rows(row):
    head, count = row.make(), len(row.labels)
    logits = random_logits(row, head, count + 1)
    alone = metrics(head, row, row.labels, logits[:count])
    together = metrics(head, row, [*row.labels, row.missing], logits)
    assert " ".join(sorted(alone)) == row.metrics
    assert all(value.dtype == np.float32 for value in alone.values())
    for name, value in alone.items():
        np.testing.assert_allclose(together[name], value, rtol=1e-6, err_msg=name)


@pytest.mark.medium
@every_head
def test_average_loss_is_the_loss_of_the_whole_split(row):
    head, count = row.make(), len(row.labels)
    logits = random_logits(row, head, count)
    loss, _ = loss_and_gradient(head, row, row.labels, logits)
    average = metrics(head, row, row.labels, logits)["average_loss"]
    np.testing.assert_allclose(average, loss, rtol=1e-5)


@pytest.mark.medium
@every_head
def test_a_weight_of_two_is_the_row_twice(row):
    head, count = row.make(weight="weight"), len(row.labels)
    logits = random_logits(row, head, count)
    weights = np.ones(count, "f")
    weights[0] = 2
    weighted = {"weight": weights}
    twice = {"weight": np.ones(count + 1, "f")}
    labels = [row.labels[0], *row.labels]
    rows_twice = np.concatenate([logits[:1], logits])
    with_weight, _ = loss_and_gradient(head, row, row.labels, logits, **weighted)
    with_copy, _ = loss_and_gradient(head, row, labels, rows_twice, **twice)
    np.testing.assert_allclose(with_weight, with_copy, rtol=1e-5)
    expected = metrics(head, row, labels, rows_twice, **twice)
    found = metrics(head, row, row.labels, logits, **weighted)
    for name, value in found.items():
        if name in row.by_group:
            continue
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, err_msg=name)


@pytest.mark.medium
@every_head
def test_parts_of_a_batch_add_up_to_the_whole(row):
    """As slices and replicas do: the loss of a part counts by its share of the labels."""
    if row.by_group:
        pytest.skip("its groups are not divided")
    head, count = row.make(), len(row.labels)
    logits, labels = random_logits(row, head, count + 1), [*row.labels, row.missing]
    whole, gradient = loss_and_gradient(head, row, labels, logits)
    parts = [slice(0, 1), slice(1, count + 1)]
    found = [loss_and_gradient(head, row, labels[part], logits[part]) for part in parts]
    with tf.Graph().as_default(), tf1.Session() as session:
        weights = session.run(
            [head.label_weight(label_fields(row, labels[part])) for part in parts]
        )
    shares = np.array(weights) / np.sum(weights)
    np.testing.assert_allclose(np.dot(shares, [loss for loss, _ in found]), whole, rtol=1e-5)
    joined = [share * own for share, (_, own) in zip(shares, found, strict=True)]
    np.testing.assert_allclose(np.concatenate(joined), gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.medium
@every_head
@pytest.mark.parametrize("use", ["loss", "metrics"])
def test_a_wrong_label_stops_the_graph_and_check_finds_the_record(row, use):
    head = row.make()
    for label, rule in row.wrong:
        message = f"head 'task': label 'task' must {rule}"
        assert head.check({"task": label}) == message
        run = {"loss": loss_and_gradient, "metrics": metrics}[use]
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            run(head, row, [row.labels[0], label], random_logits(row, head, 2))
        assert harness.label_error(caught.value) == message


@every_head
def test_check_finds_nothing_in_good_and_missing_labels(row):
    head = row.make()
    assert [head.check({"task": label}) for label in [*row.labels, row.missing]] == [None] * (
        len(row.labels) + 1
    )
    assert head.check({}) is None


@pytest.mark.medium
@every_head
@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0])
def test_a_wrong_weight_fails_where_the_row_counts(row, weight):
    head = row.make(weight="weight")
    message = f"head 'task': label 'weight' must be finite and at least 0, got {weight:g}"
    assert head.check({"task": row.labels[0], "weight": weight}) == message
    assert head.check({"task": row.missing, "weight": weight}) is None
    weights = {"weight": np.array([1.0, weight], "f")}
    logits = random_logits(row, head, 2)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        loss_and_gradient(head, row, row.labels[:2], logits, **weights)
    assert harness.label_error(caught.value) == message
    loss, _ = loss_and_gradient(head, row, [row.labels[0], row.missing], logits, **weights)
    assert np.isfinite(loss)


@every_head
def test_an_empty_batch_has_no_loss(row):
    head = row.make()
    if row.dtype.startswith("ragged"):
        pytest.skip("a ragged constant of no rows has no rank")
    with tf.Graph().as_default(), tf1.Session() as session:
        shape = [0, *np.shape(row.labels)[1:]]
        label = tf.fill(shape, "") if row.dtype == "string" else tf.zeros(shape, row.dtype)
        labels = {**label_fields(row, []), "task": label}
        logits = tf.zeros([0, *row.places, head.size])
        assert session.run(head.loss(logits, labels)) == 0


@pytest.mark.medium
@every_head
def test_the_loss_can_be_built_in_the_body_of_a_loop(row):
    head = row.make()
    with tf.Graph().as_default(), tf1.Session() as session:
        labels = label_fields(row, row.labels)
        logits = tf.constant(random_logits(row, head, len(row.labels)), tf.float32)
        outside = head.loss(logits, labels)
        _, total = tf.while_loop(
            lambda step, _: step < 3,
            lambda step, total: (step + 1, total + head.loss(logits, labels)),
            [tf.constant(0), tf.constant(0.0)],
        )
        outside, total = session.run([outside, total])
    np.testing.assert_allclose(total, 3 * outside, rtol=1e-5)


@every_head
def test_a_label_field_that_is_not_there_or_of_the_wrong_type(row):
    head = row.make()
    with tf.Graph().as_default():
        logits = tf.zeros([2, *row.places, head.size])
        with pytest.raises(checks.UserError, match="head 'task': its label field must be one of"):
            head.loss(logits, {"tasks": label_tensor(row, row.labels)})
        with pytest.raises(checks.UserTypeError, match="head 'task': label 'task' must be .*bool"):
            head.loss(logits, {"task": tf.constant([True, False])})
        with pytest.raises(checks.UserError, match="head 'task': label 'task' must have shape"):
            kind = row.dtype.removeprefix("ragged ")
            kind = "int64" if kind == "string" and "multi_label" in str(type(head)) else kind
            head.loss(logits, {"task": tf.zeros([2, 7, 7, 7, 7], kind)})
