"""Measures which tasks help each other.

from mtl.tools import affinity
model.MultiTaskModel.surgery = @affinity.TaskAffinity()
"""

from mtl.tools.affinity.measured import TaskAffinity

__all__ = ["TaskAffinity"]
