"""The contract of `mtl.types.Head`, for every row of `heads.py`."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat
from tests.conformance import heads as rows
from tests.heads import harness

tf1 = tf.compat.v1


# With the scope of a module the tests of a row run in sequence, and share its graphs.
@pytest.fixture(scope="module", params=rows.ROWS.values(), ids=list(rows.ROWS))
def row(request):
    return request.param


class Built:
    """A graph with the loss and the metrics of a head, for any rows."""

    def __init__(self, row, head, **fields):
        """Build the graph; `fields` are the types of further label fields, beside the row's."""
        self._row, self.head = row, head
        with tf.Graph().as_default() as graph:
            self._logits = tf1.placeholder(tf.float32, [None, *row.places, head.size])
            self._given = {name: tf1.placeholder(dtype, [None]) for name, dtype in fields.items()}
            self._given["task"] = hold_label(row)
            labels = {**fill_others(row, tf.shape(self._logits)[0]), **self._given}
            loss = head.loss(self._logits, labels)
            self._loss = [loss, tf.gradients(loss, self._logits)[0]]
            self._label_weight = head.label_weight(labels)
            streams = head.metrics(self._logits, labels)
            self._metrics = {name: value for name, (value, _) in streams.items()}
            self._updates = [update for _, update in streams.values()]
            self._initializer = tf1.local_variables_initializer()
        self._session = tf1.Session(graph=graph)

    def _run(self, fetches, labels, logits, fields):
        values = {"task": feed_labels(self._row, labels), **fields}
        feed = {self._given[name]: value for name, value in values.items()}
        return self._session.run(fetches, {self._logits: logits, **feed})

    def loss_and_gradient(self, labels, logits, **fields):
        return self._run(self._loss, labels, logits, fields)

    def label_weight(self, labels, logits):
        return self._run(self._label_weight, labels, logits, {})

    def metrics(self, labels, logits, **fields):
        self._session.run(self._initializer)
        self._run(self._updates, labels, logits, fields)
        return self._session.run(self._metrics)


@pytest.fixture(scope="module")
def built(row):
    return Built(row, row.make())


@pytest.fixture(scope="module")
def weighted(row):
    """The head with a label field of weights."""
    return Built(row, row.make(weight="weight"), weight="float32")


def hold_label(row):
    """Return a placeholder of the label of a row."""
    if row.dtype.startswith("ragged "):
        return tf1.ragged.placeholder(row.dtype.removeprefix("ragged "), 1, [])
    return tf1.placeholder(row.dtype, [None, *np.shape(row.labels[0])])


def feed_labels(row, labels):
    """Return the value to feed for `hold_label`."""
    if row.dtype.startswith("ragged "):
        values = np.array([value for label in labels for value in label])
        return tf1.ragged.RaggedTensorValue(values, np.cumsum([0, *map(len, labels)]))
    return np.reshape(labels, [len(labels), *np.shape(row.labels[0])])


def fill_others(row, num_rows):
    """Return {field: [B]} of the fields that the head reads beside its label."""
    return {
        name: tf.fill([num_rows], tf.constant(value, tf.int64 if isinstance(value, int) else None))
        for name, value in row.others.items()
    }


def random_logits(row, head, count):
    return np.random.default_rng(0).normal(size=(count, *row.places, head.size))


def test_logits_are_a_layer_in_the_callers_scope(row):
    head = row.make()
    if getattr(head, "composes", ()):
        pytest.skip("its logits are those of others")
    with tf.Graph().as_default():
        with tf1.variable_scope("head/task"):
            logits = head.logits(tf.ones([4, *row.places, 5]))
        assert logits.shape == [4, *row.places, head.size]
        names = [variable.name for variable in tf1.trainable_variables()]
    assert names
    assert all(name.startswith("head/task/") for name in names)


