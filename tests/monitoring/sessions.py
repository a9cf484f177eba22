"""Steps in a real session, for hooks to look at."""

import time

import tensorflow as tf

from mtl.monitoring import hooks
from mtl.step import training_loop

tf1 = tf.compat.v1

BATCH = 64


def take_step(features, labels):
    """A step whose loss is half the step's number."""
    del labels
    step = tf1.train.get_global_step()
    features = tf.ensure_shape(tf.numpy_function(_slowly, [features], tf.int64), [])
    with tf.control_dependencies([features]):
        train_op = step.assign_add(1, read_value=False)
    return train_op, {"other": tf.constant(2.0), "loss": tf.cast(features, tf.float32) / 2}


def _slowly(number):
    time.sleep(0.02)
    return number


class _Pausing(tf1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        time.sleep(0.05)


def run(make_hook, num_steps, steps_per_call=1, others=(), step=None, prepare=None):
    """Trains in a real session with the hook that `make_hook` makes of the step's result."""
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        dataset = tf.data.Dataset.range(1, 1000)
        prepare = prepare or (lambda dataset: dataset.map(lambda number: (number, number)))
        dataset = prepare(dataset)
        iterator = tf1.data.make_initializable_iterator(dataset)
        tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        if steps_per_call == 1:
            result = training_loop.run_once(step or take_step, *iterator.get_next())
        else:
            result = training_loop.run_repeatedly(
                step or take_step, iterator, steps_per_call, num_steps, due_every=(10,)
            )
        stop = tf1.train.StopAtStepHook(last_step=num_steps)
        hook = make_hook(result)
        if isinstance(hook, hooks.StepHook):
            hook = hooks.StepHooks(result, [hook])
        used = [hook, stop, _Pausing(), *others]
        with tf1.train.MonitoredSession(hooks=used) as session:
            while not session.should_stop():
                session.run(result.step)
