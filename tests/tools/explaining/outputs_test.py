"""The numeric outputs of heads of all kinds."""

import pytest
import tensorflow as tf

from mtl import heads
from mtl.tools.explaining import outputs


@pytest.mark.parametrize(
    "head,size,names,kind,scale",
    [
        (heads.Binary(name="x", positive=["yes"]), 1, ["yes"], "probability", "logit"),
        (heads.MultiClass(name="x", classes=["p", "q"]), 2, ["p", "q"], "probability", "logit"),
        (heads.MultiLabel(name="x", classes=3), 3, ["0", "1", "2"], "probability", "logit"),
        (heads.Ordinal(name="x", classes=4), 3, ["value"], "value", "value"),
        (heads.Regression(name="x"), 1, ["value"], "value", "value"),
        (heads.Regression(name="x", dimension=2), 2, ["value 0", "value 1"], "value", "value"),
        (heads.Poisson(name="x"), 1, ["value"], "value", "value"),
        (heads.MixtureDensity(name="x"), None, ["value"], "value", "value"),
        (heads.Score(name="x"), 1, ["score"], "score", "score"),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "name") else None,
)
def test_every_head_says_numbers(head, size, names, kind, scale):
    with tf.Graph().as_default():
        width = size or head.size
        found = outputs.describe_output(head, tf.compat.v1.placeholder(tf.float32, [None, width]))
    assert (list(found.names), found.kind, found.scale) == (names, kind, scale)
    assert found.shown.shape[1] == found.explained.shape[1] == len(names)


def test_a_density_says_its_logarithm():
    head = heads.GaussianMixture(name="x", num_components=3)
    with tf.Graph().as_default(), tf.compat.v1.variable_scope("x"):
        logits = head.logits(tf.compat.v1.placeholder(tf.float32, [None, 2]))
        found = outputs.describe_output(head, logits)
    assert list(found.names) == ["log_density"]


def test_what_is_no_number_is_none():
    class Other(heads.Score):
        def predictions(self, logits):
            return {"odd": tf.zeros([2, 2, 2])}

    with tf.Graph().as_default():
        assert outputs.describe_output(Other(name="x"), tf.zeros([2, 1])) is None
