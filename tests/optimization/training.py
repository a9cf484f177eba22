"""Runs a step function for real: one step per session call, or all of them in the graph's loop."""

import numpy as np
import tensorflow as tf

from mtl.step import training_loop

tf1 = tf.compat.v1

LOOPED = (False, True)


class Result:
    """The variables and the monitors after the last step."""

    def __init__(self, variables, monitors):
        self.variables = variables
        self.monitors = monitors


def train(step_fn, steps, looped, restore=None, save=None):
    """Calls `step_fn(step)`, which returns (train op, {name: scalar}), for `steps` steps."""
    last = steps + (int(tf.train.load_variable(restore, "global_step")) if restore else 0)
    with tf.Graph().as_default(), tf1.Session() as session:
        result = _build(step_fn, looped, steps_per_call=steps, last_step=last, due_every=())
        saver = tf1.train.Saver()
        session.run(tf1.global_variables_initializer())
        if restore:
            saver.restore(session, restore)
        done = 0
        while done < last:  # A call of the loop ends after a second, on a busy machine too.
            done, values = session.run([result.step, result.values])
        if save:
            saver.save(session, save, write_meta_graph=False)
        variables = {variable.op.name: variable for variable in tf1.global_variables()}
        return Result(session.run(variables), dict(zip(result.names, values, strict=True)))


def train_in_parts(step_fn, middle, last, path):
    """Return the variables after `last` steps in loops, of a whole run and of a resumed run.

    The resumed run restores the checkpoint of step `middle` in a new session.
    """
    with tf.Graph().as_default():
        loop = {"steps_per_call": last, "last_step": last, "due_every": (middle,)}
        result, saver = _build(step_fn, True, **loop), tf1.train.Saver()
        initializer = tf1.global_variables_initializer()
        variables = {variable.op.name: variable for variable in tf1.global_variables()}

        def go_on(session, until):
            done = 0
            while done < until:
                done = session.run(result.step)
            assert done == until
            return session.run(variables)

        with tf1.Session() as session:
            session.run(initializer)
            go_on(session, middle)
            saver.save(session, path, write_meta_graph=False)
            whole = go_on(session, last)
        with tf1.Session() as session:
            session.run(initializer)
            saver.restore(session, path)
            assert session.run(variables["global_step"]) == middle
            return whole, go_on(session, last)


def _build(step_fn, looped, **loop):
    """The result of a call of steps, in the graph that is open."""

    def step_of_batch(features, labels):
        del labels
        return step_fn(features)

    tf1.set_random_seed(4)
    step = tf1.train.get_or_create_global_step()
    if not looped:
        return training_loop.run_once(step_of_batch, step.read_value(), step.read_value())
    dataset = tf.data.Dataset.range(10_000).map(lambda i: (i, i))
    iterator = tf1.data.make_one_shot_iterator(dataset)
    return training_loop.run_repeatedly(step_of_batch, iterator, **loop)


def load(session, variables, value_of):
    """Sets each to `value_of(it)` in one call: every call with other fetches prepares its graph."""
    feed = {each.initializer.inputs[1]: value_of(each) for each in variables}
    session.run([each.initializer for each in variables], feed)


def variable(name, value):
    """A variable that starts at `value`."""
    value = np.asarray(value, np.float32)
    return tf1.get_variable(name, value.shape, initializer=tf1.constant_initializer(value))
