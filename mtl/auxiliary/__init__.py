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
from mtl.auxiliary.distillation import Distillation, FeatureDistillation

__all__ = [
    "Adversarial",
    "Distillation",
    "EntropyMinimization",
    "FeatureDistillation",
    "InputNoise",
    "MeanTeacher",
    "PiModel",
    "PseudoLabels",
    "Trades",
    "VirtualAdversarial",
]
