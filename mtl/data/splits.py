"""A source that divides one split by shares, keys or classes, or into cross-validation folds.

pipeline.Pipeline.source = @splits.Splits()
pipeline.Pipeline.eval_split = "validation"
splits.Splits.source = @csv.Csv()
splits.Splits.shares = {"train": 0.8, "validation": 0.1, "test": 0.1}
splits.Splits.keys = ["user"]                       # or splits.Splits.stratify = "income"

fold = 0                                            # --gin_param "fold = 3"
splits.Splits.folds = 5
splits.Splits.fold = %fold

Imagine a circle on which each row has a position, and each split has an arc. The position of a row
is a hash of its number, a hash of its keys, or the rank of the row in its class.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import chosen_rows
from mtl.data import source as source_lib
from mtl.deferred import tf

# Each row gets a position from 0 to `PLACES - 1`, and each split takes a range of positions. The
# number of positions limits the precision of the shares of splits.
PLACES = 1 << 31
# Hashes have 32 bits, in int64 tensors.
_WORD = 1 << 32
# The shifts and factors of the hash "lowbias32": C. Wellons, hash prospector, 2018.
_ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1))
# The golden ratio as a fraction of 2^32.
_GOLDEN = 0x9E3779B9
# A whole number that is written as a float, such as 7.0.
_WHOLE = r"^([+-]?[0-9]+)\.0*$"
# This text separates several keys in the input of the hash.
_SEPARATOR = "\x1f"

Shares = Annotated[Mapping[str, float], checks.Map("map splits to shares")]


class Arc(NamedTuple):
    """The arc of a split: a range of row positions, which may wrap around to 0.

    Attributes:
      first: the first position of the range, modulo `PLACES`.
      length: the number of positions.
    """

    first: int
    length: int

    def holds(self, places: Any) -> Any:
        """Return a mask that is True for row positions in the split's range.

        Args:
          places: row positions: an int, or int64 [B] of NumPy or TensorFlow.

        Returns:
          The mask: a bool for an int, or bool [B] of NumPy or TensorFlow, like `places`.
        """
        return (places - self.first) % PLACES < self.length


@checks.dataclass
class Splits(chosen_rows.ChosenRows):
    """A source that divides one split of another source into several splits.

    Equal settings give equal splits on every machine. No row is in two splits.

    | settings | a split has |
    | -- | -- |
    | shares | about its share of the rows, drawn by a hash of their numbers and the seed |
    | keys | about its share of the keys, with all rows of each key |
    | stratify | its share of each class, up to rounding to a whole row |
    | folds, fold | its share of the rows outside of the fold; `fold_split` has the rows of the fold
    |

    With several keys, rows are in the same split if they agree in all keys. The keys 7 and 7.0 are
    equal. For a row without any key, a hash of the row number draws the split. Rows without a label
    form a class. A new run logs how many rows are in no split.

    `stratify` reads all labels of the split once, and keeps eight bytes in memory for each row.

    Attributes:
      source: the source of the rows.
      shares: {split: share of the rows}; the sum is at most 1. With folds, a share refers to the
        rows outside of the fold, and the default is {"train": 1}.
      keys: the fields whose equal values keep rows in the same split.
      stratify: a label; all splits get equal proportions of its classes. With `stratify = ""`,
        splits ignore labels.
      label_type: the type of the label `stratify` in the Spec, int64 or string.
      folds: the number of folds, at least 2; None disables folds.
      fold: the index, from 0, of the fold whose rows form the split `fold_split`.
      fold_split: the name of the split that consists of the rows of the fold.
      split: the split that is divided; other splits of the source are unchanged.
      seed: the seed of the random positions of the rows, which decide the splits.
    """

    source: Annotated[types.Source, source_lib.check]
    shares: Shares = dataclasses.field(default_factory=dict)
    keys: checks.Names = ()
    stratify: Annotated[str, checks.Is(str, "name a field")] = ""
    label_type: Annotated[str, checks.OneOf(["int64", "string"])] = "int64"
    folds: Annotated[int, checks.AtLeast(2)] | None = None
    fold: checks.Natural = 0
    fold_split: Annotated[str, checks.Is(str, "name a split")] = "test"
    split: Annotated[str, checks.Is(str, "name a split")] = "train"
    seed: int = 1

    def __post_init__(self):
        where = "Splits.shares"
        rule = "map splits to shares, such as {'train': 0.9, 'test': 0.1}"
        checks.require(self.shares or self.folds, where, rule, dict(self.shares))
        check_shares(where, self.shares)
        is_one = not (self.keys and self.stratify)
        checks.require(is_one, "Splits.stratify", "be empty if Splits.keys is set", self.stratify)
        if self.folds is None:
            rule = "be 0 if Splits.folds is not set"
            checks.require(self.fold == 0, "Splits.fold", rule, self.fold)
        else:
            rule = f"be a fold of 0 to {self.folds - 1}"
            checks.require(self.fold < self.folds, "Splits.fold", rule, self.fold)
            rule = f"leave out the split of the fold, {self.fold_split!r}"
            checks.require(self.fold_split not in self.shares, where, rule, dict(self.shares))
        for split in self.arcs:
            rule = f"name no other split of the source than {self.split!r}, which is cut"
            is_new = split == self.split or split not in chosen_rows.list_splits(self.source)
            checks.require(is_new, where, rule, split)

    @functools.cached_property
    def arcs(self) -> dict[str, Arc]:
        """{split: its arc, a range of row positions}."""
        if self.folds is None:
            return lay_arcs(self.shares, 0, PLACES)
        start, end = (fold * PLACES // self.folds for fold in (self.fold, self.fold + 1))
        others = lay_arcs(self.shares or {self.split: 1.0}, end, PLACES - (end - start))
        return {**others, self.fold_split: Arc(start, end - start)}

    @property
    def key_types(self) -> dict[str, str]:
        """{key or label of `stratify`: type}."""
        kinds = {key: self.find_key_type(key) for key in self.keys}
        return {**kinds, **({self.stratify: self.label_type} if self.stratify else {})}

    def find_choice(self, split: str) -> chosen_rows.Choice | None:
        """Return the rule that selects the rows of a split; None if the split is unchanged.

        Raises:
          UserError: `split` is the split that is divided, and no new split has its name; or
            `stratify` is set, and no row is in the new split.
        """
        if split in self.arcs:
            choice = self._choose_arcs([self.arcs[split]])
            if self.stratify:
                rule, rows = "hold a row", len(self._places)
                is_filled = bool(self.arcs[split].holds(self._places).any())
                checks.require(is_filled, f"Splits: split {split!r} of {rows} rows", rule, 0)
            return choice
        # The original split is not available, because it also holds the rows of the new splits.
        checks.require(split != self.split, "Splits.shares", f"have {split!r}", dict(self.shares))
        return None

    def _choose_arcs(self, arcs: Sequence[Arc]) -> chosen_rows.Choice:
        """Return a rule that selects the rows whose positions lie in one of several ranges."""

        def takes(numbers: Any, texts: Mapping[str, Any]) -> Any:
            if self.keys:
                places = hash_keys([texts[key] for key in self.keys], numbers, self.seed)
            else:
                places = hash_rows(numbers, self.seed)
            return _hold(arcs, places)

        if self.stratify:
            return chosen_rows.choose_by_mask(_hold(arcs, self._places))
        return chosen_rows.Choice(takes, self.keys)

    @functools.cached_property
    def _places(self) -> np.ndarray:
        """The positions of all rows, which decide their splits if `stratify` is set, int64 [N]."""
        labels = read_labels(self.source, self.split, self.stratify, self.label_type)
        return rank_rows(labels, self.seed)

    def describe_left_out(self) -> list[str]:
        """Return a warning if some rows are in no split, because the shares sum to less than 1."""
        if sum(arc.length for arc in self.arcs.values()) >= PLACES:
            return []
        rows, num_assigned = self.count_rows(self._choose_arcs(list(self.arcs.values())))
        share = (
            f"{rows - num_assigned:,} of {rows:,} rows ({(rows - num_assigned) / max(rows, 1):.1%})"
        )
        total = sum(self.shares.values())
        return [f"{share} are in no split: Splits.shares sum to {total:.6g}."] * (
            num_assigned < rows
        )


def check_shares(where: str, shares: Mapping[str, float]) -> None:
    """Fail unless shares are above 0 and sum to at most 1.

    Args:
      where: the name of the setting, with which the error message begins.
      shares: {split: share}.

    Raises:
      UserError: a share is not above 0, or the sum exceeds 1.
    """
    for split, share in shares.items():
        checks.positive(f"{where}[{split!r}]", share)
    total = sum(shares.values())
    checks.require(total <= 1 + 1e-9, where, "sum to at most 1", total)


def _hold(arcs: Sequence[Arc], places: Any) -> Any:
    """Return the mask of the positions on one of the arcs, bool [B]."""
    return functools.reduce(operator.or_, [arc.holds(places) for arc in arcs])


def lay_arcs(shares: Mapping[str, float], first: int, length: int) -> dict[str, Arc]:
    """Give each split a range of row positions; the ranges follow each other.

    Args:
      shares: {split: share of the positions in `length`}.
      first: the row position at which the first range starts.
      length: the number of row positions that the shares divide.

    Returns:
      {split: its range of row positions}.
    """
    ends = [round(end * length) for end in itertools.accumulate(shares.values(), initial=0.0)]
    pairs = zip(shares, itertools.pairwise(min(end, length) for end in ends), strict=True)
    return {split: Arc(first + start, end - start) for split, (start, end) in pairs}


def hash_rows(numbers: Any, seed: int) -> Any:
    """Return the positions of rows, which decide their splits: hashes of row numbers and seed.

    Args:
      numbers: the row numbers: an int, or int64 [B] of NumPy or TensorFlow.
      seed: the seed, which changes the positions of all rows.

    Returns:
      Positions below `PLACES`, of the same type as `numbers`.
    """
    # The hash mixes the seed into the row number twice. If the hash mixed in the seed only once,
    # the hashes of two seeds would differ by a constant xor.
    first = _mix(_mix(seed % _WORD) ^ (seed // _WORD) % _WORD)
    second = _mix(first ^ _GOLDEN)
    low, high = numbers % _WORD, numbers // _WORD % _WORD
    return _mix(_mix(_mix(low ^ first) ^ high) ^ second) // 2


def _mix(word: Any) -> Any:
    """Mix 32 bits, so that each bit of the result depends on all bits of the word."""
    for shift, factor in _ROUNDS:
        word = word ^ word // (1 << shift)
        # Multiply in two halves, because a product of two 32-bit numbers would overflow int64.
        word = (
            word // (1 << 16) * factor % (1 << 16) * (1 << 16) + word % (1 << 16) * factor
        ) % _WORD
    return word


def hash_keys(keys: Sequence[tf.Tensor], numbers: tf.Tensor, seed: int) -> tf.Tensor:
    """Return the positions of rows, which decide their splits: hashes of keys, int64 [B].

    Args:
      keys: the texts of each key field, [B].
      numbers: the row numbers, [B], which replace the keys of rows without any key.
      seed: the seed, which changes the positions of all rows.
    """
    is_absent = [tf.equal(tf.strings.strip(texts), "") for texts in keys]
    key_texts = [tf.strings.regex_replace(texts, _WHOLE, r"\1") for texts in keys]
    row_texts = tf.strings.join(["row ", tf.strings.as_string(numbers)])
    has_none = functools.reduce(tf.logical_and, is_absent)
    texts = tf.where(has_none, row_texts, tf.strings.join(key_texts, _SEPARATOR))
    # This op uses FarmHash's Fingerprint64, which gives the same hashes on every machine.
    return tf.strings.to_hash_bucket_fast(tf.strings.join([f"{seed}:", texts]), PLACES)


def rank_rows(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return row positions that spread the rows of each class evenly over all positions.

    A range of positions that is the share s of all positions contains s n of the n rows of a class,
    up to rounding. The first rows of different classes have different positions, so that a small
    range does not miss all small classes.

    Args:
      labels: the class of each row, [N].
      seed: the seed of the random positions of the rows.

    Returns:
      The positions of the N rows, int64 [N].
    """
    places = np.zeros(len(labels), np.int64)
    _, classes = np.unique(labels, return_inverse=True)
    hashes = hash_rows(np.arange(len(labels)), seed)
    order = np.lexsort([hashes, classes])
    sizes = np.bincount(classes)
    ranks = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # Multiples of the golden ratio, modulo 1, are spread evenly between 0 and 1.
    starts = (hash_rows(np.arange(1), seed)[0] + np.arange(len(sizes)) * _GOLDEN) % _WORD
    # The position is (rank + start / 2^32) / size of the circle, computed in whole numbers.
    ranked_places = (ranks * _WORD + np.repeat(starts, sizes)) // (2 * np.repeat(sizes, sizes))
    places[order] = ranked_places
    return places


def read_labels(source: types.Source, split: str, label: str, label_type: str) -> np.ndarray:
    """Return the labels of a split, [N]; `spec.MISSING` gives the value of an absent label.

    Args:
      source: the source of the records.
      split: the name of the split, such as "train".
      label: the name of the label field.
      label_type: "int64" or "string".

    Raises:
      UserError: a record is malformed; the error names the record.
    """
    missing = spec_lib.MISSING[label_type]
    spec = spec_lib.Spec(features={label: label_type}, labels={}, defaults={label: missing})
    try:
        parts = [values[label] for values in chosen_rows.read_fields(source, split, spec)]
    except checks.UserError as error:
        if f"field {label!r} must be int64" not in str(error):
            raise
        # Suggest `label_type`, because the type of the label in the Spec is unknown here.
        raise checks.UserError(
            f"{error} For a label of texts, set label_type = 'string'."
        ) from error
    kind = object if label_type == "string" else np.int64
    return np.concatenate([np.zeros([0], kind), *parts])
