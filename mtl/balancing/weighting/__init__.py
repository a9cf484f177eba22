"""Weightings, which scale the loss of each task.

from mtl.balancing import weighting
model.MultiTaskModel.weighting = @weighting.Fixed()
weighting.Fixed.weights = {"income": 1.0, "never_married": 0.5}
"""

from mtl.balancing.weighting.adaptive import FAMO, DynamicWeightAverage
from mtl.balancing.weighting.constant import Equal, Fixed, RandomLossWeighting, Scheduled
from mtl.balancing.weighting.learned import IMTLL, UncertaintyWeighting
from mtl.balancing.weighting.scalarized import GeometricLoss, LogLoss
from mtl.balancing.weighting.tchebycheff import SmoothTchebycheff, SmoothTchebycheffMTL

__all__ = [
    "FAMO",
    "IMTLL",
    "DynamicWeightAverage",
    "Equal",
    "Fixed",
    "GeometricLoss",
    "LogLoss",
    "RandomLossWeighting",
    "Scheduled",
    "SmoothTchebycheff",
    "SmoothTchebycheffMTL",
    "UncertaintyWeighting",
]
