"""Columns of lists with weights, such as a:0.3|b:0.7.

found = weights.find_weights(facts.values, "|")
found.keys, found.least, found.greatest                  # 214, 0.01, 1.0
"""

import dataclasses
import re
from collections.abc import Iterable

from mtl.data import weighted_lists

# The default of `Csv.weight_delimiter`; a draft looks for no other.
DELIMITER = ":"
# 12:30|13:45 are times of day.
_TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}")
_LOOKED_AT, _LONGEST_KEY = 1000, 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """What the lists of a column hold.

    Attributes:
      keys: the number of distinct keys.
      least: the smallest weight.
      greatest: the largest weight.
    """

    keys: int
    least: float
    greatest: float


def find_weights(texts: Iterable[str], delimiter: str) -> Found | None:
    """Return what lists with weights hold; None if the texts are others.

    Objects that all have the same keys, such as lat:52|lon:13, are no such lists.

    Args:
      texts: all different texts of a column, without those that mean a missing value.
      delimiter: the character between two values.
    """
    texts = list(texts)
    some = texts[:_LOOKED_AT]
    joined = [text for text in some if delimiter in text]
    if delimiter == DELIMITER or len(joined) < max(0.2 * len(some), 2):
        return None
    form = weighted_lists.make_form(delimiter, DELIMITER, 0)
    # A single row of another form would end a run.
    if not all(re.fullmatch(form.pattern, text) for text in texts):
        return None
    parts = [[part for part in text.split(delimiter) if part] for text in texts]
    flat = [part for own in parts for part in own]
    pairs = [part.rpartition(DELIMITER) for part in flat]
    keys = {key for key, _, _ in pairs}
    sets = {frozenset(part.rpartition(DELIMITER)[0] for part in own) for own in parts}
    are_keys = len(sets) > 1 and len(keys) < len(flat) / 2 and max(map(len, keys)) < _LONGEST_KEY
    if not are_keys or all(map(_TIME.fullmatch, flat)):
        return None
    numbers = [float(weight) for _, _, weight in pairs]
    return Found(keys=len(keys), least=min(numbers), greatest=max(numbers))
