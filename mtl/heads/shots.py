"""Separate accuracies for classes with many, some and few rows in the training split.

from mtl.heads import shots
digit/heads.MultiClass.shots = @shots.Shots()
shots.Shots.few = 20
"""

from __future__ import annotations

from collections.abc import Sequence

from mtl import checks
from mtl.deferred import tf
from mtl.heads import metrics


@checks.dataclass
class Shots:
    """Groups classes by their training rows: more than `many`, fewer than `few`, and the rest.

    The three groups of classes are from Liu et al., "Large-Scale Long-Tailed Recognition in an Open
    World", 2019, arXiv:1904.05160. The accuracy of a group is the mean recall of its classes; the
    accuracy of an empty group is NaN.

    Attributes:
      many: the largest number of training rows of a medium class, at least 0; 100 is the paper's
        choice.
      few: the smallest number of training rows of a medium class, in [0, many + 1]; 20 is the
        paper's choice.
    """

    many: checks.Natural = 100
    few: checks.Natural = 20

    def __post_init__(self):
        rule = f"be at most many + 1 ({self.many + 1})"
        checks.require(self.few <= self.many + 1, "Shots.few", rule, self.few)

    def __call__(self, recalls: tf.Tensor, counts: Sequence[int]) -> dict[str, tf.Tensor]:
        """Return each group's accuracy, from the recall and training rows of each of C classes."""
        groups = ["many" if n > self.many else "few" if n < self.few else "medium" for n in counts]
        return {
            f"{group}_shot_accuracy": metrics.mean_defined(
                tf.gather(
                    recalls, [i for i, class_group in enumerate(groups) if class_group == group]
                )
                if group in groups
                else tf.zeros([0], recalls.dtype)
            )
            for group in ("many", "medium", "few")
        }
