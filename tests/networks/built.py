"""Networks and trunks, each built in a new graph, to compare with NumPy."""

import numpy as np
import tensorflow as tf

from mtl import types
from mtl.step import outlets
from mtl.variables import stacks

tf1 = tf.compat.v1

TASKS = ("click", "click_long")  # One name is the start of the other.
X = np.random.default_rng(0).normal(size=[7, 5]).astype(np.float32)


class Built:
    """A network in a new graph, with its values and gradients.

    `change` maps the initial values of the variables to other values; `apart` builds each task
    separately, as under a surgery.
    """

    def __init__(
        self,
        network,
        training=False,
        change=lambda values: values,
        apart=False,
        inputs=None,
        tasks=TASKS,
    ):
        given = {"x": X} if inputs is None else inputs
        with tf.Graph().as_default(), tf1.Session() as session:
            tf1.set_random_seed(1)
            tf1.train.get_or_create_global_step()
            with tf1.variable_scope("network"), stacks.separate_tasks(apart):
                towers = network(
                    {column: tf.constant(value) for column, value in given.items()},
                    tasks,
                    training,
                )
            self.variables = tf1.trainable_variables()
            losses = {task: tf.reduce_sum(tower**2) for task, tower in towers.items()}
            of_task = {t: tf1.gradients(loss, self.variables) for t, loss in losses.items()}
            shown = outlets.take_scalars()
            session.run(tf1.global_variables_initializer())
            self.names = [variable.op.name for variable in self.variables]
            start = dict(zip(self.names, session.run(self.variables), strict=True))
            self.values = change(dict(start))
            for name, variable in zip(self.names, self.variables, strict=True):
                variable.load(self.values[name], session)
            self.towers, self.shown = session.run([dict(towers), shown])
            self.gradients = {
                task: {
                    name: None if g is None else session.run(g)
                    for name, g in zip(self.names, found, strict=True)
                }
                for task, found in of_task.items()
            }


class OneTask:
    """A network with a single task, "only", whose tower is a trunk."""

    def __init__(self, part):
        self._part = part

    def __call__(self, inputs, tasks, training):
        return types.Towers({"only": self._part(inputs, training)})


def build_trunk(part, inputs, **settings):
    """Return the output of a trunk, and {variable: value} without the scope "network"."""
    made = Built(OneTask(part), inputs=inputs, tasks=("only",), **settings)
    values = {name.removeprefix("network/"): value for name, value in made.values.items()}
    return made.towers["only"], values


def draw_columns(**widths):
    """{column: [7, width]}"""
    random = np.random.default_rng(3)
    return {c: random.normal(size=[7, width]).astype(np.float32) for c, width in widths.items()}


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def run_mlp(values, scope, x, layers):
    for index in range(layers):
        name = f"network/{scope}/hidden_{index}"
        x = np.maximum(x @ values[f"{name}/kernel"] + values[f"{name}/bias"], 0)
    return x
