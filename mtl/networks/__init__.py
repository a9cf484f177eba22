"""Networks, which compute a tower for each task from the encoded columns.

networks.SharedBottom.trunk = @networks.MLP()
networks.MLP.layers = [128, 64]
networks.MLP.dropout = 0.1
"""

from mtl.networks.adatt import AdaTT
from mtl.networks.added_tasks import PackNet, Piggyback
from mtl.networks.autoint import AutoInt
from mtl.networks.cin import CIN
from mtl.networks.codes import Categories, Codes
from mtl.networks.composed import Parallel, Stacked
from mtl.networks.convnet import Convnet
from mtl.networks.cross import Cross
from mtl.networks.cross_stitch import CrossStitch, Sluice
from mtl.networks.fibinet import FiBiNET
from mtl.networks.final_mlp import FinalMLP
from mtl.networks.fm import FM
from mtl.networks.ft_transformer import FTTransformer
from mtl.networks.home import HoME
from mtl.networks.keras import KerasModel
from mtl.networks.ltb import LTB
from mtl.networks.masknet import MaskNet
from mtl.networks.mlp import MLP
from mtl.networks.mmoe import MMoE, OMoE
from mtl.networks.mtan import MTAN
from mtl.networks.pepnet import PEPNet
from mtl.networks.ple import PLE
from mtl.networks.rbm import RBM
from mtl.networks.relations import AITM, DBMTL, ResFlow
from mtl.networks.resnet import ResNet
from mtl.networks.shared_bottom import SharedBottom
from mtl.networks.single_task import SingleTask
from mtl.networks.star import STAR
from mtl.networks.stem import STEM
from mtl.networks.two_tower import TwoTower
from mtl.networks.unet import UNet
from mtl.networks.wide_and_deep import WideAndDeep

__all__ = [
    "AITM",
    "AdaTT",
    "AutoInt",
    "CIN",
    "Categories",
    "Codes",
    "Convnet",
    "Cross",
    "CrossStitch",
    "DBMTL",
    "FM",
    "FTTransformer",
    "FiBiNET",
    "FinalMLP",
    "HoME",
    "KerasModel",
    "LTB",
    "MLP",
    "MMoE",
    "MTAN",
    "MaskNet",
    "OMoE",
    "PEPNet",
    "PLE",
    "PackNet",
    "Parallel",
    "Piggyback",
    "RBM",
    "ResFlow",
    "ResNet",
    "STAR",
    "STEM",
    "SharedBottom",
    "SingleTask",
    "Sluice",
    "Stacked",
    "TwoTower",
    "UNet",
    "WideAndDeep",
]
