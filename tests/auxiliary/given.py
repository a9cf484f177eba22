"""Activations of a training step that are given, for a loss to read."""

import numpy as np
import tensorflow as tf

from mtl import types
from mtl.auxiliary import activations as activations_lib

tf1 = tf.compat.v1


def activations(vectors, labels=None, heads=(), inputs=None):
    """Activations with these shared vectors [B, H]; a network that passes its one column on."""
    vectors = tf.convert_to_tensor(vectors)
    inputs = {"x": vectors} if inputs is None else inputs
    given = {name: tf.constant(values) for name, values in (labels or {}).items()}

    def forward(columns):
        joined = tf.concat(list(columns.values()), 1)
        return types.Towers({"task": joined}, shared=[joined]), {}

    return activations_lib.Activations(
        features={},
        labels=given,
        inputs=inputs,
        towers=types.Towers({"task": vectors}, shared=[vectors]),
        logits={},
        heads={head.name: head for head in heads},
        forward=forward,
        scope=tf1.get_variable_scope(),
        emitted={},
    )


def evaluate(build):
    """Return the values of the tensors of `build()`, in a new graph with initialized variables."""
    with tf.Graph().as_default() as graph:
        graph.seed = 3
        tf1.train.create_global_step()
        built = build()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            return session.run(built)


def gradient_error(function, *arrays):
    """Return the largest error of the gradients of a scalar function, by finite differences."""
    with tf.Graph().as_default(), tf1.Session():
        given = [tf.constant(np.asarray(array, np.float64)) for array in arrays]
        value = function(*given)
        return max(
            tf1.test.compute_gradient_error(x, x.shape, value, [], x_init_value=array, delta=1e-5)
            for x, array in zip(given, arrays, strict=True)
        )
