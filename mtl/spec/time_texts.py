"""Parses times from texts in the graph, with the same results as `mtl.times` in Python.

parts, is_time = time_texts.read_digits(texts, times.ISO)                  # {"year": [B], ...}, [B]
parts, is_time = time_texts.read_parts(texts, times.read_form("a form", "%d.%m.%Y"))
parts = time_texts.divide_seconds(seconds)
parts["weekday"]                                         # 0 for Monday
"""

from __future__ import annotations

import calendar

from mtl import times
from mtl.deferred import tf

# The number of days of each month, without leap days.
_LENGTHS = [calendar.monthrange(2023, month)[1] for month in range(1, 13)]
_DAY, _HOUR = 86_400, 3_600
# The number of days in 400 years, and from March of year 0 to 1970, in the Gregorian calendar.
_ERA, _TO_1970 = 146_097, 719_468


def read_digits(
    texts: tf.Tensor, form: times.Form, in_utc: bool = False
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Parse the digits of times; accept times that do not exist, such as 25:00.

    Args:
      texts: the texts of the times, [B].
      form: the format of the texts.
      in_utc: True shifts times that have an offset, such as +02:00, to UTC; False ignores offsets.

    Returns:
      {part: int64 [B]} for the parts in `times.DIGITS`, such as "year"; and a mask of the texts
      that are times, bool [B].
    """
    texts = tf.strings.strip(texts)
    pattern = f"^(?:{form.pattern})$"
    is_time = tf.strings.regex_full_match(texts, form.pattern)
    groups = {n: group for n, group in form.groups.items() if in_utc or n != times.OFFSET}
    rewrite = ",".join(rf"\{group}" for group in groups.values())
    cells = tf.strings.regex_replace(texts, pattern, rewrite)
    cells = tf.where(is_time, cells, "," * (len(groups) - 1))
    columns = tf.io.decode_csv(cells, [[""]] * len(groups), use_quote_delim=False)
    digits = dict(zip(groups, columns, strict=True))
    parts = {part: _read_number(part, digits.get(part), tf.shape(texts)) for part in times.DIGITS}
    if times.HALF in digits:
        parts["hour"] = _read_hour(parts["hour"], digits[times.HALF])
    # The pattern of a month name matches any word, such as the German Mai.
    is_time &= parts["month"] >= 1
    if times.OFFSET not in digits:
        return parts, is_time
    offsets = digits[times.OFFSET]
    if "minute" in digits:  # In 10-05, which has no minutes, -05 is not an offset.
        is_range = tf.equal(digits["minute"], "") & tf.strings.regex_full_match(offsets, "-.*")
        offsets = tf.where(is_range, "", offsets)
    return _shift(parts, offsets), is_time


def _shift(parts: dict[str, tf.Tensor], offsets: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return times in UTC; `offsets` without digits, such as "Z" or a name, shift by nothing."""
    has_offset = tf.strings.regex_full_match(offsets, "[+-].*")

    def shift() -> dict[str, tf.Tensor]:
        digits = tf.strings.regex_replace(tf.where(has_offset, offsets, "+00"), ":", "") + "00"
        hours, minutes = (
            tf.strings.to_number(tf.strings.substr(digits, place, 2), tf.int64) for place in (1, 3)
        )
        is_west = tf.equal(tf.strings.substr(digits, 0, 1), "-")
        late = tf.where(is_west, tf.constant(60, tf.int64), -60) * (60 * hours + minutes)
        days = _count_days(parts["year"], parts["month"], parts["day"])
        clock = parts["hour"] * _HOUR + parts["minute"] * 60 + parts["second"]
        moved = divide_seconds(days * _DAY + clock + late)
        return {name: tf.where(has_offset, moved[name], part) for name, part in parts.items()}

    # Skip the arithmetic for batches without offsets, because most tables have no offsets.
    return tf.cond(tf.reduce_any(has_offset), shift, lambda: parts)


def _read_number(part: str, digits: tf.Tensor | None, shape: tf.Tensor) -> tf.Tensor:
    if digits is None:
        return tf.fill(shape, tf.constant(int(part in ("month", "day")), tf.int64))
    plain_digits = tf.where(tf.strings.regex_full_match(digits, "[0-9]+"), digits, "0")
    numbers = tf.strings.to_number(plain_digits, tf.int64)
    if part == "month":
        names = tf.equal(tf.strings.lower(digits)[:, tf.newaxis], tf.constant(times.MONTHS))
        numbers += tf.reduce_sum(tf.cast(names, tf.int64) * tf.range(1, 13, dtype=tf.int64), axis=1)
    if part == "year":
        century = tf.where(numbers < 69, tf.constant(2000, tf.int64), 1900)
        numbers += tf.where(tf.equal(tf.strings.length(digits), 2), century, 0)
    return numbers


def _read_hour(hour: tf.Tensor, half: tf.Tensor) -> tf.Tensor:
    half = tf.strings.lower(half)
    is_halved = tf.not_equal(half, "") & (hour <= 12)
    return tf.where(is_halved, hour % 12 + 12 * tf.cast(tf.equal(half, "p"), tf.int64), hour)


def read_parts(texts: tf.Tensor, form: times.Form) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Parse times, and check that the times exist in the calendar.

    Args:
      texts: the texts of the times, [B].
      form: the format of the texts.

    Returns:
      {part: int64 [B]} for the parts in `times.DIGITS`, such as "year", for "weekday" (0 is Monday)
      and for "days" (since 1970); and a mask of the texts that are times, bool [B].
    """
    parts, is_time = read_digits(texts, form)
    year, month = parts["year"], parts["month"]
    # Use `tf.equal`, because `==` compares tensors by identity in a graph of TF1.
    is_leap = tf.equal(year % 4, 0) & (tf.not_equal(year % 100, 0) | tf.equal(year % 400, 0))
    # A text that is not a time has month 0.
    lengths = tf.gather(tf.constant(_LENGTHS, tf.int64), tf.clip_by_value(month, 1, 12) - 1)
    lengths += tf.cast(is_leap & tf.equal(month, 2), tf.int64)
    is_time &= (parts["day"] <= lengths) & (parts["hour"] < 24)
    # Second 60 is a leap second.
    is_time &= (parts["minute"] < 60) & (parts["second"] <= 60)
    days = _count_days(year, month, parts["day"])
    return {**parts, "days": days, "weekday": (days + 3) % 7}, is_time


def _count_days(year: tf.Tensor, month: tf.Tensor, day: tf.Tensor) -> tf.Tensor:
    """Return the days since 1970, with years that begin in March, so that leap days come last."""
    year -= tf.cast(month <= 2, tf.int64)
    days = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + days - _TO_1970


def divide_seconds(seconds: tf.Tensor) -> dict[str, tf.Tensor]:
    """Divide seconds since 1970 into calendar date and time of day, in UTC.

    Args:
      seconds: int64 [B]; negative before 1970.

    Returns:
      {part: int64 [B]} for the parts in `times.DIGITS`, such as "year", for "weekday" (0 is Monday)
      and for "days" (since 1970).
    """
    days, rest = seconds // _DAY, seconds % _DAY
    shifted = days + _TO_1970
    era, day = shifted // _ERA, shifted % _ERA
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    first = (153 * month + 2) // 5
    month = (month + 2) % 12 + 1
    return {
        "year": year + era * 400 + tf.cast(month <= 2, tf.int64),
        "month": month,
        "day": day - first + 1,
        "hour": rest // _HOUR,
        "minute": rest % _HOUR // 60,
        "second": rest % 60,
        "days": days,
        "weekday": (days + 3) % 7,
    }
