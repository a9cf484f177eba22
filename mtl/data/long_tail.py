"""A source that makes the classes of another source long-tailed: few classes have most rows.

from mtl.data import long_tail
pipeline.Pipeline.source = @long_tail.LongTail()
long_tail.LongTail.source = @idx.Idx()
long_tail.LongTail.profile = @long_tail.Exponential()
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import chosen_rows, splits
from mtl.data import source as source_lib

_log = logging.getLogger(__name__)


class Profile(Protocol):
    """A function from the number of classes to their sizes, relative to the first class."""

    def __call__(self, num_classes: int) -> Sequence[float]:
        """Return the size of each class divided by the size of the first class."""


@checks.dataclass
class _Profile:
    factor: Annotated[float, checks.AtLeast(1)] = 100.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exponential(_Profile):
    """Class i (from 0) of C gets `factor^(-i / (C - 1))` times the rows of class 0.

    Cui, Jia, Lin, Song, and Belongie, "Class-Balanced Loss Based on Effective Number of Samples",
    2019, arXiv:1901.05555, introduced the long-tailed CIFAR with these sizes.

    Attributes:
      factor: the first class has `factor` times the rows of the last; at least 1. Most papers
        report results for a factor of 100.
    """

    def __call__(self, num_classes: int) -> Sequence[float]:
        return [self.factor ** (-i / (num_classes - 1)) for i in range(num_classes)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pareto(_Profile):
    """Class i (from 0) of C gets `(i + 1)^(-log(factor) / log(C))` times the rows of class 0.

    Liu et al., "Large-Scale Long-Tailed Recognition in an Open World", 2019, arXiv:1904.05160, drew
    the class sizes of ImageNet-LT from a Pareto distribution. Sorted by size, class sizes from a
    Pareto distribution are about a power of the rank i + 1. The setting `factor` determines the
    exponent of this power.

    Attributes:
      factor: the first class has `factor` times the rows of the last; at least 1.
    """

    def __call__(self, num_classes: int) -> Sequence[float]:
        power = math.log(self.factor) / math.log(num_classes)
        return [(i + 1) ** -power for i in range(num_classes)]


@checks.dataclass
class Step(_Profile):
    """The first classes have equal sizes; every other class has `1 / factor` times as many rows.

    Buda, Maki, and Mazurowski, "A systematic study of the class imbalance problem in convolutional
    neural networks", 2018, arXiv:1710.05381.

    Attributes:
      factor: a frequent class has `factor` times the rows of a rare class; at least 1.
      rare: the share of rare classes among all classes, in [0, 1).
    """

    rare: checks.Rate = 0.5

    def __call__(self, num_classes: int) -> Sequence[float]:
        frequent = round(num_classes * (1 - self.rare))
        return [1.0 if i < frequent else 1 / self.factor for i in range(num_classes)]


@checks.dataclass
class LongTail(chosen_rows.ChosenRows):
    """A source that drops training rows of another source, so that classes become long-tailed.

    First, each split in `held_out` takes the same number of rows from every class. Each class
    keeps, of its remaining rows, `floor(largest * share)`, where `profile` gives the share of the
    class. Rows are drawn at random, but keep their order. The classes are the labels in the split,
    sorted by id or by alphabet. Other splits of the source are unchanged. The log shows the number
    of rows of each class.

    The first use reads all labels of the split. After the first use, memory holds one byte per row
    of the split, and one more byte per row for each split in `held_out`.

    Attributes:
      source: the source of the rows.
      label: the field that holds the class; rows without a label, or with -1, are left out.
      label_type: the type of the label in the Spec, int64 or string.
      profile: a function from the number of classes to their sizes, relative to the first class.
      split: the split that becomes long-tailed.
      largest: the number of rows that the first class keeps; None means the largest number for
        which every class has enough rows.
      held_out: {new split: number of rows of each class}, such as {"validation": 50, "test": 100}.
      seed: the seed of the random draw of the rows.
      missing: further labels that count as missing, like the setting `missing` of the head.
    """

    source: Annotated[types.Source, source_lib.check]
    label: Annotated[str, checks.Is(str, "name a field")]
    label_type: Annotated[str, checks.OneOf(["int64", "string"])] = "int64"
    profile: Annotated[Profile, checks.Part("long_tail.Exponential", arguments=1)] = Exponential()
    split: Annotated[str, checks.Is(str, "name a split")] = "train"
    largest: checks.Count | None = None
    held_out: Annotated[Mapping[str, int], checks.Map("map splits to rows of each class")] = (
        dataclasses.field(default_factory=dict)
    )
    seed: checks.Natural = 1
    # The repr leaves out this setting, because a resumed run compares the repr with the saved
    # repr, which lacks the setting if an older version saved it.
    missing: Annotated[Sequence[Any], checks.Is((list, tuple), "be a list of labels")] = (
        dataclasses.field(default=(), repr=False)
    )

    def __post_init__(self):
        for split, rows in self.held_out.items():
            where = f"LongTail.held_out[{split!r}]"
            checks.is_a(where, rows, int, "be a number of rows")
            checks.positive(where, rows)
            checks.require(split != self.split, where, "be a new split", split)

    @property
    def key_types(self) -> dict[str, str]:
        """{name of the label: type}."""
        return {self.label: self.label_type}

    def find_choice(self, split: str) -> chosen_rows.Choice | None:
        """Return the rule that selects the rows of a split; None if the split is unchanged.

        Raises:
          UserError: the divided split has fewer than two classes; or a class has too few rows for
            the settings, or would keep no row.
        """
        return chosen_rows.choose_by_mask(self._masks[split]) if split in self._masks else None

    @functools.cached_property
    def _masks(self) -> dict[str, np.ndarray]:
        """{split: mask over the N rows of the original split, bool [N]}."""
        labels = splits.read_labels(self.source, self.split, self.label, self.label_type)
        marks = {mark.encode() if isinstance(mark, str) else mark for mark in self.missing}
        marks |= {spec_lib.MISSING["int64"], spec_lib.NO_ID, b""}
        classes = sorted(set(labels.tolist()) - marks)
        rule = "hold at least 2 classes"
        checks.require(len(classes) > 1, f"LongTail.label {self.label!r}", rule, classes)
        draw = np.random.default_rng(self.seed)
        # {class: row numbers in random order}. The first rows go to the held-out splits, and the
        # next rows remain in the split.
        rows = {name: draw.permutation(np.flatnonzero(labels == name)) for name in classes}
        masks, start = {}, 0
        for split, size in self.held_out.items():
            self._require(rows, [start + size] * len(rows))
            end = start + size
            masks[split] = _make_mask(
                len(labels), [class_rows[start:end] for class_rows in rows.values()]
            )
            start = end
        remaining_rows = {name: class_rows[start:] for name, class_rows in rows.items()}
        sizes = self._choose_sizes(remaining_rows)
        tail_rows = [
            class_rows[:size]
            for class_rows, size in zip(remaining_rows.values(), sizes, strict=True)
        ]
        masks[self.split] = _make_mask(len(labels), tail_rows)
        self._report(labels, masks)
        return masks

    def _choose_sizes(self, rows: Mapping[Any, np.ndarray]) -> list[int]:
        """Return the number of rows that each class keeps."""
        shares = self.profile(len(rows))
        fitting = (
            len(class_rows) / share for class_rows, share in zip(rows.values(), shares, strict=True)
        )
        # The largest size of the first class for which no class needs more rows than it has.
        largest = self.largest or math.floor(min(fitting))
        # 1e-9 corrects a product that rounding puts slightly below a whole number.
        sizes = [math.floor(largest * share + 1e-9) for share in shares]
        self._require(rows, sizes)
        fix = "Raise LongTail.largest or lower the profile's factor."
        checks.require(min(sizes) > 0, "LongTail: every class", "keep a row", sizes, fix)
        return sizes

    def _require(self, rows: Mapping[Any, np.ndarray], sizes: Sequence[int]) -> None:
        for (name, class_rows), size in zip(rows.items(), sizes, strict=True):
            where = f"LongTail: class {name!r} in split {self.split!r}"
            fix = "Lower LongTail.largest or held_out."
            checks.require(
                len(class_rows) >= size, where, f"have {size} rows", len(class_rows), fix
            )

    def _report(self, labels: np.ndarray, masks: Mapping[str, np.ndarray]) -> None:
        for split, keep in masks.items():
            counts = sorted(collections.Counter(labels[keep].tolist()).items())
            sizes = ", ".join(f"{_to_text(name)}: {count}" for name, count in counts)
            _log.info("Split %r, %d rows by class: %s", split, keep.sum(), sizes)


def _make_mask(size: int, groups: Sequence[np.ndarray]) -> np.ndarray:
    mask = np.zeros(size, bool)
    mask[np.concatenate(groups)] = True
    return mask


def _to_text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
