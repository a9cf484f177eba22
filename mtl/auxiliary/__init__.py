"""Losses without a head, of which training alone knows.

from mtl import auxiliary
model.MultiTaskModel.auxiliary_losses = [@auxiliary.VirtualAdversarial()]
"""

from mtl.auxiliary.adversarial import Adversarial, InputNoise
from mtl.auxiliary.consistency import (
    EntropyMinimization,
    MeanTeacher,
    PiModel,
    PseudoLabels,
    Trades,
    VirtualAdversarial,
)

__all__ = [
    "Adversarial",
    "EntropyMinimization",
    "InputNoise",
    "MeanTeacher",
    "PiModel",
    "PseudoLabels",
    "Trades",
    "VirtualAdversarial",
]
