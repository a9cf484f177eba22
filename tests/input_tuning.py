"""Turns the tuning of inputs off where tests train, because it delays the end of a run.

A thread of tf.data tunes an iterator in longer and longer intervals. TensorFlow wakes it when a
session is closed, but marks the iterator as cancelled only afterwards: where the thread is quicker,
it sleeps on, and closing the session waits for it, up to half as long as the session was open. What
is read, and in which order, does not depend on the tuning.
"""

import tensorflow as tf

from mtl.data import pipeline


def turn_off() -> None:
    """For all runs of this process and of its forks."""
    build_options = pipeline._options

    def build_untuned() -> tf.data.Options:
        options = build_options()
        options.autotune.enabled = False
        return options

    pipeline._options = build_untuned
