"""A source that keeps a share of the training rows, to learn from few examples.

from mtl.data import subset
pipeline.Pipeline.source = @subset.Subset()
subset.Subset.source = @csv.Csv()
subset.Subset.share = 0.01
subset.Subset.held_out = {"validation": 0.2}
"""

import dataclasses
import itertools
from typing import Annotated, Any

from mtl import checks, types
from mtl.data import chosen_rows, splits
from mtl.data import source as source_lib

HASH, LATTICE = "hash", "lattice"
# Multipliers of a linear congruential generator in C libraries, and of MurmurHash2.
_LATTICE = (1_103_515_245, 1_540_483_477)


@checks.dataclass
class Subset(chosen_rows.ChosenRows):
    """A source that takes about a given share of another source's training rows.

    A hash of the row number and the seed selects the rows, without counting rows or keeping them in
    memory. A larger share contains all rows of a smaller share. `split` and the held-out splits
    have no row in common. Other splits of the source are unchanged.

    Attributes:
      source: the source of the rows.
      share: the share of the rows, in (0, 1].
      split: the split from which rows are taken.
      held_out: {new split: share of the rows}; `share` and these shares sum to at most 1.
      seed: the seed of the hash that selects the rows.
      draw: "hash" draws rows independently. "lattice" is only for saved runs that lack the setting
        `draw`. With "lattice", rows whose numbers differ by 2,236 tend to be in the same split, and
        so do whole periods of periodic data.
    """

    source: Annotated[types.Source, source_lib.check]
    share: float
    split: Annotated[str, checks.Is(str, "name a split")] = "train"
    held_out: splits.Shares = dataclasses.field(default_factory=dict)
    seed: int = 1
    draw: Annotated[str, checks.OneOf((HASH, LATTICE))] = dataclasses.field(
        default=HASH, metadata={"earlier": LATTICE}
    )

    def __post_init__(self):
        rule = f"be new beside {self.split!r}"
        checks.require(self.split not in self.held_out, "Subset.held_out", rule, self.held_out)
        shares = {"share": self.share} | {f"held_out[{k!r}]": v for k, v in self.held_out.items()}
        for setting, share in shares.items():
            checks.positive(f"Subset.{setting}", share)
        total = sum(shares.values())
        rule = "be at most 1" + ", held_out included" * bool(self.held_out)
        checks.require(total <= 1 + 1e-9, "Subset.share", rule, total)

    @property
    def _arcs(self) -> dict[str, splits.Arc]:
        """{split: its range of row positions}; ranges of held-out splits are at the end."""
        ends = itertools.accumulate(
            self.held_out.values(), lambda end, part: end - part, initial=1.0
        )
        # The range of a held-out split ends at the start of the previous range, so no row is in two
        # splits.
        bounds = [max(round(end * splits.PLACES), 0) for end in ends]
        held_out = zip(self.held_out, zip(bounds[1:], bounds, strict=False), strict=True)
        return {
            self.split: splits.Arc(0, round(self.share * splits.PLACES)),
            **{split: splits.Arc(first, end - first) for split, (first, end) in held_out},
        }

    def _takes(self, split: str, numbers: Any) -> Any:
        """Return True for row numbers, an int or int64 [B], that belong to a split."""
        place = splits.hash_rows if self.draw == HASH else _place
        return self._arcs[split].holds(place(numbers, self.seed))

    def find_choice(self, split: str) -> chosen_rows.Choice | None:
        """Return the rule that selects the rows of a split; None if the split is unchanged."""
        if split not in self._arcs:
            return None
        return chosen_rows.Choice(lambda numbers, _: self._takes(split, numbers))


def _place(index: Any, seed: int) -> Any:
    """Return the position of a row on the circle of splits if the setting `draw` is "lattice"."""
    place = index + seed * 7919 + 1
    for factor in _LATTICE:
        place = (place % splits.PLACES) * factor % splits.PLACES
        place = place + place // (1 << 16)
    return place % splits.PLACES
