"""The old names of scalars that leave a network, for one release."""

import tensorflow as tf

from mtl.step import monitors, outlets


def test_the_old_functions_work_and_name_the_new_ones_once(caplog):
    with tf.Graph().as_default():
        for name in ("one", "two"):
            monitors.add(name, tf.constant(1.0))
        monitors.add_where_due(["three"], lambda: tf.constant([3.0]))
        assert list(outlets.take_scalars()) == ["one", "two", "three"]
    assert [record.getMessage() for record in caplog.records] == [
        "mtl.step.monitors.add is deprecated: call mtl.step.outlets.add_scalar",
        "mtl.step.monitors.add_where_due is deprecated: call"
        " mtl.step.outlets.add_scalars_where_due",
    ]
