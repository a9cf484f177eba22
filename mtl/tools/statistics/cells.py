"""Turns texts of table cells into numbers and times, just as training does.

numbers, words = cells.split_numbers(pa.array(["5", "+5", "1.50", "NA"]))

`mtl.spec.literals` defines which texts are numbers. Arrow's definition of a number differs: Arrow
accepts a few texts that are not numbers by `mtl.spec.literals`, and refuses a few texts that are
numbers.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl.spec import literals

# A pattern of codes, such as postal codes, which as numbers would lose a leading zero.
_CODE = r"^0[0-9]+$"
_HEX = r"^0[xX]"
_TRUTH = rf"^(?:{'|'.join(literals.TRUTH)})$"
_TRUE = r"^[tT]"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = rf"^{_DATE}(?:[T ][0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]+)?)?)?"
_ZONE = r"(?:Z|[+-][0-9]{2}:?[0-9]{2})"
# The number of cells that are cast to numbers as a trial. If a cast of a few cells fails, a cast of
# all cells is not tried.
_FIRST = 64
_FAILED = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


def match(texts: pa.Array, pattern: str) -> pa.Array:
    """Search each text for an RE2 pattern.

    Args:
      texts: the texts to search, [N].
      pattern: the RE2 pattern.

    Returns:
      True for each text in which the pattern occurs, bool [N]; null for a null.
    """
    return pc.match_substring_regex(texts, pattern)


def has_codes(texts: pa.Array) -> bool:
    """Return True if a text has digits after a leading zero, as postal codes may have."""
    padded = _find_padded(texts)
    return bool(len(padded)) and pc.any(match(padded, _CODE)).as_py()


def _find_padded(texts: pa.Array) -> pa.Array:
    """Return the texts that begin with 0 and have at least one more character.

    This function uses no regular expression, which would take ten times as long.
    """
    zeros = texts.filter(pc.starts_with(texts, "0"))
    return zeros.filter(pc.greater(pc.binary_length(zeros), 1))


def split_numbers(texts: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Separate texts that are numbers from other texts.

    Args:
      texts: texts [N] without nulls.

    Returns:
      The numbers, int64 or float64 [M], and the other texts [N - M].
    """
    numbers = _cast_texts(texts)
    if numbers is not None:
        return numbers, texts[:0]
    is_number = match(texts, rf"^{literals.FLOAT}$")
    number_texts = pc.utf8_ltrim(texts.filter(is_number), "+")
    numbers = _cast_texts(number_texts)
    if numbers is None:  # Arrow can cast all texts that match FLOAT.
        numbers = pc.cast(number_texts, pa.float64()).to_numpy()
    return numbers, texts.filter(pc.invert(is_number))


def _cast_texts(texts: pa.Array) -> np.ndarray | None:
    """Return texts as numbers; None if Arrow does not read all texts like `mtl.spec.literals`."""
    try:
        # Cast a few texts first, because a cast that fails takes ten times as long.
        pc.cast(texts[:_FIRST], pa.int64())
        numbers = pc.cast(texts, pa.int64())
    except _FAILED:
        return _cast_floats(texts)
    padded = _find_padded(texts)
    if len(padded) and pc.any(match(padded, _HEX)).as_py():
        return None
    return numbers.to_numpy()


def _cast_floats(texts: pa.Array) -> np.ndarray | None:
    try:
        pc.cast(texts[:_FIRST], pa.float64())
        floats = pc.cast(texts, pa.float64()).to_numpy()
    except _FAILED:
        return None
    # Arrow also accepts texts such as nan(1), which are not numbers.
    odd = texts.filter(pa.array(~np.isfinite(floats)))
    is_known = not len(odd) or pc.all(match(odd, rf"^{literals.FLOAT}$")).as_py()
    return floats if is_known else None


def are_truth(texts: pa.Array) -> bool:
    """Return True if all texts are "true" or "false", in upper or lower case."""
    return pc.all(match(texts, _TRUTH)).as_py()


def to_truth(texts: pa.Array) -> np.ndarray:
    """Turn truth values into numbers.

    Args:
      texts: "true" or "false", in upper or lower case, [N], without nulls.

    Returns:
      1 for "true" and 0 for "false", int64 [N].
    """
    return match(texts, _TRUE).to_numpy(zero_copy_only=False).astype(np.int64)


def split_times(texts: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Separate texts that are ISO dates or times from other texts.

    Args:
      texts: texts [N] without nulls; a time without a zone counts as UTC.

    Returns:
      The times in microseconds since 1970, int64 [M], and the other texts [N - M].
    """
    # Cast times with and without a zone separately, because Arrow has different types for them.
    is_plain, is_zoned = (match(texts, f"{_TIME}{end}$") for end in ("", _ZONE))
    times, other_texts = [], [texts.filter(pc.invert(pc.or_(is_plain, is_zoned)))]
    for mask, kind in ((is_plain, pa.timestamp("us")), (is_zoned, pa.timestamp("us", "UTC"))):
        matches = texts.filter(mask)
        try:
            times.append(to_microseconds(pc.cast(matches, kind)))
        except _FAILED:  # The month may be 13, for example.
            other_texts.append(matches)
    all_times = np.concatenate([np.zeros([0], np.int64), *times])
    return all_times, pa.concat_arrays(other_texts)


def to_microseconds(times: pa.Array) -> np.ndarray:
    """Turn dates, times of day or timestamps into microseconds.

    Args:
      times: the times [N], without nulls.

    Returns:
      Microseconds since 1970, or since midnight for times of day, int64 [N].
    """
    if pa.types.is_time(times.type):
        return times.cast(pa.time64("us")).cast(pa.int64()).to_numpy()
    zone = times.type.tz if pa.types.is_timestamp(times.type) else None
    # With `safe=False`, nanoseconds are cut off. With `safe=True`, the cast of nanoseconds would
    # raise an error.
    return times.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64()).to_numpy()
