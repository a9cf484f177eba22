"""Settings of an explanation. `launch.explain` reads them from its flags, so errors name flags.

settings.Settings(repeats=10, tasks=["income"], rows=[0, 17])
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated

from mtl import checks

MEAN, ZEROS = "mean", "zeros"
BASELINES = (MEAN, ZEROS)


@checks.dataclass
class Settings:
    """The explanations to compute, and their precision.

    Attributes:
      checkpoint: "latest", "best" or a path.
      split: the split of the rows; None for the split that the run evaluates.
      limit: the largest number of rows to draw at random from the split.
      tasks: the tasks to explain; all if empty.
      fields: the fields to permute; all if empty.
      groups: groups of fields; the fields of a group are also permuted together.
      repeats: the number of permutations of each field.
      rows: the rows whose predictions are explained, by their places in the split, from 0 on.
      classes: {task: the class to explain}; by default the class with the largest logit.
      steps: the points of the path of integrated gradients.
      baseline: the start of the path: the "mean" of the encoded rows, or "zeros".
      dependence: fields for partial dependence; the most important ones if empty.
      batches: the number of batches on which gradients of tasks are compared; 0 for no comparison.
    """

    checkpoint: str = "latest"
    split: str | None = None
    limit: checks.Count = 2000
    tasks: checks.Names = ()
    fields: checks.Names = ()
    groups: Sequence[Sequence[str]] = ()
    repeats: checks.Count = 5
    rows: Sequence[checks.Natural] = (0, 1, 2)
    classes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    steps: checks.Count = 128
    baseline: Annotated[str, checks.OneOf(BASELINES)] = MEAN
    dependence: checks.Names = ()
    batches: checks.Natural = 20

    def _where(self, setting: str) -> str:
        return f"--{setting}"
