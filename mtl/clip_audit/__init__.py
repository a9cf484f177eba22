"""Which samples have large gradients, get clipped and move the weights, and whether they are noise.

from mtl import clip_audit
experiment.Experiment.clip_audit = @clip_audit.ClipAudit()     # records while a run trains
clip_audit.ClipAudit.key = "id"

`python -m launch.clip_audit` audits a run that is trained, over its checkpoints.
"""

from mtl.clip_audit.audit import ClipAudit

__all__ = ["ClipAudit"]