def test_predictions_have_their_names_and_shapes(row):
    head = row.make()
    with tf.Graph().as_default():
        predictions = head.predictions(tf.ones([4, *row.places, head.size]))
        shapes = {name: tuple(value.shape[1:]) for name, value in predictions.items()}
    assert shapes == row.predictions


def test_signatures(row):
    head = row.make()
    with tf.Graph().as_default():
        outputs = head.export_outputs(tf.ones([4, *row.places, head.size]))
    assert " ".join(sorted(outputs)) == row.signatures
    assert all(
        isinstance(output, compat.estimator.export.ExportOutput) for output in outputs.values()
    )


@pytest.mark.medium
def test_missing_rows_change_neither_loss_nor_gradient_even_where_logits_are_not_finite(row, built):
    count = len(row.labels)
    logits = random_logits(row, built.head, count + 2)
    alone = built.loss_and_gradient(row.labels, logits[:count])
    logits[count], logits[count + 1] = np.nan, np.inf
    labels = [*row.labels, row.missing, row.missing]
    loss, gradient = built.loss_and_gradient(labels, logits)
    np.testing.assert_allclose(loss, alone[0], rtol=1e-6)
    np.testing.assert_allclose(gradient[:count], alone[1], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(gradient[count:], 0)
    assert np.abs(gradient).max() > 0


@pytest.mark.medium
def test_nothing_labelled_means_no_loss_no_gradient_and_undefined_metrics(row, built):
    logits, labels = random_logits(row, built.head, 2), [row.missing, row.missing]
    loss, gradient = built.loss_and_gradient(labels, logits)
    assert loss == 0
    np.testing.assert_array_equal(gradient, 0)
    found = built.metrics(labels, logits)
    assert found.pop("nan_predictions") == 0
    assert all(np.isnan(value) for value in found.values())


@pytest.mark.medium
def test_metrics_have_their_names_and_skip_missing_rows(row, built):
    count = len(row.labels)
    logits = random_logits(row, built.head, count + 1)
    alone = built.metrics(row.labels, logits[:count])
    together = built.metrics([*row.labels, row.missing], logits)
    assert " ".join(sorted(alone)) == row.metrics
    assert all(value.dtype == np.float32 for value in alone.values())
    for name, value in alone.items():
        np.testing.assert_allclose(together[name], value, rtol=1e-6, err_msg=name)


@pytest.mark.medium
def test_average_loss_is_the_loss_of_the_whole_split(row, built):
    logits = random_logits(row, built.head, len(row.labels))
    loss, _ = built.loss_and_gradient(row.labels, logits)
    average = built.metrics(row.labels, logits)["average_loss"]
    np.testing.assert_allclose(average, loss, rtol=1e-5)


@pytest.mark.medium
def test_a_weight_of_two_is_the_row_twice(row, weighted):
    count = len(row.labels)
    logits = random_logits(row, weighted.head, count)
    weights = np.ones(count)
    weights[0] = 2
    given = {"labels": row.labels, "logits": logits, "weight": weights}
    twice = {
        "labels": [row.labels[0], *row.labels],
        "logits": np.concatenate([logits[:1], logits]),
        "weight": np.ones(count + 1),
    }
    with_weight, _ = weighted.loss_and_gradient(**given)
    with_copy, _ = weighted.loss_and_gradient(**twice)
    np.testing.assert_allclose(with_weight, with_copy, rtol=1e-5)
    expected = weighted.metrics(**twice)
    for name, value in weighted.metrics(**given).items():
        if name in row.by_group:
            continue
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, err_msg=name)


