"""Chooses the steps of an action: multiples of a number, or a list of steps.

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
    """Fail unless `when` is False, True, a number of steps or a list of global steps."""
    rule = "be True, False, a number of steps or a list of steps"
    # This comes first, as True is an int too.
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
    """Global steps: every multiple of `every`, or the steps in `at`.

    Attributes:
      every: the number of steps from one to the next; 0 if `at` lists the steps.
      at: the list of steps, in order.
    """

    every: int = 0
    at: tuple[int, ...] = ()

    @classmethod
    def from_setting(cls, when: When, every: int) -> Due | None:
        """Return the steps of a setting; None for False, multiples of `every` for True.

        Args:
          when: the setting.
          every: the number of steps that True stands for.
        """
        # Not `if when`, as 1 equals True but means every step.
        if when is True or when is False:
            return cls(every) if when else None
        return cls(when) if isinstance(when, int) else cls(0, tuple(sorted(when)))

    def includes(self, step: int) -> bool:
        """Return True if these steps include a step."""
        return step % self.every == 0 if self.every else step in self.at

    def tell(self, step: tf.Tensor) -> tf.Tensor:
        """Return True in the graph if these steps include a step, int64 scalar -> bool scalar."""
        if self.every:
            return tf.equal(step % self.every, 0)
        # The list of steps is a constant of the graph.
        return tf.reduce_any(tf.equal(step, np.array(self.at, np.int64)))
