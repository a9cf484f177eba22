import math

import tensorflow as tf

from mtl.step import monitors, training_loop

tf1 = tf.compat.v1


def _take(computed):
    """Add three scalars, two of which take time; return what is taken."""

    def compute():
        with tf.control_dependencies([computed.assign_add(1)]):
            return tf.constant([1.0, 2.0])

    monitors.add_where_due(["mean", "deviation"], compute)
    monitors.add("loss", tf.constant(3.0))
    return monitors.take()


def test_all_is_computed_where_nothing_says_when():
    with tf.Graph().as_default(), tf1.Session() as session:
        computed = tf1.get_variable("computed", [], initializer=tf1.zeros_initializer())
        taken = _take(computed)
        assert monitors.take() == {}
        session.run(tf1.global_variables_initializer())
        assert session.run(taken) == {"loss": 3, "mean": 1, "deviation": 2}


def test_a_call_of_several_steps_computes_it_in_the_step_that_is_due():
    with tf.Graph().as_default(), tf1.Session() as session:
        computed = tf1.get_variable("computed", [], initializer=tf1.zeros_initializer())
        global_step = tf1.train.create_global_step()

        def step_fn(features, labels):
            shown = _take(computed)
            return global_step.assign_add(1, read_value=False), shown

        batches = tf.data.Dataset.from_tensors((0, 0)).repeat()
        iterator = tf1.data.make_one_shot_iterator(batches)
        result = training_loop.run_repeatedly(step_fn, iterator, 100, 12, (5,))
        session.run(tf1.global_variables_initializer())
        for step in (5, 10, 12):
            assert session.run(result.step) == step
            assert session.run(computed) == {5: 1, 10: 2, 12: 3}[step]


def test_it_is_nan_in_other_steps():
    with tf.Graph().as_default(), tf1.Session() as session:
        computed = tf1.get_variable("computed", [], initializer=tf1.zeros_initializer())
        is_due = tf1.placeholder(tf.bool, [])
        with monitors.compute_where(is_due):
            taken = _take(computed)
        session.run(tf1.global_variables_initializer())
        assert session.run(taken, {is_due: True}) == {"loss": 3, "mean": 1, "deviation": 2}
        found = session.run(taken, {is_due: False})
        assert found["loss"] == 3 and math.isnan(found["mean"]) and math.isnan(found["deviation"])
        assert session.run(computed) == 1
