"""Chooses how each column of a table becomes an input, or why the column is left out.

chosen = inputs.choose_input(facts, table, "|")
chosen.dtype, chosen.parts               # "float32", ("numbers_with_gaps", "bins")
chosen.why                               # "number, 18 to 90"
"""

import dataclasses
import functools
import re
from collections.abc import Sequence

import numpy as np

from mtl.tools.drafting import amounts, columns, dates, inspection, lines, weights

_ID_NAME = re.compile(r"(?:^|[_\W])(?:id|ids|uuid|guid)$|^(?:key|index|idx|unnamed.*)$|Id$", re.I)
# Names of columns such as "user": rows with the same value in such a column may belong together.
_KEY_NAME = re.compile(
    r"(?:^|[_\W])(?:user|customer|client|patient|person|member|player|visitor|household|session|"
    r"device|account|subject|student|employee|driver|author|key)s?$",
    re.I,
)
# Texts of digits and a few other characters, such as 9h 5m, 13:45, 0x1F, 1_000, 12 1/2, 3 to 5.
_AMOUNT = re.compile(
    r"[+-]?\d+(?:[ :_/-]?(?:h|hr|hrs|m|min|mins|s|sec|d|AM|PM|am|pm|\d+|x[0-9a-f]+))+"
)
# A column looks like an id if at least this share of its values is distinct. If the name of the
# column suggests an id, half of `_DISTINCT` is enough.
_DISTINCT = 0.95
_WORDS_OF_TEXT = 3.0
# The largest number of distinct whole numbers that also become categories, and the least number of
# rows for each of them on average. With fewer than 500 rows for each number, an embedding vector
# for each number would learn mostly noise.
_FEW_VALUES, _ROWS_OF_VALUE = 50, 500
# The largest vocabulary of a column; a column with more distinct values is hashed.
_MOST_CATEGORIES = 10_000
_MOST_BUCKETS = 1 << 20
_SKEWED = 2.0
# float32 holds all whole numbers up to this one.
_LARGEST_EXACT = 2**24
# The number that `features.TimeParts` reads as a missing time.
_NO_TIME = -1
_WITH_WEIGHTS = " with weights"
LIST_DELIMITERS = "|;^~\x02"
# Characters that may separate the values of a list, but also occur in plain texts, so that the user
# has to decide.
_DOUBTFUL_DELIMITERS = ",/: "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
    """How a column becomes an input of the model, or why it does not.

    Attributes:
      name: the name of the column.
      dtype: the type of the field: "int64", "float32" or "string"; "list" for lists of texts; "list
        of int64" for lists of integers; for lists with weights, one of these two followed by " with
        weights"; "" if the column is left out.
      parts: the parts of the gin file that read the column, such as "numbers" and "categories".
      why: a few words that describe the input, or that say why the column is left out.
      doubt: a sentence that asks the user to check something; "" if there is nothing to check.
      default: the value that replaces a missing value: "nan" for numbers, "" for texts, -1 for
        times that are numbers; None for lists and for columns without missing values.
      times: the form in which the column writes times; None if the column does not contain times.
    """

    name: str
    dtype: str = ""
    parts: tuple[str, ...] = ()
    why: str
    doubt: str = ""
    default: str | int | None = None
    times: dates.Times | None = None


def choose_input(
    facts: columns.Facts, table: inspection.Inspection, delimiter: str, keep: bool = False
) -> Input:
    """Choose how a column becomes an input.

    Args:
      facts: the facts of the column.
      table: the facts of the table.
      delimiter: the character between two values of a list.
      keep: True to use a column even if it looks like an id, a date, or numbers among other texts.
    """
    chosen = _choose_first(facts, table, delimiter, keep)
    if chosen:
        return chosen
    if facts.name in table.dialect.lists:
        is_text = table.dialect.lists[facts.name] == "string"
        return _choose_list(facts, "", "list" if is_text else "list of int64")
    if facts.is_quantity:
        return _choose_number(facts, table)
    doubt = _doubt_words(facts, table.dialect)
    if not doubt and facts.distinct > _FEW_VALUES and _is_amount(facts):
        text = next(iter(facts.values))
        doubt = f"{facts.name!r} is read as text. If {text!r} is an amount, write it as a number."
    return _choose_text(facts, table, delimiter, doubt)


