"""Views of variables apply in a fixed order, and may create further variables."""

import contextlib
import itertools

import pytest
import tensorflow as tf

from mtl.sparsity import pruned_step, pruning, pruning_schedules
from mtl.variables import views

tf1 = tf.compat.v1

STAGES = (views.Stage.REPLACED, views.Stage.PRUNED, views.Stage.QUANTIZED, views.Stage.CAST)


def _append(stage):
    def view(getter, name, **settings):
        return [*_listed(getter(name, **settings)), stage]

    return view


def _listed(value):
    return value if isinstance(value, list) else []


@pytest.mark.parametrize("entered", list(itertools.permutations(STAGES)))
def test_views_are_taken_in_the_order_of_their_stages(entered):
    with tf.Graph().as_default(), contextlib.ExitStack() as stack:
        for stage in entered:
            stack.enter_context(views.enter(stage, _append(stage)))
        stack.enter_context(tf1.variable_scope("network"))
        assert tf1.get_variable("kernel", [2]) == list(STAGES)


def test_of_two_views_of_a_stage_the_inner_one_comes_last():
    def add(number):
        return lambda getter, name, **settings: [*_listed(getter(name, **settings)), number]

    stage = views.Stage.PRUNED
    with tf.Graph().as_default(), views.enter(stage, add(1)), views.enter(stage, add(2)):
        assert tf1.get_variable("kernel", [2]) == [1, 2]


def test_a_view_ends_with_its_block_and_holds_in_scopes_that_were_open_before():
    with tf.Graph().as_default():
        with tf1.variable_scope("network") as scope:
            kernel = tf1.get_variable("kernel", [2])
        with views.enter(views.Stage.PRUNED, _append(1)) as inside:
            assert inside.custom_getter is not None
            with tf1.variable_scope(inside, reuse=True):
                assert tf1.get_variable("network/kernel", [2]) == [1]
        with tf1.variable_scope(scope, reuse=True):
            assert tf1.get_variable("kernel", [2]) is kernel


def test_a_weight_that_was_made_elsewhere_is_read_as_others_are():
    """A view may create a variable beside the weight; the second read finds it again."""

    def mask(getter, name, **settings):
        own = {**settings, "shape": [2], "initializer": tf1.zeros_initializer()}
        return getter(name, **settings) * getter(f"{name}/mask", **own)

    with tf.Graph().as_default(), tf1.Session() as session:
        weight = tf.Variable([1.0, 2.0], name="dense/kernel")
        assert views.read_as(weight, "dense/kernel", dtype=tf.float32) is weight
        with views.enter(views.Stage.PRUNED, mask), tf1.variable_scope("trunk"):
            found = views.read_as(weight, "dense/kernel", dtype=tf.float32, trainable=True)
            views.read_as(weight, "dense/kernel", dtype=tf.float32, trainable=True)
        names = [variable.op.name for variable in tf1.global_variables()]
        assert names == ["dense/kernel", "dense/kernel/mask"]
        session.run(tf1.global_variables_initializer())
        assert session.run(found).tolist() == [0, 0]


@pytest.mark.parametrize("gradient", [pruning.STOPPED, pruning.DENSE, pruning.STRAIGHT_THROUGH])
@pytest.mark.parametrize("is_watched", [True, False])
def test_what_is_read_in_the_place_of_a_pruned_variable_is_masked(gradient, is_watched):
    part = pruning.Pruning(
        sparsity=0.5, schedule=pruning_schedules.OneShot(step=3), gradient=gradient
    )

    def step(features, labels):
        with tf1.variable_scope("network/layer"):
            tf1.get_variable("kernel", [1, 2])

        def replace(getter, name, **settings):
            getter(name, **settings)
            return tf.constant([[3.0, 4.0]])

        with (
            tf1.variable_scope(tf1.get_variable_scope(), reuse=True),
            views.enter(views.Stage.REPLACED, replace),
            tf1.variable_scope("network/layer"),
        ):
            return tf1.get_variable("kernel", [1, 2]), {}

    with tf.Graph().as_default(), tf1.Session() as session:
        found, _ = pruned_step.wrap_step([part], step, is_watched)(None, None)
        by_name = {variable.op.name: variable for variable in tf1.global_variables()}
        session.run(tf1.global_variables_initializer())
        assert session.run(found).tolist() == [[3, 4]]
        by_name["network/layer/kernel/pruning_mask"].load([[1, 0]], session)
        assert session.run(found).tolist() == [[3, 0]]
