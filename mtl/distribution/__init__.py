"""Distributes a run over devices and processes, and checks that it fits into memory.

from mtl import distribution
distribution.Distribution.strategy = distribution.MIRRORED
"""

from mtl.distribution.settings import (
    MIRRORED,
    ONE,
    SERVERS,
    WORKERS,
    Communication,
    Distribution,
)

__all__ = ["MIRRORED", "ONE", "SERVERS", "WORKERS", "Communication", "Distribution"]
