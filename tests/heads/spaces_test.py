"""Tasks within the space of another one: the rows outside might as well not be there."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, heads
from mtl.heads import softmax, together
from mtl.tf_internals import eager
from tests.conformance import heads as head_rows
from tests.conformance import heads_test as conformance
from tests.heads import harness

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(0)
N = 60
CLICK = RANDOM.integers(-1, 2, N)
ORDER = np.where(CLICK == 1, RANDOM.integers(-1, 2, N), 0)
ORDER[CLICK == -1] = 1  # An outcome is valid if the click is unknown.
WEIGHT = np.where(CLICK == 1, RANDOM.uniform(0.5, 2, N), np.nan).astype(np.float32)
LOGITS = RANDOM.normal(size=(N, 1)).astype(np.float32)
INSIDE = CLICK == 1
WITHIN = heads.Binary(name="order", within="click", weight="weight")
# The marks of a label that is missing, by the type of the field of the space.
MARKS = {
    "int64": (CLICK, "click"),
    "float32": (np.where(CLICK < 0, np.nan, CLICK).astype(np.float32), "click"),
    "string": (
        np.array([b"", b"no", b"yes"], object)[CLICK + 1],
        {"click": ["yes", "indeed"]},
    ),
}


def _run(head, logits, labels):
    """Loss, gradient, weight of the labels and weights of the rows."""
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf.constant(logits)
        fields = {name: tf.constant(value) for name, value in labels.items()}
        loss = head.loss(x, fields)
        made = [loss, tf.gradients(loss, x)[0], head.label_weight(fields), head.row_weights(fields)]
        return session.run(made)


@pytest.fixture(scope="module")
def cut_out():
    """Return loss, gradient, weights and metrics of the inner rows, from a head without a space."""
    plain = heads.Binary(name="order", weight="weight")
    labels = {"order": ORDER[INSIDE], "weight": WEIGHT[INSIDE]}
    metrics = harness.evaluate(plain, LOGITS[INSIDE], labels, 1)
    return [*_run(plain, LOGITS[INSIDE], labels), metrics]


@pytest.mark.medium
@pytest.mark.parametrize("dtype", MARKS)
def test_rows_outside_or_of_an_unknown_place_count_nothing(cut_out, dtype):
    click, within = MARKS[dtype]
    head = heads.Binary(name="order", within=within, weight="weight")
    logits = LOGITS.copy()
    logits[~INSIDE] = np.inf
    labels = {"order": ORDER, "weight": WEIGHT, "click": click}
    found = _run(head, logits, labels)
    loss, gradient, weight, weights, metrics = cut_out
    assert loss > 0 and weight > 0
    np.testing.assert_allclose(found[0], loss, rtol=1e-6)
    np.testing.assert_allclose(found[1][INSIDE], gradient, rtol=1e-5, atol=1e-8)
    np.testing.assert_array_equal(found[1][~INSIDE], 0)
    np.testing.assert_allclose(found[2], weight, rtol=1e-6)
    np.testing.assert_array_equal(found[3][INSIDE], weights)
    np.testing.assert_array_equal(found[3][~INSIDE], 0)
    if dtype == "string":
        for name, value in harness.evaluate(head, logits, labels).items():
            np.testing.assert_allclose(value, metrics[name], rtol=1e-6, err_msg=name)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["multi_class", "multi_label of lists of ids", "ordinal"])
def test_classes_and_lists_have_a_space(name):
    row = head_rows.ROWS[name]
    count = len(row.labels)
    # Twice the rows; those of an unknown place have other labels.
    labels = [*row.labels, *row.labels[::-1]]
    plain = conformance.Built(row, row.make())
    within = conformance.Built(row, row.make(within="click"), click="int64")
    logits = conformance.random_logits(row, plain.head, 2 * count)
    alone = plain.loss_and_gradient(row.labels, logits[:count])
    found = within.loss_and_gradient(labels, logits, click=[1] * count + [-1] * count)
    np.testing.assert_allclose(found[0], alone[0], rtol=1e-6)
    np.testing.assert_array_equal(found[1][count:], 0)


WATCHED = heads.Regression(name="order", within="click")
TOLD = "head 'order': label 'order' must hold no outcome unless label 'click' is 1, got 1"


@pytest.mark.parametrize("head", [WITHIN, WATCHED], ids=["binary", "number"])
def test_an_outcome_outside_is_one_clear_line(head):
    labels = {"order": np.float32([0, 1, 1]), "click": np.array([0, 1, 0])}
    labels["weight"] = np.ones(3, np.float32)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        _run(head, LOGITS[:3], labels)
    assert harness.label_error(caught.value) == TOLD
    records = [{name: value[row] for name, value in labels.items()} for row in range(3)]
    assert [head.check(record) for record in records] == [None, None, TOLD]


def test_a_weight_outside_is_not_looked_at():
    record = {"order": 0, "click": 0, "weight": np.nan}
    assert WITHIN.check(record) is None
    assert WITHIN.check({**record, "click": -1, "order": 1}) is None
    told = "head 'order': label 'weight' must be finite and at least 0, got nan"
    assert WITHIN.check({**record, "click": 1}) == told


def test_many_heads_within_a_space_are_as_they_are_one_by_one():
    many = [heads.Binary(name=f"t{i}", label="order", within="click") for i in range(20)]
    labels = {"order": tf.constant(ORDER), "click": tf.constant(CLICK)}
    with tf1.Session() as session, session.graph.as_default():
        labels = {"order": tf.constant(ORDER), "click": tf.constant(CLICK)}
        logits = {head.name: tf.constant(LOGITS) for head in many}
        found = session.run(together.compute_losses(many, logits, labels))
        alone = session.run(many[0].loss(logits["t0"], labels))
    assert set(found.values()) == {alone}


@pytest.mark.medium
def test_what_a_head_learns_of_the_labels_is_of_those_inside():
    """Counts and moments come from two batches; their names tell the space."""
    labels = {"kind": np.array([0, 1, 1, 2, 2, 2]), "size": np.arange(6, dtype=np.float32)}
    labels["click"] = np.array([1, 1, 0, 0, 1, -1])
    objective = softmax.CrossEntropy(margin=softmax.LDAM())
    of_kind, of_size = {"classes": 3, "objective": objective}, {"num_components": 2}
    for within, counts, mean in ((None, [1, 2, 3], 2.5), ("click", [1, 1, 1], 5 / 3)):
        made = [
            heads.MultiClass(name="kind", within=within, **of_kind),
            heads.MixtureDensity(name="size", within=within, **of_size),
        ]
        gathered = {name: own for head in made for name, own in head.accumulators().items()}
        for rows in (slice(4), slice(4, None)):
            batch = {name: value[rows] for name, value in labels.items()}
            with eager.execute_eagerly():
                fields = {name: tf.constant(value) for name, value in batch.items()}
                for own in gathered.values():
                    own.update(fields)
        entries = {name: own.save("", name) for name, own in gathered.items()}
        statistics = features.Statistics(directory="", entries=entries)
        kind, size = (head.fitted(statistics) for head in made)
        assert list(kind.class_counts) == counts
        assert size.label_mean == pytest.approx(mean)
        names = {"label/kind", "moments/size"}
        where = "" if within is None else " where label 'click' is 1"
        assert set(entries) == {name + where for name in names}


@pytest.mark.parametrize(
    ("within", "told"),
    [
        (3, "must name a label field, or map label fields to lists of their values, got 3"),
        ({}, "must name a label field, or map label fields to lists of their values, got {}"),
        ({"click": "yes"}, "['click'] must be a list of label values, got 'yes'"),
        ({"click": []}, "['click'] must hold a label value, got []"),
        ({"click": [""]}, "['click'] must hold no missing value, got ''"),
    ],
)
def test_a_space_that_is_none_is_refused(within, told):
    with pytest.raises(checks.UserError) as caught:
        heads.Binary(name="order", within=within)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("within", "told"),
    [
        ("clicks", "must be one of click, order, got 'clicks'. Did you mean 'click'?"),
        ({"click": ["yes"]}, "must hold values of int64, the type of label 'click', got 'yes'"),
    ],
)
def test_a_space_that_the_labels_do_not_have_is_refused(within, told):
    head = heads.Binary(name="order", within=within)
    with tf.Graph().as_default(), pytest.raises(checks.UserError) as caught:
        head.label_weight({name: tf.constant([1], tf.int64) for name in ("click", "order")})
    assert told in str(caught.value)
