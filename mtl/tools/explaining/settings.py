"""Settings of an explanation, which `launch.explain` reads from its flags; errors name flags.

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
    """Says which explanations to compute, and how precisely.

    Attributes:
      checkpoint: "latest", "best" or the path of a checkpoint.
      split: the split of the rows; None for the split of evaluations.
      limit: the number of rows to draw at random from the split.
      tasks: the tasks to explain; all tasks if empty.
      fields: the fields to permute; all fields if empty.
      groups: groups of fields. Besides single fields, the fields of each group are permuted
        together.
      repeats: the number of permutations of each field.
      rows: the positions in the split, from 0, of rows whose predictions are explained.
      classes: {task: the class to explain}; by default the class with the largest logit.
      steps: the number of points on the path of integrated gradients.
      baseline: the start of the path of integrated gradients: "mean" for the mean of the encoded
        rows, or "zeros".
      dependence: the fields for partial dependence; the most important fields if empty.
      batches: the number of batches for comparing the gradients of tasks; 0 for no comparison.
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
