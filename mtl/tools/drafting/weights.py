"""Finds columns of lists with weights, such as a:0.3|b:0.7.

found = weights.find_weights(facts.values, "|")
found.keys, found.least, found.greatest                  # 214, 0.01, 1.0
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence

from mtl.data import weighted_lists

# The default of `Csv.weight_delimiter`, and the only delimiter of weights that a draft tries.
DELIMITER = ":"
# Texts such as 12:30|13:45 are times of day, not keys with weights.
_TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}")
_LOOKED_AT, _LONGEST_KEY = 1000, 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """The keys and weights in the lists of a column.

    Attributes:
      keys: the number of distinct keys in all lists of the column.
      least: the smallest weight.
      greatest: the largest weight.
    """

    keys: int
    least: float
    greatest: float


def find_weights(texts: Iterable[str], delimiter: str) -> Found | None:
    """Return the keys and weights of a column; None if its texts are not lists with weights.

    Texts that all have the same keys, such as lat:52|lon:13, are objects, not lists with weights.

    Args:
      texts: all distinct texts of a column, without texts that mean a missing value.
      delimiter: the character between two values of a list.
    """
    texts = list(texts)
    if not _are_lists(texts, delimiter):
        return None
    lists = [_split(text, delimiter) for text in texts]
    keys = [[key for key, _ in pairs] for pairs in lists]
    if not _are_categories(keys):
        return None
    numbers = [float(weight) for pairs in lists for _, weight in pairs]
    distinct = set(itertools.chain(*keys))
    return Found(keys=len(distinct), least=min(numbers), greatest=max(numbers))


def _are_categories(keys: Sequence[Sequence[str]]) -> bool:
    """Return True if keys are like categories: short, repeated, and not the same in all lists."""
    distinct = set(itertools.chain(*keys))
    are_varied = len(set(map(frozenset, keys))) > 1
    are_repeated = len(distinct) < sum(map(len, keys)) / 2
    return are_varied and are_repeated and max(map(len, distinct)) < _LONGEST_KEY


def _split(text: str, delimiter: str) -> list[tuple[str, str]]:
    """Return (key, weight) for each value of a list."""
    parts = [part.rpartition(DELIMITER) for part in text.split(delimiter) if part]
    return [(key, weight) for key, _, weight in parts]


def _are_lists(texts: Sequence[str], delimiter: str) -> bool:
    """Return True if all texts have weights, and some of them several values."""
    some = texts[:_LOOKED_AT]
    joined = [text for text in some if delimiter in text]
    if delimiter == DELIMITER or len(joined) < max(0.2 * len(some), 2):
        return False
    pattern = weighted_lists.make_form(delimiter, DELIMITER, 0).pattern
    # Test all texts below, because training fails at a single row of another form.
    are_times = all(_TIME.fullmatch(part) for text in some for part in text.split(delimiter))
    return not are_times and all(re.fullmatch(pattern, text) for text in texts)