def _choose_first(
    facts: columns.Facts, table: inspection.Inspection, delimiter: str, keep: bool
) -> Input | None:
    """Return the use of a column that is left out, or that has times or weights; else None."""
    tests = [_leave_empty, _leave_infinite, _leave_quoted]
    # Look for lists with weights first: nearly all of their texts differ, so
    # they would look like ids.
    tests += [functools.partial(_choose_weights, delimiter=delimiter)]
    # Look for times before ids, because numbers that are times would look like ids.
    tests += [] if keep else [_choose_times, _leave_words, _leave_ids]
    return next((chosen for test in tests if (chosen := test(facts, table))), None)


def _leave_empty(facts: columns.Facts, table: inspection.Inspection) -> Input | None:
    name = facts.name
    if facts.kind == "empty":
        return Input(name=name, why="left out: empty in all rows")
    if facts.distinct == 1 and not facts.missing:
        value = next(iter(facts.values))
        return Input(name=name, why=f"left out: always {value!r}")
    if not name or re.search(r"[\x00-\x1f]", name):
        # pandas writes the index of a DataFrame as a column without a name.
        is_index = not name and _is_dense(facts)
        reason = "the number of a row" if is_index else "the column has no name"
        return Input(name=name, why=f"left out: {reason}")
    return None


def _leave_infinite(facts: columns.Facts, table: inspection.Inspection) -> Input | None:
    if facts.name in table.dialect.numbers and any(map(columns.is_infinite, facts.marks)):
        doubt = (
            f"{facts.name!r} holds infinite numbers. "
            "Write nulls or finite numbers to use the column."
        )
        why = "left out: infinite numbers, which spoil a mean"
        return Input(name=facts.name, why=why, doubt=doubt)
    if facts.name in table.dialect.numbers and facts.kind == "text":
        why = "left out: numbers beyond int64 or float32"
        doubt = (
            f"{facts.name!r} holds {why.removeprefix('left out: ')}. Write texts to use the column."
        )
        return Input(name=facts.name, why=why, doubt=doubt)
    return None


def _choose_weights(
    facts: columns.Facts, table: inspection.Inspection, delimiter: str
) -> Input | None:
    """Return the input for a column of lists with weights; None for other columns."""
    dtype = table.dialect.lists.get(facts.name, "list")
    is_stored = dtype.endswith(_WITH_WEIGHTS)
    # Texts in JSON are never lists. `arrow.Arrow` splits texts by the default
    # delimiters of `csv.Csv`.
    if not is_stored and (facts.kind != "text" or dtype != "list" or table.dialect.is_json):
        return None
    found = weights.find_weights(facts.values, "|" if table.dialect.is_arrow else delimiter)
    if found is None:
        why = "left out: objects, which do not look like lists with weights"
        return Input(name=facts.name, why=why) if is_stored else None
    return _use_weights(facts.name, found, is_int=dtype.startswith("int64"))


def _use_weights(name: str, found: weights.Found, is_int: bool) -> Input:
    """Return the input for a column of lists with weights."""
    # A weighted mean refuses weights below 0.
    kind = "weighted" if found.least >= 0 else "signed"
    part = "hashes" if found.keys > _MOST_CATEGORIES else "categories"
    spread = f"weights {_short(found.least)} to {_short(found.greatest)}"
    return Input(
        name=name,
        dtype=("list of int64" if is_int else "list") + _WITH_WEIGHTS,
        parts=(f"{kind}_{part}",),
        why=f"list with weights, {found.keys:,} values, {spread}",
    )


def _leave_quoted(facts: columns.Facts, table: inspection.Inspection) -> Input | None:
    if not is_odd_in_json(facts, table):
        return None
    doubt = f"{facts.name!r} holds texts of numbers. To use the column, write numbers or null."
    return Input(name=facts.name, why="left out: numbers in texts of JSON", doubt=doubt)


