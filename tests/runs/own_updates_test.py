"""Updates of variables in a network of one's own are run by the step, or the run is refused."""

import dataclasses
import re
from collections.abc import Callable

import pytest
import tensorflow as tf

from mtl import auxiliary, checks, distribution, features, heads, layers, networks, types, verbs
from mtl.compat import keras
from mtl.model import graph_options
from mtl.runs import own_updates
from mtl.variables import freezing
from tests import tiny

tf1 = tf.compat.v1
needs_keras = pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")


@dataclasses.dataclass(frozen=True)
class _Own(types.Network):
    """A layer, and what `change` makes of its outputs."""

    change: Callable

    def __call__(self, inputs, tasks, training):
        hidden = layers.dense(tf.concat(list(inputs.values()), 1), 4, "hidden")
        return types.Towers(dict.fromkeys(tasks, self.change(hidden, training)))


def _count(hidden, how):
    calls = tf1.get_variable("calls", [], initializer=tf1.zeros_initializer(), trainable=False)
    update = calls.assign_add(1.0, read_value=False)
    if how == "collection":
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    with tf.control_dependencies([update] if how == "dependency" else []):
        return tf.identity(hidden)


def _norm_of_keras(hidden, training):
    return tf.keras.layers.BatchNormalization()(hidden, training=training)


def _norm_of_layers(hidden, training):
    return tf1.layers.batch_normalization(hidden, training=training)


def _build(change, **settings):
    slices = settings.pop("slices", 1)
    made = dataclasses.replace(tiny.make().model, **settings)
    columns = [features.Numeric(names=["x"], normalization="none")]
    made = dataclasses.replace(made, network=_Own(change), columns=columns)
    rows = {name: values[:8] for name, values in tiny.SPLITS["train"].items()}
    statistics = features.Statistics(directory="", entries={})
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        batch = {name: tf.constant(values) for name, values in rows.items()}
        made.model_fn(
            {"x": batch.pop("x")},
            batch,
            "train",
            options=graph_options.GraphOptions(
                statistics=statistics, slices=slices, extensions=[own_updates._RequireUpdates]
            ),
        )


@pytest.mark.parametrize(
    "change",
    [
        lambda hidden, training: hidden,
        lambda hidden, training: layers.batch_norm(hidden, "norm", training),
        _norm_of_layers,
        lambda hidden, training: _count(hidden, "collection"),
        lambda hidden, training: _count(hidden, "dependency"),
    ],
    ids=["none", "mtl", "tf.layers", "collection", "dependency"],
)
@pytest.mark.filterwarnings("ignore:.*batch_normalization.*:UserWarning")
def test_updates_that_the_step_runs_are_fine(change, caplog):
    _build(change)
    assert "get_variable" not in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {"slices": 4},
        {"auxiliary_losses": [auxiliary.VirtualAdversarial()]},
        {"auxiliary_losses": [auxiliary.PiModel(noise=0.1)]},
    ],
    ids=["slices", "virtual adversarial", "pi-model"],
)
def test_updates_of_further_passes_may_be_withheld(settings):
    _build(lambda hidden, training: layers.batch_norm(hidden, "norm", training), **settings)


@needs_keras
def test_a_norm_that_nothing_updates_is_refused():
    with pytest.raises(checks.UserError, match="must be run by the training step") as error:
        _build(_norm_of_keras)
    assert "AssignMovingAvg" in str(error.value) and "\n" not in str(error.value)


def test_other_updates_that_the_step_does_not_run_are_warned_of(caplog):
    """A hook may run them."""
    _build(lambda hidden, training: _count(hidden, ""))
    assert "does not run these updates of variables: network/AssignAddVariableOp" in caplog.text


def test_a_head_may_create_variables_for_its_loss():
    class Warm(heads.Regression):
        def losses(self, logits, targets):
            return tf.Variable(1.0, name="temperature") * super().losses(logits, targets)

    own = [tiny.make().model.heads[0], Warm(name="size")]
    _build(lambda hidden, training: hidden, heads=own)


@needs_keras
@pytest.mark.parametrize(
    "settings", [{}, {"auxiliary_losses": [auxiliary.PiModel(noise=0.1)]}, {"slices": 2}]
)
def test_a_keras_model_in_an_own_network_is_fine(settings, caplog):
    def make():
        dense, norm = tf.keras.layers.Dense(4), tf.keras.layers.BatchNormalization()
        return tf.keras.Sequential([dense, norm])

    part = networks.KerasModel(build=make)
    _build(lambda hidden, training: part({"hidden": hidden}, training), **settings)
    assert "get_variable" not in caplog.text


@needs_keras
def test_layers_of_keras_are_warned_of(caplog):
    _build(lambda hidden, training: tf.keras.layers.Dense(3, kernel_regularizer="l2")(hidden))
    said = "network/dense/bias, network/dense/kernel: created without get_variable."
    assert said in caplog.text


def test_only_runs_with_own_parts_are_checked():
    made = tiny.make().model
    assert not verbs._has_own_parts(made)
    assert verbs._has_own_parts(dataclasses.replace(made, network=_Own(_norm_of_layers)))


def _layer_of_keras(hidden, training):
    return tf.keras.layers.Dense(4)(hidden)


@needs_keras
@pytest.mark.parametrize(
    "settings",
    [{"slices": 2}, {"auxiliary_losses": [auxiliary.PiModel(noise=0.1)]}],
    ids=["slices", "pi-model"],
)
def test_a_second_pass_with_other_variables_is_refused(settings):
    """An auxiliary loss would train a network that nobody evaluates or exports."""
    with pytest.raises(
        checks.UserError, match="a second pass over the network must create no"
    ) as error:
        _build(_layer_of_keras, **settings)
    assert re.search(r"network/dense(_1)?/kernel", str(error.value))


@pytest.mark.parametrize("change", [_norm_of_layers, lambda hidden, training: hidden])
@pytest.mark.filterwarnings("ignore:.*batch_normalization.*:UserWarning")
def test_copies_on_replicas_are_fine(change, tmp_path):
    made = tiny.make(train_steps=2)
    columns = [features.Numeric(names=["x"], normalization="none")]
    model = dataclasses.replace(made.model, network=_Own(change), columns=columns)
    made = dataclasses.replace(
        made,
        model=model,
        distribution=distribution.Distribution(strategy="mirrored", devices=["/cpu:0", "/cpu:1"]),
    )
    verbs.train(made, str(tmp_path))


@pytest.mark.filterwarnings("ignore:.*batch_normalization.*:UserWarning")
@pytest.mark.parametrize(
    "settings", [{"frozen": ["^network/"]}, {"frozen": ["moving"]}], ids=["network", "averages"]
)
def test_a_frozen_norm_that_heeds_no_freezing_is_refused(settings):
    held = freezing.Freezing(**settings)
    _build(lambda hidden, training: layers.batch_norm(hidden, "norm", training), freezing=held)
    with pytest.raises(checks.UserError, match="frozen variables must not be changed .*moving_mea"):
        _build(_norm_of_layers, freezing=held)
    adapting = freezing.Freezing(frozen=["^network/"], batch_norm="adapt")
    _build(_norm_of_layers, freezing=adapting)
