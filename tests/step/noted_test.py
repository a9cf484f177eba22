import tensorflow as tf

from mtl import layers
from mtl.step import noted

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
    with tf.Graph().as_default(), noted.note_outputs() as found:
        hidden, one, other = build()
    assert list(found) == ["trunk/hidden_0", "trunk/gate", "trunk/gate_1"]
    assert [id(tensor) for tensor in found.values()] == [id(hidden), id(one), id(other)]


def test_nothing_is_noted_for_nobody():
    with tf.Graph().as_default() as graph:
        build()
        with noted.note_outputs() as found:
            pass
        noted.show_gradients([tf.constant(1.0)], [])
        count = len(graph.get_operations())
    with tf.Graph().as_default() as graph, noted.note_outputs():
        build()
        tf.constant(1.0)
        assert len(graph.get_operations()) == count
    assert not found


def test_gradients_are_shown_to_who_looks():
    seen = []
    with noted.look_at_gradients(lambda *given: seen.append(given)):
        noted.show_gradients(["gradient"], ["variable"])
    noted.show_gradients(["another"], ["variable"])
    assert seen == [(["gradient"], ["variable"])]
