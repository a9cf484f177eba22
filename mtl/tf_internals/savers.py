"""Adds a saver with other save and restore ops than Estimator's saver to a graph."""

from __future__ import annotations

from tensorflow.python.training import saver as saver_lib

from mtl.deferred import tf, tf1


def add_saver(builder: saver_lib.BaseSaverBuilder) -> tf.compat.v1.train.Saver:
    """Add a saver for all variables to the graph, and return the saver.

    Args:
      builder: an object that builds the ops of the saver.
    """
    saver = tf1.train.Saver(
        sharded=True,
        max_to_keep=None,
        defer_build=True,
        save_relative_paths=True,
        builder=builder,
    )
    tf1.add_to_collection(tf1.GraphKeys.SAVERS, saver)
    return saver
