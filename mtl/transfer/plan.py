"""Lists the saved value from which each variable of a run starts, and the reason.

transfer_plan = plan.Plan(entries, source)
print(transfer_plan.summary())                           # 24 warmed, 2 renamed, 3 initialised, ...
print(transfer_plan.table())                             # one line for each variable
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from mtl import aligned
from mtl.transfer import source as source_lib

OUTCOMES = ("warmed", "renamed", "initialised", "skipped")


@dataclasses.dataclass(frozen=True)
class Rows:
    """Assigns saved rows to the rows of a variable whose rows have other places in the source.

    Attributes:
      origins: the index of the saved row for each row, or -1 for a new row.
      axis: the axis along which the rows are.
      num_named: the number of saved rows with a name. Saved rows for unknown values come after the
        rows with names.
      is_state: True if the variable is optimizer state.
    """

    origins: np.ndarray
    axis: int
    num_named: int
    is_state: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """The decision about one variable.

    Attributes:
      name: the name of the variable in this run.
      shape: the shape of the variable in this run.
      outcome: one of `OUTCOMES`; "renamed" means that the saved variable has another name.
      why: the reason in words.
      source: the name of the saved variable; None if the variable gets no saved value.
      rows: which saved row each row gets; None if all rows keep their places.
      offset: a number to add to the saved value. If the saved value is a global step of the source,
          the value plus `offset` is negative, which means a step before this run.
      is_count: True if the value is the number of keys in the saved variable.
      is_unnamed: True if this run names the rows, but the source does not.
    """

    name: str
    shape: Sequence[int]
    outcome: str
    why: str = ""
    source: str | None = None
    rows: Rows | None = None
    offset: int = 0
    is_count: bool = False
    is_unnamed: bool = False

    @property
    def saved(self) -> str:
        """The name of the saved variable; valid only if `is_warmed` is True."""
        return cast(str, self.source)

    @property
    def is_warmed(self) -> bool:
        """True if the variable gets saved values."""
        return self.source is not None


@dataclasses.dataclass(frozen=True)
class Plan:
    """The decisions about all variables of a run.

    Attributes:
      entries: the decisions, one for each variable of the run.
      source: the saved variables from which the run starts.
    """

    entries: Sequence[Entry]
    source: source_lib.Source

    def warmed(self) -> list[Entry]:
        """Return the entries of variables that get saved values."""
        return [entry for entry in self.entries if entry.is_warmed]

    def read_start(self, name: str) -> np.ndarray | None:
        """Read the saved value from which a variable starts.

        Args:
          name: the name of a variable of this run, which must be in the plan.

        Returns:
          An array in the saved shape, with rows in the order of the source; None if the variable
          gets no saved value.
        """
        entry = next(entry for entry in self.entries if entry.name == name)
        return self.source.read_value(entry.saved) if entry.is_warmed else None

    def summary(self) -> str:
        """Return one line: counts of outcomes, new variables, and variables with moved rows."""
        counts = collections.Counter(entry.outcome for entry in self.entries)
        outcomes = ", ".join(
            f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]
        )
        parts = [f"Warm start from {self.source.path}: {outcomes}"]
        parts += self._list_names("initialised", lambda entry: entry.outcome == "initialised")
        parts += self._list_names("rows by name", lambda entry: entry.rows is not None)
        title = "rows by position, as the source lacks their names"
        parts += self._list_names(title, lambda entry: entry.is_unnamed)
        return "; ".join(parts)

    def _list_names(self, title: str, is_listed: Callable[[Entry], bool]) -> list[str]:
        """Return a part of `summary` with the names of at most three variables; [] for none."""
        names = [entry.name for entry in self.entries if is_listed(entry)]
        rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return [f"{title}: {', '.join(names[:3])}{rest}"] if names else []

    def table(self) -> str:
        """Return a table with a row for each variable, and for unused variables of the source."""
        rows = [
            (entry.outcome, entry.name, str(list(entry.shape)), entry.why) for entry in self.entries
        ]
        used_names = {name for entry in self.entries for name in (entry.name, entry.source)}
        unused_names = [name for name in self.source.shapes if name not in used_names]
        rows += [
            ("not used", name, str(list(self.source.shapes[name])), "") for name in unused_names
        ]
        return "\n".join([self.summary(), "", *aligned.align_columns(rows)])
