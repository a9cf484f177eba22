"""A field counts as used if the logits depend on it, also through a calibration."""

import tensorflow as tf

from mtl import heads
from mtl.tools.explaining import opened

tf1 = tf.compat.v1


def test_a_field_that_a_head_calibrates_by_is_used():
    with tf.Graph().as_default():
        fields = {name: tf1.placeholder(tf.string, [None], name) for name in ("zone", "unread")}
        fields["items"] = tf1.ragged.placeholder(tf.int64, 1, [])
        sums = tf.reduce_sum(fields["items"], axis=1)
        column = tf.cast(sums, tf.float32)[:, tf.newaxis]
        head = heads.Binary(name="click", calibration_slices={"zone": ["a", "b"]})
        with tf1.variable_scope("head"):
            logits = head.calibrate(head.logits(column), fields)
        made = opened.Opened(None, {}, fields, {}, {"column": column}, {"click": logits}, 16)
        assert made.list_used() == {"zone", "items"}
