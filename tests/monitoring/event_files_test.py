"""The content of event files after restarts, and with values that are not finite."""

import math

import tensorflow as tf

from mtl.monitoring import event_files

tf1 = tf.compat.v1


def _write(folder, *events):
    """Write (step, {tag: value}), or a step from which all is trained once more."""
    with tf.Graph().as_default():
        writer = tf1.summary.FileWriter(str(folder))
        for event in events:
            if isinstance(event, int):
                start = tf1.SessionLog(status=tf1.SessionLog.START)
                writer.add_session_log(start, event)
                continue
            step, values = event
            value = [tf1.Summary.Value(tag=t, simple_value=x) for t, x in values.items()]
            writer.add_summary(tf1.Summary(value=value), step)
        writer.close()


def test_what_is_trained_once_more_replaces_what_was_there(tmp_path):
    _write(
        tmp_path, 1, (10, {"a": 1.0}), (20, {"a": 2.0}), (30, {"a": math.nan}), 15, (25, {"a": 5})
    )
    record = event_files.read_record(str(tmp_path))
    assert record.curves == {"a": {10: 1.0, 25: 5.0}}
    assert not any(record.broken.values())


def test_values_that_are_not_finite_are_kept_apart(tmp_path):
    _write(tmp_path, (10, {"a": math.inf, "b": 1.0}), (20, {"a": math.nan}), (10, {"a": 3.0}))
    record = event_files.read_record(str(tmp_path))
    assert record.curves == {"a": {10: 3.0}, "b": {10: 1.0}}
    assert record.broken == {"a": {20}}


def test_what_is_no_number_is_no_zero(tmp_path):
    with tf.Graph().as_default():
        writer = tf1.summary.FileWriter(str(tmp_path))
        text = tf1.Summary.Value(tag="t", tensor=tf.make_tensor_proto("x"))
        picture = tf1.Summary.Value(tag="h", histo=tf1.HistogramProto(num=1))
        writer.add_summary(tf1.Summary(value=[text, picture]), 1)
        writer.close()
    assert event_files.read_record(str(tmp_path)) == ({}, {})
