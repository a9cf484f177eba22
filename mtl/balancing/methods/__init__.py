"""Methods of surgery, which combine the gradients of several tasks into a single gradient.

surgery.Combine.method = @methods.MGDA()
methods.MGDA.normalizer = "l2"
surgery.Combine.on = "representation"
"""

from mtl.balancing.methods.alignment import IMTLG, AlignedMTL, ConFIG
from mtl.balancing.methods.bargaining import FairGrad, NashMTL
from mtl.balancing.methods.clipped import Clipped
from mtl.balancing.methods.descent import MGDA, CAGrad
from mtl.balancing.methods.magnitude import ExcessMTL, GradNorm, Random
from mtl.balancing.methods.priority import PCD
from mtl.balancing.methods.projection import DualProj, GradVac, PCGrad, UPGrad
from mtl.balancing.methods.robust import Krum, TrimmedMean
from mtl.balancing.methods.sampled import MoDo, SDMGrad
from mtl.balancing.methods.sign import GradDrop
from mtl.balancing.methods.tracked import DBMTL, MoCo

__all__ = [
    "DBMTL",
    "IMTLG",
    "MGDA",
    "PCD",
    "MoCo",
    "MoDo",
    "AlignedMTL",
    "CAGrad",
    "Clipped",
    "ConFIG",
    "DualProj",
    "ExcessMTL",
    "FairGrad",
    "GradDrop",
    "GradNorm",
    "GradVac",
    "Krum",
    "NashMTL",
    "PCGrad",
    "Random",
    "SDMGrad",
    "TrimmedMean",
    "UPGrad",
]
