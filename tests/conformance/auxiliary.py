"""One row per auxiliary loss; `auxiliary_test` tests the contract of losses on every row.

A new loss adds a row: the part, and further settings of the model of `tests.images`. If a network
emits the loss, the row has the network instead of a part.
"""

import atexit
import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from mtl import auxiliary, heads, networks, types
from mtl.auxiliary import distillation
from mtl.layers import score_function
from mtl.networks import rbm
from mtl.optimization import optimizers, schedules, update
from mtl.serving import settings as serving_settings
from mtl.step import draws
from mtl.variables import averaging

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
    """A row.

    Attributes:
      name: shown by pytest.
      make: weight -> the part, or the network that emits the loss.
      emits: the name of the loss that the network emits; None for a part.
      settings: the settings of the model, except for the loss.
      is_of_slice: why slices and replicas do not add up to the whole batch; None if they have to.
      rtol: the relative tolerance between slices and the whole batch.
      kernel: the kernel of a layer that the loss moves.
      held: (class, method) whose result is constant to gradients; None if only the inputs and the
        teachers of second passes are constant.
      state: the ending of names of variables that the loss moves even with a weight of 0.
    """

    name: str
    make: Callable[..., Any]
    emits: str | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_of_slice: str | None = None
    rtol: float = 1e-4
    kernel: str = "network/trunk/hidden_0/kernel"
    held: tuple[type, str] | None = None
    state: str = "/state"

    @property
    def loss_name(self):
        """The name of the loss."""
        return self.emits or self.make().name

    def choose_settings(self, weight=1.0):
        """The settings of a model with the loss; a weight of None leaves it out."""
        if self.emits:
            return {**self.settings, "network": self.make(weight=weight or 0.0)}
        losses = [] if weight is None else [self.make(weight=weight)]
        return {**self.settings, "auxiliary_losses": losses}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guess(types.AuxiliaryLoss):
    """The expected distance of a class that is drawn from class 1, by the score function."""

    name: str = "guess"
    weight: Any = 1.0

    def __call__(self, activations):
        logits = activations.logits["kind"]
        drawn = draws.draw_rows("class", tf.shape(logits)[0], 1)
        ends = tf.cumsum(tf.nn.softmax(logits), axis=1)[:, :-1]
        classes = tf.reduce_sum(tf.cast(drawn > ends, tf.int32), 1)
        costs = tf.cast(tf.abs(classes - 1), tf.float32)
        log_probabilities = tf.gather(tf.nn.log_softmax(logits), classes, batch_dims=1)
        return score_function.reinforce(log_probabilities, costs, 0.5)


