"""Times as texts: which ones are known, and in which order they come.

times.read_time("2024-5-31 9:05") < times.read_time("2024/05/31 12:00 PM")

A time is compared as a number of its digits: year, month, day, hour, minute, second. Zones and
fractions of a second do not count.
"""

import math
import re

PATTERN = (
    r"([0-9]{4})[-/](0?[1-9]|1[0-2])[-/](0?[1-9]|[12][0-9]|3[01])"
    r"(?:[T ]\s*([0-9]{1,2})?(?::?([0-9]{2}))?(?::?([0-9]{2}))?([.,][0-9]+)?"
    r"(?:\s*([AaPp])\.?[Mm]\b)?.*)?"
)
"""Year, month, day, hour, minute, second, fraction, and A or P; Python and RE2 take it alike."""

DIGITS = 6
"""How many of the groups of `PATTERN` are numbers of two digits or, at first, four."""


def read_time(text: str) -> float:
    """Return the number of a time, such as 20240531090500; NaN if the text is none."""
    found = re.fullmatch(PATTERN, text.strip())
    if found is None:
        return math.nan
    total = 0
    for place, digits in enumerate(found.groups()[:DIGITS]):
        total = 100 * total + (int(digits or 0) if place != 3 else _read_hour(*found.group(4, 8)))
    return float(total)


def _read_hour(digits: str | None, half: str | None) -> int:
    hour = int(digits or 0)
    if not half or hour > 12:
        return hour
    return hour % 12 + 12 * (half in "Pp")
