"""Scalars of networks, in the steps that compute them, and `tf1.summary` ops in event files."""

import dataclasses
import logging
import math

import pytest
import tensorflow as tf

from mtl import distribution, heads, networks, verbs
from mtl.distribution import resources
from mtl.step import outlets, training_loop
from mtl.tools import clip_audit
from tests import tiny

tf1 = tf.compat.v1
KINDS = {"network/scalar", "network/histogram", "network/image/image", "network/text"}


def _tell(tower):
    tf1.summary.scalar("function", tf.reduce_mean(tower))
    return tower


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Telling:
    """A network that tells of its towers in every way."""

    hidden: bool = False

    def __call__(self, inputs, tasks, training):
        towers = networks.SharedBottom(trunk=networks.MLP(layers=[8]))(inputs, tasks, training)
        tower = towers["sign"]
        tf1.summary.scalar("scalar", tf.reduce_mean(tower))
        tf1.summary.histogram("histogram", tower)
        tf1.summary.image("image", tf.sigmoid(tower[tf.newaxis, :, :, tf.newaxis]), max_outputs=1)
        tf1.summary.text("text", tf.constant("said"))
        if self.hidden:
            tf.cond(tower[0, 0] > -1e9, lambda: tf1.summary.scalar("branch", 1.0), lambda: "")
            # A function made once would keep the graphs of all runs.
            towers["sign"] = tf.function(_tell, autograph=False)(tower)
        return towers


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ToldHead(heads.Binary):
    """Tells of its loss, which is also a monitor."""

    def loss(self, logits, labels):
        loss = super().loss(logits, labels)
        tf1.summary.scalar("told", loss)
        return loss


def _make(network=None, **run):
    made = tiny.make(network=network or _Telling(), **{"train_steps": 20, "seed": 3, **run})
    own = [_ToldHead(name="sign"), *made.model.heads[1:]]
    return dataclasses.replace(made, model=dataclasses.replace(made.model, heads=own))


def _read(directory):
    """Return {tag: {step: value}}, without the values that training watches."""
    found = {}
    for event in tiny.events(directory):
        for value in event.summary.value:
            if value.tag in KINDS | {"told", "sign/loss"} or value.tag.startswith("network"):
                found.setdefault(value.tag, {})[event.step] = value
    return found


@pytest.mark.medium
@pytest.mark.parametrize("steps_per_call", [1, 7])
def test_summaries_of_ones_own_come_with_the_others(tmp_path, caplog, steps_per_call):
    """Summaries in a branch or a function are left out, with a single warning."""
    made = _make(_Telling(hidden=True), steps_per_call=steps_per_call)
    with caplog.at_level(logging.WARNING, "mtl"):
        verbs.train(made, str(tmp_path))
    said = [line for line in caplog.messages if line.startswith("Summaries")]
    where = "a branch, a loop or a tf.function"
    assert said == [f"Summaries within {where} are not written: branch, function"]
    found = _read(tmp_path)
    assert set(found) == KINDS | {"told", "sign/loss"}
    for tag, values in found.items():
        assert list(values) == [10, 20], tag
    for step, value in found["told"].items():
        assert value.simple_value == found["sign/loss"][step].simple_value
    assert found["network/histogram"][20].histo.num == 16 * 8
    assert found["network/image/image"][20].image.height == 16
    assert found["network/text"][20].tensor.string_val == [b"said"]
    graphs = [tf.compat.v1.GraphDef.FromString(e.graph_def) for e in tiny.events(tmp_path)]
    assert len([graph for graph in graphs if graph.node]) == 1


@pytest.mark.slow
def test_summaries_of_a_batch_in_slices_are_those_of_the_first(tmp_path):
    tiny.train(_make(micro_batches=2), tmp_path)
    found = _read(tmp_path)
    assert KINDS | {"told"} <= set(found)
    assert not [tag for tag in found if "_1" in tag]
    assert found["network/histogram"][20].histo.num == 8 * 8


@pytest.mark.slow
def test_summaries_of_several_replicas_are_those_of_the_first(tmp_path):
    two = distribution.Distribution(
        strategy="mirrored",
        devices=["/cpu:0", "/cpu:1"],
        resources=resources.Resources(inter_op_threads=2),
    )
    tiny.train(dataclasses.replace(_make(), distribution=two), tmp_path)
    found = _read(tmp_path)
    assert KINDS | {"told"} <= set(found)
    assert found["network/histogram"][20].histo.num == 8 * 8


@pytest.mark.slow
def test_summaries_of_an_audited_run_come_once(tmp_path):
    audited = dataclasses.replace(_make(), clip_audit=clip_audit.ClipAudit())
    tiny.train(audited, tmp_path)
    assert set(_read(tmp_path)) == KINDS | {"told", "sign/loss"}


def _take(computed):
    """Add three scalars, two of them slow to compute; return the scalars that are taken."""

    def compute():
        with tf.control_dependencies([computed.assign_add(1)]):
            return tf.constant([1.0, 2.0])

    outlets.add_scalars_where_due(["mean", "deviation"], compute)
    outlets.add_scalar("loss", tf.constant(3.0))
    return outlets.take_scalars()


def test_all_is_computed_where_nothing_says_when():
    with tf.Graph().as_default(), tf1.Session() as session:
        computed = tf1.get_variable("computed", [], initializer=tf1.zeros_initializer())
        taken = _take(computed)
        assert outlets.take_scalars() == {}
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
        with outlets.compute_where(is_due):
            taken = _take(computed)
        session.run(tf1.global_variables_initializer())
        assert session.run(taken, {is_due: True}) == {"loss": 3, "mean": 1, "deviation": 2}
        found = session.run(taken, {is_due: False})
        assert found["loss"] == 3 and math.isnan(found["mean"]) and math.isnan(found["deviation"])
        assert session.run(computed) == 1
