"""Looks at what an auxiliary loss is given, in a step of the model of `tests.images`."""

import contextlib

import tensorflow as tf

from mtl import types
from mtl.auxiliary import activations as activations_lib
from tests import images

tf1 = tf.compat.v1


class Probe(types.AuxiliaryLoss):
    """Keeps the activations of a step; its own loss is 0."""

    name = "probe"

    def __init__(self):
        self.seen = []

    def __call__(self, activations):
        self.seen.append(activations)
        return tf.zeros([activations.labels["size"].shape[0]])


def record_runs(monkeypatch):
    """The list of all that later runs of the network compute."""
    run, found = activations_lib.Activations.run, []

    def record(self, inputs, **settings):
        found.append(run(self, inputs, **settings))
        return found[-1]

    monkeypatch.setattr(activations_lib.Activations, "run", record)
    return found


@contextlib.contextmanager
def open_step(**settings):
    """Yield the activations of a step, and the session that computes them."""
    probe = Probe()
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 1
        tf1.train.create_global_step()
        images.build_step(images.make_model(auxiliary_losses=[probe], **settings))
        session.run(tf1.global_variables_initializer())
        yield probe.seen[0], session
