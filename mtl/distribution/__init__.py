"""Distributes a run: its devices, its processes and their heartbeats, and limits of memory.

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
