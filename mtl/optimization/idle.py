"""Finds the steps in which variables are trained: not frozen, and with a learning rate above 0.

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
    """Variables that are trained in the same steps.

    Attributes:
      example: the name of one of the variables.
      where: the setting of the first learning rate or factor that becomes 0; if no rate becomes 0,
        the setting of the optimizer.
      first: the step from which the variables are trained.
      end: the step from which the learning rate stays 0 up to the last step; infinite if the
        learning rate of the last step is above 0.
    """

    example: str
    where: str
    first: float
    end: float

    def is_idle(self, first: int, last: int) -> bool:
        """Return True if the variables do not change in a range of steps.

        Args:
          first: the first step of the range.
          last: the step after the last step of the range.
        """
        return max(first, self.first) >= min(last, self.end)


def find_moving(
    part: types.Update, freezing: freezing_lib.Freezing, variables: Iterable[str], last: int
) -> list[Moving]:
    """Find the steps among 0 to `last` - 1 in which variables are trained.

    Args:
      part: the update of the model.
      freezing: the `Freezing` of the model, which gives the first step in which a variable is
        trained.
      variables: the names of the variables.
      last: the number of steps.

    Returns:
      One `Moving` for all variables with equal `where`, `first` and `end`. Variables that are
      frozen for the whole run are left out. If the update is of another class than `Update`, the
      steps in which it trains are unknown, and the list is empty.
    """
    if not isinstance(part, update.Update):
        return []
    ends = {where: _find_end(rate, last) for where, rate in _list_rates(part).items()}
    by_steps: dict[tuple, Moving] = {}
    for name in variables:
        # The factors are multiplied, so training ends when the first of them becomes 0.
        where = min(_list_rates_of(part, name), key=ends.__getitem__)
        first, end = freezing.first_step(name), ends[where]
        moving = Moving(example=name, where=where, first=first, end=end)
        by_steps.setdefault((moving.where, moving.first, moving.end), moving)
    return [moving for moving in by_steps.values() if math.isfinite(moving.first)]


def _list_rates(part: update.Update) -> dict[str, Any]:
    """Return all learning rates and their factors, {setting: number or schedule}."""
    settings = {"Update.optimizer": part.optimizer.learning_rate}
    for pattern, optimizer in part.optimizers.items():
        settings[f"Update.optimizers[{pattern!r}]"] = optimizer.learning_rate
    settings |= {f"Update.rates[{pattern!r}]": rate for pattern, rate in part.rates.items()}
    return settings | ({} if part.schedule is None else {"Update.schedule": part.schedule})


def _list_rates_of(part: update.Update, name: str) -> list[str]:
    """Return those settings of `_list_rates` that determine the learning rate of a variable."""
    pattern = next((p for p in part.optimizers if patterns.matches(p, name)), None)
    settings = ["Update.optimizer" if pattern is None else f"Update.optimizers[{pattern!r}]"]
    settings += [f"Update.rates[{p!r}]" for p in part.rates if patterns.matches(p, name)]
    return settings + (["Update.schedule"] if part.schedule is not None else [])


def _find_end(rate: Any, last: int) -> float:
    """Return the first step from which a rate stays 0; infinite if the last rate is not 0."""
    zero_from = schedules.zero_from(rate, last - 1)
    return math.inf if zero_from is None else zero_from
