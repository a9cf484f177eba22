"""What is asked for: `launch.explain` fills it from its flags, whose names the errors tell.

settings.Settings(repeats=10, tasks=["income"], rows=[0, 17])
"""

import dataclasses
from collections.abc import Mapping, Sequence

from mtl import checks

MEAN, ZEROS = "mean", "zeros"
BASELINES = (MEAN, ZEROS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What of a run is explained, and how closely.

    Attributes:
      checkpoint: "latest", "best" or a path.
      split: that of the rows; None for the one that the run evaluates.
      limit: how many rows are drawn over the whole split.
      tasks: which; all if empty.
      fields: those to permute; all if empty.
      groups: fields that are also permuted together.
      repeats: how often each field is permuted.
      rows: the rows whose predictions are explained, by their places in the split from 0 on.
      classes: {task: the class that is explained}; by default the one with the largest logit.
      steps: the points of the path of integrated gradients.
      baseline: where the path begins: the "mean" of the encoded rows, or "zeros".
      dependence: fields for partial dependence; the most important ones if empty.
      batches: how many batches gradients are compared on; 0 for none.
    """

    checkpoint: str = "latest"
    split: str | None = None
    limit: int = 2000
    tasks: Sequence[str] = ()
    fields: Sequence[str] = ()
    groups: Sequence[Sequence[str]] = ()
    repeats: int = 5
    rows: Sequence[int] = (0, 1, 2)
    classes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    steps: int = 128
    baseline: str = MEAN
    dependence: Sequence[str] = ()
    batches: int = 20

    def __post_init__(self):
        for setting in ("limit", "repeats", "steps"):
            checks.whole(f"--{setting}", getattr(self, setting), 1)
        checks.whole("--batches", self.batches, 0)
        for setting in ("tasks", "fields", "dependence"):
            checks.unique(f"--{setting}", getattr(self, setting))
        for row in self.rows:
            checks.whole("--rows", row, 0)
        checks.one_of("--baseline", self.baseline, BASELINES)
