"""Runs a head on NumPy values in a new graph."""

import re

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

ZERO_WITH_AREAS = ("auc_error_bound", "nan_predictions", "pr_auc_error_bound")


def assert_zero(metrics, names):
    """Fail unless these metrics, which warn of errors in other metrics, are 0."""
    assert {name: metrics[name] for name in names} == dict.fromkeys(names, 0)


def loss(head, logits, labels):
    """The loss and its gradient with respect to the logits."""
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf.constant(logits, tf.float32)
        value = head.loss(x, {name: tf.constant(field) for name, field in labels.items()})
        (gradient,) = tf.gradients(value, x)
        session.run(tf1.tables_initializer())
        return session.run([value, gradient])


def predict(head, logits):
    """The predictions, with names as str."""
    with tf.Graph().as_default(), tf1.Session() as session:
        predictions = session.run(head.predictions(tf.constant(np.asarray(logits), tf.float32)))
    return {
        name: value.astype(str) if value.dtype == object else value
        for name, value in predictions.items()
    }


def untrained(head, width=5):
    """The logits of a new head for a tower of zeros."""
    with tf.Graph().as_default(), tf1.Session() as session:
        logits = head.logits(tf.zeros([1, width]))
        session.run(tf1.global_variables_initializer())
        return session.run(logits)[0]


def evaluate(head, logits, labels, num_batches=7):
    """The metrics, streamed over batches."""
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [None, *np.shape(logits)[1:]])
        fields = {
            name: tf1.placeholder(_dtype(value), [None, *value.shape[1:]])
            for name, value in labels.items()
        }
        metrics = head.metrics(x, fields)
        session.run([tf1.local_variables_initializer(), tf1.tables_initializer()])
        for rows in np.array_split(np.arange(len(logits)), num_batches):
            feed = {fields[name]: value[rows] for name, value in labels.items()}
            session.run([update for _, update in metrics.values()], {x: logits[rows], **feed})
        return session.run({name: value for name, (value, _) in metrics.items()})


def _dtype(value):
    return tf.string if value.dtype.kind in "OU" else value.dtype


def label_error(error):
    """Return the message of `values.require` in an error as a line `<text> <label>`, or None.

    TensorFlow shows text and label in brackets, with quotes escaped, within a stack trace.
    """
    found = re.search(r"assertion failed: \[(head \\'.*)\] \[(.*?)(\.\.\.)?\]$", str(error), re.M)
    if not found:
        return None
    line = f"{found[1]} {found[2]}"
    return line.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")
