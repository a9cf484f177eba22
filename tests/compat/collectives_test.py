"""Rows gathered from two devices by real collectives, another number of them in every step."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import collective_util, cross_device_utils

from mtl.compat import collectives

tf1 = tf.compat.v1
COUNTS = [(3, 3), (5, 5), (3, 3), (0, 0), (2, 7), (7, 2), (0, 1), (130, 129), (3, 3)]


@pytest.mark.medium
@pytest.mark.parametrize("shape", [[None, 2], [None], None], ids=["rows", "numbers", "unknown"])
def test_the_number_of_rows_changes_from_step_to_step(shape):
    devices, keys = ["/cpu:0", "/cpu:1"], cross_device_utils.CollectiveKeys()
    width = [] if shape == [None] else [2]
    with tf.Graph().as_default():
        group, given, found = keys.get_group_key(devices), [], []
        for device in devices:
            launcher = cross_device_utils.CollectiveReplicaLauncher(
                group, 2, keys, device, collective_util.Options()
            )
            with tf.device(device):
                given.append(
                    (tf1.placeholder(tf.float32, shape), tf1.placeholder(tf.int64, [None]))
                )
                slices = tf.IndexedSlices(*given[-1], dense_shape=tf.constant([9, *width]))
                found.append(launcher.all_reduce_indexed_slices(slices))
        with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 2})) as session:
            for counts in COUNTS:
                rows = [np.random.default_rng(n).normal(size=[n, *width]) for n in counts]
                ids = [np.arange(n) for n in counts]
                fed = zip(given, zip(rows, ids, strict=True), strict=True)
                feed = {k: v for pair in fed for k, v in zip(*pair, strict=True)}
                for values, indices, _ in session.run(found, feed):
                    np.testing.assert_array_equal(values, np.concatenate(rows).astype(np.float32))
                    np.testing.assert_array_equal(indices, np.concatenate(ids))


def test_an_eighth_is_padding_at_most():
    sizes = np.array(collectives._sizes())
    assert (np.diff(sizes) > 0).all() and sizes[-1] < 2**31
    assert (sizes[1:] <= np.maximum(sizes[:-1] + 1, 1.125 * sizes[:-1])).all()
    # Their keys are 32-bit integers.
    assert len(sizes) * collectives._KEYS_APART < 2**31


def test_installing_twice_wraps_once():
    launcher = cross_device_utils.CollectiveReplicaLauncher
    before = launcher._all_gather
    collectives.install()
    assert launcher._all_gather is before
