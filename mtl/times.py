"""Parses times in texts, and returns numbers that order them.

times.read_time("2024-5-31 9:05") < times.read_time("2024/05/31 12:00 PM")
times.read_parts("31.05.2024", times.read_form("a form", "%d.%m.%Y"))     # (2024, 5, 31, 0, 0, 0)

`read_time` returns the digits of year, month, day, hour, minute and second as one number, in UTC if
the text has an offset such as +02:00. Names of time zones and fractions of a second are ignored.
"""

import calendar
import datetime
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from mtl import checks

# Match only offsets that exist, so that 12:15-12:45 is not read as a time with an offset.
_OFFSET = (
    r"Z|\+(?:0[0-9]|1[0-4])(?::?(?:00|15|30|45))?|-(?:0[0-9]|1[01])(?::?(?:00|30))?|-12(?::?00)?"
)
PATTERN = (
    r"([0-9]{4})[-/](0?[1-9]|1[0-2])[-/](0?[1-9]|[12][0-9]|3[01])"
    r"(?:[T ]\s*([0-9]{1,2})?(?::?([0-9]{2}))?(?::?([0-9]{2}))?([.,][0-9]+)?"
    # Java adds the name of a zone, as in 2024-05-31T10:00+02:00[Europe/Berlin].
    rf"(?:\s*([AaPp])\.?[Mm]\b)?(?:\s*({_OFFSET})(?:\[.*\])?|.*))?"
)
"""Matches a time in Python and RE2; its groups are the parts from year to fraction, A or P, and the
offset from UTC.
"""

DIGITS = ("year", "month", "day", "hour", "minute", "second")
"""The parts of a time that are numbers: four digits for the year, two for each other part."""

HALF = "half"
"""The part of a time that is A for AM, or P for PM."""

OFFSET = "offset"
"""The part of a time that is its offset from UTC, such as +02:00."""

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

SINCE_1970: Mapping[str, int] = {
    "seconds": 1,
    "milliseconds": 10**3,
    "microseconds": 10**6,
    "nanoseconds": 10**9,
}
"""Forms of times that count from 1970 in UTC: {form: its units in a second}."""

# {directive of strptime: (part of the time, pattern, pattern if digits come before or after the
# part)}
_MONTH_NAME = r"([A-Za-z]{3})[a-z]*\.?"
_DIRECTIVES = {
    "Y": ("year", r"([0-9]{4})", r"([0-9]{4})"),
    "y": ("year", r"([0-9]{2})", r"([0-9]{2})"),
    "m": ("month", r"(0?[1-9]|1[0-2])", r"(0[1-9]|1[0-2])"),
    "b": ("month", _MONTH_NAME, _MONTH_NAME),
    "d": ("day", r"(0?[1-9]|[12][0-9]|3[01])", r"(0[1-9]|[12][0-9]|3[01])"),
    "H": ("hour", r"([01]?[0-9]|2[0-3])", r"([01][0-9]|2[0-3])"),
    "I": ("hour", r"(0?[0-9]|1[0-2])", r"(0[0-9]|1[0-2])"),
    "M": ("minute", r"([0-5][0-9])", r"([0-5][0-9])"),
    "S": ("second", r"([0-5][0-9])(?:[.,][0-9]+)?", r"([0-5][0-9])"),
    "p": (HALF, r"([AaPp])\.?[Mm]\.?", r"([AaPp])[Mm]"),
    "a": ("", r"[A-Za-z]+\.?,?", r"[A-Za-z]+\.?,?"),
    "z": (
        OFFSET,
        r"([+-][0-9]{2}:?[0-9]{2}|Z|[A-Z]{3,5})",
        r"([+-][0-9]{2}:?[0-9]{2}|Z|[A-Z]{3,5})",
    ),
}
LETTERS = " ".join(f"%{letter}" for letter in _DIRECTIVES)
"""The directives of strptime that a form of times may contain."""

_WITHOUT_DAY = {"month": "1", "day": "1"}


class Form(NamedTuple):
    """The form in which a column writes times.

    Attributes:
      pattern: a regular expression for Python and RE2 that matches the whole text of a time.
      groups: {part of a time: the number of its group in the pattern}.
    """

    pattern: str
    groups: Mapping[str, int]


ISO = Form(PATTERN, {**{part: group for group, part in enumerate(DIGITS, 1)}, HALF: 8, OFFSET: 9})
"""The form of ISO 8601, such as 2024-05-31 13:45, and of variants such as 2024/5/31."""


def read_form(where: str, form: str) -> Form:
    """Return the form that directives of strptime describe, such as "%d.%m.%Y %H:%M".

    Args:
      where: the name of the setting, for errors.
      form: directives among %Y %y %m %b %d %H %I %M %S %p %a and %z; "" is the form of ISO 8601.

    Raises:
      UserError: a directive is unknown, two directives give the same part, or the year is missing.
    """
    if not form:
        return ISO
    pieces = re.split(r"%(.)", form)
    pattern, groups = re.escape(pieces[0]), dict[str, int]()
    for place in range(1, len(pieces), 2):
        letter, text = pieces[place], pieces[place + 1]
        fix = "Write 31 May 2024, 13:45 as %d %b %Y, %H:%M."
        checks.require(letter in _DIRECTIVES, where, f"use {LETTERS}", f"%{letter}", fix)
        part, plain, between = _DIRECTIVES[letter]
        checks.require(part not in groups, where, "give each part once", f"%{letter}", fix)
        is_between = (place > 1 and not pieces[place - 1]) or (place + 2 < len(pieces) and not text)
        pattern += between if is_between else plain
        pattern += re.escape(text).replace("\\ ", " ")
        groups |= {part: len(groups) + 1} if part else {}
    checks.require("year" in groups, where, "give a year by %Y or %y", form)
    return Form(pattern, groups)


