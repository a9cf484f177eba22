"""Encoders of histories, which turn the events of a row into a single vector.

features.History.encoder = @histories.TargetAttention()
histories.TargetAttention.layers = [64, 32]
"""

from mtl.histories.attention import HashedAttention, TargetAttention
from mtl.histories.convolution import Convolution
from mtl.histories.pooling import Pooling
from mtl.histories.recurrent import GRU, InterestEvolution
from mtl.histories.transformer import Transformer

__all__ = [
    "GRU",
    "Convolution",
    "HashedAttention",
    "InterestEvolution",
    "Pooling",
    "TargetAttention",
    "Transformer",
]
