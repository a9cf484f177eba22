"""The tasks: from a tower to logits, loss, predictions, metrics and serving outputs.

from mtl import heads
income/heads.Binary.name = "income"
income/heads.Binary.positive = [">50K", ">50K."]
"""

from mtl.heads.binary import Binary
from mtl.heads.categorical_mixture import CategoricalMixture
from mtl.heads.depth import Depth
from mtl.heads.estimator_head import EstimatorHead
from mtl.heads.gaussian_mixture import GaussianMixture
from mtl.heads.heat_map import HeatMap
from mtl.heads.mixture_density import MixtureDensity
from mtl.heads.multi_class import MultiClass
from mtl.heads.multi_label import MultiLabel
from mtl.heads.normals import Normals
from mtl.heads.ordinal import Ordinal
from mtl.heads.regression import Poisson, Regression
from mtl.heads.score import Score
from mtl.heads.segmentation import Segmentation

__all__ = [
    "Binary",
    "CategoricalMixture",
    "Depth",
    "EstimatorHead",
    "GaussianMixture",
    "HeatMap",
    "MixtureDensity",
    "MultiClass",
    "MultiLabel",
    "Normals",
    "Ordinal",
    "Poisson",
    "Regression",
    "Score",
    "Segmentation",
]
