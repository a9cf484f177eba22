"""Finds the form in which a column writes times, and useful units, such as weekdays.

times = dates.find_times(facts, form="")
times.form, times.units, times.twin                      # "%m/%d/%Y", ("weekday",), "%d/%m/%Y"
"""

import datetime
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mtl import times
from mtl.tools.drafting import columns

# Days such as 20240531 and months such as 202405. If a column has fewer than 12 distinct values,
# numbers such as 202405 may mean something else than months.
_DAY = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")
_MONTH = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])")
_MANY_DATES = 12
_TIME_NAME = re.compile(r"date|time|timestamp|(?:^|_)ts$|_at$", re.IGNORECASE)
# Numbers with at most this many distinct values count as times only if the column's name suggests
# times.
_FEW_VALUES = 50
# A column gets the first of these forms that fits all its values. For dates with slashes, the
# American order comes first.
_DATES = (
    *("%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%Y", "%m.%d.%Y", "%d.%m.%y"),
    *("%m.%d.%y", "%d-%m-%Y", "%m-%d-%Y", "%d-%m-%y", "%m-%d-%y", "%Y-%m", "%Y%m%d"),
    *("%d %b %Y", "%d-%b-%Y", "%d %b %y", "%d-%b-%y", "%b %d, %Y", "%b %d %Y"),
    *("%a, %d %b %Y", "%a %d %b %Y", "%a, %b %d, %Y", "%a %b %d %Y"),
)
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", "T%H:%M", "T%H:%M:%S", "T%H%M%S")
_OTHERS = ("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %z %Y")
# Times that span two weeks repeat all weekdays; times that span two years repeat all months.
_DAYS_OF_WEEKS, _DAYS_OF_YEARS = 14, 730


class Times(NamedTuple):
    """The form in which a column writes times, and units of time that are useful inputs.

    Attributes:
      form: the form as in `features.TimeParts.form`; None if the form is unknown.
      units: the units among "month", "weekday" and "hour" that vary, and whose values occur again
        in later rows.
      twin: another form that also fits all texts, but means other times; "" if there is none.
    """

    form: str | None
    units: tuple[str, ...] = ()
    twin: str = ""


def find_times(facts: columns.Facts, form: str = "") -> Times | None:
    """Find the form in which a column writes times; None if the column does not contain times.

    Args:
      facts: the facts of the column.
      form: the form, if the user has set it; "" otherwise.
    """
    if form:
        return Times(form, _choose_units(facts, form))
    if facts.is_number:
        return _find_numbers(facts)
    if facts.kind == "time":
        return Times("", _choose_units(facts, ""))
    if facts.kind != "date":
        return None
    form, twin = _find_forms(facts)
    return Times(form, _choose_units(facts, form), twin) if form else Times(None)


def fits_some(facts: columns.Facts, form: str) -> bool:
    """Return True if a form of times fits some values of a column.

    Args:
      facts: the facts of the column.
      form: a form as in `features.TimeParts.form`; a unit such as "seconds" must fit all values.
    """
    if form in times.SINCE_1970:
        return facts.is_number
    return any(_read_all(list(facts.values), form))


def have_zones(facts: columns.Facts, form: str) -> bool:
    """Return True if some times of a column have an offset or a zone, as `fits_some` reads them."""
    if form in times.SINCE_1970:
        return False
    parsed_form = times.read_form("a form", form)
    return any(times.has_zone(text, parsed_form) for text in facts.values)


def is_named(name: str) -> bool:
    """Return True if the name of a column suggests times."""
    return _TIME_NAME.search(name) is not None


def _find_numbers(facts: columns.Facts) -> Times | None:
    """Find times that are numbers: seconds since 1970, 20240531, 202405, or days of Excel.

    If the name of the column does not suggest times, numbers count as times only if many of them
    are distinct.
    """
    unit = _find_unit(facts)
    if unit:
        return Times(unit, _choose_units(facts, unit))
    if facts.kind != "int" or facts.is_code:
        return None
    form = _find_digits(facts) if is_named(facts.name) or facts.distinct >= _MANY_DATES else ""
    if form:
        return Times(form, _choose_units(facts, form))
    # Excel counts days since 1900: day 25,569 lies in 1970, and day 60,000 in 2064.
    is_serial = is_named(facts.name) and facts.least >= 25_569 and facts.greatest < 60_000
    return Times(None) if is_serial else None


