"""Measures the time and memory of the phases of a training step; see docs/profiling.md.

experiment.Run.profile = [100, 110]
"""

from mtl.tools.profiling.profiled import Profile

__all__ = ["Profile"]
