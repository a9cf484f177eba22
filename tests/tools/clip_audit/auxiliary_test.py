"""The norms of auxiliary losses in an audit equal the gradients of single rows."""

import functools
from types import MappingProxyType

import numpy as np
import pytest
import tensorflow as tf

from mtl import auxiliary, compat, heads, networks
from mtl.auxiliary import row_losses
from mtl.model import graph_options
from mtl.optimization import optimizers, update
from mtl.step import outlets
from mtl.tools.clip_audit import audit, measures, norms, observing
from mtl.tools.clip_audit import auxiliary as auxiliary_lib
from mtl.variables import averaging
from tests import images

tf1 = tf.compat.v1

ROWS = (0, 1)
"""The first has no label of the task "kind"."""

AVERAGED = update.Update(
    optimizer=optimizers.SGD(learning_rate=0.1), average=averaging.ExponentialAverage(decay=0.9)
)
SIGMOIDS = networks.MLP(layers=[5], activation="sigmoid")
EMITTING = networks.Stacked(
    trunks=[
        SIGMOIDS,
        networks.RBM(units=3, weight=0.5),
        networks.RBM(units=4, weight=0.5, chains=2),
        networks.Codes(trunk=networks.MLP(layers=[]), num_codes=3, num_groups=2),
    ]
)
MODELS = {
    "losses": {
        "update": AVERAGED,
        "auxiliary_losses": [
            auxiliary.Adversarial(epsilon=0.5, random_start=True, weight=0.5),
            auxiliary.MeanTeacher(noise=0.3),
            auxiliary.GradientReversal(
                head=heads.MultiClass(name="of_kind", label="kind", classes=3), layers=[]
            ),
        ],
    },
    "emitted": {"network": networks.SharedBottom(trunk=EMITTING)},
}


class Step:
    """A training step that measures its rows, and the losses that the step itself computes."""

    def __init__(self, made, is_by_row, monkeypatch):
        self.found = None
        compute = row_losses.compute

        def observe(given, labels, weights):
            self.weights, updates = weights, len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
            measure = functools.partial(
                measures.measure, made, images.STATISTICS, given, labels, lambda _: weights
            )
            self.found = self.by_row = measure()
            if is_by_row:
                plain = norms.measure
                with monkeypatch.context() as patch:
                    patch.setattr(norms, "measure", functools.partial(plain, by_row=True))
                    self.by_row = measure()
            assert len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)) == updates

        def watch(parts, activations, show=None):
            rows = compute(parts, activations, show)
            if self.found is None and not hasattr(self, "rows"):
                self.rows, self.activations = rows, activations
            return rows

        monkeypatch.setattr(row_losses, "compute", watch)
        tf1.train.create_global_step()
        made.model_fn(
            {name: tf.constant(values) for name, values in images.FEATURES.items()},
            {name: tf.constant(values) for name, values in images.LABELS.items()},
            compat.estimator.ModeKeys.TRAIN,
            options=graph_options.GraphOptions(
                statistics=images.STATISTICS, extensions=[observing.Observing(observe)]
            ),
        )

    def losses_of(self, row):
        """{name: the loss of a row alone}, each mean weight apart."""
        found = {}
        for name, head in self.activations.heads.items():
            examples = head.examples(self.activations.logits[name], self.activations.labels)
            losses = examples.weights * head.losses(examples.logits, examples.targets)
            found[name] = losses[row]
        for name, (losses, weights) in self.rows.items():
            labelled = tf.reduce_sum(tf.cast(weights > 0, tf.float32), 0)
            mean = tf.reduce_sum(weights, 0) / labelled
            found[name] = tf.reduce_sum((weights / mean * losses)[row])
        return found


@pytest.mark.medium
@pytest.mark.parametrize("kind", MODELS)
def test_norms_are_those_of_one_row_after_the_other(kind, monkeypatch):
    made = images.make_model(**MODELS[kind])
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 1
        step = Step(made, kind == "emitted", monkeypatch)
        variables = tf1.trainable_variables()
        zero = tf.UnconnectedGradients.ZERO

        def differentiate(loss):
            found = tf.gradients(loss, variables, unconnected_gradients=zero)
            return list(map(tf.convert_to_tensor, found))

        rows = [step.losses_of(row) for row in ROWS]
        gradients = [{name: differentiate(loss) for name, loss in own.items()} for own in rows]
        session.run(tf1.global_variables_initializer())
        found, by_row, weights, gradients, losses = session.run(
            [step.found.examples, step.by_row.examples, step.weights, gradients, rows]
        )
    assert step.found.left_out == {}
    assert set(weights) == set(gradients[0]) == set(made.loss_names)
    for place, row in enumerate(ROWS):
        whole = [np.zeros(variable.shape, np.float64) for variable in variables]
        for name, own in gradients[place].items():
            expected = np.sqrt(sum(np.sum(np.float64(each) ** 2) for each in own))
            np.testing.assert_allclose(
                found[f"norm/task/{name}"][row], expected, rtol=1e-4, atol=1e-6, err_msg=name
            )
            np.testing.assert_allclose(
                found[f"loss/{name}"][row], losses[place][name], rtol=1e-4, atol=1e-6, err_msg=name
            )
            whole = [sum_ + weights[name] * each for sum_, each in zip(whole, own, strict=True)]
        expected = np.sqrt(sum(np.sum(each**2) for each in whole))
        np.testing.assert_allclose(found["norm"][row], expected, rtol=1e-4)
    for name, values in found.items():
        np.testing.assert_allclose(by_row[name], values, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (auxiliary.Contrastive(), "it compares the rows of a batch with each other"),
        (auxiliary.Reconstruction(), "it compares the rows of a batch with each other"),
        (
            auxiliary.PiModel(),
            "it compares passes with different dropout, and the audit uses no dropout",
        ),
        (auxiliary.PiModel(noise=0.1), None),
    ],
)
def test_a_line_says_which_loss_is_left_out_and_why(part, why, caplog):
    left_out = auxiliary_lib.Measured(images.make_model(auxiliary_losses=[part])).left_out
    assert left_out == ({part.name: why} if why else {})
    audit.warn_of_left_out(measures.Measured({}, {}, [], left_out))
    lines = [f"Clip audit: the loss {part.name!r} is left out, because {why}."] if why else []
    assert caplog.messages == lines


def test_a_loss_that_training_alone_emits_is_left_out():
    made = images.make_model(network=_Emits(trunk=networks.MLP(layers=[2])))
    measured = auxiliary_lib.Measured(made)
    with tf.Graph().as_default():
        features, labels = (
            {name: tf.constant(values) for name, values in of.items()}
            for of in (images.FEATURES, images.LABELS)
        )
        activations = made.infer_activations(features, labels, images.STATISTICS)
        assert measured.measure(activations, 0) == {}
    assert measured.left_out == {"own": "its layer emits it only in training"}


class _Emits(networks.SharedBottom):
    """Emits a loss in training."""

    emitted_losses = MappingProxyType({"own": 1.0})

    def __call__(self, inputs, tasks, training):
        if training:
            outlets.add_loss("own", lambda: tf.zeros([images.ROWS]))
        return super().__call__(inputs, tasks, training)
