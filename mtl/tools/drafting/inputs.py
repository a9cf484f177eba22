"""The choice how each column of a table becomes an input, or why it is left out.

chosen = inputs.choose_input(facts, found, "|")
chosen.dtype, chosen.parts               # "float32", ("numbers_with_gaps", "buckets")
chosen.why                               # "number, 18 to 90"
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from mtl.tools.drafting import columns, inspection

_ID_NAME = re.compile(r"(?:^|[_\W])(?:id|ids|uuid|guid|key|index|idx)$|^unnamed|Id$", re.IGNORECASE)
_TIME_NAME = re.compile(r"date|time|timestamp|(?:^|_)ts$|_at$", re.IGNORECASE)
# An id has at least this share of distinct values; half, if the name of the column suggests an id.
_DISTINCT = 0.95
_WORDS_OF_TEXT = 3.0
# Whole numbers with at most so many values also become categories.
_FEW_VALUES = 50
# A column with more categories is hashed.
_MOST_CATEGORIES = 10_000
_MOST_BUCKETS = 1 << 20
_SKEWED = 2.0
LIST_DELIMITERS = "|;"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
    """The use of a column.

    Attributes:
      name: the column.
      dtype: "int64", "float32" or "string" for the field, "list" of texts or "list of int64"; "" if
        the column is left out.
      parts: the parts of the gin file that read it, such as "numbers" and "categories".
      why: the reason in a few words, with figures.
      doubt: a sentence about something the user should check; "" for nothing.
      default: the value of the field in rows without one: "nan" for numbers, "" for texts; None
        for lists and for columns without missing values.
    """

    name: str
    dtype: str = ""
    parts: tuple[str, ...] = ()
    why: str
    doubt: str = ""
    default: str | None = None


def choose_input(facts: columns.Facts, found: inspection.Inspection, delimiter: str) -> Input:
    """Decide how a column becomes an input.

    Args:
      facts: the facts of the column.
      found: the facts of the table.
      delimiter: the character between two values of a list.
    """
    left_out = _leave_out(facts, found)
    if left_out:
        return left_out
    if facts.name in found.dialect.lists:
        is_text = found.dialect.lists[facts.name] == "string"
        return _choose_list(facts, "", "list" if is_text else "list of int64")
    if facts.is_number and not facts.is_code:
        return _choose_number(facts, found)
    name, doubt = facts.name, ""
    if facts.words:
        words = ", ".join(map(repr, list(facts.words)[:3]))
        doubt = f"Most of {name!r} are numbers, but not {words}: it is read as text."
        doubt += f" Where they mean a missing value: --missing {list(facts.words)[0]!r}"
    return _choose_text(facts, found, delimiter, doubt)


def _leave_out(facts: columns.Facts, found: inspection.Inspection) -> Input | None:
    """Return an input that is left out, with a reason; None if the column can be used."""
    name = facts.name
    if facts.kind == "empty":
        return Input(name=name, why="left out: empty in all rows")
    if facts.distinct == 1 and not facts.missing:
        value = next(iter(facts.values))
        return Input(name=name, why=f"left out: always {value!r}")
    odd = [mark for mark in facts.marks if columns.is_infinite(mark)]
    if odd and name in found.dialect.numbers:
        doubt = (
            f"{name!r} holds infinite numbers: write them as nulls, or as finite ones, to use it."
        )
        return Input(name=name, why="left out: infinite numbers, which spoil a mean", doubt=doubt)
    if not name or re.search(r"[\x00-\x1f]", name):
        return Input(name=name, why="left out: the column has no name")
    if facts.kind in ("time", "date") or _is_epoch(facts):
        example = next(iter(facts.values))
        why = f"left out: a date, such as {example}; a model meets later ones"
        doubt = f"Dates in {name!r}: --time {name!r} would hold out the last rows, as in use."
        return Input(name=name, why=why, doubt=doubt if facts.kind == "time" else "")
    if _is_id(facts, found):
        why = f"left out: an id, {facts.distinct:,} values in {_counted_rows(facts, found):,} rows"
        return Input(name=name, why=why)
    return None


def _choose_number(facts: columns.Facts, found: inspection.Inspection) -> Input:
    numbers = found.numbers(facts.name)
    part, told = "numbers", f"{_short(facts.least)} to {_short(facts.greatest)}"
    if _is_heavy(numbers[np.isfinite(numbers)]):
        part, told = "logs", f"{told}, heavy tail: by logarithm"
    parts = [f"{part}_with_gaps" if facts.missing else part]
    is_int = facts.kind == "int" and not facts.missing
    if facts.kind == "int" and 2 < facts.distinct <= _FEW_VALUES:
        # With gaps the numbers are floats, which cannot be categories.
        parts.append("categories" if is_int else "buckets")
        told += f", {facts.distinct} values: as {parts[-1]}" + " too" * is_int
    elif facts.distinct > _FEW_VALUES:
        parts.append("buckets")
    return Input(
        name=facts.name,
        dtype="int64" if is_int else "float32",
        parts=tuple(parts),
        why=f"number, {told}" + (f", written as in {facts.written!r}" if facts.form else ""),
        doubt=_doubt_sentinel(facts),
        default="nan" if facts.missing else None,
    )


def _choose_text(
    facts: columns.Facts, found: inspection.Inspection, delimiter: str, doubt: str
) -> Input:
    if is_list_of(facts, delimiter):
        return _choose_list(facts, delimiter, "list")
    name, default = facts.name, "" if facts.missing else None
    if _count_words(facts) >= _WORDS_OF_TEXT and facts.distinct > _FEW_VALUES:
        why = f"text, {_count_words(facts):.0f} words on average"
        return Input(name=name, dtype="string", parts=("texts",), why=why, default=default)
    about = "" if facts.is_counted else "more than "
    why = f"category, {about}{facts.distinct:,} values"
    if facts.distinct <= _MOST_CATEGORIES:
        parts = ("categories",)
    else:
        parts, why = ("hashes",), f"{why}: hashed"
    return Input(name=name, dtype="string", parts=parts, why=why, default=default, doubt=doubt)


def _choose_list(facts: columns.Facts, delimiter: str, dtype: str) -> Input:
    known = {part for text in facts.values for part in text.split(delimiter or "|") if part}
    part = "hashes" if len(known) > _MOST_CATEGORIES else "categories"
    why = f"list, {len(known):,} values" + (f" between {delimiter!r}" if delimiter else "")
    return Input(name=facts.name, dtype=dtype, parts=(part,), why=why)


def count_buckets(largest: int) -> int:
    """Return how many hash buckets keep collisions rare for `largest` categories.

    This is the smallest power of two from 2 * largest, and at most 2**20.
    """
    return min(1 << (2 * largest - 1).bit_length(), _MOST_BUCKETS)


def _counted_rows(facts: columns.Facts, found: inspection.Inspection) -> int:
    return facts.present if facts.is_counted else len(found.places)


def _is_id(facts: columns.Facts, found: inspection.Inspection) -> bool:
    rows = sum(facts.values.values())
    if rows < 20 or facts.kind == "float":
        return False
    share, is_named = facts.distinct / rows, _ID_NAME.search(facts.name) is not None
    if share < (0.5 if is_named else _DISTINCT):
        return False
    if facts.kind == "int" and not facts.is_code:
        is_dense = share == 1 and facts.greatest - facts.least < 1.1 * facts.rows
        return is_named or is_dense or facts.greatest > 2**53
    return _count_words(facts) < _WORDS_OF_TEXT


def looks_like_key(facts: columns.Facts) -> bool:
    """Return True if rows with the same value of this column may belong together."""
    several = facts.rows > 2 * facts.distinct > 100
    return several and facts.kind != "float" and _ID_NAME.search(facts.name) is not None


def _is_epoch(facts: columns.Facts) -> bool:
    if facts.kind != "int" or not _TIME_NAME.search(facts.name):
        return False
    ranges = ((19000101, 22000101), (9e8, 3e9), (9e11, 3e12))
    return any(low <= facts.least and facts.greatest < high for low, high in ranges)


def _count_words(facts: columns.Facts) -> float:
    some = list(facts.values)[:1000]
    return sum(len(text.split()) for text in some) / max(len(some), 1)


def is_list_of(facts: columns.Facts, delimiter: str) -> bool:
    """Return True if the texts are lists of repeated values with this delimiter."""
    return facts.kind == "text" and are_lists(list(facts.values)[:1000], delimiter)


def are_lists(some: Sequence[str], delimiter: str) -> bool:
    """Return True if different texts are lists of repeated values with this delimiter."""
    joined = [text for text in some if delimiter in text]
    if len(joined) < max(0.2 * len(some), 2):
        return False
    parts = [part for text in some for part in text.split(delimiter)]
    return len(set(parts)) < len(parts) / 2 and max(map(len, parts)) < 40


def _is_heavy(numbers: np.ndarray) -> bool:
    """Return True if the numbers are skewed and a logarithm at least halves the skew."""
    if len(numbers) < 100:
        return False
    plain = _skew(numbers)
    logged = _skew(np.sign(numbers) * np.log1p(np.abs(numbers)))
    return abs(plain) > _SKEWED and abs(logged) < abs(plain) / 2


def _skew(numbers: np.ndarray) -> float:
    spread = numbers.std()
    return float((((numbers - numbers.mean()) / spread) ** 3).mean()) if spread else 0.0


def _doubt_sentinel(facts: columns.Facts) -> str:
    """Return a doubt about a frequent value such as -999, which may mean a missing one."""
    for text, count in facts.values.items():
        if re.fullmatch(r"-9+(?:\.0*)?|9{3,}(?:\.0*)?", text) and count > 0.005 * facts.rows:
            return (
                f"{text} of {facts.name!r}, in {count:,} rows, may mean a missing value: "
                f"--missing={text}"
            )
    return ""


def _short(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e15 else f"{number:.4g}"
