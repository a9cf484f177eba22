"""The tasks: from a tower to logits, loss, predictions, metrics and serving outputs.

from mtl import heads
income/heads.Binary.name = "income"
income/heads.Binary.positive = [">50K", ">50K."]
"""

from mtl.heads.binary import Binary
from mtl.heads.categorical_mixture import CategoricalMixture
from mtl.heads.estimator_head import EstimatorHead
from mtl.heads.gaussian_mixture import GaussianMixture
from mtl.heads.group_ranking import Ranking
from mtl.heads.mixture_density import MixtureDensity
from mtl.heads.multi_class import MultiClass
from mtl.heads.multi_label import MultiLabel
from mtl.heads.ordinal import Ordinal
from mtl.heads.regression import Poisson, Regression
from mtl.heads.retrieval import Retrieval
from mtl.heads.score import Score

__all__ = [
    "Binary",
    "CategoricalMixture",
    "EstimatorHead",
    "GaussianMixture",
    "MixtureDensity",
    "MultiClass",
    "MultiLabel",
    "Ordinal",
    "Poisson",
    "Ranking",
    "Regression",
    "Retrieval",
    "Score",
]
