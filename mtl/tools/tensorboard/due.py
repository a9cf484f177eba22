"""Says at which steps an action is due: at multiples of a number, or at listed steps.

when = due.Due.from_setting([100, 110], every=50)        # or True for every 50, or 20, or False
when.includes(100)                                       # True
is_due = when.tell(step)                                 # a bool scalar of the graph
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from mtl import checks
from mtl.deferred import tf


def check(where: str, when: Any) -> None:
    """Fail unless `when` is False, True, a number of steps or a list of global steps.

    Args:
      where: the name of the setting in error messages.
      when: the value of the setting.

    Raises:
      UserError: the value has another type, a step is below 1, or a step is listed twice.
    """
    rule = "be True, False, a number of steps or a list of steps"
    # Check for bool first, because True is also an int.
    if isinstance(when, bool):
        return
    checks.is_a(where, when, (int, list, tuple), rule)
    if isinstance(when, int):
        checks.at_least(where, when, 1)
        return
    checks.require(len(when) > 0, where, f"{rule} with at least one step", when)
    for step in when:
        checks.is_a(where, step, int, rule)
        checks.at_least(where, step, 1)
    checks.require(len(set(when)) == len(when), where, "name no step twice", list(when))


When = Annotated[bool | int | Sequence[int], check]
"""False, True, a number of steps, or a list of global steps."""


class Due(NamedTuple):
    """The global steps at which an action is due: multiples of `every`, or the steps in `at`.

    Attributes:
      every: the number of steps between two due steps; 0 if `at` lists the due steps.
      at: the list of the due steps in ascending order; () if `every` is not 0.
    """

    every: int = 0
    at: tuple[int, ...] = ()

    @classmethod
    def from_setting(cls, when: When, every: int) -> Due | None:
        """Return the steps at which a setting shows its TensorBoard item; None for False.

        Args:
          when: the value of the setting, which is False, True, a number of steps or a list of
            steps.
          every: the number of steps between two due steps if the setting is True.
        """
        # Compare with `is`, because 1 equals True but means every step.
        if when is True or when is False:
            return cls(every) if when else None
        return cls(when) if isinstance(when, int) else cls(0, tuple(sorted(when)))

    def includes(self, step: int) -> bool:
        """Return True if the action is due at a step."""
        return step % self.every == 0 if self.every else step in self.at

    def tell(self, step: tf.Tensor) -> tf.Tensor:
        """Build a tensor that says whether the action is due.

        Args:
          step: the global step, an int64 scalar of the graph.

        Returns:
          A bool scalar: True if the action is due at the step.
        """
        if self.every:
            return tf.equal(step % self.every, 0)
        # The list of steps becomes a constant of the graph.
        return tf.reduce_any(tf.equal(step, np.array(self.at, np.int64)))