@functools.cache
def write_teacher():
    """The folder of a SavedModel that predicts the tasks of `tests.images`."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    random = np.random.default_rng(4)
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [None, 3])
        hidden = tf.tanh(x @ random.normal(size=[3, 4]).astype(np.float32), name="hidden")
        kinds = tf.nn.softmax(hidden @ random.normal(size=[4, 3]).astype(np.float32))
        outputs = {"kind/probabilities": kinds, "size/value": tf.reduce_sum(hidden, 1)}
        signature = tf1.saved_model.predict_signature_def({"x": x}, outputs)
        builder = tf1.saved_model.Builder(f"{folder}/teacher")
        builder.add_meta_graph_and_variables(session, ["serve"], {serving_settings.RAW: signature})
        builder.save()
    return f"{folder}/teacher"


_AVERAGED = {
    "update": update.Update(
        optimizer=optimizers.SGD(learning_rate=0.1), average=averaging.ExponentialAverage(decay=0.9)
    )
}
_DROPOUT = {
    "network": networks.SharedBottom(trunk=networks.MLP(layers=[8], activation="tanh", dropout=0.5))
}
_TRUNK = networks.MLP(layers=[4], activation="tanh")
_FALLING = schedules.Exponential(value=2.0, decay_rate=0.5, decay_steps=2)
_SIGMOIDS = networks.MLP(layers=[5], activation="sigmoid")

_FUNNEL = {
    "heads": [
        heads.Binary(
            name="shown", label="kind", positive=[1, 2], negative=[0], weight="row_weight"
        ),
        heads.Binary(
            name="bought", label="kind", positive=[2], negative=[0, 1], within={"kind": [1, 2]}
        ),
    ]
}
_TASKS = {"task": "bought", "propensity": "shown"}

LOSSES = [
    Loss(name="fgm", make=lambda **kw: auxiliary.Adversarial(epsilon=0.5, **kw)),
    Loss(
        name="fgsm",
        make=lambda **kw: auxiliary.Adversarial(
            epsilon=0.1,
            norm="max",
            step_size=0.125,
            random_start=True,
            bounds=(0.0, 1.0),
            columns=["image_photo"],
            **kw,
        ),
    ),
    Loss(
        name="pgd",
        make=lambda **kw: auxiliary.Adversarial(
            epsilon=0.2, norm="max", steps=3, random_start=True, **kw
        ),
    ),
    Loss(
        name="freelb",
        make=lambda **kw: auxiliary.Adversarial(
            epsilon=0.5, steps=2, random_start=True, averages_steps=True, **kw
        ),
    ),
    Loss(name="input_noise", make=lambda **kw: auxiliary.InputNoise(**kw)),
    Loss(
        name="vat",
        make=lambda **kw: auxiliary.VirtualAdversarial(**kw),
        rtol=5e-3,  # The direction is computed from a small difference of predictions.
    ),
    Loss(name="trades", make=lambda **kw: auxiliary.Trades(epsilon=0.2, steps=2, **kw)),
    Loss(name="pi_model", make=lambda **kw: auxiliary.PiModel(noise=0.3, **kw)),
    Loss(
        name="pi_model_dropout",
        make=lambda **kw: auxiliary.PiModel(**kw),
        settings=_DROPOUT,
        is_of_slice="dropout draws by slice",
    ),
    Loss(
        name="mean_teacher",
        make=lambda **kw: auxiliary.MeanTeacher(noise=0.3, **kw),
        settings=_AVERAGED,
    ),
    Loss(
        name="pseudo_labels",
        make=lambda **kw: auxiliary.PseudoLabels(heads=["kind"], threshold=0.3, noise=0.1, **kw),
    ),
    Loss(
        name="entropy",
        make=lambda **kw: auxiliary.EntropyMinimization(heads=["kind"], **kw),
    ),
    Loss(
        name="gradient_reversal",
        make=lambda **kw: auxiliary.GradientReversal(
            head=heads.MultiClass(name="of_kind", label="kind", classes=3), **kw
        ),
    ),
    Loss(
        name="contrastive",
        make=lambda **kw: auxiliary.Contrastive(**kw),
        is_of_slice="rows are compared with those of their slice",
    ),
    Loss(
        name="supervised_contrastive",
        make=lambda **kw: auxiliary.SupervisedContrastive(head="kind", **kw),
        is_of_slice="rows are compared with those of their slice",
    ),
    Loss(
        name="reconstruction",
        make=lambda **kw: auxiliary.Reconstruction(**kw),
        is_of_slice="columns come from rows of the slice",
    ),
    Loss(
        name="distillation",
        make=lambda **kw: auxiliary.Distillation(teacher=write_teacher(), **kw),
        held=(distillation.Teacher, "predict"),
    ),
    Loss(
        name="feature_distillation",
        make=lambda **kw: auxiliary.FeatureDistillation(
            teacher=write_teacher(), tensor="hidden", **kw
        ),
        held=(distillation.Teacher, "compute"),
    ),
    Loss(
        name="score_function",
        make=lambda **kw: Guess(**kw),
        settings={
            "network": networks.SharedBottom(
                trunk=networks.Categories(
                    trunk=_TRUNK, num_variables=2, num_classes=3, temperature=_FALLING
                )
            )
        },
        kernel="network/trunk/categorised/hidden_0/kernel",
    ),
    Loss(
        name="codes",
        make=lambda weight: networks.SharedBottom(
            trunk=networks.Codes(trunk=_TRUNK, num_codes=4, num_groups=2, commitment=weight)
        ),
        emits="commitment",
        kernel="network/trunk/coded/hidden_0/kernel",
    ),
    Loss(
        name="rbm",
        make=lambda weight: networks.SharedBottom(
            trunk=networks.Stacked(
                trunks=[_SIGMOIDS, networks.RBM(units=3, chains=7, steps=2, weight=weight)]
            )
        ),
        emits="contrastive_divergence",
        kernel="network/trunk/stacked_1/hidden_0/kernel",
        held=(rbm.RBM, "_advance_chains"),
        state="/chains",
    ),
    Loss(
        name="doubly_robust",  # With all of `InversePropensity`.
        make=lambda **kw: auxiliary.DoublyRobust(layers=[3], **_TASKS, **kw),
        settings=_FUNNEL,
    ),
    Loss(
        name="reconstruction_of_zeros",
        make=lambda **kw: auxiliary.Reconstruction(replacement="zero", **kw),
    ),
]
