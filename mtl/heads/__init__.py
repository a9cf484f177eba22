"""Heads, one for each task, which compute loss, predictions and metrics from a tower.

from mtl import heads
income/heads.Binary.name = "income"
income/heads.Binary.positive = [">50K", ">50K."]
"""

from mtl.heads.binary import Binary
from mtl.heads.block import Block
from mtl.heads.categorical_mixture import CategoricalMixture
from mtl.heads.depth import Depth
from mtl.heads.estimator_head import EstimatorHead
from mtl.heads.gaussian_mixture import GaussianMixture
from mtl.heads.group_ranking import Ranking
from mtl.heads.item_frequency import StreamedFrequency
from mtl.heads.joint import Joint
from mtl.heads.mixture_density import MixtureDensity
from mtl.heads.multi_class import MultiClass
from mtl.heads.multi_label import MultiLabel
from mtl.heads.normals import Normals
from mtl.heads.ordinal import Ordinal
from mtl.heads.quantile import Quantile
from mtl.heads.regression import Poisson, Regression, Tweedie, WeightedLogistic
from mtl.heads.retrieval import Retrieval
from mtl.heads.score import Score
from mtl.heads.segmentation import Segmentation
from mtl.heads.survival import Survival
from mtl.heads.zero_inflated import ZeroInflatedLogNormal

__all__ = [
    "Binary",
    "Block",
    "CategoricalMixture",
    "Depth",
    "EstimatorHead",
    "GaussianMixture",
    "Joint",
    "MixtureDensity",
    "MultiClass",
    "MultiLabel",
    "Normals",
    "Ordinal",
    "Poisson",
    "Quantile",
    "Ranking",
    "Regression",
    "Retrieval",
    "Score",
    "Segmentation",
    "StreamedFrequency",
    "Survival",
    "Tweedie",
    "WeightedLogistic",
    "ZeroInflatedLogNormal",
]