@pytest.mark.medium
def test_parts_of_a_batch_add_up_to_the_whole(row, built):
    """As slices and replicas do: the loss of a part counts by its share of the labels."""
    if row.by_group:
        pytest.skip("its groups are not divided")
    count = len(row.labels)
    logits, labels = random_logits(row, built.head, count + 1), [*row.labels, row.missing]
    whole, gradient = built.loss_and_gradient(labels, logits)
    parts = [(labels[part], logits[part]) for part in (slice(0, 1), slice(1, count + 1))]
    found = [built.loss_and_gradient(*part) for part in parts]
    weights = [built.label_weight(*part) for part in parts]
    shares = np.array(weights) / np.sum(weights)
    np.testing.assert_allclose(np.dot(shares, [loss for loss, _ in found]), whole, rtol=1e-5)
    joined = [share * own for share, (_, own) in zip(shares, found, strict=True)]
    np.testing.assert_allclose(np.concatenate(joined), gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.medium
@pytest.mark.parametrize("use", ["loss_and_gradient", "metrics"])
def test_a_wrong_label_stops_the_graph_and_check_finds_the_record(row, built, use):
    for label, rule in row.wrong:
        message = f"head 'task': label 'task' must {rule}"
        assert built.head.check({"task": label}).split(". If ")[0] == message
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            getattr(built, use)([row.labels[0], label], random_logits(row, built.head, 2))
        assert harness.label_error(caught.value) == message


def test_check_finds_nothing_in_good_and_missing_labels(row):
    head = row.make()
    assert [head.check({"task": label}) for label in [*row.labels, row.missing]] == [None] * (
        len(row.labels) + 1
    )
    assert head.check({}) is None


@pytest.mark.medium
@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0])
def test_a_wrong_weight_fails_where_the_row_counts(row, weighted, weight):
    head = weighted.head
    message = f"head 'task': label 'weight' must be finite and at least 0, got {weight:g}"
    assert head.check({"task": row.labels[0], "weight": weight}) == message
    assert head.check({"task": row.missing, "weight": weight}) is None
    given = {"logits": random_logits(row, head, 2), "weight": [1.0, weight]}
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        weighted.loss_and_gradient(row.labels[:2], **given)
    assert harness.label_error(caught.value) == message
    loss, _ = weighted.loss_and_gradient([row.labels[0], row.missing], **given)
    assert np.isfinite(loss)


@pytest.mark.medium
def test_an_empty_batch_has_no_loss(row, built):
    loss, _ = built.loss_and_gradient([], random_logits(row, built.head, 0))
    assert loss == 0


@pytest.mark.medium
def test_the_loss_can_be_built_in_the_body_of_a_loop(row):
    head, count = row.make(), len(row.labels)
    with tf.Graph().as_default(), tf1.Session() as session:
        labels = {"task": hold_label(row), **fill_others(row, count)}
        logits = tf.constant(random_logits(row, head, count), tf.float32)
        outside = head.loss(logits, labels)
        _, total = tf.while_loop(
            lambda step, _: step < 3,
            lambda step, total: (step + 1, total + head.loss(logits, labels)),
            [tf.constant(0), tf.constant(0.0)],
        )
        feed = {labels["task"]: feed_labels(row, row.labels)}
        outside, total = session.run([outside, total], feed)
    np.testing.assert_allclose(total, 3 * outside, rtol=1e-5)


def test_a_label_field_that_is_not_there_or_of_the_wrong_type(row):
    head = row.make()
    with tf.Graph().as_default():
        logits = tf.zeros([2, *row.places, head.size])
        with pytest.raises(checks.UserError, match="head 'task': its label field must be one of"):
            head.loss(logits, {"tasks": hold_label(row)})
        with pytest.raises(checks.UserError, match=r"Heads also read the features of Spec.keys\.$"):
            head.loss(logits, {"else": hold_label(row)})
        with pytest.raises(checks.UserTypeError, match="head 'task': label 'task' must be .*bool"):
            head.loss(logits, {"task": tf.constant([True, False])})
        with pytest.raises(checks.UserError, match="head 'task': label 'task' must have shape"):
            kind = row.dtype.removeprefix("ragged ")
            kind = "int64" if kind == "string" and "multi_label" in str(type(head)) else kind
            head.loss(logits, {"task": tf.zeros([2, 7, 7, 7, 7], kind)})
