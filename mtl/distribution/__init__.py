"""Distributes a run over devices and processes, and checks the memory that it needs.

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
