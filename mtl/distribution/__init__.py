"""Where a run runs: devices, processes, what they can hold, and how they know of each other.

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
