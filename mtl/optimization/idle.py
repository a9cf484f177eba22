"""Finds the steps in which variables move: neither frozen nor with a rate of 0.

for moving in idle.find_moving(update, freezing, names, last=900):
    moving.first, moving.end, moving.where       # 0, 500, "Update.optimizers['^features/']"
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from mtl import types
from mtl.optimization import schedules, update
from mtl.variables import freezing as freezing_lib
from mtl.variables import patterns


@dataclasses.dataclass(frozen=True)
class Moving:
    """Variables that move in the same steps.

    Attributes:
      example: the name of a variable.
      where: the setting whose rate ends; the setting of the optimizer if no rate ends.
      first: the step from which they move.
      end: the step from which their rate is 0 up to the last step; infinite if there is none.
    """

    example: str
    where: str
    first: float
    end: float

    def is_idle(self, first: int, last: int) -> bool:
        """Return whether they stay where they are from step `first` on, before step `last`."""
        return max(first, self.first) >= min(last, self.end)


def find_moving(
    part: types.Update, freezing: freezing_lib.Freezing, variables: Iterable[str], last: int
) -> list[Moving]:
    """Return in which of the steps 0 to `last` - 1 variables move, once for alike variables.

    An update of another class does not say which variables it moves: the list is then empty.

    Args:
      part: the update of the model.
      freezing: which variables are frozen, and until when.
      variables: names.
      last: the number of steps.
    """
    if not isinstance(part, update.Update):
        return []
    ends = {where: _find_end(rate, last) for where, rate in _list_rates(part).items()}
    found: dict[tuple, Moving] = {}
    for name in variables:
        # Rates are multiplied, so the first to become 0 ends the movement.
        where = min(_list_rates_of(part, name), key=ends.__getitem__)
        first, end = freezing.first_step(name), ends[where]
        moving = Moving(example=name, where=where, first=first, end=end)
        found.setdefault((moving.where, moving.first, moving.end), moving)
    return [moving for moving in found.values() if math.isfinite(moving.first)]


def _list_rates(part: update.Update) -> dict[str, Any]:
    """Return {setting: the learning rate, or a factor}."""
    settings = {"Update.optimizer": part.optimizer.learning_rate}
    for pattern, optimizer in part.optimizers.items():
        settings[f"Update.optimizers[{pattern!r}]"] = optimizer.learning_rate
    settings |= {f"Update.rates[{pattern!r}]": rate for pattern, rate in part.rates.items()}
    return settings | ({} if part.schedule is None else {"Update.schedule": part.schedule})


def _list_rates_of(part: update.Update, name: str) -> list[str]:
    """Return the settings of `_list_rates` that act on a variable of this name."""
    own = next((p for p in part.optimizers if patterns.matches(p, name)), None)
    wheres = ["Update.optimizer" if own is None else f"Update.optimizers[{own!r}]"]
    wheres += [f"Update.rates[{p!r}]" for p in part.rates if patterns.matches(p, name)]
    return wheres + (["Update.schedule"] if part.schedule is not None else [])


def _find_end(rate: Any, last: int) -> float:
    """Return the step from which a rate is 0 up to the last one; infinite if there is none."""
    zero_from = schedules.zero_from(rate, last - 1)
    return math.inf if zero_from is None else zero_from
