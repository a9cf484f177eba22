"""Lists for every variable of a run the saved value that it starts from, and why.

transfer_plan = plan.Plan(entries, source)
print(transfer_plan.summary())                           # 24 warmed, 2 renamed, 3 initialised, ...
print(transfer_plan.table())                             # one line for each variable
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import cast

import numpy as np

from mtl import aligned
from mtl.transfer import source as source_lib

OUTCOMES = ("warmed", "renamed", "initialised", "skipped")


@dataclasses.dataclass(frozen=True)
class Rows:
    """The origins of rows that lie in other places in the source.

    Attributes:
      origins: the saved row that each row gets, or -1 for a new row.
      axis: the axis of the rows.
      num_named: the number of saved rows with a name; rows for unknown values come after them.
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
      name: its name in this run.
      shape: its shape in this run.
      outcome: one of `OUTCOMES`; a "renamed" variable starts from a saved variable of another name.
      why: the reason in words.
      source: the name of the saved variable, or None.
      rows: the origins of its rows; None if all rows keep their places.
    """

    name: str
    shape: Sequence[int]
    outcome: str
    why: str = ""
    source: str | None = None
    rows: Rows | None = None

    @property
    def saved(self) -> str:
        """The name of the saved variable, if it gets saved values."""
        return cast(str, self.source)

    @property
    def is_warmed(self) -> bool:
        """True if it gets saved values."""
        return self.source is not None


@dataclasses.dataclass(frozen=True)
class Plan:
    """The origins of the values of all variables of a run, in order."""

    entries: Sequence[Entry]
    source: source_lib.Source

    def warmed(self) -> list[Entry]:
        """Return the entries that get saved values."""
        return [entry for entry in self.entries if entry.is_warmed]

    def read_start(self, name: str) -> np.ndarray | None:
        """Return the saved value of a variable, with rows in their saved order, or None."""
        entry = next(entry for entry in self.entries if entry.name == name)
        return self.source.read_value(entry.saved) if entry.is_warmed else None

    def summary(self) -> str:
        """Return one line: counts of the outcomes, and variables that are new or have new rows."""
        counts = collections.Counter(entry.outcome for entry in self.entries)
        outcomes = ", ".join(
            f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]
        )
        new = [entry.name for entry in self.entries if entry.outcome == "initialised"]
        names_by_rows = [entry.name for entry in self.entries if entry.rows is not None]
        parts = [f"Warm start from {self.source.path}: {outcomes}"]
        parts += [f"initialised: {_shorten_names(new)}"] if new else []
        parts += [f"rows by name: {_shorten_names(names_by_rows)}"] if names_by_rows else []
        return "; ".join(parts)

    def table(self) -> str:
        """Return every variable with its outcome, and then the unused variables of the source."""
        rows = [
            (entry.outcome, entry.name, str(list(entry.shape)), entry.why) for entry in self.entries
        ]
        used_names = {name for entry in self.entries for name in (entry.name, entry.source)}
        unused_names = [name for name in self.source.shapes if name not in used_names]
        rows += [
            ("not used", name, str(list(self.source.shapes[name])), "") for name in unused_names
        ]
        return "\n".join([self.summary(), "", *aligned.align_columns(rows)])


def _shorten_names(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
