"""Variables that an old checkpoint lacks start from zeros, and the others from the checkpoint."""

import numpy as np
import tensorflow as tf

from mtl.tf_internals import zeros_saver

tf1 = tf.compat.v1


def test_only_what_the_checkpoint_lacks_is_zero(tmp_path):
    path = str(tmp_path / "model.ckpt")
    with tf.Graph().as_default(), tf1.Session() as session:
        saved = [tf1.get_variable(name, initializer=[1.0, 2.0]) for name in ("a", "c")]
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver(saved).save(session, path)
    with tf.Graph().as_default(), tf1.Session() as session:
        names = ["a", "b", "c", "d"]
        variables = {name: tf1.get_variable(name, initializer=[7.0, 7.0]) for name in names}
        zeros_saver.add_zeros_saver({"b", "d"})
        (saver,) = tf1.get_collection(tf1.GraphKeys.SAVERS)
        saver.build()
        session.run(tf1.global_variables_initializer())
        saver.restore(session, path)
        found = session.run(variables)
    for name in names:
        expected = [1.0, 2.0] if name in "ac" else [0.0, 0.0]
        np.testing.assert_array_equal(found[name], expected, err_msg=name)