def is_odd_in_json(facts: columns.Facts, table: inspection.Inspection) -> bool:
    """Return True if a column of JSON holds numbers as texts that `JsonLines` cannot read.

    `JsonLines` cannot read texts of numbers with units, or texts of numbers in a column with
    missing values.
    """
    is_text = table.dialect.is_json and facts.name not in table.dialect.numbers
    return is_text and facts.is_number and bool(facts.form or facts.missing)


def _choose_times(facts: columns.Facts, table: inspection.Inspection) -> Input | None:
    """Return the input for a column of times, in units that repeat; None for other columns."""
    times = dates.find_times(facts, table.dialect.time_forms.get(facts.name, ""))
    if times is None:
        return None
    name, doubt = facts.name, _doubt_times(facts, times)
    description = f"a time, such as {next(iter(facts.values))}"
    is_stored = name in table.dialect.numbers
    if not times.units or (is_stored and facts.kind == "float"):
        fix = " To use the column, write whole numbers or texts." if times.units else ""
        why = f"left out: {description}; a model in use meets later times"
        return Input(name=name, why=why, doubt=f"{doubt}{fix}", times=times)
    default: str | int = _NO_TIME if is_stored else ""
    has_zones = dates.have_zones(facts, times.form or "")
    zones = ", its clock as written, whatever the zone" * has_zones
    # A client that sends UTC would shift all hours without a word.
    doubt += " Their zones are ignored: new rows need the zone of these rows." * has_zones
    return Input(
        name=name,
        dtype="int64" if is_stored else "string",
        parts=("times",),
        why=f"{description}{zones}: by {', '.join(times.units)}",
        doubt=doubt,
        default=default if facts.missing else None,
        times=times,
    )


def _doubt_times(facts: columns.Facts, times: dates.Times) -> str:
    name, example = facts.name, next(iter(facts.values))
    if times.form is None:
        doubt = f"A draft cannot read times such as {example!r} in {name!r}. Write them as "
        return (
            f"{doubt}2024-05-31: then --time {name!r} tests on the latest rows, as in production."
        )
    doubt = f"Times in {name!r}: --time {name!r} tests on the latest rows, as in production."
    is_unsure = facts.is_number and not dates.is_named(name)
    return f"{doubt} If they are not times: --keep {name!r}" if is_unsure else doubt


def _leave_words(facts: columns.Facts, table: inspection.Inspection) -> Input | None:
    """Leave out a column of numbers and words: categories would lose the numbers' order."""
    if not facts.words or facts.distinct <= _FEW_VALUES:
        return None
    return Input(
        name=facts.name,
        why="left out: numbers, mixed with other texts",
        doubt=_doubt_words(facts, table.dialect),
    )


def _doubt_words(facts: columns.Facts, dialect: lines.Dialect) -> str:
    """Return a doubt about words in a column of numbers; "" if there are no words."""
    if not facts.words:
        return ""
    words = ", ".join(map(repr, facts.words))
    flags = dialect.ask_missing(*facts.words)
    doubt = f"Most values of {facts.name!r} are numbers, but not {words}."
    return f"{doubt} If they mean a missing value: {flags}"


def _leave_ids(facts: columns.Facts, table: inspection.Inspection) -> Input | None:
    if not _is_id(facts, table):
        return None
    why = f"left out: an id, {facts.distinct:,} values in {_counted_rows(facts, table):,} rows"
    # Texts of letters and digits, such as 9h 5m, may also be amounts that no reader understands.
    some = next(iter(facts.values))
    is_odd = facts.kind == "text" and re.search(r"[0-9]", some) and _is_amount(facts)
    doubt = f"{facts.name!r} is left out as an id. If {some!r} is an amount, write it as a number."
    return Input(name=facts.name, why=why, doubt=doubt if is_odd else "")


def _is_amount(facts: columns.Facts) -> bool:
    """Return True if the texts may be durations, times of day, or numbers in another form."""
    some = list(facts.values)[:100]
    return all(_AMOUNT.fullmatch(text) for text in some)


