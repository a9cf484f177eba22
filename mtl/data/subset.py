"""A part of a split of any source, to learn from few examples.

from mtl.data import subset
pipeline.Pipeline.source = @subset.Subset()
subset.Subset.source = @csv.Csv()
subset.Subset.share = 0.01
subset.Subset.held_out = {"validation": 0.2}
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import source as source_lib

HASH, LATTICE = "hash", "lattice"
# The bits of a hash, which limit the precision of shares.
_BITS = 31
_LATTICE = (1_103_515_245, 1_540_483_477)
_WORD = 1 << 32
# "lowbias32" of C. Wellons' hash prospector, 2018: shifts and factors.
_ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1))


@checks.dataclass
class Subset(source_lib.ChosenRows):
    """A source that takes about a share of the rows of another source's training split.

    A hash of the number of a row and the seed decides, without counting or keeping rows. A larger
    share contains the rows of a smaller share. `split` and the held-out splits never have a row in
    common. Other splits of the source stay as they are.

    Attributes:
      source: the source of the rows.
      share: the share of the rows, in (0, 1].
      split: the split that is cut.
      held_out: {new split: its share of the rows}; all shares, with `share`, sum to at most 1.
      seed: the seed of the draw.
      draw: "hash" draws rows independently. "lattice" serves saved runs without this setting: it
        draws rows at a distance of 2,236 together, and may hold out a whole period of the data.
    """

    source: Annotated[types.Source, source_lib.check]
    share: float
    split: Annotated[str, checks.Is(str, "name a split")] = "train"
    held_out: Annotated[Mapping[str, float], checks.Map("map splits to shares")] = (
        dataclasses.field(default_factory=dict)
    )
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
    def names(self) -> list[str]:
        """The columns of the source; [] if it has no names for them."""
        return list(getattr(self.source, "names", ()))

    @property
    def _ranges(self) -> dict[str, tuple[int, int]]:
        """{split: (first, end) of the hashes of its rows}; held-out splits start from the end."""
        ends = itertools.accumulate(
            self.held_out.values(), lambda end, part: end - part, initial=1.0
        )
        bounds = [round(end * (1 << _BITS)) for end in ends]
        held_out = zip(self.held_out, zip(bounds[1:], bounds, strict=False), strict=True)
        return {self.split: (0, round(self.share * (1 << _BITS))), **dict(held_out)}

    def _takes(self, split: str, index: Any) -> Any:
        """Return True if a split holds the row of this number, an int or numbers [B]."""
        place = _hash(index, self.seed) if self.draw == HASH else _place(index, self.seed)
        first, end = self._ranges[split]
        return (place >= first) & (place < end)

    def chooser(self, split: str) -> source_lib.Chooser | None:
        """Return a function that chooses the rows of a split; None for an uncut split."""
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


def _hash(index: Any, seed: int) -> Any:
    """Return 31 bits for the row of this number, an int or numbers, int64 [B]."""
    # The seed enters twice; if it entered once, the rows of two seeds would differ only by an xor.
    first = _mix(_mix(seed % _WORD) ^ (seed // _WORD) % _WORD)
    second = _mix(first ^ 0x9E3779B9)
    low, high = index % _WORD, index // _WORD % _WORD
    return _mix(_mix(_mix(low ^ first) ^ high) ^ second) // 2


def _mix(word: Any) -> Any:
    """Mix 32 bits, so that each bit of the result depends on all of them."""
    for shift, factor in _ROUNDS:
        word = word ^ word // (1 << shift)
        # In halves, because products of 64 bits would overflow in TensorFlow.
        word = (
            word // (1 << 16) * factor % (1 << 16) * (1 << 16) + word % (1 << 16) * factor
        ) % _WORD
    return word


def _place(index: Any, seed: int) -> Any:
    """Return 31 bits for "lattice"; the bits of neighbouring rows have only a few distances."""
    size = 1 << _BITS
    mixed = index + seed * 7919 + 1
    for factor in _LATTICE:
        mixed = (mixed % size) * factor % size
        mixed = mixed + mixed // (1 << 16)
    return mixed % size