def _find_digits(facts: columns.Facts) -> str:
    """Return the form of days such as 20240531 or months such as 202405; "" for other numbers."""
    forms = {"%Y%m%d": _DAY, "%Y%m": _MONTH}
    fits = (form for form, digits in forms.items() if all(map(digits.fullmatch, facts.values)))
    return next(fits, "")


def _find_unit(facts: columns.Facts) -> str:
    """Return the unit of numbers that count time since 1970; "" for other numbers."""
    # The range in seconds: from 1979 to 2065 if the name suggests times, else from 1999 to 2033.
    first, last = (3e8, 3e9) if is_named(facts.name) else (9.4e8, 2e9)
    if not is_named(facts.name) and facts.distinct <= _FEW_VALUES:
        return ""
    return next(
        (
            unit
            for unit, parts in times.SINCE_1970.items()
            if first * parts <= facts.least and facts.greatest < last * parts
        ),
        "",
    )


def _find_forms(facts: columns.Facts) -> tuple[str, str]:
    """Return the first form that fits all texts, and a second form that means other times.

    A form that was not found is returned as "".
    """
    texts = list(facts.values)
    fits = (form for form in _list_forms() if _fits(form, texts))
    form = next(fits, "")
    first_times = _read_all(texts, form)
    return form, next((twin for twin in fits if _read_all(texts, twin) != first_times), "")


def _list_forms() -> Iterator[str]:
    for date, clock in itertools.product(_DATES, _CLOCKS):
        yield f"{date}{clock}"
        # Only a form with a time of day may have a time zone.
        if clock:
            yield from (f"{date}{clock}{zone}" for zone in ("%z", " %z"))
    yield from _OTHERS


def _fits(form: str, texts: Sequence[str]) -> bool:
    parsed_form = times.read_form("a form", form)
    return all(times.read_parts(text, parsed_form) is not None for text in texts)


def _read_all(texts: Sequence[str], form: str) -> list[tuple[int, ...] | None]:
    parsed_form = times.read_form("a form", form)
    return [times.read_parts(text, parsed_form) for text in texts]


def read_times(texts: Sequence[str], form: str) -> list[datetime.datetime | None]:
    """Read times as `features.TimeParts` does; None for a text that is not a time.

    Args:
      texts: the times as the file writes them.
      form: the form of the texts, as in `features.TimeParts.form`: "" for ISO times, a form such as
        "%d.%m.%Y", or a unit of time since 1970.

    Returns:
      The time of each text, without a time zone; None for a text that is not a time.
    """
    if form in times.SINCE_1970:
        start = datetime.datetime(1970, 1, 1)
        seconds = (float(text) // times.SINCE_1970[form] for text in texts)
        return [start + datetime.timedelta(seconds=second) for second in seconds]
    return list(map(_to_datetime, _read_all(texts, form)))


def _to_datetime(parts: tuple[int, ...] | None) -> datetime.datetime | None:
    try:
        return datetime.datetime(*parts) if parts else None  # type: ignore[arg-type]
    except ValueError:  # For example, the minute 61 or the year 0.
        return None


def _choose_units(facts: columns.Facts, form: str) -> tuple[str, ...]:
    """Return the units of time that vary, and whose values occur again in later rows.

    If all times lie in a single year, the month says when a row was written, and a random split
    rewards a model that memorizes the months. But a model in use meets rows from months of later
    years, which the training rows lack.
    """
    moments = [time for time in read_times(list(facts.values), form) if time is not None]
    if not moments:
        return ()
    days = (max(moments) - min(moments)).days
    hours = len({time.hour for time in moments}) > 1
    units = {"month": days >= _DAYS_OF_YEARS, "weekday": days >= _DAYS_OF_WEEKS, "hour": hours}
    # A month such as 2024-05 is read as its first day, so its weekday means nothing.
    has_days = "%" not in form or "%d" in form
    units["weekday"] &= has_days and len({time.weekday() for time in moments}) > 1
    return tuple(unit for unit, comes_again in units.items() if comes_again)
