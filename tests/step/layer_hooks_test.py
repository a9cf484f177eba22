import tensorflow as tf

from mtl import layers
from mtl.step import extensions, layer_hooks

tf1 = tf.compat.v1


def build():
    inputs = tf.ones([2, 3])
    with tf1.variable_scope("trunk"):
        sums = layers.dense(inputs, 4, "hidden_0")
        hidden = layers.ACTIVATIONS["relu"](sums)
        with tf1.variable_scope("gate"):
            one, other = tf.split(hidden, 2, axis=1)
            gates = [layers.ACTIVATIONS["tanh"](part) for part in (one, other)]
        layers.ACTIVATIONS["linear"](hidden)
        return hidden, *gates


def test_outputs_are_noted_by_the_layer_that_feeds_them():
    noted = layer_hooks.NoteOutputs()
    with tf.Graph().as_default(), layer_hooks.attach(noted):
        hidden, one, other = build()
    assert list(noted.found) == ["trunk/hidden_0", "trunk/gate", "trunk/gate_1"]
    assert [id(tensor) for tensor in noted.found.values()] == [id(hidden), id(one), id(other)]


def test_nothing_is_noted_for_nobody():
    noted = layer_hooks.NoteOutputs()
    with tf.Graph().as_default() as graph:
        build()
        with layer_hooks.attach(noted):
            pass
        extensions.show_update([tf.constant(1.0)], [])
        count = len(graph.get_operations())
    with tf.Graph().as_default() as graph, layer_hooks.attach(noted):
        tf.constant(1.0)
        build()
        assert len(graph.get_operations()) == count
    assert len(noted.found) == 3


def test_inputs_of_kernels_are_noted_and_left_as_they_are():
    noted = layer_hooks.NoteInputs()
    with tf.Graph().as_default(), layer_hooks.attach(noted):
        build()
        assert layer_hooks.need_inputs()
    assert list(noted.found) == ["trunk/hidden_0/kernel"]
    assert noted.found["trunk/hidden_0/kernel"].op.type == "StopGradient"
    assert not layer_hooks.need_inputs()


class _Adds(layer_hooks.LayerHook):
    def __init__(self, number):
        self._number = number

    def take_inputs(self, inputs):
        return inputs * 10 + self._number


def test_the_hook_that_was_attached_last_comes_first():
    with layer_hooks.attach(_Adds(1)), layer_hooks.attach(_Adds(2)):
        assert layer_hooks.take_inputs(0) == 21
