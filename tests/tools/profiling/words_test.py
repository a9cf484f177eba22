"""Nearly all ops of a real training graph are attributed to a word, such as the network."""

import collections

import pytest
import tensorflow as tf

from mtl.compat import estimator
from mtl.model import graph_options
from mtl.runs import fitting
from mtl.tools.profiling import words
from tests import tiny

tf1 = tf.compat.v1


@pytest.mark.medium
@pytest.mark.keeps_op_stacks
@pytest.mark.parametrize("steps_per_call", [1, 10])
def test_nearly_all_ops_of_a_step_have_a_word(steps_per_call, tmp_path):
    made = tiny.make()
    fitting.fit_statistics(made.data, made.model, None, str(tmp_path))
    statistics = fitting.load_statistics(str(tmp_path))
    with tf.Graph().as_default() as graph:
        dataset = made.data.dataset("train", training=True, seed=1, statistics=statistics)
        iterator = tf1.data.make_one_shot_iterator(dataset)
        given, loop = iterator.get_next(), None
        if steps_per_call > 1:
            loop = {"steps_per_call": steps_per_call, "last_step": 40, "due_every": ()}
            given = (iterator, None)
        tf1.train.get_or_create_global_step()
        made.model.fitted(statistics).model_fn(
            *given,
            estimator.ModeKeys.TRAIN,
            options=graph_options.GraphOptions(statistics=statistics, loop=loop),
        )
        names = [operation.name for operation in graph.get_operations()]
        if loop:
            (while_op,) = [
                one for one in graph.get_operations() if one.type in ("While", "StatelessWhile")
            ]
            body = graph._get_function(while_op.get_attr("body").name).graph
            names = [f"{while_op.name}/body/_1/{one.name}" for one in body.get_operations()]
        find = words.Attribution(graph).find
        found = {name: find(name) for name in names}
    of = {name.replace("while/body/_1/", ""): place for name, place in found.items()}
    assert of["network/trunk/hidden_0/MatMul"] == words.Place(words.NETWORK)
    back = "balancing/gradients/network/trunk/hidden_0/MatMul_grad/MatMul"
    assert of[back] == words.Place(words.NETWORK, is_backward=True)
    assert of["head/sign/logits/MatMul"] == words.Place(words.HEADS)
    counts = collections.Counter(place.word for place in found.values())
    assert all(counts[word] for word in (words.ENCODE, words.NETWORK, words.HEADS, words.UPDATE))
    # The losses have no scope: the line that made them tells.
    losses = {place for name, place in of.items() if name.startswith("SparseSoftmax")}
    assert losses == {words.Place(words.HEADS)}
    gradients = {p for n, p in of.items() if "/SparseSoftmaxCrossEntropyWithLogits_grad/" in n}
    assert gradients == {words.Place(words.HEADS, is_backward=True)}


def test_names_that_tensorflow_rewrites_keep_their_word():
    find = words.Attribution(tf.Graph()).find
    assert (
        find("while/body/_10/ArithmeticOptimizer/AddOpsRewrite_network/add").word == words.NETWORK
    )
    assert find("ConstantFolding/head/sign/mul").word == words.HEADS
    assert find("Adam/update_network/trunk/kernel/ResourceApplyAdam").word == words.UPDATE
    assert find("balancing/while/body/_3/matmul").word == words.BALANCING
    assert find("replica_1/features/numeric_x/Cast").word == words.ENCODE
    assert find("Timestamp_1").word == words.OTHER


def test_passes_back_are_told_apart():
    assert (
        words.find_pass("while/body/_1/balancing/gradients_2/network/a_grad/Mul") == "gradients_2"
    )
    assert words.find_pass("network/a/Mul") is None
    assert words.find_scope("balancing/gradients_2/network/trunk/a_grad/Mul") == "network/trunk"
