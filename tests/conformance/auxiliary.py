"""One row per auxiliary loss: what each must do is tested on all of them.

A new loss adds a row: the part, and what the model of `tests.images` needs beside it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from mtl import auxiliary, heads, networks
from mtl.optimization import optimizers, update
from mtl.variables import averaging


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
    """A row.

    Attributes:
      name: shown by pytest.
      make: weight -> the part.
      settings: of the model, beside the loss.
      is_of_slice: why slices and replicas do not add up to the whole batch; None where they have
        to.
      rtol: how close slices come to the whole batch.
    """

    name: str
    make: Callable[..., Any]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_of_slice: str | None = None
    rtol: float = 1e-4


_AVERAGED = {
    "update": update.Update(
        optimizer=optimizers.SGD(learning_rate=0.1), average=averaging.ExponentialAverage(decay=0.9)
    )
}
_DROPOUT = {
    "network": networks.SharedBottom(trunk=networks.MLP(layers=[8], activation="tanh", dropout=0.5))
}

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
        rtol=5e-3,  # A direction is that of a small difference of predictions.
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
    Loss(name="centre_loss", make=lambda **kw: auxiliary.CentreLoss(head="kind", **kw)),
    Loss(
        name="reconstruction",
        make=lambda **kw: auxiliary.Reconstruction(**kw),
        is_of_slice="columns come from rows of the slice",
    ),
    Loss(
        name="reconstruction_of_zeros",
        make=lambda **kw: auxiliary.Reconstruction(replacement="zero", **kw),
    ),
]