def _choose_number(facts: columns.Facts, table: inspection.Inspection) -> Input:
    numbers = table.numbers(facts.name)
    part, bins = "numbers", "bins"
    description = f"{_short(facts.least)} to {_short(facts.greatest)}"
    if _is_heavy(numbers[np.isfinite(numbers)]):
        part, bins, description = "logs", "log_bins", f"{description}, heavy tail: by logarithm"
    parts = [f"{part}_with_gaps" if facts.missing else part]
    are_categories = _are_categories(facts)
    if are_categories:
        parts.append("categories")
        description += f", {facts.distinct} values: as categories too"
    elif facts.distinct > 2:
        parts.append(bins)
    is_float = not are_categories and _may_get_fractions(facts, table.dialect)
    return Input(
        name=facts.name,
        dtype="float32" if is_float else "int64",
        parts=tuple(parts),
        why=f"number, {description}" + (f", written as in {facts.written!r}" if facts.form else ""),
        doubt=_doubt_sentinel(facts, table.dialect),
        default="nan" if facts.missing else None,
    )


def _are_categories(facts: columns.Facts) -> bool:
    """Return True for few whole numbers with many rows for each; gaps would make them floats."""
    is_int = facts.kind == "int" and not facts.missing
    has_rows = facts.present >= _ROWS_OF_VALUE * facts.distinct
    return is_int and has_rows and 2 < facts.distinct <= _FEW_VALUES


def _may_get_fractions(facts: columns.Facts, dialect: lines.Dialect) -> bool:
    """Return True if a column of numbers has fractions or gaps, or later rows may have fractions.

    Rows in which a column of floats has a fraction may come after the table of the draft.
    """
    if facts.kind == "float" or facts.missing:
        return True
    is_exact = max(-facts.least, facts.greatest) <= _LARGEST_EXACT
    return is_exact and facts.name in dialect.floats


def _choose_text(
    facts: columns.Facts, table: inspection.Inspection, delimiter: str, doubt: str
) -> Input:
    if is_list_of(facts, delimiter):
        return _choose_list(facts, delimiter, "list")
    name, default = facts.name, "" if facts.missing else None
    doubt = doubt or _doubt_lists(facts, table)
    if _count_words(facts) >= _WORDS_OF_TEXT and facts.distinct > _FEW_VALUES:
        why = f"text, {_count_words(facts):.0f} words on average"
        parts = ("texts",)
        return Input(name=name, dtype="string", parts=parts, why=why, default=default, doubt=doubt)
    about = "" if facts.is_counted else "more than "
    why = f"category, {about}{facts.distinct:,} values"
    broken = sum(map(has_break, facts.values))
    if facts.distinct > _MOST_CATEGORIES or broken == facts.distinct:
        parts, why = ("hashes",), f"{why}: hashed"
    else:
        parts = ("categories",)
        why += f", {broken:,} of them unknown to the model because of a line break" * (broken > 0)
    return Input(name=name, dtype="string", parts=parts, why=why, default=default, doubt=doubt)


def has_break(text: str) -> bool:
    """Return True if a text has a line break, so that no vocabulary holds it."""
    return "\n" in text or "\r" in text


def _doubt_lists(facts: columns.Facts, table: inspection.Inspection) -> str:
    """Return a doubt about texts that may be lists; "" if there is no doubt."""
    some = list(facts.values)[:1000]
    if sum(text.startswith("[") and text.endswith("]") for text in some) > 0.9 * len(some):
        fix = "Write a|b|c, or lists in a Parquet file."
        return f"{facts.name!r} holds lists such as {some[0]!r}, which are read as one text. {fix}"
    for delimiter in LIST_DELIMITERS + _DOUBTFUL_DELIMITERS:
        parts = [text.split(delimiter) for text in some]
        are_sets = all(len(values) == len({*values}) for values in parts)
        if are_sets and are_lists(some, delimiter):
            is_in_use = delimiter == table.dialect.delimiter
            fix = f"--list_delimiter {delimiter!r}" if not is_in_use else "write a|b|c."
            fix = 'write ["a", "b"].' if table.dialect.is_json else fix
            sentence = f"{facts.name!r} is read as one text, such as {some[0]!r}."
            return f"{sentence} If it is a list between {delimiter!r}: {fix}"
    return ""


