"""Gives a graph a saver like Estimator's that saves or restores some variables differently."""

from __future__ import annotations

from tensorflow.python.training import saver as saver_lib

from mtl.deferred import tf, tf1


def add_saver(builder: saver_lib.BaseSaverBuilder) -> tf.compat.v1.train.Saver:
    """Give the graph a saver of all its variables, and return it; this builder makes its ops."""
    saver = tf1.train.Saver(
        sharded=True,
        max_to_keep=None,
        defer_build=True,
        save_relative_paths=True,
        builder=builder,
    )
    tf1.add_to_collection(tf1.GraphKeys.SAVERS, saver)
    return saver