def check_form(where: str, form: str) -> None:
    """Fail unless a form is a unit of `SINCE_1970`, or a form that `read_form` takes.

    Args:
      where: the name of the setting, for errors.
      form: the value of the setting, such as "milliseconds" or "%d.%m.%Y".

    Raises:
      UserError: the form is neither a unit of `SINCE_1970` nor a form that `read_form` takes.
    """
    checks.is_a(where, form, str, "be a form such as '%d.%m.%Y'")
    if form in SINCE_1970:
        return
    rule = f"be '', a form such as '%d.%m.%Y', or one of {', '.join(SINCE_1970)}"
    fits = not form or "%" in form
    checks.require(fits, where, rule, form, "" if fits else checks.nearest(form, SINCE_1970))
    read_form(where, form)


def read_time(text: str, form: Form = ISO) -> float:
    """Return the digits of a time as a number, such as 20240531090500, which sorts like the time.

    Args:
      text: a time, in UTC unless it has an offset. Impossible days, such as February 30, also give
        a number.
      form: the form of the text.

    Returns:
      The digits of year, month, day, hour, minute and second in UTC; NaN if the text is not a time.
    """
    texts = _find_texts(text, form)
    parts = _to_numbers(texts) if texts else ()
    # The pattern of a month name matches any word, such as the German Mai; the month is then 0.
    if not texts or not parts[1]:
        return math.nan
    offset = texts.get(OFFSET, "")
    # A text such as 10-05 has no minute before the sign: -05 is then the minute, not an offset.
    if offset[:1] == "+" or (offset[:1] == "-" and texts.get("minute", "0")):
        parts = _shift(parts, offset)
    total = 0
    for part in parts:
        total = 100 * total + part
    return float(total)


def write_time(time: float) -> str:
    """Return a time of `read_time` as a text, such as 2024-05-31 09:05:00; "" for NaN."""
    if math.isnan(time):
        return ""
    digits = f"{time:014.0f}"
    pairs = [digits[place : place + 2] for place in range(4, 14, 2)]
    return f"{digits[:4]}-{'-'.join(pairs[:2])} {':'.join(pairs[2:])}"


def _shift(parts: tuple[int, ...], offset: str) -> tuple[int, ...]:
    """Return the parts of a time, shifted to UTC by its offset."""
    digits = f"{offset.replace(':', '')}00"
    minutes = int(f"{digits[0]}1") * (60 * int(digits[1:3]) + int(digits[3:5]))
    year, month, day, hour, minute, second = parts
    # Add days to the month, because a day such as February 30 does not exist.
    late = datetime.timedelta(days=day - 1, hours=hour, minutes=minute - minutes, seconds=second)
    try:
        moment = datetime.datetime(year, month, 1) + late
    except (ValueError, OverflowError):  # The year 0, or a year beyond 9999.
        return parts
    return moment.timetuple()[:6]


def read_parts(text: str, form: Form) -> tuple[int, ...] | None:
    """Return year, month, day, hour, minute and second of a time that is written as a text.

    Args:
      text: a time, or any other text.
      form: the form in which the time is written.

    Returns:
      (year, month, day, hour, minute, second); None if the text is not a time in this form, or if
      its day or hour does not exist.
    """
    parts = _find_parts(text, form)
    if parts is None:
        return None
    year, month, day, hour, minute, second = parts
    is_day = 1 <= month <= 12 and day <= calendar.monthrange(year, month)[1]
    # The second 60 of a minute is a leap second.
    return parts if is_day and hour < 24 and minute < 60 and second <= 60 else None


def has_zone(text: str, form: Form) -> bool:
    """Return True if a time has an offset or a zone that its form reads.

    Args:
      text: a time, or any other text.
      form: the form of the text.
    """
    return bool((_find_texts(text, form) or {}).get(OFFSET))


def _find_parts(text: str, form: Form) -> tuple[int, ...] | None:
    texts = _find_texts(text, form)
    return None if texts is None else _to_numbers(texts)


def _find_texts(text: str, form: Form) -> dict[str, str] | None:
    """Return {part of a time: its text}; None if the text does not have the form."""
    match = re.fullmatch(form.pattern, text.strip())
    if match is None:
        return None
    return {part: match.group(group) or "" for part, group in form.groups.items()}


def _to_numbers(texts: Mapping[str, str]) -> tuple[int, ...]:
    texts = {**_WITHOUT_DAY, **texts}
    parts = [_read_number(part, texts.get(part) or "0") for part in DIGITS]
    parts[3] = _read_hour(parts[3], texts.get(HALF, ""))
    return tuple(parts)


def _read_number(part: str, digits: str) -> int:
    if not digits.isdigit():
        names = {name: month for month, name in enumerate(MONTHS, 1)}
        return names.get(digits.lower(), 0)
    is_short = part == "year" and len(digits) == 2
    # POSIX reads the years 69 to 99 as 1969 to 1999, and 00 to 68 as 2000 to 2068.
    century = (2000 if int(digits) < 69 else 1900) if is_short else 0
    return int(digits) + century


def _read_hour(hour: int, half: str) -> int:
    if not half or hour > 12:
        return hour
    return hour % 12 + 12 * (half in "Pp")