def _choose_list(facts: columns.Facts, delimiter: str, dtype: str) -> Input:
    parts = (part.strip() for text in facts.values for part in text.split(delimiter or "|"))
    values = set(filter(None, parts))
    part = "hashes" if len(values) > _MOST_CATEGORIES else "categories"
    why = f"list, {len(values):,} values" + (f" between {delimiter!r}" if delimiter else "")
    return Input(name=facts.name, dtype=dtype, parts=(part,), why=why)


def count_buckets(largest: int) -> int:
    """Return a number of hash buckets with which collisions are rare.

    The number of buckets is the smallest power of two that is at least 2 * `largest`, but at most
    2**20.

    Args:
      largest: the largest number of distinct values in a column.
    """
    return min(1 << (2 * largest - 1).bit_length(), _MOST_BUCKETS)


def _counted_rows(facts: columns.Facts, table: inspection.Inspection) -> int:
    return facts.present if facts.is_counted else len(table.places)


def _is_id(facts: columns.Facts, table: inspection.Inspection) -> bool:
    rows = sum(facts.values.values())
    # With few rows, all values may differ by chance.
    if rows < 20 or facts.kind == "float":
        return False
    share, is_named = facts.distinct / rows, _ID_NAME.search(facts.name) is not None
    if share < (0.5 if is_named else _DISTINCT):
        return False
    if facts.kind == "int" and not facts.is_code:
        # float64 cannot represent all whole numbers above 2^53, so such numbers are more likely ids
        # than quantities.
        return is_named or _is_dense(facts) or facts.greatest > 2**53
    return _count_words(facts) < _WORDS_OF_TEXT


def _is_dense(facts: columns.Facts) -> bool:
    """Return True for distinct whole numbers with few gaps, such as the numbers of rows."""
    is_whole = facts.kind == "int" and facts.distinct == sum(facts.values.values())
    return is_whole and facts.greatest - facts.least < 1.1 * facts.rows


def looks_like_key(facts: columns.Facts) -> bool:
    """Return True if rows with the same value in the column may belong together."""
    # The column has more than 50 distinct values, each in more than two rows on average.
    several = facts.rows > 2 * facts.distinct > 100
    is_named = _ID_NAME.search(facts.name) or _KEY_NAME.search(facts.name)
    return several and facts.kind != "float" and is_named is not None


def _count_words(facts: columns.Facts) -> float:
    some = list(facts.values)[:1000]
    return sum(len(text.split()) for text in some) / max(len(some), 1)


def is_list_of(facts: columns.Facts, delimiter: str) -> bool:
    """Return True if the texts of a column are lists of repeated values with this delimiter."""
    return facts.kind == "text" and are_lists(list(facts.values)[:1000], delimiter)


def are_lists(some: Sequence[str], delimiter: str) -> bool:
    """Return True if distinct texts are lists of repeated values with this delimiter.

    Args:
      some: some distinct texts of a column.
      delimiter: the character between two values.
    """
    joined = [text for text in some if delimiter in text]
    if len(joined) < max(0.2 * len(some), 2):
        return False
    parts = [part for text in some for part in text.split(delimiter)]
    return len(set(parts)) < len(parts) / 2 and max(map(len, parts)) < 40


def _is_heavy(numbers: np.ndarray) -> bool:
    """Return True if numbers are skewed, and a logarithm at least halves the skew."""
    # With few numbers, the skew may be chance.
    if len(numbers) < 100:
        return False
    plain = amounts.measure_skew(numbers)
    logged = amounts.measure_skew(np.sign(numbers) * np.log1p(np.abs(numbers)))
    return abs(plain) > _SKEWED and abs(logged) < abs(plain) / 2


def _doubt_sentinel(facts: columns.Facts, dialect: lines.Dialect) -> str:
    """Return a doubt about a frequent value such as -999, which may mean a missing value."""
    for text, count in facts.values.items():
        if re.fullmatch(r"-9+(?:\.0*)?|9{3,}(?:\.0*)?", text) and count > 0.005 * facts.rows:
            return (
                f"{text} of {facts.name!r}, in {count:,} rows, may mean a missing value: "
                f"{dialect.ask_missing(text)}"
            )
    return ""


def _short(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e15 else f"{number:.4g}"
