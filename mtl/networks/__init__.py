"""Networks: from the encoded columns to one tower a task.

networks.SharedBottom.trunk = @networks.MLP()
networks.MLP.layers = [128, 64]
networks.MLP.dropout = 0.1
"""

from mtl.networks.composed import Parallel, Stacked
from mtl.networks.convnet import Convnet
from mtl.networks.cross_stitch import CrossStitch, Sluice
from mtl.networks.keras import KerasModel
from mtl.networks.mlp import MLP
from mtl.networks.mmoe import MMoE, OMoE
from mtl.networks.ple import PLE
from mtl.networks.resnet import ResNet
from mtl.networks.shared_bottom import SharedBottom
from mtl.networks.single_task import SingleTask

__all__ = [
    "MLP",
    "PLE",
    "Convnet",
    "CrossStitch",
    "KerasModel",
    "MMoE",
    "OMoE",
    "Parallel",
    "ResNet",
    "SharedBottom",
    "SingleTask",
    "Sluice",
    "Stacked",
]
