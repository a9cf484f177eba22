"""Auxiliary losses, which have no head; evaluations and exports do not compute them.

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
from mtl.auxiliary.contrastive import Contrastive, SupervisedContrastive
from mtl.auxiliary.distillation import Distillation, FeatureDistillation
from mtl.auxiliary.domains import GradientReversal
from mtl.auxiliary.funnels import Calibrator, DoublyRobust, InversePropensity
from mtl.auxiliary.reconstruction import Reconstruction

__all__ = [
    "Adversarial",
    "Calibrator",
    "Contrastive",
    "Distillation",
    "DoublyRobust",
    "EntropyMinimization",
    "FeatureDistillation",
    "GradientReversal",
    "InputNoise",
    "InversePropensity",
    "MeanTeacher",
    "PiModel",
    "PseudoLabels",
    "Reconstruction",
    "SupervisedContrastive",
    "Trades",
    "VirtualAdversarial",
]
