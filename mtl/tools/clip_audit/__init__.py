"""Records gradient norms of samples, to find samples that clipping shrinks or that are noise.

from mtl.tools import clip_audit
experiment.Experiment.clip_audit = @clip_audit.ClipAudit()     # records while a run trains
clip_audit.ClipAudit.key = "id"

`python -m launch.clip_audit` audits a trained run, over its checkpoints.
"""

from mtl.tools.clip_audit.recording import ClipAudit

__all__ = ["ClipAudit"]
