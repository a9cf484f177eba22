"""A part of a split of any source, to learn with few examples.

from mtl.data import subset
pipeline.Pipeline.source = @subset.Subset()
subset.Subset.source = @csv.Csv()
subset.Subset.share = 0.01
subset.Subset.held_out = {"validation": 0.2}
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import source as source_lib

# A multiplicative hash of 31 bits, so that Python and TensorFlow agree on it.
_BITS, _FACTORS = 31, (1_103_515_245, 1_540_483_477)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subset(source_lib.ChosenRows):
    """A source whose training split is about a share of the rows of another source's.

    Whether a row is in it follows from its number and the seed alone: nothing is counted or kept,
    and a larger share holds the rows of a smaller one. Splits that are held out have no row in
    common with it, whatever its share. Other splits are passed on.

    Attributes:
      source: the source of the rows.
      share: of the rows, in (0, 1].
      split: the split that is cut.
      held_out: {new split: its share of the rows}; they all leave at least `share`.
      seed: decides which rows are taken.
    """

    source: types.Source
    share: float
    split: str = "train"
    held_out: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seed: int = 1

    def __post_init__(self):
        source_lib.check("Subset.source", self.source)
        checks.is_a("Subset.split", self.split, str, "name a split")
        checks.mapping("Subset.held_out", self.held_out, "map splits to shares")
        rule = f"be new beside {self.split!r}"
        checks.require(self.split not in self.held_out, "Subset.held_out", rule, self.held_out)
        shares = {"share": self.share} | {f"held_out[{k!r}]": v for k, v in self.held_out.items()}
        for setting, share in shares.items():
            checks.positive(f"Subset.{setting}", share)
        total = sum(shares.values())
        rule = "be at most 1" + ", held_out included" * bool(self.held_out)
        checks.require(total <= 1 + 1e-9, "Subset.share", rule, total)
        checks.is_a("Subset.seed", self.seed, int, "be an integer")

    @property
    def names(self) -> list[str]:
        """The columns of the source, where it has names for them."""
        return list(getattr(self.source, "names", ()))

    @property
    def _ranges(self) -> dict[str, tuple[int, int]]:
        """{split: what the hashes of its rows are in}: held-out ones from the end."""
        ends = itertools.accumulate(
            self.held_out.values(), lambda end, part: end - part, initial=1.0
        )
        bounds = [round(end * (1 << _BITS)) for end in ends]
        held_out = zip(self.held_out, zip(bounds[1:], bounds, strict=False), strict=True)
        return {self.split: (0, round(self.share * (1 << _BITS))), **dict(held_out)}

    def _takes(self, split: str, index: Any) -> Any:
        """Return whether a split holds the row of this number, an int, or numbers [B]."""
        size = 1 << _BITS
        mixed = index + self.seed * 7919 + 1
        for factor in _FACTORS:
            mixed = (mixed % size) * factor % size
            mixed = mixed + mixed // (1 << 16)
        first, end = self._ranges[split]
        return (mixed % size >= first) & (mixed % size < end)

    def chooser(self, split: str) -> source_lib.Chooser | None:
        """Return what chooses the rows of a split; None for one of the source's own."""
        if split not in self._ranges:
            return None
        return lambda numbers, _: self._takes(split, numbers)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Read the split record by record."""
        if split not in self._ranges:
            yield from self.source.scan(split, spec)
            return
        for index, row in enumerate(self.source.scan(self.split, spec)):
            if self._takes(split, index):
                yield row
