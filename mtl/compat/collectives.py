"""Lets replicas in several processes gather tensors whose number of rows differs between steps.

TensorFlow records the shape of the first run of a collective op under the op's instance key, and
fails if a later shape differs. In graph mode, a collective op has only one instance key. The
gradient of an embedding of token lists has a row for each token in the batch, so without this
module, a batch with another number of tokens would end a run.

    collectives.install()     # `import mtl.compat` calls it
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Gathers of different sizes need different instance keys: the key of TensorFlow plus a multiple of
# `_KEYS_APART`. TensorFlow's keys are smaller than `_KEYS_APART`, because they count collective
# ops.
_KEYS_APART = 2**20


def install() -> None:
    """Let gathers in graph mode take any number of rows; eager gathers need no change."""
    from tensorflow.python.distribute import cross_device_utils

    launcher = cross_device_utils.CollectiveReplicaLauncher
    # Wrap the method only once: `functools.wraps` sets the attribute `__wrapped__`.
    if not hasattr(launcher._all_gather, "__wrapped__"):
        launcher._all_gather = _pad_rows(launcher._all_gather)


def _pad_rows(all_gather: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Return a gather that pads rows to one of about 200 sizes, each with its own instance key."""

    @functools.wraps(all_gather)
    def gather(launcher: Any, rows: tf.Tensor, options: Any) -> tf.Tensor:
        is_static = rows.shape.is_fully_defined()
        if is_static or tf.compat.v1.executing_eagerly_outside_functions():
            return all_gather(launcher, rows, options)
        count, inner, sizes = tf.shape(rows)[0], tf.shape(rows)[1:], tf.constant(_sizes())
        index = tf.searchsorted(sizes, [count])[0]
        size, next_key = sizes[index], launcher._next_instance_key
        padding = tf.zeros(tf.concat([[size - count], inner], 0), rows.dtype)
        # While the op is built, replace the method that returns its instance key.
        launcher._next_instance_key = lambda: next_key() + index * _KEYS_APART
        try:
            padded = all_gather(launcher, tf.concat([rows, padding], 0), options)
        finally:
            del launcher._next_instance_key
        # Remove the padding of each replica: [replicas, size, ...] -> [replicas, N, ...].
        by_replica = tf.reshape(padded, tf.concat([[-1, size], inner], 0))[:, :count]
        total = tf.concat([[tf.shape(by_replica)[0] * count], inner], 0)
        shape = tf.TensorShape([None]).concatenate(rows.shape[1:])
        return tf.ensure_shape(tf.reshape(by_replica, total), shape)

    return gather


def _sizes() -> list[int]:
    """Return the numbers of rows to which gathers are padded.

    The sizes are 1 to 8, and then eight sizes up to each next power of two, so at most an eighth of
    the rows is padding.
    """
    return [*range(1, 9), *(m << e for e in range(27) for m in range(9, 17))]
